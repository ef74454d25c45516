//! Gangs on what a person drains by hand: a node (a cordon, or a taint for it) or a device (a DeviceTaintRule). They are moved whole, where the
//! administrator wants that ([`OnCordon::Move`]).
//!
//! **Only who has a place elsewhere is moved.** The engine looks for one without what is drained, and without the nodes where those go that are being
//! moved already; it is looked again every half a minute. Whoever has none stays, and is told what is missing. The gangs of one node are moved after those of
//! another: a node's turn lasts until its gangs run again, or have waited for ten minutes. Whoever would not start again, since nobody makes its pods or it is
//! held back, is not moved, and told so.
//!
//! **Nothing on hearsay** (S18): a watch may lag, and the cordon be over. So the Node, or the rule, is read uncached by a read that is begun after the drain was seen,
//! and not half a minute ago. It has to say the same of that very gang, whose pods may tolerate what drains others. A gang of which it does not keeps nobody waiting.
//!
//! **No breaker counts it**, since a person asked for it; while the breaker is open, or recovery only observes, it is told only.
//!
//! Nothing is stored but the eviction, with its cause and the node. A new leader finds the drains themselves, and in the Gangs which of them are on their way; not
//! where these were to go, so it may move one for which there is no room any more, which waits in the queue with its age then.
//! **Twice or late**: an eviction concerns one attempt, and the next one is not where the drain is. **Never answered**: nobody is moved.

mod table;

use std::{cell::Cell, collections::BTreeSet};

use k8s_openapi::api::core::v1::Toleration;
use muster_api::{Gang, Reason};
use muster_cluster::{
    drains,
    formed::{PendingReason, has_ended},
    object::{Kind, Object, ObjectKey},
    pod::controller,
    pools::device_name,
    rank_state::RankState,
};
use muster_engine::{
    self as engine, Elsewhere, NodeName,
    recovery::{DrainAction, DrainFacts, Ends, Stays, drain},
};

pub(crate) use self::table::Drains;
use self::table::{Entry, LOOK_AGAIN_SECONDS};
use crate::{
    ApiRequest, Effect, EffectId, Machine, Mode, Now, OnCordon, Outcome,
    admission::evict,
    admission::plan::{Plan, Rank},
    faults,
    injected_bug::InjectedBug,
    objects::{is_terminal, node_object},
    outward::recovery,
    poll_context::PollContext,
};

/// What is drained of the node of a rank.
#[derive(Clone, Debug, PartialEq)]
enum Part {
    /// All of it, for a pod that tolerates this.
    All(Box<[Toleration]>),
    /// A device, by its driver, pool and name.
    Device([Box<str>; 3]),
}

/// A rank on what is drained.
#[derive(Clone, Debug, PartialEq)]
struct DrainedRank {
    node: NodeName,
    part: Part,
    /// What says so.
    object: ObjectKey,
    /// Which rank, and how, for people.
    says: String,
}

/// What is drained under an attempt.
#[derive(Clone, Debug, PartialEq)]
struct Drained {
    /// The rank on the first node by name.
    first: DrainedRank,
    /// The nodes of which all is drained.
    nodes: BTreeSet<NodeName>,
    /// Why the attempt is not moved wherever there is room, for people, if it is not.
    left: Option<&'static str>,
}

impl Part {
    /// Whether the object says, as it is stored, that this is drained.
    fn is_drained_by(&self, stored: &Object) -> bool {
        match (self, stored) {
            (Self::All(tolerations), Object::Node(node)) => {
                drains::of_node(node, tolerations).is_some()
            }
            (Self::Device([driver, pool, device]), Object::DeviceTaintRule(rule)) => {
                drains::of_device(rule, driver, pool, device).is_some()
            }
            _ => false,
        }
    }
}

/// What is found about the drain that concerns an attempt.
#[derive(Debug)]
struct Found {
    reason: PendingReason,
    action: DrainAction,
    object: ObjectKey,
}

/// What is drained under an attempt all of which runs. While it starts others see to it: who is not bound yet loses its place.
fn drained(context: PollContext<'_>, gang: &Gang, plan: &Plan) -> Option<Drained> {
    let moves = context.config.recovery.on_cordon == OnCordon::Move
        || context.bugs.has(InjectedBug::MovedWithNothing);
    let may_be_moved = moves
        && context.config.mode == Mode::Enforce
        && !has_ended(gang)
        && gang.metadata.deletion_timestamp.is_none()
        && !evict::is_as_found(context, plan);
    if !may_be_moved {
        return None;
    }
    let mut ranks = Vec::new();
    for (place, (rank, state)) in plan.states(context).enumerate() {
        match state {
            RankState::Succeeded => {}
            RankState::Running => ranks.extend(drained_rank(context, place, rank)),
            _ => return None,
        }
    }
    let whole = ranks
        .iter()
        .filter(|rank| matches!(rank.part, Part::All(_)));
    let nodes = whole.map(|rank| rank.node.clone()).collect();
    // Of several on one node the first by rank: `min_by` takes the first.
    let first = ranks
        .into_iter()
        .min_by(|one, other| one.node.cmp(&other.node))?;
    Some(Drained {
        first,
        nodes,
        left: left(context, gang, plan),
    })
}

/// Why an attempt all of which runs is not moved wherever there is room, for people: a drain costs a gang a restart, not its work.
fn left(context: PollContext<'_>, gang: &Gang, plan: &Plan) -> Option<&'static str> {
    if recovery::is_held_back(context, gang, &plan.team) {
        return Some("its Team or its Gang is on hold, and it would not start again");
    }
    if evict::is_left_to_its_jobs(context, plan) {
        return Some("its Job would not make its pods again");
    }
    let pods = plan.ranks.iter();
    let mut pods = pods.filter_map(|rank| context.index.pod_by_uid(&rank.pod));
    let is_nobodys = pods.any(|pod| !is_terminal(pod) && controller(pod).is_none());
    is_nobodys.then_some("nobody would make its pods again")
}

fn drained_rank(context: PollContext<'_>, place: usize, rank: &Rank) -> Option<DrainedRank> {
    let name = &rank.node.name;
    let pod = context.index.pod_by_uid(&rank.pod)?;
    let tolerations = pod.node_rules().map(|rules| &*rules.tolerations);
    let node = context.index.node(name);
    let by_node = node.and_then(|node| drains::of_node(node, tolerations.unwrap_or_default()));
    if let Some(how) = by_node {
        return Some(DrainedRank {
            node: name.as_str().into(),
            part: Part::All(tolerations.unwrap_or_default().into()),
            object: node_object(name),
            says: format!("rank {place}: node {name} {how}"),
        });
    }
    let claims = rank.claims.iter();
    let claims = claims.filter_map(|uid| context.index.claim_by_uid(uid));
    let devices = claims.flat_map(|claim| claim.allocated.iter().flatten());
    let mut own = devices.filter(|device| !device.for_admin);
    own.find_map(|device| {
        let (driver, pool) = (&*device.driver, &*device.pool);
        let beside = devices_beside(context, &device.device);
        let names = std::iter::once(&*device.device).chain(beside.iter().map(String::as_str));
        let mut rules = names.filter_map(|device| {
            let rule = context.index.rule_draining(driver, pool, device)?;
            Some((device, rule))
        });
        let (device, (rule, how)) = rules.next()?;
        let part = Part::Device([driver, pool, device].map(Box::from));
        let device = device_name(driver, pool, device);
        Some(DrainedRank {
            node: name.as_str().into(),
            part,
            object: ObjectKey {
                kind: Kind::DeviceTaintRule,
                namespace: String::new(),
                name: rule.as_str().to_owned(),
            },
            says: format!("rank {place}: device {device} of node {name} {how}"),
        })
    })
}

/// Other devices of the node by which whoever holds this one is drained, where the rule is broken that none are.
fn devices_beside(context: PollContext<'_>, device: &str) -> Vec<String> {
    const MOST: usize = 16;
    let numbered = device.trim_end_matches(|digit: char| digit.is_ascii_digit());
    let is_broken = context.bugs.has(InjectedBug::NodeForDrainedDevice);
    let numbers = 0..if is_broken { MOST } else { 0 };
    numbers
        .map(|number| format!("{numbered}{number}"))
        .collect()
}

/// What is noted of an attempt. Where that rule is broken, what is noted of the one before counts for it.
fn entry_of<'a>(context: PollContext<'a>, plan: &Plan) -> Option<&'a Entry> {
    if context.bugs.has(InjectedBug::MovedAgain) {
        return context.drains.entries.get(&plan.gang_uid);
    }
    context.drains.entry(plan)
}

/// The gang as the engine is asked about it: those of its pods that are not done, as if they were made anew. `None`: it is not known yet
/// what they ask for; the error is for people.
fn as_asked(
    context: PollContext<'_>,
    gang: &Gang,
    plan: &Plan,
) -> Option<Result<engine::Gang, String>> {
    let formed = context.formed(&plan.key)?;
    let mut pods = Vec::with_capacity(plan.ranks.len());
    for (rank, state) in plan.states(context) {
        if state == RankState::Succeeded {
            continue;
        }
        let filter = match context.index.filter_anew(&rank.pod)? {
            Ok(filter) => filter,
            Err(why) => return Some(Err(why.details)),
        };
        let request = context.index.request_of_pod(&rank.pod.as_str().into())?;
        pods.push(engine::Pod {
            filter,
            ..request.clone()
        });
    }
    let topology = formed.spec.topology.as_ref();
    let level = |name: Option<&String>| name.map(|name| name.as_str().into());
    let status = gang.status.as_ref();
    let queued_at = status.and_then(|status| status.queued_at.as_ref());
    Some(Ok(engine::Gang {
        uid: plan.gang_uid.as_str().into(),
        name: plan.key.to_string(),
        attempt: plan.attempt,
        team: plan.team.as_str().into(),
        priority: formed.priority,
        queued_at: engine::Timestamp(
            queued_at.map_or(formed.last_pod_created_at, |at| at.0.as_second()),
        ),
        may_borrow: true,
        topology: engine::TopologyRequest {
            required: level(topology.and_then(|request| request.required.as_ref())),
            preferred: level(topology.and_then(|request| request.preferred.as_ref())),
            avoided: BTreeSet::new(),
        },
        run_time: engine::RunTime::default(),
        lacks_place_since: None,
        min_count: None,
        pods: Some(pods).filter(|pods| !pods.is_empty())?,
    }))
}

/// The node that a Gang is being moved away from: its last attempt was evicted for that, and it did not run since.
fn moved_from(context: PollContext<'_>, gang: &Gang, plan: Option<&Plan>) -> Option<NodeName> {
    let status = gang.status.as_ref()?;
    let last = status.evictions.last()?;
    let is_last = last.reason == Reason::Drained && last.attempt + 1 == status.attempt;
    let runs = || plan.is_some_and(|plan| plan.states(context).all(|(_, it)| it.is_well()));
    let goes_on = is_last && !has_ended(gang) && gang.metadata.deletion_timestamp.is_none();
    let node = last.node.as_deref().filter(|_| goes_on && !runs())?;
    Some(node.into())
}

fn find(context: PollContext<'_>, plan: &Plan) -> Option<Found> {
    let drains = context.drains;
    let entry = entry_of(context, plan)?;
    let DrainedRank {
        node, object, says, ..
    } = &entry.drained.first;
    let halt = context.breaker.halt_text();
    let ends = match &halt {
        _ if !faults::acts(context) => Ends::Observes,
        Some(_) => Ends::Halted,
        None => Ends::Acts,
    };
    let action = drain(DrainFacts {
        ends,
        is_left: entry.drained.left.is_some(),
        is_others_turn: drains.is_turn_of_another(&plan.gang_uid, node),
        elsewhere: entry.elsewhere.as_ref(),
        is_confirmed: entry
            .confirmed_until()
            .is_some_and(|until| !context.has_come(until)),
    });
    let follows = match action {
        DrainAction::Move | DrainAction::Confirm => "it is moved elsewhere".to_owned(),
        DrainAction::Look => match &entry.is_unknown {
            Some(why) => format!("it stays, as its rules about nodes are not understood: {why}"),
            None => "it stays until it is known where it may go".to_owned(),
        },
        DrainAction::Stay(Stays::Observed) => {
            "it would be moved elsewhere, but recovery only observes".to_owned()
        }
        DrainAction::Stay(Stays::Halted) => halt.unwrap_or_default(),
        DrainAction::Stay(Stays::Left) => {
            let why = entry.drained.left.unwrap_or_default();
            format!("it is not moved, since {why}")
        }
        // Which node that is would be written to all who wait, turn by turn.
        DrainAction::Stay(Stays::Later) => {
            "it stays until the gangs of another node have been moved".to_owned()
        }
        DrainAction::Stay(Stays::NoPlace) => match &entry.elsewhere {
            Some(Elsewhere::Nowhere(lacks)) => {
                format!("it stays, as without what is drained {lacks}")
            }
            Some(Elsewhere::On(_)) | None => String::new(),
        },
    };
    Some(Found {
        reason: PendingReason {
            reason: Reason::Drained,
            details: format!("{says}; {follows}"),
        },
        action,
        object: object.clone(),
    })
}

/// That what the attempt uses is drained, as people are told.
pub(crate) fn told(context: PollContext<'_>, plan: &Plan) -> Option<PendingReason> {
    Some(find(context, plan)?.reason)
}

/// Why the attempt is to be evicted for that now, if it is.
pub(crate) fn due(context: PollContext<'_>, plan: &Plan) -> Option<PendingReason> {
    let found = find(context, plan)?;
    (found.action == DrainAction::Move).then_some(found.reason)
}

/// What is to be read before the attempt is evicted, if it is to be read now.
pub(crate) fn to_confirm(context: PollContext<'_>, plan: &Plan) -> Option<ObjectKey> {
    let found = find(context, plan)?;
    let checks = &context.drains.checks;
    if found.action != DrainAction::Confirm {
        return None;
    }
    let mut under_way = checks.under_way.values();
    if under_way.any(|(object, _)| *object == found.object) {
        return None;
    }
    let again_at = checks.asked_at.get(&found.object);
    let again_at = again_at.map_or(0, |at| at.saturating_add(LOOK_AGAIN_SECONDS));
    context.has_come(again_at).then_some(found.object)
}

/// The node that is drained, or has a device that is.
pub(crate) fn node_of(context: PollContext<'_>, plan: &Plan) -> Option<String> {
    let entry = context.drains.entry(plan)?;
    Some(entry.drained.first.node.to_string())
}

impl Machine {
    /// Notes what is drained under an attempt of a Gang, and where it may go.
    pub(crate) fn note_drains(
        &mut self,
        gang_uid: &str,
        gang: Option<&Gang>,
        plan: Option<&Plan>,
        epoch: i64,
        now: Now,
        wake: &Cell<Option<u64>>,
    ) {
        // Taken out, so that what is noted may be of what is looked at.
        let mut drains = std::mem::take(&mut self.drains);
        let context = self.context(epoch, now, wake);
        let from = gang.and_then(|gang| moved_from(context, gang, plan));
        drains.note_moving(context, gang_uid, from);
        let carried = gang.zip(plan);
        let drained = carried.and_then(|(gang, plan)| drained(context, gang, plan));
        let acts = faults::acts(context);
        if let Some(((gang, plan), drained)) = carried.zip(drained) {
            let may_move = acts && drained.left.is_none();
            for rank in plan.ranks.iter().filter(|_| may_move) {
                drains.is_any_anew |= self.index.plan_anew(&rank.pod, true);
            }
            drains.note(self.context(epoch, now, wake), plan, gang, drained);
        } else if !self.bugs.has(InjectedBug::MovedAgain)
            && let Some(entry) = drains.remove(gang_uid)
        {
            for pod in &entry.pods {
                self.index.plan_anew(pod, false);
            }
        }
        let next = drains.whose_turn_comes();
        self.drains = drains;
        for key in &next {
            self.agenda.gang(key);
        }
    }

    /// A Gang is gone. Its pods may live on.
    pub(crate) fn forget_drains(&mut self, gang_uid: &str) {
        let entry = self.drains.remove(gang_uid);
        for pod in entry.iter().flat_map(|entry| &entry.pods) {
            self.index.plan_anew(pod, false);
        }
        for key in self.drains.forget_moving(gang_uid) {
            self.agenda.gang(&key);
        }
    }

    /// The read that says whether it is drained still.
    pub(crate) fn check_drain(&mut self, object: ObjectKey, now: Now) -> Effect {
        let id = self.flights.number();
        let begun_at = now.monotonic_seconds;
        let checks = &mut self.drains.checks;
        checks.asked_at.insert(object.clone(), begun_at);
        checks.under_way.insert(id, (object.clone(), begun_at));
        Effect::new(id, ApiRequest::ReadObject { key: object })
    }

    /// Takes the answer of such a read; whether it was one.
    pub(crate) fn take_drain_check(&mut self, effect: EffectId, outcome: &Outcome) -> bool {
        let Some((object, begun_at)) = self.drains.checks.under_way.remove(&effect) else {
            return false;
        };
        let stored = match outcome {
            Outcome::Done(stored) => stored.as_ref(),
            _ => None,
        };
        for key in self.drains.take_answer(&object, begun_at, stored) {
            self.agenda.gang(&key);
        }
        true
    }
}
