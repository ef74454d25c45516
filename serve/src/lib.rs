//! The shell that every Muster program shares. It knows no domain type.
//!
//! * [`program`]: start, background tasks and shutdown of one program, in one place.
//! * [`client`]: clients of the API server with the limits that kube does not set by itself.
//! * [`watch`]: one watched kind as a stream of changes and whole lists; [`mirror`]: a value that several keep.
//! * [`server`]: an HTTP(S) server that no client can hold up; [`tls`]: its certificates, replaced while it runs;
//!   [`lock`]: what requests read, in bounded time.
//! * [`certificates`], [`authority_secret`], [`certificate_source`]: where certificates come from.
//! * [`event`]: Events, as every program writes them.
//! * [`fields`]: objects of which some fields are not read, or otherwise than they stand.
//! * [`lease`]: leader election by local, monotonic observation. It elects; it does not fence.
//!
//! **Invariant: every call that leaves the process has an end.** Connect, read and write limits are set on
//! each client, [`client::within`] bounds the whole call, and no server waits for a client without a limit.

pub mod admin;
pub mod args;
pub mod authority_secret;
pub mod certificate_source;
pub mod certificates;
pub mod client;
pub mod event;
pub mod fields;
pub mod lease;
pub mod lock;
pub mod metrics;
pub mod mirror;
pub mod program;
pub mod readiness;
pub mod server;
pub mod shutdown;
pub mod telemetry;
pub mod tls;
pub mod watch;

#[cfg(test)]
mod fake_api;
mod process_metrics;

pub use args::{ExtendedResourcesArgs, ServeArgs};
pub use program::Program;
pub use readiness::{Condition, Readiness};
pub use shutdown::Shutdown;
