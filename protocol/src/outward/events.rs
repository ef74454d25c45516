//! One Event per change of reason, and one when others give way to a gang that waits for the same reason as before, on the Gang,
//! its owner and up to eight of its pods. An owner of many gangs is told so many in a row ([`super::event_budget`]).
//!
//! Less is told where somebody else tells it ([`audience`]; docs/adr/0038-what-nobody-else-tells-is-an-event.md). Each Event is a write,
//! kept for an hour: of a gang of one pod that never waits one is left of five.
//!
//! What was told is remembered in memory only: a new leader takes what it finds as told, so a change that
//! happened during the takeover may be silent. The Gang's conditions show it all the same.

use std::collections::BTreeSet;

use muster_api::{
    Gang, GangPhase, GangStatus, Reason, conditions as condition_types, gang::Reservation,
};

use super::event_budget::EventBudgets;
use crate::{ApiRequest, effect::EventNote, poll_context::PollContext};
use muster_cluster::{
    explain::name_elder,
    formed::GangKey,
    pod::{ObservedPod, PodFields},
    table::Table,
    text::{listed, truncate},
};

/// Most pods of a gang that are told.
pub(crate) const PODS_TOLD: usize = 8;
/// Longest note; the API takes 1,024 bytes.
const NOTE_BYTES: usize = 1_024;

/// What was told already.
#[derive(Debug, Default)]
pub(crate) struct EventTracker {
    reasons: Table<GangKey, Known>,
    /// UIDs of pods that are too many, by gang.
    excess: Table<GangKey, BTreeSet<String>>,
    /// What owners may be told still.
    budgets: EventBudgets,
    /// Whether everything was looked at once: what is found then was told by whoever led before.
    begun: bool,
}

/// What was told of a gang.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    /// UID of the Gang.
    uid: String,
    reason: Reason,
    /// Since when what others free is kept for it, in seconds of the wall clock. It is another second each time that others are
    /// chosen to give way.
    kept_since: Option<i64>,
}

/// What is remembered of a gang.
#[derive(Debug)]
struct Known {
    told: Told,
    /// Whether its Gang says so still. Between two attempts it says nothing, until it is known what the next one waits for.
    stands: bool,
    /// What its owner and its pods were told that is over once it is admitted, or runs.
    standing: Standing,
}

/// What the owner and the pods of a gang were told and nobody took back, the gravest of it last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    Nothing,
    /// That the gang waits. Of each of its pods kube-scheduler says what becomes of it, as soon as nothing is waited for: that it is
    /// scheduled, or why not.
    Wait,
    /// Anything else. Pods may have come so far already that nobody says a thing about them any more.
    More,
}

impl Standing {
    fn of(reason: Reason) -> Self {
        match reason {
            Reason::Admitted | Reason::Adopted | Reason::Running | Reason::Completed => {
                Self::Nothing
            }
            Reason::MissingPods
            | Reason::TeamStopped
            | Reason::WaitingForQuota
            | Reason::WaitingForPlacement
            | Reason::WaitingForRelease => Self::Wait,
            _ => Self::More,
        }
    }
}

/// What is new about a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum New {
    Nothing,
    Reason,
    /// Others give way to it, and its reason is as before.
    Victims,
}

impl Told {
    fn differs_from(&self, before: Option<&Self>) -> New {
        match before {
            Some(before) if before.uid == self.uid && before.reason == self.reason => {
                let is_kept_anew =
                    self.kept_since.is_some() && self.kept_since != before.kept_since;
                if is_kept_anew {
                    New::Victims
                } else {
                    New::Nothing
                }
            }
            _ => New::Reason,
        }
    }
}

/// Who is told of a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Audience {
    Nobody,
    /// The Gang alone.
    Gang,
    /// The Gang and its owner.
    GangAndOwner,
    /// The Gang, its owner and its pods.
    All,
}

/// Who is told of a reason that is new.
///
/// That a gang is admitted, or runs, ends what its owner and its pods were told before, in this attempt or in an earlier one: `standing`.
/// Where that was nothing, they have nothing to be told: the pods are bound and started a moment later, and Kubernetes tells them so.
/// That takes back, too, what pods were told while they waited, but not what their owner was. That the gang is complete its phase says,
/// and its Job.
fn audience(standing: Standing, reason: Reason) -> Audience {
    match (reason, standing) {
        (Reason::Completed, _) | (Reason::Running, Standing::Nothing) => Audience::Nobody,
        (Reason::Admitted, Standing::Nothing) => Audience::Gang,
        (Reason::Admitted, Standing::Wait) => Audience::GangAndOwner,
        _ => Audience::All,
    }
}

impl EventTracker {
    /// Everything was looked at once.
    pub(crate) fn begin(&mut self) {
        self.begun = true;
    }

    /// Events that are owed about a gang.
    pub(crate) fn owed(&mut self, context: PollContext<'_>, key: &GangKey) -> Vec<ApiRequest> {
        let mut notes = Vec::new();
        if let Some(gang) = context.index.gang(key) {
            let status = gang.status.as_ref();
            let says = status.and_then(news);
            let kept = status.and_then(|status| status.reservation.as_ref());
            let uid = gang.metadata.uid.as_deref().unwrap_or_default();
            let tells = says.map(|(reason, _)| Told {
                uid: uid.to_owned(),
                reason,
                kept_since: kept.map(|kept| kept.since.0.as_second()),
            });
            match (self.note(key, uid, tells), says, kept) {
                ((New::Reason, audience), Some(says), _) if self.begun => {
                    let budgets = &mut self.budgets;
                    notes.extend(match audience {
                        Audience::Nobody => Vec::new(),
                        Audience::Gang => vec![note_of_gang(key, gang, says)],
                        Audience::GangAndOwner => {
                            to_gang_and_owner(context, budgets, key, gang, says)
                        }
                        Audience::All => to_all(context, budgets, key, gang, says),
                    });
                }
                ((New::Victims, _), Some((reason, note)), Some(kept)) if self.begun => {
                    let text = with_victims(kept, note);
                    let says = (reason, text.as_str());
                    notes.extend(to_all(context, &mut self.budgets, key, gang, says));
                }
                _ => {}
            }
        } else {
            self.reasons.remove(key);
        }
        self.owed_to_excess(context, key, &mut notes);
        notes.into_iter().map(ApiRequest::PublishEvent).collect()
    }

    /// Notes what the Gang of that UID says, if anything. Returns what is new about it, and who is told of a reason that is.
    fn note(&mut self, key: &GangKey, uid: &str, says: Option<Told>) -> (New, Audience) {
        let Some(says) = says else {
            if let Some(known) = self.reasons.get_mut(key) {
                known.stands = false;
            }
            return (New::Nothing, Audience::Nobody);
        };
        let known = self.reasons.get(key);
        let known = known.filter(|known| known.told.uid == uid);
        let stands = known.filter(|known| known.stands);
        let stands = stands.map(|known| &known.told);
        if stands == Some(&says) {
            return (New::Nothing, Audience::Nobody);
        }
        let standing = known.map_or(Standing::Nothing, |known| known.standing);
        let news = (says.differs_from(stands), audience(standing, says.reason));
        let known = Known {
            standing: match says.reason {
                Reason::Admitted | Reason::Adopted | Reason::Running => Standing::Nothing,
                reason => standing.max(Standing::of(reason)),
            },
            told: says,
            stands: true,
        };
        self.reasons.insert(key.clone(), known);
        news
    }

    fn owed_to_excess(
        &mut self,
        context: PollContext<'_>,
        key: &GangKey,
        notes: &mut Vec<EventNote>,
    ) {
        let before = self.excess.remove(key).unwrap_or_default();
        let Some(formed) = context.formed(key).filter(|it| !it.excess.is_empty()) else {
            return;
        };
        if self.begun {
            let size = formed.spec.size;
            let plan = context.plans.carried(key);
            let text = match plan.and_then(|plan| plan.gang_size) {
                Some(all) => format!(
                    "gang {key} was admitted with {size} of its {all} pods; this one waits for its next attempt"
                ),
                None => format!("gang {key} has its {size} pods; this one waits"),
            };
            let new = formed.excess.iter();
            let new = new.filter(|pod| !before.contains(&pod.uid));
            notes.extend(new.take(PODS_TOLD).map(|pod| {
                let reason = Reason::ExcessPod;
                let index = context.index;
                let object = index.pod_by_uid(&pod.uid);
                let elder = object.and_then(|object| index.elder_of_deployment(object));
                let mut text = text.clone();
                if let Some(elder) = elder {
                    name_elder(&mut text, elder.name());
                }
                note_of_pod(&key.namespace, &pod.name, &pod.uid, reason, &text)
            }));
        }
        let now = formed.excess.iter().map(|pod| pod.uid.clone());
        self.excess.insert(key.clone(), now.collect());
    }
}

/// Who gives way, before the reason why the gang waits all the same.
fn with_victims(kept: &Reservation, note: &str) -> String {
    let named: Vec<&str> = kept.victims.iter().map(|victim| &*victim.gang).collect();
    match (kept.victim_count, named.as_slice()) {
        (1, [only]) => format!("{only} gives way to it; {note}"),
        (count, _) => format!("{count} gangs give way to it: {}; {note}", listed(named)),
    }
}

/// The reason that a status shows, and its text.
fn news(status: &GangStatus) -> Option<(Reason, &str)> {
    let condition = |type_: &str, value: &str| {
        status
            .conditions
            .iter()
            .find(|condition| condition.type_ == type_ && condition.status == value)
    };
    if status.phase == GangPhase::Finished {
        return Some((Reason::Completed, "the gang finished"));
    }
    if status.phase == GangPhase::Failed {
        let message = condition(condition_types::FINISHED, "False")
            .map_or("", |condition| &condition.message);
        return Some((Reason::PodFailed, message));
    }
    if let (GangPhase::Evicting, Some(eviction)) = (status.phase, status.evictions.last()) {
        return Some((eviction.reason, &eviction.message));
    }
    let notice = status.preemption.as_ref();
    if let Some(notice) = notice.filter(|notice| notice.attempt == status.attempt) {
        return Some((Reason::PreemptionNotice, &notice.message));
    }
    if let Some(degraded) = condition(condition_types::DEGRADED, "True") {
        let reason = [
            Reason::StartTimeout,
            Reason::PlaceLost,
            Reason::NodeLost,
            Reason::DeviceFault,
            Reason::NoProgress,
            Reason::Drained,
            Reason::PodDisrupted,
            Reason::MembersChanged,
            Reason::NotPermitted,
            Reason::PodFailed,
        ]
        .into_iter()
        .find(|reason| reason.as_str() == degraded.reason)?;
        return Some((reason, &degraded.message));
    }
    if let Some(admission) = &status.admission {
        let reason = match (status.phase, admission.adopted) {
            (_, true) => Reason::Adopted,
            (GangPhase::Running, _) => Reason::Running,
            _ => Reason::Admitted,
        };
        let message =
            condition(condition_types::ADMITTED, "True").map_or("", |condition| &condition.message);
        return Some((reason, message));
    }
    let queue = status.queue.as_ref()?;
    Some((queue.reason, &queue.details))
}

fn is_warning(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::PodFailed
            | Reason::StartTimeout
            | Reason::MaxRuntimeExceeded
            | Reason::RestartsExhausted
            | Reason::PlaceLost
            | Reason::NodeLost
            | Reason::DeviceFault
            | Reason::NoProgress
            | Reason::PodDisrupted
            | Reason::MembersChanged
            | Reason::NotPermitted
            | Reason::Bypass
            | Reason::ForcedDeletion
            | Reason::ExceedsMaxQuota
            | Reason::PlacementImpossible
            | Reason::RequestNotUnderstood
            | Reason::GangTooLarge
    )
}

fn to_all(
    context: PollContext<'_>,
    budgets: &mut EventBudgets,
    key: &GangKey,
    gang: &Gang,
    (reason, text): (Reason, &str),
) -> Vec<EventNote> {
    let mut notes = to_gang_and_owner(context, budgets, key, gang, (reason, text));
    for pod in context.index.pods_of_gang(key).into_iter().take(PODS_TOLD) {
        let (name, uid) = (pod.name(), pod.uid());
        notes.push(note_of_pod(&key.namespace, name, uid, reason, text));
    }
    notes
}

fn to_gang_and_owner(
    context: PollContext<'_>,
    budgets: &mut EventBudgets,
    key: &GangKey,
    gang: &Gang,
    (reason, text): (Reason, &str),
) -> Vec<EventNote> {
    let mut notes = vec![note_of_gang(key, gang, (reason, text))];
    let second = context.now.monotonic_seconds;
    let owner = gang.metadata.owner_references.iter().flatten().next();
    if let Some(owner) = owner.filter(|owner| budgets.take(&owner.uid, second)) {
        notes.push(note(
            (&owner.api_version, &owner.kind),
            &key.namespace,
            &owner.name,
            &owner.uid,
            reason,
            text,
        ));
    }
    notes
}

/// What a Gang and one of its pods are told.
pub(crate) fn of_gang_and_pod(
    key: &GangKey,
    gang: &Gang,
    pod: &ObservedPod,
    reason: Reason,
    text: &str,
) -> [EventNote; 2] {
    [
        note_of_gang(key, gang, (reason, text)),
        note_of_pod(&key.namespace, pod.name(), pod.uid(), reason, text),
    ]
}

fn note_of_gang(key: &GangKey, gang: &Gang, (reason, text): (Reason, &str)) -> EventNote {
    let api_version = format!("{}/{}", muster_api::GROUP, muster_api::VERSION);
    let uid = gang.metadata.uid.as_deref().unwrap_or_default();
    let kind = (api_version.as_str(), "Gang");
    note(kind, &key.namespace, &key.name, uid, reason, text)
}

fn note_of_pod(namespace: &str, name: &str, uid: &str, reason: Reason, text: &str) -> EventNote {
    note(("v1", "Pod"), namespace, name, uid, reason, text)
}

fn note(
    (api_version, kind): (&str, &str),
    namespace: &str,
    name: &str,
    uid: &str,
    reason: Reason,
    text: &str,
) -> EventNote {
    let mut note = text.to_owned();
    truncate(&mut note, NOTE_BYTES);
    EventNote {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        warning: is_warning(reason),
        reason,
        note,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gang_that_others_give_way_to_is_told_so_once_whether_or_not_its_reason_changes() {
        let told = |uid: &str, reason, kept_since| Told {
            uid: uid.to_owned(),
            reason,
            kept_since,
        };
        let before = told("a", Reason::WaitingForRelease, None);
        let kept = told("a", Reason::WaitingForRelease, Some(7));
        let kept_again = told("a", Reason::WaitingForRelease, Some(9));
        for (known, now, expected) in [
            (None, &before, New::Reason),
            (Some(&before), &before, New::Nothing),
            (Some(&before), &kept, New::Victims),
            (Some(&kept), &kept, New::Nothing),
            (Some(&kept), &kept_again, New::Victims),
            // It is kept no more: the reason says what follows.
            (Some(&kept), &before, New::Nothing),
            (Some(&kept), &told("a", Reason::Admitted, None), New::Reason),
            (
                Some(&kept),
                &told("b", Reason::WaitingForRelease, Some(7)),
                New::Reason,
            ),
        ] {
            assert_eq!(now.differs_from(known), expected, "{known:?}, then {now:?}");
        }
    }

    /// What the Gang says one after the other, and who is told of the last. `None`: between two attempts it says nothing.
    #[test]
    fn what_others_tell_is_told_to_fewer_or_to_nobody_and_what_is_over_is_taken_back_where_it_was_told()
     {
        use Audience::{All, Gang, GangAndOwner, Nobody};
        use Reason::{
            Admitted, Adopted, Completed, Evicting, ExceedsMaxQuota, NodeLost, PlaceLost,
            PodFailed, Preempted, PreemptionNotice, Running, WaitingForQuota, WaitingForRelease,
        };

        let key = GangKey::new("ml", "train");
        let note = |tracker: &mut EventTracker, uid: &str, reason: Option<Reason>| {
            let told = reason.map(|reason| Told {
                uid: uid.to_owned(),
                reason,
                kept_since: None,
            });
            tracker.note(&key, uid, told)
        };
        let rows: [(&[Option<Reason>], Audience); 29] = [
            (&[Some(WaitingForQuota)], All),
            (&[Some(WaitingForQuota), Some(WaitingForRelease)], All),
            (&[Some(Admitted)], Gang),
            (&[None, Some(Admitted)], Gang),
            (&[Some(WaitingForQuota), Some(Admitted)], GangAndOwner),
            // Something was to be done about it.
            (&[Some(ExceedsMaxQuota), Some(Admitted)], All),
            (
                &[Some(ExceedsMaxQuota), Some(WaitingForQuota), Some(Admitted)],
                All,
            ),
            (
                &[Some(PlaceLost), None, Some(WaitingForQuota), Some(Admitted)],
                All,
            ),
            (&[Some(Evicting), Some(Admitted)], All),
            (&[Some(PlaceLost), Some(Admitted)], All),
            // In the next attempt it is admitted at once.
            (&[Some(WaitingForQuota), None, Some(Admitted)], GangAndOwner),
            (&[Some(Preempted), None, Some(Admitted)], All),
            (&[Some(PodFailed), None, Some(Admitted)], All),
            // It was taken back already.
            (
                &[Some(WaitingForQuota), Some(Admitted), None, Some(Admitted)],
                Gang,
            ),
            (&[Some(Running), None, Some(Admitted)], Gang),
            (&[Some(Running), Some(Admitted)], Gang),
            (&[Some(WaitingForQuota), None, Some(WaitingForQuota)], All),
            (&[Some(Adopted)], All),
            (&[Some(Adopted), None, Some(Admitted)], Gang),
            (&[Some(Running)], Nobody),
            (&[Some(Admitted), Some(Running)], Nobody),
            (
                &[Some(WaitingForQuota), Some(Admitted), Some(Running)],
                Nobody,
            ),
            // Nobody saw that it was admitted.
            (&[Some(WaitingForQuota), Some(Running)], All),
            (&[Some(Running), Some(NodeLost), Some(Running)], All),
            (&[Some(Running), Some(PreemptionNotice), Some(Running)], All),
            (&[Some(Running), Some(PreemptionNotice)], All),
            (&[Some(PreemptionNotice), Some(Preempted)], All),
            (&[Some(Running), Some(Completed)], Nobody),
            (&[Some(Completed)], Nobody),
        ];
        for (says, expected) in rows {
            let mut tracker = EventTracker::default();
            let mut last = None;
            for reason in says {
                last = Some(note(&mut tracker, "a", *reason));
            }
            assert_eq!(last, Some((New::Reason, expected)), "{says:?}");
            // What still stands is told once.
            let again = note(&mut tracker, "a", says.last().copied().flatten());
            assert_eq!(again.0, New::Nothing, "{says:?}");
            // Of another gang of that name nothing was told.
            let of_another = note(&mut tracker, "b", Some(Admitted));
            assert_eq!(of_another, (New::Reason, Gang), "{says:?}");
        }
    }

    #[test]
    fn a_note_is_cut_where_the_next_byte_is_too_many() {
        let written = |bytes: usize| {
            let text = "x".repeat(bytes);
            note_of_pod("ml", "p", "uid", Reason::Admitted, &text).note
        };
        let whole = written(NOTE_BYTES);
        assert_eq!((whole.len(), whole.ends_with('x')), (NOTE_BYTES, true));
        let cut = written(NOTE_BYTES + 1);
        assert!(cut.len() <= NOTE_BYTES && cut.ends_with('…'));
    }
}
