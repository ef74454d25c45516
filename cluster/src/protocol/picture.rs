//! What one poll looks at: the observations, what is under way, and the time.

use std::collections::BTreeMap;

use muster_api::{Gang, Intent};

use super::{Config, Now, flight::Flights, mutation::Mutations, objects};
use crate::{
    formed::{FormedGang, GangKey, Wait},
    index::Index,
    object::ObjectKey,
};

/// Read-only: what is owed is worked out of this alone, so a poll is a function of what is observed.
#[derive(Clone, Copy)]
pub(super) struct Picture<'a> {
    pub(super) config: &'a Config,
    pub(super) index: &'a Index,
    pub(super) flights: &'a Flights,
    pub(super) explanations: &'a Explanations,
    pub(super) clocks: &'a super::clocks::Clocks,
    pub(super) mutations: Mutations,
    /// The epoch of this leadership.
    pub(super) epoch: i64,
    pub(super) now: Now,
}

/// What the engine, or the commit, says about waiting gangs: place in the queue and reason, by UID of
/// the Gang.
pub(super) type Explanations = BTreeMap<String, (Option<i64>, Wait)>;

impl<'a> Picture<'a> {
    /// Whether a write of the object is under way.
    pub(super) fn busy(self, key: &ObjectKey) -> bool {
        self.flights.busy(key)
    }

    /// The intents of the Ledger, in the order of commitment.
    pub(super) fn intents(self) -> &'a [Intent] {
        objects::ledger(self.index).map_or(&[], |ledger| &ledger.intents)
    }

    /// The intent about a Gang, by its name: one that was made anew must not be touched while an intent
    /// of its predecessor is in the Ledger.
    pub(super) fn intent_of(self, key: &GangKey) -> Option<&'a Intent> {
        self.intents()
            .iter()
            .find(|intent| intent.namespace == key.namespace && intent.name == key.name)
    }

    /// The Gang that an intent is about, unless it was deleted or made anew.
    pub(super) fn gang_of(self, intent: &Intent) -> Option<&'a Gang> {
        let gang = self.index.gang(&objects::gang_key(intent))?;
        (gang.metadata.uid.as_deref() == Some(&intent.gang_uid)).then_some(gang)
    }

    /// The gang as its pods declare it.
    pub(super) fn formed(self, key: &GangKey) -> Option<&'a FormedGang> {
        self.index.formed_gang(key)
    }

    /// Whether an attempt of the Gang holds anything by its admission.
    pub(super) fn carries(gang: &Gang, intent: &Intent) -> bool {
        gang.status
            .as_ref()
            .is_some_and(|status| status.admission.is_some() && status.attempt == intent.attempt)
    }
}

/// Whether the Gang ended for good.
pub(super) fn has_ended(gang: &Gang) -> bool {
    use muster_api::GangPhase::{Failed, Finished};
    gang.status
        .as_ref()
        .is_some_and(|status| matches!(status.phase, Finished | Failed))
}

/// The attempt of a Gang; 0 while its status was never written.
pub(super) fn attempt(gang: &Gang) -> i64 {
    gang.status.as_ref().map_or(0, |status| status.attempt)
}
