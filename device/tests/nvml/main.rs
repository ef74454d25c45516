//! NVML that hangs, goes and comes back, and the slices that it makes: on copies of the mock library, each with hardware of its own.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod closing;
mod destroying;
mod events;
mod failing;
mod finding;
mod hanging;
mod hidden_links;
#[path = "../gpu/look.rs"]
mod look;
mod machine;
mod making;
mod mode;
mod profiles;
mod recorded;
mod users;
