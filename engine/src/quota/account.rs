//! The account of one node of the quota tree for one Flavor and resource.
//!
//! *Subtree quota* is what a node and all below it put in; *local quota* the part of it that never leaves the node
//! (above the lending limit); *usage* what is charged at or below the node and not covered by a child's local
//! quota. Without a lending limit the local quota is zero: all of it lives in the parent.

use crate::{amount::Amount, model::QuotaLimit};

/// Quota and usage of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Account {
    /// Guaranteed to the owner.
    pub(super) nominal: i128,
    borrowing_limit: Option<i128>,
    lending_limit: Option<i128>,
    /// `nominal`, and what the children lend.
    pub(super) subtree: i128,
    pub(super) usage: i128,
}

impl Account {
    /// Sets the limit, before anything is lent or charged. Of an owner that lists a Flavor twice the last entry counts.
    pub(super) fn set_limit(&mut self, limit: &QuotaLimit) {
        self.nominal = i128::from(limit.nominal.0);
        self.subtree = self.nominal;
        self.borrowing_limit = limit.borrowing_limit.map(|limit| i128::from(limit.0));
        self.lending_limit = limit.lending_limit.map(|limit| i128::from(limit.0));
    }

    /// Sets the most that may be borrowed; returns what it was.
    pub(super) fn limit_borrowing(&mut self, limit: Option<i128>) -> Option<i128> {
        std::mem::replace(&mut self.borrowing_limit, limit)
    }

    /// What never leaves the node.
    pub(super) fn local_quota(&self) -> i128 {
        self.lending_limit
            .map_or(0, |lent| (self.subtree - lent).max(0))
    }

    /// What of the local quota is not used.
    pub(super) fn local_available(&self) -> i128 {
        (self.local_quota() - self.usage).max(0)
    }

    /// What the node lends to its parent.
    pub(super) fn lent(&self) -> i128 {
        self.subtree - self.local_quota()
    }

    /// What is charged to its parent.
    pub(super) fn used_above(&self) -> i128 {
        (self.usage - self.local_quota()).max(0)
    }

    /// What is left before the node borrows.
    pub(super) fn headroom(&self) -> i128 {
        self.subtree - self.usage
    }

    /// The most that the node itself lets pass, its own share and what it may borrow together; `None` if it
    /// sets no bound. A root cannot borrow.
    pub(super) fn ceiling(&self, is_root: bool) -> Option<i128> {
        if is_root {
            return Some(self.headroom());
        }
        self.borrowing_limit.map(|limit| self.headroom() + limit)
    }

    /// The most that the node could ever have, if its parent could have so much.
    pub(super) fn potential(&self, of_parent: Option<i128>) -> i128 {
        let Some(of_parent) = of_parent else {
            return self.subtree;
        };
        let most = self.local_quota() + of_parent;
        self.potential_bound().map_or(most, |bound| most.min(bound))
    }

    /// The most that a node below others could ever have, whatever they could; `None` if it sets no bound.
    pub(super) fn potential_bound(&self) -> Option<i128> {
        self.borrowing_limit.map(|limit| self.subtree + limit)
    }

    /// Charges the node; what its parent is charged.
    pub(super) fn charge(&mut self, amount: i128) -> i128 {
        let covered = self.local_available();
        self.usage += amount;
        (amount - covered).max(0)
    }

    /// Takes a charge back; what its parent gets back.
    pub(super) fn discharge(&mut self, amount: i128) -> i128 {
        let above = self.usage - self.local_quota();
        self.usage -= amount;
        amount.min(above).max(0)
    }
}

/// The closest 64-bit amount.
pub(super) fn saturated(amount: i128) -> Amount {
    let bound = |limit: i64| i128::from(limit);
    let clamped = amount.clamp(bound(i64::MIN), bound(i64::MAX));
    Amount(i64::try_from(clamped).unwrap_or(i64::MAX))
}
