//! Preparation of claims as a state machine without IO (DESIGN 6.5).
//!
//! [`Machine`] is one instance of the driver. It is given what happens ([`Input`]) and says what is to
//! be done ([`Effect`]); the binary performs that on a real node, the simulator on a virtual one, with
//! a crash at every effect. It knows no clock (`now` is an argument), no thread and no hash order.
//!
//! # What is where
//!
//! * On **disk** ([`Disk`]): one [`Record`] per claim, and up to which generation of which
//!   `NodeDevices` object this node has promised to hear. Two instances (a rolling update) share it under
//!   a lock. Nothing that matters is only in memory: a crash loses calls, and the kubelet repeats those.
//! * In **memory**: the view of `NodeDevices` (it may lag), calls under way, the queue for the lock.
//!
//! # The lock
//!
//! Everything that is decided is decided under the lock, on the disk as it is then: [`Effect::Lock`]
//! is answered by [`Input::Locked`], and the machine answers that with exactly one
//! [`Effect::Commit`], whose writes are performed in order and after which the lock is released
//! ([`Input::Committed`]). At most one lock is asked for at a time. Nothing waits for another claim under it, so a call
//! that waits 35 s for a permit holds up nobody; nothing for NVML, which is asked before (`sight`, `looks`); and nothing for the API server,
//! but for the one uncached read of an acknowledgement, a rebuild or the give-back of an orphan. Who has its turn next `queue` says.
//!
//! # Rules
//!
//! 1. A Prepare leaves a mark ([`Record::call`]) before it reads its claim, on the record that is there or on one in
//!    state [`RecordState::Waiting`]. Unprepare takes it; a call without its mark records nothing. So a Prepare that
//!    outlives its Unprepare does no harm. One that has not left its mark yet is answered when the Unprepare comes
//!    (`unprepare`).
//! 2. Permit, charge and physical exclusivity are judged in the transaction that records the intent.
//! 3. What is recorded in any state but `Waiting` holds its [`Unit`]s against every other claim.
//! 4. The generation is on disk before the status says so; no instance prepares by an older view than the
//!    disk's. A view of an object with another UID than the disk's counts only after an uncached read.
//! 5. Without a generation on disk nothing is prepared, unprepared or acknowledged: first the records are
//!    rebuilt, and `NodeDevices` is read uncached under the lock. What was gathered before more was lost is not recorded (`acknowledge`).
//! 6. What is in use is not given back.
//! 7. A record answers only for the allocation that it was made for (`earlier`).
//! 8. A slice is made only under its recorded intent, and its record goes only after it (`slice`).
//! 9. Nothing is prepared anew on a device that a fault closes; what is prepared there stays (`faulty`).

mod acknowledge;
mod claim;
mod disk;
mod earlier;
mod effect;
mod faulty;
mod injected_bug;
mod looks;
mod machine;
mod orphan;
mod permit;
mod queue;
mod record;
mod sight;
mod slice;
mod slices;
mod task;
#[cfg(test)]
mod tests;
mod unprepare;
mod view;

pub use muster_device::{Media, MigInstance, MigProfile, Placement, Process};

pub use claim::{AllocatedDevice, Claim, ClaimRef, MalformedClaim, Toleration};
pub use disk::{Acknowledged, Disk, Record, RecordState, RecordedDevice, Slices, Unit};
pub use effect::{
    Answer, CallId, DeviceFacts, DiskFailure, Effect, Fence, InUse, Input, Inventory, LiveSlices,
    Locked, LookId, Milliseconds, PreparedDevice, Probe, Read, Refusal, RemovalId, SliceFacts,
    SliceFailure, StatusOutcome, Ticket, Write,
};
#[cfg(feature = "injected-bugs")]
pub use injected_bug::InjectedBug;
pub use machine::{Config, Machine};
pub use orphan::Orphan;
pub use sight::{Sight, Sights, Verified};
pub(crate) use sight::{asks_for_slices, user};
pub use slice::{
    Foreign, Lying, Made, MadeSlice, PlacedSlice, RecordedSlice, SliceMode, SliceOrder,
};
