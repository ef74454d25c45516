//! The size that the design is for, without a clock: what is touched is counted.

use muster_engine::Timestamp;
use serde_json::json;

use crate::{
    index::NamespacedName,
    testing::{claim, index_with, is, member, node, node_devices, slice, with},
};

const NODES: usize = 10_000;
const GANGS: usize = 2_000;

#[test]
fn one_changed_pod_among_2000_gangs_and_10000_nodes_touches_one_gang_and_no_node() {
    let mut objects = Vec::new();
    for number in 0..NODES {
        let name = format!("n{number}");
        objects.extend([
            node(&name, "s1", &format!("l{}", number / 32)),
            slice(&name, 1),
            node_devices(&name),
        ]);
    }
    for number in 0..GANGS {
        let gang = format!("g{number}");
        for rank in 0..2 {
            let name = format!("{gang}-{rank}");
            objects.extend([member(&name, 5, &gang, "2"), claim(&name, 1)]);
        }
    }
    let mut index = index_with(objects);
    assert_eq!(
        index
            .formed_gangs()
            .filter(|gang| gang.wait.is_none())
            .count(),
        GANGS
    );
    assert_eq!(
        index.engine_updates(Timestamp(0)).len(),
        NODES + 2 + 3,
        "with the background"
    );

    let seen = with(
        member("g7-0", 5, "g7", "2"),
        "/status/phase",
        json!("Running"),
    );
    index.observe(is(seen));
    let touched: Vec<_> = index.refresh(Timestamp(0)).gangs.into_iter().collect();
    assert_eq!(touched.len(), 1);
    assert_eq!(
        index.gang_of_pod(&NamespacedName::new("ml", "g7-0")),
        Some(&touched[0])
    );
    assert!(index.engine_updates(Timestamp(0)).is_empty());

    let bound = with(member("g7-0", 5, "g7", "2"), "/spec/nodeName", json!("n9"));
    index.observe(is(bound));
    assert_eq!(
        index.engine_updates(Timestamp(0)).len(),
        1,
        "the node that it is bound to"
    );
}
