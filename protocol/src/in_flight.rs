//! Writes that are under way: at most one per object.
//!
//! A write is over only when the **view** shows what came of it. Until then nothing else is written to
//! the object, and nothing that depends on it is taken back ([`InFlightWrites::busy`]), so that no decision is
//! made on a picture from before the leader's own write.
//!
//! An unanswered write may still be applied, at any time, as long as the object has the version that the
//! write is conditional on. It is therefore repeated word by word until it is answered: of two equal
//! writes at most one is applied, and after the second is answered the first can do nothing any more.

use std::collections::{BTreeMap, BTreeSet};

use crate::{ApiRequest, Effect, EffectId, Now, Outcome, objects::resource_version};
use muster_cluster::{
    index::Index,
    object::{Object, ObjectKey},
};

/// How long a created object may take to show up in the watch, in seconds. Afterwards it is asked for: a watch
/// that was interrupted, and found the object gone again, never shows it. As long as it exists the watch is
/// waited for, however long it lags: what was written is never assumed to be undone. What is read is not
/// observed, since the watch may still tell, later, that an object of that name from before is gone.
const SHOWN_WITHIN_SECONDS: u64 = 30;

/// The writes under way.
#[derive(Debug, Default)]
pub(crate) struct InFlightWrites {
    next: u64,
    by_object: BTreeMap<ObjectKey, Flight>,
    by_effect: BTreeMap<EffectId, ObjectKey>,
    /// Objects of which only a part is seen: they count as written to for ever.
    undecodable: BTreeSet<ObjectKey>,
    retry_seconds: u64,
}

#[derive(Debug)]
struct Flight {
    write: ApiRequest,
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
    /// Somebody else wrote: the Ledger is to be read again, it may be a new leader.
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
        self.by_object.contains_key(key) || self.undecodable.contains(key)
    }

    /// Of which objects only a part is seen: all of them, each time.
    pub(crate) fn note_undecodable(&mut self, objects: BTreeSet<ObjectKey>) {
        self.undecodable = objects;
    }

    /// Sends a write, unless one of that object is under way. Events are not kept: losing one harms nobody.
    pub(crate) fn send(&mut self, index: &Index, write: ApiRequest) -> Option<Effect> {
        let Some(key) = write.target() else {
            let id = self.number();
            return Some(Effect { id, write });
        };
        if self.busy(&key) {
            return None;
        }
        let id = self.number();
        self.by_effect.insert(id, key.clone());
        let base = resource_version(index, &key).map(str::to_owned);
        self.by_object.insert(
            key,
            Flight {
                write: write.clone(),
                base,
                stage: Stage::Sent,
            },
        );
        Some(Effect { id, write })
    }

    /// Takes the answer of a write.
    pub(crate) fn settle(&mut self, id: EffectId, outcome: &Outcome, now: Now) -> Answer {
        let Some(key) = self.by_effect.remove(&id) else {
            return Answer::Foreign;
        };
        let Some(flight) = self.by_object.get_mut(&key) else {
            return Answer::Foreign;
        };
        let seconds = now.monotonic_seconds;
        if let Stage::Asked { version } = flight.stage {
            return self.settle_asked(&key, version, outcome, seconds);
        }
        let (stage, answer) = match outcome {
            Outcome::Done(object) => (
                Stage::Done {
                    version: object.as_ref().and_then(version_of),
                    until: seconds + SHOWN_WITHIN_SECONDS,
                },
                Answer::Taken,
            ),
            Outcome::Unknown => (
                Stage::Repeat {
                    at: seconds + self.retry_seconds,
                },
                Answer::Taken,
            ),
            Outcome::Conflict | Outcome::NotFound => (
                Stage::Pause {
                    until: seconds + self.retry_seconds,
                },
                Answer::Conflict,
            ),
            Outcome::Refused(_) => (
                Stage::Pause {
                    until: seconds + 10 * self.retry_seconds,
                },
                Answer::Taken,
            ),
        };
        flight.stage = stage;
        answer
    }

    fn settle_asked(
        &mut self,
        key: &ObjectKey,
        version: Option<u64>,
        outcome: &Outcome,
        seconds: u64,
    ) -> Answer {
        if matches!(outcome, Outcome::NotFound) {
            self.by_object.remove(key);
        } else if let Some(flight) = self.by_object.get_mut(key) {
            flight.stage = Stage::Done {
                version,
                until: seconds + SHOWN_WITHIN_SECONDS,
            };
        }
        Answer::Taken
    }

    /// Drops what the view shows to be over, sends again what was not answered, and asks for what is not shown.
    pub(crate) fn advance(&mut self, index: &Index, now: Now) -> Vec<Effect> {
        let seconds = now.monotonic_seconds;
        self.by_object
            .retain(|key, flight| !flight.is_over(resource_version(index, key), seconds));
        let mut again = Vec::new();
        for (key, flight) in &mut self.by_object {
            let (stage, write) = match flight.stage {
                Stage::Repeat { at } if at <= seconds => (Stage::Sent, flight.write.clone()),
                Stage::Done { version, until } if until <= seconds && flight.base.is_none() => {
                    let key = key.clone();
                    (Stage::Asked { version }, ApiRequest::ReadObject { key })
                }
                _ => continue,
            };
            self.next += 1;
            let id = EffectId(self.next);
            self.by_effect.insert(id, key.clone());
            flight.stage = stage;
            again.push(Effect { id, write });
        }
        again
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

fn version_of(object: &Object) -> Option<u64> {
    parse(object.metadata().resource_version.as_deref()?)
}
