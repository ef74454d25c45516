//! Faults at every stage of a gang's life, and several at once.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use futures::future::{join, join_all};
use muster_api::{GangPhase, Reason, TeamSpec, TierPreemption, keys::TAINT_FAULT};
use muster_tests::{
    builders::{self, RankProgram, gpu_quota, tier},
    cluster::{Cluster, Program},
    control_plane::ControlPlanePart,
    faults::{Fault, TargetGpu, ensure_fault_evictions, wait_for_fault_eviction},
    gangs,
    kubernetes::{LIMIT, Progress, eventually},
    scenarios,
    suite::Scenario,
    workloads::Workload,
};
use serde_json::json;

use crate::stage::{Running, mended, pods_of, prepare_team, submit};

/// Longest pause after an attempt that got nowhere, and what comes after it.
const LIMIT_AFTER_A_PAUSE: Duration = Duration::from_mins(4);
/// How long the containers of an attempt are held up, so that something befalls it before it runs.
const HELD_UP_SECONDS: u64 = 8;
/// How long a gang is told that it has to go.
const NOTICE_SECONDS: i64 = 6;

pub(crate) fn scenarios() -> Vec<Scenario> {
    let without_evictions = scenarios![
        a_fault_costs_a_gang_that_waits_neither_its_place_nor_its_start,
        a_fault_on_the_node_of_a_gang_that_is_not_bound_yet_costs_it_no_attempt,
        a_fault_of_a_gang_that_gives_way_costs_it_the_one_attempt_that_it_loses_anyway,
    ];
    let evicting = scenarios![two_faults_at_once_cost_one_attempt];
    let without_evictions = without_evictions.into_iter().map(Scenario::with_faults);
    let evicting = evicting.into_iter().map(Scenario::with_fault_evictions);
    without_evictions.chain(evicting).collect()
}

/// What comes after an attempt that got nowhere comes after a pause.
pub(crate) fn longer_scenarios() -> Vec<Scenario> {
    let longer = scenarios![a_fault_during_recovery_costs_that_attempt_and_the_next_one_runs];
    let longer = longer.into_iter().map(Scenario::with_fault_evictions);
    longer
        .map(|one| one.with_more_time(LIMIT_AFTER_A_PAUSE))
        .collect()
}

fn workload<'a>(namespace: &'a str, name: &'a str) -> Workload<'a> {
    Workload {
        namespace,
        name,
        ranks: 2,
        gpus: 2,
    }
}

/// Two GPUs of the gang break before anybody can have done anything about the first.
async fn two_faults_at_once_cost_one_attempt(cluster: &mut Cluster) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "two", 8).await?;
    let running = Running::start_hanging(cluster, workload("two", "train")).await?;
    let first = running.gpu_of(cluster, 0).await?;
    let second = running.gpu_of(cluster, 1).await?;
    first.inject(Fault::Xid(48))?;
    second.inject(Fault::Xid(48))?;
    let judged = async {
        for gpu in [&first, &second] {
            gpu.wait_until_tainted(&client, TAINT_FAULT, "Reset")
                .await?;
        }
        running
            .runs_again(cluster, 2, 2 * LIMIT, &[&first, &second])
            .await?;
        ensure_fault_evictions(&client, "two", &running.gang(), 1).await
    }
    .await;
    let (first, second) = join(first.clear(cluster), second.clear(cluster)).await;
    judged?;
    first.and(second)?;
    running.finishes(&client).await
}

/// The second attempt has its devices, and does not run yet.
async fn a_fault_during_recovery_costs_that_attempt_and_the_next_one_runs(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "again", 8).await?;
    let running = Running::start_hanging(cluster, workload("again", "train")).await?;
    let first = running.gpu_of(cluster, 1).await?;
    let held_up = json!({"delayStart": [{"pod": "train-", "seconds": HELD_UP_SECONDS}]});
    for node in &cluster.nodes {
        node.set_runtime_faults(&held_up)?;
    }
    first.inject(Fault::Xid(48))?;
    let mut second = None;
    let judged = async {
        wait_for_fault_eviction(&client, "again", &running.gang(), &first).await?;
        let held = held_in_attempt(cluster, &running, 2).await?;
        let gpu = held.get(&0).and_then(|gpus| gpus.first());
        let gpu: &TargetGpu = second.insert(gpu.context("rank 0 has GPUs")?.clone());
        gpu.inject(Fault::Xid(48))?;
        for node in &cluster.nodes {
            node.set_runtime_faults(&json!({}))?;
        }
        wait_for_fault_eviction(&client, "again", &running.gang(), gpu).await?;
        running
            .runs_again(cluster, 3, LIMIT_AFTER_A_PAUSE, &[&first, gpu])
            .await?;
        ensure_fault_evictions(&client, "again", &running.gang(), 2).await
    }
    .await;
    for node in &cluster.nodes {
        node.set_runtime_faults(&json!({}))?;
    }
    let broken = [Some(first), second].into_iter().flatten();
    let broken: Vec<TargetGpu> = broken.collect();
    let cluster = &*cluster;
    let cleared = join_all(broken.iter().map(|gpu| gpu.clear(cluster))).await;
    judged?;
    cleared.into_iter().collect::<Result<()>>()?;
    running.finishes(&client).await
}

/// What each rank of this attempt has been allocated, once all have.
async fn held_in_attempt(
    cluster: &Cluster,
    running: &Running<'_>,
    attempt: i64,
) -> Result<BTreeMap<u32, Vec<TargetGpu>>> {
    let client = cluster.client();
    let what = format!("attempt {attempt} has its devices");
    eventually(&what, LIMIT, async || {
        let gang = running.now(&client).await?;
        let status = gang.status.clone().unwrap_or_default();
        let Some(admission) = status.admission.filter(|_| status.attempt == attempt) else {
            return Ok(Progress::NotYet(format!(
                "it is {:?} in attempt {}",
                status.phase, status.attempt
            )));
        };
        let pods = pods_of(&client, &gang).await?;
        let is_this = admission.pods.iter().all(|pod| pods.contains(&pod.uid));
        let held = TargetGpu::held_by(cluster, &gang).await?;
        let has_all = held.values().all(|gpus| !gpus.is_empty());
        Ok(if is_this && has_all {
            Progress::Done(held)
        } else {
            Progress::NotYet(format!("{pods:?} have {held:?}"))
        })
    })
    .await
}

/// A free GPU breaks while a gang waits for quota.
async fn a_fault_costs_a_gang_that_waits_neither_its_place_nor_its_start(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "waits", 4).await?;
    let first = Running::start(cluster, workload("waits", "first"), |ranks| ranks).await?;
    let ranks = submit(
        cluster,
        workload("waits", "second"),
        |ranks| ranks,
        |spec| spec,
    );
    let ranks = ranks.await?;
    let gang = gangs::of_job("second");
    let waiting = gangs::wait_for_phase(&client, "waits", &gang, &[GangPhase::Pending]).await?;
    let queued_at = waiting.status.and_then(|status| status.queued_at);
    let gpu = free_gpu(cluster, &first).await?;
    gpu.inject(Fault::Xid(48))?;
    let judged = async {
        gpu.wait_until_tainted(&client, TAINT_FAULT, "Reset")
            .await?;
        first.stays(&client).await?;
        first.finishes(&client).await?;
        let runs = gangs::wait_until_running(&client, "waits", &gang).await?;
        let held = TargetGpu::held_by(cluster, &runs).await?;
        ensure!(
            !held.values().flatten().any(|held| *held == gpu),
            "{held:?}"
        );
        let status = runs.status.unwrap_or_default();
        ensure!(
            status.attempt == 1 && status.evictions.is_empty() && status.queued_at == queued_at,
            "{status:?}"
        );
        anyhow::Ok(())
    }
    .await;
    mended(cluster, &gpu, judged).await?;
    ranks.finish()?;
    gangs::wait_for_job(&client, "waits", "second").await
}

/// A GPU of the node on which a gang runs that the gang does not have.
async fn free_gpu(cluster: &Cluster, running: &Running<'_>) -> Result<TargetGpu> {
    let gang = running.now(&cluster.client()).await?;
    let held = TargetGpu::held_by(cluster, &gang).await?;
    let first = held.values().flatten().next().context("a GPU")?;
    let mut nodes = cluster.nodes.iter();
    let node = nodes.find(|node| node.name() == first.node);
    let node = node.context("its node")?;
    for number in 0..node.gpu_uuids().len() {
        let gpu = TargetGpu::of(node, number)?;
        if !held.values().flatten().any(|held| *held == gpu) {
            return Ok(gpu);
        }
    }
    anyhow::bail!("all GPUs of {} are in use", first.node)
}

/// kube-scheduler is away: the gang is admitted, its pods are let go, and none of them is bound.
async fn a_fault_on_the_node_of_a_gang_that_is_not_bound_yet_costs_it_no_attempt(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "unbound", 4).await?;
    let scheduler = Program::ControlPlane(ControlPlanePart::Scheduler);
    cluster.service(scheduler)?.kill();
    let begun = async {
        let ranks = submit(
            cluster,
            workload("unbound", "train"),
            |ranks| ranks,
            |spec| spec,
        );
        let ranks = ranks.await?;
        let gang = gangs::of_job("train");
        let gang = gangs::wait_for_phase(&client, "unbound", &gang, &[GangPhase::Admitted]).await?;
        let placement = gang.status.and_then(|status| status.placement);
        let planned = placement.context("a placement")?;
        let planned = planned.nodes.first().context("a node")?.node.clone();
        // What kube-scheduler would take first.
        let gpu = TargetGpu::of_device(cluster, &planned, "gpu-0")?;
        gpu.inject(Fault::Xid(48))?;
        gpu.wait_until_tainted(&client, TAINT_FAULT, "Reset")
            .await?;
        anyhow::Ok((ranks, gpu))
    }
    .await;
    cluster.service(scheduler)?.start().await?;
    let (ranks, gpu) = begun?;
    let judged = async {
        let runs = gangs::wait_until_running(&client, "unbound", &gangs::of_job("train")).await?;
        let held = TargetGpu::held_by(cluster, &runs).await?;
        ensure!(
            !held.values().flatten().any(|held| *held == gpu),
            "{held:?}"
        );
        let status = runs.status.unwrap_or_default();
        ensure!(
            status.attempt == 1 && status.evictions.is_empty(),
            "{status:?}"
        );
        anyhow::Ok(())
    }
    .await;
    mended(cluster, &gpu, judged).await?;
    ranks.finish()?;
    gangs::wait_for_job(&client, "unbound", "train").await
}

/// The gang was told that it has to go for an urgent one. Whatever its eviction is for, it loses one attempt.
async fn a_fault_of_a_gang_that_gives_way_costs_it_the_one_attempt_that_it_loses_anyway(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    builders::flavor(&client, "gpus", None).await?;
    let immediate = TierPreemption::Immediate;
    tier(&client, "can-wait", 5, immediate, Some(NOTICE_SECONDS)).await?;
    tier(&client, "urgent", 900, TierPreemption::Never, None).await?;
    let spec = TeamSpec {
        quota: vec![gpu_quota("gpus", 4, None)],
        ..TeamSpec::default()
    };
    builders::team_of(&client, "gives-way", spec).await?;
    builders::namespace(&client, "gives-way", Some("gives-way")).await?;
    let ranks = workload("gives-way", "first")
        .submit_job_of_tier(cluster, "can-wait", RankProgram::hanging_when_lost)
        .await?;
    let first = gangs::of_job("first");
    let running = gangs::wait_until_running(&client, "gives-way", &first).await?;
    let held = TargetGpu::held_by(cluster, &running).await?;
    let gpu = held.values().flatten().next().context("a GPU")?.clone();
    let urgent = workload("gives-way", "now")
        .submit_job_of_tier(cluster, "urgent", |ranks| ranks)
        .await?;
    eventually("the first is told to give way", LIMIT, async || {
        let gang = gangs::find(&client, "gives-way", &first).await?;
        let status = gang.and_then(|gang| gang.status).unwrap_or_default();
        Ok(Progress::when(status.preemption.is_some(), || {
            format!("{:?}", status.conditions)
        }))
    })
    .await?;
    gpu.inject(Fault::Xid(48))?;
    let judged = async {
        gpu.wait_until_tainted(&client, TAINT_FAULT, "Reset")
            .await?;
        gangs::wait_until_running(&client, "gives-way", &gangs::of_job("now")).await?;
        urgent.finish()?;
        gangs::wait_for_job(&client, "gives-way", "now").await?;
        let again = gangs::wait_until_running_again(&client, "gives-way", &first, 2).await?;
        let held = TargetGpu::held_by(cluster, &again).await?;
        ensure!(
            !held.values().flatten().any(|held| *held == gpu),
            "{held:?}"
        );
        let status = again.status.unwrap_or_default();
        let reasons: Vec<Reason> = status.evictions.iter().map(|it| it.reason).collect();
        let is_either = |reason: &Reason| [Reason::DeviceFault, Reason::Preempted].contains(reason);
        ensure!(
            status.attempt == 2 && reasons.len() == 1 && reasons.iter().all(is_either),
            "attempt {}, evicted for {reasons:?}",
            status.attempt
        );
        anyhow::Ok(())
    }
    .await;
    mended(cluster, &gpu, judged).await?;
    ranks.finish()?;
    gangs::wait_for_job(&client, "gives-way", "first").await
}
