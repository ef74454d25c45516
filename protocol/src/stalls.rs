//! Gangs that make no progress though all that they hold is well: ranks wait for each other, say.
//!
//! **Who knows** is the workload. The pod of its first rank tells how far it has come, by an annotation ([`keys::PROGRESS`]): any text that is another one
//! whenever there was progress, a step number say. For how long it may stay the same its user declares
//! ([`keys::PROGRESS_DEADLINE_SECONDS`]). An attempt that has told nothing yet is not judged, nor one of which a rank does not run, or is on a node that is
//! silent: others see to that.
//!
//! **Nothing on hearsay** (S18). Watches may stand still. So the pod is read uncached, by a read that is begun after the time is over, and has to tell
//! the same; without an answer nothing is done. While the API server is away, no workload can tell anything: but then no leader keeps its
//! lease, and the next one counts anew. What is shorter than that is less than [`SLACK_SECONDS`].
//!
//! **Time** is the leader's monotonic clock, from when it saw the text first. Nothing is stored but the annotation, so S10 holds. **Twice or late**: the eviction
//! concerns one attempt.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
};

use muster_api::{Gang, Reason, keys};
use muster_cluster::{
    formed::{GangKey, PendingReason},
    object::{Object, ObjectKey},
    pod::{self, PodFields},
    rank_state::RankState,
    text::quoted,
};

use crate::{
    ApiRequest, Effect, EffectId, Machine, Now, Outcome, admission::plan::Plan, faults,
    faults::breaker::no_room_for_stalled, injected_bug::InjectedBug, nodes::loss,
    objects::pod_object, outward::gang_status, poll_context::PollContext,
};

/// How long what is told may take to be seen, in seconds: longer than a leader can be without the API server.
const SLACK_SECONDS: u64 = 60;
/// Seconds between two reads of a pod.
const AGAIN_SECONDS: u64 = 30;
/// Most pods that are read at a time.
const MOST_READS: usize = 16;

/// What the pod of the first rank of an attempt tells.
#[derive(Debug)]
struct Told {
    attempt: i64,
    pod_uid: String,
    text: Box<str>,
    /// Since when it is seen.
    since: u64,
    is_being_read: bool,
    /// When the last read was begun.
    asked_at: Option<u64>,
    /// When the last read was begun that showed the same.
    confirmed_at: Option<u64>,
}

/// A read under way.
#[derive(Debug)]
struct Question {
    key: GangKey,
    gang_uid: String,
    begun_at: u64,
}

/// What attempts tell of their progress, and reads under way.
#[derive(Debug, Default)]
pub(crate) struct Stalls {
    /// By the UID of the Gang.
    told: BTreeMap<String, Told>,
    under_way: BTreeMap<EffectId, Question>,
    /// Gangs of which the pod is to be read once another read is answered: ten thousand may stand still at once, as their storage does, and
    /// none of them is looked at before its turn.
    waiting: BTreeSet<GangKey>,
}

impl Stalls {
    /// Notes what an attempt of a Gang tells, by the UID of its pod; `None`: nothing that is judged.
    fn note(&mut self, gang_uid: &str, tells: Option<(i64, &str, &str)>, now: u64) {
        let Some((attempt, pod_uid, text)) = tells else {
            self.told.remove(gang_uid);
            return;
        };
        let is_known = self.told.get(gang_uid).is_some_and(|told| {
            told.attempt == attempt && told.pod_uid == pod_uid && *told.text == *text
        });
        if is_known {
            return;
        }
        let told = Told {
            attempt,
            pod_uid: pod_uid.to_owned(),
            text: text.into(),
            since: now,
            is_being_read: false,
            asked_at: None,
            confirmed_at: None,
        };
        self.told.insert(gang_uid.to_owned(), told);
    }

    /// Notes the same with a rule broken: time goes on though something else is told, or though it is told by the next attempt.
    fn note_wrongly(
        &mut self,
        bug: InjectedBug,
        gang_uid: &str,
        tells: Option<(i64, &str, &str)>,
        now: u64,
    ) {
        let Some((attempt, pod_uid, text)) = tells else {
            return;
        };
        let is_next = bug == InjectedBug::StallNotForgotten;
        let known = self.told.get_mut(gang_uid);
        if let Some(told) = known.filter(|told| is_next != (told.attempt == attempt)) {
            if is_next {
                told.is_being_read = false;
                told.asked_at = None;
                told.confirmed_at = None;
            }
            told.attempt = attempt;
            pod_uid.clone_into(&mut told.pod_uid);
            told.text = text.into();
            return;
        }
        self.note(gang_uid, tells, now);
    }

    fn told(&self, plan: &Plan) -> Option<&Told> {
        let told = self.told.get(&plan.gang_uid)?;
        (told.attempt == plan.attempt).then_some(told)
    }

    /// UIDs of the Gangs that are judged.
    pub(crate) fn gangs(&self) -> impl Iterator<Item = &String> {
        self.told.keys()
    }

    /// A Gang is gone.
    pub(crate) fn forget(&mut self, gang_uid: &str) {
        self.told.remove(gang_uid);
    }
}

/// An attempt that made no progress for as long as it may.
#[derive(Debug)]
struct Stall {
    reason: PendingReason,
    /// Whether the store itself said so since.
    is_confirmed: bool,
    /// Whether nothing is evicted for that now.
    is_held_back: bool,
}

/// How long it may be without progress, in seconds, if its user says so.
fn deadline_seconds(context: PollContext<'_>, gang: &Gang, plan: &Plan) -> Option<u64> {
    let spec = gang_status::limits(context, &plan.key, gang);
    u64::try_from(spec.restart.progress_deadline_seconds?).ok()
}

fn ends_at(told: &Told, deadline_seconds: u64) -> u64 {
    let until = told.since.saturating_add(deadline_seconds);
    until.saturating_add(SLACK_SECONDS)
}

fn find(context: PollContext<'_>, gang: &Gang, plan: &Plan) -> Option<Stall> {
    let seconds = deadline_seconds(context, gang, plan)?;
    let told = context.stalls.told(plan)?;
    let ends_at = ends_at(told, seconds);
    if !context.has_come(ends_at) || loss::of_plan(context, plan).is_some() {
        return None;
    }
    let pod = context.index.pod_by_uid(&told.pod_uid)?;
    let (name, text) = (pod.name(), quoted(&told.text));
    let mut details = format!(
        "pod {name} of its first rank tells {text} by {} for longer than the {seconds} s that it may",
        keys::PROGRESS
    );
    let held_back = faults::held_back(context).map(|it| it.of_attempt().to_owned());
    let first = plan.ranks.first()?;
    let held_back = held_back.or_else(|| no_room_for_stalled(context, &first.node.name));
    if let Some(held_back) = &held_back {
        details = format!("{details}; {held_back}");
    }
    Some(Stall {
        reason: PendingReason {
            reason: Reason::NoProgress,
            details,
        },
        is_confirmed: told.confirmed_at.is_some_and(|at| at >= ends_at),
        is_held_back: held_back.is_some(),
    })
}

/// That the attempt makes no progress, as people are told.
pub(crate) fn told(context: PollContext<'_>, gang: &Gang, plan: &Plan) -> Option<PendingReason> {
    Some(find(context, gang, plan)?.reason)
}

/// Why the attempt is to be evicted for that now, if it is.
pub(crate) fn due(context: PollContext<'_>, gang: &Gang, plan: &Plan) -> Option<PendingReason> {
    let stall = find(context, gang, plan)?;
    (stall.is_confirmed && !stall.is_held_back).then_some(stall.reason)
}

/// The pod that is to be read before the attempt is evicted, if it is to be read now.
pub(crate) fn to_confirm(context: PollContext<'_>, gang: &Gang, plan: &Plan) -> Option<ObjectKey> {
    let stall = find(context, gang, plan)?;
    if stall.is_confirmed || stall.is_held_back {
        return None;
    }
    let told = context.stalls.told(plan)?;
    let again_at = told.asked_at.map_or(0, |at| at + AGAIN_SECONDS);
    if told.is_being_read || !context.has_come(again_at) {
        return None;
    }
    if context.stalls.under_way.len() >= MOST_READS {
        // It comes with an answer; or by then, if those before it went otherwise.
        context.has_come(context.now.monotonic_seconds + AGAIN_SECONDS);
    }
    let pod = context.index.pod_by_uid(&told.pod_uid)?;
    Some(pod_object(pod))
}

/// What the attempt tells, if it is judged: by the UID of the pod of its first rank.
fn tells<'a>(
    context: PollContext<'a>,
    gang: &Gang,
    plan: &'a Plan,
) -> Option<(i64, &'a str, &'a str)> {
    deadline_seconds(context, gang, plan)?;
    let first = plan.ranks.first()?;
    let pod = context.index.pod_by_uid(&first.pod)?;
    let text = pod::annotation(pod, keys::PROGRESS)?;
    let mut states = plan.states(context);
    let (_, first_state) = states.next()?;
    let all_run = first_state == RankState::Running && states.all(|(_, state)| state.is_well());
    all_run.then_some((plan.attempt, first.pod.as_str(), text))
}

impl Machine {
    /// Notes what an attempt tells of its progress.
    pub(crate) fn note_progress(
        &mut self,
        gang_uid: &str,
        gang: Option<&Gang>,
        plan: Option<&Plan>,
        epoch: i64,
        now: Now,
        wake: &Cell<Option<u64>>,
    ) {
        // Taken out, so that what is noted may be of what is looked at.
        let mut stalls = std::mem::take(&mut self.stalls);
        let context = self.context(epoch, now, wake);
        let tells = gang
            .zip(plan)
            .and_then(|(gang, plan)| tells(context, gang, plan));
        let bugs = [InjectedBug::ProgressIgnored, InjectedBug::StallNotForgotten];
        let now = now.monotonic_seconds;
        match bugs.into_iter().find(|bug| context.bugs.has(*bug)) {
            Some(bug) => stalls.note_wrongly(bug, gang_uid, tells, now),
            None => stalls.note(gang_uid, tells, now),
        }
        self.stalls = stalls;
    }

    /// The read that says whether the pod tells the same still; `None` where too many are under way, and the gang waits for one of them.
    pub(crate) fn check_stall(
        &mut self,
        key: &GangKey,
        pod: ObjectKey,
        now: Now,
    ) -> Option<Effect> {
        if self.stalls.under_way.len() >= MOST_READS {
            self.stalls.waiting.insert(key.clone());
            return None;
        }
        let gang_uid = self.index.gang(key)?.metadata.uid.clone()?;
        let begun_at = now.monotonic_seconds;
        let told = self.stalls.told.get_mut(&gang_uid)?;
        told.is_being_read = true;
        told.asked_at = Some(begun_at);
        let id = self.flights.number();
        let question = Question {
            key: key.clone(),
            gang_uid,
            begun_at,
        };
        self.stalls.under_way.insert(id, question);
        Some(Effect::new(id, ApiRequest::ReadObject { key: pod }))
    }

    /// Takes the answer of such a read; whether it was one.
    pub(crate) fn take_stall_check(&mut self, effect: EffectId, outcome: &Outcome) -> bool {
        let Some(question) = self.stalls.under_way.remove(&effect) else {
            return false;
        };
        self.agenda.gang(&question.key);
        for _ in self.stalls.under_way.len()..MOST_READS {
            let Some(next) = self.stalls.waiting.pop_first() else {
                break;
            };
            self.agenda.gang(&next);
        }
        let told = self.stalls.told.get_mut(&question.gang_uid);
        // It may have told something else since, and that may be read already.
        let asked = told.filter(|told| told.asked_at == Some(question.begun_at));
        let Some(told) = asked else {
            return true;
        };
        told.is_being_read = false;
        if let Outcome::Done(Some(Object::Pod(stored))) = outcome
            && stored.uid() == told.pod_uid
            && stored.annotation(keys::PROGRESS) == Some(&*told.text)
        {
            told.confirmed_at = Some(question.begun_at);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_begins_anew_with_each_other_text_each_pod_and_each_attempt() {
        let mut stalls = Stalls::default();
        let mut since = |tells, now| {
            stalls.note("gang", tells, now);
            stalls.told.get("gang").map(|told| told.since)
        };
        assert_eq!(since(Some((1, "pod", "7")), 100), Some(100));
        assert_eq!(since(Some((1, "pod", "7")), 200), Some(100));
        assert_eq!(since(Some((1, "pod", "8")), 300), Some(300));
        assert_eq!(since(Some((1, "other", "8")), 400), Some(400));
        assert_eq!(since(Some((2, "other", "8")), 500), Some(500));
        assert_eq!(since(None, 600), None);
        assert_eq!(since(Some((2, "other", "8")), 700), Some(700));
    }
}
