//! Victims where weighted shares decide.
//!
//! The preemptor is charged first, so that every share counts with it. Then, again and again, the Team with the largest
//! share is looked for, from the root down, and one of its gangs is taken if the shares pass the test; the preemptor's
//! own Team is one of them. A Team that needs no more than its own quota takes without a test.
//!
//! Shares are kept while nothing below them changes: a gang that is taken away changes those on its way up alone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{
    Contest, PreemptionReason, Victim,
    candidates::Candidate,
    simulation::{Chosen, Simulation},
};
use crate::quota::{
    policy::FairStrategy,
    share::{Lendable, Share},
    tree::{NodeId, QuotaTree},
};

pub(super) fn victims(
    simulation: &mut Simulation<'_>,
    contest: &Contest<'_>,
    candidates: Vec<Candidate>,
    strategies: &[FairStrategy],
) -> Vec<Victim> {
    let Some((first, others)) = strategies.split_first() else {
        return Vec::new();
    };
    // Where nobody but Teams that borrow nothing is left, nothing is to be shared.
    let tree = &*simulation.tree;
    let candidates = candidates
        .into_iter()
        .filter(|candidate| {
            contest.is_own(candidate) || !contest.is_within_quota(tree, candidate.team)
        })
        .collect();
    simulation.admit(contest);
    let mut search = Search {
        simulation,
        contest,
        shares: Shares::default(),
        chosen: Vec::new(),
    };
    let (mut fits, rejected) = search.run_first(candidates, *first);
    if !fits && let Some(second) = others.first() {
        fits = search.run_second(rejected, *second);
    }
    let chosen = search.chosen;
    simulation.withdraw(contest);
    if !fits {
        return Vec::new();
    }
    simulation.fill_back(contest, true, chosen)
}

/// A node and its share.
type Ranked = (NodeId, Share);

/// Shares by node, and what parents can lend.
#[derive(Default)]
struct Shares {
    known: BTreeMap<NodeId, Share>,
    lendable: BTreeMap<NodeId, Lendable>,
}

impl Shares {
    fn of(&mut self, tree: &QuotaTree, node: NodeId) -> &Share {
        let Self { known, lendable } = self;
        known.entry(node).or_insert_with(|| {
            let parent = tree.parent_of(node);
            let lendable = parent.map(|parent| {
                let lendable = lendable.entry(parent);
                &*lendable.or_insert_with(|| tree.lendable_of(parent))
            });
            tree.share_of(node, lendable)
        })
    }

    /// Something at this Team changed.
    fn forget(&mut self, tree: &QuotaTree, team: NodeId) {
        for node in tree.path(team) {
            self.known.remove(&node);
        }
    }
}

struct Search<'a, 'b> {
    simulation: &'a mut Simulation<'b>,
    contest: &'a Contest<'a>,
    shares: Shares,
    chosen: Vec<Chosen>,
}

impl Search<'_, '_> {
    fn share(&mut self, node: NodeId) -> Share {
        self.shares.of(self.simulation.tree, node).clone()
    }

    fn remove(&mut self, candidate: &Candidate) {
        self.simulation.remove(candidate);
        self.shares.forget(self.simulation.tree, candidate.team);
    }

    fn restore(&mut self, candidate: &Candidate) {
        self.simulation.restore(candidate);
        self.shares.forget(self.simulation.tree, candidate.team);
    }

    /// Takes a candidate; whether the preemptor fits then.
    fn take(&mut self, candidate: Candidate, reason: PreemptionReason) -> bool {
        self.remove(&candidate);
        self.chosen.push(candidate.chosen(reason));
        self.simulation.withdraw(self.contest);
        let fits = self.simulation.fits(self.contest, true, &self.chosen);
        self.simulation.admit(self.contest);
        fits
    }

    /// The first round, candidate by candidate: whether the preemptor fits, and who was rejected.
    fn run_first(
        &mut self,
        candidates: Vec<Candidate>,
        strategy: FairStrategy,
    ) -> (bool, Vec<Candidate>) {
        let mut rejected = Vec::new();
        let mut queue = TeamQueue::new(candidates);
        while let Some(team) = queue.next(self) {
            if let Some(reason) = self.reason_without_test(team) {
                if let Some(candidate) = queue.pop(team)
                    && self.take(candidate, reason)
                {
                    return (true, rejected);
                }
                continue;
            }
            let (own, other) = self.below_meeting(team);
            let preemptor = self.share(own);
            let initial = self.share(other);
            while let Some(candidate) = queue.pop(team) {
                self.remove(&candidate);
                let last = self.share(other);
                self.restore(&candidate);
                if strategy.passes(preemptor.compare(&last), preemptor.compare(&initial)) {
                    if self.take(candidate, PreemptionReason::FairShare) {
                        return (true, rejected);
                    }
                    break;
                }
                rejected.push(candidate);
            }
        }
        (false, rejected)
    }

    /// The second round, over those that the first rejected, and at most one of each Team.
    fn run_second(&mut self, candidates: Vec<Candidate>, strategy: FairStrategy) -> bool {
        let mut queue = TeamQueue::new(candidates);
        while let Some(team) = queue.next(self) {
            let (own, other) = self.below_meeting(team);
            let (preemptor, initial) = (self.share(own), self.share(other));
            let Some(candidate) = queue.pop(team) else {
                continue;
            };
            self.remove(&candidate);
            let last = self.share(other);
            self.restore(&candidate);
            if strategy.passes(preemptor.compare(&last), preemptor.compare(&initial))
                && self.take(candidate, PreemptionReason::FairShare)
            {
                return true;
            }
            queue.drop_team(team);
        }
        false
    }

    /// Why gangs of a Team are taken whatever its share; `None` if the share decides.
    fn reason_without_test(&self, team: NodeId) -> Option<PreemptionReason> {
        if team == self.contest.team {
            return Some(PreemptionReason::InTeam);
        }
        let tree = &*self.simulation.tree;
        let is_within = self.contest.is_within_quota(tree, self.contest.team);
        is_within.then_some(PreemptionReason::Reclaimed)
    }

    /// The two children of the lowest Cohort above both Teams: the preemptor's side, and the other's.
    fn below_meeting(&self, team: NodeId) -> (NodeId, NodeId) {
        let tree = &*self.simulation.tree;
        let own: Vec<NodeId> = tree.path(self.contest.team).collect();
        let mut other = team;
        for node in tree.path(team) {
            if let Some(at) = own.iter().position(|own| *own == node) {
                return (own[at.saturating_sub(1)], other);
            }
            other = node;
        }
        (self.contest.team, other)
    }
}

/// Candidates by Team, and which Team is next.
struct TeamQueue {
    candidates: BTreeMap<NodeId, VecDeque<Candidate>>,
    /// Nodes that are of no more use.
    pruned: BTreeSet<NodeId>,
}

impl TeamQueue {
    /// Of candidates in their order.
    fn new(candidates: Vec<Candidate>) -> Self {
        let mut by_team: BTreeMap<NodeId, VecDeque<Candidate>> = BTreeMap::new();
        for candidate in candidates {
            by_team
                .entry(candidate.team)
                .or_default()
                .push_back(candidate);
        }
        Self {
            candidates: by_team,
            pruned: BTreeSet::new(),
        }
    }

    fn first(&self, team: NodeId) -> Option<&Candidate> {
        self.candidates.get(&team)?.front()
    }

    fn pop(&mut self, team: NodeId) -> Option<Candidate> {
        self.candidates.get_mut(&team)?.pop_front()
    }

    fn drop_team(&mut self, team: NodeId) {
        self.candidates.remove(&team);
    }

    /// The Team with the largest share that has candidates left; none when there is no more to take.
    fn next(&mut self, search: &mut Search<'_, '_>) -> Option<NodeId> {
        let root = search.simulation.tree.root_of(search.contest.team);
        if search.simulation.tree.is_team(root) {
            return self.first(root).map(|_| root);
        }
        while !self.pruned.contains(&root) {
            if let Some(team) = self.descend(search, root) {
                return Some(team);
            }
        }
        None
    }

    /// One way down, by the largest share at each Cohort. `None` if it ended at a Cohort without anybody, which is
    /// pruned then.
    fn descend(&mut self, search: &mut Search<'_, '_>, from: NodeId) -> Option<NodeId> {
        let mut at = from;
        loop {
            let (team, cohort) = self.largest(search, at);
            match (team, cohort) {
                (None, None) => {
                    self.pruned.insert(at);
                    return None;
                }
                (Some((team, share)), Some((cohort, of_cohort))) => {
                    if of_cohort.compare(&share).is_lt() {
                        return Some(team);
                    }
                    at = cohort;
                }
                (Some((team, _)), None) => return Some(team),
                (None, Some((cohort, _))) => at = cohort,
            }
        }
    }

    /// The Team and the Cohort with the largest shares right below a Cohort. Those that are of no more use are pruned.
    fn largest(
        &mut self,
        search: &mut Search<'_, '_>,
        cohort: NodeId,
    ) -> (Option<Ranked>, Option<Ranked>) {
        let own_path: Vec<NodeId> = search.simulation.tree.path(search.contest.team).collect();
        let children = search.simulation.tree.children_of(cohort).to_vec();
        let (mut team, mut inner): (Option<Ranked>, Option<Ranked>) = (None, None);
        for child in children {
            if self.pruned.contains(&child) {
                continue;
            }
            let is_team = search.simulation.tree.is_team(child);
            let share = search.share(child);
            let is_idle = is_team && self.first(child).is_none();
            if is_idle || (!share.is_borrowing() && !own_path.contains(&child)) {
                self.pruned.insert(child);
                continue;
            }
            let best = if is_team { &mut team } else { &mut inner };
            let is_better = best.as_ref().is_none_or(|(known, known_share)| {
                share.compare(known_share).then_with(|| {
                    // Of equal shares, the Team whose candidate would go first.
                    let order = self.first(*known).zip(self.first(child));
                    order.map_or(std::cmp::Ordering::Equal, |(known, new)| {
                        search.contest.order(known, new)
                    })
                }) == std::cmp::Ordering::Greater
            });
            if is_better {
                *best = Some((child, share));
            }
        }
        (team, inner)
    }
}
