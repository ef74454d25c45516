//! How a GPU is brought to a declared layout, or out of MIG mode: step by step, as a state machine without IO.
//!
//! What is there is looked at before each step, and the step follows from that and from the layout alone. So a crash at any step loses
//! nothing: the next look goes on from what is there. What fits the layout already stays.
//!
//! **While idle.** A step is taken only after its GPU carries a taint in what is published, for as long as kube-scheduler may still write an
//! allocation by what it knew before, and while no record, no claim and no process has any part of it (what is had for administrative access is taken
//! from nobody, and does not count). A GPU that is used is not
//! tainted: the layout waits until it is idle, and takes no capacity meanwhile.
//!
//! **Claims that wait for it.** After a reboot the slices of a layout are gone, and pods that restart in place have claims for them, which nobody
//! prepares before they are there. So a claim whose devices are slices of the layout keeps no step from being taken, and the layout is laid so that these
//! are where they were. Nor does who uses one slice keep another one from being made beside it: nothing that is published is any other for that.
//!
//! **Two instances** during an update take each step under the lock of the GPU, by what they find then; the second finds it done.
//! If they are told different layouts, the one that stays has the last step.

mod applier;
mod places;
mod steps;
#[cfg(test)]
mod tests;
mod usage;

pub use applier::{Applier, Next};
pub use places::Part;
pub use steps::{Goal, Step};
pub use usage::{Allocated, Sight, Usage, awaited};
