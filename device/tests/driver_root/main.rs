//! What containers get of driver roots of every kind.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod elf;
mod loader;
mod modules;
mod node;
mod roots;
mod slices;
mod spec;
