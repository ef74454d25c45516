//! Who comes next: shares, strict queues, namespaces, who is asked again.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests"
)]

mod asking_again;
mod circles;
#[path = "../common/mod.rs"]
mod common;
mod fair_cost;
mod fair_order;
mod fair_own_team;
mod fair_wakeups;
mod head_cost;
mod namespaces;
#[path = "../common/slices.rs"]
mod slices;
mod strict;
