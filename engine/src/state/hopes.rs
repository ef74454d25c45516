//! Classes that nobody could give way to, and after how much they are asked again whether somebody could now.
//!
//! A gang that may preempt needs less than a gang that may not: what is there, and what others would give up for it, need only
//! suffice together. So it is not enough to wake it when all that it lacks comes free. When it searched for victims in vain, it
//! is worked out how much it would lack at a node of the quota tree even if everybody were gone who could be asked. It is asked
//! again once so much has come at that node since, summed up. What comes is
//! * what will be charged no longer: somebody ended, or something is kept for a gang no longer;
//! * what somebody holds who can be asked from now on: it was told as running, or as another one; it gives way to nobody any more;
//! * what a Team or Cohort uses that begins to borrow: all of it may be asked for from now on.
//!
//! The sum never falls, so that one may be asked too early, and never too late. Who lacks no quota in that case, but a place or
//! a right, is asked again when a node or a charge changed: a few of them in each call, in turn ([`MOST_ASKED`]).
//!
//! The end of a minimum run time is an event of its own ([`State::wake_whoever_may_preempt`]), and so is a change of limits.

use std::collections::{BTreeMap, BTreeSet};

use super::{State, ids::ClassId, rounds::Moment};
use crate::{
    names::GangUid,
    quota::{NodeId, PairId},
};

/// How many classes that lack a place or a right are asked again in one call.
const MOST_ASKED: usize = 2;

/// Where so much has to come before a class is asked again.
pub(super) type Hope = (NodeId, PairId, i128);

/// What came at a node since somebody waits for it, and who waits until how much came.
#[derive(Clone, Debug, Default)]
struct Sum {
    came: i128,
    until: BTreeSet<(i128, ClassId)>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Hopes {
    sums: BTreeMap<(NodeId, PairId), Sum>,
    of_class: BTreeMap<ClassId, Vec<Hope>>,
    /// Classes that do not lack quota alone, each with the moment as of which it searched: who searched first is first.
    in_turn: BTreeMap<u64, (ClassId, Moment)>,
    turn_of: BTreeMap<ClassId, u64>,
    /// How many turns were given.
    turns: u64,
    /// Whether the last call left somebody to be asked.
    pub(super) are_more: bool,
}

impl Hopes {
    /// A class is asked again once so much came.
    pub(super) fn hope(&mut self, class: ClassId, (node, pair, lacking): Hope) {
        let sum = self.sums.entry((node, pair)).or_default();
        let until = sum.came + lacking.max(1);
        sum.until.insert((until, class));
        let hopes = self.of_class.entry(class).or_default();
        hopes.push((node, pair, until));
    }

    /// A class is asked again in its turn, once anything is different.
    pub(super) fn take_turns(&mut self, class: ClassId, moment: Moment) {
        self.turns += 1;
        self.in_turn.insert(self.turns, (class, moment));
        self.turn_of.insert(class, self.turns);
    }

    /// A class waits for nothing of this any more.
    pub(super) fn forget(&mut self, class: ClassId) {
        if let Some(turn) = self.turn_of.remove(&class) {
            self.in_turn.remove(&turn);
        }
        for (node, pair, until) in self.of_class.remove(&class).unwrap_or_default() {
            if let Some(sum) = self.sums.get_mut(&(node, pair)) {
                sum.until.remove(&(until, class));
                if sum.until.is_empty() {
                    self.sums.remove(&(node, pair));
                }
            }
        }
    }

    /// So much came at a node; who has waited for it.
    fn come(&mut self, node: NodeId, pair: PairId, amount: i128) -> Vec<ClassId> {
        let Some(sum) = self.sums.get_mut(&(node, pair)) else {
            return Vec::new();
        };
        sum.came = sum.came.saturating_add(amount);
        let came = sum.came;
        let until = sum.until.iter().take_while(|(until, _)| *until <= came);
        until.map(|(_, class)| *class).collect()
    }

    /// Who is next in turn, of those that searched before something changed; whether there are more.
    fn next_in_turn(&self, moment: Moment) -> (Vec<ClassId>, bool) {
        let mut waiting = self.in_turn.values();
        let mut next = Vec::new();
        while let Some((class, searched)) = waiting.next()
            && *searched != moment
        {
            if next.len() == MOST_ASKED {
                return (next, true);
            }
            next.push(*class);
        }
        (next, false)
    }

    /// Everybody who waits: the numbers of nodes are about to change.
    pub(super) fn everybody(&self) -> Vec<ClassId> {
        let waiting = self.of_class.keys().chain(self.turn_of.keys());
        waiting.copied().collect()
    }
}

impl State {
    /// So much came at a node and at those above it.
    pub(super) fn note_came(&mut self, from: NodeId, pair: PairId, amount: i128) {
        if self.hopes.sums.is_empty() {
            return;
        }
        let path: Vec<NodeId> = self.tree.path(from).collect();
        for node in path {
            for class in self.hopes.come(node, pair, amount) {
                self.wake(class);
            }
        }
    }

    /// A gang can be asked to give way from now on, that could not before or by others only.
    pub(super) fn note_can_be_asked(&mut self, gang: &GangUid) {
        if self.hopes.sums.is_empty() || self.tree_is_stale {
            return;
        }
        for delta in self.charges_of(gang) {
            let node = self.tree.node_of(&delta.team);
            if let Some((node, pair)) = node.zip(self.tree.known_pair(&delta.of)) {
                self.note_came(node, pair, delta.amount);
            }
        }
    }

    /// Asks some of those again who do not lack quota alone; whether there were any.
    pub(super) fn wake_in_turn(&mut self) -> bool {
        let (next, are_more) = self.hopes.next_in_turn(self.moment());
        self.hopes.are_more = are_more;
        for class in &next {
            self.wake(*class);
        }
        !next.is_empty()
    }
}
