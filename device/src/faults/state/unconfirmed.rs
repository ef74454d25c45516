//! What is told of a time when nobody watched.
//!
//! The kernel's log goes back to the start of the machine, and it says of no fault that it is over. On a machine whose GPUs nobody has ever
//! watched, a fault in it may have been mended long ago; so may one that is known only by the place in which a GPU was in an earlier boot, which
//! may be another GPU's by now. Such a fault is nothing until the GPU was looked at: what it asks for itself, or the look finds, is a fault
//! (`docs/adr/0040-what-was-seen-before-anybody-watched-is-confirmed.md`).

use std::collections::BTreeMap;

use super::{
    super::{fault::Change, observation::Observation},
    Device, FaultState, GpuFaults, KnownAddresses, MOST_WAITING,
};

impl FaultState {
    /// Nobody has ever watched the GPUs of this machine: what its log tells until [`Self::log_is_read`] is from before.
    pub fn begin_first(&mut self) {
        self.is_log_old = true;
    }

    /// Whether what is read of the log is from before anybody watched.
    pub fn is_log_old(&self) -> bool {
        self.is_log_old
    }

    /// The log was read to its end: what it tells from here on is new.
    pub fn log_is_read(&mut self) {
        self.is_log_old = false;
    }

    /// Adds something that was seen before anybody watched: it is nothing until it is confirmed.
    pub fn observe_old(
        &mut self,
        device: &Device,
        observation: Observation,
        known: &KnownAddresses,
        now_unix_seconds: i64,
    ) {
        let uuid = known.uuid(device).map(str::to_owned);
        let name = uuid.unwrap_or_else(|| device.name());
        if !self.unconfirmed.contains_key(&name) && self.unconfirmed.len() >= MOST_WAITING {
            self.unattributed = self.unattributed.saturating_add(1);
            return;
        }
        self.sequence = self.sequence.saturating_add(1);
        let faults = self.unconfirmed.entry(name).or_default();
        let _ = faults.observe(observation, self.sequence, now_unix_seconds);
    }

    /// Whether a look at this GPU would confirm something, or not.
    pub fn is_unconfirmed(&self, uuid: &str, known: &KnownAddresses) -> bool {
        let mut names = self.unconfirmed.keys();
        names.any(|name| known.uuid(&Device::named(name)) == Some(uuid))
    }

    /// A GPU was looked at of which something old was seen. If it does not answer (`is_silent`) what was seen stands. If it does, what is
    /// wrong with it it has said itself, and the old is an anomaly that was of interest.
    pub fn confirm(&mut self, uuid: &str, known: &KnownAddresses, is_silent: bool) -> Change {
        let mut change = Change::None;
        let unconfirmed = std::mem::take(&mut self.unconfirmed);
        for (name, faults) in unconfirmed {
            if known.uuid(&Device::named(&name)) == Some(uuid) {
                let faults = if is_silent {
                    faults
                } else {
                    faults.into_earlier()
                };
                self.gpus.entry(uuid.to_owned()).or_default().merge(faults);
                change = Change::New;
            } else {
                self.unconfirmed.insert(name, faults);
            }
        }
        change
    }

    /// What has to be confirmed by a look at the GPU, by the name that it was seen with.
    pub fn unconfirmed(&self) -> &BTreeMap<String, GpuFaults> {
        &self.unconfirmed
    }
}
