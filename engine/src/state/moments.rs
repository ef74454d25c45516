//! Quota now, and afterwards.
//!
//! While victims go there are two truths. *Now* they are charged, and those to whom they give way are not; *afterwards* it is
//! the other way round. Each is a tree, and every change is applied to both in time linear in what changed:
//!
//! | change | now | afterwards |
//! |---|---|---|
//! | a hold comes or goes | charged | charged, unless its gang gives way |
//! | a gang begins to give way | - | all that is charged for it is taken back |
//! | it does so no longer | - | all that is charged for it is charged again |
//! | something is kept for a gang, or no longer | - | charged ahead |
//!
//! Who is asked what:
//! * Whoever is to be admitted must fit at both moments: now, so that nothing is over its limit (S1), and afterwards, so that it
//!   takes nothing of what is freed for others. It is judged by [`State::tree`], in which each account uses the larger of both.
//!   That is safe, since what is available falls with each usage, and may be more than needed: where one account is fuller now
//!   and another one afterwards, a gang that fits at each of the moments may be refused until the victims are gone, be it
//!   within the quota of its Team.
//! * Whoever looks for victims is judged by what is there afterwards: victims of others are no help to it, what is kept for
//!   others is in its way.
//! * Whoever gives way to others is charged until its release is proved, whatever it does meanwhile: if its holds shrink, what
//!   they give back is free now and taken afterwards; if they grow, the reverse.

use std::collections::{BTreeMap, BTreeSet};

use super::{State, limits::Limits};
use crate::{
    names::{GangUid, TeamName},
    quota::{
        NodeId, PairId, QuotaTree,
        charges::{Delta, undoing},
    },
};

/// See the module. Both have the numbers of nodes and pairs that [`State::tree`] has.
#[derive(Clone, Debug, Default)]
pub(super) struct Moments {
    /// As things are.
    pub(super) now: QuotaTree,
    /// As if all that give way were gone, and those to whom they give way admitted.
    pub(super) afterwards: QuotaTree,
    /// The Teams that borrow then, by root: among them are all who may be asked for what is lent.
    borrowing: BTreeMap<(NodeId, PairId), BTreeSet<TeamName>>,
    /// See [`Moments::charged`].
    charged: BTreeMap<(NodeId, PairId), i128>,
    /// See [`Moments::freed`].
    freed: BTreeMap<NodeId, u64>,
    /// See [`Moments::freed_in_all`].
    freed_in_all: u64,
}

impl Moments {
    /// The Teams in the tree of a root that borrow something afterwards.
    pub(super) fn borrowing(&self, root: NodeId, pair: PairId) -> impl Iterator<Item = &TeamName> {
        self.borrowing.get(&(root, pair)).into_iter().flatten()
    }

    /// How much was charged in the tree of a root since it was built, or more. What is available to a Team has fallen by no more since, but for
    /// what it was charged itself.
    pub(super) fn charged(&self, root: NodeId, pair: PairId) -> i128 {
        self.charged.get(&(root, pair)).copied().unwrap_or_default()
    }

    /// Moves whenever something in the tree of a root is charged no longer, now or afterwards.
    pub(super) fn freed(&self, root: NodeId) -> u64 {
        self.freed.get(&root).copied().unwrap_or_default()
    }

    /// Moves whenever it does so for any root.
    pub(super) fn freed_in_all(&self) -> u64 {
        self.freed_in_all
    }

    /// What has come free in the tree of a root since a moment ([`Moments::freed`]) was charged again by those who had it: it was free for a question
    /// only.
    pub(super) fn forget_freed_since(&mut self, root: NodeId, moment: u64) {
        let since = self.freed(root).saturating_sub(moment);
        self.freed_in_all = self.freed_in_all.saturating_sub(since);
        self.freed.insert(root, moment);
    }

    fn note_freed(&mut self, root: NodeId) {
        *self.freed.entry(root).or_default() += 1;
        self.freed_in_all += 1;
    }

    /// What a Team will be charged changes.
    fn change_afterwards(&mut self, (name, team): (&TeamName, NodeId), pair: PairId, amount: i128) {
        let tree = &mut self.afterwards;
        tree.change(team, pair, amount, |_, _| {});
        let key = (tree.root_of(team), pair);
        if tree.borrows(team, pair) {
            let teams = self.borrowing.entry(key).or_default();
            if !teams.contains(name) {
                teams.insert(name.clone());
            }
        } else if let Some(teams) = self.borrowing.get_mut(&key) {
            teams.remove(name);
            if teams.is_empty() {
                self.borrowing.remove(&key);
            }
        }
    }
}

/// Which moments a change is about.
#[derive(Clone, Copy)]
enum Concerns {
    /// Both, or the present alone for gangs that give way.
    Holds,
    /// The time afterwards alone.
    Afterwards,
}

impl State {
    /// What is really charged changed.
    pub(super) fn change_tree(&mut self, deltas: &[Delta]) {
        self.change_moments(deltas, Concerns::Holds);
    }

    /// What will be charged changed.
    pub(super) fn change_afterwards(&mut self, deltas: &[Delta]) {
        self.change_moments(deltas, Concerns::Afterwards);
    }

    fn change_moments(&mut self, deltas: &[Delta], concerns: Concerns) {
        if deltas.is_empty() {
            return;
        }
        self.charge_version += 1;
        if self.tree_is_stale {
            return;
        }
        let (mut released, mut came) = (Vec::new(), Vec::new());
        let (mut candidates, mut begin_to_borrow) = (Vec::new(), Vec::new());
        let mut by_shares = BTreeSet::new();
        for delta in deltas {
            let Some(node) = self.tree.node_of(&delta.team) else {
                continue;
            };
            let pair = self.tree.pair(&delta.of);
            self.moments.now.name_as(&self.tree);
            self.moments.afterwards.name_as(&self.tree);
            let (is_now, is_afterwards) = match concerns {
                Concerns::Holds => (true, !self.reservations.gives_way(&delta.gang)),
                Concerns::Afterwards => (false, true),
            };
            if is_now {
                self.moments.now.change(node, pair, delta.amount, |_, _| {});
            }
            if delta.amount > 0 {
                // Where the two moments differ it may be missing once at each node on the way up.
                let times: i128 = if self.reservations.is_empty() {
                    1
                } else {
                    self.tree.path(node).map(|_| 1).sum()
                };
                let key = (self.tree.root_of(node), pair);
                let charged = self.moments.charged.entry(key).or_default();
                *charged = charged.saturating_add(delta.amount.saturating_mul(times));
            } else {
                let root = self.tree.root_of(node);
                self.moments.note_freed(root);
            }
            self.note_shrinking_at(node, pair, if is_now { delta.amount } else { 0 });
            let lends_to: Vec<_> = if is_afterwards && delta.amount > 0 {
                let afterwards = &self.moments.afterwards;
                let path = afterwards.path(node);
                path.filter(|at| !afterwards.borrows(*at, pair)).collect()
            } else {
                Vec::new()
            };
            if is_afterwards {
                self.moments
                    .change_afterwards((&delta.team, node), pair, delta.amount);
                self.note_charged(node, delta.amount);
                let afterwards = &self.moments.afterwards;
                let concerned = self
                    .share_waits
                    .note_charged(afterwards, node, pair, delta.amount);
                by_shares.extend(concerned);
                if delta.amount < 0 {
                    came.push((node, pair, -delta.amount));
                } else {
                    candidates.push((&delta.gang, (node, pair, delta.amount)));
                }
            }
            let Moments {
                now, afterwards, ..
            } = &self.moments;
            for at in lends_to {
                if afterwards.borrows(at, pair) {
                    let usage = afterwards.usage_and_headroom(at, pair).0;
                    begin_to_borrow.push((at, pair, usage));
                }
            }
            let note = |at, what| released.push((at, pair, what));
            self.tree.use_larger(node, pair, (now, afterwards), note);
        }
        for class in by_shares {
            self.wake(class);
        }
        for (node, pair, amount) in came {
            self.note_came(node, pair, amount);
        }
        for (gang, holds) in candidates {
            self.note_candidate(gang, holds);
        }
        for borrows in begin_to_borrow {
            self.note_borrows(borrows);
        }
        for (node, pair, what) in released {
            if what.ceiling
                && let Some(ceiling) = self.tree.ceiling(node, pair)
            {
                self.waits.open_quota(node, pair, ceiling);
            }
            let has = self.tree.usage_and_headroom(node, pair).1;
            for class in self.waits.for_nominal(node, pair, has) {
                self.wake(class);
            }
            if what.local {
                for class in self.waits.watching(node, pair) {
                    self.wake(class);
                }
            }
            if what.headroom {
                self.list_again_below(node);
            }
        }
    }

    /// What counts for whoever is to be admitted, after these changes of what is charged; `freed` is told what they free.
    pub(super) fn tree_after(
        &self,
        deltas: &[Delta],
        mut freed: impl FnMut(NodeId, PairId),
    ) -> QuotaTree {
        let mut tree = self.tree.clone();
        if self.reservations.is_empty() {
            tree.apply(deltas, |node, pair, _| freed(node, pair));
            return tree;
        }
        let Moments {
            mut now,
            mut afterwards,
            ..
        } = self.moments.clone();
        for delta in deltas {
            let Some((node, pair)) = tree.node_of(&delta.team).zip(tree.known_pair(&delta.of))
            else {
                continue;
            };
            now.name_as(&tree);
            afterwards.name_as(&tree);
            now.change(node, pair, delta.amount, |_, _| {});
            if !self.reservations.gives_way(&delta.gang) {
                afterwards.change(node, pair, delta.amount, |_, _| {});
            }
            tree.use_larger(node, pair, (&now, &afterwards), |at, _| freed(at, pair));
        }
        tree
    }

    /// Charges this for a question, and nobody is told so: the caller takes it back ([`undoing`]) before anybody else asks anything. All three trees are
    /// then as they were, at the cost of what is asked about and not of the trees.
    pub(super) fn charge_for_a_question(&mut self, deltas: &[Delta]) {
        for delta in deltas {
            let Some((node, pair)) = self
                .tree
                .node_of(&delta.team)
                .zip(self.tree.known_pair(&delta.of))
            else {
                continue;
            };
            let Moments {
                now, afterwards, ..
            } = &mut self.moments;
            now.name_as(&self.tree);
            afterwards.name_as(&self.tree);
            now.change(node, pair, delta.amount, |_, _| {});
            if !self.reservations.gives_way(&delta.gang) {
                afterwards.change(node, pair, delta.amount, |_, _| {});
            }
            self.tree
                .use_larger(node, pair, (&*now, &*afterwards), |_, _| {});
        }
    }

    /// All that is charged for a gang.
    pub(super) fn charges_of(&self, gang: &GangUid) -> Vec<Delta> {
        let pods = self.running.pods_of(gang);
        let holds = pods.filter_map(|pod| self.holds.get(pod));
        let mut teams: Vec<_> = holds.map(|hold| hold.team.clone()).collect();
        teams.sort_unstable();
        teams.dedup();
        let charges = teams.into_iter().flat_map(|team| {
            let charges = self.charges.of_gang(&team, gang);
            charges.into_iter().map(move |charge| Delta {
                gang: gang.clone(),
                team: team.clone(),
                of: charge.of,
                amount: i128::from(charge.amount.0),
            })
        });
        charges.collect()
    }

    /// The trees of the limits that are told, with all that is charged and kept.
    pub(super) fn built_trees(&self) -> (QuotaTree, Moments) {
        let Limits { teams, cohorts, .. } = &self.limits;
        let now = QuotaTree::new(teams, cohorts, self.charges.sums());
        let mut moments = Moments {
            afterwards: now.clone(),
            now,
            borrowing: BTreeMap::new(),
            charged: BTreeMap::new(),
            freed: BTreeMap::new(),
            freed_in_all: 0,
        };
        let mut tree = moments.now.clone();
        for (team, of, _) in self.charges.sums() {
            if let Some((node, pair)) = tree.node_of(team).zip(tree.known_pair(of)) {
                moments.change_afterwards((team, node), pair, 0);
            }
        }
        let going = self.reservations.victims();
        let going: Vec<Delta> = going.flat_map(|gang| self.charges_of(gang)).collect();
        let ahead = self.reservations.charges().cloned();
        for delta in undoing(&going).into_iter().chain(ahead) {
            let Some(node) = tree.node_of(&delta.team) else {
                continue;
            };
            let pair = tree.pair(&delta.of);
            moments.now.name_as(&tree);
            moments.afterwards.name_as(&tree);
            moments.change_afterwards((&delta.team, node), pair, delta.amount);
            let both = (&moments.now, &moments.afterwards);
            tree.use_larger(node, pair, both, |_, _| {});
        }
        (tree, moments)
    }
}
