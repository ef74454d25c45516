//! Preemption by priority and by place in the tree.

use muster_engine::quota::{BorrowWithinCohort, PreemptionReason, ReclaimWithinCohort};

use super::{Chosen, Contest, Name, Tree};

#[derive(Clone, Copy)]
struct Candidate {
    position: usize,
    reason: PreemptionReason,
    /// The lowest common ancestor of both Teams; a gang of the own Team has none.
    meeting: Option<Name>,
    only_without_borrowing: bool,
}

#[derive(Default)]
struct Candidates {
    by_hierarchy: Vec<Candidate>,
    by_priority: Vec<Candidate>,
    same_team: Vec<Candidate>,
}

impl Contest<'_> {
    pub(super) fn by_priority(&self) -> Vec<Chosen> {
        let candidates = self.candidates();
        for may_borrow in self.attempts(&candidates) {
            if let Some(victims) = self.attempt(&self.in_order(&candidates), may_borrow) {
                return victims;
            }
        }
        Vec::new()
    }

    fn candidates(&self) -> Candidates {
        let mut found = Candidates::default();
        for (position, gang) in self.running.iter().enumerate() {
            if self.may_preempt_in_own_team(gang) {
                found.same_team.push(Candidate {
                    position,
                    reason: PreemptionReason::InTeam,
                    meeting: None,
                    only_without_borrowing: false,
                });
            }
        }
        if self.policy().reclaim_within_cohort == ReclaimWithinCohort::Never {
            return found;
        }
        let tree = self.without(&[]);
        let team = self.asking.team;
        let mut remaining = self.request();
        let mut has_advantage = tree.holds(team, &remaining);
        remaining = tree.remainder(team, &remaining);
        let mut visited = team;
        for ancestor in tree.ancestors(team) {
            for position in self.in_subtree(&tree, ancestor, visited) {
                if has_advantage {
                    found.by_hierarchy.push(Candidate {
                        position,
                        reason: PreemptionReason::Reclaimed,
                        meeting: Some(ancestor),
                        only_without_borrowing: false,
                    });
                } else {
                    found
                        .by_priority
                        .push(self.by_priority_at(position, ancestor));
                }
            }
            has_advantage |= tree.holds(ancestor, &remaining);
            remaining = tree.remainder(ancestor, &remaining);
            visited = ancestor;
        }
        found
    }

    /// The gangs that may be reclaimed below a node, but for what is below `visited` and below nodes within their quota.
    fn in_subtree(&self, tree: &Tree<'_>, node: Name, visited: Name) -> Vec<usize> {
        let mut found = Vec::new();
        for child in tree.children(node) {
            if child == visited || tree.is_within_quota(child, &self.asking.contested) {
                continue;
            }
            if tree.is_team(child) {
                let gangs = self.running.iter().enumerate();
                let gangs = gangs.filter(|(_, gang)| gang.team == child && self.may_reclaim(gang));
                found.extend(gangs.map(|(position, _)| position));
            } else {
                found.extend(self.in_subtree(tree, child, visited));
            }
        }
        found
    }

    fn by_priority_at(&self, position: usize, meeting: Name) -> Candidate {
        let priority = self.running[position].priority;
        let only_without_borrowing = match self.policy().borrow_within_cohort {
            BorrowWithinCohort::Never => true,
            BorrowWithinCohort::LowerPriority { highest } => {
                priority >= self.asking.priority
                    || highest.is_some_and(|highest| priority > highest)
            }
        };
        Candidate {
            position,
            reason: if only_without_borrowing {
                PreemptionReason::Reclaimed
            } else {
                PreemptionReason::ReclaimedWhileBorrowing
            },
            meeting: Some(meeting),
            only_without_borrowing,
        }
    }

    /// Those that end already, then the others; in each part by hierarchy, by priority, of the same Team.
    fn in_order(&self, candidates: &Candidates) -> Vec<Candidate> {
        let mut ordered = Vec::new();
        for is_ending in [true, false] {
            for list in [
                &candidates.by_hierarchy,
                &candidates.by_priority,
                &candidates.same_team,
            ] {
                let of_kind =
                    |found: &&Candidate| self.running[found.position].is_ending == is_ending;
                let mut list: Vec<Candidate> = list.iter().filter(of_kind).copied().collect();
                list.sort_by(|one, other| self.compare(one.position, other.position));
                ordered.extend(list);
            }
        }
        ordered
    }

    /// Whether borrowing is allowed, attempt by attempt.
    fn attempts(&self, candidates: &Candidates) -> Vec<bool> {
        let tree = self.without(&[]);
        let team = self.asking.team;
        let none_elsewhere =
            candidates.by_hierarchy.is_empty() && candidates.by_priority.is_empty();
        let forbidden = self.policy().borrow_within_cohort == BorrowWithinCohort::Never;
        let mut contested = self.asking.contested.iter();
        let strictly_under =
            contested.all(|pair| tree.usage(team, *pair) < tree.subtree_quota(team, *pair));
        if none_elsewhere || forbidden && !strictly_under {
            vec![true]
        } else if forbidden && candidates.by_hierarchy.is_empty() {
            vec![false, true]
        } else {
            vec![true, false]
        }
    }

    fn attempt(&self, candidates: &[Candidate], may_borrow: bool) -> Option<Vec<Chosen>> {
        let mut gone = Vec::new();
        for candidate in candidates {
            if candidate.only_without_borrowing && may_borrow {
                continue;
            }
            if let Some(meeting) = candidate.meeting {
                let tree = self.without(&gone);
                let team = self.running[candidate.position].team;
                let between = tree.ancestors(team).into_iter();
                let mut path =
                    std::iter::once(team).chain(between.take_while(|above| *above != meeting));
                if path.any(|node| tree.is_within_quota(node, &self.asking.contested)) {
                    continue;
                }
            }
            gone.push((candidate.position, candidate.reason));
            if self.fits(&gone, may_borrow) {
                return Some(self.fill_back(gone, may_borrow));
            }
        }
        None
    }
}
