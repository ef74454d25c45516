//! What waits for the administrator's command to find a GPU in order.
//!
//! A fault is over by a proof, and by a look that finds the GPU in order. Where there is a command that checks a GPU, it has the last word: what the
//! proof would mend waits until the command has been run, and ended well. It is over only what had been seen when the command was begun: the number
//! that the observations had reached then bounds the proof (S7). A word that was given counts for the look that follows it, and for no other.
//!
//! Two recoveries need none: that of a slice which nobody uses any more, for nothing was done with the hardware, and others may use the rest of the
//! GPU, for which the command would have to wait; and a person's word, who had all means to look.
//!
//! Nothing of that is kept: a driver that starts anew has the command run again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{MutexGuard, PoisonError},
};

use muster_device::faults::{Proof, Recovery, Scope};

use super::Eye;

/// The GPUs that wait.
#[derive(Debug, Default)]
pub(super) struct Validations {
    due: BTreeSet<String>,
    /// Found in order, by the number that the observations had reached before.
    passed: BTreeMap<String, u64>,
    /// How often in a row the command has found it otherwise.
    failed: BTreeMap<String, u32>,
}

/// Whether the command has a say in it.
pub(super) fn is_asked(recovery: &Recovery) -> bool {
    let is_whole = recovery.scope == Scope::Gpu;
    match recovery.proof {
        Proof::LinksWork | Proof::Reset | Proof::Reboot => true,
        Proof::Idle => is_whole,
        Proof::Operator => false,
    }
}

impl Eye {
    fn validations(&self) -> MutexGuard<'_, Validations> {
        let validations = self.validations.lock();
        validations.unwrap_or_else(PoisonError::into_inner)
    }

    /// The word of the command about a GPU, which counts once: what the observations had reached before it was run.
    pub(super) fn take_validation(&self, uuid: &str) -> Option<u64> {
        self.validations().passed.remove(uuid)
    }

    /// Notes whether a GPU waits for the command.
    pub(super) fn note_validation_due(&self, uuid: &str, is_due: bool) {
        let mut validations = self.validations();
        if is_due {
            validations.due.insert(uuid.to_owned());
        } else {
            validations.due.remove(uuid);
            validations.failed.remove(uuid);
        }
    }

    /// UUIDs of the GPUs that wait for the command.
    pub(in crate::faults) fn awaiting_validation(&self) -> BTreeSet<String> {
        self.validations().due.clone()
    }

    /// Whether a GPU waits for the command to be run for the first time since it does.
    pub(in crate::faults) fn awaits_first_validation(&self, uuid: &str) -> bool {
        let validations = self.validations();
        validations.due.contains(uuid) && !validations.failed.contains_key(uuid)
    }

    /// The command found a GPU in order. It was begun when the observations had reached this number. Blocking: the GPU is looked at.
    pub(in crate::faults) fn validated(&self, uuid: &str, mark: u64) {
        let mut validations = self.validations();
        validations.failed.remove(uuid);
        validations.passed.insert(uuid.to_owned(), mark);
        drop(validations);
        self.look_at_one(uuid);
        // If the look brought nothing, it is worth nothing later.
        self.validations().passed.remove(uuid);
    }

    /// The command found a GPU out of order; how often in a row by now.
    pub(in crate::faults) fn not_validated(&self, uuid: &str) -> u32 {
        let mut validations = self.validations();
        let failed = validations.failed.entry(uuid.to_owned()).or_default();
        *failed = failed.saturating_add(1);
        *failed
    }

    /// A GPU was reset: what the command said of it before is past.
    pub(super) fn forget_failed_validations(&self, uuid: &str) {
        self.validations().failed.remove(uuid);
    }
}
