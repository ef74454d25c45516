//! Taking over: raise the epoch, then read everything.
//!
//! In this order. What is read after the raise contains every write that an older leader got through
//! before it; what an older leader writes later is conditional on versions that this leader moves before it
//! takes anything back. Read first, an admission that was completed in between would be missed.

use std::collections::BTreeSet;

use muster_api::LedgerSpec;

use super::{
    Effect, EffectId, Now, Outcome, Write,
    flight::Flights,
    mutation::{Mutation, Mutations},
    objects::ledger_object,
};
use crate::object::{Kind, Object};

/// How far the takeover has come.
#[derive(Debug)]
pub(super) enum Takeover {
    /// The Ledger is to be read, not before the time given.
    Begin { at: u64 },
    /// The Ledger is being read.
    ReadingLedger(EffectId),
    /// The epoch is to be raised above that of the Ledger as it was read (version and content).
    Raise(Option<(String, LedgerSpec)>),
    /// The epoch is being raised.
    Raising { effect: EffectId, epoch: i64 },
    /// Everything is being read.
    Reading {
        epoch: i64,
        owed: BTreeSet<Kind>,
        asked: Vec<(EffectId, Kind)>,
        /// Not before this time; lists that failed are not asked for in a tight loop.
        at: u64,
    },
    /// Done.
    Leading { epoch: i64 },
}

impl Takeover {
    /// Before anything is known.
    pub(super) fn begin() -> Self {
        Self::Begin { at: 0 }
    }

    /// The epoch, once everything was read.
    pub(super) fn leading_epoch(&self) -> Option<i64> {
        match self {
            Self::Leading { epoch } => Some(*epoch),
            _ => None,
        }
    }

    /// What is to be asked for next.
    pub(super) fn poll(
        &mut self,
        flights: &mut Flights,
        mutations: Mutations,
        now: Now,
    ) -> Vec<Effect> {
        let seconds = now.monotonic_seconds;
        match self {
            Self::Begin { at } if *at <= seconds => {
                let id = flights.number();
                *self = Self::ReadingLedger(id);
                vec![Effect {
                    id,
                    write: Write::ReadObject {
                        key: ledger_object(),
                    },
                }]
            }
            Self::Raise(read) if mutations.has(Mutation::EpochNotRaised) && read.is_some() => {
                let epoch = read.as_ref().map_or(0, |(_, spec)| spec.leader_epoch);
                *self = Self::read_all(epoch);
                self.poll(flights, mutations, now)
            }
            Self::Raise(read) => {
                let effect = flights.number();
                let (write, epoch) = raise(read.take());
                *self = Self::Raising { effect, epoch };
                vec![Effect { id: effect, write }]
            }
            Self::Reading {
                owed, asked, at, ..
            } if *at <= seconds => {
                let mut effects = Vec::new();
                for kind in std::mem::take(owed) {
                    let id = flights.number();
                    asked.push((id, kind));
                    effects.push(Effect {
                        id,
                        write: Write::ReadAll { kind },
                    });
                }
                effects
            }
            _ => Vec::new(),
        }
    }

    /// Takes an answer, if it is one of its own.
    pub(super) fn settle(
        &mut self,
        id: EffectId,
        outcome: &Outcome,
        retry_seconds: u64,
        now: Now,
    ) -> bool {
        let later = now.monotonic_seconds + retry_seconds;
        match self {
            Self::ReadingLedger(effect) if *effect == id => {
                *self = match outcome {
                    Outcome::Done(Some(Object::Ledger(ledger))) => Self::Raise(
                        ledger
                            .metadata
                            .resource_version
                            .clone()
                            .map(|version| (version, ledger.spec.clone())),
                    ),
                    Outcome::NotFound => Self::Raise(None),
                    _ => Self::Begin { at: later },
                };
                true
            }
            Self::Raising { effect, epoch } if *effect == id => {
                // Without a clear yes the Ledger is read again and raised above whatever it says then:
                // an epoch that nobody uses harms nobody.
                *self = match outcome {
                    Outcome::Done(_) => Self::read_all(*epoch),
                    _ => Self::Begin { at: later },
                };
                true
            }
            Self::Reading {
                epoch,
                owed,
                asked,
                at,
            } => {
                let Some(place) = asked.iter().position(|(effect, _)| *effect == id) else {
                    return false;
                };
                let (_, kind) = asked.swap_remove(place);
                if !matches!(outcome, Outcome::Done(_)) {
                    owed.insert(kind);
                    *at = later;
                }
                if owed.is_empty() && asked.is_empty() {
                    *self = Self::Leading { epoch: *epoch };
                }
                true
            }
            _ => false,
        }
    }

    fn read_all(epoch: i64) -> Self {
        Self::Reading {
            epoch,
            owed: Kind::ALL.into_iter().collect(),
            asked: Vec::new(),
            at: 0,
        }
    }
}

/// One compare-and-swap; the intents stay as they are.
fn raise(read: Option<(String, LedgerSpec)>) -> (Write, i64) {
    match read {
        None => {
            let spec = LedgerSpec {
                leader_epoch: 1,
                ..LedgerSpec::default()
            };
            (Write::CreateLedger { spec }, 1)
        }
        Some((resource_version, mut spec)) => {
            spec.leader_epoch += 1;
            let epoch = spec.leader_epoch;
            let write = Write::ReplaceLedger {
                resource_version,
                spec,
            };
            (write, epoch)
        }
    }
}
