//! Taking over: raise the epoch, then read everything.
//!
//! In this order. What is read after the raise contains every write that an older leader got through
//! before it; what an older leader writes later is conditional on versions that this leader moves before it
//! takes anything back. Read first, an admission that was completed in between would be missed.
//!
//! **Why two leaders never both think that they are the newest.** A leader is who raised **the** Ledger: the one
//! with the UID and the epoch that it remembers ([`Raised`]). Raises of one Ledger are ordered by its
//! compare-and-swap. Should the Ledger be deleted, creations of the next one are ordered by the API server, which
//! takes one of them; and a leader that finds no Ledger, or one of another UID or epoch, wherever it looks, is not the
//! newest and exits. So no leader reads a lower epoch as a licence: an older leader may carry a higher number only
//! until it looks.
//!
//! **Why no epoch is ever given twice**, also when a Ledger that carried the highest of them is gone: the first epoch
//! of a Ledger is above the resourceVersion under which it was made, and each raise adds one. One raise is one write,
//! and every write moves the resourceVersion of the whole store up, so an epoch never exceeds the resourceVersion at
//! which it was given: whatever is created later begins above it. Where the store itself went back (a restore of an
//! old snapshot, or of single objects from a backup), what was read shows it: a Gang or `NodeDevices` with an epoch
//! that is not below the own, while the Ledger is still as raised. Then the epoch is raised again, above what was seen.
//!
//! What a lost Ledger takes with it, and how that is made good, is told in [`super::ledger_recovery`].

use std::collections::BTreeSet;

use muster_api::{Ledger, LedgerSpec};

use crate::{
    ApiRequest, Effect, EffectId, Now, Outcome,
    in_flight::InFlightWrites,
    injected_bug::{InjectedBug, InjectedBugs},
    objects::ledger_object,
};
use muster_cluster::object::{Kind, Object};

/// The Ledger as this leader raised it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Raised {
    /// The epoch.
    pub(crate) epoch: i64,
    /// UID of the Ledger.
    uid: String,
}

impl Raised {
    fn of(ledger: &Ledger) -> Self {
        Self {
            epoch: ledger.spec.leader_epoch,
            uid: ledger.metadata.uid.clone().unwrap_or_default(),
        }
    }

    /// Whether it still is that Ledger, and nobody raised it since.
    pub(crate) fn stands_in(&self, ledger: &Ledger) -> bool {
        *self == Self::of(ledger)
    }
}

/// A takeover.
#[derive(Debug)]
pub(crate) struct Takeover {
    stage: Stage,
    raised: Option<Raised>,
    /// The highest epoch that was seen on other objects than the Ledger, though it should be below the Ledger's.
    seen: i64,
}

/// How far it has come.
#[derive(Debug)]
enum Stage {
    /// The Ledger is to be read, not before the time given.
    Begin { at: u64 },
    /// The Ledger is being read.
    ReadingLedger(EffectId),
    /// There is no Ledger: one is to be made.
    Create,
    /// The Ledger is being made.
    Creating(EffectId),
    /// The epoch is to be raised above that of the Ledger as it was read.
    Raise(Box<Ledger>),
    /// The epoch is being raised.
    Raising(EffectId),
    /// Everything is being read.
    Reading {
        owed: BTreeSet<Kind>,
        asked: Vec<(EffectId, Kind)>,
        /// Not before this time; lists that failed are not asked for in a tight loop.
        at: u64,
    },
    /// Everything was read; whether the epoch is the highest is to be judged.
    Read,
    /// Done.
    Leading,
    /// Somebody else raised the Ledger, or made another.
    Superseded,
}

impl Takeover {
    /// Before anything is known.
    pub(crate) fn begin() -> Self {
        Self {
            stage: Stage::Begin { at: 0 },
            raised: None,
            seen: 0,
        }
    }

    /// The Ledger as it was raised, once it was.
    pub(crate) fn raised(&self) -> Option<&Raised> {
        self.raised.as_ref()
    }

    /// The epoch, once everything was read.
    pub(crate) fn leading_epoch(&self) -> Option<i64> {
        let raised = self.raised.as_ref()?;
        matches!(self.stage, Stage::Leading).then_some(raised.epoch)
    }

    /// Whether everything was read, and [`Takeover::conclude`] is owed.
    pub(crate) fn is_read(&self) -> bool {
        matches!(self.stage, Stage::Read)
    }

    /// Whether somebody else turned out to lead.
    pub(crate) fn is_superseded(&self) -> bool {
        matches!(self.stage, Stage::Superseded)
    }

    /// Leads, unless an epoch was seen on a Gang or `NodeDevices` that is not below the own.
    pub(crate) fn conclude(&mut self, highest_seen: i64, bugs: InjectedBugs) {
        let own = self.raised.as_ref().map_or(0, |raised| raised.epoch);
        let unheeded = bugs.has(InjectedBug::NoFence) || bugs.has(InjectedBug::EpochNotRaised);
        self.stage = if highest_seen < own || unheeded {
            Stage::Leading
        } else {
            self.seen = highest_seen;
            Stage::Begin { at: 0 }
        };
    }

    /// What is to be asked for next.
    pub(crate) fn poll(
        &mut self,
        flights: &mut InFlightWrites,
        bugs: InjectedBugs,
        now: Now,
    ) -> Vec<Effect> {
        let seconds = now.monotonic_seconds;
        if let Stage::Raise(ledger) = &self.stage
            && bugs.has(InjectedBug::EpochNotRaised)
            && ledger.spec.leader_epoch > 0
        {
            self.raised = Some(Raised::of(ledger));
            self.stage = Stage::read_all();
        }
        let write = match &mut self.stage {
            Stage::Begin { at } if *at <= seconds => ApiRequest::ReadObject {
                key: ledger_object(),
            },
            // Without an epoch nobody leads by it.
            Stage::Create => ApiRequest::CreateLedger {
                spec: LedgerSpec::default(),
            },
            Stage::Raise(ledger) => raise(ledger, self.seen),
            Stage::Reading { owed, asked, at } if *at <= seconds => {
                let owed = std::mem::take(owed);
                return owed
                    .into_iter()
                    .map(|kind| {
                        let id = flights.number();
                        asked.push((id, kind));
                        let write = ApiRequest::ReadAll { kind };
                        Effect::new(id, write)
                    })
                    .collect();
            }
            _ => return Vec::new(),
        };
        let id = flights.number();
        self.stage = match &write {
            ApiRequest::ReadObject { .. } => Stage::ReadingLedger(id),
            ApiRequest::CreateLedger { .. } => Stage::Creating(id),
            _ => {
                self.raised = None;
                Stage::Raising(id)
            }
        };
        vec![Effect::new(id, write)]
    }

    /// Takes an answer, if it is one of its own.
    pub(crate) fn settle(
        &mut self,
        id: EffectId,
        outcome: &Outcome,
        retry_seconds: u64,
        now: Now,
    ) -> bool {
        let later = Stage::Begin {
            at: now.monotonic_seconds + retry_seconds,
        };
        self.stage = match &mut self.stage {
            Stage::ReadingLedger(effect) if *effect == id => match outcome {
                Outcome::Done(Some(Object::Ledger(ledger))) => self.read(ledger),
                Outcome::NotFound if self.raised.is_some() => Stage::Superseded,
                Outcome::NotFound => Stage::Create,
                _ => later,
            },
            // Whoever made it: it is read, and raised, like any other.
            Stage::Creating(effect) if *effect == id => match outcome {
                Outcome::Done(_) => Stage::Begin { at: 0 },
                _ => later,
            },
            Stage::Raising(effect) if *effect == id => match outcome {
                Outcome::Done(Some(Object::Ledger(ledger))) => {
                    self.raised = Some(Raised::of(ledger));
                    Stage::read_all()
                }
                // Without a clear yes the Ledger is read again and raised above whatever it says then:
                // an epoch that nobody uses harms nobody.
                _ => later,
            },
            Stage::Reading { owed, asked, at } => {
                let Some(place) = asked.iter().position(|(effect, _)| *effect == id) else {
                    return false;
                };
                let (_, kind) = asked.swap_remove(place);
                if !matches!(outcome, Outcome::Done(_)) {
                    owed.insert(kind);
                    *at = now.monotonic_seconds + retry_seconds;
                }
                if !owed.is_empty() || !asked.is_empty() {
                    return true;
                }
                Stage::Read
            }
            _ => return false,
        };
        true
    }

    /// Raised already, and read again: an epoch was seen that may be a newer leader's.
    fn read(&self, ledger: &Ledger) -> Stage {
        match &self.raised {
            Some(raised) if !raised.stands_in(ledger) => Stage::Superseded,
            _ => Stage::Raise(Box::new(ledger.clone())),
        }
    }
}

impl Stage {
    fn read_all() -> Self {
        Self::Reading {
            owed: Kind::ALL.into_iter().collect(),
            asked: Vec::new(),
            at: 0,
        }
    }
}

/// One compare-and-swap; the intents stay as they are. Where the Ledger is not the one under which the epochs that
/// are known were given, what was committed to that one is not known either: sequence 0 says so
/// ([`super::ledger_recovery`]).
fn raise(ledger: &Ledger, seen: i64) -> ApiRequest {
    let resource_version = ledger.metadata.resource_version.clone().unwrap_or_default();
    let mut spec = ledger.spec.clone();
    let given = if spec.leader_epoch == 0 {
        seen.max(resource_version.parse().unwrap_or_default())
    } else {
        seen
    };
    if given >= spec.leader_epoch {
        spec.sequence = 0;
    }
    spec.leader_epoch = spec.leader_epoch.max(given).saturating_add(1);
    ApiRequest::ReplaceLedger {
        resource_version,
        spec,
    }
}
