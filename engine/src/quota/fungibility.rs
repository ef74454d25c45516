//! Which of a Team's Flavors a gang gets. The words, the defaults and the order of preference are Kueue's.
//!
//! Flavors are tried in the Team's order. After each of them the Team's [`FlavorFungibility`] says whether the search goes
//! on, and of those that were tried the gang gets the one that suits it best: a [`Search`] is told of one Flavor after the
//! other, and knows nothing of how it is found out how well a Flavor suits.

use std::{
    cmp::{Ordering, Reverse},
    ops::ControlFlow,
};

/// What is done about a Flavor that the gang can have at a price: it is taken, or the next ones are tried first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtAPrice {
    /// The search ends with this Flavor.
    MayStopSearch,
    /// The next Flavor is tried, too.
    TryNextFlavor,
}

/// Which price is the lower one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlavorPreference {
    /// Rather borrow than preempt: the better mode first, then the smaller borrow level.
    #[default]
    BorrowingOverPreemption,
    /// Rather preempt than borrow: the smaller borrow level first, then the better mode.
    PreemptionOverBorrowing,
}

/// How the gangs of a Team choose between its Flavors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlavorFungibility {
    /// Where the gang would borrow.
    pub when_can_borrow: AtAPrice,
    /// Where others would have to give way.
    pub when_can_preempt: AtAPrice,
    /// Which of the Flavors that were tried is the better one.
    pub preference: FlavorPreference,
}

impl Default for FlavorFungibility {
    fn default() -> Self {
        Self {
            when_can_borrow: AtAPrice::MayStopSearch,
            when_can_preempt: AtAPrice::TryNextFlavor,
            preference: FlavorPreference::default(),
        }
    }
}

/// What it takes for a gang to have a Flavor, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlavorMode {
    /// It cannot have it, whoever gives way.
    NoFit,
    /// Others would have to give way, and there is nobody who may be made to.
    NoCandidates,
    /// Some gang of its own Team gives way.
    Preempt,
    /// Only gangs of other Teams give way, who borrow.
    Reclaim,
    /// It is free.
    Fit,
}

/// How well a Flavor suits a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suitability {
    /// What it takes.
    pub mode: FlavorMode,
    /// How far up the quota tree the gang has to reach ([`crate::quota::QuotaTree::borrow_level`]).
    pub borrow_level: usize,
}

impl FlavorFungibility {
    /// Whether one Flavor is better than another. What the gang cannot have is never preferred, and what it cannot have now
    /// only to that, whatever it would borrow.
    pub fn is_preferred(self, one: Suitability, other: Suitability) -> bool {
        self.order(one, other).is_gt()
    }

    /// Whether preemption may be preferred to a Flavor that is free: then it has to be looked into.
    pub(crate) fn may_rather_preempt(self, free: Suitability) -> bool {
        let least = Suitability {
            mode: FlavorMode::Reclaim,
            borrow_level: 0,
        };
        self.when_can_preempt == AtAPrice::MayStopSearch || self.is_preferred(least, free)
    }

    fn order(self, one: Suitability, other: Suitability) -> Ordering {
        // From `Preempt` on the modes differ by price only.
        let class = |suits: Suitability| suits.mode.min(FlavorMode::Preempt);
        let by_mode = one.mode.cmp(&other.mode);
        let by_level = Reverse(one.borrow_level).cmp(&Reverse(other.borrow_level));
        class(one).cmp(&class(other)).then_with(|| {
            if one.mode == FlavorMode::NoFit {
                return Ordering::Equal;
            }
            match self.preference {
                FlavorPreference::BorrowingOverPreemption => by_mode.then(by_level),
                FlavorPreference::PreemptionOverBorrowing => by_level.then(by_mode),
            }
        })
    }

    /// Whether the search ends with a Flavor, whatever the next ones are like.
    fn stops_at(self, suits: Suitability) -> bool {
        let stops = |at_a_price| at_a_price == AtAPrice::MayStopSearch;
        match suits.mode {
            FlavorMode::NoFit | FlavorMode::NoCandidates => false,
            FlavorMode::Preempt | FlavorMode::Reclaim if !stops(self.when_can_preempt) => false,
            FlavorMode::Preempt | FlavorMode::Reclaim | FlavorMode::Fit => {
                suits.borrow_level == 0 || stops(self.when_can_borrow)
            }
        }
    }
}

/// A search through the Flavors of a Team, with the best that was found so far; `T` is what the gang would have there.
#[derive(Clone, Debug)]
pub struct Search<T> {
    fungibility: FlavorFungibility,
    best: Option<(Suitability, T)>,
}

impl<T> Search<T> {
    /// Nothing was tried yet.
    pub fn new(fungibility: FlavorFungibility) -> Self {
        let best = None;
        Self { fungibility, best }
    }

    /// Takes note of the next Flavor in order; whether the one after it is to be tried. A Flavor that ends the search is taken,
    /// whatever those before it were like; else, of those that suit equally well, the first is the best.
    pub fn offer(&mut self, suits: Suitability, found: T) -> ControlFlow<()> {
        let stops = self.fungibility.stops_at(suits);
        if stops || self.would_be_best(suits) {
            self.best = Some((suits, found));
        }
        if stops {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    /// Whether a Flavor that suits so well would be better than all before it: if not even the best that may be hoped for
    /// would be, nobody needs to look.
    pub fn would_be_best(&self, suits: Suitability) -> bool {
        let best = self.best_so_far();
        best.is_none_or(|best| self.fungibility.is_preferred(suits, best))
    }

    /// The best of those that were tried so far.
    pub fn best_so_far(&self) -> Option<Suitability> {
        self.best.as_ref().map(|(suits, _)| *suits)
    }

    /// The best of those that were tried.
    pub fn best(self) -> Option<(Suitability, T)> {
        self.best
    }
}

#[cfg(test)]
mod tests {
    use super::{AtAPrice::*, FlavorMode::*, FlavorPreference::*, *};

    const MODES: [FlavorMode; 5] = [NoFit, NoCandidates, Preempt, Reclaim, Fit];

    fn suits(mode: FlavorMode, borrow_level: usize) -> Suitability {
        Suitability { mode, borrow_level }
    }

    fn all() -> impl Iterator<Item = Suitability> + Clone {
        let of_mode = |mode| (0..3).map(move |level| suits(mode, level));
        MODES.into_iter().flat_map(of_mode)
    }

    fn fungibility(
        when_can_borrow: AtAPrice,
        when_can_preempt: AtAPrice,
        preference: FlavorPreference,
    ) -> FlavorFungibility {
        FlavorFungibility {
            when_can_borrow,
            when_can_preempt,
            preference,
        }
    }

    #[test]
    fn the_preference_orders_what_the_gang_can_have() {
        let prefers = |preference, one, other| {
            let one_way = fungibility(TryNextFlavor, TryNextFlavor, preference);
            assert!(!one_way.is_preferred(other, one), "{other:?} to {one:?}");
            one_way.is_preferred(one, other)
        };
        for preference in [BorrowingOverPreemption, PreemptionOverBorrowing] {
            assert!(prefers(preference, suits(Fit, 0), suits(Fit, 1)));
            assert!(prefers(preference, suits(Reclaim, 1), suits(Preempt, 1)));
            assert!(prefers(
                preference,
                suits(Preempt, 2),
                suits(NoCandidates, 0)
            ));
            assert!(prefers(preference, suits(NoCandidates, 2), suits(NoFit, 0)));
            assert!(prefers(
                preference,
                suits(NoCandidates, 0),
                suits(NoCandidates, 1)
            ));
        }
        assert!(prefers(
            BorrowingOverPreemption,
            suits(Fit, 2),
            suits(Reclaim, 0)
        ));
        assert!(prefers(
            PreemptionOverBorrowing,
            suits(Preempt, 0),
            suits(Fit, 1)
        ));
    }

    /// Else which Flavor is the best would depend on the order in which they are compared.
    #[test]
    fn preference_is_a_strict_weak_order() {
        for preference in [BorrowingOverPreemption, PreemptionOverBorrowing] {
            let of = fungibility(TryNextFlavor, TryNextFlavor, preference);
            let is_like = |one, other| !of.is_preferred(one, other) && !of.is_preferred(other, one);
            for (one, two) in all().flat_map(|one| all().map(move |two| (one, two))) {
                assert!(!(of.is_preferred(one, two) && of.is_preferred(two, one)));
                let is_nothing = one.mode == NoFit && two.mode == NoFit;
                assert_eq!(is_like(one, two), one == two || is_nothing);
                for three in all() {
                    let both = of.is_preferred(one, two) && of.is_preferred(two, three);
                    assert!(!both || of.is_preferred(one, three));
                }
            }
        }
    }

    /// By setting: the modes and levels with which the search ends.
    #[test]
    fn a_search_ends_with_what_is_free_or_with_a_price_that_is_accepted() {
        for (when_can_borrow, when_can_preempt, ends) in [
            (
                MayStopSearch,
                MayStopSearch,
                &[(Preempt, 0), (Preempt, 1), (Fit, 0), (Fit, 1)][..],
            ),
            (MayStopSearch, TryNextFlavor, &[(Fit, 0), (Fit, 1)]),
            (TryNextFlavor, MayStopSearch, &[(Preempt, 0), (Fit, 0)]),
            (TryNextFlavor, TryNextFlavor, &[(Fit, 0)]),
        ] {
            let of = fungibility(when_can_borrow, when_can_preempt, BorrowingOverPreemption);
            for each in all() {
                // Nothing tells `Reclaim` from `Preempt` here, nor two levels up from one.
                let mode = if each.mode == Reclaim {
                    Preempt
                } else {
                    each.mode
                };
                let expected = ends.contains(&(mode, each.borrow_level.min(1)));
                let ended = Search::new(of).offer(each, ()).is_break();
                assert_eq!(ended, expected, "{each:?} with {of:?}");
            }
        }
    }

    #[test]
    fn the_best_of_those_that_were_tried_is_had_and_of_equals_the_first() {
        let of = fungibility(TryNextFlavor, TryNextFlavor, PreemptionOverBorrowing);
        let mut search = Search::new(of);
        for (name, found) in [
            ("none", suits(NoFit, 0)),
            ("borrows", suits(Fit, 1)),
            ("reclaims", suits(Reclaim, 0)),
            ("reclaims, too", suits(Reclaim, 0)),
            ("preempts", suits(Preempt, 0)),
        ] {
            assert!(search.offer(found, name).is_continue());
        }
        assert!(!search.would_be_best(suits(Fit, 1)));
        assert!(search.would_be_best(suits(Fit, 0)));
        assert_eq!(search.best(), Some((suits(Reclaim, 0), "reclaims")));
        assert_eq!(Search::<()>::new(of).best(), None);
    }
}
