//! What the driver keeps on disk, as the machine sees it.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use super::claim::ClaimRef;

/// Memory slices of a GPU, `start..end`. A whole GPU is all of them, however many it has, so that a slice
/// and its parent always collide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Slices {
    /// First slice.
    pub start: u8,
    /// One past the last slice.
    pub end: u8,
}

impl Slices {
    /// The whole GPU.
    pub const ALL: Self = Self {
        start: 0,
        end: u8::MAX,
    };
}

/// An exclusive interval of one physical GPU. What is compared is the hardware, never a name: names
/// of a slice and of its parent differ, and indices move between boots.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Unit {
    /// UUID of the physical GPU.
    pub gpu: String,
    /// Which part of it.
    pub slices: Slices,
}

impl Unit {
    /// A whole GPU.
    pub fn whole(gpu: impl Into<String>) -> Self {
        Self {
            gpu: gpu.into(),
            slices: Slices::ALL,
        }
    }

    /// Whether both need the same hardware.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.gpu == other.gpu
            && self.slices.start < other.slices.end
            && other.slices.start < self.slices.end
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.slices == Slices::ALL {
            formatter.write_str(&self.gpu)
        } else {
            let Slices { start, end } = self.slices;
            write!(formatter, "{} memory slices {start}..{end}", self.gpu)
        }
    }
}

/// How far the work on a claim has come. A crash leaves any of these behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecordState {
    /// A Prepare call waits; nothing is held yet. This is the mark that Unprepare takes.
    Waiting,
    /// Recorded as intended; the CDI file may or may not be there.
    Preparing,
    /// Complete: the kubelet may have been told, and containers may have the devices.
    Prepared,
    /// Being given back.
    Unpreparing,
}

/// What is on disk about one claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Which claim. Name and namespace are kept in every state: the claim object may be gone when they are needed.
    pub claim: ClaimRef,
    /// How far it has come.
    pub state: RecordState,
    /// Which Prepare call works on it, or was answered by it last: `instance/number`. A later call of the same claim
    /// replaces it, and the earlier one then records nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
    /// UIDs of the pods that the claim was reserved for when it was prepared, then of those permitted to share it.
    #[serde(default)]
    pub pods: Vec<String>,
    /// Its devices of this driver, in the order of the allocation.
    #[serde(default)]
    pub devices: Vec<RecordedDevice>,
}

impl Record {
    /// Whether it holds its Units.
    pub fn holds(&self) -> bool {
        self.state != RecordState::Waiting
    }

    /// The Units that nobody else may have.
    pub fn units(&self) -> impl Iterator<Item = &Unit> {
        self.devices
            .iter()
            .filter(|device| self.holds() && !device.admin_access)
            .map(|device| &device.unit)
    }
}

/// One device of a recorded claim, with all that a CDI file needs, so that it can be written again
/// without NVML.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedDevice {
    /// Name of the main request.
    pub request: String,
    /// Pool that it was allocated from.
    pub pool: String,
    /// Its name in the pool.
    pub device: String,
    /// The hardware.
    pub unit: Unit,
    /// Minor number of the device node, good for this boot.
    pub minor: u32,
    /// Allocated for administrative access: it takes no part in exclusivity.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub admin_access: bool,
}

/// Up to where this node has promised to hear.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Acknowledged {
    /// UID of the `NodeDevices` object; `None` if there was none when it was asked for, uncached.
    pub uid: Option<String>,
    /// Its generation.
    pub generation: i64,
    /// Whether it enforced permits. Remembered if the object is lost.
    pub enforce: bool,
}

/// The whole state of a node's driver, as loaded under the lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// Boot id under which the records were made.
    pub boot_id: Option<String>,
    /// `None`: never known, or lost. See rule 5.
    pub acknowledged: Option<Acknowledged>,
    /// Records by claim UID.
    pub records: BTreeMap<String, Record>,
}
