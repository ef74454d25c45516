//! Gangs that may be preempted, and which of them goes first.

use std::cmp::{Ordering, Reverse};

use super::{Contest, PreemptionReason, RunningGang, Victim, charged, simulation::Chosen};
use crate::{
    fairness::WeightedUse,
    quota::{
        policy::Rank,
        tree::{NodeId, PairId, QuotaTree},
    },
};

/// A gang that the preemptor may preempt, as far as its own Team's policy goes.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) position: usize,
    pub(super) team: NodeId,
    pub(super) charges: Vec<(PairId, i128)>,
}

impl Candidate {
    /// All of them, the first to go first.
    pub(super) fn all(tree: &mut QuotaTree, contest: &Contest<'_>) -> Vec<Self> {
        let root = tree.root_of(contest.team);
        let mut candidates = Vec::new();
        for (position, gang) in contest.running.iter().enumerate() {
            let Some(team) = tree.node_of(&gang.team) else {
                continue;
            };
            if tree.root_of(team) != root || !contest.may_preempt(tree, team, gang) {
                continue;
            }
            let candidate = Self {
                position,
                team,
                charges: charged(tree, &gang.charges),
            };
            if candidate.holds_what_is_contested(contest) {
                candidates.push(candidate);
            }
        }
        candidates.sort_by(|left, right| contest.order(left, right));
        candidates
    }

    fn holds_what_is_contested(&self, contest: &Contest<'_>) -> bool {
        let mut charges = self.charges.iter();
        charges.any(|(pair, amount)| *amount > 0 && contest.contested.contains(pair))
    }

    pub(super) fn chosen(self, reason: PreemptionReason) -> Chosen {
        let victim = Victim {
            position: self.position,
            reason,
        };
        Chosen {
            candidate: self,
            victim,
        }
    }
}

impl Contest<'_> {
    pub(super) fn gang(&self, candidate: &Candidate) -> &RunningGang {
        &self.running[candidate.position]
    }

    pub(super) fn is_own(&self, candidate: &Candidate) -> bool {
        candidate.team == self.team
    }

    /// Whether the policy of the preemptor's Team allows it.
    fn may_preempt(&self, tree: &QuotaTree, team: NodeId, gang: &RunningGang) -> bool {
        let preemptor = Rank {
            priority: self.preemptor.priority,
            queued_at: self.preemptor.queued_at,
        };
        let other = Rank {
            priority: gang.priority,
            queued_at: gang.queued_at,
        };
        let policy = tree.policy_of(self.team);
        policy.may_preempt(preemptor, other, team == self.team)
    }

    /// Who goes first: what ends already, then other Teams, lower priority, in the own Team whose namespace used more, the one admitted or
    /// checkpointed last, those whose pods are made again, and the UID.
    ///
    /// Use is compared in the own Team only, whose gangs stand together in this order. Among gangs of several Teams the order could
    /// go round in a circle.
    pub(super) fn order(&self, left: &Candidate, right: &Candidate) -> Ordering {
        let key = |candidate: &Candidate| {
            let gang = self.gang(candidate);
            let admitted_at = gang.admitted_at.map_or((true, 0), |at| (false, at.0));
            let used = if self.is_own(candidate) {
                gang.namespace_used
            } else {
                WeightedUse::NOTHING
            };
            (
                !gang.is_ending,
                self.is_own(candidate),
                gang.priority,
                Reverse(used),
                Reverse(admitted_at),
                !gang.is_made_again,
            )
        };
        let uid = |candidate| &self.gang(candidate).uid;
        key(left)
            .cmp(&key(right))
            .then_with(|| uid(left).cmp(uid(right)))
    }
}
