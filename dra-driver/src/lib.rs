//! The DRA kubelet plugin of Muster: publishes the GPUs of a node, and prepares claims on them.
//!
//! * [`prepare`]: what is done with a claim, as a state machine without IO; [`driver`]: the same on a real node.
//! * [`store`]: the checkpoint. [`probe`], [`bystanders`]: who uses the hardware, and who only watches it. [`hardware`]: slices, as they are made and removed. [`inventory`], [`enumerate`]: which device is
//!   which GPU. [`kubernetes`]: the API server.
//!   `under_lock`: what is seen of the hardware when a claim is recorded.
//! * [`containers`]: what containers get of the host's driver. [`hook_program`]: the program that finishes them.
//! * [`bypass`]: processes on GPUs that nothing explains. [`faults`]: what is wrong with the GPUs.
//! * [`mig`]: how the GPUs of the node are cut, and by whom.
//! * [`kubelet`]: registration, DRA calls and health by gRPC. [`slices`]: what the node offers.
//!
//! **Invariant: what is in memory may be lost at any time.** Whatever another instance, or this one after a crash,
//! must know is in the checkpoint before it is acted on.

pub mod bypass;
pub mod bystanders;
pub mod containers;
pub mod driver;
pub mod enumerate;
pub mod faults;
#[cfg(test)]
mod golden;
mod gone;
pub mod hardware;
pub mod hook_program;
pub mod inventory;
pub mod kubelet;
pub mod kubernetes;
pub mod leftover_slices;
pub mod metrics;
pub mod mig;
#[cfg(test)]
mod mock_node;
pub mod orphans;
pub mod prepare;
pub mod probe;
pub mod program;
#[cfg(test)]
mod random;
pub mod slices;
pub mod store;
mod under_lock;
mod unknown_fields;
