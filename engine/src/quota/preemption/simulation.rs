//! A quota tree from which gangs are taken away for a while.

use std::collections::BTreeSet;

use super::{Contest, Places, Victim, candidates::Candidate};
use crate::quota::tree::{NodeId, PairId, QuotaTree};

/// The tree during a search for victims. When it is dropped, the tree is as it was.
pub(super) struct Simulation<'a> {
    pub(super) tree: &'a mut QuotaTree,
    places: &'a mut dyn Places,
    /// Whether quota was there at some time, and no place.
    pub(super) lacked_a_place: bool,
    /// What was changed, so that it can be changed back.
    changes: Vec<(NodeId, PairId, i128)>,
}

impl<'a> Simulation<'a> {
    pub(super) fn new(tree: &'a mut QuotaTree, places: &'a mut dyn Places) -> Self {
        Self {
            tree,
            places,
            lacked_a_place: false,
            changes: Vec::new(),
        }
    }

    /// Has the tree as it was.
    pub(super) fn undo(&mut self) {
        for (team, pair, amount) in std::mem::take(&mut self.changes).into_iter().rev() {
            self.tree.change(team, pair, -amount, |_, _| {});
        }
    }

    fn change(&mut self, team: NodeId, charges: &[(PairId, i128)], sign: i128) {
        for (pair, amount) in charges {
            let amount = sign * amount;
            self.tree.change(team, *pair, amount, |_, _| {});
            self.changes.push((team, *pair, amount));
        }
    }

    /// Takes a gang away.
    pub(super) fn remove(&mut self, candidate: &Candidate) {
        self.change(candidate.team, &candidate.charges, -1);
    }

    /// Puts it back.
    pub(super) fn restore(&mut self, candidate: &Candidate) {
        self.change(candidate.team, &candidate.charges, 1);
    }

    /// Charges the preemptor.
    pub(super) fn admit(&mut self, contest: &Contest<'_>) {
        self.change(contest.team, &contest.request, 1);
    }

    /// Takes that charge back.
    pub(super) fn withdraw(&mut self, contest: &Contest<'_>) {
        self.change(contest.team, &contest.request, -1);
    }

    /// Whether the preemptor, which is not charged now, has quota and a place without these.
    pub(super) fn fits(
        &mut self,
        contest: &Contest<'_>,
        may_borrow: bool,
        victims: &[Chosen],
    ) -> bool {
        self.has_quota(contest, may_borrow) && self.has_place(victims)
    }

    /// Whether the preemptor, which is not charged now, has quota.
    pub(super) fn has_quota(&self, contest: &Contest<'_>, may_borrow: bool) -> bool {
        let team = contest.team;
        contest.request.iter().all(|(pair, amount)| {
            let available = i128::from(self.tree.available_at(team, *pair).0);
            let own = self.tree.account(team, *pair).headroom();
            *amount <= available && (may_borrow || *amount <= own)
        })
    }

    /// Whether it has a place without these.
    pub(super) fn has_place(&mut self, victims: &[Chosen]) -> bool {
        let is_there = self.places.is_there_without(&positions(victims));
        self.lacked_a_place |= !is_there;
        is_there
    }

    /// Whether the preemptor has a place without all of these, whoever of them may go.
    pub(super) fn has_place_without(&mut self, candidates: &[Candidate]) -> bool {
        let positions: Vec<usize> = candidates.iter().map(|it| it.position).collect();
        self.places.is_there_without(&positions)
    }

    /// See [`Places::domains`].
    pub(super) fn domains(&mut self) -> Vec<BTreeSet<usize>> {
        self.places.domains()
    }

    /// Of victims without whom there is a place, the first so many without whom there is one, given that there is none
    /// without the first `in_vain`. The others are put back.
    pub(super) fn shorten(&mut self, chosen: &mut Vec<Chosen>, in_vain: usize) {
        let (mut too_few, mut enough) = (in_vain, chosen.len());
        while enough - too_few > 1 {
            let middle = usize::midpoint(too_few, enough);
            if self.has_place(&chosen[..middle]) {
                enough = middle;
            } else {
                too_few = middle;
            }
        }
        for spared in chosen.drain(enough..) {
            self.restore(&spared.candidate);
        }
    }

    /// Puts back every victim that was not needed, the last but one first. The last one was needed when it was taken.
    pub(super) fn fill_back(
        &mut self,
        contest: &Contest<'_>,
        may_borrow: bool,
        mut chosen: Vec<Chosen>,
    ) -> Vec<Victim> {
        let in_the_way = self.places.in_the_way(&positions(&chosen));
        // Those that are not in the way of the place that was found leave it as it is, and are asked for nothing but quota.
        for may_move in [false, true] {
            for at in (0..chosen.len().saturating_sub(1)).rev() {
                let is_in_the_way = in_the_way.contains(&chosen[at].victim.position);
                if is_in_the_way != may_move {
                    continue;
                }
                let spared = chosen.remove(at);
                self.restore(&spared.candidate);
                let still_fits =
                    self.has_quota(contest, may_borrow) && (!may_move || self.has_place(&chosen));
                if !still_fits {
                    self.remove(&spared.candidate);
                    chosen.insert(at, spared);
                }
            }
        }
        chosen.into_iter().map(|chosen| chosen.victim).collect()
    }
}

fn positions(chosen: &[Chosen]) -> Vec<usize> {
    chosen.iter().map(|chosen| chosen.victim.position).collect()
}

impl Drop for Simulation<'_> {
    fn drop(&mut self) {
        self.undo();
    }
}

/// A gang that was taken away.
#[derive(Clone)]
pub(super) struct Chosen {
    pub(super) candidate: Candidate,
    pub(super) victim: Victim,
}
