//! The reference model of quota: what the text of Kueue's rules says, written down a second time, as plainly as possible.
//!
//! It shares no code with the engine but the words of its answers. Nothing is kept from one question to the next: every
//! number is worked out from the limits and from the list of gangs that hold something, by recursion over the tree.

mod arithmetic;
mod by_priority;
mod fair;
mod order;
mod share;
mod turns;

use std::collections::{BTreeMap, BTreeSet};

use muster_engine::quota::{FairStrategy, PreemptionPolicy, PreemptionReason};

pub(crate) use arithmetic::Tree;
pub(crate) use share::Share;
pub(crate) use turns::{Waiting, order, winner};

/// The one deviation from Kueue: what a parent contributes to a node's availability is no less than nothing, so that an
/// over-admitted Cohort does not eat what its members never lent. `false` is Kueue.
pub(crate) const PARENT_CONTRIBUTION_IS_AT_LEAST_NOTHING: bool = true;

/// The name of a Team or Cohort. Names are ordered as numbers.
pub(crate) type Name = u8;

/// A resource of a Flavor. Resources are numbered in the alphabetical order of their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pair {
    pub(crate) flavor: u8,
    pub(crate) resource: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) nominal: i128,
    pub(crate) borrowing: Option<i128>,
    pub(crate) lending: Option<i128>,
}

/// A Team or a Cohort.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// The Cohort above.
    pub(crate) parent: Option<Name>,
    /// What is not named has nothing.
    pub(crate) limits: BTreeMap<Pair, Limit>,
    /// In billionths.
    pub(crate) weight: u64,
    /// A Team has one, a Cohort none.
    pub(crate) policy: Option<PreemptionPolicy>,
}

/// All Teams and Cohorts. Every Cohort that is named as a parent is there.
pub(crate) type Nodes = BTreeMap<Name, Node>;

/// A gang that holds quota.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    pub(crate) uid: u32,
    pub(crate) team: Name,
    pub(crate) priority: i32,
    pub(crate) queued_at: i64,
    pub(crate) admitted_at: Option<i64>,
    pub(crate) is_ending: bool,
    pub(crate) charges: Vec<(Pair, i128)>,
}

/// A gang that others are to give way to.
#[derive(Clone, Debug)]
pub(crate) struct Asking {
    pub(crate) team: Name,
    pub(crate) priority: i32,
    pub(crate) queued_at: i64,
    pub(crate) charges: Vec<(Pair, i128)>,
    pub(crate) contested: BTreeSet<Pair>,
}

/// A position in the list of running gangs, and why that gang gives way.
pub(crate) type Chosen = (usize, PreemptionReason);

/// One question: who gives way?
pub(crate) struct Contest<'a> {
    pub(crate) nodes: &'a Nodes,
    pub(crate) running: &'a [Running],
    /// What is charged besides, for which nobody can be asked.
    pub(crate) besides: &'a [(Name, Pair, i128)],
    pub(crate) asking: &'a Asking,
    /// Whether there is a place once the gangs at these positions are gone.
    pub(crate) has_place: &'a dyn Fn(&BTreeSet<usize>) -> bool,
}

/// The victims, in the order in which they were chosen. `None` as strategies: by priority.
pub(crate) fn victims(contest: &Contest<'_>, strategies: Option<&[FairStrategy]>) -> Vec<Chosen> {
    if Tree::new(contest.nodes, []).is_in_a_cycle(contest.asking.team) {
        return Vec::new();
    }
    match strategies {
        None => contest.by_priority(),
        Some(strategies) => contest.fair(strategies),
    }
}

impl<'a> Contest<'a> {
    fn policy(&self) -> PreemptionPolicy {
        let policy = self.nodes[&self.asking.team].policy;
        policy.unwrap_or_default()
    }

    /// What is asked of each pair.
    fn request(&self) -> BTreeMap<Pair, i128> {
        let mut request = BTreeMap::new();
        for (pair, amount) in &self.asking.charges {
            *request.entry(*pair).or_default() += amount;
        }
        request
    }

    /// The tree once these victims are gone.
    fn without(&self, gone: &[Chosen]) -> Tree<'a> {
        let staying = self.running.iter().enumerate();
        let staying =
            staying.filter(|(position, _)| gone.iter().all(|victim| victim.0 != *position));
        let charges = staying.flat_map(|(_, gang)| {
            let charges = gang.charges.iter();
            charges.map(|(pair, amount)| (gang.team, *pair, *amount))
        });
        Tree::new(self.nodes, charges.chain(self.besides.iter().copied()))
    }

    /// The same, with the asking gang running.
    fn without_and_with_asking(&self, gone: &[Chosen]) -> Tree<'a> {
        let mut tree = self.without(gone);
        for (pair, amount) in &self.asking.charges {
            tree.charge(self.asking.team, *pair, *amount);
        }
        tree
    }

    fn fits(&self, gone: &[Chosen], may_borrow: bool) -> bool {
        let tree = self.without(gone);
        let team = self.asking.team;
        let has_quota = self.request().into_iter().all(|(pair, amount)| {
            amount <= tree.team_available(team, pair)
                && (may_borrow || !tree.is_borrowing_with(team, pair, amount))
        });
        let positions = gone.iter().map(|victim| victim.0).collect();
        has_quota && (self.has_place)(&positions)
    }

    /// From the last but one back to the first: who can stay after all, stays.
    fn fill_back(&self, mut gone: Vec<Chosen>, may_borrow: bool) -> Vec<Chosen> {
        for index in (0..gone.len().saturating_sub(1)).rev() {
            let victim = gone.remove(index);
            if !self.fits(&gone, may_borrow) {
                gone.insert(index, victim);
            }
        }
        gone
    }
}
