//! What this node offers, as ResourceSlices.
//!
//! [`board`] says what of a GPU can be shown, [`desired`] what is to be published, [`order`] in which order, [`retained`] what stays although it
//! is not offered any more, [`others`] who else hands out the same GPUs, [`plan`] which writes lead there from what there is (all pure),
//! [`publisher`] performs them, and again whenever somebody else changes them: the kubelet deletes all slices of
//! a node when it starts.

pub mod board;
pub mod desired;
#[cfg(test)]
mod histories;
pub mod order;
pub mod others;
pub mod plan;
pub mod publisher;
pub mod retained;
