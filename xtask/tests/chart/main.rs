//! The chart, rendered by real Helm.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod alerts;
mod expressions;
mod guides;
mod helm;
mod metrics;
mod objects;
mod scheduler;
mod values;
