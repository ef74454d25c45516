//! Gangs on what a person drains by hand: a node (a cordon, or a taint for it) or a device (a DeviceTaintRule). They are moved whole, where the
//! administrator wants that ([`OnCordon::Move`]).
//!
//! **Only who has a place elsewhere is moved.** The engine looks for one without what is drained, and without the nodes where those go that are being
//! moved already; it is looked again every [`LOOK_AGAIN_SECONDS`]. Whoever has none stays, and is told what is missing. The gangs of one node are moved after those of
//! another: a node's turn lasts until its gangs run again, or have waited for [`MOST_MOVING_SECONDS`].
//!
//! **Nothing on hearsay** (S18): a watch may lag, and the cordon be over. So the Node, or the rule, is read uncached by a read that is begun after the drain was seen,
//! and has to say the same.
//!
//! **No breaker counts it**, since a person asked for it; while the breaker is open, or recovery only observes, it is told only.
//!
//! Nothing is stored but the eviction, with its cause and the node. A new leader finds the drains themselves, and in the Gangs which of them are on their way; not
//! where these were to go, so it may move one for which there is no room any more, which waits in the queue with its age then.
//! **Twice or late**: an eviction concerns one attempt, and the next one is not where the drain is. **Never answered**: nobody is moved.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
};

use muster_api::{Gang, Reason};
use muster_cluster::{
    drains,
    formed::{GangKey, PendingReason, has_ended},
    object::{Kind, Object, ObjectKey},
    pools::device_name,
    rank_state::RankState,
};
use muster_engine::{
    self as engine, Elsewhere, NodeName,
    recovery::{DrainAction, DrainFacts, Stays, drain},
};

use crate::{
    ApiRequest, Effect, EffectId, Machine, Mode, Now, OnCordon, Outcome,
    admission::evict,
    admission::plan::{Plan, Rank},
    faults,
    poll_context::PollContext,
};

/// After how many seconds it is looked for a place again, or read again what did not say that it is drained.
const LOOK_AGAIN_SECONDS: u64 = 30;
/// For how long a node has its turn because of a gang that was moved away from it and does not run yet, in seconds.
const MOST_MOVING_SECONDS: u64 = 600;

/// A rank on what is drained.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DrainedRank {
    node: NodeName,
    /// Whether all of the node is drained, and not a device of it.
    is_node: bool,
    /// What says so.
    object: ObjectKey,
    /// Which rank, and how, for people.
    says: String,
}

/// What is drained under an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Drained {
    /// The rank on the first node by name.
    first: DrainedRank,
    /// The nodes of which all is drained.
    nodes: BTreeSet<NodeName>,
}

/// An attempt on what is drained.
#[derive(Debug)]
struct Entry {
    key: GangKey,
    attempt: i64,
    drained: Drained,
    /// UIDs of its pods, which may be planned anew.
    pods: Vec<String>,
    /// Since when it is seen.
    seen_at: u64,
    looked_at: Option<u64>,
    /// What the last look for a place found.
    elsewhere: Option<Elsewhere>,
    /// Why it cannot be looked for one.
    is_unknown: Option<String>,
}

/// A gang that was evicted to be moved, and does not run again yet.
#[derive(Debug)]
struct Moving {
    node: NodeName,
    /// Where it was to go, as far as this leader knows.
    place: BTreeSet<NodeName>,
    since: u64,
    /// Whether its node has its turn still.
    counts: bool,
}

/// What the last reads of Nodes and rules showed.
#[derive(Debug, Default)]
struct Checks {
    /// Reads under way, and when they were begun.
    under_way: BTreeMap<EffectId, (ObjectKey, u64)>,
    /// When each was read last, or is.
    asked_at: BTreeMap<ObjectKey, u64>,
    /// What said that it is drained, and when that read was begun.
    confirmed_at: BTreeMap<ObjectKey, u64>,
}

/// Attempts on what is drained, and gangs that are being moved, by the UID of their Gang.
#[derive(Debug, Default)]
pub(crate) struct Drains {
    entries: BTreeMap<String, Entry>,
    moving: BTreeMap<String, Moving>,
    /// Gangs that wait until another node's turn is over.
    waiting: BTreeSet<GangKey>,
    checks: Checks,
    /// Whether pods may be planned anew since this was asked that might not before.
    is_any_anew: bool,
}

/// What is found about the drain that concerns an attempt.
#[derive(Debug)]
struct Found {
    reason: PendingReason,
    action: DrainAction,
    object: ObjectKey,
}

impl Drains {
    /// Gangs on what is drained.
    pub(crate) fn gangs(&self) -> impl Iterator<Item = &GangKey> {
        self.entries.values().map(|entry| &entry.key)
    }

    /// Whether pods may be planned anew, since this was asked, that might not before: their rules about nodes are to be read.
    pub(crate) fn take_anew(&mut self) -> bool {
        std::mem::take(&mut self.is_any_anew)
    }

    /// A Gang is gone; who may have a turn by that.
    pub(crate) fn forget(&mut self, gang_uid: &str) -> BTreeSet<GangKey> {
        self.remove(gang_uid);
        self.moving.remove(gang_uid);
        self.whose_turn_comes()
    }

    /// The attempt is not on anything that is drained any more, or over. What it was.
    fn remove(&mut self, gang_uid: &str) -> Option<Entry> {
        let entry = self.entries.remove(gang_uid)?;
        let object = &entry.drained.first.object;
        let mut others = self.entries.values();
        if !others.any(|other| other.drained.first.object == *object) {
            self.checks.asked_at.remove(object);
            self.checks.confirmed_at.remove(object);
        }
        Some(entry)
    }

    fn entry(&self, plan: &Plan) -> Option<&Entry> {
        let entry = self.entries.get(&plan.gang_uid)?;
        (entry.attempt == plan.attempt).then_some(entry)
    }

    /// The nodes that have their turn, and the places of the gangs that are moved away from them, but for one Gang.
    fn turns(&self, but_for: &str) -> impl Iterator<Item = (&NodeName, &BTreeSet<NodeName>)> {
        let entries = self.entries.iter().filter(move |(uid, _)| *uid != but_for);
        let granted = entries.filter_map(|(_, entry)| match &entry.elsewhere {
            Some(Elsewhere::On(place)) => Some((&entry.drained.first.node, place)),
            Some(Elsewhere::Nowhere(_)) | None => None,
        });
        let moving = self.moving.iter();
        let moving = moving.filter(move |(uid, moving)| moving.counts && *uid != but_for);
        granted.chain(moving.map(|(_, moving)| (&moving.node, &moving.place)))
    }

    /// Another node that has its turn, if one has.
    fn turn_of_another(&self, gang_uid: &str, node: &NodeName) -> Option<&NodeName> {
        let mut turns = self.turns(gang_uid).map(|(turn, _)| turn);
        turns.find(|turn| *turn != node)
    }

    /// Those who waited for a turn, if no node has it any more.
    fn whose_turn_comes(&mut self) -> BTreeSet<GangKey> {
        if self.turns("").next().is_some() {
            return BTreeSet::new();
        }
        std::mem::take(&mut self.waiting)
    }

    /// Notes whether a Gang is being moved, and away from which node.
    fn note_moving(&mut self, context: PollContext<'_>, gang_uid: &str, from: Option<NodeName>) {
        let now = context.now.monotonic_seconds;
        let Some(node) = from else {
            self.moving.remove(gang_uid);
            return;
        };
        let place = self.entries.get(gang_uid).and_then(|entry| {
            let Some(Elsewhere::On(place)) = &entry.elsewhere else {
                return None;
            };
            Some(place.clone())
        });
        let moving = self.moving.entry(gang_uid.to_owned());
        let moving = moving.or_insert_with(|| Moving {
            node,
            place: place.unwrap_or_default(),
            since: now,
            counts: true,
        });
        moving.counts = !context.has_come(moving.since.saturating_add(MOST_MOVING_SECONDS));
    }

    /// Notes what is drained under an attempt, and looks for a place where it may go, if that is due.
    fn note(&mut self, context: PollContext<'_>, plan: &Plan, gang: &Gang, drained: Drained) {
        let now = context.now.monotonic_seconds;
        let uid = plan.gang_uid.as_str();
        let is_known = self
            .entry(plan)
            .is_some_and(|entry| entry.drained == drained);
        if !is_known {
            self.remove(uid);
            let entry = Entry {
                key: plan.key.clone(),
                attempt: plan.attempt,
                drained,
                pods: plan.ranks.iter().map(|rank| rank.pod.clone()).collect(),
                seen_at: now,
                looked_at: None,
                elsewhere: None,
                is_unknown: None,
            };
            self.entries.insert(uid.to_owned(), entry);
        }
        let Some(entry) = self.entries.get(uid) else {
            return;
        };
        let is_later = self
            .turn_of_another(uid, &entry.drained.first.node)
            .is_some();
        if faults::held_back(context).is_some() || is_later {
            if is_later {
                self.waiting.insert(plan.key.clone());
            }
            self.set_elsewhere(uid, None);
            return;
        }
        let again_at = entry
            .looked_at
            .map(|at| at.saturating_add(LOOK_AGAIN_SECONDS));
        if again_at.is_some_and(|at| !context.has_come(at)) {
            return;
        }
        let taken = self.turns(uid).flat_map(|(_, place)| place);
        let without: BTreeSet<NodeName> = taken.chain(&entry.drained.nodes).cloned().collect();
        let (elsewhere, is_unknown) = match as_asked(context, gang, plan) {
            Some(Ok(asked)) => (Some(context.engine.elsewhere(&asked, &without)), None),
            Some(Err(why)) => (None, Some(why)),
            // It is looked at again when that is known.
            None => (None, None),
        };
        let is_answered = elsewhere.is_some() || is_unknown.is_some();
        self.set_elsewhere(uid, elsewhere);
        if let Some(entry) = self.entries.get_mut(uid) {
            entry.is_unknown = is_unknown;
            entry.looked_at = is_answered.then_some(now);
        }
        if is_answered {
            context.has_come(now.saturating_add(LOOK_AGAIN_SECONDS));
        }
    }

    fn set_elsewhere(&mut self, gang_uid: &str, elsewhere: Option<Elsewhere>) {
        if let Some(entry) = self.entries.get_mut(gang_uid) {
            if elsewhere.is_none() {
                entry.looked_at = None;
            }
            entry.elsewhere = elsewhere;
        }
    }

    fn confirms(&self, object: &ObjectKey, since: u64) -> bool {
        let confirmed_at = self.checks.confirmed_at.get(object);
        confirmed_at.is_some_and(|at| *at >= since)
    }
}

/// What is drained under an attempt all of which runs. While it starts others see to it: who is not bound yet loses its place.
fn drained(context: PollContext<'_>, gang: &Gang, plan: &Plan) -> Option<Drained> {
    let may_be_moved = context.config.recovery.on_cordon == OnCordon::Move
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
    let whole = ranks.iter().filter(|rank| rank.is_node);
    let nodes = whole.map(|rank| rank.node.clone()).collect();
    // Of several on one node the first by rank: `min_by` takes the first.
    let first = ranks
        .into_iter()
        .min_by(|one, other| one.node.cmp(&other.node))?;
    Some(Drained { first, nodes })
}

fn drained_rank(context: PollContext<'_>, place: usize, rank: &Rank) -> Option<DrainedRank> {
    let name = &rank.node.name;
    let pod = context.index.pod_by_uid(&rank.pod)?;
    let tolerations = pod.node_rules().map(|rules| &*rules.tolerations);
    let node = context.index.node(name);
    let by_node = node.and_then(|node| drains::of_node(node, tolerations.unwrap_or_default()));
    let object = |kind, name: &str| ObjectKey {
        kind,
        namespace: String::new(),
        name: name.to_owned(),
    };
    if let Some(how) = by_node {
        return Some(DrainedRank {
            node: name.as_str().into(),
            is_node: true,
            object: object(Kind::Node, name.as_str()),
            says: format!("rank {place}: node {name} {how}"),
        });
    }
    let claims = rank.claims.iter();
    let claims = claims.filter_map(|uid| context.index.claim_by_uid(uid));
    let devices = claims.flat_map(|claim| claim.allocated.iter().flatten());
    let mut own = devices.filter(|device| !device.for_admin);
    own.find_map(|device| {
        let (driver, pool, device) = (&*device.driver, &*device.pool, &*device.device);
        let (rule, how) = context.index.rule_draining(driver, pool, device)?;
        let device = device_name(driver, pool, device);
        Some(DrainedRank {
            node: name.as_str().into(),
            is_node: false,
            object: object(Kind::DeviceTaintRule, rule.as_str()),
            says: format!("rank {place}: device {device} of node {name} {how}"),
        })
    })
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
    let entry = drains.entry(plan)?;
    let DrainedRank {
        node, object, says, ..
    } = &entry.drained.first;
    let turn_of = drains.turn_of_another(&plan.gang_uid, node);
    let halt = context.breaker.halt_text();
    let action = drain(DrainFacts {
        acts: faults::acts(context),
        is_halted: halt.is_some(),
        turn_of,
        elsewhere: entry.elsewhere.as_ref(),
        is_confirmed: drains.confirms(object, entry.seen_at),
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
        DrainAction::Stay(Stays::Later) => {
            let other = turn_of.map_or("", NodeName::as_str);
            format!("it stays until the gangs of node {other} have been moved")
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
            for rank in plan.ranks.iter().filter(|_| acts) {
                drains.is_any_anew |= self.index.plan_anew(&rank.pod, true);
            }
            drains.note(self.context(epoch, now, wake), plan, gang, drained);
        } else if let Some(entry) = drains.remove(gang_uid) {
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
        let is_drained = match outcome {
            Outcome::Done(Some(Object::Node(node))) => drains::of_node(node, &[]).is_some(),
            Outcome::Done(Some(Object::DeviceTaintRule(rule))) => drains::of_rule(rule).is_some(),
            _ => false,
        };
        let entries = self.drains.entries.values();
        let concerned = entries.filter(|entry| entry.drained.first.object == object);
        let concerned: Vec<GangKey> = concerned.map(|entry| entry.key.clone()).collect();
        for key in &concerned {
            self.agenda.gang(key);
        }
        if is_drained && !concerned.is_empty() {
            self.drains.checks.confirmed_at.insert(object, begun_at);
        }
        true
    }
}
