//! Whom a gang that does not fit may preempt, so that it does.
//!
//! Whenever the first gang of a class is judged and refused, it is asked who could give way to it, on each Flavor as far as the
//! Team's fungibility says; the best of them is chosen.
//! Where devices of several sizes match, it is asked by the least charge first, and by larger ones if no place results: a place is one that
//! kube-scheduler's allocator would come to, with devices of just that charge.
//! Where it has no place with devices of any size, whoever goes, that is found out once, and larger ones are not asked for.
//! Only the Team's policy and what will be charged decide who may ([`super::moments`], [`crate::quota`]); who was not told as running, is protected by a
//! minimum run time, or was to go and did not, is left out. Who ends by itself is counted on first: nobody else goes where that is
//! enough. There is no preemption without a place: the nodes are planned as if
//! the victims were gone, and kept ([`super::reservations`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
    sync::Arc,
};

use super::{
    State,
    hopes::{Asks, Hope, Lacking},
    ids::{ClassId, GangId, ShapeId, TeamId},
    judge::{Candidate, Fitting},
    recovering::Lacks,
    reservations::Reservation,
    team::Refusing,
    work::Work,
};
use crate::{
    amount::{Amount, FlavorResource, ResourceCharge},
    decision::{Preempted, Preemption},
    fairness::WeightedUse,
    model::Hold,
    names::{FlavorName, GangUid, LevelName, NodeName, PodUid, TeamName, Timestamp, TopologyName},
    placement::{Cluster, Effort, NODE_LEVEL, Plan, Request, Verdict, plan},
    quota::{
        Asked, FlavorMode, NodeId, PairId, Places, PreemptionPolicy, PreemptionReason, Preemptor,
        QuotaTree, Rank, ReclaimWithinCohort, RunningGang, Search, Sharing, Suitability,
        WithinTeam,
        charges::{Delta, undoing},
        request::{Assignment, QuotaRequest, Way},
        victims_for,
    },
};

/// The looks of one search for victims, about twenty milliseconds. With more it gives up, and nobody is preempted.
const MOST_LOOKS: u64 = 10 * Effort::ONE_DECISION;

/// By how many charges victims are searched for a gang on one Flavor: that of the smallest devices that match, and of larger ones.
const MOST_WAYS: usize = 5;
/// The looks of each further search: all of them together take as many again as the first may.
const MORE_LOOKS: u64 = MOST_LOOKS / (MOST_WAYS as u64 - 1);

/// In how many domains victims are searched one by one. With more, those that cost most are left out.
const MOST_DOMAINS: usize = 16;

/// Who gives way to a gang, and what it gets by that.
#[derive(Clone, Debug)]
pub(super) struct Preempting {
    victims: Vec<Preempted>,
    flavor: FlavorName,
    charges: Vec<Delta>,
    nodes: BTreeSet<NodeName>,
    /// How far up the quota tree it reaches then.
    pub(super) borrow_level: usize,
}

impl Preempting {
    /// What it is charged ahead.
    pub(super) fn charges(&self) -> &[Delta] {
        &self.charges
    }

    /// What it takes for the gang to have the Flavor.
    fn suits(&self) -> Suitability {
        let mut victims = self.victims.iter();
        let mode = if victims.any(|victim| victim.reason == PreemptionReason::InTeam) {
            FlavorMode::Preempt
        } else {
            FlavorMode::Reclaim
        };
        Suitability {
            mode,
            borrow_level: self.borrow_level,
        }
    }
}

/// A gang on one Flavor.
#[derive(Clone, Copy)]
struct On<'a> {
    shape: ShapeId,
    gang: GangId,
    node: NodeId,
    assignments: &'a [Assignment],
    at: usize,
}

/// What somebody who searched in vain waits for.
#[derive(Clone, Debug, Default)]
pub(super) struct InVain {
    /// When others can be asked by time alone.
    pub(super) more_at: Option<Timestamp>,
    hopes: Vec<Hope>,
    /// What it lacks, on some Flavor, that is not quota.
    lacking: BTreeSet<Lacking>,
    /// What it asks for where no other share is as large as its own would be.
    shares: Vec<(NodeId, Asked)>,
}

/// What a gang asks for whose Team would borrow where shares are fair.
struct ByShare {
    asked: Asked,
    /// What is contested and would be borrowed, the first of it.
    contested_beyond: PairId,
    /// Whether all that is asked for would be borrowed, be it contested or not.
    is_all_beyond: bool,
}

impl ByShare {
    /// `None` if others give way whatever their shares: those of other trees, and to whom borrows nothing that is contested.
    fn of(
        tree: &QuotaTree,
        team: NodeId,
        request: &QuotaRequest,
        contested: &BTreeSet<PairId>,
    ) -> Option<Self> {
        if !matches!(tree.sharing_of(team), Sharing::Fair(_)) {
            return None;
        }
        let asked = request.iter();
        let asked: Asked = asked
            .map(|(pair, amount)| (*pair, i128::from(amount.0)))
            .collect();
        let is_beyond = |pair: &PairId| {
            let amount = asked.get(pair).copied().unwrap_or_default();
            amount > tree.usage_and_headroom(team, *pair).1
        };
        let contested_beyond = contested.iter().copied().find(|pair| is_beyond(pair))?;
        let is_all_beyond = asked.keys().all(is_beyond);
        Some(Self {
            asked,
            contested_beyond,
            is_all_beyond,
        })
    }
}

impl InVain {
    /// What it lacks besides quota.
    pub(super) fn lacks(&self) -> Lacks {
        Lacks {
            most: self.lacking.last().copied(),
            larger_shares: !self.shares.is_empty(),
        }
    }

    /// Some can be asked later, or may be left alone no longer.
    fn note_preemptable(&mut self, preemptable: &Preemptable) {
        let more_at = [self.more_at, preemptable.more_at];
        self.more_at = more_at.into_iter().flatten().min();
        if preemptable.some_stay {
            self.lacking.insert(Lacking::Place);
        }
    }
}

/// Gangs that may be preempted, and when there will be others.
#[derive(Default)]
struct Preemptable {
    gangs: Vec<RunningGang>,
    /// Whether somebody is left out for whom it went itself.
    some_stay: bool,
    /// When a minimum run time ends, or somebody who was told to go is counted on no longer: others may go instead then.
    more_at: Option<Timestamp>,
}

impl Preemptable {
    fn note_others_at(&mut self, at: Timestamp) {
        self.more_at = Some(self.more_at.map_or(at, |known| known.min(at)));
    }
}

impl State {
    /// Whether a gang reaches less far up the quota tree than was found once these victims are gone, or their quota is not enough any more: then
    /// a gang behind it may be the next of its Team.
    pub(super) fn may_reach_less(
        &self,
        team: TeamId,
        preempting: &Preempting,
        tree: &mut QuotaTree,
    ) -> bool {
        let Some(node) = self.teams.get(team).and_then(|entry| entry.node) else {
            return true;
        };
        let victims = preempting.victims.iter();
        let going = victims.flat_map(|victim| self.charges_of(&victim.gang));
        let going: Vec<Delta> = going.collect();
        tree.apply(&undoing(&going), |_, _, _| {});
        let (mut level, mut is_enough) = (0, true);
        for delta in &preempting.charges {
            let Some(pair) = tree.known_pair(&delta.of) else {
                continue;
            };
            let amount = Amount(i64::try_from(delta.amount).unwrap_or(i64::MAX));
            level = level.max(tree.borrow_level_at(node, pair, amount));
            is_enough &= amount <= tree.available_at(node, pair);
        }
        tree.apply(&going, |_, _, _| {});
        let mut victims = preempting.victims.iter();
        let goes_for_others = victims.any(|victim| self.reservations.gives_way(&victim.gang));
        level < preempting.borrow_level || !is_enough || goes_for_others
    }

    /// By how much is charged in its tree what a gang would have without its victims may not be there any more. The tree is as before
    /// then.
    pub(super) fn suffices_until(
        &self,
        team: TeamId,
        preempting: &Preempting,
        tree: &mut QuotaTree,
    ) -> Vec<(PairId, i128)> {
        let Some(node) = self.teams.get(team).and_then(|entry| entry.node) else {
            return Vec::new();
        };
        let victims = preempting.victims.iter();
        let going = victims.flat_map(|victim| self.charges_of(&victim.gang));
        let going: Vec<Delta> = going.collect();
        tree.apply(&undoing(&going), |_, _, _| {});
        let mut until = Vec::new();
        for delta in &preempting.charges {
            if let Some(pair) = tree.known_pair(&delta.of)
                && let Some(charged) = self.available_until(tree, node, pair, delta.amount)
            {
                until.push((pair, charged));
            }
        }
        tree.apply(&going, |_, _, _| {});
        until
    }

    /// Who would give way to a gang that was refused.
    pub(super) fn find_victims(
        &mut self,
        class: ClassId,
        gang: GangId,
        refusals: &[Refusing],
        work: &mut Work,
    ) -> Option<Preempting> {
        let mut in_vain = InVain::default();
        let refusals = refusals.iter().enumerate();
        let found = self.search_victims(gang, refusals, None, &mut in_vain, work);
        if found.is_none() {
            self.in_vain = Some((class, in_vain));
        }
        found
    }

    /// A class that searched for victims in vain waits, besides, for what may make another search worth its while.
    pub(super) fn wait_for_victims(&mut self, id: ClassId) {
        let Some((_, in_vain)) = self.in_vain.take().filter(|(class, _)| *class == id) else {
            return;
        };
        if let Some(at) = in_vain.more_at {
            self.hopes.ask_at(id, at);
        }
        let Some(asks) = self.asks(id) else { return };
        for hope in in_vain.hopes {
            self.hopes.hope(id, asks, hope);
        }
        // Should somebody of its own Team go, that one has a smaller share, and more can be asked.
        let by_share = (!in_vain.shares.is_empty()).then_some(Lacking::Share);
        let lacking = in_vain.lacking.last().copied().max(by_share);
        if lacking < Some(Lacking::Time) {
            for (team, asked) in in_vain.shares {
                let afterwards = &self.moments.afterwards;
                self.share_waits.enter(afterwards, id, team, &asked);
            }
        }
        match lacking {
            None => {}
            Some(Lacking::Share) => {
                let asks = asks.only_its_own();
                self.hopes.take_turns(id, asks, Lacking::Share);
            }
            Some(lacking) => self.hopes.take_turns(id, asks, lacking),
        }
    }

    /// Whom the first gang of a class can ask.
    fn asks(&self, id: ClassId) -> Option<Asks> {
        let class = self.classes.get(id)?;
        let waiting = self.waiting.get(class.line.first()?)?;
        let node = self.teams.get(class.team)?.node?;
        let (policy, root) = (self.tree.policy_of(node), self.tree.root_of(node));
        Some(Asks::of(policy, waiting.gang.priority, node, root))
    }

    /// Who would give way to a gang that fits, on a Flavor that suits it better than the one on which it does: as its Team's
    /// fungibility has it, because it borrows less there, or because that Flavor is tried before.
    pub(super) fn find_victims_rather(
        &mut self,
        gang: GangId,
        fitting: &Fitting,
        work: &mut Work,
    ) -> Option<Preempting> {
        let entry = self.teams.get(self.waiting.get(gang)?.team)?;
        if fitting.refused.is_empty() || !entry.fungibility.may_rather_preempt(fitting.suits()) {
            return None;
        }
        let refusals = fitting.refused.iter();
        let refusals = refusals.map(|(at, refusing)| (*at, refusing));
        let fits = (fitting.assignment?, fitting.suits());
        self.search_victims(gang, refusals, Some(fits), &mut InVain::default(), work)
    }

    /// Who would give way to a gang on one of these Flavors; nobody if the one on which it fits, if any, suits it better.
    fn search_victims<'a>(
        &mut self,
        gang: GangId,
        refusals: impl Iterator<Item = (usize, &'a Refusing)>,
        fits: Option<(usize, Suitability)>,
        in_vain: &mut InVain,
        work: &mut Work,
    ) -> Option<Preempting> {
        let waiting = self.waiting.get(gang)?;
        let (shape, entry) = (waiting.shape, self.teams.get(waiting.team)?);
        let node = entry.node?;
        let policy = self.tree.policy_of(node);
        if policy == PreemptionPolicy::NEVER {
            return None;
        }
        let assignments = Arc::clone(&entry.assignments);
        let before = self.cluster.visited();
        let mut search = Search::new(entry.fungibility);
        // Of who fits all the same nothing is in vain: it is admitted.
        let is_refused = fits.is_none();
        let mut fits = fits;
        // It is taken out for the search, which changes it and changes it back.
        let mut tree = std::mem::take(&mut self.moments.afterwards);
        for (at, refusing) in refusals {
            if let Some((_, suits)) = fits.take_if(|(fits_on, _)| *fits_on < at)
                && search.offer(suits, None).is_break()
            {
                break;
            }
            let may_help = match refusing {
                Refusing::Quota { .. }
                | Refusing::Nominal { .. }
                | Refusing::QuotaForDevices { .. } => true,
                Refusing::NoPlace { gave_up, .. } => !gave_up,
                Refusing::ExceedsMax { .. }
                | Refusing::Unnamed
                | Refusing::UnknownFlavor
                | Refusing::ExcludedFlavor
                | Refusing::TooFewDevices(_)
                | Refusing::Overflow
                | Refusing::BehindHead => false,
            };
            if !may_help {
                continue;
            }
            let on = On {
                shape,
                gang,
                node,
                assignments: &assignments,
                at,
            };
            let kept = self.as_it_may_borrow(on, &mut tree);
            let found = self.find_victims_on(on, &mut tree, work, in_vain);
            tree.allow_borrowing(node, kept);
            if found.is_some_and(|found| search.offer(found.suits(), Some(found)).is_break()) {
                fits = None;
                break;
            }
        }
        if let Some((_, suits)) = fits {
            // Whether the search would end there does not matter any more.
            let _ = search.offer(suits, None);
        }
        let found = search.best().and_then(|(_, found)| found);
        self.moments.afterwards = tree;
        if found.is_none() && is_refused {
            work.note_in_vain(&self.cluster, before);
        }
        found
    }

    /// Has the Team of a gang that may not borrow borrow nothing of what the gang asks for; returns what takes that back.
    fn as_it_may_borrow(&self, on: On<'_>, tree: &mut QuotaTree) -> Vec<(PairId, Option<i128>)> {
        let candidate = self.candidate(on.shape, on.gang, Some(on.node), on.assignments, on.at);
        match candidate {
            Some(candidate) => forbid_borrowing(&candidate, &self.cluster, tree),
            None => Vec::new(),
        }
    }

    fn find_victims_on(
        &self,
        on: On<'_>,
        tree: &mut QuotaTree,
        work: &mut Work,
        in_vain: &mut InVain,
    ) -> Option<Preempting> {
        let (assignments, at) = (on.assignments, on.at);
        let candidate = self.candidate(on.shape, on.gang, Some(on.node), assignments, at)?;
        let assignment = assignments.get(at)?;
        let ways = candidate
            .totals
            .ways(assignment, assignments, &self.cluster, MOST_WAYS)
            .ok()?;
        let mut most_looks = MOST_LOOKS;
        for (number, way) in ways.iter().enumerate() {
            if number == 1 && self.has_no_place_whoever_goes(&candidate, &ways, tree, work.now) {
                return None;
            }
            work.visited.searches += 1;
            match self.find_victims_by(&candidate, way, most_looks, tree, work.now, in_vain) {
                ControlFlow::Break(found) => return found,
                ControlFlow::Continue(()) => most_looks = MORE_LOOKS,
            }
        }
        None
    }

    /// Whether a gang has no place, be it with devices that are charged more than by any of these ways, even if everybody were gone whom it may
    /// ask by one of them. Then each further search would be in vain like the first, and what helps one helps the first, too: what comes
    /// free, and who can be asked from then on. `false` also where that is not found out in time.
    fn has_no_place_whoever_goes(
        &self,
        candidate: &Candidate<'_>,
        ways: &[Way],
        tree: &QuotaTree,
        now: Timestamp,
    ) -> bool {
        let asked = ways.iter().flat_map(|way| way.asked.keys());
        let asked: BTreeSet<PairId> = asked.copied().collect();
        let everybody = self.preemptable(candidate, tree, &asked, None, true, now);
        // Others can be asked later by time alone: that what they would free is no place is not known.
        if everybody.more_at.is_some() {
            return false;
        }
        let running = everybody.gangs;
        let with_any_devices = Way {
            asked: QuotaRequest::new(),
            most_per_device: None,
        };
        let mut places = Without::of(self, candidate, &with_any_devices, &running, MORE_LOOKS);
        let all: Vec<usize> = (0..running.len()).collect();
        matches!(places.verdict_without(&all), Some(Verdict::NoPlace(_)))
    }

    /// Who gives way to a gang that is charged so. It goes on where no place results whoever goes: larger devices may have one.
    fn find_victims_by(
        &self,
        candidate: &Candidate<'_>,
        way: &Way,
        most_looks: u64,
        tree: &mut QuotaTree,
        now: Timestamp,
        in_vain: &mut InVain,
    ) -> ControlFlow<Option<Preempting>> {
        const NOBODY: ControlFlow<Option<Preempting>> = ControlFlow::Break(None);
        let asked = &way.asked;
        let (Some(node), Some(assignment)) = (candidate.node, candidate.assignment()) else {
            return NOBODY;
        };
        let Some(contested) = contested(tree, node, assignment, asked) else {
            match right_lacking(tree, node, asked) {
                // It has none by its limits.
                None => {}
                // Of several, what is taken meanwhile may leave only those lacking to which it has a right.
                Some(hopes) if hopes.is_empty() => {
                    let may_contest_less = asked.len() > 1;
                    in_vain.lacking.insert(if may_contest_less {
                        Lacking::Time
                    } else {
                        Lacking::Place
                    });
                }
                Some(hopes) => in_vain.hopes.extend(hopes),
            }
            return NOBODY;
        };
        // It only has to wait for those who give way to others, if for anybody.
        let has_quota = asked
            .iter()
            .all(|(pair, amount)| *amount <= tree.available_at(node, *pair));
        if has_quota {
            let mut places = Without::of(self, candidate, way, &[], most_looks);
            // Nobody is told to go where a place may be there.
            if places.is_there_without(&[]) || places.gave_up {
                in_vain.lacking.insert(Lacking::Time);
                return NOBODY;
            }
        }
        let by_share = ByShare::of(tree, node, asked, &contested);
        if let Some(by_share) = &by_share
            && self.is_nobody_to_be_asked(candidate, tree, by_share, in_vain)
        {
            return NOBODY;
        }
        // Only Teams with as large a share are asked, and others once their shares are as large; unless gangs of its own Team may go
        // first, which leaves that a smaller share.
        let decides_alone = |by_share: &ByShare| {
            by_share.is_all_beyond && !self.may_ask_its_own(candidate, tree, &by_share.asked)
        };
        let share = by_share.filter(decides_alone).map(|it| it.asked);
        if let Some(asked) = &share {
            in_vain.shares.push((node, asked.clone()));
        }
        let stays_within_nominal = asked
            .iter()
            .all(|(pair, amount)| i128::from(amount.0) <= tree.usage_and_headroom(node, *pair).1);
        let preemptable = self.preemptable(
            candidate,
            tree,
            &contested,
            share.as_ref(),
            stays_within_nominal,
            now,
        );
        in_vain.note_preemptable(&preemptable);
        let running = preemptable.gangs;
        // What is taken meanwhile may be contested, too, by then: whoever borrows that can be asked as well.
        let may_contest_more = contested.len() < asked.len();
        if let Some(hopes) = quota_lacking(tree, node, asked, &running) {
            // All of them together do not free enough.
            in_vain.hopes.extend(hopes);
            if may_contest_more {
                let all = asked.keys().copied().collect();
                let most = self.preemptable(candidate, tree, &all, None, stays_within_nominal, now);
                in_vain.note_preemptable(&most);
                match quota_lacking(tree, node, asked, &most.gangs) {
                    Some(hopes) => in_vain.hopes.extend(hopes),
                    None => {
                        in_vain.lacking.insert(Lacking::Time);
                    }
                }
            }
            return NOBODY;
        }
        let waiting = candidate.waiting;
        let preemptor = Preemptor {
            team: waiting.gang.team.clone(),
            priority: waiting.gang.priority,
            queued_at: waiting.gang.queued_at,
            charges: asked
                .iter()
                .map(|(pair, amount)| ResourceCharge {
                    of: tree.named(*pair).clone(),
                    amount: *amount,
                })
                .collect(),
            contested: contested
                .iter()
                .map(|pair| tree.named(*pair).clone())
                .collect(),
        };
        if running.is_empty() {
            in_vain.lacking.insert(Lacking::Somebody);
            return NOBODY;
        }
        let mut places = Without::of(self, candidate, way, &running, most_looks);
        let sharing = tree.sharing_of(node);
        let victims = victims_for(tree, sharing, &running, &preemptor, &mut places);
        let positions: Vec<usize> = victims.iter().map(|victim| victim.position).collect();
        // A search that gave up may have kept somebody who need not go.
        if positions.is_empty() || places.gave_up {
            // What others take may make their share the larger one, or have them borrow so much that they borrow still once some of
            // theirs are gone. Neither helps whom only a place lacks.
            let all: Vec<usize> = (0..running.len()).collect();
            let asks_others = running.iter().any(|gang| gang.team != preemptor.team);
            let is_place_there = places.gave_up || places.is_there_without(&all);
            let others_may_take_more = asks_others && is_place_there;
            in_vain
                .lacking
                .insert(if may_contest_more || others_may_take_more {
                    Lacking::Time
                } else {
                    Lacking::Place
                });
            return if places.gave_up {
                NOBODY
            } else {
                ControlFlow::Continue(())
            };
        }
        let Some(plan) = places.plan_without(&positions) else {
            in_vain.lacking.insert(Lacking::Place);
            return ControlFlow::Continue(());
        };
        let nodes = self.nodes_of(&plan);
        let gone: Vec<&RunningGang> = positions.iter().filter_map(|at| running.get(*at)).collect();
        let borrow_level = borrow_level_without(tree, node, asked, &gone);
        ControlFlow::Break(Some(Preempting {
            borrow_level,
            flavor: assignment.flavor.clone(),
            charges: deltas(&waiting.gang.uid, &preemptor.team, &preemptor.charges).collect(),
            nodes,
            victims: victims
                .iter()
                .filter_map(|victim| {
                    Some(Preempted {
                        gang: running.get(victim.position)?.uid.clone(),
                        reason: victim.reason,
                    })
                })
                .collect(),
        }))
    }

    /// Whether no other share is as large as that which the gang's own side would have: then nobody gives way to it, unless it may ask
    /// somebody of its own Team.
    fn is_nobody_to_be_asked(
        &self,
        candidate: &Candidate<'_>,
        tree: &QuotaTree,
        by_share: &ByShare,
        in_vain: &mut InVain,
    ) -> bool {
        let Some(node) = candidate.node else {
            return false;
        };
        let ByShare {
            asked,
            contested_beyond: pair,
            is_all_beyond,
        } = by_share;
        self.cluster.note_visits(tree.path(node).count() as u64);
        if self.share_waits.is_any_as_large(tree, node, asked)
            || self.may_ask_its_own(candidate, tree, asked)
        {
            return false;
        }
        if !is_all_beyond {
            // Should it lack only what it has a right to one day, it may have that back from whoever borrows it.
            let amount = asked.get(pair).copied().unwrap_or_default();
            let amount = Amount(i64::try_from(amount).unwrap_or(i64::MAX));
            let Some(hopes) = amount_lacking(tree, node, *pair, amount) else {
                // What others take may be what it has a right to, and be all that it lacks then.
                in_vain.lacking.insert(Lacking::Time);
                return true;
            };
            in_vain.hopes.extend(hopes);
        }
        in_vain.lacking.insert(Lacking::Share);
        in_vain.shares.push((node, asked.clone()));
        true
    }

    /// Whether a gang of the preemptor's own Team holds something that is asked for, and the Team's policy lets the preemptor have it; be it
    /// contested by now, or once others have taken more.
    fn may_ask_its_own(&self, candidate: &Candidate<'_>, tree: &QuotaTree, asked: &Asked) -> bool {
        let Some(node) = candidate.node else {
            return false;
        };
        let (preemptor, policy) = (&candidate.waiting.gang, tree.policy_of(node));
        if policy.within_team == WithinTeam::Never {
            return false;
        }
        let rank = Rank {
            priority: preemptor.priority,
            queued_at: preemptor.queued_at,
        };
        asked.keys().any(|pair| {
            let mut gangs = self.charges.holding(tree.named(*pair), &preemptor.team);
            gangs.any(|gang| {
                self.cluster.note_visits(1);
                let told = self.running.get(gang);
                told.is_some_and(|told| {
                    let other = Rank {
                        priority: told.priority,
                        queued_at: told.queued_at,
                    };
                    policy.may_preempt(rank, other, true)
                })
            })
        })
    }

    /// What a gang is charged on a Flavor, and its place there once all that give way are gone: by the least charge by which it has one.
    pub(super) fn ahead(
        &self,
        gang: GangId,
        flavor: &FlavorName,
    ) -> Option<(Vec<Delta>, BTreeSet<NodeName>)> {
        let waiting = self.waiting.get(gang)?;
        let entry = self.teams.get(waiting.team)?;
        let assignments = &entry.assignments;
        let at = assignments.iter().position(|it| it.flavor == *flavor)?;
        let candidate = self.candidate(waiting.shape, gang, entry.node, assignments, at)?;
        let ways = candidate
            .totals
            .ways(assignments.get(at)?, assignments, &self.cluster, MOST_WAYS)
            .ok()?;
        let (asked, plan) = ways.into_iter().find_map(|way| {
            let plan =
                Without::of(self, &candidate, &way, &[], Effort::ONE_DECISION).plan_without(&[])?;
            Some((way.asked, plan))
        })?;
        let charges = asked.iter().map(|(pair, amount)| Delta {
            gang: waiting.gang.uid.clone(),
            team: waiting.gang.team.clone(),
            of: self.tree.named(*pair).clone(),
            amount: i128::from(amount.0),
        });
        Some((charges.collect(), self.nodes_of(&plan)))
    }

    /// The path of the domain in which a node is at a level, if the Topology has that level and the node is part of it.
    fn domain_of(
        &self,
        node: &NodeName,
        topology: &TopologyName,
        level: &LevelName,
    ) -> Option<Vec<&str>> {
        let levels = &self.limits.topologies.get(topology)?.levels;
        let depth = levels.iter().position(|known| known == level)?;
        let path = self.cluster.node(node)?.fabric.get(topology)?;
        Some(path.get(..=depth)?.iter().map(String::as_str).collect())
    }

    fn nodes_of(&self, plan: &Plan) -> BTreeSet<NodeName> {
        let slots = plan.slots().into_iter();
        let records = slots.filter_map(|slot| self.cluster.record(slot));
        records.map(|record| record.node.name.clone()).collect()
    }

    /// Gangs of the tree that hold something that is contested, and may be preempted as far as policy, priority and time go; and, if it
    /// is said what share the preemptor's Team would have, as far as that goes.
    fn preemptable(
        &self,
        candidate: &Candidate<'_>,
        tree: &QuotaTree,
        contested: &BTreeSet<PairId>,
        share: Option<&Asked>,
        stays_within_nominal: bool,
        now: Timestamp,
    ) -> Preemptable {
        let preemptor = &candidate.waiting.gang;
        let Some(node) = candidate.node else {
            return Preemptable::default();
        };
        let (policy, root) = (tree.policy_of(node), tree.root_of(node));
        let rank = Rank {
            priority: preemptor.priority,
            queued_at: preemptor.queued_at,
        };
        // Those for which it went, and which stay where it would borrow.
        let above = if stays_within_nominal {
            BTreeSet::new()
        } else {
            self.circles.above(&preemptor.uid, preemptor.priority)
        };
        let mut seen: BTreeSet<&GangUid> = BTreeSet::new();
        let mut preemptable = Preemptable::default();
        let own = (policy.within_team != WithinTeam::Never).then_some(&preemptor.team);
        let may_reclaim = policy.reclaim_within_cohort != ReclaimWithinCohort::Never;
        let others = contested.iter().filter(|_| may_reclaim);
        let others = others.flat_map(|pair| self.moments.borrowing(root, *pair));
        let others = others.filter(|team| **team != preemptor.team);
        let asked: BTreeSet<&TeamName> = own.into_iter().chain(others).collect();
        for team in asked {
            let is_own = *team == preemptor.team;
            self.cluster.note_visits(1);
            if let Some(asked) = share
                && !is_own
                && let Some(other) = tree.node_of(team)
                && !self.share_waits.may_be_as_large(tree, node, asked, other)
            {
                continue;
            }
            for pair in contested {
                let gangs = self.charges.holding(tree.named(*pair), team);
                for uid in gangs.filter(|uid| seen.insert(uid)) {
                    self.cluster.note_visits(1);
                    let Some(told) = self.running.get(uid) else {
                        continue;
                    };
                    let other = Rank {
                        priority: told.priority,
                        queued_at: told.queued_at,
                    };
                    if !policy.may_preempt(rank, other, is_own) {
                        continue;
                    }
                    let ends = self.running.is_ending(uid);
                    let went_for_it = !ends
                        && above.contains(uid)
                        && !self.circles.has_sunk(&preemptor.uid, uid, told.priority);
                    if went_for_it {
                        preemptable.some_stay = true;
                        continue;
                    }
                    if self.reservations.gives_way(uid) || self.reservations.is_overdue(uid) {
                        continue;
                    }
                    let ending_since = told.ending_since;
                    let protected = told.protected_until.filter(|until| *until > now);
                    let overdue_at = ending_since
                        .filter(|_| !ends)
                        .map(|since| told.counted_on_until(since));
                    if let Some(at) = overdue_at.filter(|at| *at > now) {
                        preemptable.note_others_at(at);
                    }
                    match (overdue_at, protected) {
                        (Some(at), _) if at <= now => {}
                        (None, Some(until)) if !ends => preemptable.note_others_at(until),
                        _ => preemptable.gangs.push(RunningGang {
                            uid: uid.clone(),
                            team: team.clone(),
                            priority: told.priority,
                            queued_at: told.queued_at,
                            admitted_at: told.checkpointed_at.max(Some(told.admitted_at)),
                            is_made_again: told.is_made_again,
                            namespace_used: if is_own {
                                self.use_of_running(team, uid)
                            } else {
                                WeightedUse::NOTHING
                            },
                            is_ending: ends || ending_since.is_some(),
                            charges: self.freed_by(team, uid),
                        }),
                    }
                }
            }
        }
        preemptable
    }

    /// What a Team is charged no longer once a gang is gone. Claims that others hold, too, stay.
    pub(super) fn freed_by(&self, team: &TeamName, gang: &GangUid) -> Vec<ResourceCharge> {
        if !self.charges.are_claims_shared() {
            return self.charges.of_gang(team, gang);
        }
        let pods = self.running.pods_of(gang);
        let holds = pods.filter_map(|pod| Some((pod.clone(), &**self.holds.get(pod)?)));
        let mut freed: BTreeMap<FlavorResource, i128> = BTreeMap::new();
        for delta in self.charges.without(&holds.collect()) {
            if delta.gang == *gang && delta.team == *team {
                *freed.entry(delta.of).or_default() -= delta.amount;
            }
        }
        let freed = freed.into_iter().filter(|(_, amount)| *amount > 0);
        freed
            .map(|(of, amount)| ResourceCharge {
                of,
                amount: Amount(i64::try_from(amount).unwrap_or(i64::MAX)),
            })
            .collect()
    }

    /// Commits to a preemption.
    pub(super) fn preempt(
        &mut self,
        id: GangId,
        preempting: Preempting,
        now: Timestamp,
    ) -> Option<Preemption> {
        let gang = &self.waiting.get(id)?.gang;
        let preemption = Preemption {
            gang: gang.uid.clone(),
            attempt: gang.attempt,
            victims: preempting.victims,
        };
        let winner = (gang.uid.clone(), gang.priority);
        let mut may_ask_more = false;
        let (mut victims, mut ending) = (BTreeMap::new(), BTreeSet::new());
        for victim in &preemption.victims {
            if self.running.is_ending(&victim.gang) {
                ending.insert(victim.gang.clone());
                continue;
            }
            if !self.running.is_released(&victim.gang) {
                victims.insert(victim.gang.clone(), victim.reason);
            }
            if let Some(told) = self.running.get(&victim.gang) {
                let loser = (&victim.gang, told.priority);
                may_ask_more |= self.circles.note(loser, (&winner.0, winner.1));
            }
        }
        if may_ask_more {
            self.note_rights();
        }
        // What is kept for those that recover is given up at once: nobody has to be told. It was judged before that came free.
        let mut judged_before = None;
        let recovering = preemption.victims.iter().map(|victim| &victim.gang);
        for gang in recovering.filter(|gang| victims.contains_key(*gang)) {
            if !self.keeps.has(gang) {
                continue;
            }
            judged_before = judged_before.or_else(|| Some(self.judged_now(id)));
            self.end_keep(gang);
            if !self.running.is_released(gang) {
                ending.insert(gang.clone());
            }
        }
        victims.retain(|gang, _| !ending.contains(gang) && !self.running.is_released(gang));
        let reservation = Reservation {
            until: self.kept_until(now, victims.keys(), ending.iter()),
            is_told: !victims.is_empty(),
            victims,
            ending,
            claims: BTreeSet::new(),
            flavor: preempting.flavor,
            charges: preempting.charges,
            nodes: preempting.nodes,
            since: now,
            judged: None,
            lacks_place_alone: false,
        };
        let class = self.waiting.get(id)?.class;
        let is_free = reservation.victims.is_empty() && reservation.ending.is_empty();
        self.reserve(id, reservation);
        // Where all of them recovered it has room as things are: it is judged next. Where some did, or have not released all that they
        // held, it may have room by what was kept: it is asked that before anybody else has a turn.
        if !is_free {
            let judged = judged_before.unwrap_or_else(|| self.judged_now(id));
            self.reservations
                .note_judged_by_turn(&preemption.gang, judged);
        }
        // Whoever is behind it may preempt others, though less quota is there than it waited for.
        if let Some(class) = class {
            self.wake(class);
        }
        Some(preemption)
    }

    /// Whoever nobody could give way to before may be helped now, since some minimum run time is over.
    pub(super) fn wake_whoever_may_preempt(&mut self, now: Timestamp) {
        while let Some((at, class)) = self.hopes.next_at()
            && at <= now
        {
            self.hopes.forget(class);
            self.wake(class);
        }
    }

    /// When something is due by time alone.
    pub(super) fn due_next(&self, now: Timestamp) -> Option<Timestamp> {
        let later = self.hopes.next_at().map(|(at, _)| at);
        let is_more_to_judge = self.hopes.is_anybody_ready() || self.reservations.is_any_left;
        let soon = is_more_to_judge.then_some(Timestamp(now.0.saturating_add(1)));
        let kept = [
            self.reservations.ends_next(),
            self.keeps.due_next(now),
            self.backfill.due_next(),
            self.shrinking.due_next(),
            self.namespaces.due_next(),
            self.promises_due(),
        ];
        [later, soon].into_iter().chain(kept).flatten().min()
    }
}

/// Has the Team of a gang that may not borrow borrow nothing of what the gang asks for; returns what takes that back.
pub(super) fn forbid_borrowing(
    candidate: &Candidate<'_>,
    cluster: &Cluster,
    tree: &mut QuotaTree,
) -> Vec<(PairId, Option<i128>)> {
    let assignment = candidate.assignments.get(candidate.at);
    let Some((node, assignment)) = candidate.node.zip(assignment) else {
        return Vec::new();
    };
    if candidate.waiting.gang.may_borrow {
        return Vec::new();
    }
    let least = candidate
        .totals
        .least(assignment, candidate.assignments, cluster);
    let Ok(least) = least else {
        return Vec::new();
    };
    // Larger devices may be charged memory where the least, which do not tell theirs, are charged none.
    let devices = assignment.gpus.into_iter().chain(assignment.vram);
    let pairs: BTreeSet<PairId> = least.into_keys().chain(devices).collect();
    tree.forbid_borrowing(node, pairs)
}

/// Of what is asked, what others would have to give up: that of which too little is available, or, where only a place lacks,
/// the devices. `None` if nobody may give it up for this Team.
///
/// The rule is Kueue's: the Team gets by preemption what is within its nominal quota, what some part of the tree below the
/// root holds for it, and more only if it may borrow and preempt at once.
fn contested(
    tree: &QuotaTree,
    node: NodeId,
    assignment: &Assignment,
    asked: &QuotaRequest,
) -> Option<BTreeSet<PairId>> {
    if asked
        .iter()
        .any(|(pair, amount)| *amount > tree.potential_at(node, *pair))
    {
        return None;
    }
    let lacking = asked
        .iter()
        .filter(|(pair, amount)| **amount > tree.available_at(node, **pair));
    let mut contested: BTreeSet<PairId> = lacking.map(|(pair, _)| *pair).collect();
    if contested.is_empty() {
        let devices = assignment.gpus.iter().chain(&assignment.vram);
        contested = devices
            .filter(|pair| asked.contains_key(pair))
            .copied()
            .collect();
    }
    if contested.is_empty() {
        contested = asked.keys().copied().collect();
    }
    let may_preempt = contested.iter().all(|pair| {
        asked
            .get(pair)
            .is_some_and(|amount| tree.may_preempt_at(node, *pair, *amount, tree.sharing_of(node)))
    });
    (may_preempt && !contested.is_empty()).then_some(contested)
}

/// Where so much lacks that the Team has no right to preempt for what it asks: one of these has to come at least. With none, it
/// lacks no quota: a place lacks, and a right to have it made. `None` if limits alone can give it a right.
fn right_lacking(tree: &QuotaTree, node: NodeId, asked: &QuotaRequest) -> Option<Vec<Hope>> {
    if asked
        .iter()
        .any(|(pair, amount)| *amount > tree.potential_at(node, *pair))
    {
        return None;
    }
    let sharing = tree.sharing_of(node);
    let lacking = asked.iter().find(|(pair, amount)| {
        **amount > tree.available_at(node, **pair)
            && !tree.may_preempt_at(node, **pair, **amount, sharing)
    });
    let upwards = lacking.into_iter().flat_map(|(pair, amount)| {
        let upwards = tree.asked_upwards(node, *pair, *amount);
        let below_root = upwards.len().saturating_sub(1);
        let below_root = upwards.into_iter().take(below_root);
        below_root.map(|(at, asked, headroom)| (at, *pair, asked - headroom))
    });
    let mut hopes: Vec<Hope> = upwards.collect();
    // Of several that it asks for it needs a right to those only that lack.
    if asked.len() > 1
        && let Some((pair, amount)) = lacking
    {
        hopes.extend(
            amount_lacking(tree, node, *pair, *amount)
                .into_iter()
                .flatten(),
        );
    }
    Some(hopes)
}

/// Where so much of an amount lacks that it is not available: one of these has to come at least. `None` if it is available.
///
/// What comes at the first node that lets too little pass, or below it, counts there. Below it less may be enough: a node that
/// keeps quota for itself asks nothing of those above it once that is free, however much they are overdrawn.
fn amount_lacking(
    tree: &QuotaTree,
    node: NodeId,
    pair: PairId,
    amount: Amount,
) -> Option<Vec<Hope>> {
    let lack = tree.lack(node, pair, amount)?;
    let ceiling = tree.ceiling(lack.node, pair).unwrap_or_default();
    let mut hopes = vec![(lack.node, pair, lack.need - ceiling)];
    let upwards = tree.asked_upwards(node, pair, amount);
    let below = upwards.into_iter().take_while(|(at, ..)| *at != lack.node);
    hopes.extend(below.filter_map(|(at, asked, _)| {
        let kept = tree.kept_and_free(at, pair)?;
        Some((at, pair, asked - kept))
    }));
    Some(hopes)
}

/// What lacks, and where, even if all of these were gone. The tree is as before then.
fn quota_lacking(
    tree: &mut QuotaTree,
    node: NodeId,
    asked: &QuotaRequest,
    gone: &[RunningGang],
) -> Option<Vec<Hope>> {
    let charges = gone.iter();
    let charges = charges.flat_map(|gang| deltas(&gang.uid, &gang.team, &gang.charges));
    let charges: Vec<Delta> = charges.collect();
    tree.apply(&undoing(&charges), |_, _, _| {});
    let lacking = asked
        .iter()
        .find_map(|(pair, amount)| amount_lacking(tree, node, *pair, *amount));
    tree.apply(&charges, |_, _, _| {});
    lacking
}

/// What a Team is charged for a gang, as a change.
fn deltas<'a>(
    gang: &'a GangUid,
    team: &'a TeamName,
    charges: &'a [ResourceCharge],
) -> impl Iterator<Item = Delta> + 'a {
    charges.iter().map(|charge| Delta {
        gang: gang.clone(),
        team: team.clone(),
        of: charge.of.clone(),
        amount: i128::from(charge.amount.0),
    })
}

/// How far up the tree the Team reaches for what it asks once these are gone. The tree is as before then.
fn borrow_level_without(
    tree: &mut QuotaTree,
    node: NodeId,
    asked: &QuotaRequest,
    gone: &[&RunningGang],
) -> usize {
    let charges = gone.iter();
    let charges = charges.flat_map(|gang| deltas(&gang.uid, &gang.team, &gang.charges));
    let charges: Vec<Delta> = charges.collect();
    tree.apply(&undoing(&charges), |_, _, _| {});
    let levels = asked.iter();
    let levels = levels.map(|(pair, amount)| tree.borrow_level_at(node, *pair, *amount));
    let level = levels.max().unwrap_or(0);
    tree.apply(&charges, |_, _, _| {});
    level
}

/// The places that a gang has without some of those that run.
struct Without<'a> {
    state: &'a State,
    candidate: &'a Candidate<'a>,
    asked: &'a QuotaRequest,
    request: Request<'a>,
    running: &'a [RunningGang],
    effort: Effort,
    most_visits: u64,
    gave_up: bool,
    /// Nodes that are kept for it, or on which it may be planned all the same.
    opened: BTreeSet<NodeName>,
}

impl<'a> Without<'a> {
    fn of(
        state: &'a State,
        candidate: &'a Candidate<'a>,
        way: &'a Way,
        running: &'a [RunningGang],
        most_looks: u64,
    ) -> Self {
        let assignment = candidate.assignment();
        let flavor = assignment.and_then(|it| state.flavors.get(&it.flavor));
        Self {
            state,
            candidate,
            asked: &way.asked,
            // What more would be charged was not asked of quota. The allocator comes to it all the same, and then there is no place.
            request: Request {
                most_per_device: way.most_per_device,
                ..candidate.request(flavor)
            },
            running,
            effort: Effort::of(most_looks),
            most_visits: state.cluster.visited().wrapping_add(most_looks),
            gave_up: false,
            opened: state.opened_for(candidate.waiting),
        }
    }

    fn holds_of<'b>(&'b self, positions: &'b [usize]) -> impl Iterator<Item = (usize, &'b Hold)> {
        positions.iter().flat_map(|at| {
            let gang = self.running.get(*at);
            let pods = gang
                .into_iter()
                .flat_map(|gang| self.state.running.pods_of(&gang.uid));
            pods.filter_map(|pod| Some((*at, &**self.state.holds.get(pod)?)))
        })
    }

    /// `None`: the search for places has given up.
    fn verdict_without(&mut self, positions: &[usize]) -> Option<Verdict> {
        let cluster = &self.state.cluster;
        if cluster.visited() >= self.most_visits {
            self.gave_up = true;
        }
        if self.gave_up {
            return None;
        }
        let going = self.state.going();
        let gone = self.holds_of(positions).map(|(_, hold)| hold);
        let gone: BTreeMap<PodUid, &Hold> = gone
            .chain(going)
            .map(|hold| (hold.pod.clone(), hold))
            .collect();
        cluster.note_visits(gone.len() as u64);
        let view = cluster.opened(&self.opened, &gone);
        Some(plan(cluster, &view, &self.request, &mut self.effort))
    }

    fn plan_without(&mut self, positions: &[usize]) -> Option<Plan> {
        match self.verdict_without(positions)? {
            Verdict::Placed(plan) => {
                let exact = self.state.charged(self.candidate, &plan);
                exact
                    .is_ok_and(|(_, exact)| exact == *self.asked)
                    .then_some(plan)
            }
            Verdict::NoPlace(_) => None,
            Verdict::GaveUp(_) => {
                self.gave_up = true;
                None
            }
        }
    }
}

impl Places for Without<'_> {
    fn is_there_without(&mut self, gone: &[usize]) -> bool {
        self.plan_without(gone).is_some()
    }

    fn in_the_way(&mut self, gone: &[usize]) -> BTreeSet<usize> {
        let Some(plan) = self.plan_without(gone) else {
            return gone.iter().copied().collect();
        };
        let nodes = self.state.nodes_of(&plan);
        let holds = self.holds_of(gone);
        let on_nodes = holds.filter(|(_, hold)| nodes.contains(&hold.node));
        on_nodes.map(|(at, _)| at).collect()
    }

    /// Nodes, or the domains of the level that is required. A gang that may be on several nodes and requires no level may have its place on the
    /// cheapest nodes together: on one, two, four and so on of them. A domain costs as much as the most important gang that has pods
    /// there, and of equals as many gangs as have.
    fn domains(&mut self) -> Vec<BTreeSet<usize>> {
        let required = self.request.wish.required.as_ref();
        let topology = self.request.topology.zip(required);
        let topology = topology.filter(|(_, level)| level.as_str() != NODE_LEVEL);
        let all: Vec<usize> = (0..self.running.len()).collect();
        let mut domains: BTreeMap<Vec<&str>, BTreeSet<usize>> = BTreeMap::new();
        for (at, hold) in self.holds_of(&all) {
            self.state.cluster.note_visits(1);
            let domain = match topology {
                Some((topology, level)) => self.state.domain_of(&hold.node, topology, level),
                None => Some(vec![hold.node.as_str()]),
            };
            if let Some(domain) = domain {
                domains.entry(domain).or_default().insert(at);
            }
        }
        let mut domains: Vec<BTreeSet<usize>> = domains.into_values().collect();
        domains.sort_by_key(|gangs| {
            let priorities = gangs.iter().filter_map(|at| self.running.get(*at));
            (priorities.map(|gang| gang.priority).max(), gangs.len())
        });
        if self.request.demand.units() > 1 && required.is_none() {
            let counts = (0..usize::BITS).map(|power| 1_usize << power);
            let counts = counts.take_while(|count| *count < domains.len());
            let first = |count| domains.iter().take(count).flatten().copied().collect();
            domains = counts.map(first).collect();
        }
        domains.truncate(MOST_DOMAINS);
        domains
    }
}
