//! GPUs that can be cut, as the driver publishes them.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::node::Node;

/// Devices of an H100 that is cut as claims ask: the whole GPU and each legal slice.
const PER_GPU: usize = 26;

/// A node with eight H100 that are not in MIG mode; slices are made for claims.
async fn dynamic() -> Node {
    let mut node = Node::new().await;
    let proc = node.has_capabilities();
    node.change(|state| {
        "h100-nvswitch-8".clone_into(&mut state.board);
        state.proc_directory = Some(proc);
    });
    let mig = json!({"mode": "Dynamic", "toggle": "WhenIdle"});
    node.flags.push(format!("--mig={mig}"));
    node
}

fn are_all_published(node: &Node) -> bool {
    node.api.slice_count() == 9 && node.api.published().len() == 8 * PER_GPU
}

#[tokio::test]
async fn eight_h100_are_nine_slices_and_come_back_when_the_kubelet_took_them_away() {
    let mut node = dynamic().await;
    node.start().await;
    node.eventually("all are published", || are_all_published(&node))
        .await;
    let before = node.api.published();
    assert_eq!(before[PER_GPU - 1], "gpu-0", "whole last");
    node.crash();
    node.api.delete_slices();
    node.start().await;
    node.eventually("they come back", || are_all_published(&node))
        .await;
    assert_eq!(node.api.published(), before);
}

#[tokio::test]
async fn beside_an_active_mig_manager_gpus_are_offered_as_they_are() {
    let mut node = dynamic().await;
    let label = "nvidia.com/gpu.deploy.mig-manager";
    node.api.has_labels(json!({label: "true"}));
    node.start().await;
    let whole: Vec<String> = (0..8).map(|index| format!("gpu-{index}")).collect();
    node.eventually("they are offered whole", || node.api.published() == whole)
        .await;
    assert!(node.log().contains(label), "{}", node.log());
    // It leaves.
    node.crash();
    node.api.has_labels(json!({label: "false"}));
    node.start().await;
    node.eventually("they are cut as claims ask", || are_all_published(&node))
        .await;
}

/// How many claims come at once; `MUSTER_BURST=56` fills the node.
const BURST: usize = 10;
/// Longest time for all of them: each slice is some hundred calls of the mock, on a machine that has other things to do.
const BURST_LIMIT: Duration = Duration::from_mins(5);

/// As a kubelet does it: whoever is refused is asked for again.
async fn prepare_until_it_is(node: &Node, uid: &str) {
    let deadline = Instant::now() + BURST_LIMIT;
    loop {
        let error = node.prepare(uid).await.error;
        if error.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "{uid}: {error}\n{}", node.log());
    }
}

#[tokio::test]
async fn claims_for_slices_of_all_gpus_at_once_are_all_prepared_and_all_given_back() {
    let burst = std::env::var("MUSTER_BURST").ok();
    let burst = burst.map_or(BURST, |number| number.parse().unwrap());
    let mut node = dynamic().await;
    node.start().await;
    node.eventually("all are published", || are_all_published(&node))
        .await;
    let node = &node;
    // Seven of the smallest on each GPU, one GPU after the other.
    let uids: Vec<String> = (0..burst)
        .map(|number| {
            let (gpu, start) = (number % 8, number / 8);
            let uid = format!("burst-{gpu}-{start}");
            let device = format!("gpu-{gpu}-mig-1g10gb-{start}");
            node.api.allocate(&uid, &[&device]);
            uid
        })
        .collect();
    let calls = uids.iter().map(|uid| prepare_until_it_is(node, uid));
    futures::future::join_all(calls).await;
    assert_eq!(node.files("cdi").len(), burst);
    let calls = uids.iter().map(|uid| async move {
        let deadline = Instant::now() + BURST_LIMIT;
        loop {
            let error = node.unprepare(uid).await;
            if error.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "{uid}: {error}\n{}", node.log());
        }
    });
    futures::future::join_all(calls).await;
    assert_eq!(node.files("cdi"), Vec::<String>::new());
    assert_eq!(node.files("state/claims"), Vec::<String>::new());
}

/// Half a minute behind its taint, so that nobody is given it meanwhile.
const TIME_TO_CHANGE_A_GPU: Duration = Duration::from_secs(120);

#[tokio::test]
async fn a_gpu_that_is_left_in_mig_mode_is_made_whole_once_slices_are_made_for_nobody() {
    let mut node = Node::new().await;
    node.change(|state| "h100-nvswitch-8".clone_into(&mut state.board));
    node.start().await;
    let whole: Vec<String> = (0..8).map(|index| format!("gpu-{index}")).collect();
    node.eventually("they are offered whole", || node.api.published() == whole)
        .await;
    let left = node.gpu("gpu-3").await;
    node.crash();
    // As a node is that was `Dynamic`: the slices are gone, and the mode is on.
    node.change(|state| {
        "h100-nvswitch-8".clone_into(&mut state.board);
        let card = state.card(&left);
        card.mig_current = true;
        card.mig_pending = true;
    });
    let mig = json!({"mode": "Off", "toggle": "WhenIdle"});
    node.flags.push(format!("--mig={mig}"));
    node.start().await;
    let is_switched = || node.log().contains("SwitchOff");
    node.eventually_within(TIME_TO_CHANGE_A_GPU, "its mode is switched", is_switched)
        .await;
    node.eventually("it is offered whole", || {
        let mut published = node.api.published();
        published.sort_unstable();
        published == whole
    })
    .await;
}
