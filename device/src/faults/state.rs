//! What is wrong with the GPUs of a node: all that was seen and is not mended.
//!
//! A pure value, which is kept on disk and survives restarts and reboots.
//!
//! * A GPU is its UUID. What is seen of a GPU that is not known (yet) waits under the name that it was seen with, and taints nobody.
//! * Nothing that was seen is dropped, and nothing grows with how often it is seen: there is a fault for each GPU, class and slice.
//! * A fault goes only by a recovery that heals its class, is newer than all that was seen of it, and after which the GPU was found in
//!   order (S7). Newer is a matter of order, not of clocks: observations are numbered, and a recovery carries the number that was
//!   reached before it was begun. An observation that comes late counts as new, which is safe.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    address::PciAddress,
    class::FaultClass,
    condition::Condition,
    fault::{Change, Fault, GpuFaults},
    observation::Observation,
    recovery::{NotValid, Recovery, Validation},
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
    /// How much was seen of GPUs for which there was no place.
    unattributed: u64,
}

impl FaultState {
    /// The machine runs with this boot id. Of an earlier boot the faults stay: that the machine was started anew is a proof for some
    /// of them once the GPU was found in order.
    pub fn begin_boot(&mut self, boot_id: &str) {
        if self.boot_id.as_deref() == Some(boot_id) {
            return;
        }
        self.boot_id = Some(boot_id.to_owned());
        self.boot_mark = self.sequence;
        self.log = None;
        for faults in self.gpus.values_mut().chain(self.waiting.values_mut()) {
            faults.forget_links();
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
        let faults = if let Some(uuid) = known.uuid(device) {
            self.gpus.entry(uuid.to_owned()).or_default()
        } else {
            let name = match device {
                Device::Uuid(uuid) => uuid.clone(),
                Device::Address(address) => address.to_string(),
            };
            if !self.waiting.contains_key(&name) && self.waiting.len() >= MOST_WAITING {
                self.unattributed = self.unattributed.saturating_add(1);
                return Change::Again;
            }
            self.waiting.entry(name).or_default()
        };
        let sequence = self.sequence.saturating_add(1);
        let change = faults.observe(observation, sequence, now_unix_seconds);
        if change != Change::None {
            self.sequence = sequence;
        }
        change
    }

    /// What a look at a GPU found.
    pub fn look(
        &mut self,
        uuid: &str,
        condition: &Condition,
        known: &KnownAddresses,
        now_unix_seconds: i64,
    ) -> Change {
        let links = condition.active_links;
        let stay_down = self
            .gpus
            .get_mut(uuid)
            .is_some_and(|faults| faults.links_stay_down(links, now_unix_seconds));
        let best = self.gpus.get(uuid).and_then(GpuFaults::best_links);
        let device = Device::Uuid(uuid.to_owned());
        let mut change = Change::None;
        for observation in condition.observations(best.filter(|_| stay_down)) {
            change = change.max(self.observe(&device, observation, known, now_unix_seconds));
        }
        if condition.active_links > best && known.uuid(&device).is_some() {
            let faults = self.gpus.entry(uuid.to_owned()).or_default();
            faults.note_links(condition.active_links);
            change = change.max(Change::Again);
        }
        change
    }

    /// These GPUs are known now: what waited for them is theirs.
    pub fn adopt(&mut self, known: &KnownAddresses) -> Change {
        let mut change = Change::None;
        let waiting = std::mem::take(&mut self.waiting);
        for (name, faults) in waiting {
            let address = PciAddress::parse(&name);
            let device = address.map_or_else(|| Device::Uuid(name.clone()), Device::Address);
            match known.uuid(&device) {
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
        let healed = faults.retain(|fault| {
            let is_over = recovery.proof.heals(fault.class)
                && recovery.scope.holds(fault.scope)
                && fault.newest <= recovery.mark;
            !is_over
        });
        if recovery.proof == super::Proof::Operator {
            faults.forget_links();
        }
        self.forget_empty();
        Ok(healed)
    }

    /// Forgets all that was seen of a GPU which is not there any more, by its UUID, or by the name that it waits under. How many faults and
    /// anomalies that were.
    pub fn forget(&mut self, name: &str) -> usize {
        let forgotten = [self.gpus.remove(name), self.waiting.remove(name)];
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
            .map(|faults| faults.retain(|fault| !is_old(fault)))
            .sum();
        self.forget_empty();
        faded
    }

    fn forget_empty(&mut self) {
        self.gpus.retain(|_, faults| !faults.is_empty());
        self.waiting.retain(|_, faults| !faults.is_empty());
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
