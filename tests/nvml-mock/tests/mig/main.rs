//! The library, loaded as programs load it, and what it makes of its state file.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[macro_use]
mod card;
mod answers;
mod events;
mod failures;
mod life_cycle;
mod mode;
mod numbering;
mod packings;
mod processes;
mod two_processes;
