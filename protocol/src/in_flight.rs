//! Writes that are under way: at most one per object.
//!
//! A write is over only when the **view** shows what came of it. Until then nothing else is written to
//! the object, and nothing that depends on it is taken back ([`InFlightWrites::busy`]), so that no decision is
//! made on what was seen before the leader's own write.
//!
//! An unanswered write may still be applied, at any time, as long as the object has the version that the
//! write is conditional on. It is therefore repeated word by word until it is answered: of two equal
//! writes at most one is applied, and after the second is answered the first can do nothing any more.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    ApiRequest, Effect, EffectId, Now, Outcome,
    effect::Refusable,
    in_vain::WritesInVain,
    objects::{resource_version, stored},
};
use muster_cluster::{
    index::Index,
    object::{Kind, Object, ObjectKey},
    table::Table,
};

/// How long a created object may take to show up in the watch, in seconds. Afterwards it is asked for: a watch
/// that was interrupted, and found the object gone again, never shows it. As long as it exists the watch is
/// waited for, however long it lags: what was written is never assumed to be undone. What is read is not
/// observed, since the watch may still tell, later, that an object of that name from before is gone.
pub(crate) const SHOWN_WITHIN_SECONDS: u64 = 30;
/// How often the API server may refuse to have a pod or a Job changed before that is taken for its last word: what waited for the change goes on
/// without it.
pub const REFUSED_AT_MOST: u32 = 3;
/// How long that is believed until it is tried once more, in seconds; each time twice as long, up to 16 times.
const FIRST_REFUSED_SECONDS: u64 = 60;

/// The writes under way.
#[derive(Debug, Default)]
pub(crate) struct InFlightWrites {
    next: u64,
    by_object: Table<ObjectKey, Flight>,
    by_effect: BTreeMap<EffectId, ObjectKey>,
    /// Names of Gangs that are being made, by namespace and group.
    being_made: BTreeMap<(String, String), BTreeSet<String>>,
    /// Namespaces and groups of Gangs that are not being made any more, since that was asked last.
    no_longer_made: BTreeSet<(String, String)>,
    /// Writes whose object was seen, or that were answered, since they were looked at last.
    moved: BTreeSet<ObjectKey>,
    /// When a write is to be looked at by time alone.
    due: BTreeMap<u64, BTreeSet<ObjectKey>>,
    /// Objects that nothing may be written to, and that count as being written for ever.
    untouchable: BTreeSet<ObjectKey>,
    refused: BTreeMap<(ObjectKey, Refusable), Refusals>,
    pub(crate) in_vain: WritesInVain,
    retry_seconds: u64,
}

/// How often the API server refused a change of a pod or a Job.
#[derive(Debug, Default)]
struct Refusals {
    times: u32,
    answer: String,
    /// Until when that is taken for its last word.
    until: u64,
}

#[derive(Debug)]
struct Flight {
    write: Arc<ApiRequest>,
    /// The version that the write is conditional on; `None` for a creation.
    base: Option<String>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Not answered yet.
    Sent,
    /// Done; over once the view shows this version, or a later one.
    Done { version: Option<u64>, until: u64 },
    /// Created, but not shown in time: it is being asked whether it exists.
    Asked { version: Option<u64> },
    /// No answer: to be sent again, as it is.
    Repeat { at: u64 },
    /// In conflict, or refused: over once the view has another version than the write saw, or at that time.
    Pause { until: u64 },
}

/// What an answer means beyond the object that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It was not a write of this table (or of one long over).
    Foreign,
    /// Nothing beyond.
    Taken,
    /// It is done, and not seen yet: until then it tells nobody anything.
    Awaited,
    /// Somebody else wrote what only a leader writes: the Ledger is to be read again, it may be a new leader.
    Conflict,
}

impl InFlightWrites {
    /// An empty table.
    pub(crate) fn new(retry_seconds: u64) -> Self {
        Self {
            retry_seconds,
            ..Self::default()
        }
    }

    /// A number for an effect that is not a write of this table.
    pub(crate) fn number(&mut self) -> EffectId {
        self.next += 1;
        EffectId(self.next)
    }

    /// Whether a write of the object is under way: what the view shows of it may be from before.
    pub(crate) fn busy(&self, key: &ObjectKey) -> bool {
        self.by_object.contains_key(key) || self.untouchable.contains(key)
    }

    /// Whether a Gang of another name is being made for a group. Until it is shown, or was made in vain, the group is to have no other: a pod that
    /// counts as older than those before it gives a Gang that is not there yet another name.
    pub(crate) fn is_another_being_made(&self, namespace: &str, group: &str, name: &str) -> bool {
        let group = (namespace.to_owned(), group.to_owned());
        let made = self.being_made.get(&group);
        made.is_some_and(|names| names.iter().any(|it| it != name))
    }

    fn note_being_made(&mut self, write: &ApiRequest, is_so: bool) {
        let ApiRequest::CreateGang { gang } = write else {
            return;
        };
        let (Some(namespace), Some(name), Some(group)) = (
            gang.metadata.namespace.as_ref(),
            gang.metadata.name.as_ref(),
            gang.spec.group.as_ref(),
        ) else {
            return;
        };
        let group = (namespace.clone(), group.clone());
        let names = self.being_made.entry(group.clone()).or_default();
        if is_so {
            names.insert(name.clone());
            return;
        }
        names.remove(name);
        if names.is_empty() {
            self.being_made.remove(&group);
        }
        self.no_longer_made.insert(group);
    }

    /// Namespaces and groups of Gangs that are not being made any more, since this was asked last: what waited for that
    /// ([`InFlightWrites::is_another_being_made`]) is to be looked at.
    pub(crate) fn take_no_longer_made(&mut self) -> BTreeSet<(String, String)> {
        std::mem::take(&mut self.no_longer_made)
    }

    /// Whether a write of the object may still be applied, or was and is not shown yet.
    pub(crate) fn is_sent(&self, key: &ObjectKey) -> bool {
        self.by_object
            .get(key)
            .is_some_and(|flight| !matches!(flight.stage, Stage::Pause { .. }))
    }

    /// Whether a write is under way that changes more of a Gang than what people read: its attempt, what it holds or is
    /// proposed by that, whether it ended. Of a Gang that holds nothing.
    pub(crate) fn changes(&self, gang: &ObjectKey) -> bool {
        self.untouchable.contains(gang)
            || self
                .by_object
                .get(gang)
                .is_some_and(|flight| match &*flight.write {
                    ApiRequest::ReplaceGangStatus { tells, .. } => !tells,
                    _ => true,
                })
    }

    /// The last word of the API server that it does not let the object be changed like that, and until when it is taken for
    /// that.
    pub(crate) fn refused(&self, key: &ObjectKey, change: Refusable) -> Option<(&str, u64)> {
        let refusals = self.refused.get(&(key.clone(), change))?;
        let last = refusals.times >= REFUSED_AT_MOST;
        last.then_some((refusals.answer.as_str(), refusals.until))
    }

    /// Whether the API server refused to have the object changed, be it once.
    pub(crate) fn was_refused(&self, key: &ObjectKey) -> bool {
        self.refusals_of(key).next().is_some()
    }

    /// Whether the API server refused to have the object changed like that, be it once.
    pub(crate) fn was_refused_once(&self, key: &ObjectKey, change: Refusable) -> bool {
        self.refused.contains_key(&(key.clone(), change))
    }

    fn refusals_of(&self, key: &ObjectKey) -> impl Iterator<Item = &(ObjectKey, Refusable)> {
        let of = self.refused.range((key.clone(), Refusable::Pod)..);
        of.map(|(of, _)| of).take_while(move |(of, _)| of == key)
    }

    /// Whether nothing may be written to the object.
    pub(crate) fn set_untouchable(&mut self, key: &ObjectKey, untouchable: bool) {
        if untouchable {
            self.untouchable.insert(key.clone());
        } else {
            self.untouchable.remove(key);
        }
    }

    /// An object was seen, or is gone.
    pub(crate) fn saw(&mut self, key: &ObjectKey, is_gone: bool) {
        if self.by_object.contains_key(key) {
            self.moved.insert(key.clone());
        }
        if is_gone {
            let refused: Vec<_> = self.refusals_of(key).cloned().collect();
            for of in refused {
                self.refused.remove(&of);
            }
            self.in_vain.forget(key);
        }
    }

    /// Sends a write, unless one of that object is under way, or the same was written in vain a short while ago. Events are
    /// not kept: losing one harms nobody.
    pub(crate) fn send(&mut self, index: &Index, write: ApiRequest, now: Now) -> Option<Effect> {
        let Some(key) = write.target() else {
            let id = self.number();
            return Some(Effect::new(id, write));
        };
        let second = now.monotonic_seconds;
        if self.busy(&key) || self.in_vain.holds_back(&key, &write, second) {
            return None;
        }
        let id = self.number();
        self.by_effect.insert(id, key.clone());
        let base = resource_version(index, &key).map(str::to_owned);
        let effect = Effect::new(id, write);
        self.note_being_made(&effect.write, true);
        self.by_object.insert(
            key,
            Flight {
                write: Arc::clone(&effect.write),
                base,
                stage: Stage::Sent,
            },
        );
        Some(effect)
    }

    /// What an effect writes, while its answer is awaited.
    pub(crate) fn target(&self, id: EffectId) -> Option<&ObjectKey> {
        self.by_effect.get(&id)
    }

    /// Takes the answer of a write.
    pub(crate) fn settle(
        &mut self,
        index: &Index,
        id: EffectId,
        outcome: &Outcome,
        now: Now,
    ) -> Answer {
        let Some(key) = self.by_effect.remove(&id) else {
            return Answer::Foreign;
        };
        let Some(flight) = self.by_object.get_mut(&key) else {
            return Answer::Foreign;
        };
        let seconds = now.monotonic_seconds;
        if let Stage::Asked { version } = flight.stage {
            self.moved.insert(key.clone());
            self.settle_asked(&key, version, outcome, seconds);
            return Answer::Taken;
        }
        self.in_vain
            .note_not_done(&key, &flight.write, outcome, seconds);
        let pause = |seconds_long: u64| Stage::Pause {
            until: seconds + seconds_long,
        };
        let (stage, answer) = match outcome {
            Outcome::Done(object) => {
                let version = object.as_ref().and_then(version_of);
                let until = seconds + SHOWN_WITHIN_SECONDS;
                if let Some(change) = flight.write.refusable() {
                    self.refused.remove(&(key.clone(), change));
                }
                flight.stage = Stage::Done { version, until };
                if !flight.is_over(resource_version(index, &key), seconds) {
                    // It is looked at once it is seen ([`InFlightWrites::saw`]), or when it was not for so long.
                    self.due.entry(until).or_default().insert(key);
                    return Answer::Awaited;
                }
                (Stage::Done { version, until }, Answer::Taken)
            }
            // If it is done after all, it is done to the object that was judged.
            Outcome::Unknown if flight.write.is_judged_anew() => {
                (pause(self.retry_seconds), Answer::Taken)
            }
            Outcome::Unknown => {
                let at = seconds + self.retry_seconds;
                (Stage::Repeat { at }, Answer::Taken)
            }
            Outcome::Conflict | Outcome::NotFound => {
                (pause(self.retry_seconds), meaning_of_conflict(key.kind))
            }
            Outcome::Refused(answer) => {
                if let Some(change) = flight.write.refusable() {
                    let refusals = self.refused.entry((key.clone(), change)).or_default();
                    refusals.times = refusals.times.saturating_add(1);
                    refusals.answer.clone_from(answer);
                    muster_cluster::text::truncate(&mut refusals.answer, REFUSAL_BYTES);
                    let doublings = refusals.times.saturating_sub(REFUSED_AT_MOST).min(4);
                    refusals.until = seconds + (FIRST_REFUSED_SECONDS << doublings);
                }
                (pause(10 * self.retry_seconds), Answer::Taken)
            }
        };
        flight.stage = stage;
        self.moved.insert(key);
        answer
    }

    fn settle_asked(
        &mut self,
        key: &ObjectKey,
        version: Option<u64>,
        outcome: &Outcome,
        seconds: u64,
    ) {
        if let Some(flight) = self.by_object.get_mut(key) {
            flight.stage = if matches!(outcome, Outcome::NotFound) {
                Stage::Pause { until: seconds }
            } else {
                let until = seconds + SHOWN_WITHIN_SECONDS;
                Stage::Done { version, until }
            };
        }
    }

    /// Drops what the view shows to be over, sends again what was not answered, and asks for what is not shown. Returns
    /// also the objects whose write is over.
    pub(crate) fn advance(&mut self, index: &Index, now: Now) -> (Vec<Effect>, Vec<ObjectKey>) {
        let seconds = now.monotonic_seconds;
        while let Some(entry) = self.due.first_entry().filter(|it| *it.key() <= seconds) {
            self.moved.extend(entry.remove());
        }
        let (mut again, mut over) = (Vec::new(), Vec::new());
        for key in std::mem::take(&mut self.moved) {
            let Some(flight) = self.by_object.get_mut(&key) else {
                continue;
            };
            if flight.is_over(resource_version(index, &key), seconds) {
                if let Stage::Done { version, .. } = flight.stage {
                    let is_it = |seen: &Object| version.is_some() && version_of(seen) == version;
                    let stored = stored(index, &key).filter(is_it);
                    self.in_vain
                        .compare(&key, &flight.write, stored.as_ref(), seconds);
                }
                if let Some(flight) = self.by_object.remove(&key) {
                    self.note_being_made(&flight.write, false);
                }
                over.push(key);
                continue;
            }
            let (stage, write) = match flight.stage {
                Stage::Repeat { at } if at <= seconds => (Stage::Sent, Arc::clone(&flight.write)),
                Stage::Done { version, until } if until <= seconds && flight.base.is_none() => {
                    let key = key.clone();
                    (
                        Stage::Asked { version },
                        Arc::new(ApiRequest::ReadObject { key }),
                    )
                }
                Stage::Repeat { at: due }
                | Stage::Pause { until: due }
                | Stage::Done { until: due, .. }
                    if due > seconds =>
                {
                    self.due.entry(due).or_default().insert(key);
                    continue;
                }
                _ => continue,
            };
            self.next += 1;
            let id = EffectId(self.next);
            self.by_effect.insert(id, key);
            flight.stage = stage;
            again.push(Effect { id, write });
        }
        (again, over)
    }

    /// The second at which a write is to be looked at by time alone.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.due.keys().next().copied()
    }

    /// Whether a write was answered, or its object seen, since [`InFlightWrites::advance`].
    pub(crate) fn has_moved(&self) -> bool {
        !self.moved.is_empty()
    }
}

/// Longest answer of a refusal that is kept, in bytes.
const REFUSAL_BYTES: usize = 512;

/// What only a leader writes, and finds changed, may have been written by another one. Everybody writes to pods; and what
/// people read is nobody's proof.
fn meaning_of_conflict(kind: Kind) -> Answer {
    match kind {
        Kind::Ledger | Kind::Gang | Kind::NodeDevices => Answer::Conflict,
        _ => Answer::Taken,
    }
}

impl Flight {
    /// Whether nothing of it can happen any more and the view shows what did.
    fn is_over(&self, shown: Option<&str>, seconds: u64) -> bool {
        let moved = shown != self.base.as_deref();
        match self.stage {
            Stage::Sent | Stage::Asked { .. } => false,
            Stage::Repeat { .. } => moved,
            Stage::Pause { until } => moved || until <= seconds,
            Stage::Done { version, .. } => match (version, shown.map(parse)) {
                (Some(version), Some(Some(shown))) => shown >= version,
                // A deletion, or an opaque version: any change shows it.
                _ => moved,
            },
        }
    }
}

/// Resource versions of one kind are ordered numbers (Kubernetes 1.35, KEP-5504).
fn parse(version: &str) -> Option<u64> {
    version.parse().ok()
}

/// The resourceVersion of an object as a number.
pub(crate) fn version_of(object: &Object) -> Option<u64> {
    parse(object.metadata().resource_version.as_deref()?)
}
