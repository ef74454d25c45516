//! Pods that may be planned anew though they have their place.

use serde_json::{Value, json};

use crate::{
    index::Index,
    node_filter::ANY_NODE,
    object::Kind,
    testing::{claim, gone, index_with, is, node, node_devices, pod, settle, slice, with},
};

/// A pod that Muster pinned to node `a`, and that runs there. Its user wants leaf `l1`.
fn pinned() -> Value {
    let pin = json!({"key": "metadata.name", "operator": "In", "values": ["a"]});
    let leaf = json!({"key": "example.com/leaf", "operator": "In", "values": ["l1"]});
    let fields = [
        (
            "/metadata/annotations",
            json!({"muster.dev/placement": "pinned"}),
        ),
        ("/spec/schedulingGates", json!([])),
        ("/spec/nodeName", json!("a")),
        (
            "/spec/affinity",
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [leaf], "matchFields": [pin]},
            ]}}}),
        ),
    ];
    let fields = fields.into_iter();
    fields.fold(pod("w", 1), |pod, (pointer, value)| {
        with(pod, pointer, value)
    })
}

fn index() -> Index {
    index_with([
        claim("w", 1),
        pinned(),
        node("c", "s1", "l2"),
        slice("c", 2),
        node_devices("c"),
    ])
}

#[test]
fn it_is_told_to_nodes_what_its_user_said_about_them_as_long_as_it_may_be_planned_anew() {
    let mut index = index();
    assert!(index.filter_anew("uid-w").is_none());
    assert!(index.filters.is_empty(), "it has its place");
    assert!(index.plan_anew("uid-w", true));
    assert!(!index.plan_anew("uid-w", true), "that is known");
    settle(&mut index);
    let filter = index.filter_anew("uid-w").unwrap().unwrap();
    let passed = ["a", "b", "c"].map(|node| {
        let node = index.engine_node(node).unwrap();
        node.filters.contains(&filter)
    });
    assert_eq!(passed, [true, true, false], "without the pin");
    let request = index.request_of_pod(&"uid-w".into()).unwrap();
    assert_eq!(request.filter, ANY_NODE, "what it holds is as it was");
    assert!(index.plan_anew("uid-w", false));
    assert!(!index.plan_anew("uid-w", false));
    settle(&mut index);
    assert!(index.filter_anew("uid-w").is_none());
    index.observe(is(with(pinned(), "/metadata/labels", json!({"x": "y"}))));
    settle(&mut index);
    assert!(index.filters.is_empty(), "nobody says it any more");
}

#[test]
fn of_a_pod_that_is_gone_or_waits_nothing_is_planned_anew() {
    let mut index = index();
    assert!(!index.plan_anew("uid-nobody", true));
    assert!(index.plan_anew("uid-w", true));
    index.observe(gone(Kind::Pod, "ml", "w"));
    settle(&mut index);
    assert!(index.filter_anew("uid-w").is_none());
    assert!(index.filters.is_empty());
    index.observe(is(pod("v", 2)));
    settle(&mut index);
    assert!(
        !index.plan_anew("uid-v", true),
        "it waits, and is planned as such"
    );
}
