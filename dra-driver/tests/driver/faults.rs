//! Faults that the driver hears of, as it publishes them.

use std::{
    fs,
    io::Write,
    time::{Duration, Instant},
};

use nvidia_ml_mock::Board;

use crate::node::Node;

pub(crate) const FAULT: &str = "gpu.muster.dev/fault";
pub(crate) const NODE_FAULT: &str = "gpu.muster.dev/node-fault";
pub(crate) const BOTH: [&str; 2] = ["gpu-0", "gpu-1"];
/// How often the driver looks at all GPUs.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// What the log says after that is new.
pub(crate) async fn watched_once(node: &mut Node) {
    fs::write(node.path("kmsg"), "6,0,1,-;NVRM: loading\n").unwrap();
    node.start().await;
    let is_kept = || {
        let remembered = fs::read_to_string(node.path("state/faults.json"));
        remembered.is_ok_and(|text| text.contains("\"isLogOld\":false"))
    };
    node.eventually("the log is read", is_kept).await;
    node.crash();
}

#[tokio::test]
async fn what_was_logged_before_the_first_start_is_an_anomaly_unless_the_gpu_says_otherwise() {
    let mut node = Node::new().await;
    let board = Board::named("t4-2").unwrap();
    let place = |index: usize| board.gpus[index].pci_bus_id[4..14].to_lowercase();
    let log = format!(
        "4,1,1,-;NVRM: Xid (PCI:{}): 79, GPU has fallen off the bus.\n4,2,2,-;NVRM: Xid (PCI:{}): 48, x\n",
        place(0),
        place(1)
    );
    fs::write(node.path("kmsg"), log).unwrap();
    node.start().await;
    let sick = node.gpu("gpu-1").await;
    let remembered = || fs::read_to_string(node.path("state/faults.json")).unwrap_or_default();
    node.eventually("both were looked at", || {
        let text = remembered();
        text.contains("XID 79, earlier") && text.contains("XID 48, earlier")
    })
    .await;
    assert!(node.api.tainted(FAULT).is_empty());
    assert!(node.api.tainted(NODE_FAULT).is_empty());
    // It still has to be reset.
    node.change(|state| state.card(&sick).recovery_action = 1);
    node.eventually("it is tainted", || node.api.tainted(FAULT) == ["gpu-1"])
        .await;
    // What is logged from now on is new.
    let more = format!("4,3,3,-;NVRM: Xid (PCI:{}): 79, x\n", place(0));
    let mut file = fs::OpenOptions::new()
        .append(true)
        .open(node.path("kmsg"))
        .unwrap();
    file.write_all(more.as_bytes()).unwrap();
    node.eventually("the node is closed", || {
        node.api.tainted(NODE_FAULT) == BOTH
    })
    .await;
}

#[tokio::test]
async fn a_gpu_that_was_to_be_reset_and_is_not_any_more_is_free_without_a_word() {
    let node = Node::started().await;
    let sick = node.gpu("gpu-1").await;
    node.change(|state| state.card(&sick).recovery_action = 1);
    node.eventually("it is tainted", || node.api.tainted(FAULT) == ["gpu-1"])
        .await;
    node.change(|state| state.card(&sick).recovery_action = 0);
    node.eventually("the taint is gone", || node.api.tainted(FAULT).is_empty())
        .await;
}

#[tokio::test]
async fn what_the_kernel_said_while_nobody_listened_is_heard_and_what_a_program_says_is_not() {
    let mut node = Node::new().await;
    let board = Board::named("t4-2").unwrap();
    let place = |index: usize| board.gpus[index].pci_bus_id[4..14].to_lowercase();
    let (first, second) = (place(0), place(1));
    let log = format!(
        "4,1,1,-;NVRM: Xid (PCI:{first}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n\
         12,2,2,-;NVRM: Xid (PCI:{second}): 48, a program says so\n"
    );
    watched_once(&mut node).await;
    fs::write(node.path("kmsg"), log).unwrap();
    node.start().await;
    node.eventually("the node is closed", || {
        node.api.tainted(NODE_FAULT) == BOTH
    })
    .await;
    assert_eq!(node.api.tainted(FAULT), ["gpu-0"]);
}

#[tokio::test]
async fn a_person_takes_a_fault_off_by_a_word_that_counts_once_and_only_for_a_gpu_that_is_in_order()
{
    let mut node = Node::new().await;
    let board = Board::named("t4-2").unwrap();
    let place = board.gpus[0].pci_bus_id[4..14].to_lowercase();
    // In no table: it stays until a person has looked.
    let line = |sequence: u32| format!("4,{sequence},1,-;NVRM: Xid ({place}): 9999, x\n");
    watched_once(&mut node).await;
    fs::write(node.path("kmsg"), line(1)).unwrap();
    node.start().await;
    let sick = node.gpu("gpu-0").await;
    node.eventually("it is tainted", || node.api.tainted(FAULT) == ["gpu-0"])
        .await;
    node.change(|state| state.card(&sick).recovery_action = 1);
    let (is_believed, told) = node.mended(&sick).await;
    assert!(
        !is_believed && told.contains("recovery action is 1"),
        "{told}"
    );
    assert_eq!(node.api.tainted(FAULT), ["gpu-0"]);
    node.change(|_| {});
    let (is_believed, told) = node.mended("gpu-0").await;
    assert!(is_believed && told.contains("is in order"), "{told}");
    node.eventually("the taint is gone", || node.api.tainted(FAULT).is_empty())
        .await;
    assert!(node.files("state/mended").is_empty());
    // What the log said before is not heard again, and what it says from now on is.
    node.crash();
    node.start().await;
    node.eventually("they are published", || node.api.published() == BOTH)
        .await;
    assert!(node.api.tainted(FAULT).is_empty());
    fs::write(node.path("kmsg"), line(1) + &line(2)).unwrap();
    node.crash();
    node.start().await;
    node.eventually("it is tainted again", || {
        node.api.tainted(FAULT) == ["gpu-0"]
    })
    .await;
    let (is_believed, told) = node.mended("GPU-of-another-machine").await;
    assert!(
        !is_believed && told.contains("no GPU of this node"),
        "{told}"
    );
    assert_eq!(node.api.tainted(FAULT), ["gpu-0"]);
}

/// The GPUs are looked at every ten seconds; who waited for that each time would wait for three times as long as this.
#[tokio::test]
async fn a_person_is_answered_within_seconds_and_does_not_wait_for_the_next_look_at_the_gpus() {
    const WORDS: u32 = 3;
    let node = Node::started().await;
    node.eventually("they are published", || node.api.published() == BOTH)
        .await;
    // The looks of the start are over with the first.
    let _ = node.mended("gpu-0").await;
    let begun = Instant::now();
    for _ in 0..WORDS {
        let (is_believed, told) = node.mended("gpu-0").await;
        assert!(is_believed && told.contains("is in order"), "{told}");
    }
    let took = begun.elapsed();
    assert!(took < LOOK_EVERY, "{took:?}");
    // What the GPUs show meanwhile is still found by a look.
    let sick = node.gpu("gpu-1").await;
    node.change(|state| state.card(&sick).recovery_action = 1);
    node.eventually("it is tainted", || node.api.tainted(FAULT) == ["gpu-1"])
        .await;
}

#[tokio::test]
async fn a_claim_on_a_gpu_that_a_fault_closes_is_refused_and_one_that_runs_there_is_not() {
    let mut node = Node::new().await;
    node.start().await;
    let sick = node.gpu("gpu-1").await;
    node.api.allocate("before", &["gpu-1"]);
    let prepared = node.prepare("before").await;
    assert_eq!(prepared.error, "", "{prepared:?}");
    node.change(|state| state.card(&sick).recovery_action = 1);
    node.eventually("it is tainted", || node.api.tainted(FAULT) == ["gpu-1"])
        .await;
    let again = node.prepare("before").await;
    assert_eq!(again.error, "", "what is prepared stays: {again:?}");
    node.api.allocate("late", &["gpu-1"]);
    let refused = node.prepare("late").await;
    assert!(refused.error.contains("DeviceFaulty"), "{refused:?}");
}

#[tokio::test]
async fn what_a_fault_means_the_administrator_says_also_while_the_api_server_is_away() {
    let mut node = Node::new().await;
    let board = Board::named("t4-2").unwrap();
    let place = board.gpus[1].pci_bus_id[4..14].to_lowercase();
    let log = |node: &Node, sequence: u32, xid: u32| {
        let line = format!("4,{sequence},1,-;NVRM: Xid (PCI:{place}): {xid}, x\n");
        let file = fs::OpenOptions::new().append(true).open(node.path("kmsg"));
        file.unwrap().write_all(line.as_bytes()).unwrap();
    };
    let text = |node: &Node, file: &str| fs::read_to_string(node.path(file)).unwrap_or_default();
    // What no driver understands costs nothing else.
    node.api.put_policy(Some(&serde_json::json!([
        {"xid": 109, "class": "Sinking"},
        {"xid": 48, "class": "Info"},
    ])));
    fs::write(node.path("kmsg"), "6,0,1,-;NVRM: loading\n").unwrap();
    node.start().await;
    node.eventually("the log is read and the policy is kept", || {
        let is_read = text(&node, "state/faults.json").contains("\"isLogOld\":false");
        is_read && text(&node, "state/fault-policy.json").contains("Sinking")
    })
    .await;
    node.crash();
    node.api.put_policy(None);
    node.start().await;
    node.eventually("both are published", || node.api.published() == BOTH)
        .await;
    log(&node, 1, 48);
    node.eventually("it is seen", || {
        text(&node, "state/faults.json").contains("XID 48")
    })
    .await;
    assert!(node.api.tainted(FAULT).is_empty(), "it is an anomaly here");
    log(&node, 2, 109);
    node.eventually("the other is what it is everywhere", || {
        node.api.tainted(FAULT) == ["gpu-1"]
    })
    .await;
}
