//! New rules cost the gang that brings them, and nobody else.

use muster_api::Reason;
use muster_engine::{Node, Timestamp, Update};
use serde_json::{Value, json};

use crate::{
    formed::FormedGang,
    index::{Index, NamespacedName},
    object::Kind,
    selectors::JudgementRequest,
    shares::RULES_PER_NAMESPACE,
    testing::{claim, gone, index_with, is, node, pod, settle, slice, with},
};

fn gang<'a>(index: &'a Index, pod: &str) -> &'a FormedGang {
    let key = index.gang_of_pod(&NamespacedName::new("ml", pod)).unwrap();
    index.formed_gang(key).unwrap()
}

fn selecting(of_pod: &str, expression: &str) -> Value {
    with(
        claim(of_pod, 1),
        "/spec/devices/requests/0/exactly/selectors",
        json!([{"cel": {"expression": expression}}]),
    )
}

fn told_nodes(index: &mut Index) -> Vec<Node> {
    let updates = index.engine_updates(Timestamp(0)).into_iter();
    let nodes = updates.filter_map(|update| match update {
        Update::Node(node) => Some(node),
        _ => None,
    });
    nodes.collect()
}

#[test]
fn a_request_may_be_judged_on_any_thread() {
    fn is_sent<T: Send + 'static>() {}
    is_sent::<JudgementRequest>();
}

#[test]
fn a_new_selector_is_judged_apart_and_holds_up_only_the_gang_that_uses_it() {
    let mut index = index_with([pod("old", 5), claim("old", 1)]);
    assert_eq!(gang(&index, "old").wait, None);
    index.engine_updates(Timestamp(0));
    index.judge_apart();

    let expression = "device.attributes['gpu.muster.dev'].productName.startsWith('NVIDIA')";
    index.observe(is(pod("new", 6)));
    index.observe(is(selecting("new", expression)));
    settle(&mut index);
    let requests = index.take_judgements();
    // Two GPUs of each of two nodes, all of one kind.
    assert_eq!(requests.len(), 1, "once for each kind of device");
    assert!(
        index.take_judgements().is_empty(),
        "each is handed out once"
    );
    let waiting = gang(&index, "new");
    assert_eq!(
        waiting.wait.as_ref().map(|wait| wait.reason),
        Some(Reason::WaitingForPlacement)
    );
    assert_eq!(gang(&index, "old").wait, None);
    assert!(
        told_nodes(&mut index).is_empty(),
        "no node is touched meanwhile"
    );

    let judgements: Vec<_> = requests.iter().map(JudgementRequest::judge).collect();
    index.give_judgements(judgements.clone());
    settle(&mut index);
    assert_eq!(gang(&index, "new").wait, None);
    let selector =
        gang(&index, "new").pods[0].request.as_ref().unwrap().claims[0].requests[0].selector;
    let told = told_nodes(&mut index);
    assert_eq!(told.len(), 2);
    let devices = told.iter().flat_map(|node| &node.devices);
    assert!(
        devices
            .into_iter()
            .all(|device| device.selectors.contains(&selector))
    );

    index.give_judgements(judgements);
    assert!(
        index.refresh(Timestamp(0)).is_empty(),
        "an answer that comes twice changes nothing"
    );
}

#[test]
fn a_judgement_that_was_given_up_matches_nothing_and_says_so() {
    let mut index = index_with([]);
    index.judge_apart();
    index.observe(is(pod("slow", 6)));
    index.observe(is(selecting("slow", "device.driver.startsWith('gpu')")));
    settle(&mut index);
    let requests = index.take_judgements();
    index.give_judgements(
        requests
            .iter()
            .map(|request| request.give_up("it takes longer than 1 s")),
    );
    settle(&mut index);
    let wait = gang(&index, "slow").wait.clone().unwrap();
    assert_eq!(wait.reason, Reason::RequestNotUnderstood);
    assert!(
        wait.details.ends_with("it takes longer than 1 s"),
        "{}",
        wait.details
    );
}

#[test]
fn a_selector_that_reads_the_uuid_is_judged_for_each_device() {
    let expression = "device.attributes['gpu.muster.dev'].uuid == 'GPU-a-1'";
    let mut index = index_with([pod("solo", 5), selecting("solo", expression)]);
    let selector = gang(&index, "solo").pods[0]
        .request
        .as_ref()
        .unwrap()
        .claims[0]
        .requests[0]
        .selector;
    let matching: Vec<String> = told_nodes(&mut index)
        .iter()
        .flat_map(|node| &node.devices)
        .filter(|device| device.selectors.contains(&selector))
        .map(|device| device.name.to_string())
        .collect();
    assert_eq!(matching, ["gpu.muster.dev/a/gpu-1"]);
}

#[test]
fn devices_that_differ_in_their_uuid_only_are_one_kind() {
    let index = index_with((0..50).map(|number| slice(&format!("n{number}"), 8)));
    // numaNode tells the first four of a node from the others.
    assert_eq!(index.device_kinds.iter().count(), 2);
}

#[test]
fn an_expression_that_is_too_long_is_refused_and_one_at_the_limit_is_not() {
    let text = |bytes: usize| {
        let rest = bytes - "device.driver != ''".len();
        format!("device.driver != '{}'", "x".repeat(rest))
    };
    let index = index_with([pod("solo", 5), selecting("solo", &text(10 * 1024))]);
    assert_eq!(gang(&index, "solo").wait, None);
    let index = index_with([pod("solo", 5), selecting("solo", &text(10 * 1024 + 1))]);
    let details = gang(&index, "solo").wait.clone().unwrap().details;
    assert!(
        details.ends_with("has 10241 bytes; an expression has at most 10240"),
        "{details}"
    );
}

#[test]
fn a_new_rule_is_told_to_a_bounded_number_of_nodes_per_refresh() {
    let mut index = index_with((0..600).map(|number| node(&format!("n{number}"), "s1", "l1")));
    index.engine_updates(Timestamp(0));
    index.observe(is(with(
        pod("solo", 5),
        "/spec/nodeSelector",
        json!({"example.com/leaf": "l1"}),
    )));
    index.observe(is(claim("solo", 1)));
    let mut told = Vec::new();
    loop {
        let before = index.visits().nodes;
        let more = index.refresh(Timestamp(0)).more;
        // Besides, the two nodes with devices wait for what the new selector says of these.
        let visited = index.visits().nodes - before;
        assert!(visited <= 256 + 2, "{visited}");
        told.push(told_nodes(&mut index).len());
        if !more && !index.has_more() {
            break;
        }
        assert!(told.len() < 20, "it ends");
    }
    assert_eq!(
        told.iter().sum::<usize>(),
        602,
        "every node that passes, once"
    );
    assert_eq!(gang(&index, "solo").wait, None);
}

#[test]
fn one_rule_more_than_its_share_waits_until_another_is_no_longer_used() {
    let name = |number: usize| format!("p{number:03}");
    let ruled = |number: usize| {
        with(
            pod(&name(number), 5),
            "/spec/nodeSelector",
            json!({"example.com/leaf": format!("l{number}")}),
        )
    };
    let objects =
        (0..=RULES_PER_NAMESPACE).flat_map(|number| [ruled(number), claim(&name(number), 1)]);
    let mut index = index_with(objects);
    let refused = |index: &Index| -> Vec<usize> {
        (0..=RULES_PER_NAMESPACE)
            .filter(|number| {
                index
                    .gang_of_pod(&NamespacedName::new("ml", name(*number)))
                    .is_some()
            })
            .filter(|number| gang(index, &name(*number)).wait.is_some())
            .collect()
    };
    let late = refused(&index);
    assert_eq!(late.len(), 1, "{late:?}");
    let details = gang(&index, &name(late[0])).wait.clone().unwrap().details;
    assert!(
        details.contains("128 different rules about nodes"),
        "{details}"
    );
    let other = usize::from(late[0] == 0);
    index.observe(gone(Kind::Pod, "ml", &name(other)));
    settle(&mut index);
    assert_eq!(refused(&index), [0_usize; 0]);
}
