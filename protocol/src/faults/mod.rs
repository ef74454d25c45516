//! Faults of devices: whom they reach, what is done about it, and how much of that at most.
//!
//! What an attempt holds that has a fault is looked up in [`held`], from its claims, what they are allocated, and the taints of that. Whether it
//! is evicted is the engine's to decide ([`muster_engine::recovery`]). The store is asked first ([`check`]): claims and slices come by
//! watches of their own. How many nodes may be evacuated within a window is recorded with the evictions, by the same write
//! ([`breaker`]). Which nodes may reset GPUs that have a fault, and when, is said in [`resets`].
//!
//! **Twice, late, never**: an eviction concerns one attempt, and names the fault; a gang is not evicted for the same one again. A fault that is seen late
//! finds that the gang holds the device no longer. Nothing is remembered but since when a fault is seen, and what a read said.

pub(crate) mod breaker;
pub(crate) mod check;
pub(crate) mod held;
pub(crate) mod resets;

use muster_engine::recovery::Spared;

use crate::{Mode, poll_context::PollContext};

/// Whether attempts are ended at all without proof or a user's word.
pub(crate) fn acts(context: PollContext<'_>) -> bool {
    context.config.recovery.mode == Mode::Enforce
}

/// What keeps attempts from being ended now without proof or a user's word, and pods from being deleted by force, whoever consents.
#[derive(Debug)]
pub(crate) enum HeldBack {
    /// Recovery only observes.
    Observed,
    /// The circuit breaker halts it: why, for people.
    Halted(String),
}

impl HeldBack {
    /// For people, after what would be done.
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Observed => "recovery only observes",
            Self::Halted(why) => why,
        }
    }

    /// For people, of an attempt that would be evicted.
    pub(crate) fn of_attempt(&self) -> &str {
        match self {
            Self::Observed => Spared::Observed.text(),
            Self::Halted(why) => why,
        }
    }
}

/// What keeps anything from being ended now without proof; `None`: nothing does.
pub(crate) fn held_back(context: PollContext<'_>) -> Option<HeldBack> {
    if acts(context) {
        return context.breaker.halt_text().map(HeldBack::Halted);
    }
    Some(HeldBack::Observed)
}
