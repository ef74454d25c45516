//! Drains by hand, whole: `kubectl drain`, the taint of a node, a rule for a device, a node that has to be rebooted; and what a cordon is where drains
//! move nobody.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use futures::future::try_join;
use k8s_openapi::api::{core::v1::Node, resource::v1::DeviceTaintRule};
use kube::Api;
use muster_api::{Reason, keys};
use muster_tests::{
    builders::{self, RankProgram},
    cluster::Cluster,
    faults::{Fault, TargetGpu, ensure_fault_evictions, wait_for_fault_eviction},
    gangs,
    kubernetes::{self, LIMIT, Progress, eventually},
    node_state::set_taint,
    scenarios,
    suite::Scenario,
    workloads::Workload,
};
use serde_json::json;

use crate::{
    budgets::{self, Evictor},
    cordon::ON_CORDON,
    stage::{Running, Single, mended, prepare_team, restart_controller},
};

/// Who drains, as the value of a taint.
const AUTHOR: &str = "alice.fan";
/// Name of the DeviceTaintRule.
const RULE: &str = "swap-fan";
/// Longest time for what these do beside the rest.
const MORE_TIME: Duration = Duration::from_mins(3);

pub(crate) fn scenarios() -> Vec<Scenario> {
    let moving = scenarios![
        kubectl_drain_ends_once_the_gang_was_moved_whole,
        a_gang_is_moved_from_a_node_with_the_taint_for_it_and_from_a_device_with_a_rule,
        a_cordon_moves_nobody_and_holds_nobody_off_where_drains_do_nothing,
    ];
    let evicting =
        scenarios![who_stays_on_a_node_that_has_to_be_rebooted_is_moved_once_it_is_drained];
    let evicting = evicting.into_iter().map(Scenario::with_fault_evictions);
    let all = moving.into_iter().chain(evicting);
    all.map(|one| one.with_more_time(MORE_TIME)).collect()
}

fn workload<'a>(namespace: &'a str, name: &'a str) -> Workload<'a> {
    Workload {
        namespace,
        name,
        ranks: 2,
        gpus: 2,
    }
}

async fn kubectl_drain_ends_once_the_gang_was_moved_whole(cluster: &mut Cluster) -> Result<()> {
    restart_controller(cluster, &[ON_CORDON]).await?;
    let drained = is_drained_by_kubectl(cluster).await;
    restart_controller(cluster, &[]).await?;
    drained
}

/// kubectl cordons the node, and asks the eviction API for the pods there every five seconds. Somebody else does so all the time, from before the cordon.
async fn is_drained_by_kubectl(cluster: &Cluster) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "drained", 8).await?;
    let running = Running::start_hanging(cluster, workload("drained", "by-kubectl")).await?;
    let gang = running.now(&client).await?;
    let evictor = Evictor::of(cluster).await?;
    evictor.is_held_off(&gang).await?;
    let pods = gangs::pods(&client, &gang).await?;
    let node = first_node(cluster, &running).await?;
    // The driver's token is bound to a pod of that node, which stands in for the driver's own.
    let words = [
        "drain",
        &*node,
        "--pod-selector=batch.kubernetes.io/job-name=by-kubectl",
        "--timeout=50s",
    ];
    let drained = async {
        let drain = cluster.control_plane.kubectl(&words);
        try_join(evictor.is_held_off_until_moved(&running, &pods), drain).await?;
        is_moved(cluster, &running, &[], &[&node, "cordoned"]).await?;
        ensure_is_elsewhere(cluster, &running, &node).await
    }
    .await;
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.uncordon(&node).await?;
    drained?;
    running.finishes(&client).await
}

async fn a_gang_is_moved_from_a_node_with_the_taint_for_it_and_from_a_device_with_a_rule(
    cluster: &mut Cluster,
) -> Result<()> {
    restart_controller(cluster, &[ON_CORDON]).await?;
    let moved = is_moved_by_taint_and_by_rule(cluster).await;
    restart_controller(cluster, &[]).await?;
    moved
}

async fn is_moved_by_taint_and_by_rule(cluster: &Cluster) -> Result<()> {
    prepare_team(&cluster.client(), "tainted", 8).await?;
    is_moved_by_taint(cluster).await.context("by a taint")?;
    is_moved_by_rule(cluster).await.context("by a rule")
}

async fn is_moved_by_taint(cluster: &Cluster) -> Result<()> {
    let client = cluster.client();
    let running = Running::start_hanging(cluster, workload("tainted", "by-taint")).await?;
    let node = first_node(cluster, &running).await?;
    let taint = Some((AUTHOR, "NoSchedule"));
    set_taint(&client, &node, keys::TAINT_DRAIN, taint).await?;
    let moved = async {
        let words = [&*node, keys::TAINT_DRAIN, AUTHOR];
        is_moved(cluster, &running, &[], &words).await?;
        ensure_is_elsewhere(cluster, &running, &node).await
    }
    .await;
    set_taint(&client, &node, keys::TAINT_DRAIN, None).await?;
    moved?;
    running.finishes(&client).await
}

/// Of a device that is drained the others of its node are of use.
async fn is_moved_by_rule(cluster: &Cluster) -> Result<()> {
    let client = cluster.client();
    let running = Running::start_hanging(cluster, workload("tainted", "by-rule")).await?;
    let gpu = running.gpu_of(cluster, 1).await?;
    let rule: DeviceTaintRule = serde_json::from_value(json!({
        "metadata": {"name": RULE},
        "spec": {
            "deviceSelector": {"driver": keys::DRIVER, "pool": gpu.node, "device": gpu.device},
            "taint": {"key": "example.com/swap", "value": AUTHOR, "effect": "NoSchedule"},
        },
    }))?;
    let rules: Api<DeviceTaintRule> = Api::all(client.clone());
    kubernetes::create(&rules, &rule).await?;
    let words = [&*gpu.node, &*gpu.device, RULE, AUTHOR];
    let moved = is_moved(cluster, &running, &[&gpu], &words).await;
    kubernetes::delete(&rules, RULE).await?;
    moved?;
    running.finishes(&client).await
}

/// The argument that ships: `--on-cordon=nothing`.
async fn a_cordon_moves_nobody_and_holds_nobody_off_where_drains_do_nothing(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "looked-at", 8).await?;
    let running = Running::start_hanging(cluster, workload("looked-at", "train")).await?;
    let node = first_node(cluster, &running).await?;
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.cordon(&node).await?;
    let judged = async {
        let new = Single::create(cluster, "looked-at", "new", 1, &node).await?;
        // So the cordon was seen.
        eventually("a new pod waits for the cordon's end", LIMIT, async || {
            let gang = gangs::find(&client, "looked-at", &gangs::of_pod("new")).await?;
            let queue = gang.and_then(|gang| gang.status?.queue);
            let details = queue.map_or_else(String::new, |queue| queue.details);
            let is_seen = details.contains("cordoned");
            Ok(Progress::when(is_seen, || details))
        })
        .await?;
        running.stays(&client).await?;
        budgets::ensure_there_are_none(&client, "looked-at").await?;
        anyhow::Ok(new)
    }
    .await;
    nodes.uncordon(&node).await?;
    let new = judged?;
    new.runs(cluster).await?;
    new.finishes(&client).await?;
    running.finishes(&client).await
}

async fn who_stays_on_a_node_that_has_to_be_rebooted_is_moved_once_it_is_drained(
    cluster: &mut Cluster,
) -> Result<()> {
    restart_controller(cluster, &[ON_CORDON]).await?;
    let moved = is_moved_before_the_reboot(cluster).await;
    restart_controller(cluster, &[]).await?;
    moved
}

/// A gang loses its GPU to a fault for which its node has to be started anew. The gang beside it, which has others of that node, stays until an
/// administrator drains the node.
async fn is_moved_before_the_reboot(cluster: &Cluster) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "reboots", 8).await?;
    let beside = Running::start_hanging(cluster, workload("reboots", "beside")).await?;
    let node = first_node(cluster, &beside).await?;
    let alone = Workload {
        ranks: 1,
        gpus: 1,
        ..workload("reboots", "broken")
    };
    let broken = Running::start_where(cluster, alone, RankProgram::hanging_when_lost, |spec| {
        builders::on_node(spec, &node)
    });
    let broken = broken.await?;
    let gpu = broken.gpu_of(cluster, 0).await?;
    gpu.inject(Fault::Xid(79))?;
    let judged = async {
        gpu.wait_until_tainted(&client, keys::TAINT_FAULT, "Reboot")
            .await?;
        wait_for_fault_eviction(&client, "reboots", &broken.gang(), &gpu).await?;
        beside.stays(&client).await?;
        let taint = Some((AUTHOR, "NoSchedule"));
        set_taint(&client, &node, keys::TAINT_DRAIN, taint).await?;
        let words = [&*node, keys::TAINT_DRAIN, AUTHOR];
        is_moved(cluster, &beside, &[&gpu], &words).await?;
        ensure_is_elsewhere(cluster, &beside, &node).await?;
        ensure_fault_evictions(&client, "reboots", &beside.gang(), 0).await
    }
    .await;
    // Whatever was found, the next ones have nothing of it.
    set_taint(&client, &node, keys::TAINT_DRAIN, None).await?;
    mended(cluster, &gpu, judged).await?;
    broken.runs_again(cluster, 2, 2 * LIMIT, &[]).await?;
    ensure_fault_evictions(&client, "reboots", &broken.gang(), 1).await?;
    broken.finishes(&client).await?;
    beside.finishes(&client).await
}

/// The node of its first rank.
async fn first_node(cluster: &Cluster, running: &Running<'_>) -> Result<String> {
    let client = cluster.client();
    let gang = running.now(&client).await?;
    let nodes = gangs::nodes(&client, &gang).await?;
    nodes.into_iter().next().context("a node")
}

/// It was moved once, for what these words say, and nothing else befell it; it runs whole, without these GPUs.
async fn is_moved(
    cluster: &Cluster,
    running: &Running<'_>,
    without: &[&TargetGpu],
    words: &[&str],
) -> Result<()> {
    running.runs_again(cluster, 2, 2 * LIMIT, without).await?;
    let gang = running.now(&cluster.client()).await?;
    let evictions = gang.status.unwrap_or_default().evictions;
    let [eviction] = evictions.as_slice() else {
        bail!("it was to be evicted once: {evictions:?}");
    };
    ensure!(eviction.reason == Reason::Drained, "{eviction:?}");
    gangs::ensure_says(&eviction.message, words)
}

async fn ensure_is_elsewhere(cluster: &Cluster, running: &Running<'_>, node: &str) -> Result<()> {
    let client = cluster.client();
    let gang = running.now(&client).await?;
    let nodes = gangs::nodes(&client, &gang).await?;
    let nodes: BTreeSet<String> = nodes.into_iter().collect();
    ensure!(!nodes.contains(node), "{node} is drained: {nodes:?}");
    Ok(())
}
