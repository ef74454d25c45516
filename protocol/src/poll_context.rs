//! What one poll looks at: the observations, what is under way, and the time.

use std::collections::BTreeMap;

use muster_api::{Gang, Intent};

use crate::{Config, Now, in_flight::InFlightWrites, injected_bug::InjectedBugs, objects};
use muster_cluster::{
    formed::{FormedGang, GangKey, PendingReason},
    index::Index,
    object::ObjectKey,
};

/// Read-only: what is owed is worked out of this alone, so a poll is a function of what is observed.
#[derive(Clone, Copy)]
pub(crate) struct PollContext<'a> {
    pub(crate) config: &'a Config,
    pub(crate) index: &'a Index,
    pub(crate) flights: &'a InFlightWrites,
    pub(crate) explanations: &'a Explanations,
    pub(crate) clocks: &'a crate::clocks::Clocks,
    pub(crate) bugs: InjectedBugs,
    /// The epoch of this leadership.
    pub(crate) epoch: i64,
    pub(crate) now: Now,
}

/// What the engine, or the commit, says about waiting gangs: place in the queue and reason, by UID of
/// the Gang.
pub(crate) type Explanations = BTreeMap<String, (Option<i64>, PendingReason)>;

impl<'a> PollContext<'a> {
    /// Whether a write of the object is under way.
    pub(crate) fn busy(self, key: &ObjectKey) -> bool {
        self.flights.busy(key)
    }

    /// The intents of the Ledger, in the order of commitment.
    pub(crate) fn intents(self) -> &'a [Intent] {
        objects::ledger(self.index).map_or(&[], |ledger| &ledger.intents)
    }

    /// The intent about a Gang, by its name: one that was made anew must not be touched while an intent
    /// of its predecessor is in the Ledger.
    pub(crate) fn intent_of(self, key: &GangKey) -> Option<&'a Intent> {
        self.intents()
            .iter()
            .find(|intent| intent.namespace == key.namespace && intent.name == key.name)
    }

    /// The Gang that an intent is about, unless it was deleted or made anew.
    pub(crate) fn gang_of(self, intent: &Intent) -> Option<&'a Gang> {
        let gang = self.index.gang(&objects::gang_key(intent))?;
        (gang.metadata.uid.as_deref() == Some(&intent.gang_uid)).then_some(gang)
    }

    /// The gang as its pods declare it.
    pub(crate) fn formed(self, key: &GangKey) -> Option<&'a FormedGang> {
        self.index.formed_gang(key)
    }

    /// Whether an attempt of the Gang holds anything by its admission.
    pub(crate) fn carries(gang: &Gang, intent: &Intent) -> bool {
        gang.status
            .as_ref()
            .is_some_and(|status| status.admission.is_some() && status.attempt == intent.attempt)
    }
}

/// Whether the Gang ended for good.
pub(crate) fn has_ended(gang: &Gang) -> bool {
    use muster_api::GangPhase::{Failed, Finished};
    gang.status
        .as_ref()
        .is_some_and(|status| matches!(status.phase, Finished | Failed))
}

/// The attempt of a Gang; 0 while its status was never written.
pub(crate) fn attempt(gang: &Gang) -> i64 {
    gang.status.as_ref().map_or(0, |status| status.attempt)
}
