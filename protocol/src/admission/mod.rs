//! The Ledger: what enters it, what an intent in it means by now, and how an attempt is taken back.

pub(crate) mod admit;
pub(crate) mod adopt;
pub(crate) mod charge;
pub(crate) mod checkpoints;
pub(crate) mod evict;
pub(crate) mod intent_state;
pub(crate) mod place;
pub(crate) mod plan;
pub(crate) mod preempt;
pub(crate) mod record;
pub(crate) mod stage;
pub(crate) mod void;
