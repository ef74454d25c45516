//! Gangs on what a person drains by hand: a node (a cordon, or a taint for it) or a device (a DeviceTaintRule). They are moved whole, where the
//! administrator wants that ([`OnCordon::Move`](crate::OnCordon::Move)).
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
//! **Twice or late**: an eviction concerns one attempt, and the next one is not where the drain is: a gang whose claim still has a drained device, since others use it
//! as well, waits until they have let go of it ([`keeps_waiting`]). **Never answered**: nobody is moved.

mod drained;
mod table;

use std::{cell::Cell, collections::BTreeSet};

use muster_api::{Gang, Reason};
use muster_cluster::{
    formed::{PendingReason, has_ended},
    object::ObjectKey,
    rank_state::RankState,
};
use muster_engine::{
    self as engine, Elsewhere, NodeName,
    recovery::{DrainAction, DrainFacts, Ends, Stays, drain},
};

use self::{
    drained::DrainedRank,
    table::{Entry, LOOK_AGAIN_SECONDS},
};
pub(crate) use self::{drained::keeps_waiting, table::Drains};
use crate::{
    ApiRequest, Effect, EffectId, Machine, Now, Outcome,
    admission::plan::Plan,
    faults::{self, HeldBack},
    injected_bug::InjectedBug,
    outward::still_prepared,
    poll_context::PollContext,
};

/// What is found about the drain that concerns an attempt.
#[derive(Debug)]
struct Found {
    reason: PendingReason,
    action: DrainAction,
    object: ObjectKey,
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
            closed: still_prepared::closed_nodes(context, &pods),
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
    let held_back = faults::held_back(context);
    let ends = match &held_back {
        Some(HeldBack::Observed) => Ends::Observes,
        Some(HeldBack::Halted(_)) => Ends::Halted,
        None => Ends::Acts,
    };
    let held_back = held_back.as_ref().map_or("", HeldBack::text);
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
            format!("it would be moved elsewhere, but {held_back}")
        }
        DrainAction::Stay(Stays::Halted) => held_back.to_owned(),
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
        let drained = carried.and_then(|(gang, plan)| drained::under(context, gang, plan));
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
