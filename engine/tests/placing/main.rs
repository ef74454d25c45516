//! Where gangs go, whole or in part.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests"
)]

mod brute_force;
mod by_change;
mod closed;
#[path = "../common/mod.rs"]
mod common;
mod cut;
#[path = "../common/cut_gpus.rs"]
mod cut_gpus;
mod decisions;
mod partial;
mod partial_order;
mod placement;
#[path = "../common/slices.rs"]
mod slices;
