//! What faults of devices cost: which gangs are restarted for them, and how many nodes may be evacuated in a while.
//!
//! What may be wrong with a device, and what that asks of whoever holds it, is said in [`fault`]; whether an attempt is to be
//! evicted, and why not if not, in [`decide`]; how often a gang is started anew after its own pods failed in [`restarts`]; whether a pod that does not die is deleted by force in [`may_force`]; whether a gang is moved away from what is drained by hand in [`drain`](mod@drain); how many nodes may be concerned in a window of time in [`breaker`]; which nodes may have GPUs reset at the same time in [`resets`]. Nothing here reads a
//! clock: seconds are those of the caller's monotonic clock.

pub mod attempt;
pub mod breaker;
pub mod drain;
pub mod fault;
pub mod force;
pub mod resets;
pub mod restarts;

pub use attempt::{Action, Answered, Decision, Facts, HeldFault, Spared, decide};
pub use breaker::{BreakerLimits, BreakerWindow, TooManyNodes, WantedNodes};
pub use drain::{DrainAction, DrainFacts, Ends, Stays, drain};
pub use fault::{Consequence, DeviceFault, FaultClass, FaultKind, consequence};
pub use force::{ForceNode, ForcePolicy, ForceWord, HangingPod, NotForced, may_force};
pub use resets::{ResetLimits, ResetNews, ResetSeen, ResetTurns, ResetWish};
pub use restarts::{PodsOfAttempts, Restarts};
