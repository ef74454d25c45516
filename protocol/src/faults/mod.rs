//! Faults of devices: whom they reach, what is done about it, and how much of that at most.
//!
//! What an attempt holds that has a fault is looked up in [`held`], from its claims, what they are allocated, and the taints of that. Whether it
//! is evicted is the engine's to decide ([`muster_engine::recovery`]). The store is asked first ([`check`]): claims and slices come by
//! watches of their own. How many nodes may be drained within a window is recorded with the evictions, by the same write
//! ([`breaker`]).
//!
//! **Twice, late, never**: an eviction concerns one attempt, and names the fault; a gang is not evicted for the same one again. A fault that is seen late
//! finds that the gang holds the device no longer. Nothing is remembered but since when a fault is seen, and what a read said.

pub(crate) mod breaker;
pub(crate) mod check;
pub(crate) mod held;

use muster_engine::recovery::Spared;

use crate::{Mode, poll_context::PollContext};

/// Whether attempts are ended at all without proof or a user's word.
pub(crate) fn acts(context: PollContext<'_>) -> bool {
    context.config.recovery.mode == Mode::Enforce
}

/// Why nothing is ended now without proof, for people; `None`: it is.
pub(crate) fn held_back(context: PollContext<'_>) -> Option<String> {
    if acts(context) {
        return context.breaker.halt_text();
    }
    Some(Spared::Observed.text().to_owned())
}
