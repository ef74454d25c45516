//! Preemption by weighted shares.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
};

use muster_engine::quota::{FairStrategy, PreemptionReason};

use super::{Chosen, Contest, Name, Share, Tree};

/// What is left of each Team's candidates, the first to go first.
type Left = BTreeMap<Name, Vec<usize>>;

fn passes(strategy: FairStrategy, new: &Share, target_old: &Share, target_new: &Share) -> bool {
    match strategy {
        FairStrategy::LessThanOrEqualToFinalShare => new.compare(target_new) != Ordering::Greater,
        FairStrategy::LessThanInitialShare => new.compare(target_old) == Ordering::Less,
    }
}

fn first_of(left: &Left, team: Name) -> Option<usize> {
    left.get(&team)?.first().copied()
}

impl Contest<'_> {
    pub(super) fn fair(&self, strategies: &[FairStrategy]) -> Vec<Chosen> {
        let mut left = self.candidates_by_team();
        let mut gone = Vec::new();
        let mut rejected = Left::new();
        while let Some(team) = self.pick(&self.without_and_with_asking(&gone), &left) {
            if let Some(victim) =
                self.first_pass(team, strategies[0], &gone, &mut left, &mut rejected)
            {
                gone.push(victim);
                if self.fits(&gone, true) {
                    return self.fill_back(gone, true);
                }
            }
        }
        if strategies.len() < 2 {
            return Vec::new();
        }
        while let Some(team) = self.pick(&self.without_and_with_asking(&gone), &rejected) {
            let candidates = rejected.remove(&team).unwrap_or_default();
            let tree = self.without_and_with_asking(&gone);
            let (mine, theirs) = self.almost_meeting(&tree, team);
            let old = tree.share(theirs);
            if passes(strategies[1], &tree.share(mine), &old, &old) {
                gone.push((candidates[0], PreemptionReason::FairShare));
                if self.fits(&gone, true) {
                    return self.fill_back(gone, true);
                }
            }
        }
        Vec::new()
    }

    /// What comes of a Team that was picked: a victim, or none.
    fn first_pass(
        &self,
        team: Name,
        strategy: FairStrategy,
        gone: &[Chosen],
        left: &mut Left,
        rejected: &mut Left,
    ) -> Option<Chosen> {
        let candidates = left.get_mut(&team)?;
        if team == self.asking.team {
            return Some((candidates.remove(0), PreemptionReason::InTeam));
        }
        let tree = self.without_and_with_asking(gone);
        if tree.is_within_quota(self.asking.team, &self.asking.contested) {
            return Some((candidates.remove(0), PreemptionReason::Reclaimed));
        }
        let (mine, theirs) = self.almost_meeting(&tree, team);
        let (new, target_old) = (tree.share(mine), tree.share(theirs));
        while !candidates.is_empty() {
            let victim = (candidates.remove(0), PreemptionReason::FairShare);
            let mut gone = gone.to_vec();
            gone.push(victim);
            let target_new = self.without_and_with_asking(&gone).share(theirs);
            if passes(strategy, &new, &target_old, &target_new) {
                return Some(victim);
            }
            rejected.entry(team).or_default().push(victim.0);
        }
        None
    }

    fn candidates_by_team(&self) -> Left {
        let tree = self.without(&[]);
        let own = self.asking.team;
        let root_of = |team| tree.ancestors(team).last().copied().unwrap_or(team);
        let mut left = Left::new();
        for (position, gang) in self.running.iter().enumerate() {
            let may_go = self.may_preempt_in_own_team(gang)
                || self.may_reclaim(gang)
                    && !tree.is_in_a_cycle(gang.team)
                    && root_of(gang.team) == root_of(own)
                    && !tree.is_within_quota(gang.team, &self.asking.contested);
            if may_go {
                left.entry(gang.team).or_default().push(position);
            }
        }
        for candidates in left.values_mut() {
            candidates.sort_by(|one, other| self.compare(*one, *other));
        }
        left
    }

    /// The Team that gives next.
    fn pick(&self, tree: &Tree<'_>, left: &Left) -> Option<Name> {
        match tree.ancestors(self.asking.team).last() {
            Some(root) => self.pick_below(tree, left, *root),
            None => first_of(left, self.asking.team).map(|_| self.asking.team),
        }
    }

    /// The child with the highest share, and so on down to a Team.
    fn pick_below(&self, tree: &Tree<'_>, left: &Left, cohort: Name) -> Option<Name> {
        let path = tree.ancestors(self.asking.team);
        let mut without_candidates = BTreeSet::new();
        loop {
            let mut best: Option<(Name, Share)> = None;
            for child in tree.children(cohort) {
                let share = tree.share(child);
                let is_own = child == self.asking.team || path.contains(&child);
                if !is_own && !share.is_borrowing
                    || without_candidates.contains(&child)
                    || tree.is_team(child) && first_of(left, child).is_none()
                {
                    continue;
                }
                let is_better = best.is_none_or(|(best, best_share)| {
                    let by_share = share.compare(&best_share);
                    by_share
                        .then_with(|| self.precedes(tree, left, child, best))
                        .is_gt()
                });
                if is_better {
                    best = Some((child, share));
                }
            }
            let (child, _) = best?;
            if tree.is_team(child) {
                return Some(child);
            }
            if let Some(team) = self.pick_below(tree, left, child) {
                return Some(team);
            }
            without_candidates.insert(child);
        }
    }

    /// Of equal shares: a Cohort before a Team, the Team with the better candidate, the Cohort with the first name.
    fn precedes(&self, tree: &Tree<'_>, left: &Left, one: Name, other: Name) -> Ordering {
        match (tree.is_team(one), tree.is_team(other)) {
            (false, true) => Ordering::Greater,
            (true, false) => Ordering::Less,
            (false, false) => other.cmp(&one),
            (true, true) => match (first_of(left, one), first_of(left, other)) {
                (Some(one), Some(other)) => self.compare(other, one),
                _ => Ordering::Equal,
            },
        }
    }

    /// Of the lowest common ancestor of both Teams, the children that hold the own Team and the other.
    fn almost_meeting(&self, tree: &Tree<'_>, other: Name) -> (Name, Name) {
        let way_up = |team| {
            let mut way = vec![team];
            way.extend(tree.ancestors(team));
            way
        };
        let (mine, theirs) = (way_up(self.asking.team), way_up(other));
        let below_meeting = |way: &[Name], of: &[Name]| {
            let mut way = way.iter().copied();
            way.rfind(|node| !of.contains(node))
        };
        let own = below_meeting(&mine, &theirs).unwrap_or(self.asking.team);
        (own, below_meeting(&theirs, &mine).unwrap_or(other))
    }
}
