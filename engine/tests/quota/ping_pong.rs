//! S15, no ping-pong: a victim that comes back as a preemptor does not preempt its preemptor in turn.
//!
//! The rules, which are Kueue's, do not promise this in general: the last two tests show gangs that go round. What holds is
//! tested here, with the argument. "Comes back" is: the victims have ended, the preemptor is admitted, nothing else has
//! happened, and a victim asks with its old age, priority and charges.
//!
//! 1. **A victim in the preemptor's own Team** never does: it is of lower priority, or younger at equal priority, and to
//!    preempt back it would have to be the other way round.
//! 2. **By priority, reclaimed:** never if it lacks one resource only. The preemptor's Team, or a Cohort between it and the
//!    lowest common ancestor, holds the preemptor within its own quota; nothing below such a node is a candidate.
//! 3. **By priority, reclaimed while borrowing:** never if one resource was contested, it was the only victim, and it preempts
//!    nobody of its own Team when it comes back. Its Team, and every Cohort up to the common ancestor, was above its quota
//!    with it, and would be again: it has no advantage, cannot end up without borrowing, and has the lower priority.
//! 4. **By shares, reclaimed:** never if one resource exists and the preemptor had nobody to preempt in its own Team: that Team
//!    does not borrow.
//! 5. **By shares, from the larger share:** never if one resource exists, both Teams hang below the same Cohort, neither side
//!    has anybody to preempt in its own Team, and it was the only victim; with `LessThanOrEqualToFinalShare` alone, whatever
//!    the number of victims. Let `p` and `t` be the shares of both Teams with both gangs. The victim was chosen because `p` is
//!    at most what `t` is without it, or less than `t`: in both cases `p < t`. To preempt back it needs `t < p`, or `t` at most
//!    what `p` is without the preemptor, which is less than `p`.

use muster_engine::quota::{
    BorrowWithinCohort, FairStrategy, PreemptionPolicy, PreemptionReason, ReclaimWithinCohort,
    Weight, WithinTeam,
};
use std::collections::BTreeMap;

use crate::{
    history::{History, Place},
    model::{Asking, Chosen, Limit, Name, Node, Nodes, Pair, Running},
    play::{Play, Question},
    properties::{at_every_question, ensure},
};

/// Many preemptions are outside the claims; of those inside, every ordinary run shall see some of each kind.
const HISTORIES: u64 = 1500;

/// The gang as it asks when it comes back; `None` if it fits.
fn coming_back(play: &Play, gang: &Running) -> Option<Question> {
    let contested = play.lacks(gang.team, &gang.charges);
    (!contested.is_empty()).then(|| Question {
        uid: gang.uid,
        asking: Asking {
            team: gang.team,
            priority: gang.priority,
            queued_at: gang.queued_at,
            charges: gang.charges.clone(),
            contested,
        },
        place: Place::Always,
    })
}

/// Whether there is anybody whom it may preempt in its own Team.
fn has_own_candidates(play: &Play, asking: &Asking) -> bool {
    let policy = play.nodes[&asking.team].policy.unwrap_or_default();
    let mut gangs = play.running.iter().filter(|gang| gang.team == asking.team);
    gangs.any(|gang| match policy.within_team {
        WithinTeam::Never => false,
        WithinTeam::LowerPriority => gang.priority < asking.priority,
        WithinTeam::LowerOrNewerEqualPriority => gang.priority <= asking.priority,
    })
}

/// One preemption, and one of its victims that asks to come back.
struct Return<'a> {
    before: &'a Play,
    question: &'a Question,
    victims: &'a [Chosen],
    reason: PreemptionReason,
    after: &'a Play,
    back: &'a Question,
    answer: &'a [Chosen],
}

impl Return<'_> {
    /// The number of the claim under which it does not preempt back; `None` if there is no such claim.
    fn claim(&self) -> Option<usize> {
        let asking = &self.question.asking;
        let is_only_victim = self.victims.len() == 1;
        let one_resource = self.before.pairs.len() == 1;
        let (claim, holds) = match (&self.before.strategies, self.reason) {
            (_, PreemptionReason::InTeam) => (1, true),
            (None, PreemptionReason::Reclaimed) => (2, self.back.asking.contested.len() == 1),
            (None, _) => {
                let mut answer = self.answer.iter();
                let stays_out = answer.all(|(_, reason)| *reason != PreemptionReason::InTeam);
                (
                    3,
                    is_only_victim && asking.contested.len() == 1 && stays_out,
                )
            }
            (Some(_), PreemptionReason::Reclaimed) => {
                (4, one_resource && !has_own_candidates(self.before, asking))
            }
            (Some(strategies), _) => {
                let by_final_share = strategies[..] == [FairStrategy::LessThanOrEqualToFinalShare];
                let parent = |team: Name| self.before.nodes[&team].parent;
                let stays_out = !has_own_candidates(self.before, asking)
                    && !has_own_candidates(self.after, &self.back.asking);
                let are_siblings = parent(asking.team) == parent(self.back.asking.team);
                let few = is_only_victim || by_final_share;
                (5, one_resource && are_siblings && stays_out && few)
            }
        };
        holds.then_some(claim)
    }
}

#[test]
fn s15_no_victim_that_comes_back_preempts_its_preemptor_within_the_five_claims() {
    let counts = at_every_question(HISTORIES, |play, question, victims| {
        let mut counts = [0; 5];
        if victims.is_empty() {
            return Ok(counts);
        }
        let mut after = play.clone();
        let ended = after.carry_out(question, victims);
        let preemptor = after.running.len() - 1;
        for gang in &ended {
            let Some(back) = coming_back(&after, gang) else {
                continue;
            };
            let answer = after.decided(&back);
            let was = |(position, _): &&Chosen| play.running[*position].uid == gang.uid;
            let (_, reason) = victims.iter().find(was).ok_or("it was no victim")?;
            let claim = Return {
                before: play,
                question,
                victims,
                reason: *reason,
                after: &after,
                back: &back,
                answer: &answer,
            }
            .claim();
            if let Some(claim) = claim {
                counts[claim - 1] += 1;
                let preempts_back = answer.iter().any(|(position, _)| *position == preemptor);
                ensure(!preempts_back, || {
                    format!(
                        "against claim {claim}: {question:?} preempts {victims:?}, and {back:?} {answer:?}"
                    )
                })?;
            }
        }
        Ok(counts)
    });
    assert!(
        counts.is_none_or(|counts| counts.iter().all(|count| *count > 0)),
        "every claim is tested: {counts:?}"
    );
}

const PAIR: Pair = Pair {
    flavor: 0,
    resource: 2,
};

fn node(parent: Option<Name>, nominal: i128, policy: Option<PreemptionPolicy>) -> Node {
    let limit = Limit {
        nominal,
        ..Limit::default()
    };
    Node {
        parent,
        limits: BTreeMap::from([(PAIR, limit)]),
        weight: Weight::ONE.0,
        policy,
    }
}

fn gang(uid: u32, team: Name, priority: i32, amount: i128) -> Running {
    Running {
        uid,
        team,
        priority,
        // Who is named first is older.
        queued_at: i64::from(uid),
        admitted_at: Some(0),
        is_ending: false,
        charges: vec![(PAIR, amount)],
    }
}

/// A root with a pool, and two Teams.
fn play(pool: i128, teams: [Node; 2], strategies: Option<Vec<FairStrategy>>) -> Play {
    let [first, second] = teams;
    let nodes = Nodes::from([(0, node(None, pool, None)), (1, first), (2, second)]);
    Play::new(&History {
        nodes,
        strategies,
        pairs: vec![PAIR],
        events: Vec::new(),
    })
}

/// The gang asks; its victims, by UID, end, and it is admitted.
fn preempts(play: &mut Play, gang: &Running) -> Vec<u32> {
    let question = coming_back(play, gang).expect("it does not fit");
    let victims = play.decided(&question);
    assert_eq!(
        victims,
        play.expected(&question),
        "the engine and the model"
    );
    let uids = victims
        .iter()
        .map(|(position, _)| play.running[*position].uid);
    let uids = uids.collect();
    play.carry_out(&question, &victims);
    uids
}

#[test]
fn three_gangs_go_round_where_one_borrows_by_priority_and_two_victims_are_needed() {
    let policy = PreemptionPolicy {
        reclaim_within_cohort: ReclaimWithinCohort::Any,
        borrow_within_cohort: BorrowWithinCohort::LowerPriority { highest: None },
        ..PreemptionPolicy::default()
    };
    let lender = node(Some(0), 1, Some(policy));
    let mut play = play(0, [lender, node(Some(0), 2, Some(policy))], None);
    let (small, large, important) = (gang(1, 1, 0, 1), gang(2, 1, 0, 2), gang(3, 2, 1, 3));
    play.start(small.clone());
    play.start(large.clone());
    for _ in 0..2 {
        assert_eq!(preempts(&mut play, &important), [1, 2]);
        // Alone it is within its Team's quota, and has that back from the one that borrows.
        assert_eq!(preempts(&mut play, &small), [3]);
        assert!(
            play.lacks(1, &large.charges).is_empty(),
            "what the third had not used is free"
        );
        play.start(large.clone());
    }
}

#[test]
fn two_gangs_go_round_where_a_share_was_compared_without_a_gang_that_stays_after_all() {
    let policy = PreemptionPolicy {
        within_team: WithinTeam::LowerOrNewerEqualPriority,
        reclaim_within_cohort: ReclaimWithinCohort::Any,
        ..PreemptionPolicy::default()
    };
    let team = || node(Some(0), 2, Some(policy));
    let mut play = play(2, [team(), team()], Some(FairStrategy::DEFAULT.to_vec()));
    let (older, stays, other) = (gang(1, 1, 0, 3), gang(2, 1, 0, 2), gang(3, 2, 0, 4));
    play.start(stays);
    play.start(other.clone());
    for _ in 0..2 {
        // With the younger gang of its own Team gone its share is the smaller one; then that gang is put back.
        assert_eq!(preempts(&mut play, &older), [3]);
        assert_eq!(preempts(&mut play, &other), [1]);
    }
}
