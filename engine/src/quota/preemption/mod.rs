//! Whose gangs give way so that another gang has its quota: victims, chosen as Kueue chooses them.
//!
//! A gang may preempt in its own Team, and, to have back what others borrow, in other Teams of its quota tree, as its Team's
//! [`PreemptionPolicy`] allows. Who goes first depends on how the tree is shared: by the place of both in the tree and by
//! priority ([`Sharing::ByPriority`]), or by weighted shares ([`Sharing::Fair`]).
//!
//! Nothing is decided here but the set. It is found on the tree itself, by taking charges away and putting them back
//! ([`Simulation`]): when [`victims`] returns, by whatever way, the tree is as before. The set is minimal: without any one
//! of the victims the gang would not fit. It need not be the smallest there is.
//!
//! **A victim is worth nothing unless a place results**, so the caller is asked whether the gang has a place without
//! them ([`Places`]). Where quota is there and places are not, it is not asked after every victim: twice as many are taken
//! each time, and the number is shortened afterwards.
//!
//! **Where that order frees no place, the cheapest domain decides.** Of a Team that borrows, those that go first may give back all
//! that is borrowed without a place coming of it; the others have to stay then, though one of them alone would do. So the search is
//! repeated among the gangs of one domain after another, and the first in which it succeeds is taken. It is the same search: nobody
//! goes who might not go by the rules above, and only as many as it takes.

mod by_priority;
mod candidates;
mod fair;
mod simulation;

use std::collections::{BTreeMap, BTreeSet};

use super::{
    policy::FairStrategy,
    tree::{NodeId, PairId, QuotaTree},
};
use crate::{
    amount::{FlavorResource, ResourceCharge},
    fairness::WeightedUse,
    names::{GangUid, TeamName, Timestamp},
};
use candidates::Candidate;
use simulation::Simulation;

/// A gang that runs, or is about to, and may be preempted. The caller leaves out those that nobody may preempt now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningGang {
    /// Which one.
    pub uid: GangUid,
    /// Its Team.
    pub team: TeamName,
    /// Its priority.
    pub priority: i32,
    /// Since when it is in its queue: its age, kept over its attempts.
    pub queued_at: Timestamp,
    /// When it was admitted, or wrote its last checkpoint, whichever came last; `None` counts as just now.
    pub admitted_at: Option<Timestamp>,
    /// Whether its pods are made again.
    pub is_made_again: bool,
    /// What its namespace used, where the preemptor's Team goes by that: of equals of that Team those go first whose namespace used more.
    /// Of gangs of other Teams it is not read.
    pub namespace_used: WeightedUse,
    /// Whether its eviction has begun already. Such gangs are chosen first: they cost nothing.
    pub is_ending: bool,
    /// What its Team is charged for it. What is listed twice counts twice.
    pub charges: Vec<ResourceCharge>,
}

/// The gang that others are to give way to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preemptor {
    /// Its Team.
    pub team: TeamName,
    /// Its priority.
    pub priority: i32,
    /// Since when it is in its queue.
    pub queued_at: Timestamp,
    /// What its Team would be charged for it.
    pub charges: Vec<ResourceCharge>,
    /// Of what it needs more than is available: only gangs that hold some of it are preempted.
    pub contested: BTreeSet<FlavorResource>,
}

/// How the Teams of a tree share what they do not use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing<'a> {
    /// First come, first served; who needs its own quota, or that of a Cohort that it is closer to, has it back.
    #[default]
    ByPriority,
    /// By weighted shares, with these tests: the second is tried where the first frees too little.
    Fair(&'a [FairStrategy]),
}

impl Sharing<'_> {
    /// By weighted shares, as Kueue shares by default.
    pub const FAIR: Sharing<'static> = Sharing::Fair(&FairStrategy::DEFAULT);
}

/// Why a gang is preempted. The texts are shown to users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PreemptionReason {
    /// By a gang of its own Team.
    InTeam,
    /// Its Team borrows what the preemptor's has a right to.
    Reclaimed,
    /// Its Team's share is larger than the preemptor's.
    FairShare,
    /// By a gang of higher priority, whose Team borrows, too.
    ReclaimedWhileBorrowing,
}

/// A gang that gives way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Victim {
    /// Its position among the gangs that were given.
    pub position: usize,
    /// Why.
    pub reason: PreemptionReason,
}

/// Whether a preemptor has a place without some of the gangs that run. The more are gone, the sooner there is one.
pub(crate) trait Places {
    /// Whether it has one if the gangs at these positions are gone.
    fn is_there_without(&mut self, gone: &[usize]) -> bool;

    /// Of the gangs at these positions, without whom there is a place, those that are in the way of the one that was found.
    fn in_the_way(&mut self, gone: &[usize]) -> BTreeSet<usize>;

    /// The gangs that stand together where the preemptor might have its place, by domain, the cheapest first. Not more than a few.
    fn domains(&mut self) -> Vec<BTreeSet<usize>> {
        Vec::new()
    }
}

/// Where nothing is known of places but whether there is one.
struct AnyPlace<'a>(&'a mut dyn FnMut(&[usize]) -> bool);

impl Places for AnyPlace<'_> {
    fn is_there_without(&mut self, gone: &[usize]) -> bool {
        (self.0)(gone)
    }

    fn in_the_way(&mut self, gone: &[usize]) -> BTreeSet<usize> {
        gone.iter().copied().collect()
    }
}

/// What a preemption is about: the two sides and the tree, in the tree's own numbers.
struct Contest<'a> {
    team: NodeId,
    preemptor: &'a Preemptor,
    running: &'a [RunningGang],
    request: Vec<(PairId, i128)>,
    contested: BTreeSet<PairId>,
}

/// The gangs that give way to the preemptor, in the order in which they were chosen. None if nothing that it may do makes
/// it fit.
///
/// `has_place` is asked whether the preemptor has a place if the gangs at these positions are gone.
pub fn victims(
    tree: &mut QuotaTree,
    sharing: Sharing<'_>,
    running: &[RunningGang],
    preemptor: &Preemptor,
    has_place: &mut dyn FnMut(&[usize]) -> bool,
) -> Vec<Victim> {
    victims_for(tree, sharing, running, preemptor, &mut AnyPlace(has_place))
}

/// As [`victims`], for a caller that knows more of places.
pub(crate) fn victims_for(
    tree: &mut QuotaTree,
    sharing: Sharing<'_>,
    running: &[RunningGang],
    preemptor: &Preemptor,
    places: &mut dyn Places,
) -> Vec<Victim> {
    let Some(team) = tree.node_of(&preemptor.team) else {
        return Vec::new();
    };
    let request = charged(tree, &preemptor.charges);
    let contested = preemptor.contested.iter().map(|of| tree.pair(of)).collect();
    let contest = Contest {
        team,
        preemptor,
        running,
        request,
        contested,
    };
    let candidates = Candidate::all(tree, &contest);
    let mut simulation = Simulation::new(tree, places);
    let search = |simulation: &mut Simulation<'_>, candidates| match sharing {
        Sharing::ByPriority => by_priority::victims(simulation, &contest, candidates),
        Sharing::Fair(strategies) => fair::victims(simulation, &contest, candidates, strategies),
    };
    let victims = search(&mut simulation, candidates.clone());
    // Without quota no domain helps, nor where there is no place even without all of them.
    if !victims.is_empty()
        || !simulation.lacked_a_place
        || !simulation.has_place_without(&candidates)
    {
        return victims;
    }
    for domain in simulation.domains() {
        simulation.undo();
        let within = candidates.iter().filter(|candidate| {
            // Who ends anyway frees its quota wherever it runs.
            domain.contains(&candidate.position) || contest.gang(candidate).is_ending
        });
        let victims = search(&mut simulation, within.cloned().collect());
        if !victims.is_empty() {
            return victims;
        }
    }
    Vec::new()
}

/// Charges in the tree's own numbers, each pair once.
pub(super) fn charged(tree: &mut QuotaTree, charges: &[ResourceCharge]) -> Vec<(PairId, i128)> {
    let mut sums = BTreeMap::new();
    for charge in charges {
        *sums.entry(tree.pair(&charge.of)).or_default() += i128::from(charge.amount.0);
    }
    sums.into_iter().collect()
}

impl Contest<'_> {
    /// Whether a node is within its own quota, in all that is contested.
    fn is_within_quota(&self, tree: &QuotaTree, node: NodeId) -> bool {
        self.contested
            .iter()
            .all(|pair| tree.account(node, *pair).headroom() >= 0)
    }
}
