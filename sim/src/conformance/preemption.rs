//! Whose gangs give way to one whose Flavors are chosen already.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use muster_engine::{
    FlavorResource, ResourceCharge, TeamName, Timestamp,
    quota::{FairStrategy, PreemptionReason, Preemptor, RunningGang, Sharing, victims},
};
use serde::Deserialize;

use super::{
    queues::{self, PodSet, Queue},
    same,
};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Case {
    cluster_queues: Vec<Queue>,
    #[serde(default)]
    cohorts: Vec<Queue>,
    running: Vec<Workload>,
    incoming: Workload,
    #[serde(rename = "targetCQ")]
    target: String,
    /// By pod set, the Flavor of each resource.
    #[serde(default)]
    assignment: Vec<Assignment>,
    /// One Flavor for everything.
    assignment_flavor: Option<String>,
    fair_sharing_strategies: Option<Vec<Strategy>>,
    /// Those that are told to end now: not the victims that end already.
    want_preempted: BTreeMap<String, Reason>,
    /// All victims.
    want_count: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Workload {
    name: String,
    uid: Option<String>,
    #[serde(default)]
    priority: i32,
    #[serde(default)]
    created_at_sec: i64,
    reserved_at_sec: Option<i64>,
    reserved: Option<Reserved>,
    #[serde(default)]
    requests: BTreeMap<String, String>,
    #[serde(default)]
    pod_sets: Vec<PodSet>,
    #[serde(default)]
    conditions: Vec<Condition>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Reserved {
    pub(super) cluster_queue: String,
    pub(super) flavor: Option<String>,
    #[serde(default)]
    pub(super) pod_sets: Vec<ReservedPodSet>,
}

/// What was charged for a pod set: by resource, the Flavor and the amount.
#[derive(Debug, Deserialize)]
pub(super) struct ReservedPodSet {
    #[serde(default)]
    pub(super) name: String,
    /// How many of its pods were admitted, if a case says so.
    pub(super) count: Option<usize>,
    pub(super) flavors: BTreeMap<String, (String, String)>,
}

#[derive(Debug, Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Assignment {
    pod_set: String,
    flavors: BTreeMap<String, AssignedFlavor>,
}

#[derive(Debug, Deserialize)]
struct AssignedFlavor {
    flavor: String,
    mode: Mode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
enum Mode {
    Fit,
    Preempt,
}

#[derive(Clone, Copy, Debug, Deserialize)]
enum Strategy {
    LessThanOrEqualToFinalShare,
    LessThanInitialShare,
}

#[expect(clippy::enum_variant_names, reason = "these are Kueue's words")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) enum Reason {
    InClusterQueue,
    InCohortReclamation,
    InCohortFairSharing,
    InCohortReclaimWhileBorrowing,
}

impl From<PreemptionReason> for Reason {
    fn from(reason: PreemptionReason) -> Self {
        match reason {
            PreemptionReason::InTeam => Self::InClusterQueue,
            PreemptionReason::Reclaimed => Self::InCohortReclamation,
            PreemptionReason::FairShare => Self::InCohortFairSharing,
            PreemptionReason::ReclaimedWhileBorrowing => Self::InCohortReclaimWhileBorrowing,
        }
    }
}

pub(super) fn judge_by_priority(case: &Case) -> anyhow::Result<()> {
    judge(case, Sharing::ByPriority)
}

pub(super) fn judge_fair(case: &Case) -> anyhow::Result<()> {
    let named = case.fair_sharing_strategies.as_ref().map(|strategies| {
        let strategies = strategies.iter().map(|strategy| match strategy {
            Strategy::LessThanOrEqualToFinalShare => FairStrategy::LessThanOrEqualToFinalShare,
            Strategy::LessThanInitialShare => FairStrategy::LessThanInitialShare,
        });
        strategies.collect()
    });
    let strategies: Vec<FairStrategy> = named.unwrap_or_else(|| FairStrategy::DEFAULT.to_vec());
    judge(case, Sharing::Fair(&strategies))
}

fn judge(case: &Case, sharing: Sharing<'_>) -> anyhow::Result<()> {
    let running = case.running.iter().map(running);
    let running: Vec<RunningGang> = running.collect::<anyhow::Result<_>>()?;
    let charges: Vec<(TeamName, ResourceCharge)> = running
        .iter()
        .flat_map(|gang| {
            let charges = gang.charges.iter();
            charges.map(|charge| (gang.team.clone(), charge.clone()))
        })
        .collect();
    let mut tree = queues::tree(&case.cluster_queues, &case.cohorts, &charges)?;
    let before = format!("{tree:?}");
    let preemptor = preemptor(case)?;
    let chosen = victims(&mut tree, sharing, &running, &preemptor, &mut |_| true);
    if let Some(expected) = &case.want_count {
        same(|| "number of victims".to_owned(), &chosen.len(), expected)?;
    }
    let preempted: BTreeMap<String, Reason> = chosen
        .iter()
        .filter(|victim| !running[victim.position].is_ending)
        .map(|victim| {
            let name = case.running[victim.position].name.clone();
            (name, victim.reason.into())
        })
        .collect();
    same(|| "preempted".to_owned(), &preempted, &case.want_preempted)?;
    anyhow::ensure!(
        before == format!("{tree:?}"),
        "the search has changed the tree"
    );
    Ok(())
}

fn running(workload: &Workload) -> anyhow::Result<RunningGang> {
    let missing = || format!("{} has reserved nothing", workload.name);
    let reserved = workload.reserved.as_ref().with_context(missing)?;
    let mut charges = Vec::new();
    if let Some(flavor) = &reserved.flavor {
        for (name, text) in &workload.requests {
            charges.push(queues::charge(flavor, name, text)?);
        }
    }
    for (name, (flavor, text)) in reserved.pod_sets.iter().flat_map(|set| &set.flavors) {
        charges.push(queues::charge(flavor, name, text)?);
    }
    let mut conditions = workload.conditions.iter();
    Ok(RunningGang {
        uid: workload
            .uid
            .as_ref()
            .unwrap_or(&workload.name)
            .as_str()
            .into(),
        team: reserved.cluster_queue.as_str().into(),
        priority: workload.priority,
        queued_at: Timestamp(workload.created_at_sec),
        admitted_at: workload.reserved_at_sec.map(Timestamp),
        is_made_again: true,
        namespace_used: muster_engine::WeightedUse::NOTHING,
        is_ending: conditions.any(|found| found.kind == "Evicted" && found.status == "True"),
        charges,
    })
}

fn preemptor(case: &Case) -> anyhow::Result<Preemptor> {
    let incoming = &case.incoming;
    let mut charges = Vec::new();
    let mut contested: BTreeSet<FlavorResource> = BTreeSet::new();
    let mut ask = |flavor: &str, name: &str, text: &str, count: i64, mode: Mode| {
        let mut charge = queues::charge(flavor, name, text)?;
        let times = usize::try_from(count).context("a pod set has a count")?;
        charge.amount = charge.amount.times(times)?;
        if mode == Mode::Preempt {
            contested.insert(charge.of.clone());
        }
        charges.push(charge);
        anyhow::Ok(())
    };
    if let Some(flavor) = &case.assignment_flavor {
        for (name, text) in &incoming.requests {
            ask(flavor, name, text, 1, Mode::Preempt)?;
        }
    }
    for assignment in &case.assignment {
        let mut sets = incoming.pod_sets.iter();
        let set = sets.find(|set| set.name == assignment.pod_set);
        let (count, requests) = match set {
            Some(set) => (set.count, &set.requests),
            None => (1, &incoming.requests),
        };
        for (name, assigned) in &assignment.flavors {
            let text = requests
                .get(name)
                .with_context(|| format!("{} does not ask for {name}", assignment.pod_set))?;
            ask(&assigned.flavor, name, text, count, assigned.mode)?;
        }
    }
    Ok(Preemptor {
        team: case.target.as_str().into(),
        priority: incoming.priority,
        queued_at: Timestamp(incoming.created_at_sec),
        charges,
        contested,
    })
}
