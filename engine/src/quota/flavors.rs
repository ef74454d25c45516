//! What quota says about what a gang asks of a Flavor: each amount by itself.
//!
//! An amount is free, or there is too little now, or it is too much for ever. Where there is too little, others would have to
//! give way, and whether that is worth looking into depends on what the Team may do to them. A Flavor suits no better than
//! the amount for which it suits worst.

use super::{
    account::saturated,
    fungibility::{FlavorFungibility, Suitability},
    policy::{BorrowWithinCohort, ReclaimWithinCohort},
    preemption::Sharing,
    tree::{Lack, NodeId, PairId, QuotaTree, TreeFault},
};
use crate::{
    amount::{Amount, FlavorResource},
    names::TeamName,
};

/// What quota says about an amount of one resource of one Flavor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaVerdict {
    /// It is available.
    Free {
        /// How far up the quota tree it is had from.
        borrow_level: usize,
    },
    /// Less is available now.
    Short {
        /// How far up the quota tree it would be had from.
        borrow_level: usize,
    },
    /// It is more than the Team could ever have.
    ExceedsMax {
        /// The most that it could have.
        most: Amount,
    },
}

/// Why an amount is not available.
pub(crate) enum Shortage {
    /// Less is available now; where it lacks.
    Now(Lack),
    /// The Team would have to borrow for it now, and may not.
    Nominal,
    /// It is more than the Team could ever have.
    Ever { most: Amount },
}

impl FlavorFungibility {
    /// How well a Flavor suits whose amounts suit so well; `None` if there are none.
    pub fn worst(self, amounts: impl IntoIterator<Item = Suitability>) -> Option<Suitability> {
        let worse = |one, other| {
            if self.is_preferred(one, other) {
                other
            } else {
                one
            }
        };
        amounts.into_iter().reduce(worse)
    }
}

impl QuotaTree {
    /// What quota says about an amount that a Team would be charged in addition.
    pub fn verdict(
        &self,
        team: &TeamName,
        of: &FlavorResource,
        amount: Amount,
    ) -> Result<QuotaVerdict, TreeFault> {
        let nothing = match amount {
            Amount::ZERO => QuotaVerdict::Free { borrow_level: 0 },
            _ => QuotaVerdict::ExceedsMax { most: Amount::ZERO },
        };
        self.answer_or(team, of, nothing, |node, pair| {
            match self.judge_at(node, pair, amount) {
                Ok(borrow_level) => QuotaVerdict::Free { borrow_level },
                Err(Shortage::Now(_) | Shortage::Nominal) => QuotaVerdict::Short {
                    borrow_level: self.borrow_level_at(node, pair, amount),
                },
                Err(Shortage::Ever { most }) => QuotaVerdict::ExceedsMax { most },
            }
        })
    }

    /// How far up the tree an amount that is available is had from. What is available is never more than what the Team could
    /// ever have, so who fits is asked no more than that.
    pub(crate) fn judge_at(
        &self,
        team: NodeId,
        pair: PairId,
        amount: Amount,
    ) -> Result<usize, Shortage> {
        let Some(lack) = self.lack(team, pair, amount) else {
            return Ok(self.borrow_level_at(team, pair, amount));
        };
        let most = self.potential_at(team, pair);
        Err(if amount > most {
            Shortage::Ever { most }
        } else {
            Shortage::Now(lack)
        })
    }

    /// The same for who may not borrow.
    pub(crate) fn judge_within_nominal(
        &self,
        team: NodeId,
        pair: PairId,
        amount: Amount,
    ) -> Result<usize, Shortage> {
        let account = self.account(team, pair);
        let asked = i128::from(amount.0);
        if asked <= account.headroom() {
            return self.judge_at(team, pair, amount);
        }
        Err(if asked > account.subtree {
            Shortage::Ever {
                most: saturated(account.subtree),
            }
        } else {
            Shortage::Nominal
        })
    }

    /// Whether others may be made to give way for an amount of which too little is available: if the Team owns so much, or a
    /// part of the tree that it is in, or if it may preempt while it borrows.
    pub fn may_preempt(
        &self,
        team: &TeamName,
        of: &FlavorResource,
        amount: Amount,
        sharing: Sharing<'_>,
    ) -> Result<bool, TreeFault> {
        self.answer_or(team, of, false, |node, pair| {
            self.may_preempt_at(node, pair, amount, sharing)
        })
    }

    pub(crate) fn may_preempt_at(
        &self,
        team: NodeId,
        pair: PairId,
        amount: Amount,
        sharing: Sharing<'_>,
    ) -> bool {
        let policy = self.policy_of(team);
        let may_reclaim = policy.reclaim_within_cohort != ReclaimWithinCohort::Never;
        let is_owned = i128::from(amount.0) <= self.account(team, pair).nominal;
        let is_owned_by_a_part = || {
            let holder = self.holder_of(team, pair, amount);
            holder.is_some_and(|holder| self.parent_of(holder).is_some())
        };
        is_owned
            || is_owned_by_a_part()
            || policy.borrow_within_cohort != BorrowWithinCohort::Never
            || (matches!(sharing, Sharing::Fair(_)) && may_reclaim)
    }
}
