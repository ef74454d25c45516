//! The arithmetic of the quota tree, on checked integers.
//!
//! Words: a node's *subtree quota* is what it and all below it put in; *local quota* the part of it that
//! never leaves the node (above the lending limit); *usage* what is charged at or below it and not covered
//! by a child's local quota. Without a lending limit the local quota is zero: all of it lives in the parent.

use std::collections::BTreeMap;

use super::{OVERADMISSION_EATS_GUARANTEES, graph::Graph};
use crate::{
    amount::{Amount, FlavorResource, Overflow},
    model::{Cohort, Quota, QuotaLimit, Team},
    names::{CohortName, TeamName},
};

/// Why a Team has no place in the tree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeFault {
    /// Nobody told of such a Team.
    #[error("there is no such Team")]
    UnknownTeam,
    /// The Cohorts above it form a cycle; this one, the first by name, is on it.
    #[error("the Cohorts above the Team form a cycle through {0}")]
    Cycle(CohortName),
    /// A sum in its tree did not fit.
    #[error(transparent)]
    Overflow(#[from] Overflow),
}

/// The quota tree with what is charged in it.
#[derive(Clone, Debug, Default)]
pub struct QuotaTree {
    nodes: Vec<QuotaNode>,
    teams: BTreeMap<TeamName, usize>,
    cut_off: BTreeMap<TeamName, CohortName>,
}

#[derive(Clone, Debug, Default)]
struct QuotaNode {
    parent: Option<usize>,
    root: usize,
    /// 0 for a Team, else one more than the highest child.
    height: usize,
    accounts: BTreeMap<FlavorResource, Account>,
    /// Set at a root when a sum below it did not fit; its Teams are answered with the error.
    overflowed: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Account {
    limit: QuotaLimit,
    subtree: Amount,
    usage: Amount,
}

impl Account {
    /// What never leaves the node.
    fn local_quota(&self) -> Result<Amount, Overflow> {
        match self.limit.lending_limit {
            Some(lent) => Ok(self.subtree.subtract(lent)?.max(Amount::ZERO)),
            None => Ok(Amount::ZERO),
        }
    }

    fn local_available(&self) -> Result<Amount, Overflow> {
        Ok(self.local_quota()?.subtract(self.usage)?.max(Amount::ZERO))
    }

    /// The most that may still come from the parent under the borrowing limit.
    fn borrow_term(&self, limit: Amount) -> Result<Amount, Overflow> {
        let local = self.local_quota()?;
        let taken = self.usage.subtract(local)?.max(Amount::ZERO);
        self.subtree.subtract(local)?.subtract(taken)?.add(limit)
    }
}

impl QuotaTree {
    /// The tree of these Teams and Cohorts, with what each Team uses.
    pub fn new<'a>(
        teams: &BTreeMap<TeamName, Team>,
        cohorts: &BTreeMap<CohortName, Cohort>,
        usage: impl IntoIterator<Item = (&'a TeamName, &'a FlavorResource, Result<Amount, Overflow>)>,
    ) -> Self {
        let graph = Graph::new(teams, cohorts);
        let mut tree = Self::default();
        let mut places: BTreeMap<&CohortName, usize> = BTreeMap::new();
        for name in graph.parents_first() {
            let parent = graph.parents.get(name).and_then(Option::as_ref);
            let parent = parent.and_then(|parent| places.get(parent)).copied();
            let own = cohorts.get(name).map(|cohort| &cohort.quota);
            places.insert(name, tree.push(parent, own));
        }
        for team in teams.values() {
            let cycle = team
                .cohort
                .as_ref()
                .and_then(|name| graph.endless.get(name));
            if let Some(cycle) = cycle {
                tree.cut_off.insert(team.name.clone(), cycle.clone());
                continue;
            }
            let parent = team
                .cohort
                .as_ref()
                .and_then(|name| places.get(name))
                .copied();
            let node = tree.push(parent, Some(&team.quota));
            tree.teams.insert(team.name.clone(), node);
        }
        tree.roll_up();
        for (team, of, amount) in usage {
            match amount {
                Ok(amount) => tree.charge(team, of, amount),
                Err(Overflow) => tree.give_up(team),
            }
        }
        tree
    }

    fn push(&mut self, parent: Option<usize>, quota: Option<&Quota>) -> usize {
        let index = self.nodes.len();
        let root = parent.map_or(index, |parent| self.nodes[parent].root);
        let mut accounts = BTreeMap::new();
        for (flavor, resources) in quota.into_iter().flatten() {
            for (resource, limit) in resources {
                let of = FlavorResource {
                    flavor: flavor.clone(),
                    resource: resource.clone(),
                };
                let account = Account {
                    limit: *limit,
                    subtree: limit.nominal,
                    usage: Amount::ZERO,
                };
                accounts.insert(of, account);
            }
        }
        self.nodes.push(QuotaNode {
            parent,
            root,
            height: 0,
            accounts,
            overflowed: false,
        });
        index
    }

    /// Adds what children lend to their parents. Children stand behind their parents.
    fn roll_up(&mut self) {
        for index in (0..self.nodes.len()).rev() {
            let Some(parent) = self.nodes[index].parent else {
                continue;
            };
            let height = self.nodes[index].height + 1;
            self.nodes[parent].height = self.nodes[parent].height.max(height);
            let lent: Vec<(FlavorResource, Result<Amount, Overflow>)> = self.nodes[index]
                .accounts
                .iter()
                .map(|(of, account)| {
                    let lent = account
                        .local_quota()
                        .and_then(|local| account.subtree.subtract(local));
                    (of.clone(), lent)
                })
                .collect();
            for (of, lent) in lent {
                let account = self.nodes[parent].accounts.entry(of).or_default();
                match lent.and_then(|lent| account.subtree.add(lent)) {
                    Ok(subtree) => account.subtree = subtree,
                    Err(Overflow) => self.mark_overflowed(index),
                }
            }
        }
    }

    fn mark_overflowed(&mut self, index: usize) {
        let root = self.nodes[index].root;
        self.nodes[root].overflowed = true;
    }

    fn give_up(&mut self, team: &TeamName) {
        if let Some(&index) = self.teams.get(team) {
            self.mark_overflowed(index);
        }
    }

    /// Whether some sum did not fit: then the tree has to be built anew when usage changes.
    pub(crate) fn is_overflowed(&self) -> bool {
        self.nodes.iter().any(|node| node.overflowed)
    }

    fn account(&self, index: usize, of: &FlavorResource) -> Account {
        self.nodes[index]
            .accounts
            .get(of)
            .copied()
            .unwrap_or_default()
    }

    /// Where a Team stands in the tree.
    fn place(&self, team: &TeamName) -> Result<usize, TreeFault> {
        if let Some(cohort) = self.cut_off.get(team) {
            return Err(TreeFault::Cycle(cohort.clone()));
        }
        let index = *self.teams.get(team).ok_or(TreeFault::UnknownTeam)?;
        if self.nodes[self.nodes[index].root].overflowed {
            return Err(Overflow.into());
        }
        Ok(index)
    }

    /// Whether a Team can be answered for.
    pub fn check(&self, team: &TeamName) -> Result<(), TreeFault> {
        self.place(team).map(|_| ())
    }

    /// Whether two Teams hang in the same tree.
    pub fn share_a_tree(&self, one: &TeamName, other: &TeamName) -> bool {
        one == other
            || self
                .root_of(one)
                .is_some_and(|root| self.root_of(other) == Some(root))
    }

    /// A number for the tree in which a Team hangs, until the next change of limits.
    pub(crate) fn root_of(&self, team: &TeamName) -> Option<usize> {
        self.teams.get(team).map(|index| self.nodes[*index].root)
    }

    /// Charges a Team. A sum that does not fit disables its tree, see [`TreeFault::Overflow`]; a
    /// Team that is unknown or cut off by a cycle is not charged.
    pub fn charge(&mut self, team: &TeamName, of: &FlavorResource, amount: Amount) {
        self.change(team, |tree, index| tree.add(index, of, amount));
    }

    /// Takes a charge back.
    pub fn discharge(&mut self, team: &TeamName, of: &FlavorResource, amount: Amount) {
        self.change(team, |tree, index| tree.remove(index, of, amount));
    }

    fn change(
        &mut self,
        team: &TeamName,
        change: impl FnOnce(&mut Self, usize) -> Result<(), Overflow>,
    ) {
        if let Ok(index) = self.place(team)
            && change(self, index).is_err()
        {
            self.mark_overflowed(index);
        }
    }

    fn add(&mut self, index: usize, of: &FlavorResource, amount: Amount) -> Result<(), Overflow> {
        self.climb(index, of, amount, |account, amount| {
            let covered = account.local_available()?;
            account.usage = account.usage.add(amount)?;
            amount.subtract(covered)
        })
    }

    fn remove(
        &mut self,
        index: usize,
        of: &FlavorResource,
        amount: Amount,
    ) -> Result<(), Overflow> {
        self.climb(index, of, amount, |account, amount| {
            let above = account.usage.subtract(account.local_quota()?)?;
            account.usage = account.usage.subtract(amount)?;
            Ok(amount.min(above))
        })
    }

    /// Changes the account of a node by an amount, then that of its parent by what `change` says is left for it, and so
    /// on while anything is left.
    fn climb(
        &mut self,
        index: usize,
        of: &FlavorResource,
        mut amount: Amount,
        change: impl Fn(&mut Account, Amount) -> Result<Amount, Overflow>,
    ) -> Result<(), Overflow> {
        let mut at = Some(index);
        while let Some(index) = at
            && amount > Amount::ZERO
        {
            let node = &mut self.nodes[index];
            amount = change(node.accounts.entry(of.clone()).or_default(), amount)?;
            at = node.parent;
        }
        Ok(())
    }

    /// What the Team was promised.
    pub fn nominal(&self, team: &TeamName, of: &FlavorResource) -> Result<Amount, TreeFault> {
        Ok(self.account(self.place(team)?, of).limit.nominal)
    }

    /// What is charged to the Team.
    pub fn used(&self, team: &TeamName, of: &FlavorResource) -> Result<Amount, TreeFault> {
        Ok(self.account(self.place(team)?, of).usage)
    }

    /// What the Team could get in addition now, borrowing included; never negative.
    pub fn available(&self, team: &TeamName, of: &FlavorResource) -> Result<Amount, TreeFault> {
        let index = self.place(team)?;
        Ok(self.available_at(index, of)?.max(Amount::ZERO))
    }

    fn available_at(&self, index: usize, of: &FlavorResource) -> Result<Amount, Overflow> {
        let account = self.account(index, of);
        let Some(parent) = self.nodes[index].parent else {
            return account.subtree.subtract(account.usage);
        };
        let mut from_parent = self.available_at(parent, of)?;
        if let Some(limit) = account.limit.borrowing_limit {
            from_parent = from_parent.min(account.borrow_term(limit)?);
        }
        if !OVERADMISSION_EATS_GUARANTEES {
            from_parent = from_parent.max(Amount::ZERO);
        }
        account.local_available()?.add(from_parent)
    }

    /// The most that the Team could ever have, whatever others use.
    pub fn potentially_available(
        &self,
        team: &TeamName,
        of: &FlavorResource,
    ) -> Result<Amount, TreeFault> {
        Ok(self.potential_at(self.place(team)?, of)?)
    }

    fn potential_at(&self, index: usize, of: &FlavorResource) -> Result<Amount, Overflow> {
        let account = self.account(index, of);
        let Some(parent) = self.nodes[index].parent else {
            return Ok(account.subtree);
        };
        let most = account.local_quota()?.add(self.potential_at(parent, of)?)?;
        match account.limit.borrowing_limit {
            Some(limit) => Ok(most.min(account.subtree.add(limit)?)),
            None => Ok(most),
        }
    }

    /// Of what is available to the Team, what it would borrow.
    pub fn borrowable(&self, team: &TeamName, of: &FlavorResource) -> Result<Amount, TreeFault> {
        let account = self.account(self.place(team)?, of);
        let own = account.subtree.subtract(account.usage)?.max(Amount::ZERO);
        let available = self.available(team, of)?;
        Ok(available.subtract(own)?.max(Amount::ZERO))
    }

    /// How far up the tree a Team has to reach for an amount: 0 if it stays within its own quota, else
    /// the height of the lowest Cohort that holds it without borrowing itself, or of the root.
    pub fn borrow_level(
        &self,
        team: &TeamName,
        of: &FlavorResource,
        amount: Amount,
    ) -> Result<usize, TreeFault> {
        let mut index = self.place(team)?;
        let mut remaining = amount;
        loop {
            let account = self.account(index, of);
            let node = &self.nodes[index];
            if account.usage.add(remaining)? <= account.subtree {
                return Ok(node.height);
            }
            remaining = remaining
                .subtract(account.local_available()?)?
                .max(Amount::ZERO);
            match node.parent {
                Some(parent) => index = parent,
                None => return Ok(node.height),
            }
        }
    }
}
