//! The real driver program, over its real sockets, on the mock NVML library.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod api_server;
mod bypass;
mod claims;
mod containers;
mod faults;
mod full_disk;
mod layouts;
mod node;
mod nvml;
mod reboot;
mod registration;
mod remedies;
mod seven_ways;
mod slices;
mod storm;
