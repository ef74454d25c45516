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
mod flavors;
mod hostile;
mod properties;
mod quota_tree;
mod texts;
