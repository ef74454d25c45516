//! Quota arithmetic: what a node keeps, lends, uses and can get.

use std::collections::{BTreeMap, BTreeSet};

use super::{Limit, Name, Nodes, PARENT_CONTRIBUTION_IS_AT_LEAST_NOTHING, Pair};

/// The limits of all nodes, and what is charged to each Team.
#[derive(Clone)]
pub(crate) struct Tree<'a> {
    nodes: &'a Nodes,
    charged: BTreeMap<(Name, Pair), i128>,
    /// What each node uses, where that does not follow from what is charged to Teams.
    accounts: Option<BTreeMap<(Name, Pair), i128>>,
}

impl<'a> Tree<'a> {
    pub(crate) fn new(
        nodes: &'a Nodes,
        charges: impl IntoIterator<Item = (Name, Pair, i128)>,
    ) -> Self {
        let mut tree = Self {
            nodes,
            charged: BTreeMap::new(),
            accounts: None,
        };
        for (team, pair, amount) in charges {
            tree.charge(team, pair, amount);
        }
        tree
    }

    /// The tree in which every node uses the larger of what it uses in two others. What is charged from then on is added to
    /// the accounts, from the Team upwards.
    pub(crate) fn of_larger(one: &Self, other: &Self) -> Self {
        let mut larger = one.clone();
        larger.charged.extend(&other.charged);
        let mut accounts = BTreeMap::new();
        for node in one.nodes.keys().filter(|node| !one.is_in_a_cycle(**node)) {
            for pair in larger.pairs() {
                let usage = one.usage(*node, pair).max(other.usage(*node, pair));
                accounts.insert((*node, pair), usage);
            }
        }
        larger.accounts = Some(accounts);
        larger
    }

    pub(crate) fn charge(&mut self, team: Name, pair: Pair, amount: i128) {
        *self.charged.entry((team, pair)).or_default() += amount;
        let (mut at, mut rest) = (Some(team), amount);
        while let Some(node) = at
            && rest > 0
            && self.accounts.is_some()
        {
            let covered = self.local_available(node, pair);
            if let Some(accounts) = &mut self.accounts {
                *accounts.entry((node, pair)).or_default() += rest;
            }
            rest = (rest - covered).max(0);
            at = self.parent(node);
        }
    }

    pub(crate) fn parent(&self, node: Name) -> Option<Name> {
        self.nodes[&node].parent
    }

    pub(crate) fn is_team(&self, node: Name) -> bool {
        self.nodes[&node].policy.is_some()
    }

    pub(super) fn weight(&self, node: Name) -> u64 {
        self.nodes[&node].weight
    }

    pub(super) fn children(&self, node: Name) -> impl Iterator<Item = Name> {
        let nodes = self.nodes.iter();
        nodes
            .filter(move |(_, child)| child.parent == Some(node))
            .map(|(name, _)| *name)
    }

    /// From the parent to the root.
    pub(crate) fn ancestors(&self, node: Name) -> Vec<Name> {
        std::iter::successors(self.parent(node), |above| self.parent(*above)).collect()
    }

    /// Whether the way up never ends: every member of such a tree is disabled.
    pub(crate) fn is_in_a_cycle(&self, node: Name) -> bool {
        let mut way_up = std::iter::successors(Some(node), |above| self.parent(*above));
        way_up.nth(self.nodes.len()).is_some()
    }

    /// All pairs that have a limit or a charge anywhere.
    pub(crate) fn pairs(&self) -> BTreeSet<Pair> {
        let limited = self.nodes.values().flat_map(|node| node.limits.keys());
        let charged = self.charged.keys().map(|(_, pair)| pair);
        limited.chain(charged).copied().collect()
    }

    pub(crate) fn limit(&self, node: Name, pair: Pair) -> Limit {
        let limits = &self.nodes[&node].limits;
        limits.get(&pair).copied().unwrap_or_default()
    }

    pub(crate) fn subtree_quota(&self, node: Name, pair: Pair) -> i128 {
        let lent = self
            .children(node)
            .map(|child| self.subtree_quota(child, pair) - self.local_quota(child, pair));
        self.limit(node, pair).nominal + lent.sum::<i128>()
    }

    /// What the parent never sees.
    fn local_quota(&self, node: Name, pair: Pair) -> i128 {
        match self.limit(node, pair).lending {
            Some(lending) => (self.subtree_quota(node, pair) - lending).max(0),
            None => 0,
        }
    }

    pub(crate) fn usage(&self, node: Name, pair: Pair) -> i128 {
        if let Some(accounts) = &self.accounts {
            return accounts.get(&(node, pair)).copied().unwrap_or(0);
        }
        if self.is_team(node) {
            return self.charged.get(&(node, pair)).copied().unwrap_or(0);
        }
        let children = self.children(node);
        children
            .map(|child| (self.usage(child, pair) - self.local_quota(child, pair)).max(0))
            .sum()
    }

    fn local_available(&self, node: Name, pair: Pair) -> i128 {
        (self.local_quota(node, pair) - self.usage(node, pair)).max(0)
    }

    /// Of a root it may be negative.
    fn available(&self, node: Name, pair: Pair) -> i128 {
        let Some(parent) = self.parent(node) else {
            return self.subtree_quota(node, pair) - self.usage(node, pair);
        };
        let mut contribution = self.available(parent, pair);
        if let Some(borrowing) = self.limit(node, pair).borrowing {
            let local = self.local_quota(node, pair);
            let lent = self.subtree_quota(node, pair) - local;
            let taken = (self.usage(node, pair) - local).max(0);
            contribution = contribution.min(lent - taken + borrowing);
        }
        if PARENT_CONTRIBUTION_IS_AT_LEAST_NOTHING {
            contribution = contribution.max(0);
        }
        self.local_available(node, pair) + contribution
    }

    pub(crate) fn team_available(&self, team: Name, pair: Pair) -> i128 {
        self.available(team, pair).max(0)
    }

    pub(crate) fn potentially_available(&self, node: Name, pair: Pair) -> i128 {
        let quota = self.subtree_quota(node, pair);
        let Some(parent) = self.parent(node) else {
            return quota;
        };
        let most = self.local_quota(node, pair) + self.potentially_available(parent, pair);
        match self.limit(node, pair).borrowing {
            Some(borrowing) => most.min(quota + borrowing),
            None => most,
        }
    }

    /// Whether the node would borrow with so much more. At its quota it does not.
    pub(crate) fn is_borrowing_with(&self, node: Name, pair: Pair, amount: i128) -> bool {
        self.usage(node, pair) + amount > self.subtree_quota(node, pair)
    }

    /// Whether the node borrows none of these.
    pub(super) fn is_within_quota(&self, node: Name, pairs: &BTreeSet<Pair>) -> bool {
        let mut pairs = pairs.iter();
        pairs.all(|pair| !self.is_borrowing_with(node, *pair, 0))
    }

    /// Whether the node holds the request without borrowing.
    pub(crate) fn holds(&self, node: Name, request: &BTreeMap<Pair, i128>) -> bool {
        let mut request = request.iter();
        request.all(|(pair, amount)| !self.is_borrowing_with(node, *pair, *amount))
    }

    /// What of the request is left to the parent.
    pub(crate) fn remainder(
        &self,
        node: Name,
        request: &BTreeMap<Pair, i128>,
    ) -> BTreeMap<Pair, i128> {
        let left = |pair: Pair, amount: i128| (amount - self.local_available(node, pair)).max(0);
        let request = request.iter();
        request
            .map(|(pair, amount)| (*pair, left(*pair, *amount)))
            .collect()
    }

    /// Of a Team 0, of a Cohort of Teams 1. The text does not say of one without children: it is no place to borrow from, 0.
    fn height(&self, node: Name) -> usize {
        if self.is_team(node) {
            return 0;
        }
        let highest = self.children(node).map(|child| self.height(child)).max();
        highest.map_or(0, |highest| highest + 1)
    }

    /// The height of the lowest subtree that holds so much more without borrowing; else that of the root.
    pub(crate) fn borrow_level(&self, team: Name, pair: Pair, amount: i128) -> usize {
        if !self.is_borrowing_with(team, pair, amount) {
            return 0;
        }
        let mut remaining = BTreeMap::from([(pair, amount)]);
        let mut below = team;
        for cohort in self.ancestors(team) {
            remaining = self.remainder(below, &remaining);
            if self.holds(cohort, &remaining) {
                return self.height(cohort);
            }
            below = cohort;
        }
        self.height(below)
    }
}
