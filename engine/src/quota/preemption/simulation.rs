//! A quota tree from which gangs are taken away for a while.

use super::{Contest, Victim, candidates::Candidate};
use crate::quota::tree::{NodeId, PairId, QuotaTree};

/// The tree during a search for victims. When it is dropped, the tree is as it was.
pub(super) struct Simulation<'a> {
    pub(super) tree: &'a mut QuotaTree,
    has_place: &'a mut dyn FnMut(&[usize]) -> bool,
    /// What was changed, so that it can be changed back.
    changes: Vec<(NodeId, PairId, i128)>,
}

impl<'a> Simulation<'a> {
    pub(super) fn new(
        tree: &'a mut QuotaTree,
        has_place: &'a mut dyn FnMut(&[usize]) -> bool,
    ) -> Self {
        Self {
            tree,
            has_place,
            changes: Vec::new(),
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
        let team = contest.team;
        let has_quota = contest.request.iter().all(|(pair, amount)| {
            let available = i128::from(self.tree.available_at(team, *pair).0);
            let own = self.tree.account(team, *pair).headroom();
            *amount <= available && (may_borrow || *amount <= own)
        });
        has_quota && {
            let gone: Vec<usize> = victims
                .iter()
                .map(|chosen| chosen.victim.position)
                .collect();
            (self.has_place)(&gone)
        }
    }

    /// Puts back every victim that was not needed, the last but one first. The last one was needed when it was taken.
    pub(super) fn fill_back(
        &mut self,
        contest: &Contest<'_>,
        may_borrow: bool,
        mut chosen: Vec<Chosen>,
    ) -> Vec<Victim> {
        for position in (0..chosen.len().saturating_sub(1)).rev() {
            let spared = chosen.remove(position);
            self.restore(&spared.candidate);
            if !self.fits(contest, may_borrow, &chosen) {
                self.remove(&spared.candidate);
                chosen.insert(position, spared);
            }
        }
        chosen.into_iter().map(|chosen| chosen.victim).collect()
    }
}

impl Drop for Simulation<'_> {
    fn drop(&mut self) {
        for (team, pair, amount) in std::mem::take(&mut self.changes).into_iter().rev() {
            self.tree.change(team, pair, -amount, |_, _| {});
        }
    }
}

/// A gang that was taken away.
#[derive(Clone)]
pub(super) struct Chosen {
    pub(super) candidate: Candidate,
    pub(super) victim: Victim,
}
