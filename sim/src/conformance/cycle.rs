//! What one round admits, and whom it preempts: a whole decision of the engine.
//!
//! Kueue's cases know no nodes. Here every gang has a place on a node of its own that is larger than any case, so that quota
//! alone decides.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use muster_engine::{
    Amount, Budget, Flavor, FlavorResource, Gang, GangUid, Hold, Node, NodeFilterId, Pod,
    PodResources, Queueing, Resource, Running, State, Timestamp, TopologyRequest, Update,
    quota::PreemptionReason,
};
use serde::Deserialize;

use super::{
    preemption::{Reason, Reserved},
    queues::{self, PodSet, Queue},
    same,
};

const ANY_NODE: NodeFilterId = NodeFilterId(0);
const NODE: &str = "large";
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
}

/// What is charged, by Flavor and resource.
type Charged = BTreeMap<FlavorResource, Amount>;

impl Workload {
    fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Ordered by UID where there is one. Cases give the same to several.
    fn gang(&self) -> GangUid {
        let uid = self.uid.as_ref().unwrap_or(&self.name);
        format!("{uid} {}", self.key()).as_str().into()
    }

    /// What it asks for: a pod for each set, with all that its pods ask for.
    fn pods(&self) -> anyhow::Result<Vec<PodResources>> {
        let whole = PodSet::of_one_pod(self.requests.clone());
        let sets = if self.pod_sets.is_empty() {
            std::slice::from_ref(&whole)
        } else {
            &self.pod_sets
        };
        sets.iter().map(resources).collect()
    }
}

/// What all pods of a set ask for together.
fn resources(set: &PodSet) -> anyhow::Result<PodResources> {
    let mut resources = PodResources {
        pods: 1,
        ..PodResources::default()
    };
    for (name, text) in &set.requests {
        let resource = queues::resource(name);
        let amount = queues::amount(&resource, text)?;
        let amount = amount.0.checked_mul(set.count).context("too much")?;
        match resource {
            Resource::Cpu => resources.cpu_milli = amount,
            Resource::Memory => resources.memory_bytes = amount,
            _ => {
                resources.others.insert(name.as_str().into(), amount);
            }
        }
    }
    Ok(resources)
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

/// One case in its cluster.
struct Cluster<'a> {
    state: State,
    /// ClusterQueues by namespace and LocalQueue.
    queues: BTreeMap<(&'a str, &'a str), &'a str>,
    names: BTreeMap<GangUid, &'a Workload>,
}

pub(super) fn judge(fixture: &Fixture, case: &Case) -> anyhow::Result<()> {
    let mut cluster = Cluster::new(fixture, case)?;
    let mut assigned: BTreeMap<String, Charged> = BTreeMap::new();
    let mut waiting: BTreeSet<&str> = BTreeSet::new();
    for workload in &case.workloads {
        if let Some(reserved) = &workload.reserved {
            let charged = reserved.charged(&workload.requests)?;
            cluster.runs(workload, reserved, &charged);
            assigned.insert(workload.key(), charged);
        } else if let Some(queue) = cluster.queue_of(workload) {
            cluster.waits(workload, queue)?;
            waiting.insert(queue);
        }
    }
    anyhow::ensure!(
        waiting.len() == cluster.waiting(case),
        "two gangs wait in one queue: which of them one round admits is not compared"
    );
    let decisions = cluster.state.decide(Timestamp(0), &Budget::UNLIMITED);
    for admission in &decisions.admissions {
        let name = cluster.name_of(&admission.gang)?.key();
        let charges = admission.pods.iter().flat_map(|pod| &pod.charged);
        let mut charged = Charged::new();
        for charge in charges {
            let sum = charged.entry(charge.of.clone()).or_insert(Amount::ZERO);
            *sum = sum.add(charge.amount)?;
        }
        charged.retain(|_, amount| *amount > Amount::ZERO);
        assigned.insert(name, charged);
    }
    let mut preempted: BTreeMap<String, PreemptionReason> = BTreeMap::new();
    for victim in decisions.preemptions.iter().flat_map(|it| &it.victims) {
        let name = cluster.name_of(&victim.gang)?.name.clone();
        preempted.insert(name, victim.reason);
    }
    let preempted: BTreeMap<String, Reason> = preempted
        .into_iter()
        .map(|(name, reason)| (name, reason.into()))
        .collect();
    same(|| "preempted".to_owned(), &preempted, &case.want_preempted)?;
    let mut wanted: BTreeMap<String, Charged> = BTreeMap::new();
    for (name, reserved) in &case.want_assignments {
        let workload = case.workloads.iter().find(|it| it.key() == *name);
        let requests = workload.map(|workload| workload.requests.clone());
        wanted.insert(
            name.clone(),
            reserved.charged(&requests.unwrap_or_default())?,
        );
    }
    same(|| "assigned".to_owned(), &assigned, &wanted)?;
    let left: BTreeSet<String> = case
        .workloads
        .iter()
        .filter(|it| cluster.queue_of(it).is_some() && !assigned.contains_key(&it.key()))
        .map(Workload::key)
        .collect();
    let wanted = case
        .want_left
        .values()
        .chain(case.want_inadmissible_left.values());
    let wanted: BTreeSet<String> = wanted.flatten().cloned().collect();
    same(|| "left".to_owned(), &left, &wanted)
}

impl<'a> Cluster<'a> {
    fn new(fixture: &'a Fixture, case: &'a Case) -> anyhow::Result<Self> {
        let queues = || {
            fixture
                .cluster_queues
                .iter()
                .chain(&case.extra_cluster_queues)
        };
        let local = fixture.local_queues.iter().chain(&case.extra_local_queues);
        let local = local.map(|queue| {
            let key = (queue.namespace.as_str(), queue.name.as_str());
            (key, queue.cluster_queue.as_str())
        });
        let mut state = State::new();
        let flavors = queues().flat_map(Queue::flavors);
        for flavor in flavors.filter(|name| *name != MISSING_FLAVOR) {
            state.apply(Update::Flavor(Flavor {
                name: flavor.into(),
                topology: None,
            }));
        }
        for cohort in fixture.cohorts.iter().chain(&case.cohorts) {
            state.apply(Update::Cohort(cohort.cohort()?));
        }
        for queue in queues() {
            state.apply(Update::Team(queue.team()?));
        }
        let mut others = BTreeMap::new();
        for workload in &case.workloads {
            for resources in workload.pods()? {
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
                filters: BTreeSet::from([ANY_NODE]).into(),
                devices: Vec::new(),
            }));
        }
        Ok(Self {
            state,
            queues: local.collect(),
            names: BTreeMap::new(),
        })
    }

    /// The ClusterQueue of a workload, if there is one.
    fn queue_of(&self, workload: &Workload) -> Option<&'a str> {
        let key = (workload.namespace.as_str(), workload.queue.as_str());
        self.queues.get(&key).copied()
    }

    fn name_of(&self, gang: &GangUid) -> anyhow::Result<&'a Workload> {
        let name = self.names.get(gang).copied();
        name.with_context(|| format!("nobody told of {gang}"))
    }

    fn waiting(&self, case: &Case) -> usize {
        let workloads = case.workloads.iter();
        let waiting = workloads.filter(|it| it.reserved.is_none() && self.queue_of(it).is_some());
        waiting.count()
    }

    fn waits(&mut self, workload: &'a Workload, queue: &str) -> anyhow::Result<()> {
        let uid = workload.gang();
        let pods = workload.pods()?.into_iter().enumerate();
        let pods = pods.map(|(at, resources)| Pod {
            uid: format!("{uid} {at}").as_str().into(),
            resources,
            filter: ANY_NODE,
            claims: Vec::new(),
        });
        self.state.apply(Update::Waiting(Gang {
            uid: uid.clone(),
            name: workload.key(),
            attempt: 1,
            team: queue.into(),
            priority: workload.priority,
            queued_at: Timestamp(workload.created_at_sec),
            topology: TopologyRequest::default(),
            pods: pods.collect(),
        }));
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
            protected_until: None,
            ending_since: None,
        }));
        self.names.insert(uid, workload);
    }
}

impl Queue {
    pub(super) fn queueing(&self) -> Queueing {
        match self.queueing_strategy.as_deref() {
            Some("StrictFIFO") => Queueing::StrictFifo,
            _ => Queueing::BestEffort,
        }
    }
}
