//! What the node promises to have heard (rule 4).

use super::*;

#[test]
fn the_generation_is_on_disk_before_the_status_says_so() {
    let mut node = Node::new(Some(node_devices("u", 1, vec![permit("a", 1_000)])));
    node.prepare(claim("a", &["gpu-0"]));
    node.log.clear();
    let withdrawn = Permit {
        withdrawn: true,
        ..permit("a", 1_000)
    };
    node.write_api(node_devices("u", 2, vec![withdrawn]), true);
    assert_eq!(node.log, ["disk 2", "status 2 held [a]"]);
    assert_eq!(node.held, BTreeSet::from(["gpu-0".to_owned()]));
    assert_eq!(node.status().uid, "u");
    assert_eq!(node.status().boot_id, "boot-1");

    node.unprepare("a");
    assert!(node.held_by_status().is_empty());
    assert!(node.held.is_empty());
}

#[test]
fn the_status_of_node_devices_is_stored_as_it_was() {
    let mut node = Node::new(Some(node_devices("u", 1, vec![permit("a", 1_000)])));
    node.prepare(claim("a", &["gpu-0"]));
    let withdrawn = Permit {
        withdrawn: true,
        ..permit("a", 1_000)
    };
    node.write_api(node_devices("u", 2, vec![withdrawn]), true);
    let stored = serde_json::to_string_pretty(&node.status()).unwrap() + "\n";
    crate::golden::compare("node-devices-status.json", &stored);
}

#[test]
fn what_another_instance_gave_back_and_did_not_live_to_say_is_said() {
    let mut node = Node::new(Some(node_devices("u", 1, vec![permit("a", 1_000)])));
    node.prepare(claim("a", &["gpu-0"]));
    let withdrawn = Permit {
        withdrawn: true,
        ..permit("a", 1_000)
    };
    node.write_api(node_devices("u", 2, vec![withdrawn]), true);
    assert_eq!(node.held_by_status().len(), 1);
    // The other instance unprepares it, and is stopped before it writes its status.
    node.disk.records.remove("a");
    node.pass(30 * SECOND);
    assert!(node.held_by_status().is_empty());
    assert!(node.held.is_empty());
    assert_eq!(node.machines[0].wake_at(), None, "nothing is held any more");
}

#[test]
fn an_older_view_neither_acknowledges_nor_prepares() {
    let mut node = Node::new(Some(node_devices("u", 5, vec![])));
    // The watch of a new instance lags behind what the node has promised.
    node.api_answers = false;
    let old = node_devices("u", 4, vec![permit("a", 1_000)]);
    node.boot_seeing(config("two"), Some(old));
    let call = node.prepare(claim("a", &["gpu-0"]));
    node.pass(36 * SECOND);
    assert!(node.refused(call).message.contains("NodeDevices"));
    assert_eq!(node.disk.acknowledged.as_ref().unwrap().generation, 5);
    assert_eq!(node.status().observed_generation, 5);
}

#[test]
fn another_object_than_the_disks_counts_only_after_an_uncached_read() {
    let mut node = Node::new(Some(node_devices("u", 5, vec![])));
    node.api_answers = false;
    let recreated = node_devices("v", 1, vec![permit("a", 1_000)]);
    node.write_api(recreated, true);
    let call = node.prepare(claim("a", &["gpu-0"]));
    node.pass(5 * SECOND);
    assert_eq!(node.answered(call), None);
    assert_eq!(
        node.disk.acknowledged.as_ref().unwrap().uid.as_deref(),
        Some("u")
    );
    node.api_answers = true;
    node.pass(5 * SECOND);
    assert_eq!(node.prepared(call).len(), 1);
    assert_eq!(
        (
            node.status().uid.as_str(),
            node.status().observed_generation
        ),
        ("v", 1)
    );
}

#[test]
fn a_status_that_conflicts_is_worked_out_again() {
    let mut node = Node::new(Some(node_devices("u", 1, vec![])));
    // The controller writes, and the watch does not show it yet.
    node.write_api(node_devices("u", 2, vec![permit("a", 1_000)]), false);
    node.tell(Input::Observed(Some(Arc::new(node_devices(
        "u",
        1,
        vec![],
    )))));
    node.pass(2 * SECOND);
    node.prepare(claim("a", &["gpu-0"]));
    node.pass(2 * SECOND);
    assert_eq!(node.status().observed_generation, 2);
    assert!(node.held_by_status().is_empty());
}

#[test]
fn an_api_server_that_was_restored_to_an_older_generation_is_not_asked_for_ever() {
    let mut node = Node::new(Some(node_devices("u", 5, vec![permit("a", 1_000)])));
    node.prepare(claim("a", &["gpu-0"]));
    node.write_api(node_devices("u", 6, vec![]), true);
    assert_eq!(node.held_by_status(), ["a"]);
    // The backup has the version in which nothing was withdrawn.
    node.write_api(node_devices("u", 5, vec![permit("a", 1_000)]), false);
    node.unprepare("a");
    // It was to look once more at what was held; from then on it waits for a change.
    node.pass(30 * SECOND);
    assert_eq!(node.machines[0].wake_at(), None);
    node.write_api(node_devices("u", 7, vec![]), true);
    assert_eq!(node.status().observed_generation, 7);
    assert!(node.held_by_status().is_empty());
}

#[test]
fn a_status_goes_only_to_the_object_that_it_is_about() {
    let mut node = Node::new(Some(node_devices("u", 1, vec![])));
    node.log.clear();
    let before = Arc::new(node_devices("u", 2, vec![]));
    node.begin(0, Input::Observed(Some(before)));
    assert!(node.step(), "it takes the lock, and decides");
    // While that is written, the object is lost, and its successor shows up.
    let successor = node_devices("v", 1, vec![]);
    node.api = Some(successor.clone());
    node.begin(0, Input::Observed(Some(Arc::new(successor))));
    node.settle();
    assert_eq!(node.log, ["disk 2", "disk 1", "status 1 held []"]);
    assert_eq!(node.status().uid, "v");
}
