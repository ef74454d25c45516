//! Classes to which nobody gives way where shares are fair: with the gang charged, the share of their side would be larger than any
//! other.
//!
//! Others give way to a gang whose Team borrows only if at the lowest Cohort above both some other child has at least the share that
//! the gang's own side has with it. So a class that found no such child is asked again once there is one: because what its own side
//! uses fell, or because what another one uses rose. Both are looked up in order, and whoever is asked for too much is not looked at.
//!
//! What is looked up is a lower bound of the share that a class leads to: of what it asks for, the one resource that led to the largest
//! share when it began to wait. So one may be asked too early, and never too late; and whom another resource keeps from it is looked
//! at no more often than whoever asks for that one alone.
//!
//! A gang that may have gangs of its own Team go first has a smaller share then, so shares say nothing of who gives way to it besides:
//! it asks everybody. One that could ask nobody of its Team is asked again at once when it can.
//!
//! A class whose Team stays within its own quota has others give way whatever their shares. It does not wait here before its Team uses
//! too much for that, and is asked again once it uses less.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use super::ids::ClassId;
use crate::quota::{Asked, InOrder, Lendable, NodeId, PairId, QuotaTree, Sharing};

/// See the module. It goes by what will be charged, and holds as long as the limits of that tree do.
#[derive(Clone, Debug, Default)]
pub(super) struct ShareWaits {
    cohorts: BTreeMap<NodeId, Siblings>,
    /// What those who wait ask of a node at the least, by their own Team and each node on its way up: there each of one resource.
    asked: AskedOf,
    /// All that they ask of their own Team.
    of_team: AskedOf,
    of_class: BTreeMap<ClassId, OfClass>,
}

/// Who asks for how much, by node and resource.
type AskedOf = BTreeMap<(NodeId, PairId), BTreeSet<(i128, ClassId)>>;

/// Where a class is entered.
#[derive(Clone, Debug, Default)]
struct OfClass {
    asked: Vec<(NodeId, PairId, i128)>,
    of_team: Vec<(NodeId, PairId, i128)>,
}

fn remove(from: &mut AskedOf, (node, pair, amount): (NodeId, PairId, i128), class: ClassId) {
    if let Some(asked) = from.get_mut(&(node, pair)) {
        asked.remove(&(amount, class));
        if asked.is_empty() {
            from.remove(&(node, pair));
        }
    }
}

/// The children of a Cohort.
#[derive(Clone, Debug, Default)]
struct Siblings {
    /// What can be lent to them.
    lendable: Lendable,
    /// Those that borrow, by their shares.
    borrowing: InSize<NodeId>,
    /// Those below which somebody waits, by the least share that any of these leads to.
    least: InSize<(NodeId, PairId)>,
}

/// Things by shares.
#[derive(Clone, Debug)]
struct InSize<T> {
    shares: BTreeMap<T, InOrder>,
    order: BTreeSet<(InOrder, T)>,
}

impl<T> Default for InSize<T> {
    fn default() -> Self {
        Self {
            shares: BTreeMap::new(),
            order: BTreeSet::new(),
        }
    }
}

impl<T: Copy + Ord> InSize<T> {
    fn set(&mut self, of: T, share: Option<InOrder>) {
        let known = match share.clone() {
            Some(share) => self.shares.insert(of, share),
            None => self.shares.remove(&of),
        };
        if let Some(known) = known {
            self.order.remove(&(known, of));
        }
        if let Some(share) = share {
            self.order.insert((share, of));
        }
    }
}

impl Siblings {
    fn share_of(&self, tree: &QuotaTree, child: NodeId, added: &Asked) -> InOrder {
        InOrder(tree.share_with(child, Some(&self.lendable), added))
    }

    /// The largest share of a child but one, of those that borrow.
    fn largest_but(&self, child: NodeId) -> Option<&InOrder> {
        let mut largest = self.borrowing.order.iter().rev();
        let (share, _) = largest.find(|(_, other)| *other != child)?;
        Some(share)
    }

    /// What a child's share comes to with so much more of one resource.
    fn share_with(&self, tree: &QuotaTree, child: NodeId, pair: PairId, amount: i128) -> InOrder {
        self.share_of(tree, child, &Asked::from([(pair, amount)]))
    }
}

impl ShareWaits {
    /// For a tree; nobody waits.
    pub(super) fn of(tree: &QuotaTree) -> Self {
        let mut waits = Self::default();
        for node in tree.nodes() {
            let Some(cohort) = tree.parent_of(node) else {
                continue;
            };
            if !matches!(tree.sharing_of(node), Sharing::Fair(_)) {
                continue;
            }
            let siblings = waits.cohorts.entry(cohort).or_insert_with(|| Siblings {
                lendable: tree.lendable_of(cohort),
                ..Siblings::default()
            });
            let share = siblings.share_of(tree, node, &Asked::new());
            let share = share.0.is_borrowing().then_some(share);
            siblings.borrowing.set(node, share);
        }
        waits
    }

    /// Whether some other share is at least as large as that of a Team's side with so much more, at any Cohort above the Team.
    pub(super) fn is_any_as_large(&self, tree: &QuotaTree, team: NodeId, asked: &Asked) -> bool {
        let mut added = asked.clone();
        let mut children = tree.path(team);
        children.any(|child| {
            let cohort = tree.parent_of(child);
            let siblings = cohort.and_then(|cohort| self.cohorts.get(&cohort));
            let is_as_large = siblings.is_some_and(|siblings| {
                let largest = siblings.largest_but(child);
                largest.is_some_and(|largest| siblings.share_of(tree, child, &added) <= *largest)
            });
            added = tree.asked_above(child, &added);
            is_as_large
        })
    }

    /// Whether gangs of another Team may have to give way to a gang that asks for so much, as far as shares go. Where both Teams
    /// meet right above the first one, its share stays what it is, whoever goes, and the other one never grows by that.
    pub(super) fn may_be_as_large(
        &self,
        tree: &QuotaTree,
        team: NodeId,
        asked: &Asked,
        other: NodeId,
    ) -> bool {
        let Some(cohort) = tree.parent_of(team) else {
            return true;
        };
        let mut path = tree.path(other);
        let side = path.find(|node| tree.parent_of(*node) == Some(cohort));
        let Some((side, siblings)) = side.zip(self.cohorts.get(&cohort)) else {
            return true;
        };
        let share = siblings.borrowing.shares.get(&side);
        share.is_some_and(|share| siblings.share_of(tree, team, asked) <= *share)
    }

    /// A class of a Team waits, which asks for so much.
    pub(super) fn enter(&mut self, tree: &QuotaTree, class: ClassId, team: NodeId, asked: &Asked) {
        let mut least_of: BTreeMap<NodeId, Asked> = BTreeMap::new();
        let mut entered = OfClass::default();
        for (pair, amount) in asked {
            let of_team = self.of_team.entry((team, *pair)).or_default();
            of_team.insert((*amount, class));
            entered.of_team.push((team, *pair, *amount));
            for (node, least) in tree.least_asked_upwards(team, *pair, *amount) {
                least_of.entry(node).or_default().insert(*pair, least);
            }
        }
        for (node, least) in least_of {
            let cohort = tree.parent_of(node);
            let Some(siblings) = cohort.and_then(|cohort| self.cohorts.get(&cohort)) else {
                continue;
            };
            let by_share = least.into_iter().max_by_key(|(pair, amount)| {
                let share = siblings.share_with(tree, node, *pair, *amount);
                (share, Reverse(*pair))
            });
            if let Some((pair, amount)) = by_share {
                let asked = self.asked.entry((node, pair)).or_default();
                asked.insert((amount, class));
                entered.asked.push((node, pair, amount));
                self.note_least(tree, node, pair);
            }
        }
        let of_class = self.of_class.entry(class).or_default();
        of_class.asked.append(&mut entered.asked);
        of_class.of_team.append(&mut entered.of_team);
    }

    /// A class waits no longer.
    pub(super) fn forget(&mut self, tree: &QuotaTree, class: ClassId) {
        let entered = self.of_class.remove(&class).unwrap_or_default();
        for entry in entered.of_team {
            remove(&mut self.of_team, entry, class);
        }
        for entry in entered.asked {
            remove(&mut self.asked, entry, class);
            self.note_least(tree, entry.0, entry.1);
        }
    }

    /// Who waits below a node for the least share is another one, or the node uses more or less.
    fn note_least(&mut self, tree: &QuotaTree, node: NodeId, pair: PairId) {
        let cohort = tree.parent_of(node);
        let Some(siblings) = cohort.and_then(|cohort| self.cohorts.get_mut(&cohort)) else {
            return;
        };
        let asked = self.asked.get(&(node, pair)).and_then(BTreeSet::first);
        let share = asked.map(|(amount, _)| siblings.share_with(tree, node, pair, *amount));
        siblings.least.set((node, pair), share);
    }

    /// What a Team uses changed by so much. Who is to be asked again.
    pub(super) fn note_charged(
        &mut self,
        tree: &QuotaTree,
        team: NodeId,
        pair: PairId,
        amount: i128,
    ) -> BTreeSet<ClassId> {
        let mut concerned = BTreeSet::new();
        for node in tree.path(team) {
            let cohort = tree.parent_of(node);
            let Some(siblings) = cohort.and_then(|cohort| self.cohorts.get_mut(&cohort)) else {
                break;
            };
            let share = siblings.share_of(tree, node, &Asked::new());
            let is_borrowing = share.0.is_borrowing();
            siblings
                .borrowing
                .set(node, is_borrowing.then(|| share.clone()));
            let pairs: Vec<PairId> = self.pairs_asked_of(node).collect();
            for pair in pairs {
                self.note_least(tree, node, pair);
            }
            let siblings = cohort.and_then(|cohort| self.cohorts.get(&cohort));
            let Some(siblings) = siblings else { break };
            if amount < 0 {
                self.find_below(tree, siblings, node, &mut concerned);
            } else if is_borrowing {
                let least = siblings.least.order.iter();
                let least = least.take_while(|(least, _)| *least <= share);
                for (_, (other, pair)) in least.filter(|(_, (other, _))| *other != node) {
                    for (amount, class) in self.asked.get(&(*other, *pair)).into_iter().flatten() {
                        if siblings.share_with(tree, *other, *pair, *amount) > share {
                            break;
                        }
                        concerned.insert(*class);
                    }
                }
            }
        }
        // What is charged of anything else than what was asked for is no news to whoever stays within the quota.
        let has = tree.usage_and_headroom(team, pair).1;
        if amount < 0 {
            let within = self.of_team.get(&(team, pair)).into_iter().flatten();
            let within = within.take_while(|(amount, _)| *amount <= has);
            concerned.extend(within.map(|(_, class)| *class));
        }
        concerned
    }

    fn pairs_asked_of(&self, node: NodeId) -> impl Iterator<Item = PairId> + '_ {
        let from = (node, PairId::FIRST);
        let asked = self.asked.range(from..);
        let asked = asked.take_while(move |((of, _), _)| *of == node);
        asked.map(|((_, pair), _)| *pair)
    }

    /// Those below a child that uses less by now for whom some other child's share is large enough.
    fn find_below(
        &self,
        tree: &QuotaTree,
        siblings: &Siblings,
        child: NodeId,
        concerned: &mut BTreeSet<ClassId>,
    ) {
        let Some(largest) = siblings.largest_but(child) else {
            return;
        };
        for pair in self.pairs_asked_of(child) {
            for (amount, class) in self.asked.get(&(child, pair)).into_iter().flatten() {
                if siblings.share_with(tree, child, pair, *amount) > *largest {
                    break;
                }
                concerned.insert(*class);
            }
        }
    }
}
