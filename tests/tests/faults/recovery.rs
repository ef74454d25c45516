//! One GPU of a running gang needs a reset: the gang runs again elsewhere within a minute, however many of its ranks died of it, and the other GPUs of
//! the node are of use meanwhile.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt};
use muster_api::{Reason, keys::TAINT_FAULT};
use muster_tests::{
    builders::RankProgram,
    cluster::Cluster,
    faults::{Fault, TargetGpu, ensure_fault_evictions, wait_for_fault_eviction},
    kubernetes::{LIMIT, Progress, eventually, list},
    scenarios,
    suite::Scenario,
    workloads::Workload,
};

use crate::stage::{Running, Single, charged, ensure_tainted, mended, prepare_team};

/// Longest time from the fault until the gang runs again, where at most one rank died of it: with more the Job makes its pods anew only after a
/// pause that it doubles with each of them.
const TARGET: Duration = Duration::from_mins(1);
/// GPUs of a node.
const GPUS: u32 = 8;
/// The rank whose GPU breaks.
const FAULTY: u32 = 1;
/// What a rank reports that SIGTERM ended.
const TERMINATED: &str = "terminated";

/// What the ranks do when the GPU fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ranks {
    /// They do not notice, and go on.
    GoOn,
    /// They do not notice, and SIGTERM does not end them.
    IgnoreSigterm,
    /// The one with that GPU dies, and the other hangs, waiting for it.
    OneDies,
    /// The one with that GPU dies, and two others after it; the last hangs.
    ThreeDie,
    /// All die.
    AllDie,
}

/// The one that every run of all tests has.
pub(crate) fn core() -> Vec<Scenario> {
    evicting(scenarios![
        a_gang_with_a_gpu_that_needs_a_reset_restarts_elsewhere_and_the_seven_others_take_a_pod
    ])
}

pub(crate) fn further() -> Vec<Scenario> {
    let mut further = evicting(scenarios![
        ranks_that_ignore_sigterm_are_killed_and_the_gang_restarts
    ]);
    // Whoever died first may be what the eviction names.
    let dying = scenarios![
        a_gang_of_which_one_rank_died_with_its_gpu_restarts_within_a_minute,
        a_gang_of_which_all_ranks_died_with_a_gpu_restarts,
    ];
    further.extend(dying.into_iter().map(Scenario::with_faults));
    further
}

/// The Job makes its pods anew only after a pause.
pub(crate) fn longer() -> Vec<Scenario> {
    let longer = scenarios![a_gang_of_which_three_ranks_died_with_a_gpu_restarts];
    let longer = longer.into_iter().map(Scenario::with_faults);
    longer.map(|one| one.with_more_time(2 * TARGET)).collect()
}

fn evicting(scenarios: Vec<Scenario>) -> Vec<Scenario> {
    let scenarios = scenarios.into_iter();
    scenarios.map(Scenario::with_fault_evictions).collect()
}

async fn a_gang_with_a_gpu_that_needs_a_reset_restarts_elsewhere_and_the_seven_others_take_a_pod(
    cluster: &mut Cluster,
) -> Result<()> {
    restarts(cluster, "goes-on", Ranks::GoOn).await
}

async fn ranks_that_ignore_sigterm_are_killed_and_the_gang_restarts(
    cluster: &mut Cluster,
) -> Result<()> {
    restarts(cluster, "hangs", Ranks::IgnoreSigterm).await
}

async fn a_gang_of_which_one_rank_died_with_its_gpu_restarts_within_a_minute(
    cluster: &mut Cluster,
) -> Result<()> {
    restarts(cluster, "one-dies", Ranks::OneDies).await
}

async fn a_gang_of_which_three_ranks_died_with_a_gpu_restarts(cluster: &mut Cluster) -> Result<()> {
    restarts(cluster, "three-die", Ranks::ThreeDie).await
}

async fn a_gang_of_which_all_ranks_died_with_a_gpu_restarts(cluster: &mut Cluster) -> Result<()> {
    restarts(cluster, "all-die", Ranks::AllDie).await
}

impl Ranks {
    fn of(self, program: RankProgram) -> RankProgram {
        match self {
            Self::GoOn => program.hanging_when_lost(),
            Self::IgnoreSigterm => program.hanging_when_lost().ignoring_sigterm(),
            Self::OneDies | Self::ThreeDie => program.hanging_when_lost().dying_with_their_gpu(),
            Self::AllDie => program.dying_with_their_gpu(),
        }
    }

    /// Longest time until the gang runs again.
    fn limit(self) -> Duration {
        match self {
            Self::GoOn | Self::IgnoreSigterm | Self::OneDies => TARGET,
            Self::ThreeDie | Self::AllDie => 2 * TARGET,
        }
    }

    /// How many there are.
    fn size(self) -> u32 {
        match self {
            Self::GoOn | Self::IgnoreSigterm | Self::OneDies | Self::AllDie => 2,
            Self::ThreeDie => 4,
        }
    }

    /// Those that are told to die when the GPU fails, beside the one that has it.
    fn told_to_die(self) -> &'static [u32] {
        match self {
            Self::GoOn | Self::IgnoreSigterm | Self::OneDies | Self::AllDie => &[],
            Self::ThreeDie => &[2, 3],
        }
    }

    /// How many die, and how many of the others SIGTERM ends.
    fn ends(self) -> (usize, usize) {
        match self {
            Self::GoOn => (0, 2),
            Self::IgnoreSigterm => (0, 0),
            Self::OneDies => (1, 1),
            Self::ThreeDie => (3, 1),
            Self::AllDie => (2, 0),
        }
    }
}

/// A gang has all GPUs of a node. One of them breaks: there is no room for the gang on that node any more, and room for seven GPUs.
async fn restarts(cluster: &Cluster, namespace: &str, ranks: Ranks) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, namespace, 2 * GPUS).await?;
    let workload = Workload {
        namespace,
        name: "train",
        ranks: ranks.size(),
        gpus: GPUS / ranks.size(),
    };
    let running = Running::start(cluster, workload, |program| ranks.of(program)).await?;
    let gpu = running.gpu_of(cluster, FAULTY).await?;
    let before = charged(&client, namespace).await?;
    let broken_at = gpu.inject(Fault::Xid(48))?;
    for rank in ranks.told_to_die() {
        running.ranks.fail(*rank)?;
    }
    let judged = async {
        gpu.wait_until_tainted(&client, TAINT_FAULT, "Reset")
            .await?;
        is_restarted(cluster, &running, &gpu, ranks, broken_at).await?;
        ended_so(&client, &running, ranks).await?;
        let after = charged(&client, namespace).await?;
        ensure!(
            after == before,
            "its Team was charged {before} thousandths of a GPU, and is {after}"
        );
        let others = Single::create(cluster, namespace, "others", GPUS - 1, &gpu.node).await?;
        let given = others.runs(cluster).await?;
        let has_broken = given.contains(&gpu);
        ensure!(given.len() == 7 && !has_broken, "it was given {given:?}");
        ensure_tainted(&client, &gpu).await?;
        others.finishes(&client).await
    }
    .await;
    mended(cluster, &gpu, judged).await?;
    running.finishes(&client).await
}

/// It was evicted once, and runs again in time.
async fn is_restarted(
    cluster: &Cluster,
    running: &Running<'_>,
    gpu: &TargetGpu,
    ranks: Ranks,
    broken_at: Instant,
) -> Result<()> {
    let (client, namespace) = (cluster.client(), running.workload.namespace);
    let has_dead_ranks = matches!(ranks, Ranks::OneDies | Ranks::ThreeDie | Ranks::AllDie);
    if !has_dead_ranks {
        wait_for_fault_eviction(&client, namespace, &running.gang(), gpu).await?;
    }
    running.runs_again(cluster, 2, 2 * LIMIT, &[gpu]).await?;
    let took = broken_at.elapsed();
    ensure!(
        took <= ranks.limit(),
        "it took {:.1} s until the gang ran again",
        took.as_secs_f64()
    );
    let status = running.now(&client).await?.status.unwrap_or_default();
    let reasons: Vec<Reason> = status.evictions.iter().map(|it| it.reason).collect();
    if has_dead_ranks {
        let is_one_of_them =
            |reason: &Reason| [Reason::DeviceFault, Reason::PodFailed].contains(reason);
        // Where all are dead nobody is left to be evicted, perhaps.
        let is_once = reasons.len() == 1 || (ranks == Ranks::AllDie && reasons.is_empty());
        ensure!(
            is_once && reasons.iter().all(is_one_of_them),
            "it was evicted for {reasons:?}"
        );
        Ok(())
    } else {
        ensure_fault_evictions(&client, namespace, &running.gang(), 1).await
    }
}

/// So many ranks of the first attempt died by themselves as were to, and SIGTERM ended the others, unless they ignored it: who was killed has
/// reported nothing. Those of the second one run, and report at their end.
async fn ended_so(client: &Client, running: &Running<'_>, ranks: Ranks) -> Result<()> {
    let namespace = running.workload.namespace;
    eventually("no pod of the first attempt is left", LIMIT, async || {
        let pods: Vec<Pod> = list(client, Some(namespace)).await?;
        let uids = pods.iter().filter_map(ResourceExt::uid);
        let left = uids.filter(|uid| running.pods.contains(uid)).count();
        Ok(Progress::when(left == 0, || format!("{left} are")))
    })
    .await?;
    let outcomes = (0..ranks.size()).filter_map(|rank| running.ranks.outcome(rank));
    let outcomes: Vec<String> = outcomes.collect();
    let terminated = outcomes.iter().filter(|it| *it == TERMINATED).count();
    let died = outcomes.len() - terminated;
    ensure!(
        (died, terminated) == ranks.ends(),
        "{ranks:?}: they ended so: {outcomes:?}"
    );
    Ok(())
}
