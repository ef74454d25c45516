//! Victims where the place in the tree and the priority decide.
//!
//! Candidates of other Teams are collected on the way up from the preemptor's Team, at each Cohort those of Teams that
//! borrow from it. As soon as the request, or what is left of it after the lower nodes gave what they keep for
//! themselves, fits the quota of the part of the tree that was passed, the preemptor has the *advantage* over all that
//! hang further off: it takes back what is its own, whatever their priority. The others go only where the preemptor
//! does not end up borrowing, or by priority, if its Team may borrow and preempt at once.

use super::{
    Contest, PreemptionReason, Victim,
    candidates::Candidate,
    simulation::{Chosen, Simulation},
};
use crate::quota::{
    policy::BorrowWithinCohort,
    tree::{NodeId, PairId, QuotaTree},
};

/// By what right a gang is a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Right {
    /// The preemptor is closer to the quota that it borrows.
    Advantage,
    /// The preemptor's Team gets back what it lent, and borrows nothing itself.
    WithoutBorrowing,
    /// The preemptor has the higher priority and may borrow.
    WhileBorrowing,
    /// They are of one Team.
    SameTeam,
}

/// A candidate with its right to be one.
struct Entitled {
    candidate: Candidate,
    right: Right,
    /// The lowest Cohort above both.
    meeting: Option<NodeId>,
}

pub(super) fn victims(
    simulation: &mut Simulation<'_>,
    contest: &Contest<'_>,
    candidates: Vec<Candidate>,
) -> Vec<Victim> {
    let tree = &*simulation.tree;
    let entitled = entitled(tree, contest, candidates);
    for &may_borrow in attempts(tree, contest, &entitled) {
        let victims = attempt(simulation, contest, &entitled, may_borrow);
        if !victims.is_empty() {
            return victims;
        }
    }
    Vec::new()
}

/// The candidates in the order in which they are taken: what ends already first; of the rest, and of those, first where
/// the preemptor has the advantage, then the other Teams', then its own Team's.
fn entitled(tree: &QuotaTree, contest: &Contest<'_>, candidates: Vec<Candidate>) -> Vec<Entitled> {
    let ancestors = advantages(tree, contest);
    let mut entitled: Vec<Entitled> = candidates
        .into_iter()
        .filter_map(|candidate| {
            let (right, meeting) = right(tree, contest, &ancestors, &candidate)?;
            Some(Entitled {
                candidate,
                right,
                meeting,
            })
        })
        .collect();
    // Stable: within each part the order of the candidates stays.
    entitled.sort_by_key(|entitled| {
        let part = match entitled.right {
            Right::Advantage => 0,
            Right::WithoutBorrowing | Right::WhileBorrowing => 1,
            Right::SameTeam => 2,
        };
        (!contest.gang(&entitled.candidate).is_ending, part)
    });
    entitled
}

/// The Cohorts above the preemptor's Team, upwards, each with whether the preemptor has the advantage over what hangs
/// there.
fn advantages(tree: &QuotaTree, contest: &Contest<'_>) -> Vec<(NodeId, bool)> {
    let mut rest: Vec<(PairId, i128)> = contest.request.clone();
    let mut has_advantage = false;
    let mut ancestors = Vec::new();
    for node in tree.path(contest.team) {
        if node != contest.team {
            ancestors.push((node, has_advantage));
        }
        let fits =
            |(pair, amount): &(PairId, i128)| tree.account(node, *pair).headroom() >= *amount;
        has_advantage |= rest.iter().all(fits);
        for (pair, amount) in &mut rest {
            *amount = (*amount - tree.account(node, *pair).local_available()).max(0);
        }
    }
    ancestors
}

/// By what right, and at which Cohort, a gang is a candidate. `None` if its Team, or a Cohort between it and the one where
/// it meets the preemptor, borrows nothing that is contested.
fn right(
    tree: &QuotaTree,
    contest: &Contest<'_>,
    ancestors: &[(NodeId, bool)],
    candidate: &Candidate,
) -> Option<(Right, Option<NodeId>)> {
    if contest.is_own(candidate) {
        return Some((Right::SameTeam, None));
    }
    let met = tree.path(candidate.team).find_map(|node| {
        let mut ancestors = ancestors.iter();
        ancestors.find(|(ancestor, _)| *ancestor == node)
    });
    let (meeting, has_advantage) = *met?;
    if !borrows_below(tree, contest, candidate.team, meeting) {
        return None;
    }
    let priority = contest.gang(candidate).priority;
    let right = match tree.policy_of(contest.team).borrow_within_cohort {
        _ if has_advantage => Right::Advantage,
        BorrowWithinCohort::LowerPriority { highest }
            if priority < contest.preemptor.priority
                && highest.is_none_or(|highest| priority <= highest) =>
        {
            Right::WhileBorrowing
        }
        _ => Right::WithoutBorrowing,
    };
    Some((right, Some(meeting)))
}

/// Whether a Team and every Cohort between it and `meeting` use more than their quota of something that is contested.
fn borrows_below(tree: &QuotaTree, contest: &Contest<'_>, team: NodeId, meeting: NodeId) -> bool {
    let mut below = tree.path(team).take_while(|node| *node != meeting);
    below.all(|node| !contest.is_within_quota(tree, node))
}

/// With borrowing, or without: what is tried, in this order.
fn attempts(tree: &QuotaTree, contest: &Contest<'_>, entitled: &[Entitled]) -> &'static [bool] {
    let policy = tree.policy_of(contest.team).borrow_within_cohort;
    let is_forbidden = policy == BorrowWithinCohort::Never;
    let has = |wanted: fn(Right) -> bool| entitled.iter().any(|entitled| wanted(entitled.right));
    let is_under_nominal = || {
        let mut contested = contest.contested.iter();
        contested.all(|pair| tree.account(contest.team, *pair).headroom() > 0)
    };
    if !has(|right| right != Right::SameTeam) || (is_forbidden && !is_under_nominal()) {
        &[true]
    } else if is_forbidden && !has(|right| right == Right::Advantage) {
        &[false, true]
    } else {
        &[true, false]
    }
}

/// The victims of one attempt; none if it does not make the gang fit. Then the tree is as before it.
fn attempt(
    simulation: &mut Simulation<'_>,
    contest: &Contest<'_>,
    entitled: &[Entitled],
    may_borrow: bool,
) -> Vec<Victim> {
    let mut chosen: Vec<Chosen> = Vec::new();
    // So many are too few; and how many more are to go before it is asked again whether there is a place.
    let (mut in_vain, mut step) = (0, 0);
    for Entitled {
        candidate,
        right,
        meeting,
    } in entitled
    {
        if may_borrow && *right == Right::WithoutBorrowing {
            continue;
        }
        // Those before it may have given back all that was borrowed.
        if meeting.is_some_and(|meeting| {
            !borrows_below(simulation.tree, contest, candidate.team, meeting)
        }) {
            continue;
        }
        simulation.remove(candidate);
        let reason = match right {
            Right::SameTeam => PreemptionReason::InTeam,
            Right::Advantage | Right::WithoutBorrowing => PreemptionReason::Reclaimed,
            Right::WhileBorrowing => PreemptionReason::ReclaimedWhileBorrowing,
        };
        chosen.push(candidate.clone().chosen(reason));
        if chosen.len() < in_vain + step {
            continue;
        }
        if !simulation.has_quota(contest, may_borrow) {
            in_vain = chosen.len();
            continue;
        }
        if simulation.has_place(&chosen) {
            simulation.shorten(&mut chosen, in_vain);
            return simulation.fill_back(contest, may_borrow, chosen);
        }
        in_vain = chosen.len();
        step = (2 * step).max(1);
    }
    // Those that were taken since it was asked last.
    if step > 0 && chosen.len() > in_vain && simulation.has_place(&chosen) {
        simulation.shorten(&mut chosen, in_vain);
        return simulation.fill_back(contest, may_borrow, chosen);
    }
    for chosen in &chosen {
        simulation.restore(&chosen.candidate);
    }
    Vec::new()
}
