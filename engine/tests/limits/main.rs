//! Quota and its limits, hostile input, and what people are told.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests"
)]

mod automatic_quota;
mod bounds;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/cut_gpus.rs"]
mod cut_gpus;
mod flavors;
mod hostile;
mod properties;
mod quota_tree;
mod texts;
