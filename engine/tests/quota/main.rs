//! Quota against a second reading of its rules: a model that is slow and plain, on random histories; and what must hold of
//! every preemption, whatever the model says.
//!
//! The ordinary run plays a sample. `cargo xtask test engine/quota --runs 100000 --seed 1` plays so many histories, from that
//! seed. A failure tells its seed and the shortest part of its history that fails.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests"
)]

mod agreement;
mod cases;
mod history;
#[path = "../common/kueue_cases.rs"]
mod kueue_cases;
mod mirror;
mod model;
mod ping_pong;
mod play;
mod properties;
mod random;
mod seeds;
#[path = "../common/slices.rs"]
mod slices;
mod turns;
mod whole;
