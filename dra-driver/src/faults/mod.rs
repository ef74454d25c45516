//! Faults of the node's GPUs: heard and looked for, remembered, and told to whoever publishes ([`muster_device::faults`] says what is a
//! fault, and when it is over).

pub mod eye;
pub mod memory;
pub mod mended;
pub mod policy;
mod postponed;
pub mod remedy;
pub mod remembering;
pub mod telling;
pub mod watcher;

/// What is a fault, and when it is over: what the simulation of a driver needs of it.
pub use muster_device::faults::{
    Catalogue, Cause, Condition, Device, Fault, FaultClass, FaultState, KnownAddresses,
    LogPosition, Observation, Proof, Recovery, Scope, Validation, of_xid,
};
