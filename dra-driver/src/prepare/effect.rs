//! What the machine is given, and what it asks for.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use muster_api::{NodeDevices, NodeDevicesStatus, Reason};
use muster_device::{MigInstance, MigProfile, Placement, faults::FaultState};

use super::{
    claim::{Claim, ClaimRef},
    disk::{Acknowledged, Disk, Record, Unit},
    orphan::Orphan,
    sight::{Sight, Sights},
    slice::{Made, PlacedSlice, SliceMode, SliceOrder},
};

/// A point in time: milliseconds since an epoch that only the caller knows. Never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Milliseconds(pub u64);

/// A call of the kubelet, unique within one instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// A turn at the lock, unique within one instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// A removal of slices, unique within one instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RemovalId(pub u64);

/// A look at a GPU, unique within one instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LookId(pub u64);

/// The devices of this node, by name.
pub type Inventory = BTreeMap<String, DeviceFacts>;

/// What the machine knows of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// The hardware.
    pub unit: Unit,
    /// Its share of a GPU, in thousandths.
    pub gpus_milli: i64,
    /// Its memory in bytes.
    pub memory_bytes: i64,
    /// Minor number of its device node.
    pub minor: u32,
    /// It did not answer when it was last asked what it is: all this is from before, its minor number as well.
    pub silent: bool,
    /// It is a whole GPU that the fabric manager has not set up (yet): nothing starts on it.
    pub lacks_fabric: bool,
    /// Which slice of its GPU it is; `None` for a whole GPU.
    pub slice: Option<SliceFacts>,
}

/// What the machine knows of a device that is a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceFacts {
    /// What kind, as NVML describes it.
    pub profile: Arc<MigProfile>,
    /// Where it lies, or would lie.
    pub placement: Placement,
    /// Who makes it.
    pub mode: SliceMode,
}

/// The slices that exist, by UUID of their GPU; or why they could not be listed.
pub type LiveSlices = BTreeMap<String, Result<Vec<MigInstance>, String>>;

/// What an uncached read brought.
#[derive(Clone, Debug)]
pub enum Read<T> {
    /// The object.
    Found(T),
    /// There is none.
    Absent,
    /// No answer, with the cause. Says nothing about the object.
    Failed(String),
}

/// Something happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// Time has passed. Needed at [`super::Machine::wake_at`], harmless at any time.
    Tick,
    /// The devices of the node, at start and when they change. Nothing is prepared before.
    Inventory(Inventory),
    /// What is wrong with the GPUs, at start and when that changes.
    Faults(Arc<FaultState>),
    /// The watch shows this state of `NodeDevices`, or that there is none. May lag, may repeat.
    Observed(Option<Arc<NodeDevices>>),
    /// The kubelet wants a claim prepared. Answered by one [`Effect::Answer`].
    Prepare(CallId, ClaimRef),
    /// The kubelet wants a claim given back. Answered by one [`Effect::Answer`].
    Unprepare(CallId, ClaimRef),
    /// These records were orphans in two looks in a row, with no Unprepare: the kubelet has forgotten them.
    Orphaned(Vec<Orphan>),
    /// Answers [`Effect::ReadClaim`]: the object of that name, whatever its UID.
    ClaimRead(CallId, Read<Claim>),
    /// Answers [`Effect::ReadNodeDevices`].
    NodeDevicesRead(Read<Arc<NodeDevices>>),
    /// Answers [`Effect::Gather`]: records, in state `Prepared`, of what may have been prepared before the checkpoint
    /// was lost, as far as claims, CDI files and what runs tell.
    Gathered(Result<Vec<Record>, String>),
    /// Answers [`Effect::Look`].
    Looked(LookId, Sight),
    /// Answers [`Effect::Lock`]: the lock is held.
    Locked(Ticket, Locked),
    /// Answers [`Effect::Commit`]: the lock is released. After a failure the writes before it are done, it and
    /// those after it are not.
    Committed(Ticket, Result<(), DiskFailure>),
    /// Answers [`Effect::WriteStatus`].
    StatusWritten(StatusOutcome),
    /// Answers [`Effect::MakeSlices`]. After a failure any of the slices may be there.
    SlicesMade(CallId, Result<Made, SliceFailure>),
    /// Answers [`Effect::RemoveSlices`]. After a failure any of them may be left.
    SlicesRemoved(RemovalId, Result<(), SliceFailure>),
}

/// What is seen once the lock is held.
#[derive(Clone, Debug)]
pub struct Locked {
    /// The disk, read under the lock. A file that cannot be parsed is set aside by whoever loads it, and the
    /// acknowledged generation with it (rule 5).
    pub disk: Result<Disk, DiskFailure>,
    /// Answers the [`Probe`], if one was asked for: by the sights, and by what lives in cgroups now.
    pub in_use: Option<InUse>,
    /// The uncached read of `NodeDevices`, if it was asked for.
    pub node_devices: Option<Read<Arc<NodeDevices>>>,
    /// The uncached read of a claim, if it was asked for: the object of that name, whatever its UID. (Seldom there, and
    /// large.)
    pub claim: Option<Box<Read<Claim>>>,
    /// The slices of each GPU that was looked at, as far as that counts ([`super::Verified`]).
    pub live: LiveSlices,
}

/// A slice was not made, or not removed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SliceFailure {
    /// The stable reason, where there is one.
    pub reason: Option<Reason>,
    /// A slice that lies where one was to be made, and that somebody else has made since the place was seen to be empty: it stays.
    pub foreign: Option<Box<PlacedSlice>>,
    /// For people: the GPU, the place on it, and what is wrong there.
    pub message: String,
}

/// The disk did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct DiskFailure {
    /// The stable reason, if it is not the disk itself that failed.
    pub reason: Option<Reason>,
    /// For people: the file, and what is wrong with it.
    pub message: String,
}

impl DiskFailure {
    /// A failure of the disk itself.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            reason: None,
            message: message.into(),
        }
    }
}

/// Whose use of which hardware is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Of this claim, as it is recorded on disk: processes on its Units, and living containers of its pods.
    Recorded(String),
    /// Of these Units: processes on them.
    Units(Vec<Unit>),
}

/// What uses the hardware.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InUse {
    /// Nothing that can be seen.
    No,
    /// Something, in words for people.
    Yes(String),
    /// It could not be found out, with the cause. Counts as in use.
    Unknown(String),
}

/// What came of a status write.
#[derive(Clone, Debug)]
pub enum StatusOutcome {
    /// Written; the object as it stands now.
    Written(Arc<NodeDevices>),
    /// It is another object, or changed since (409), or gone.
    Conflict,
    /// No answer, or one that says nothing.
    Unknown(String),
}

/// Something to be done.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Look at a GPU, without any lock: how many changes of it have begun, who uses it, which slices it has. Then [`Input::Looked`]. At
    /// most one for each GPU is under way.
    Look {
        /// Which look.
        look: LookId,
        /// UUID of the GPU.
        gpu: String,
    },
    /// Take the lock, load the disk, and while holding it find out what is asked: nothing of it from NVML. Then
    /// [`Input::Locked`].
    Lock {
        /// Which turn.
        ticket: Ticket,
        /// Whether something is in use.
        probe: Option<Probe>,
        /// Whether `NodeDevices` is to be read uncached, under the lock.
        read_node_devices: bool,
        /// Which claim is to be read uncached, under the lock.
        read_claim: Option<ClaimRef>,
        /// What was seen before, to be verified under the lock ([`super::Verified`]), and to answer the probe.
        sights: Sights,
    },
    /// Perform the writes in order, stop at the first that fails, release the lock. Then [`Input::Committed`].
    Commit {
        /// Which turn.
        ticket: Ticket,
        /// The writes; none only releases the lock.
        writes: Vec<Write>,
    },
    /// Read a claim, uncached, by namespace and name.
    ReadClaim(CallId, ClaimRef),
    /// Read this node's `NodeDevices`, uncached. At most one is under way.
    ReadNodeDevices,
    /// Find out what may have been prepared: CDI files, and claims allocated here that are in use. At most one is under way.
    Gather,
    /// Write the status of `NodeDevices`, with the preconditions given. At most one is under way.
    WriteStatus {
        /// UID that the object must have. (Always there, but under a bug.)
        uid: Option<String>,
        /// Version that the object must have. (Always there, but under a bug.)
        resource_version: Option<String>,
        /// The new status.
        status: NodeDevicesStatus,
    },
    /// Answer a call.
    Answer(CallId, Answer),
    /// Publish these devices, and no others, with the taint `gpu.muster.dev/held`.
    TaintHeld(BTreeSet<String>),
    /// Make slices, one after the other, without the lock; stop at the first failure, and leave what is there. Then
    /// [`Input::SlicesMade`]. Whoever does it holds the lock of each one's GPU meanwhile (see `slice`).
    MakeSlices {
        /// For which call.
        call: CallId,
        /// Under which record: it must still allow it ([`Record::lets_make`]).
        fence: Fence,
        /// The slices.
        slices: Vec<SliceOrder>,
        /// UUIDs of GPUs that could be cut into slices, and are used whole: they have to be out of MIG mode.
        wholes: Vec<String>,
    },
    /// Remove slices, each as far as it is there, without the lock. Then [`Input::SlicesRemoved`]. Whoever does it holds the
    /// lock of each one's GPU meanwhile (see `slice`).
    RemoveSlices {
        /// Which removal.
        removal: RemovalId,
        /// Under which record: it must still allow it ([`Record::lets_remove`]). Otherwise there is nothing to do.
        fence: Fence,
        /// The slices.
        slices: Vec<PlacedSlice>,
    },
}

/// Under which record slices are changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// UID of the claim.
    pub claim: String,
    /// The call that works on it; `None`: whoever gives it back.
    pub call: Option<String>,
}

/// A write to the disk. Each is atomic and safe to repeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Put a record, whole, over what there is.
    PutRecord(Record),
    /// Remove the record of the claim with this UID; none is fine.
    RemoveRecord(String),
    /// Write the CDI file of a recorded claim.
    PutCdi(Record),
    /// Remove the CDI file of the claim with this UID; none is fine.
    RemoveCdi(String),
    /// Put what is known about the node as a whole: [`Disk::boot_id`] and [`Disk::acknowledged`]. [`Disk::rebuild`] goes.
    PutNode {
        /// Boot id under which the records are good.
        boot_id: String,
        /// Up to where the node has heard; `None` only where that was unknown before.
        acknowledged: Option<Acknowledged>,
    },
    /// Put under which name what was lost is rebuilt: [`Disk::boot_id`] and [`Disk::rebuild`]. There is no generation then.
    BeginRebuild {
        /// Boot id under which the records are good.
        boot_id: String,
        /// The name.
        rebuild: String,
    },
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The claim is prepared with these devices.
    Prepared(Vec<PreparedDevice>),
    /// The claim is not prepared (any more).
    Unprepared,
    /// Not now; the kubelet asks again.
    Refused(Refusal),
}

/// One device, as it is reported to the kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedDevice {
    /// Name of the main request.
    pub request: String,
    /// Pool.
    pub pool: String,
    /// Name in the pool.
    pub device: String,
    /// Its CDI id.
    pub cdi_id: String,
}

/// Why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The stable reason, where there is one.
    pub reason: Option<Reason>,
    /// For people: the claim, the numbers, what would help.
    pub message: String,
    /// Another claim holds one of the devices. A process that uses one is no claim.
    pub is_overlap: bool,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.reason {
            Some(reason) => write!(formatter, "{reason}: {}", self.message),
            None => formatter.write_str(&self.message),
        }
    }
}
