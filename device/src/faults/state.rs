//! What is wrong with the GPUs of a node: all that was seen and is not mended.
//!
//! A pure value, which is kept on disk and survives restarts and reboots.
//!
//! * A GPU is its UUID. What is seen of a GPU that is not known (yet) waits under the name that it was seen with, and taints nobody.
//! * Nothing that was seen is dropped, and nothing grows with how often it is seen: there is a fault for each GPU, class and slice.
//! * What the log tells of a time when nobody watched waits until the GPU was looked at ([`FaultState::confirm`]).
//! * A fault goes only by a recovery that heals its class, is newer than all that was seen of it, and after which the GPU was found in
//!   order (S7). Newer is a matter of order, not of clocks: observations are numbered, and a recovery carries the number that was
//!   reached before it was begun. An observation that comes late counts as new, which is safe.

mod look;
mod merge;
mod resets;
mod unconfirmed;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    address::PciAddress,
    catalogue::Catalogue,
    class::FaultClass,
    fault::{Change, Fault, GpuFaults},
    observation::Observation,
    recovery::{NotValid, Proof, Recovery, Validation},
};
use crate::mig::Placement;

/// Most GPUs that are remembered without being known. Beyond it what is seen of further ones is only counted: no machine has so many.
pub const MOST_WAITING: usize = 64;
/// For how long an anomaly is told after it was last seen.
pub const ANOMALY_SECONDS: i64 = 24 * 60 * 60;

/// Which GPU something was seen of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// This one.
    Uuid(String),
    /// The one that is plugged in there.
    Address(PciAddress),
}

impl Device {
    /// The one of this name.
    fn named(name: &str) -> Self {
        let address = PciAddress::parse(name);
        address.map_or_else(|| Self::Uuid(name.to_owned()), Self::Address)
    }

    fn name(&self) -> String {
        match self {
            Self::Uuid(uuid) => uuid.clone(),
            Self::Address(address) => address.to_string(),
        }
    }
}

/// Whether a name says only where something is plugged in.
fn is_place(name: &str) -> bool {
    PciAddress::parse(name).is_some()
}

/// The GPUs that are known, by UUID, and where they are plugged in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownAddresses(pub BTreeMap<String, Option<PciAddress>>);

impl KnownAddresses {
    /// The UUID of a GPU, if it is known. Of two that are said to be in one place nobody knows which is meant.
    pub fn uuid(&self, device: &Device) -> Option<&str> {
        match device {
            Device::Uuid(uuid) => self.0.get_key_value(uuid).map(|(uuid, _)| uuid.as_str()),
            Device::Address(address) => {
                let mut there = self.0.iter().filter(|(_, at)| **at == Some(*address));
                match (there.next(), there.next()) {
                    (Some((uuid, _)), None) => Some(uuid),
                    _ => None,
                }
            }
        }
    }
}

/// How far the kernel's log was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LogPosition {
    /// Number of the last record that was read.
    pub sequence: u64,
}

/// What is wrong with the GPUs of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FaultState {
    boot_id: Option<String>,
    /// Number of the last observation.
    sequence: u64,
    /// What it was when the machine was started.
    boot_mark: u64,
    /// How far the log of this boot was read.
    log: Option<LogPosition>,
    gpus: BTreeMap<String, GpuFaults>,
    /// What was seen of GPUs that are not known.
    waiting: BTreeMap<String, GpuFaults>,
    /// What was seen of GPUs and has to be confirmed by a look at them: it may be over, or have been another GPU.
    unconfirmed: BTreeMap<String, GpuFaults>,
    /// Whether what is read of the log is from before anybody watched.
    is_log_old: bool,
    /// How much was seen of GPUs for which there was no place.
    unattributed: u64,
    /// How often it was written, by whichever instance: who finds another number than he left writes over nothing.
    generation: u64,
}

impl FaultState {
    /// The machine runs with this boot id. Of an earlier boot the faults stay: that the machine was started anew is a proof for some
    /// of them once the GPU was found in order.
    ///
    /// Where a GPU is plugged in is no name for it in another boot: it may have been exchanged. What is known by such a name alone is
    /// confirmed by a look at the GPU that is there now; and if none was there for a whole boot, it is forgotten.
    pub fn begin_boot(&mut self, boot_id: &str) {
        if self.boot_id.as_deref() == Some(boot_id) {
            return;
        }
        self.is_log_old = false;
        self.boot_id = Some(boot_id.to_owned());
        self.boot_mark = self.sequence;
        self.log = None;
        self.unconfirmed.retain(|name, _| !is_place(name));
        let waiting = std::mem::take(&mut self.waiting);
        for (name, faults) in waiting {
            let there = if is_place(&name) {
                &mut self.unconfirmed
            } else {
                &mut self.waiting
            };
            there.insert(name, faults);
        }
        let all = self.gpus.values_mut().chain(self.waiting.values_mut());
        for faults in all.chain(self.unconfirmed.values_mut()) {
            faults.begin_boot();
        }
    }

    /// Number that the observations have reached: to be taken before a recovery is begun.
    pub fn mark(&self) -> u64 {
        self.sequence
    }

    /// The same for the reboot that this boot began with.
    pub fn boot_mark(&self) -> u64 {
        self.boot_mark
    }

    /// How far the kernel's log of this boot was read.
    pub fn log(&self) -> Option<LogPosition> {
        self.log
    }

    /// The log was read this far. What it said before is to be observed first: read twice it does no harm.
    pub fn read_log(&mut self, position: LogPosition) {
        self.log = Some(position);
    }

    /// How much was seen of GPUs for which there was no place.
    pub fn unattributed(&self) -> u64 {
        self.unattributed
    }

    /// GPUs that are not known and of which something was seen, by the name that it was seen with.
    pub fn waiting(&self) -> &BTreeMap<String, GpuFaults> {
        &self.waiting
    }

    /// The faults and anomalies of each GPU, by UUID.
    pub fn gpus(&self) -> &BTreeMap<String, GpuFaults> {
        &self.gpus
    }

    /// Adds something that was seen.
    pub fn observe(
        &mut self,
        device: &Device,
        observation: Observation,
        known: &KnownAddresses,
        now_unix_seconds: i64,
    ) -> Change {
        let sequence = self.sequence.saturating_add(1);
        let Some(faults) = self.faults_of(device, known) else {
            return Change::Again;
        };
        let change = faults.observe(observation, sequence, now_unix_seconds);
        if change != Change::None {
            self.sequence = sequence;
        }
        change
    }

    /// The same, and counts it if there is a rule about how often it comes.
    pub fn observe_by(
        &mut self,
        catalogue: &Catalogue,
        device: &Device,
        observation: Observation,
        known: &KnownAddresses,
        now_unix_seconds: i64,
    ) -> Change {
        let change = self.observe(device, observation, known, now_unix_seconds);
        let repeat = catalogue.repeat(observation.cause);
        // What lasts, and was there before, did not come again.
        let Some(repeat) = repeat.filter(|_| change != Change::None) else {
            return change;
        };
        let Some(faults) = self.faults_of(device, known) else {
            return change;
        };
        match faults.count(&observation, &repeat, now_unix_seconds) {
            Some(more) => change.max(self.observe(device, more, known, now_unix_seconds)),
            None => change,
        }
    }

    /// What is remembered of a GPU; `None`, and counted, if there is no place for one that is not known.
    fn faults_of(&mut self, device: &Device, known: &KnownAddresses) -> Option<&mut GpuFaults> {
        if let Some(uuid) = known.uuid(device) {
            return Some(self.gpus.entry(uuid.to_owned()).or_default());
        }
        let name = device.name();
        if !self.waiting.contains_key(&name) && self.waiting.len() >= MOST_WAITING {
            self.unattributed = self.unattributed.saturating_add(1);
            return None;
        }
        Some(self.waiting.entry(name).or_default())
    }

    /// These GPUs are known now: what waited for them is theirs.
    pub fn adopt(&mut self, known: &KnownAddresses) -> Change {
        let mut change = Change::None;
        let waiting = std::mem::take(&mut self.waiting);
        for (name, faults) in waiting {
            match known.uuid(&Device::named(&name)) {
                Some(uuid) => {
                    self.gpus.entry(uuid.to_owned()).or_default().merge(faults);
                    change = Change::New;
                }
                None => {
                    self.waiting.insert(name, faults);
                }
            }
        }
        change
    }

    /// A recovery was done, and this is how the GPU is found now. How many faults are over; an error says why none is.
    pub fn recover(
        &mut self,
        uuid: &str,
        recovery: &Recovery,
        validation: &Validation<'_>,
    ) -> Result<usize, NotValid> {
        let Some(faults) = self.gpus.get_mut(uuid) else {
            return Ok(0);
        };
        validation.check(recovery.proof)?;
        let healed = faults.retain(|fault| !recovery.mends(fault));
        match recovery.proof {
            Proof::Operator => {
                faults.forget_links();
                faults.forget_occurrences();
                faults.forget_need_of_reset();
            }
            Proof::Reset => faults.reset_is_taken_up(recovery.mark),
            Proof::Idle | Proof::LinksWork | Proof::Reboot => {}
        }
        self.forget_empty();
        Ok(healed)
    }

    /// Whether [`Self::recover`] would be the end of a fault, anomalies aside.
    pub fn would_mend(&self, uuid: &str, recovery: &Recovery, validation: &Validation<'_>) -> bool {
        let faults = self.gpus.get(uuid).map(GpuFaults::all);
        let mut faults = faults.unwrap_or_default().iter();
        validation.check(recovery.proof).is_ok()
            && faults.any(|fault| fault.class.is_fault() && recovery.mends(fault))
    }

    /// Forgets all that was seen of a GPU which is not there any more, by its UUID, or by the name that it waits under. How many faults and
    /// anomalies that were.
    pub fn forget(&mut self, name: &str) -> usize {
        let forgotten = [
            self.gpus.remove(name),
            self.waiting.remove(name),
            self.unconfirmed.remove(name),
        ];
        let forgotten = forgotten.iter().flatten();
        forgotten.map(|faults| faults.all().len()).sum()
    }

    /// Anomalies fade. Faults do not, however old they are.
    pub fn fade(&mut self, now_unix_seconds: i64) -> usize {
        let is_old = |fault: &Fault| {
            let quiet = now_unix_seconds.saturating_sub(fault.last_seen_unix_seconds);
            !fault.class.is_fault() && quiet >= ANOMALY_SECONDS
        };
        let all = self.gpus.values_mut().chain(self.waiting.values_mut());
        let faded: usize = all
            .map(|faults| {
                faults.fade_occurrences(now_unix_seconds);
                faults.seen_by(now_unix_seconds);
                faults.retain(|fault| !is_old(fault))
            })
            .sum();
        self.forget_empty();
        faded
    }

    fn forget_empty(&mut self) {
        self.gpus.retain(|_, faults| !faults.is_empty());
        self.waiting.retain(|_, faults| !faults.is_empty());
        self.unconfirmed.retain(|_, faults| !faults.is_empty());
    }

    /// The worst fault that keeps what is new off a device: a GPU, or a slice of it. NVLink is told apart ([`Self::link_fault`]).
    pub fn fault(&self, uuid: &str, part: Option<Placement>) -> Option<&Fault> {
        let is_meant = |class: FaultClass| class.is_fault() && class != FaultClass::Link;
        self.gpus.get(uuid)?.worst(part, is_meant)
    }

    /// A fault of the NVLinks of a device. A slice has none.
    pub fn link_fault(&self, uuid: &str, part: Option<Placement>) -> Option<&Fault> {
        if part.is_some() {
            return None;
        }
        self.gpus
            .get(uuid)?
            .worst(None, |class| class == FaultClass::Link)
    }

    /// The worst fault for which the whole node is closed to what is new, and the GPU that has it. Only GPUs that are listed count: of one that
    /// the machine came up without nothing is to come that would cost the others anything, and nobody could look at it to believe it mended.
    pub fn node_fault(&self, is_listed: impl Fn(&str) -> bool) -> Option<(&str, &Fault)> {
        let listed = self.gpus.iter().filter(|(uuid, _)| is_listed(uuid));
        let found = listed.filter_map(|(uuid, faults)| {
            let fault = faults.worst(None, FaultClass::closes_node)?;
            Some((uuid.as_str(), fault))
        });
        found.max_by_key(|(_, fault)| fault.class)
    }
}

#[cfg(test)]
mod tests;
