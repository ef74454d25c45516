//! Who gives way to whom.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests"
)]

#[path = "../common/mod.rs"]
mod common;
mod cut;
#[path = "../common/cut_gpus.rs"]
mod cut_gpus;
mod many_recovering;
mod preempting_at_once;
mod preemption;
mod recovering;
mod recovering_anew;
mod recovering_beneath;
mod recovering_comers;
mod recovering_where_kept;
mod shrink;
#[path = "../common/slices.rs"]
mod slices;
mod strict_preemption;
mod within_nominal;
