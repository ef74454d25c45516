//! Slices of GPUs: what is recorded of them, and how they come and go.
//!
//! # In which order
//!
//! ```text
//! Prepare    record Preparing (profile, placement) | make | record ids and UUID, CDI file, record Prepared | answer
//! it fails                                         | remove what was made | CDI file and record go         | answer
//! Unprepare  record Unpreparing, CDI file goes     | remove               | record goes                    | answer
//! ```
//!
//! Between the bars the lock is free: to make or remove a slice takes about a second, and where hardware hangs until the limit
//! of NVML. The record says meanwhile what is to become of the slice, and holds its Unit. After a crash it still does: the
//! next call of the claim takes up what lies there, or removes it, and what was left `Unpreparing` is removed unasked.
//!
//! # Whose slice it is
//!
//! Who a slice is is where it lies: GPU, placement, profile. Numbers of instances are given away again, and are good for the
//! CDI file only; the UUID tells one of ours from another that took its place. An intent is recorded only for a place that is
//! empty, or that the record of this claim named before ([`Foreign`] is refused, with its place). From then on what lies at
//! that very place, with that very profile, belongs to the record: but for what lies there before anything was made for it.
//!
//! Between the look at the place and the change the call waits for its turn, and for the lock of the GPU, and an administrator may make the very
//! slice that it is about to have. Of a place that was empty when it was recorded that is told when the slice is to be made: it is refused, and
//! stays when the Prepare is undone. Only where the driver crashes in just this moment, or the claim is unprepared in it, nobody knows any
//! more, and it is taken up or removed like one of ours. What an administrator made is used as it is where
//! they are his ([`SliceMode::Static`]), and never removed. What was made for a claim before they became his stays the claim's: its record named it.
//!
//! # Who else may change them
//!
//! Several calls in this instance, and another instance during an update. Whoever makes or removes a slice holds the **lock of
//! its GPU**, reads the record under it, and does nothing unless the record allows it:
//!
//! * A slice is **made** only under a record that is `Preparing` with the call's own mark. An Unprepare has put
//!   `Unpreparing` there before it asks for the removal: a call that comes to the GPU after that finds it, and one
//!   that came before has made what is removed then.
//! * A slice is **removed** only under a record that is `Unpreparing`, or `Preparing` with the mark of the call that failed.
//!   A removal that comes late finds that the claim was prepared again, and leaves the new slice alone; without a record
//!   somebody else has finished.
//!
//! Two slices of different GPUs are made at the same time; a GPU that hangs holds up its own alone. Done twice, the second
//! finds the slice there, or gone.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use muster_device::{MigInstance, MigProfile, Placement};
use serde::{Deserialize, Serialize};

use super::{
    disk::{Record, RecordState},
    effect::{Fence, LiveSlices},
};

/// Who makes a slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SliceMode {
    /// This driver, as claims ask for them.
    #[default]
    Dynamic,
    /// An administrator. They are used as they are.
    Static,
}

/// A slice, as it is recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedSlice {
    /// Name of its profile, e.g. `1g.10gb`.
    pub profile: String,
    /// NVML's number of the profile of its GPU instance.
    pub gpu_instance_profile: u32,
    /// Where it lies on its GPU.
    pub placement: Placement,
    /// It was there before, and stays: an administrator's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stays: bool,
    /// What is known of it since it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made: Option<MadeSlice>,
}

/// What is known of a slice that is there. The numbers are good for this boot at most.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MadeSlice {
    /// Number of its GPU instance.
    pub gpu_instance: u32,
    /// Number of its compute instance.
    pub compute_instance: u32,
    /// Its UUID.
    pub uuid: String,
}

/// What came of an order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// The slices, in the order in which they were asked for.
    pub slices: Vec<MadeSlice>,
    /// Minor numbers of the GPUs, by UUID, as they are now: those from before a change of the MIG mode may be another's.
    pub minors: BTreeMap<String, u32>,
}

/// A slice that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceOrder {
    /// UUID of the GPU.
    pub gpu: String,
    /// What kind.
    pub profile: Arc<MigProfile>,
    /// Where.
    pub placement: Placement,
    /// Nothing lay there when the intent was recorded, and no record of the claim named the place before: what lies there now
    /// somebody else made.
    pub is_new: bool,
}

/// A slice that is to be removed, if it is there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlacedSlice {
    /// UUID of the GPU.
    pub gpu: String,
    /// NVML's number of the profile of its GPU instance.
    pub gpu_instance_profile: u32,
    /// Where.
    pub placement: Placement,
    /// Its UUID, as far as that is known. Another one that lies there is somebody else's.
    pub uuid: Option<String>,
}

/// What lies where a slice is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lying<'live> {
    /// Nothing: the place is free.
    Nothing,
    /// A slice of that very profile, at that very place.
    Same(&'live MigInstance),
    /// Something else that needs some of the same memory.
    Other(&'live MigInstance),
}

/// A slice that nobody here made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign<'live> {
    /// UUID of the GPU.
    pub gpu: &'live str,
    /// The slice.
    pub instance: &'live MigInstance,
}

impl MadeSlice {
    /// What is there, once it is complete. One of which the compute was divided is no slice for one claim.
    pub fn of(instance: &MigInstance) -> Option<Self> {
        Some(Self {
            gpu_instance: instance.gpu_instance,
            compute_instance: instance.compute_instance.filter(|_| !instance.is_divided)?,
            uuid: instance.uuid.clone()?,
        })
    }
}

impl SliceOrder {
    /// What lies at its place.
    pub fn lying<'live>(&self, live: &'live [MigInstance]) -> Lying<'live> {
        lying(self.profile.gpu_instance_profile, self.placement, live)
    }
}

/// What lies where a slice of this profile is wanted.
pub(super) fn lying(profile: u32, placement: Placement, live: &[MigInstance]) -> Lying<'_> {
    let mut near = live
        .iter()
        .filter(|instance| instance.placement.overlaps(placement));
    match near.next() {
        None => Lying::Nothing,
        Some(same) if same.profile == profile && same.placement == placement => Lying::Same(same),
        Some(other) => Lying::Other(other),
    }
}

impl PlacedSlice {
    /// Which of the slices that are there it is. One with another UUID than it is known by is somebody else's, and so is one
    /// of which the compute was divided.
    pub fn find<'live>(&self, live: &'live [MigInstance]) -> Option<&'live MigInstance> {
        live.iter().find(|instance| {
            let is_other = match (&self.uuid, &instance.uuid) {
                (Some(known), Some(found)) => known != found,
                _ => false,
            };
            instance.placement == self.placement
                && instance.profile == self.gpu_instance_profile
                && !is_other
                && !instance.is_divided
        })
    }
}

impl std::fmt::Display for PlacedSlice {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Placement { start, .. } = self.placement;
        let end = self.placement.end();
        write!(
            formatter,
            "the slice of profile {} at memory slices {start}..{end} of GPU {}",
            self.gpu_instance_profile, self.gpu
        )
    }
}

impl std::fmt::Display for Foreign<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let MigInstance {
            placement,
            gpu_instance,
            profile,
            uuid,
            ..
        } = self.instance;
        let uuid = uuid.as_deref().unwrap_or("without a compute instance");
        write!(
            formatter,
            "GPU instance {gpu_instance} of profile {profile} ({uuid}) lies at memory slices {}..{} of GPU {}",
            placement.start,
            placement.end(),
            self.gpu
        )
    }
}

impl Record {
    /// Whether a call may make slices under what is on disk about its claim.
    pub fn lets_make(record: Option<&Self>, fence: &Fence) -> bool {
        record.is_some_and(|record| {
            record.state == RecordState::Preparing && record.call == fence.call
        })
    }

    /// Whether slices may be removed under what is on disk about their claim.
    pub fn lets_remove(record: Option<&Self>, fence: &Fence) -> bool {
        record.is_some_and(|record| match record.state {
            RecordState::Unpreparing => true,
            RecordState::Preparing => fence.call.is_some() && record.call == fence.call,
            RecordState::Waiting | RecordState::Prepared => false,
        })
    }

    /// The slices that go when it is given back, each once: those that were made for it, or may have been.
    pub fn removable(&self) -> Vec<PlacedSlice> {
        let slices = self.devices.iter().filter(|device| !device.admin_access);
        let slices = slices.filter_map(|device| {
            let slice = device.slice.as_ref().filter(|slice| !slice.stays)?;
            Some(PlacedSlice {
                gpu: device.unit.gpu.clone(),
                gpu_instance_profile: slice.gpu_instance_profile,
                placement: slice.placement,
                uuid: slice.made.as_ref().map(|made| made.uuid.clone()),
            })
        });
        let once: BTreeSet<PlacedSlice> = slices.filter(|_| self.holds()).collect();
        once.into_iter().collect()
    }

    /// Whether it named this slice of this GPU: same place, same profile.
    pub fn names(&self, gpu: &str, instance: &MigInstance) -> bool {
        let named = |slice: &PlacedSlice| {
            slice.gpu == gpu && slice.find(std::slice::from_ref(instance)).is_some()
        };
        self.removable().iter().any(named)
    }

    /// The same with what was made, in the order in which it was asked for.
    pub(super) fn with_made(mut self, orders: &[SliceOrder], made: &Made) -> Self {
        for device in &mut self.devices {
            if let Some(minor) = made.minors.get(&device.unit.gpu) {
                device.minor = *minor;
            }
            let Some(slice) = device.slice.as_mut().filter(|slice| !slice.stays) else {
                continue;
            };
            let its = |order: &SliceOrder| {
                order.gpu == device.unit.gpu && order.placement == slice.placement
            };
            let position = orders.iter().position(its);
            if let Some(made) = position.and_then(|position| made.slices.get(position)) {
                slice.made = Some(made.clone());
            }
        }
        self
    }

    /// Whether all its slices are among those that are there. What cannot be listed may be: it is not taken for gone, and no answer goes by it
    /// ([`super::slices::unlisted_slices`]).
    pub(super) fn is_there(&self, live: &LiveSlices) -> bool {
        self.devices.iter().all(|device| {
            let Some(slice) = &device.slice else {
                return true;
            };
            let Some(Ok(live)) = live.get(&device.unit.gpu) else {
                return true;
            };
            let placed = PlacedSlice {
                gpu: device.unit.gpu.clone(),
                gpu_instance_profile: slice.gpu_instance_profile,
                placement: slice.placement,
                uuid: slice.made.as_ref().map(|made| made.uuid.clone()),
            };
            let found = placed.find(live).and_then(MadeSlice::of);
            found.is_some() && found == slice.made
        })
    }
}
