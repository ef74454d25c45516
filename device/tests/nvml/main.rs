//! NVML that hangs, goes and comes back: on copies of the mock library, each with hardware of its own.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod closing;
mod finding;
mod hanging;
mod machine;
