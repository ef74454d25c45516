//! What the driver keeps on disk, as the machine sees it.

use std::{collections::BTreeMap, fmt};

use muster_device::Placement;
use serde::{Deserialize, Serialize};

use super::{claim::ClaimRef, slice::RecordedSlice};

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

/// Compute slices of a whole GPU, however many it has.
const ALL_COMPUTE_SLICES: u8 = u8::MAX;

/// An exclusive interval of one physical GPU. What is compared is the hardware, never a name: names
/// of a slice and of its parent differ, and indices move between boots.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Unit {
    /// UUID of the physical GPU.
    pub gpu: String,
    /// Which part of its memory.
    pub slices: Slices,
    /// How many of its compute slices. They have no place: the hardware gives each memory slice that it gives away what is
    /// left of them, so that where memory does not overlap compute does not either.
    #[serde(
        default = "all_compute_slices",
        skip_serializing_if = "is_all_compute_slices"
    )]
    pub compute_slices: u8,
}

fn all_compute_slices() -> u8 {
    ALL_COMPUTE_SLICES
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes fields by reference"
)]
fn is_all_compute_slices(slices: &u8) -> bool {
    *slices == ALL_COMPUTE_SLICES
}

impl Unit {
    /// A whole GPU.
    pub fn whole(gpu: impl Into<String>) -> Self {
        Self {
            gpu: gpu.into(),
            slices: Slices::ALL,
            compute_slices: ALL_COMPUTE_SLICES,
        }
    }

    /// A slice of a GPU. A number that no GPU has counts as the largest there is.
    pub fn slice(gpu: impl Into<String>, placement: Placement, compute_slices: u32) -> Self {
        let bounded = |number: u32| u8::try_from(number).unwrap_or(u8::MAX);
        Self {
            gpu: gpu.into(),
            slices: Slices {
                start: bounded(placement.start),
                end: bounded(placement.end()),
            },
            compute_slices: bounded(compute_slices),
        }
    }

    /// Whether both need the same hardware.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.gpu == other.gpu
            && self.slices.start < other.slices.end
            && other.slices.start < self.slices.end
    }

    /// Whether it needs memory slices of this placement on its GPU.
    pub fn overlaps_placement(&self, placement: Placement) -> bool {
        u32::from(self.slices.start) < placement.end()
            && placement.start < u32::from(self.slices.end)
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
    /// Recorded as intended; slices and the CDI file may or may not be there.
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
    /// What it is permitted as, if that is not its UID: kube-scheduler made it after its pod was admitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_name: Option<String>,
    /// UIDs of the pods that the claim was reserved for when it was prepared, then of those permitted to share it.
    #[serde(default)]
    pub pods: Vec<String>,
    /// Its devices of this driver, in the order of the allocation.
    #[serde(default)]
    pub devices: Vec<RecordedDevice>,
}

impl Record {
    /// What is left of it when it is given back for a call that goes on: the call's mark.
    pub(super) fn mark_alone(&self) -> Self {
        Self {
            state: RecordState::Waiting,
            pods: Vec::new(),
            devices: Vec::new(),
            ..self.clone()
        }
    }

    /// What stands for it in permits and charges.
    pub(super) fn permitted_as(&self) -> &str {
        self.by_name.as_deref().unwrap_or(&self.claim.uid)
    }

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
    /// The slice that it is; `None` for a whole GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<RecordedSlice>,
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
    /// Under which name what was lost is being rebuilt, if anybody has begun since it was lost: unique among all losses of the node. Never there
    /// beside [`Disk::acknowledged`].
    pub rebuild: Option<String>,
    /// Records by claim UID.
    pub records: BTreeMap<String, Record>,
}
