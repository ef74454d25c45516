//! Quota: who may have how much of what, and what is charged to whom.
//!
//! Teams are the leaves of a tree, Cohorts its inner nodes. Every node has, per Flavor and resource, a
//! limit of its own ([`crate::QuotaLimit`]); what a node does not keep for itself is visible to its parent
//! and so to all that hang below it. The arithmetic is Kueue's, with one deviation:
//!
//! In Kueue a Cohort that is over-admitted (its quota was lowered, a Team moved in) has a negative
//! availability, which flows down and eats even what a sibling never lent. Here a parent's share counts as
//! no less than nothing, so that every Team can always use what it keeps for itself; the sum may then exceed
//! the pool until the borrowers have ended.
//!
//! Invariant S1: nothing is admitted that would take a node of the tree above its limit. What was found
//! running (an adoption, a limit that was lowered) may stand above it; then use only falls.
//!
//! Sums are kept in 128 bits: no number of 64-bit amounts that fits into memory overflows them, so a limit or
//! a charge without measure affects nobody but its owner. Answers saturate at 64 bits.

mod account;
pub(crate) mod automatic;
pub(crate) mod charges;
mod cohort;
mod flavors;
mod fungibility;
mod graph;
pub(crate) mod healthy;
mod policy;
mod preemption;
pub(crate) mod request;
mod share;
mod shrink;
mod tournament;
mod tree;

pub use cohort::CohortUsage;
pub use flavors::QuotaVerdict;
pub(crate) use flavors::Shortage;
pub use fungibility::{
    AtAPrice, FlavorFungibility, FlavorMode, FlavorPreference, Search, Suitability,
};
pub(crate) use policy::Rank;
pub use policy::{
    BorrowWithinCohort, FairStrategy, PreemptionPolicy, ReclaimWithinCohort, Weight, WithinTeam,
};
pub(crate) use preemption::{Places, victims_for};
pub use preemption::{PreemptionReason, Preemptor, RunningGang, Sharing, Victim, victims};
pub use share::Share;
pub(crate) use share::{InOrder, Lendable};
pub(crate) use shrink::GivingBack;
pub(crate) use tournament::{Asked, Next, Tournament};
pub use tournament::{Entrant, fair_order};
pub(crate) use tree::{Lack, NodeId, PairId};
pub use tree::{QuotaTree, TreeFault};
