//! Which gangs give back what their Teams use beyond what they may.
//!
//! A node of the tree is *over* where it uses more than its own quota and what it may borrow: its limits were lowered, or what it
//! borrowed from was. What is over at a node is given back by Teams below it that borrow, and of which every Cohort in between
//! borrows as well: who stays within its quota gives back nothing for others. While a root is over there is such a Team, since its use
//! is no more than its quota where nobody below it borrows.
//!
//! Gangs are taken away one by one, each only while its Team has to give back something that it holds; then every one is put back
//! that need not go. So none of those left can be spared: with it, its own Team would have to give something back, or another one would
//! that still could. Taking a gang away only lowers what is used, so a Team that owes nothing at some time owes nothing afterwards.

use std::collections::BTreeSet;

use super::tree::{NodeId, PairId, QuotaTree};

/// A tree from which gangs are taken away, until nobody owes anything. When it is dropped, the tree is as it was.
pub(crate) struct GivingBack<'a> {
    tree: &'a mut QuotaTree,
    taken: Vec<Taken>,
}

/// A gang that was taken away.
#[derive(Clone, Debug)]
struct Taken {
    position: usize,
    team: NodeId,
    charges: Vec<(PairId, i128)>,
    is_spared: bool,
}

/// Whether somebody else owes what a Team does: in a tree, by that Team, of a pair, given the positions that were put back.
type OthersOwe<'a> = dyn FnMut(&QuotaTree, NodeId, PairId, &BTreeSet<usize>) -> bool + 'a;

impl QuotaTree {
    /// The lowest node, from a Team upwards, that is over and for which the Team has to give something back.
    pub(crate) fn owed_to(&self, team: NodeId, pair: PairId) -> Option<NodeId> {
        for node in self.path(team) {
            if self.is_over(node, pair) {
                return Some(node);
            }
            if !self.borrows(node, pair) {
                return None;
            }
        }
        None
    }

    /// Whether a Team has to give anything back.
    pub(crate) fn owes(&self, team: NodeId) -> bool {
        let mut pairs = self.pairs_at(team);
        pairs.any(|pair| self.owed_to(team, pair).is_some())
    }
}

impl<'a> GivingBack<'a> {
    pub(crate) fn new(tree: &'a mut QuotaTree) -> Self {
        Self {
            tree,
            taken: Vec::new(),
        }
    }

    /// The tree without those that were taken away.
    pub(crate) fn tree(&self) -> &QuotaTree {
        self.tree
    }

    /// Takes a gang away if its Team owes something that it holds; returns of what, and to whom.
    pub(crate) fn take(
        &mut self,
        position: usize,
        team: NodeId,
        charges: Vec<(PairId, i128)>,
    ) -> Option<(NodeId, PairId)> {
        let owed = owed(self.tree, team, &charges)?;
        change(self.tree, team, &charges, -1);
        self.taken.push(Taken {
            position,
            team,
            charges,
            is_spared: false,
        });
        Some(owed)
    }

    /// Puts back who need not go, the last that was taken first, and returns the positions of the others, in the order in which they were
    /// taken. `others_owe`: whether any Team but this one owes so much of this in the tree, and has a gang that could go for it, given that
    /// those at these positions were put back. It is asked only where a node would be over again that is not.
    pub(crate) fn spare(&mut self, others_owe: &mut OthersOwe<'_>) -> Vec<usize> {
        let mut spared = BTreeSet::new();
        for gang in self.taken.iter_mut().rev() {
            let (tree, charges) = (&mut *self.tree, &gang.charges);
            let over = |tree: &QuotaTree| -> BTreeSet<(NodeId, PairId)> {
                let nodes = tree.path(gang.team);
                let nodes =
                    nodes.flat_map(|node| charges.iter().map(move |(pair, _)| (node, *pair)));
                nodes
                    .filter(|(node, pair)| tree.is_over(*node, *pair))
                    .collect()
            };
            let before = over(tree);
            change(tree, gang.team, charges, 1);
            let again = || -> BTreeSet<PairId> {
                let over = over(tree).into_iter();
                let again = over.filter(|at| !before.contains(at));
                again.map(|(_, pair)| pair).collect()
            };
            let has_to_go = owed(tree, gang.team, charges).is_some()
                || again()
                    .into_iter()
                    .any(|pair| others_owe(tree, gang.team, pair, &spared));
            if has_to_go {
                change(self.tree, gang.team, &gang.charges, -1);
            } else {
                gang.is_spared = true;
                spared.insert(gang.position);
            }
        }
        let going = self.taken.iter().filter(|gang| !gang.is_spared);
        going.map(|gang| gang.position).collect()
    }
}

impl Drop for GivingBack<'_> {
    fn drop(&mut self) {
        for gang in self.taken.iter().rev().filter(|gang| !gang.is_spared) {
            change(self.tree, gang.team, &gang.charges, 1);
        }
    }
}

/// What a Team owes of what one of its gangs holds, and to whom.
fn owed(tree: &QuotaTree, team: NodeId, charges: &[(PairId, i128)]) -> Option<(NodeId, PairId)> {
    let held = charges.iter().filter(|(_, amount)| *amount > 0);
    held.map(|(pair, _)| *pair)
        .find_map(|pair| Some((tree.owed_to(team, pair)?, pair)))
}

fn change(tree: &mut QuotaTree, team: NodeId, charges: &[(PairId, i128)], sign: i128) {
    for (pair, amount) in charges {
        tree.change(team, *pair, sign * amount, |_, _| {});
    }
}
