//! The program on containers' roots of every kind, as a runtime runs it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod container;
mod hostile;
mod links;
mod loader;
mod mounts;
mod runtimes;
