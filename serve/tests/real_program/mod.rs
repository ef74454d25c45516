//! A real program of ours, in front of an API server on which nothing ever happens, and whoever calls it.
//!
//! The servers of several packages are tested by it, each with its own binary: what one of them withstands, all have to.
//!
//! * [`program`]: the process, from its start to its end; [`api_server`]: what it is started against.
//! * [`client`]: somebody who calls it.
//! * [`target`]: a program that is asked honestly, and in time, while others attack it.
//! * [`attacks`], [`http2_attacks`]: the slow, the silent and the greedy client.

#![allow(
    dead_code,
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "each test program uses what it needs and fails by panicking"
)]

pub(crate) mod api_server;
pub(crate) mod attacks;
pub(crate) mod client;
pub(crate) mod http2_attacks;
pub(crate) mod program;
pub(crate) mod target;
