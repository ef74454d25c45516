//! What would have a waiting gang admitted: who would have to end, by how much its Team's nominal quota would have to be
//! raised, or what would have to be repaired ([`super::repairs`]). Worked out when somebody asks, with a bounded number of steps; a search that met its bound says so.
//!
//! What is told is checked as a decision would check it: on the nodes as they would be, by the quota as it would be, and against
//! those who would go first then. Who ends is found among those who hold most where quota lacks, and those who are in the way:
//! first one that suffices alone, the smallest first; else all of them together, of whom everybody is left out again
//! without whom the rest suffices.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    State,
    ids::ClassId,
    judge::{Candidate, request},
    preempt::forbid_borrowing,
    release::Afterwards,
    repairs::{Growth, More, things},
    waiting::WaitingGang,
    waits::Wait,
};
use crate::{
    amount::{Amount, FlavorResource, ResourceCharge},
    decision::{Explanation, Why},
    model::Hold,
    names::{FlavorName, GangUid, PodUid},
    placement::{Effort, Faults, GaveUp, Plan, Verdict, View, plan},
    quota::{
        PairId, PreemptionPolicy, QuotaTree,
        charges::{Delta, undoing},
        request::QuotaRequest,
    },
    remedy::{Holder, Order, Remedies, Remedy, RemedyEvent},
};

/// Of those who hold most of something, how many are considered.
const MOST_HOLDERS: usize = 32;
/// How many in all, those included whose pods are in the way.
const MOST_CONSIDERED: usize = 64;
/// How many steps it costs to think one pod gone.
const STEPS_PER_POD: u64 = 4;
/// On how many Flavors of a Team.
const MOST_FLAVORS: usize = 4;
/// How many classes are asked whether they may go first by preemption, or by limits.
const MOST_RIVALS: usize = 64;
/// How many Teams of the quota tree are copied in the time of a look at a node.
const TEAMS_PER_LOOK: usize = 8;

/// A gang on one Flavor, or on none, and what is tried for it.
pub(super) struct Search<'a> {
    pub(super) state: &'a State,
    pub(super) waiting: &'a WaitingGang,
    /// Without it nothing is charged.
    pub(super) candidate: Option<Candidate<'a>>,
    pub(super) flavor: Option<&'a FlavorName>,
    /// What counts for whoever is to be admitted. It is changed for a question, and changed back.
    pub(super) tree: QuotaTree,
    pub(super) effort: Effort,
    pub(super) gave_up: bool,
    /// What nominal quota would grow if so much more were healthy, as far as that was asked.
    pub(super) growths: BTreeMap<More, Growth>,
}

/// Half of what is left.
pub(super) fn half(effort: Effort) -> Effort {
    Effort::of(effort.steps() / 2)
}

impl Why {
    /// Whether something may be told that would help ([`State::remedies`]).
    pub fn may_have_remedies(&self) -> bool {
        match self {
            Self::Quota { .. } | Self::ExceedsMaxQuota { .. } | Self::Placement { .. } => true,
            Self::NextCommit
            | Self::TeamStopped
            | Self::CohortCycle { .. }
            | Self::BehindHead { .. }
            | Self::NoQuotaForResource { .. }
            | Self::PlacementImpossible { .. }
            | Self::Release { .. }
            | Self::Preemption { .. }
            | Self::PlaceKept { .. }
            | Self::Recovering { .. }
            | Self::HeldOff { .. }
            | Self::ClaimShared { .. }
            | Self::TooLarge { .. }
            | Self::Overflow => false,
        }
    }
}

impl State {
    /// What would have a gang admitted that waits for quota or for a place, as was explained just now ([`State::explain`]). Nothing
    /// for a gang that waits for something else: then the reason says for what.
    ///
    /// It takes the steps of at most two decisions, and as many for whose turn it would be: about six milliseconds.
    pub fn remedies(&self, explained: &Explanation) -> Remedies {
        let may_help = explained.why.may_have_remedies();
        let remedies = may_help.then(|| self.remedies_of(&explained.gang));
        remedies.flatten().unwrap_or_default()
    }

    fn remedies_of(&self, gang: &GangUid) -> Option<Remedies> {
        let waiting = self.waiting.get(self.waiting.id(gang)?)?;
        let entry = self.teams.get(waiting.team)?;
        let class_id = waiting.class?;
        let class = self.classes.get(class_id)?;
        if self.tree_is_stale || class.waits.contains(&Wait::Ready) || entry.node.is_none() {
            return None;
        }
        let totals = &self.shapes.get(waiting.shape)?.totals;
        let assignments = &entry.assignments;
        let is_charged = !assignments.is_empty() || totals.claims > 0;
        let flavors: Vec<Option<usize>> = if is_charged {
            (0..assignments.len()).map(Some).collect()
        } else {
            vec![None]
        };
        let mut found = Remedies {
            // Whose place is kept elsewhere may have it where something comes free, and what was kept is free then as well.
            gave_up: flavors.len() > MOST_FLAVORS || self.backfill.told().next().is_some(),
            ..Remedies::default()
        };
        let (mut fewest, mut least): (Option<Vec<GangUid>>, Option<Raised>) = (None, None);
        let mut repairs: Option<Vec<Faults>> = None;
        let (mut effort, mut of_order) = (Effort::default(), Effort::default());
        let mut of_repairs = half(effort);
        let shares = flavors.len().min(MOST_FLAVORS);
        let mut holds_of = None;
        for at in flavors.into_iter().take(MOST_FLAVORS) {
            self.cluster
                .note_visits((self.team_ids.len() / TEAMS_PER_LOOK) as u64);
            let mut search = Search {
                state: self,
                waiting,
                candidate: at.map(|at| Candidate {
                    waiting,
                    demand: &waiting.demand,
                    totals,
                    node: entry.node,
                    assignments,
                    at,
                }),
                flavor: at.and_then(|at| assignments.get(at)).map(|it| &it.flavor),
                tree: self.tree.clone(),
                effort: effort.part(shares, |part| part.fresh()),
                gave_up: false,
                growths: BTreeMap::new(),
            };
            if let Some(candidate) = &search.candidate {
                forbid_borrowing(candidate, &self.cluster, &mut search.tree);
            }
            if let Some(gangs) = search.who_has_to_end()
                && search.is_certain(&gangs)
                && fewest
                    .as_ref()
                    .is_none_or(|known| gangs.len() < known.len())
            {
                holds_of = search.main_resource();
                fewest = Some(gangs);
            }
            if least.is_none() {
                least = search.how_much_to_raise();
            }
            search.effort = of_repairs.part(shares, |part| part.fresh());
            if let Some(faults) = search.what_to_repair()
                && repairs
                    .as_ref()
                    .is_none_or(|known| things(&faults) < things(known))
            {
                repairs = Some(faults);
            }
            found.gave_up |= search.gave_up;
        }
        if let Some(gangs) = fewest {
            let pods = gangs.iter().flat_map(|gang| self.running.pods_of(gang));
            let after = self.world_without(pods);
            let order = self.order_of(class_id, waiting, &after, false, &mut of_order);
            let holders = gangs
                .iter()
                .map(|gang| self.holder(gang, holds_of.as_ref()));
            found.each.push(Remedy {
                event: RemedyEvent::GangsEnd(holders.collect()),
                order,
            });
        }
        if let Some(raised) = least {
            let freed = raised.freed.into_iter().collect();
            let after = Self::world_with(raised.tree, freed);
            let order = self.order_of(class_id, waiting, &after, true, &mut of_order);
            found.each.push(Remedy {
                event: RemedyEvent::QuotaRaised(raised.by),
                order,
            });
        }
        if let Some(faults) = repairs {
            let (after, are_limits_others) = self.world_repaired(&faults);
            let order = self.order_of(class_id, waiting, &after, are_limits_others, &mut of_order);
            found.each.push(Remedy {
                event: RemedyEvent::Repaired(self.named_repairs(faults)),
                order,
            });
        }
        Some(found)
    }

    fn holder(&self, gang: &GangUid, of: Option<&FlavorResource>) -> Holder {
        let mut pods = self.running.pods_of(gang);
        let hold = pods.next().and_then(|pod| self.holds.get(pod));
        let team = hold.map_or_else(|| "".into(), |hold| hold.team.clone());
        let charges = self.charges.of_gang(&team, gang);
        Holder {
            gang: gang.clone(),
            name: hold.map_or_else(|| gang.to_string(), |hold| hold.gang_name.clone()),
            holds: charges.into_iter().find(|charge| Some(&charge.of) == of),
            team,
        }
    }

    /// Who is admitted first in a world in which a gang fits.
    fn order_of(
        &self,
        id: ClassId,
        waiting: &WaitingGang,
        after: &Afterwards<'_>,
        are_limits_others: bool,
        effort: &mut Effort,
    ) -> Order {
        let Some(class) = self.classes.get(id) else {
            return Order::Open;
        };
        let first = class.line.first();
        let first = first.and_then(|first| self.waiting.get(first));
        if let Some(first) = first
            && first.gang.uid != waiting.gang.uid
        {
            // It asks for the same, and goes before it.
            return match self.order_of_first(id, first, after, are_limits_others, effort) {
                Order::Itself => Order::After(first.gang.name.clone()),
                other => other,
            };
        }
        self.order_of_first(id, waiting, after, are_limits_others, effort)
    }

    fn order_of_first(
        &self,
        id: ClassId,
        waiting: &WaitingGang,
        after: &Afterwards<'_>,
        are_limits_others: bool,
        effort: &mut Effort,
    ) -> Order {
        // Those for whom something is kept are asked first, and what is kept for whom may be another thing then.
        if !self.reservations.is_empty() || self.may_others_go_first(id, waiting, are_limits_others)
        {
            return Order::Open;
        }
        self.order_in(after, (id, &waiting.gang.uid), effort)
    }

    /// Whether somebody who does not fit might go first: by preemption, or since it may have more by other limits.
    fn may_others_go_first(
        &self,
        id: ClassId,
        waiting: &WaitingGang,
        are_limits_others: bool,
    ) -> bool {
        let root = |team| {
            let node = self.teams.get(team).and_then(|entry| entry.node);
            node.map(|node| self.tree.root_of(node))
        };
        let own = root(waiting.team);
        let may_preempt = |team| {
            let node = self.teams.get(team).and_then(|entry| entry.node);
            node.is_some_and(|node| self.tree.policy_of(node) != PreemptionPolicy::NEVER)
        };
        // Once something is free, who could preempt may find victims sooner than who fits is asked.
        if may_preempt(waiting.team) && self.classes.iter().any(|(other, _)| other != id) {
            return true;
        }
        let preempts = |other: &ClassId| {
            let class = self.classes.get(*other);
            class.is_some_and(|class| may_preempt(class.team))
        };
        let gains = |other: &ClassId| {
            let class = self.classes.get(*other);
            class.is_some_and(|class| root(class.team) == own)
        };
        let rivals = self.hopes.waiting().map(|other| (other, preempts(&other)));
        let changed = self.waits.change.iter();
        let changed = changed.take_while(|_| are_limits_others);
        let changed = changed.map(|other| (*other, gains(other)));
        // With too many to ask, some may.
        let mut rivals = rivals.chain(changed).take(MOST_RIVALS + 1).enumerate();
        rivals.any(|(at, (other, may))| at == MOST_RIVALS || (may && other != id))
    }
}

/// Quota as it would have to be.
struct Raised {
    by: Vec<ResourceCharge>,
    tree: QuotaTree,
    /// Where more is let pass.
    freed: BTreeSet<(crate::quota::NodeId, PairId)>,
}

impl Search<'_> {
    /// What the gang is charged at least, if it could ever have that.
    pub(super) fn asked(&self) -> Option<QuotaRequest> {
        let candidate = self.candidate?;
        let assignment = candidate.assignments.get(candidate.at)?;
        let all = candidate.assignments;
        let least = candidate.totals.least(assignment, all, &self.state.cluster);
        least.ok()
    }

    /// By what those who hold something are compared.
    fn main_resource(&self) -> Option<FlavorResource> {
        let candidate = self.candidate?;
        let assignment = candidate.assignments.get(candidate.at)?;
        let asked = self.asked()?;
        let gpus = assignment.gpus.filter(|pair| asked.contains_key(pair));
        let pair = gpus.or_else(|| asked.keys().next().copied())?;
        Some(self.tree.named(pair).clone())
    }

    /// Gangs of which none can be left out: once they end, there is quota and a place.
    fn who_has_to_end(&mut self) -> Option<Vec<GangUid>> {
        if let Some(candidate) = self.candidate {
            let (asked, node) = (self.asked()?, candidate.node?);
            let mut asked = asked.iter();
            if asked.any(|(pair, amount)| *amount > self.tree.potential_at(node, *pair)) {
                return None;
            }
            let flavor = self.flavor?;
            if candidate
                .totals
                .exceeds_inventory(flavor, &self.state.cluster)
            {
                return None;
            }
        }
        let considered = self.considered();
        // Half of the steps are left for all of them together.
        let half = half(self.effort);
        self.effort = half;
        for gang in considered.iter().rev() {
            let alone = std::slice::from_ref(gang);
            if self.fits_without(alone).is_some() {
                return Some(alone.to_vec());
            }
        }
        self.effort = half;
        let plan = self.fits_without(&considered)?;
        let mut ending = self.in_the_way(&considered, &plan);
        if self.fits_without(&ending).is_none() {
            ending = considered;
        }
        let mut at = 0;
        while at < ending.len() {
            let gang = ending.remove(at);
            if self.fits_without(&ending).is_none() {
                ending.insert(at, gang);
                at += 1;
            }
        }
        Some(ending)
    }

    /// Whether the gang fits without these, by what is kept for others, too: that is not worked out for each question.
    fn is_certain(&mut self, gangs: &[GangUid]) -> bool {
        let Some(candidate) = self
            .candidate
            .filter(|_| !self.state.reservations.is_empty())
        else {
            return true;
        };
        let pods = gangs
            .iter()
            .flat_map(|gang| self.state.running.pods_of(gang));
        let after = self.state.world_without(pods);
        let fits = self
            .state
            .fits_in_world(&candidate, &after, &mut self.effort);
        let is_certain = self.noted(fits).flatten().is_some();
        self.gave_up |= !is_certain;
        is_certain
    }

    /// Those who hold most where quota lacks, and who is in the way of a place that the gang would have if nothing ran; who holds
    /// most first.
    fn considered(&mut self) -> Vec<GangUid> {
        let state = self.state;
        let mut gangs: BTreeSet<GangUid> = BTreeSet::new();
        let asked = self.asked().unwrap_or_default();
        let node = self.candidate.and_then(|candidate| candidate.node);
        for (pair, amount) in &asked {
            let of = self.tree.named(*pair);
            let lacks = node.into_iter();
            for lack in lacks.flat_map(|node| self.tree.lacks(node, *pair, *amount)) {
                let teams = self.tree.teams_below(lack.node);
                state.cluster.note_visits(teams.len() as u64);
                let most = MOST_HOLDERS;
                let (largest, are_all) = state.charges.largest_gangs(of, Some(&teams), most);
                gangs.extend(largest);
                self.gave_up |= !are_all;
            }
        }
        if let Some(of) = self.main_resource()
            && self.place_now().is_none()
        {
            let (largest, are_all) = state.charges.largest_gangs(&of, None, MOST_HOLDERS);
            gangs.extend(largest);
            self.gave_up |= !are_all;
        }
        for gang in self.on_the_way() {
            if gangs.len() >= MOST_CONSIDERED {
                self.gave_up = true;
                break;
            }
            gangs.insert(gang);
        }
        gangs.retain(|gang| !state.reservations.gives_way(gang));
        let of = self.main_resource();
        let mut gangs: Vec<(i128, GangUid)> = gangs
            .into_iter()
            .map(|gang| {
                let held = state.holder(&gang, of.as_ref()).holds;
                (held.map_or(0, |it| i128::from(it.amount.0)), gang)
            })
            .collect();
        state.cluster.note_visits(gangs.len() as u64);
        gangs.sort_by(|one, other| other.0.cmp(&one.0).then_with(|| one.1.cmp(&other.1)));
        gangs.into_iter().map(|(_, gang)| gang).collect()
    }

    fn place_now(&mut self) -> Option<Plan> {
        let placed = self
            .state
            .placed_in(self.waiting, self.flavor, &View::Now, &mut self.effort);
        self.noted(placed).flatten()
    }

    /// Who holds something on the nodes that the gang would get on the empty cluster.
    fn on_the_way(&mut self) -> Vec<GangUid> {
        let state = self.state;
        let flavor = self.flavor.and_then(|name| state.flavors.get(name));
        let request = request(self.waiting, flavor);
        let verdict = plan(&state.cluster, &View::Empty, &request, &mut self.effort);
        let Verdict::Placed(plan) = verdict else {
            return Vec::new();
        };
        let slots = plan.slots().into_iter();
        let records = slots.filter_map(|slot| state.cluster.record(slot));
        let pods = records.flat_map(|record| state.cluster.pods_on(&record.node.name));
        let holds = pods.filter_map(|pod| state.holds.get(pod));
        let gangs: BTreeSet<GangUid> = holds.map(|hold| hold.gang.clone()).collect();
        gangs.into_iter().collect()
    }

    /// Those who hold something on the nodes of a plan, or whose quota is needed: without the latter it does not fit.
    fn in_the_way(&self, gangs: &[GangUid], plan: &Plan) -> Vec<GangUid> {
        let state = self.state;
        let slots = plan.slots().into_iter();
        let records = slots.filter_map(|slot| state.cluster.record(slot));
        let nodes: BTreeSet<_> = records.map(|record| &record.node.name).collect();
        let is_there = |gang: &&GangUid| {
            let mut pods = state.running.pods_of(gang);
            pods.any(|pod| {
                state
                    .holds
                    .get(pod)
                    .is_some_and(|hold| nodes.contains(&hold.node))
            })
        };
        gangs.iter().filter(is_there).cloned().collect()
    }

    /// The place that the gang would have if these were gone, and it had the quota.
    fn fits_without(&mut self, gangs: &[GangUid]) -> Option<Plan> {
        let state = self.state;
        let pods = gangs.iter().flat_map(|gang| state.running.pods_of(gang));
        let holds = pods.filter_map(|pod| Some((pod.clone(), &**state.holds.get(pod)?)));
        let gone: BTreeMap<PodUid, &Hold> = holds.collect();
        let steps = STEPS_PER_POD.saturating_mul(gone.len() as u64);
        state.cluster.note_visits(steps);
        if !self.effort.spend(steps) {
            self.gave_up = true;
            return None;
        }
        let deltas = state.charges.without(&gone);
        self.tree.apply(&deltas, |_, _, _| {});
        let fits = self.fits_in_tree(&gone);
        self.undo(&deltas);
        self.noted(fits).flatten()
    }

    fn fits_in_tree(&mut self, gone: &BTreeMap<PodUid, &Hold>) -> Result<Option<Plan>, GaveUp> {
        if !self.may_be_charged() {
            return Ok(None);
        }
        self.fits_in_view(&self.state.cluster.without(gone))
    }

    fn may_be_charged(&self) -> bool {
        let candidate = self.candidate.as_ref();
        candidate.is_none_or(|it| self.state.may_be_charged(it, &self.tree).is_ok())
    }

    /// The place that the gang would have on these nodes, if it has the quota.
    pub(super) fn fits_in_view(&mut self, view: &View) -> Result<Option<Plan>, GaveUp> {
        let state = self.state;
        let Some(candidate) = &self.candidate else {
            return state.placed_in(self.waiting, None, view, &mut self.effort);
        };
        if !self.may_be_charged() {
            return Ok(None);
        }
        let fitting = state.fits_in(candidate, &self.tree, view, &mut self.effort)?;
        Ok(fitting.map(|fitting| fitting.plan))
    }

    /// Whether those before it in a strict order would hold it up by other limits: they do not only because they could never run.
    pub(super) fn may_be_held_up(&self) -> bool {
        let entry = self.state.teams.get(self.waiting.team);
        entry.is_some_and(|entry| entry.is_strict() && entry.before(self.waiting) > 0)
    }

    fn undo(&mut self, deltas: &[Delta]) {
        self.tree.apply(&undoing(deltas), |_, _, _| {});
    }

    pub(super) fn noted<T>(&mut self, found: Result<T, GaveUp>) -> Option<T> {
        self.gave_up |= found.is_err();
        found.ok()
    }

    /// By how much the Team's nominal quota has to be raised so that there is enough of it for a place that there is now.
    fn how_much_to_raise(&mut self) -> Option<Raised> {
        let state = self.state;
        let candidate = self.candidate.filter(|_| !self.may_be_held_up())?;
        let (node, asked) = (candidate.node?, self.asked()?);
        let (mut tree, mut raised) = (self.tree.clone(), state.tree.clone());
        let (mut by, mut freed) = (Vec::new(), BTreeSet::new());
        for (pair, amount) in &asked {
            if *amount <= tree.available_at(node, *pair) {
                continue;
            }
            let of = tree.named(*pair).clone();
            // What is divided anew then, and what is kept for others by other limits, would have to be known.
            if state.limits.automatic.is_divided(&of) || !state.reservations.is_empty() {
                self.gave_up = true;
                return None;
            }
            let more = tree.raise_for(node, *pair, *amount)?;
            tree.raise(node, *pair, i128::from(more.0), |_| {});
            raised.raise(node, *pair, i128::from(more.0), |at| {
                freed.insert((at, *pair));
            });
            by.push(ResourceCharge { of, amount: more });
        }
        if by.is_empty() || by.iter().any(|more| more.amount <= Amount::ZERO) {
            return None;
        }
        let fits = state.fits_in(&candidate, &tree, &View::Now, &mut self.effort);
        self.noted(fits).flatten()?;
        Some(Raised {
            by,
            tree: raised,
            freed,
        })
    }
}
