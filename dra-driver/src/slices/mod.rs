//! What this node offers, as ResourceSlices.
//!
//! [`desired`] says what is to be published, [`others`] who else hands out the same GPUs, [`plan`] which writes lead there from
//! what there is (all pure),
//! [`publisher`] performs them, and again whenever somebody else changes them: the kubelet deletes all slices of
//! a node when it starts.

pub mod desired;
pub mod others;
pub mod plan;
pub mod publisher;
