//! The engine, told the same.

use std::collections::{BTreeMap, BTreeSet};

use muster_engine::{
    Admission, Budget, Flavor, Gang, GangUid, Hold, Node, NodeBlock, NodeFilterId, Pod,
    PodResources, PodUid, Queueing, Recovering, RunTime, Running, State, Stop, Timestamp,
    TopologyRequest, Update, Why,
    quota::{FairStrategy, Sharing},
};

use super::{
    history::{Event, History},
    model::{Charges, Model, Uid},
    rounds::Decided,
};
use crate::{
    mirror,
    model::{Name, Pair},
    slices::{decide_in_slices, leaves_some},
};

/// More than gangs ever run and have something kept at once.
const NODES: usize = 60;
const FLAVORS: u8 = 2;
/// Where everybody runs. Nobody is planned there, so that nobody is in the way of a place: victims are put back by quota alone.
const ELSEWHERE: &str = "elsewhere";
const ANY_NODE: NodeFilterId = NodeFilterId(0);

/// Who is admitted, and who preempts whom, each in order.
pub(super) type Turns = (Vec<Uid>, Vec<(Uid, Vec<Uid>)>);

pub(super) struct Engine {
    pub(super) state: State,
    holds: BTreeMap<Uid, Vec<Hold>>,
    admitted: BTreeMap<Uid, Admission>,
}

fn uid(gang: Uid) -> GangUid {
    format!("gang-{gang:08}").as_str().into()
}

fn number(uid: &GangUid) -> Uid {
    let digits = uid.to_string();
    let digits = digits.trim_start_matches("gang-");
    digits.parse().expect("it is one of ours")
}

fn sharing(strategies: Option<&Vec<FairStrategy>>) -> Sharing<'static> {
    const FINAL: &[FairStrategy] = &[FairStrategy::LessThanOrEqualToFinalShare];
    const INITIAL: &[FairStrategy] = &[FairStrategy::LessThanInitialShare];
    match strategies.map(Vec::as_slice) {
        None => Sharing::ByPriority,
        Some([_, _]) => Sharing::FAIR,
        Some([FairStrategy::LessThanInitialShare]) => Sharing::Fair(INITIAL),
        Some(_) => Sharing::Fair(FINAL),
    }
}

fn node(name: &str) -> Node {
    Node {
        name: name.into(),
        uid: format!("uid-{name}"),
        block: None,
        allocatable: PodResources {
            cpu_milli: 1000,
            memory_bytes: 1000,
            pods: 1000,
            ..PodResources::default()
        },
        used: PodResources::default(),
        fabric: BTreeMap::new(),
        accelerator: BTreeMap::new(),
        filters: BTreeSet::from([ANY_NODE]).into(),
        devices: Vec::new(),
        counter_sets: std::sync::Arc::default(),
    }
}

fn gang(model: &Model, gang: Uid) -> Gang {
    let known = &model.gangs[&gang];
    let [cpu, memory] = known.asked.asks;
    let resources = PodResources {
        cpu_milli: i64::try_from(cpu).expect("small"),
        memory_bytes: i64::try_from(memory).expect("small"),
        pods: 1,
        ..PodResources::default()
    };
    let pods = (0..known.asked.pods).map(|rank| Pod {
        uid: format!("pod-{gang}-{}-{rank}", known.attempt)
            .as_str()
            .into(),
        resources: resources.clone(),
        filter: ANY_NODE,
        claims: Vec::new(),
    });
    Gang {
        uid: uid(gang),
        name: format!("ns/{gang}"),
        attempt: known.attempt,
        team: mirror::team_name(known.asked.team),
        priority: known.asked.priority,
        queued_at: Timestamp(known.asked.queued_at),
        may_borrow: known.asked.may_borrow,
        topology: TopologyRequest::default(),
        run_time: RunTime::default(),
        lacks_place_since: None,
        min_count: known.asked.least,
        pods: pods.collect(),
    }
}

fn running(model: &Model, gang: Uid) -> Option<Running> {
    let told = model.told.get(&gang)?;
    let asked = &model.gangs[&gang].asked;
    Some(Running {
        uid: uid(gang),
        team: mirror::team_name(asked.team),
        priority: told.priority,
        queued_at: Timestamp(asked.queued_at),
        admitted_at: Timestamp(told.admitted_at),
        checkpointed_at: None,
        is_made_again: true,
        protected_until: told.protected_until.map(Timestamp),
        ending_since: told.ending_since.map(Timestamp),
        notice_seconds: told.notice,
        may_be_preempted: true,
        is_told_over_quota: false,
    })
}

impl Engine {
    pub(super) fn new(history: &History, model: &Model) -> Self {
        let mut engine = Self {
            state: State::new(),
            holds: BTreeMap::new(),
            admitted: BTreeMap::new(),
        };
        for flavor in 0..FLAVORS {
            let of = mirror::pair(Pair {
                flavor,
                resource: 0,
            });
            engine.state.apply(Update::Flavor(Flavor {
                name: of.flavor,
                topology: None,
                excluded: BTreeSet::new(),
            }));
        }
        for at in 0..NODES {
            engine
                .state
                .apply(Update::Node(node(&format!("node-{at:02}"))));
        }
        engine.state.apply(Update::Node(Node {
            block: Some(NodeBlock::Cordoned),
            ..node(ELSEWHERE)
        }));
        for name in history.nodes.keys() {
            engine.tell_limits(model, *name);
        }
        engine
    }

    fn tell_limits(&mut self, model: &Model, name: Name) {
        let limits = &model.limits;
        let node = &limits.nodes[&name];
        let Some(policy) = node.policy else {
            let sharing = sharing(limits.strategies.as_ref());
            let cohort = mirror::cohort_object(name, node, sharing);
            self.state.apply(Update::Cohort(cohort));
            return;
        };
        let mut team = mirror::team(name, node, policy);
        team.fungibility = limits.fungibility[&name];
        if limits.stopped.contains(&name) {
            team.stop = Stop::Hold;
        }
        if limits.strict.contains(&name) {
            team.queueing = Queueing::StrictFifo;
        }
        self.state.apply(Update::Team(team));
    }

    /// Tells what happened, given what was so before and what is so now.
    pub(super) fn happens(&mut self, event: &Event, before: &Model, after: &Model) {
        for gang in &before.waiting {
            if !after.waiting.contains(gang) {
                self.state.apply(Update::NotWaiting(uid(*gang)));
            }
        }
        for gang in before.told.keys() {
            if !after.told.contains_key(gang) {
                self.state.apply(Update::NotRunning(uid(*gang)));
            }
        }
        for gang in before.held.keys() {
            if !after.held.contains_key(gang) {
                for hold in self.holds.remove(gang).unwrap_or_default() {
                    self.state.apply(Update::HoldGone(hold.pod));
                }
            }
        }
        for (gang, told) in &after.told {
            let known = &before.told[gang];
            if told.ends && !known.ends {
                self.state.apply(Update::Ending(uid(*gang)));
            } else if told.ending_since != known.ending_since {
                self.tell_running(after, *gang);
            }
        }
        for waiting in &after.waiting {
            let asked = |model: &Model| self::gang(model, *waiting);
            let is_news = !before.waiting.contains(waiting) || asked(before) != asked(after);
            if is_news {
                self.state.apply(Update::Waiting(asked(after)));
            }
        }
        for gang in after.recovering.keys() {
            if !before.recovering.contains_key(gang) {
                self.fails(after, *gang);
            }
        }
        match event {
            Event::Limit(name, ..)
            | Event::Weight(name, _)
            | Event::Policy(name, _)
            | Event::Fungibility(name, _)
            | Event::Moves(name, _)
            | Event::Stops(name, _)
            | Event::IsStrict(name, _) => self.tell_limits(after, *name),
            _ => {}
        }
    }

    /// The attempt of a gang ends by a fault, and what it held is released.
    fn fails(&mut self, model: &Model, gang: Uid) {
        for pod in self.recovers(model, gang) {
            self.state.apply(Update::HoldGone(pod));
        }
    }

    /// The attempt of a gang ends by a fault; the pods that hold something still.
    pub(super) fn recovers(&mut self, model: &Model, gang: Uid) -> Vec<PodUid> {
        let Some(running) = running(model, gang) else {
            return Vec::new();
        };
        let held = self.holds.remove(&gang).unwrap_or_default();
        let pods: Vec<PodUid> = held.iter().map(|hold| hold.pod.clone()).collect();
        self.state.apply(Update::Recovering(Recovering {
            gang: running.uid.clone(),
            attempt: model.gangs[&gang].attempt,
            priority: running.priority,
            queued_at: running.queued_at,
            may_be_preempted: true,
            since: running.admitted_at,
            until: Timestamp(model.recovering[&gang]),
            held,
            left: BTreeSet::new(),
            domain: Vec::new(),
        }));
        self.state.apply(Update::Ending(running.uid));
        pods
    }

    fn tell_running(&mut self, model: &Model, gang: Uid) {
        if let Some(running) = running(model, gang) {
            self.state.apply(Update::Running(running));
        }
    }

    pub(super) fn decide(&mut self, now: i64) -> Decided {
        let decisions = self.state.decide(Timestamp(now), &Budget::UNLIMITED);
        let pairs: Vec<Pair> = (0..FLAVORS)
            .flat_map(|flavor| super::history::RESOURCES.map(|resource| Pair { flavor, resource }))
            .collect();
        let charges = |admission: &Admission| -> Charges {
            let mut charges = Charges::new();
            for charge in admission.pods.iter().flat_map(|pod| &pod.charged) {
                let mut known = pairs.iter();
                let pair = known.find(|pair| mirror::pair(**pair) == charge.of);
                let pair = *pair.expect("it is one of ours");
                *charges.entry(pair).or_default() += i128::from(charge.amount.0);
            }
            charges
        };
        let decided = Decided {
            admissions: decisions
                .admissions
                .iter()
                .map(|admission| (number(&admission.gang), charges(admission)))
                .collect(),
            preemptions: decisions
                .preemptions
                .iter()
                .map(|preemption| {
                    let victims = preemption.victims.iter();
                    let victims = victims.map(|victim| (number(&victim.gang), victim.reason));
                    (number(&preemption.gang), victims.collect())
                })
                .collect(),
            spared: decisions.spared.iter().map(number).collect(),
            leaves_some: leaves_some(&decisions, Timestamp(now)),
        };
        for admission in decisions.admissions {
            self.admitted.insert(number(&admission.gang), admission);
        }
        decided
    }

    /// What would be decided with so many gangs in one commit, and nothing observed between two of them; `None` if somebody is left to be
    /// asked by a later call.
    pub(super) fn turns(&self, now: i64, gangs: usize) -> Option<Turns> {
        let now = Timestamp(now);
        let slices = decide_in_slices(&mut self.state.clone(), now, gangs);
        if slices.iter().any(|slice| leaves_some(slice, now)) {
            return None;
        }
        let admissions = slices.iter().flat_map(|slice| &slice.admissions);
        let admissions = admissions.map(|it| number(&it.gang)).collect();
        let preemptions = slices.iter().flat_map(|slice| &slice.preemptions);
        let preemptions = preemptions.map(|preemption| {
            let victims = preemption.victims.iter();
            let victims = victims.map(|victim| number(&victim.gang)).collect();
            (number(&preemption.gang), victims)
        });
        Some((admissions, preemptions.collect()))
    }

    /// How many pods of a gang are admitted.
    pub(super) fn admitted_pods(&self, gang: Uid) -> usize {
        let admission = self.admitted.get(&gang);
        admission.map_or(0, |admission| admission.pods.len())
    }

    /// An admission was committed.
    pub(super) fn commit(&mut self, model: &Model, gang: Uid) {
        let Some(admission) = self.admitted.remove(&gang) else {
            return;
        };
        let holds: Vec<Hold> = self::gang(model, gang)
            .pods
            .iter()
            .zip(&admission.pods)
            .map(|(pod, admitted)| Hold {
                pod: pod.uid.clone(),
                gang: admission.gang.clone(),
                gang_name: format!("ns/{gang}"),
                team: admission.team.clone(),
                node: ELSEWHERE.into(),
                charged_to_node: false,
                resources: pod.resources.clone(),
                charged: admitted.charged.clone(),
                claims: Vec::new(),
                releasing: false,
            })
            .collect();
        for hold in &holds {
            self.state.apply(Update::Hold(hold.clone()));
        }
        self.holds.insert(gang, holds);
        self.state.apply(Update::NotWaiting(uid(gang)));
        self.tell_running(model, gang);
    }

    /// An admission could not be committed.
    pub(super) fn undo(&mut self, gang: Uid) {
        self.admitted.remove(&gang);
        self.state.undo(&uid(gang));
    }

    /// Why a gang waits.
    pub(super) fn why(&self, gang: Uid) -> Option<Why> {
        Some(self.state.explain(&uid(gang))?.why)
    }
}
