//! MIG by node: whether GPUs are offered whole, as the slices that exist, or as every slice that could be made.
//!
//! [`settings`]: what the administrator says, and what of it holds for a node. [`layout`]: how a GPU is brought to a declared layout, as
//! a state machine without IO; [`apply`]: the same on a real node; [`notices`]: what MIG keeps from everybody.

pub mod apply;
pub mod layout;
pub mod notices;
pub mod settings;

pub use settings::{Mode, OnGpus, Policy, Settings, Toggle};
