//! What one round admits, and whom it preempts: a whole decision of the engine.
//!
//! Kueue's cases know no nodes. Here every gang has a place on a node of its own that is larger than any case, so that quota
//! alone decides.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use muster_engine::{
    Amount, Budget, Cohort, CohortName, Flavor, FlavorName, FlavorResource, Gang, GangUid, Hold,
    Node, NodeFilterId, Pod, PodResources, Queueing, Resource, ResourceCharge, Running, State,
    Team, TeamName, Timestamp, TopologyRequest, Update,
    quota::{QuotaTree, RunningGang, Sharing, Weight},
};
use serde::Deserialize;

use super::{
    failed_write::{self, Alone},
    nodes::Constraints,
    one_cycle::{Head, OneCycle},
    pods::{self, Pods},
    preemption::{Reason, Reserved},
    queues::{self, PodSet, Queue},
    same,
};

const NODE: &str = "large";
/// The labels of namespaces, and the queues that select them: names begin with them.
const DEPARTMENTS: [&str; 3] = ["eng", "sales", "lend"];
/// The one Flavor of these cases that has no object.
const MISSING_FLAVOR: &str = "nonexistent-flavor";
/// More than any case asks for, and far from any bound.
const ENOUGH: i64 = i64::MAX / 4;

/// The queues that all cases of a suite share.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Fixture {
    cluster_queues: Vec<Queue>,
    local_queues: Vec<LocalQueue>,
    cohorts: Vec<Queue>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Case {
    #[serde(default)]
    extra_cluster_queues: Vec<Queue>,
    #[serde(default)]
    extra_local_queues: Vec<LocalQueue>,
    #[serde(default)]
    cohorts: Vec<Queue>,
    #[serde(default)]
    enable_fair_sharing: bool,
    #[serde(default)]
    feature_gates: BTreeMap<String, bool>,
    workloads: Vec<Workload>,
    #[serde(default)]
    want_assignments: BTreeMap<String, Reserved>,
    #[serde(default)]
    want_preempted: BTreeMap<String, Reason>,
    #[serde(default)]
    want_left: BTreeMap<String, BTreeSet<String>>,
    #[serde(default)]
    want_inadmissible_left: BTreeMap<String, BTreeSet<String>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct LocalQueue {
    name: String,
    namespace: String,
    cluster_queue: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Workload {
    name: String,
    namespace: String,
    #[serde(default)]
    queue: String,
    uid: Option<String>,
    #[serde(default)]
    priority: i32,
    #[serde(default)]
    created_at_sec: i64,
    #[serde(default)]
    reserved_at_sec: i64,
    reserved: Option<Reserved>,
    #[serde(default)]
    requests: BTreeMap<String, String>,
    #[serde(default)]
    pod_sets: Vec<PodSet>,
    #[serde(default)]
    other: Constraints,
}

impl Case {
    /// Whether what is expected can only be if a write fails ([`failed_write`]).
    fn implies_a_failed_write(&self, fixture: &Fixture) -> anyhow::Result<bool> {
        let [workload] = self.workloads.as_slice() else {
            return Ok(false);
        };
        let local = queues_by_name(fixture, self);
        let Some(queue) = workload.queue_in(&local) else {
            return Ok(false);
        };
        let stays = self
            .want_left
            .values()
            .any(|left| left.contains(&workload.key()));
        let nothing_happens = self.want_assignments.is_empty() && self.want_preempted.is_empty();
        let is_idle = workload.reserved.is_none();
        if !(stays && nothing_happens && is_idle) || workload.is_turned_away(fixture, queue)? {
            return Ok(false);
        }
        let Some(queue) = all_queues(fixture, self).find(|it| it.name == queue) else {
            return Ok(false);
        };
        let alone = Alone {
            queue,
            asks: workload.total()?,
            excluded: workload.excluded(queue.flavors())?,
        };
        alone.is_within_nominal()
    }
}

/// What is charged, by Flavor and resource.
type Charged = BTreeMap<FlavorResource, Amount>;

impl Workload {
    fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Its ClusterQueue, if there is one.
    fn queue_in<'a>(&self, queues: &QueuesByName<'a>) -> Option<&'a str> {
        let key = (self.namespace.as_str(), self.queue.as_str());
        queues.get(&key).copied()
    }

    /// What all its pods ask for together.
    fn total(&self) -> anyhow::Result<BTreeMap<Resource, Amount>> {
        let mut total = BTreeMap::new();
        for set in self.sets() {
            let count = usize::try_from(set.count).context("a pod set has a count")?;
            for (name, text) in &set.requests {
                let resource = queues::resource(name);
                let amount = queues::amount(&resource, text)?.times(count)?;
                let sum: &mut Amount = total.entry(resource).or_default();
                *sum = sum.add(amount)?;
            }
        }
        Ok(total)
    }

    /// Ordered by UID where there is one. Cases give the same to several.
    fn gang(&self) -> GangUid {
        let uid = self.uid.as_ref().unwrap_or(&self.name);
        format!("{uid} {}", self.key()).as_str().into()
    }

    fn sets(&self) -> Vec<PodSet> {
        if self.pod_sets.is_empty() {
            vec![PodSet::of_one_pod(
                self.requests.clone(),
                self.other.clone(),
            )]
        } else {
            self.pod_sets.clone()
        }
    }

    /// Of these Flavors, those that are not there, or on whose nodes some of its pods may not run.
    fn excluded<'a>(
        &self,
        flavors: impl IntoIterator<Item = &'a str>,
    ) -> anyhow::Result<BTreeSet<FlavorName>> {
        let about_nodes: Vec<Constraints> = self.sets().iter().map(PodSet::about_nodes).collect();
        let mut excluded = BTreeSet::new();
        for flavor in flavors {
            let mut is_excluded = flavor == MISSING_FLAVOR;
            for constraints in &about_nodes {
                is_excluded |= constraints.exclude(flavor)?;
            }
            if is_excluded {
                excluded.insert(flavor.into());
            }
        }
        Ok(excluded)
    }

    /// Whether it never comes to wait: its pods are refused, or its queue is one that all cases share, which selects other namespaces.
    fn is_turned_away(&self, fixture: &Fixture, queue: &str) -> anyhow::Result<bool> {
        let sets = self.sets();
        let exceed = sets.iter().map(PodSet::exceeds_its_limits);
        let exceed: Vec<bool> = exceed.collect::<anyhow::Result<_>>()?;
        let own = DEPARTMENTS
            .iter()
            .find(|it| self.namespace.starts_with(**it));
        let mut shared = fixture.cluster_queues.iter();
        let selects = shared.any(|shared| shared.name == queue);
        let mut of_queue = DEPARTMENTS.iter().filter(|_| selects);
        let of_queue = of_queue.find(|it| queue.starts_with(**it));
        let is_foreign = own.zip(of_queue).is_some_and(|(own, other)| own != other);
        Ok(is_foreign || exceed.contains(&true))
    }
}

impl Reserved {
    /// In all pod sets together.
    fn charged(&self, requests: &BTreeMap<String, String>) -> anyhow::Result<Charged> {
        let mut charged = Charged::new();
        let mut add = |flavor: &str, name: &str, text: &str| -> anyhow::Result<()> {
            let charge = queues::charge(flavor, name, text)?;
            let sum = charged.entry(charge.of).or_insert(Amount::ZERO);
            *sum = sum.add(charge.amount)?;
            Ok(())
        };
        if let Some(flavor) = &self.flavor {
            for (name, text) in requests {
                add(flavor, name, text)?;
            }
        }
        for (name, (flavor, text)) in self.pod_sets.iter().flat_map(|set| &set.flavors) {
            add(flavor, name, text)?;
        }
        charged.retain(|_, amount| *amount > Amount::ZERO);
        Ok(charged)
    }
}

/// ClusterQueues by namespace and LocalQueue.
type QueuesByName<'a> = BTreeMap<(&'a str, &'a str), &'a str>;

/// One case in its cluster.
struct Cluster<'a> {
    state: State,
    queues: QueuesByName<'a>,
    names: BTreeMap<GangUid, &'a Workload>,
    /// The pods of workloads that may start with fewer than all.
    shrinking: BTreeMap<String, Pods>,
}

/// What was decided of a case.
#[derive(Default)]
struct Decided {
    /// What is charged for whom, of all that run or are admitted.
    assigned: BTreeMap<String, Charged>,
    preempted: BTreeMap<String, Reason>,
    /// How many pods of each set were admitted of those that may start with fewer than all.
    counts: BTreeMap<String, BTreeMap<String, usize>>,
}

/// The gate without which nobody starts with fewer pods than it has.
const SHRINKS: &str = "PartialAdmission";
/// The gate by which those are nominated anew whose victims others have taken.
const RECOMPUTES: &str = "RecomputeAssignmentUponPreemptionTargetsOverlap";

/// By the engine's decision.
pub(super) fn judge(fixture: &Fixture, case: &Case) -> anyhow::Result<()> {
    let decided = Cluster::new(fixture, case)?.decide(fixture, case)?;
    compare(fixture, case, &decided)
}

/// By one cycle as Kueue runs it, which looks at one gang of each queue, once. Fails unless several wait, each of which starts whole or not at all:
/// nothing else that differs comes of how many are looked at.
pub(super) fn judge_one_cycle(fixture: &Fixture, case: &Case) -> anyhow::Result<()> {
    let decided = decide_one_cycle(fixture, case)?;
    compare(fixture, case, &decided)
}

fn compare(fixture: &Fixture, case: &Case, decided: &Decided) -> anyhow::Result<()> {
    same(
        || "preempted".to_owned(),
        &decided.preempted,
        &case.want_preempted,
    )?;
    let mut wanted: BTreeMap<String, Charged> = BTreeMap::new();
    for (name, reserved) in &case.want_assignments {
        let workload = case.workloads.iter().find(|it| it.key() == *name);
        let requests = workload.map(|workload| workload.requests.clone());
        wanted.insert(
            name.clone(),
            reserved.charged(&requests.unwrap_or_default())?,
        );
    }
    same(|| "assigned".to_owned(), &decided.assigned, &wanted)?;
    for (name, counts) in &decided.counts {
        let reserved = case.want_assignments.get(name);
        let sets = reserved.into_iter().flat_map(|reserved| &reserved.pod_sets);
        let wanted = sets.filter_map(|set| Some((set.name.clone(), set.count?)));
        same(
            || format!("pods of {name}"),
            counts,
            &wanted.collect::<BTreeMap<_, _>>(),
        )?;
    }
    let queues = queues_by_name(fixture, case);
    let left: BTreeSet<String> = case
        .workloads
        .iter()
        .filter(|it| it.queue_in(&queues).is_some() && !decided.assigned.contains_key(&it.key()))
        .map(Workload::key)
        .collect();
    let wanted = case
        .want_left
        .values()
        .chain(case.want_inadmissible_left.values());
    let wanted: BTreeSet<String> = wanted.flatten().cloned().collect();
    same(|| "left".to_owned(), &left, &wanted)
}

fn all_queues<'a>(fixture: &'a Fixture, case: &'a Case) -> impl Iterator<Item = &'a Queue> {
    fixture
        .cluster_queues
        .iter()
        .chain(&case.extra_cluster_queues)
}

/// ClusterQueues by namespace and LocalQueue.
fn queues_by_name<'a>(fixture: &'a Fixture, case: &'a Case) -> QueuesByName<'a> {
    let local = fixture.local_queues.iter().chain(&case.extra_local_queues);
    let local = local.map(|queue| {
        let key = (queue.namespace.as_str(), queue.name.as_str());
        (key, queue.cluster_queue.as_str())
    });
    local.collect()
}

fn decide_one_cycle(fixture: &Fixture, case: &Case) -> anyhow::Result<Decided> {
    let local = queues_by_name(fixture, case);
    let mut decided = Decided::default();
    let (mut running, mut charges) = (Vec::new(), Vec::new());
    let mut heads: Vec<Head> = Vec::new();
    let mut waiting = 0;
    let shrinks = case.feature_gates.get(SHRINKS).copied().unwrap_or(true);
    let flavors: Vec<&str> = all_queues(fixture, case).flat_map(Queue::flavors).collect();
    for workload in &case.workloads {
        if let Some(reserved) = &workload.reserved {
            let charged = reserved.charged(&workload.requests)?;
            let team: TeamName = reserved.cluster_queue.as_str().into();
            let of_gang: Vec<ResourceCharge> = charged
                .iter()
                .map(|(of, amount)| ResourceCharge {
                    of: of.clone(),
                    amount: *amount,
                })
                .collect();
            let of_team = of_gang.iter().map(|charge| (team.clone(), charge.clone()));
            charges.extend(of_team);
            running.push(RunningGang {
                uid: workload.gang(),
                team,
                priority: workload.priority,
                queued_at: Timestamp(workload.created_at_sec),
                admitted_at: Some(Timestamp(workload.reserved_at_sec)),
                is_made_again: true,
                namespace_used: muster_engine::WeightedUse::NOTHING,
                is_ending: false,
                charges: of_gang,
            });
            decided.assigned.insert(workload.key(), charged);
        } else if let Some(queue) = workload.queue_in(&local)
            && !workload.is_turned_away(fixture, queue)?
        {
            anyhow::ensure!(
                Pods::of(&workload.sets(), shrinks)?.least.is_none(),
                "with how many of its pods a gang starts is no matter of how many gangs are looked at"
            );
            waiting += 1;
            let head = Head {
                gang: workload.gang(),
                team: queue.into(),
                priority: workload.priority,
                queued_at: Timestamp(workload.created_at_sec),
                requests: workload.total()?,
                excluded: workload.excluded(flavors.iter().copied())?,
            };
            match heads.iter().position(|known| known.team == head.team) {
                None => heads.push(head),
                Some(at) if head.place() < heads[at].place() => heads[at] = head,
                Some(_) => {}
            }
        }
    }
    anyhow::ensure!(
        waiting > 1,
        "where one gang waits nobody else is to be looked at"
    );
    let teams = all_queues(fixture, case).map(Queue::team);
    let teams = teams.map(|team| team.map(|team| (team.name.clone(), team)));
    let teams: BTreeMap<TeamName, Team> = teams.collect::<anyhow::Result<_>>()?;
    let cohorts = cohorts(fixture, case)?;
    let usage = charges.iter();
    let usage = usage.map(|(team, charge)| (team, &charge.of, i128::from(charge.amount.0)));
    let root = |team: &Team| {
        let above = |name: &CohortName| -> Option<CohortName> { cohorts.get(name)?.parent.clone() };
        std::iter::successors(team.cohort.clone(), above)
            .take(cohorts.len())
            .last()
    };
    let cycle = OneCycle {
        tree: QuotaTree::new(&teams, &cohorts, usage),
        roots: teams
            .values()
            .filter_map(|team| Some((team.name.clone(), root(team)?)))
            .collect(),
        sharing: if case.enable_fair_sharing {
            Sharing::FAIR
        } else {
            Sharing::ByPriority
        },
        recomputes: case.feature_gates.get(RECOMPUTES).copied().unwrap_or(true),
        teams,
        running,
        heads,
    }
    .decide();
    let names = case.workloads.iter();
    let names: BTreeMap<GangUid, &Workload> = names.map(|it| (it.gang(), it)).collect();
    for (gang, charges) in cycle.admitted {
        let mut charged = Charged::new();
        for charge in charges {
            let sum = charged.entry(charge.of).or_insert(Amount::ZERO);
            *sum = sum.add(charge.amount)?;
        }
        decided.assigned.insert(names[&gang].key(), charged);
    }
    for (gang, reason) in cycle.preempted {
        let name = names[&gang].name.clone();
        decided.preempted.insert(name, reason.into());
    }
    Ok(decided)
}

impl<'a> Cluster<'a> {
    fn new(fixture: &'a Fixture, case: &'a Case) -> anyhow::Result<Self> {
        let mut state = State::new();
        let flavors = all_queues(fixture, case).flat_map(Queue::flavors);
        let flavors: BTreeSet<&str> = flavors.filter(|name| *name != MISSING_FLAVOR).collect();
        for name in &flavors {
            let mut excluded = BTreeSet::new();
            for (workload, filter) in case.workloads.iter().zip((0..).map(NodeFilterId)) {
                if !workload.excluded([*name])?.is_empty() {
                    excluded.insert(filter);
                }
            }
            state.apply(Update::Flavor(Flavor {
                name: (*name).into(),
                topology: None,
                excluded,
            }));
        }
        for cohort in cohorts(fixture, case)?.into_values() {
            state.apply(Update::Cohort(cohort));
        }
        for queue in all_queues(fixture, case) {
            state.apply(Update::Team(queue.team()?));
        }
        let mut others = BTreeMap::new();
        for workload in &case.workloads {
            for set in workload.sets() {
                let resources = pods::resources(&set)?;
                others.extend(resources.others.into_keys().map(|name| (name, ENOUGH)));
            }
        }
        for name in (0..=case.workloads.len()).map(|at| format!("{NODE}-{at}")) {
            state.apply(Update::Node(Node {
                name: name.as_str().into(),
                uid: name,
                block: None,
                allocatable: PodResources {
                    cpu_milli: ENOUGH,
                    memory_bytes: ENOUGH,
                    pods: ENOUGH,
                    others: others.clone(),
                    ..PodResources::default()
                },
                used: PodResources::default(),
                fabric: BTreeMap::new(),
                accelerator: BTreeMap::new(),
                filters: (0..)
                    .map(NodeFilterId)
                    .take(case.workloads.len())
                    .collect::<BTreeSet<_>>()
                    .into(),
                counter_sets: std::sync::Arc::default(),
                devices: Vec::new(),
            }));
        }
        Ok(Self {
            state,
            queues: queues_by_name(fixture, case),
            names: BTreeMap::new(),
            shrinking: BTreeMap::new(),
        })
    }

    fn decide(mut self, fixture: &Fixture, case: &'a Case) -> anyhow::Result<Decided> {
        let mut decided = Decided::default();
        let mut waiting: BTreeSet<&str> = BTreeSet::new();
        let shrinks = case.feature_gates.get(SHRINKS).copied().unwrap_or(true);
        for (workload, filter) in case.workloads.iter().zip((0..).map(NodeFilterId)) {
            if let Some(reserved) = &workload.reserved {
                let charged = reserved.charged(&workload.requests)?;
                self.runs(workload, reserved, &charged);
                decided.assigned.insert(workload.key(), charged);
            } else if let Some(queue) = workload.queue_in(&self.queues)
                && !workload.is_turned_away(fixture, queue)?
            {
                self.waits(workload, queue, filter, shrinks)?;
                anyhow::ensure!(
                    waiting.insert(queue),
                    "two gangs wait in one queue: which of them one round admits is not compared"
                );
            }
        }
        let mut decisions = self.state.decide(Timestamp(0), &Budget::UNLIMITED);
        if case.implies_a_failed_write(fixture)? {
            failed_write::fail(&mut self.state, &decisions.admissions)?;
            decisions.admissions.clear();
        }
        for admission in &decisions.admissions {
            let workload = self.name_of(&admission.gang)?;
            let name = workload.key();
            if let Some(pods) = self.shrinking.get(&name) {
                let sets = workload.sets();
                let mut counts: BTreeMap<String, usize> = BTreeMap::new();
                for set in pods.sets.iter().take(admission.pods.len()) {
                    *counts.entry(sets[*set].name.clone()).or_default() += 1;
                }
                decided.counts.insert(name.clone(), counts);
            }
            let charges = admission.pods.iter().flat_map(|pod| &pod.charged);
            let mut charged = Charged::new();
            for charge in charges {
                let sum = charged.entry(charge.of.clone()).or_insert(Amount::ZERO);
                *sum = sum.add(charge.amount)?;
            }
            charged.retain(|_, amount| *amount > Amount::ZERO);
            decided.assigned.insert(name, charged);
        }
        for victim in decisions.preemptions.iter().flat_map(|it| &it.victims) {
            let name = self.name_of(&victim.gang)?.name.clone();
            decided.preempted.insert(name, victim.reason.into());
        }
        Ok(decided)
    }

    fn name_of(&self, gang: &GangUid) -> anyhow::Result<&'a Workload> {
        let name = self.names.get(gang).copied();
        name.with_context(|| format!("nobody told of {gang}"))
    }

    fn waits(
        &mut self,
        workload: &'a Workload,
        queue: &str,
        filter: NodeFilterId,
        shrinks: bool,
    ) -> anyhow::Result<()> {
        let uid = workload.gang();
        let sets = workload.sets();
        let asked = sets.iter().map(pods::resources);
        let asked: Vec<PodResources> = asked.collect::<anyhow::Result<_>>()?;
        let told = Pods::of(&sets, shrinks)?;
        let pods = told.sets.iter().enumerate();
        let pods = pods.map(|(at, set)| Pod {
            uid: format!("{uid} {at}").as_str().into(),
            resources: asked[*set].clone(),
            filter,
            claims: Vec::new(),
        });
        self.state.apply(Update::Waiting(Gang {
            uid: uid.clone(),
            name: workload.key(),
            attempt: 1,
            team: queue.into(),
            priority: workload.priority,
            queued_at: Timestamp(workload.created_at_sec),
            may_borrow: true,
            topology: TopologyRequest::default(),
            run_time: muster_engine::RunTime::default(),
            lacks_place_since: None,
            min_count: told.least,
            pods: pods.collect(),
        }));
        if told.least.is_some() {
            self.shrinking.insert(workload.key(), told);
        }
        self.names.insert(uid, workload);
        Ok(())
    }

    fn runs(&mut self, workload: &'a Workload, reserved: &Reserved, charged: &Charged) {
        let uid = workload.gang();
        let team = reserved.cluster_queue.as_str();
        let charged = charged.iter();
        let charged = charged.map(|(of, amount)| muster_engine::ResourceCharge {
            of: of.clone(),
            amount: *amount,
        });
        self.state.apply(Update::Hold(Hold {
            pod: format!("{uid} runs").as_str().into(),
            gang: uid.clone(),
            gang_name: workload.key(),
            team: team.into(),
            node: format!("{NODE}-0").as_str().into(),
            charged_to_node: false,
            resources: PodResources::default(),
            charged: charged.collect(),
            claims: Vec::new(),
            releasing: false,
        }));
        self.state.apply(Update::Running(Running {
            uid: uid.clone(),
            team: team.into(),
            priority: workload.priority,
            queued_at: Timestamp(workload.created_at_sec),
            admitted_at: Timestamp(workload.reserved_at_sec),
            checkpointed_at: None,
            is_made_again: true,
            protected_until: None,
            ending_since: None,
            notice_seconds: 0,
            may_be_preempted: true,
            is_told_over_quota: false,
        }));
        self.names.insert(uid, workload);
    }
}

/// The Cohorts of a case. How shares are compared is said for all of them at once, so those are told, too, that have no object.
fn cohorts(fixture: &Fixture, case: &Case) -> anyhow::Result<BTreeMap<CohortName, Cohort>> {
    let told = || fixture.cohorts.iter().chain(&case.cohorts);
    let queues = fixture.cluster_queues.iter();
    let queues = queues.chain(&case.extra_cluster_queues).chain(told());
    let implicit = queues.filter_map(Queue::above).map(|name| Cohort {
        name: name.into(),
        parent: None,
        quota: Vec::new(),
        weight: Weight::ONE,
        sharing: Sharing::ByPriority,
    });
    let mut cohorts: BTreeMap<CohortName, Cohort> = implicit
        .map(|cohort| (cohort.name.clone(), cohort))
        .collect();
    for cohort in told() {
        let cohort = cohort.cohort()?;
        cohorts.insert(cohort.name.clone(), cohort);
    }
    if case.enable_fair_sharing {
        for cohort in cohorts.values_mut() {
            cohort.sharing = Sharing::FAIR;
        }
    }
    Ok(cohorts)
}

impl Queue {
    pub(super) fn queueing(&self) -> Queueing {
        match self.queueing_strategy.as_deref() {
            Some("StrictFIFO") => Queueing::StrictFifo,
            _ => Queueing::BestEffort,
        }
    }
}
