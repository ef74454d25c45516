//! Processes on GPUs that no claim explains, as NVML lists them.
//!
//! That something is *not* taken for a bypass is seen beside something that is one since the same moment.

use std::fs;

use crate::node::Node;
use serde_json::json;

const TAINT: &str = "gpu.muster.dev/bypassed";
const SIDE: &str = "0d9a1f4e-1111-2222-3333-444455556666";

/// A node on which 3 s without an explanation are a bypass, and a driver that is not started.
async fn node() -> Node {
    let mut node = Node::new().await;
    node.flags = vec![
        "--unexplained-seconds=3".to_owned(),
        "--trusted-namespace=gpu-operator,kube-system".to_owned(),
        format!("--pod-logs-dir={}", node.path("logs").display()),
    ];
    fs::create_dir_all(node.path(&format!("logs/ml_side_{SIDE}"))).unwrap();
    node
}

/// The same with a driver that enforces permits, of which there is none.
async fn enforcing() -> Node {
    let mut node = node().await;
    node.api.permit(1, &json!([]));
    node.start().await;
    node
}

fn cgroup_of(pod: &str) -> String {
    let pod = pod.replace('-', "_");
    format!(
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{pod}.slice/cri-containerd-1.scope"
    )
}

fn event(kind: &str, name: &str) -> (String, String, String) {
    let reason = "QuotaBypassDetected".to_owned();
    (kind.to_owned(), name.to_owned(), reason)
}

#[tokio::test]
async fn a_bypass_taints_its_device_and_is_told_once_until_it_is_gone_also_by_the_next_driver() {
    let mut node = enforcing().await;
    let gpu = node.gpu("gpu-1").await;
    node.has_process(4242, &cgroup_of(SIDE));
    node.use_gpu(Some((&gpu, 4242)));
    node.eventually("the device is tainted", || {
        node.api.tainted(TAINT) == ["gpu-1"]
    })
    .await;
    let told = [event("Node", "node-0"), event("Pod", "side")];
    node.eventually("node and pod are told", || node.api.events() == told)
        .await;
    assert!(
        node.log().contains("pod ml/side") && node.log().contains("processes 4242"),
        "{}",
        node.log()
    );

    node.crash();
    node.start().await;
    let other = node.gpu("gpu-0").await;
    node.use_gpus(&[(&gpu, 4242), (&other, 4242)], &[]);
    node.eventually("both devices are tainted", || {
        node.api.tainted(TAINT) == ["gpu-0", "gpu-1"]
    })
    .await;
    let writes = node.api.slice_writes();
    assert_eq!(
        writes, 3,
        "made, and tainted twice: never taken off in between"
    );
    node.use_gpu(None);
    node.eventually("the taints are gone", || node.api.tainted(TAINT).is_empty())
        .await;
    assert!(node.log().contains("is gone"), "{}", node.log());
    assert_eq!(
        node.api.events(),
        told,
        "the next driver does not tell again"
    );
}

#[tokio::test]
async fn where_permits_are_not_enforced_a_bypass_is_told_and_taints_nothing() {
    let mut node = node().await;
    node.start().await;
    let gpu = node.gpu("gpu-0").await;
    node.has_process(4242, "/user.slice/user-1000.slice/session-3.scope");
    // The kubelet makes cgroups for pods: so this one is in none.
    node.has_process(1, &cgroup_of(SIDE));
    node.use_gpu(Some((&gpu, 4242)));
    node.eventually("the node is told", || {
        node.api.events() == [event("Node", "node-0")]
    })
    .await;
    assert!(node.log().contains("something in no pod"), "{}", node.log());
    assert!(node.api.tainted(TAINT).is_empty());
    assert_eq!(node.api.published(), ["gpu-0", "gpu-1"]);
}

#[tokio::test]
async fn what_a_claim_explains_or_is_trusted_is_no_bypass_though_another_is() {
    let mut node = node().await;
    node.start().await;
    let monitor = "ffffffff-1111-2222-3333-444455556666";
    fs::create_dir_all(node.path(&format!("logs/gpu-operator_dcgm_{monitor}"))).unwrap();
    node.api.allocate("a", &["gpu-0"]);
    assert_eq!(node.prepare("a").await.error, "");
    // The kubelet has a shared claim prepared for its first pod only.
    node.api.reserve("a", "pod-second");
    let (held, free) = (node.gpu("gpu-0").await, node.gpu("gpu-1").await);
    node.has_process(1, &cgroup_of("pod-a"));
    node.has_process(2, &cgroup_of("pod-second"));
    node.has_process(3, &cgroup_of(monitor));
    node.has_process(4, &cgroup_of(SIDE));
    // Nothing is known of process 5: it may be the holder's.
    node.use_gpus(
        &[(&held, 1), (&held, 2), (&held, 3), (&held, 5), (&free, 4)],
        &[],
    );
    node.eventually("one bypass is told", || {
        node.api.events() == [event("Node", "node-0"), event("Pod", "side")]
    })
    .await;
    let log = node.log();
    let told: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("QuotaBypassDetected"))
        .collect();
    assert_eq!(told.len(), 1, "{log}");
    assert!(told[0].contains("uses gpu-1 by processes 4"), "{log}");
}

#[tokio::test]
async fn a_trusted_monitor_keeps_a_gpu_from_nobody_and_somebody_else_does() {
    let mut node = node().await;
    node.start().await;
    let monitor = "ffffffff-1111-2222-3333-444455556666";
    fs::create_dir_all(node.path(&format!("logs/gpu-operator_dcgm_{monitor}"))).unwrap();
    let gpu = node.gpu("gpu-0").await;
    node.has_process(3, &cgroup_of(monitor));
    node.has_process(4, &cgroup_of(SIDE));
    node.use_gpu(Some((&gpu, 3)));
    node.api.allocate("a", &["gpu-0"]);
    assert_eq!(node.prepare("a").await.error, "");
    node.use_gpus(&[(&gpu, 3), (&gpu, 4)], &[]);
    let error = node.unprepare("a").await;
    assert!(error.contains("process 4"), "{error}");
    node.use_gpu(Some((&gpu, 3)));
    assert_eq!(node.unprepare("a").await, "");
}

#[tokio::test]
async fn a_gpu_that_does_not_say_what_uses_it_costs_only_itself() {
    let node = enforcing().await;
    let (silent, used) = (node.gpu("gpu-0").await, node.gpu("gpu-1").await);
    node.use_gpus(&[(&silent, 6), (&used, 7)], &[&silent]);
    node.eventually("the other device is tainted", || {
        node.api.tainted(TAINT) == ["gpu-1"]
    })
    .await;
    assert!(
        node.log().contains("somebody whose cgroups cannot be read"),
        "{}",
        node.log()
    );
    // A device that is tainted stays so while its GPU says nothing.
    node.use_gpus(&[(&silent, 6)], &[&used]);
    node.eventually(
        "the one that is not silent any more is tainted, too",
        || node.api.tainted(TAINT) == ["gpu-0", "gpu-1"],
    )
    .await;
}
