//! The quota tree: dense nodes with their accounts, and the walks from a Team upwards.

use std::collections::BTreeMap;

use super::{
    account::{Account, saturated},
    charges::Delta,
    graph::Graph,
    policy::{PreemptionPolicy, Weight},
    preemption::Sharing,
};
use crate::{
    amount::{Amount, FlavorResource},
    model::{Cohort, Quota, Team},
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
}

/// A node of the tree: a Team or a Cohort. Valid until the tree is built anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeId(u32);

/// A Flavor and resource that some limit or charge names. Valid until the tree is built anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PairId(u32);

impl PairId {
    /// The one that stands before all others.
    pub(crate) const FIRST: Self = Self(0);
}

/// Where an amount lacks on the way up from a Team: at the first node that lets too little pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lack {
    pub(crate) node: NodeId,
    /// How much that node has to let pass ([`QuotaTree::ceiling`]); more than it does.
    pub(crate) need: i128,
}

/// What became free when a charge was taken back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Released {
    /// The node lets more pass than before.
    pub(crate) ceiling: bool,
    /// The node covers more by itself: requests from below ask less of the nodes above it.
    pub(crate) local: bool,
    /// The node had no headroom and has some: requests from below borrow from less far up. (What a root has is
    /// had from as far up as there is.)
    pub(crate) headroom: bool,
}

impl Released {
    fn between(before: &Account, after: &Account, is_root: bool) -> Self {
        Self {
            ceiling: after.ceiling(is_root).is_some(),
            local: after.local_available() > before.local_available(),
            headroom: !is_root && before.headroom() <= 0 && after.headroom() > 0,
        }
    }
}

/// The quota tree with what is charged in it.
#[derive(Clone, Debug, Default)]
pub struct QuotaTree {
    nodes: Vec<QuotaNode>,
    teams: BTreeMap<TeamName, NodeId>,
    cohorts: BTreeMap<CohortName, NodeId>,
    cut_off: BTreeMap<TeamName, CohortName>,
    pairs: Pairs,
}

/// The numbers of Flavors and resources. Few are ever named: they are those of all limits and charges.
#[derive(Clone, Debug, Default)]
struct Pairs {
    ids: BTreeMap<FlavorResource, PairId>,
    names: Vec<FlavorResource>,
}

#[derive(Clone, Debug, Default)]
struct QuotaNode {
    parent: Option<NodeId>,
    children: Vec<NodeId>,
    root: NodeId,
    /// 0 for a Team, else one more than the highest child.
    height: usize,
    /// What is not listed is zero: of thousands of Flavors a node names a few.
    accounts: BTreeMap<PairId, Account>,
    /// The Team, if it is one.
    team: Option<TeamName>,
    /// What its share weighs.
    weight: Weight,
    /// Whom its gangs may preempt, if it is a Team.
    preemption: PreemptionPolicy,
    /// How all below it share, if it is a root.
    sharing: Sharing<'static>,
}

impl Default for NodeId {
    fn default() -> Self {
        Self(u32::MAX)
    }
}

fn index(of: u32) -> usize {
    of as usize
}

impl QuotaTree {
    /// The tree of these Teams and Cohorts, with what each Team uses. It takes time linear in all three.
    pub fn new<'a>(
        teams: &BTreeMap<TeamName, Team>,
        cohorts: &BTreeMap<CohortName, Cohort>,
        usage: impl IntoIterator<Item = (&'a TeamName, &'a FlavorResource, i128)>,
    ) -> Self {
        let graph = Graph::new(teams, cohorts);
        let mut tree = Self::default();
        let mut places: BTreeMap<&CohortName, NodeId> = BTreeMap::new();
        for name in graph.parents_first() {
            let parent = graph.parents.get(name).and_then(Option::as_ref);
            let parent = parent.and_then(|parent| places.get(parent)).copied();
            let cohort = cohorts.get(name);
            let node = tree.push(parent, cohort.map(|cohort| &cohort.quota), None);
            tree.nodes[index(node.0)].weight = cohort.map_or(Weight::ONE, |cohort| cohort.weight);
            tree.nodes[index(node.0)].sharing = cohort.map(|it| it.sharing).unwrap_or_default();
            places.insert(name, node);
        }
        for team in teams.values() {
            let cohort = team.cohort.as_ref();
            if let Some(cycle) = cohort.and_then(|name| graph.endless.get(name)) {
                tree.cut_off.insert(team.name.clone(), cycle.clone());
                continue;
            }
            let parent = cohort.and_then(|name| places.get(name)).copied();
            let node = tree.push(parent, Some(&team.quota), Some(team.name.clone()));
            tree.nodes[index(node.0)].weight = team.weight;
            tree.nodes[index(node.0)].preemption = team.preemption;
            tree.teams.insert(team.name.clone(), node);
        }
        let places = places.into_iter();
        tree.cohorts = places.map(|(name, node)| (name.clone(), node)).collect();
        tree.roll_up();
        for (team, of, amount) in usage {
            if let Some(node) = tree.node_of(team) {
                let pair = tree.pair(of);
                tree.change(node, pair, amount, |_, _| {});
            }
        }
        tree
    }

    fn push(
        &mut self,
        parent: Option<NodeId>,
        quota: Option<&Quota>,
        team: Option<TeamName>,
    ) -> NodeId {
        let id = NodeId(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX));
        let mut node = QuotaNode {
            parent,
            root: parent.map_or(id, |parent| self.node(parent).root),
            team,
            ..QuotaNode::default()
        };
        for (flavor, resources) in quota.into_iter().flatten() {
            for (resource, limit) in resources {
                let pair = self.pair(&FlavorResource {
                    flavor: flavor.clone(),
                    resource: resource.clone(),
                });
                node.account_mut(pair).set_limit(limit);
            }
        }
        if let Some(parent) = parent {
            self.nodes[index(parent.0)].children.push(id);
        }
        self.nodes.push(node);
        id
    }

    /// Adds what children lend to their parents. Children stand behind their parents.
    fn roll_up(&mut self) {
        for child in (0..self.nodes.len()).rev() {
            let Some(parent) = self.nodes[child].parent else {
                continue;
            };
            let height = self.nodes[child].height + 1;
            let accounts = self.nodes[child].accounts.iter();
            let lent: Vec<(PairId, i128)> = accounts
                .map(|(pair, account)| (*pair, account.lent()))
                .collect();
            let parent = &mut self.nodes[index(parent.0)];
            parent.height = parent.height.max(height);
            for (pair, lent) in lent {
                parent.account_mut(pair).subtree += lent;
            }
        }
    }

    fn node(&self, id: NodeId) -> &QuotaNode {
        &self.nodes[index(id.0)]
    }

    pub(super) fn account(&self, node: NodeId, pair: PairId) -> Account {
        let account = self.node(node).accounts.get(&pair);
        account.copied().unwrap_or_default()
    }

    /// The node above, unless this is a root.
    pub(crate) fn parent_of(&self, node: NodeId) -> Option<NodeId> {
        self.node(node).parent
    }

    /// The root of the tree that a node is in.
    pub(crate) fn root_of(&self, node: NodeId) -> NodeId {
        self.node(node).root
    }

    /// The nodes right below, Cohorts and Teams, each by name.
    pub(super) fn children_of(&self, node: NodeId) -> &[NodeId] {
        &self.node(node).children
    }

    /// Whether a node is a Team.
    pub(super) fn is_team(&self, node: NodeId) -> bool {
        self.node(node).team.is_some()
    }

    /// What the share of a node weighs.
    pub(super) fn weight_of(&self, node: NodeId) -> Weight {
        self.node(node).weight
    }

    /// Whom the gangs of a Team may preempt.
    pub(crate) fn policy_of(&self, team: NodeId) -> PreemptionPolicy {
        self.node(team).preemption
    }

    /// How all share that are in the same tree as a node.
    pub(crate) fn sharing_of(&self, node: NodeId) -> Sharing<'static> {
        self.node(self.root_of(node)).sharing
    }

    /// How all share that are in the same tree as a Cohort; `None` if nobody names it, or it is cut off by a cycle.
    pub(crate) fn sharing_of_cohort(&self, cohort: &CohortName) -> Option<Sharing<'static>> {
        Some(self.sharing_of(self.node_of_cohort(cohort)?))
    }

    /// Every account of a node that is not zero for ever.
    pub(super) fn accounts_of(&self, node: NodeId) -> impl Iterator<Item = (PairId, Account)> {
        let accounts = self.node(node).accounts.iter();
        accounts.map(|(pair, account)| (*pair, *account))
    }

    /// Whether a node has an account of something.
    pub(super) fn has_account(&self, node: NodeId, pair: PairId) -> bool {
        self.node(node).accounts.contains_key(&pair)
    }

    /// What a node has an account of.
    pub(crate) fn pairs_at(&self, node: NodeId) -> impl Iterator<Item = PairId> {
        self.node(node).accounts.keys().copied()
    }

    /// A node and those above it, upwards.
    pub(crate) fn path(&self, from: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        std::iter::successors(Some(from), |node| self.node(*node).parent)
    }

    /// The number of a Flavor and resource; a new one where nobody named it before.
    pub(crate) fn pair(&mut self, of: &FlavorResource) -> PairId {
        if let Some(known) = self.known_pair(of) {
            return known;
        }
        let id = PairId(u32::try_from(self.pairs.names.len()).unwrap_or(u32::MAX));
        self.pairs.ids.insert(of.clone(), id);
        self.pairs.names.push(of.clone());
        id
    }

    /// Gives what another tree names the numbers that it has there, given that this one names no more than that.
    pub(crate) fn name_as(&mut self, other: &Self) {
        for at in self.pairs.names.len()..other.pairs.names.len() {
            self.pair(&other.pairs.names[at]);
        }
    }

    /// The number of a Flavor and resource that somebody named.
    pub(crate) fn known_pair(&self, of: &FlavorResource) -> Option<PairId> {
        self.pairs.ids.get(of).copied()
    }

    /// The Flavor and resource of a number.
    pub(crate) fn named(&self, pair: PairId) -> &FlavorResource {
        &self.pairs.names[index(pair.0)]
    }

    /// Where a Team stands; `None` if it is unknown or cut off by a cycle.
    pub(crate) fn node_of(&self, team: &TeamName) -> Option<NodeId> {
        self.teams.get(team).copied()
    }

    /// Where a Cohort stands; `None` if nobody names it, or it is cut off by a cycle.
    pub(crate) fn node_of_cohort(&self, cohort: &CohortName) -> Option<NodeId> {
        self.cohorts.get(cohort).copied()
    }

    /// Whether a Team can be answered for.
    pub fn check(&self, team: &TeamName) -> Result<(), TreeFault> {
        self.place(team).map(|_| ())
    }

    fn place(&self, team: &TeamName) -> Result<NodeId, TreeFault> {
        if let Some(cohort) = self.cut_off.get(team) {
            return Err(TreeFault::Cycle(cohort.clone()));
        }
        self.node_of(team).ok_or(TreeFault::UnknownTeam)
    }

    /// The Teams at and below a node.
    pub(crate) fn teams_below(&self, node: NodeId) -> Vec<&TeamName> {
        let mut teams = Vec::new();
        let mut rest = vec![node];
        while let Some(at) = rest.pop() {
            let node = self.node(at);
            teams.extend(&node.team);
            rest.extend(&node.children);
        }
        teams
    }

    /// The Teams of the tree in which a Team hangs, itself included.
    pub(crate) fn teams_around(&self, team: &TeamName) -> Vec<&TeamName> {
        self.node_of(team)
            .map_or_else(Vec::new, |node| self.teams_below(self.node(node).root))
    }

    /// Changes what a Team is charged; `released` is told what became free where.
    pub(crate) fn change(
        &mut self,
        team: NodeId,
        pair: PairId,
        amount: i128,
        mut released: impl FnMut(NodeId, Released),
    ) {
        let mut at = Some(team);
        let mut amount = amount;
        while let Some(id) = at
            && amount != 0
        {
            let node = &mut self.nodes[index(id.0)];
            let (is_root, account) = (node.parent.is_none(), node.account_mut(pair));
            let before = *account;
            if amount > 0 {
                amount = account.charge(amount);
            } else {
                amount = -account.discharge(-amount);
                released(id, Released::between(&before, account, is_root));
            }
            at = node.parent;
        }
    }

    /// Uses, from a Team upwards, the larger of what two trees with the same limits use; `released` is told what became
    /// free where.
    pub(crate) fn use_larger(
        &mut self,
        team: NodeId,
        pair: PairId,
        (one, other): (&Self, &Self),
        mut released: impl FnMut(NodeId, Released),
    ) {
        let mut at = Some(team);
        while let Some(id) = at {
            let usage = |tree: &Self| tree.account(id, pair).usage;
            let usage = usage(one).max(usage(other));
            let node = &mut self.nodes[index(id.0)];
            at = node.parent;
            let (is_root, account) = (node.parent.is_none(), node.account_mut(pair));
            let before = *account;
            account.usage = usage;
            if usage < before.usage {
                released(id, Released::between(&before, account, is_root));
            }
        }
    }

    /// Changes what Teams are charged; `released` is told what became free where. One that is unknown or cut off by a cycle is
    /// not charged.
    pub(crate) fn apply<'a>(
        &mut self,
        deltas: impl IntoIterator<Item = &'a Delta>,
        mut released: impl FnMut(NodeId, PairId, Released),
    ) {
        for delta in deltas {
            if let Some(node) = self.node_of(&delta.team) {
                let pair = self.pair(&delta.of);
                let told = |at, what| released(at, pair, what);
                self.change(node, pair, delta.amount, told);
            }
        }
    }

    /// How much a node lets pass; `None` if it sets no bound.
    pub(crate) fn ceiling(&self, node: NodeId, pair: PairId) -> Option<i128> {
        let is_root = self.node(node).parent.is_none();
        self.account(node, pair).ceiling(is_root)
    }

    /// Whether a node uses more than it may.
    pub(crate) fn is_over(&self, node: NodeId, pair: PairId) -> bool {
        self.ceiling(node, pair).is_some_and(|ceiling| ceiling < 0)
    }

    /// The name of a Cohort; `None` if the node is a Team.
    pub(crate) fn name_of_cohort(&self, node: NodeId) -> Option<&CohortName> {
        let mut cohorts = self.cohorts.iter();
        cohorts.find_map(|(name, at)| (*at == node).then_some(name))
    }

    /// The first node on the way up that lets too little of an amount pass; `None` if the amount is available.
    pub(crate) fn lack(&self, team: NodeId, pair: PairId, amount: Amount) -> Option<Lack> {
        self.lacks(team, pair, amount).next()
    }

    /// The nodes on the way up that let too little of an amount pass, upwards.
    pub(crate) fn lacks(
        &self,
        team: NodeId,
        pair: PairId,
        amount: Amount,
    ) -> impl Iterator<Item = Lack> + '_ {
        let mut asked = i128::from(amount.0);
        self.path(team)
            .map_while(move |node| {
                let need = asked;
                // What a node covers by itself is had whatever those above it let pass.
                asked -= self.account(node, pair).local_available();
                (asked > 0).then_some(Lack { node, need })
            })
            .filter(move |lack| {
                let ceiling = self.ceiling(lack.node, pair);
                ceiling.is_some_and(|ceiling| ceiling < lack.need)
            })
    }

    /// Has a Team borrow nothing of some; returns what takes that back.
    pub(crate) fn forbid_borrowing(
        &mut self,
        team: NodeId,
        pairs: impl IntoIterator<Item = PairId>,
    ) -> Vec<(PairId, Option<i128>)> {
        let node = &mut self.nodes[index(team.0)];
        let pairs = pairs.into_iter();
        let before = pairs.map(|pair| (pair, node.account_mut(pair).limit_borrowing(Some(0))));
        before.collect()
    }

    /// Has a Team borrow as before.
    pub(crate) fn allow_borrowing(&mut self, team: NodeId, before: Vec<(PairId, Option<i128>)>) {
        for (pair, limit) in before {
            let account = self.nodes[index(team.0)].account_mut(pair);
            account.limit_borrowing(limit);
        }
    }

    /// Raises the nominal quota of a Team or Cohort, or lowers it; `raised` is told where more is let pass by that.
    pub(crate) fn raise(
        &mut self,
        at: NodeId,
        pair: PairId,
        by: i128,
        mut raised: impl FnMut(NodeId),
    ) {
        let (mut more_quota, mut more_used) = (by, 0);
        let path: Vec<NodeId> = self.path(at).collect();
        for (height, node) in path.into_iter().enumerate() {
            let account = self.nodes[index(node.0)].account_mut(pair);
            let before = *account;
            if height == 0 {
                account.nominal += by;
            }
            account.subtree += more_quota;
            account.usage += more_used;
            more_quota = account.lent() - before.lent();
            more_used = account.used_above() - before.used_above();
            raised(node);
        }
    }

    /// By how much the nominal quota of a Team has to be raised at least so that an amount is available; `None` if that does
    /// not help. The tree is as before then.
    pub(crate) fn raise_for(
        &mut self,
        team: NodeId,
        pair: PairId,
        amount: Amount,
    ) -> Option<Amount> {
        let suffices = |tree: &mut Self, by: i128| {
            tree.raise(team, pair, by, |_| {});
            let suffices = tree.available_at(team, pair) >= amount;
            tree.raise(team, pair, -by, |_| {});
            suffices
        };
        // All that is asked for, and all that those above used beyond their quota.
        let beyond = self.path(team).map(|node| self.account(node, pair));
        let beyond: i128 = beyond.map(|account| (-account.headroom()).max(0)).sum();
        let mut most = i128::from(amount.0) + beyond;
        if !suffices(self, most) {
            return None;
        }
        let mut too_little = 0;
        while most - too_little > 1 {
            let between = too_little + (most - too_little) / 2;
            if suffices(self, between) {
                most = between;
            } else {
                too_little = between;
            }
        }
        i64::try_from(most).ok().map(Amount)
    }

    /// The nodes on the way from a Team up to a node that keep quota for themselves: if one of them gets more
    /// free, less is asked of the nodes above it.
    pub(crate) fn keeping(&self, team: NodeId, up_to: NodeId, pair: PairId) -> Vec<NodeId> {
        self.path(team)
            .take_while(|node| *node != up_to)
            .filter(|node| self.account(*node, pair).local_quota() > 0)
            .collect()
    }

    /// What the Team could get in addition now, borrowing included; never negative.
    pub(crate) fn available_at(&self, team: NodeId, pair: PairId) -> Amount {
        saturated(self.available_from(team, pair).max(0))
    }

    /// How much more others may take before an amount that a Team may have now is not available to it any more; `None` if it asks
    /// nothing of the nodes above it. One charge takes no more than itself of what is available to anybody else.
    pub(crate) fn left_above(&self, team: NodeId, pair: PairId, amount: i128) -> Option<i128> {
        let above = self.parent_of(team)?;
        let asked = amount - self.account(team, pair).local_available();
        (asked > 0).then(|| self.available_from(above, pair) - asked)
    }

    /// What a node has left, and its parent lets it have: at least its own, at most its ceiling. From the node upwards, since a tree may be
    /// deeper than a stack.
    fn available_from(&self, node: NodeId, pair: PairId) -> i128 {
        // By what is available at the node that was reached: so much more, within these bounds, is available at the first.
        let (mut more, mut least, mut most) = (0_i128, i128::MIN, i128::MAX);
        let mut available = 0;
        for at in self.path(node) {
            let account = self.account(at, pair);
            if self.node(at).parent.is_none() {
                available = account.headroom();
                break;
            }
            let own = account.local_available();
            let ceiling = account.ceiling(false);
            let bound = ceiling.map(|ceiling| ceiling.max(own).saturating_add(more));
            let (low, high) = (least, most);
            least = own.saturating_add(more).clamp(low, high);
            most = bound.map_or(high, |bound| bound.clamp(low, high));
            more = more.saturating_add(own);
        }
        available.saturating_add(more).clamp(least, most)
    }

    /// The most that the Team could ever have, whatever others use.
    pub(crate) fn potential_at(&self, node: NodeId, pair: PairId) -> Amount {
        saturated(self.potential_from(node, pair))
    }

    /// From the node upwards, since a tree may be deeper than a stack.
    pub(super) fn potential_from(&self, node: NodeId, pair: PairId) -> i128 {
        // By what the node that was reached could have: so much more, and at most that, could the first have.
        let (mut more, mut most) = (0_i128, i128::MAX);
        let mut potential = 0;
        for at in self.path(node) {
            let account = self.account(at, pair);
            if self.node(at).parent.is_none() {
                potential = account.subtree;
                break;
            }
            if let Some(bound) = account.potential_bound() {
                most = most.min(bound.saturating_add(more));
            }
            more = more.saturating_add(account.local_quota());
        }
        potential.saturating_add(more).min(most)
    }

    /// How far up the tree a Team has to reach for an amount: 0 if it stays within its own quota, else
    /// the height of the lowest Cohort that holds it without borrowing itself, or of the root.
    pub(crate) fn borrow_level_at(&self, team: NodeId, pair: PairId, amount: Amount) -> usize {
        let holder = self.holder_of(team, pair, amount);
        self.node(holder.unwrap_or_else(|| self.root_of(team)))
            .height
    }

    /// The lowest node from a Team upwards that holds an amount, less what those below it keep for themselves, without
    /// borrowing.
    pub(super) fn holder_of(&self, team: NodeId, pair: PairId, amount: Amount) -> Option<NodeId> {
        let mut rest = i128::from(amount.0);
        self.path(team).find(|node| {
            let account = self.account(*node, pair);
            let holds = rest <= account.headroom();
            rest = (rest - account.local_available()).max(0);
            holds
        })
    }

    /// What is charged at or below a node, and how much more before it borrows.
    pub(crate) fn usage_and_headroom(&self, node: NodeId, pair: PairId) -> (i128, i128) {
        let account = self.account(node, pair);
        (account.usage, account.headroom())
    }

    /// How much a Team asks of each node on its way up, and what that has before it borrows: upwards.
    pub(crate) fn asked_upwards(
        &self,
        team: NodeId,
        pair: PairId,
        amount: Amount,
    ) -> Vec<(NodeId, i128, i128)> {
        let mut rest = i128::from(amount.0);
        let path = self.path(team).map(|node| {
            let account = self.account(node, pair);
            let asked = rest;
            rest = (rest - account.local_available()).max(0);
            (node, asked, account.headroom())
        });
        path.collect()
    }

    /// What is free of what a node keeps for itself, below zero if it uses more; `None` if it keeps nothing.
    pub(crate) fn kept_and_free(&self, node: NodeId, pair: PairId) -> Option<i128> {
        let account = self.account(node, pair);
        let kept = account.local_quota();
        (kept > 0).then_some(kept - account.usage)
    }

    /// How much a Team asks of each node on its way up at the least, whatever is charged by then: upwards.
    pub(crate) fn least_asked_upwards(
        &self,
        team: NodeId,
        pair: PairId,
        amount: i128,
    ) -> Vec<(NodeId, i128)> {
        let mut rest = amount;
        let path = self.path(team).map(|node| {
            let asked = rest;
            rest = (rest - self.account(node, pair).local_quota()).max(0);
            (node, asked)
        });
        path.collect()
    }

    /// What of an amount that is asked of a node is asked of the one above it.
    pub(crate) fn asked_above(
        &self,
        node: NodeId,
        asked: &BTreeMap<PairId, i128>,
    ) -> BTreeMap<PairId, i128> {
        let above = asked.iter().map(|(pair, amount)| {
            let covered = self.account(node, *pair).local_available();
            (*pair, (amount - covered).max(0))
        });
        above.collect()
    }

    /// Every Team and Cohort.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        let count = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        (0..count).map(NodeId)
    }

    /// Whether a node uses more than its quota.
    pub(crate) fn borrows(&self, node: NodeId, pair: PairId) -> bool {
        self.account(node, pair).headroom() < 0
    }

    /// No amount of a resource is had from less far up than this.
    pub(crate) fn least_borrow_level(&self, team: NodeId, pair: PairId) -> usize {
        self.borrow_level_at(team, pair, Amount(1))
    }

    /// An amount is had from no less far up than this, whatever is charged by then.
    pub(crate) fn least_borrow_level_ever(
        &self,
        team: NodeId,
        pair: PairId,
        amount: Amount,
    ) -> usize {
        let mut rest = i128::from(amount.0);
        let holder = self.path(team).find(|node| {
            let account = self.account(*node, pair);
            let holds = rest <= account.subtree;
            rest = (rest - account.local_quota()).max(0);
            holds
        });
        self.node(holder.unwrap_or_else(|| self.root_of(team)))
            .height
    }

    /// Charges a Team. One that is unknown or cut off by a cycle is not charged.
    pub fn charge(&mut self, team: &TeamName, of: &FlavorResource, amount: Amount) {
        self.change_named(team, of, i128::from(amount.0));
    }

    /// Takes a charge back.
    pub fn discharge(&mut self, team: &TeamName, of: &FlavorResource, amount: Amount) {
        self.change_named(team, of, -i128::from(amount.0));
    }

    fn change_named(&mut self, team: &TeamName, of: &FlavorResource, amount: i128) {
        if let Some(node) = self.node_of(team) {
            let pair = self.pair(of);
            self.change(node, pair, amount, |_, _| {});
        }
    }

    fn answer<T: Default>(
        &self,
        team: &TeamName,
        of: &FlavorResource,
        answer: impl FnOnce(NodeId, PairId) -> T,
    ) -> Result<T, TreeFault> {
        self.answer_or(team, of, T::default(), answer)
    }

    /// An answer for a Team; another one about what nobody named.
    pub(super) fn answer_or<T>(
        &self,
        team: &TeamName,
        of: &FlavorResource,
        unnamed: T,
        answer: impl FnOnce(NodeId, PairId) -> T,
    ) -> Result<T, TreeFault> {
        let node = self.place(team)?;
        let pair = self.known_pair(of);
        Ok(pair.map_or(unnamed, |pair| answer(node, pair)))
    }

    /// What the Team was promised.
    pub fn nominal(&self, team: &TeamName, of: &FlavorResource) -> Result<Amount, TreeFault> {
        self.answer(team, of, |node, pair| {
            saturated(self.account(node, pair).nominal)
        })
    }

    /// What is charged to the Team.
    pub fn used(&self, team: &TeamName, of: &FlavorResource) -> Result<Amount, TreeFault> {
        self.answer(team, of, |node, pair| {
            saturated(self.account(node, pair).usage)
        })
    }

    /// What the Team could get in addition now, borrowing included; never negative.
    pub fn available(&self, team: &TeamName, of: &FlavorResource) -> Result<Amount, TreeFault> {
        self.answer(team, of, |node, pair| self.available_at(node, pair))
    }

    /// The most that the Team could ever have, whatever others use.
    pub fn potentially_available(
        &self,
        team: &TeamName,
        of: &FlavorResource,
    ) -> Result<Amount, TreeFault> {
        self.answer(team, of, |node, pair| self.potential_at(node, pair))
    }

    /// Of what is available to the Team, what it would borrow.
    pub fn borrowable(&self, team: &TeamName, of: &FlavorResource) -> Result<Amount, TreeFault> {
        self.answer(team, of, |node, pair| {
            let own = self.account(node, pair).headroom().max(0);
            saturated((i128::from(self.available_at(node, pair).0) - own).max(0))
        })
    }

    /// How far up the tree a Team has to reach for an amount: 0 if it stays within its own quota, else
    /// the height of the lowest Cohort that holds it without borrowing itself, or of the root.
    pub fn borrow_level(
        &self,
        team: &TeamName,
        of: &FlavorResource,
        amount: Amount,
    ) -> Result<usize, TreeFault> {
        let team = self.place(team)?;
        Ok(match self.known_pair(of) {
            Some(pair) => self.borrow_level_at(team, pair, amount),
            None if amount <= Amount::ZERO => 0,
            // Nobody has any: not even the root holds it.
            None => self.node(self.node(team).root).height,
        })
    }
}

impl QuotaNode {
    fn account_mut(&mut self, pair: PairId) -> &mut Account {
        self.accounts.entry(pair).or_default()
    }
}
