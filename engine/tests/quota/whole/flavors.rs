//! Which of a Team's Flavors a gang gets: section 6 of Kueue's rules, one Flavor after the other.

use std::cmp::Ordering;

use muster_engine::quota::{AtAPrice, FlavorFungibility, FlavorMode, FlavorPreference};

/// How well a Flavor suits: what it takes, and how far up the tree it reaches.
pub(super) type Suits = (FlavorMode, usize);

/// Whether the next Flavor is not even tried.
pub(super) fn stops(of: FlavorFungibility, (mode, level): Suits) -> bool {
    if mode != FlavorMode::Fit && of.when_can_preempt == AtAPrice::TryNextFlavor {
        return false;
    }
    level == 0 || of.when_can_borrow == AtAPrice::MayStopSearch
}

/// Whether one is better than another, both of which can be had.
pub(super) fn is_better(of: FlavorFungibility, one: Suits, other: Suits) -> bool {
    let by_mode = one.0.cmp(&other.0);
    let by_level = other.1.cmp(&one.1);
    let order = match of.preference {
        FlavorPreference::BorrowingOverPreemption => by_mode.then(by_level),
        FlavorPreference::PreemptionOverBorrowing => by_level.then(by_mode),
    };
    order == Ordering::Greater
}
