//! What this node offers, as ResourceSlices.
//!
//! [`desired`] says what is to be published, [`plan`] which writes lead there from what there is (both pure),
//! [`publisher`] performs them, and again whenever somebody else changes them: the kubelet deletes all slices of
//! a node when it starts.

pub mod desired;
pub mod plan;
pub mod publisher;
