//! Whether a gang may be admitted now: on which Flavor, where, and at what charge; and if not, what each
//! Flavor lacks.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    State,
    ids::{ClassId, GangId, ShapeId},
    shapes::Refused,
    size::{Asking, Size},
    team::Refusing,
    waiting::WaitingGang,
    work::Work,
};
use crate::{
    amount::{Amount, FlavorResource, Resource},
    decision::Visited,
    model::{Flavor, MOST_AVOIDED_NODES},
    names::FlavorName,
    placement::{
        Demand, DeviceCharge, Effort, GaveUp, Plan, Refusal, Request, Verdict, View, may_fit_since,
        plan, plan_since,
    },
    quota::{
        FlavorMode, NodeId, QuotaTree, Search, Shortage, Suitability,
        request::{Assignment, QuotaRequest, RequestFault, Totals, allocated_charge},
    },
};

/// Most kinds of devices with which a gang is tried again whose first plan exceeds its quota.
const LESSER_KINDS: usize = 8;

/// What a gang would get.
#[derive(Clone, Debug)]
pub(super) struct Fitting {
    /// By its index among the Team's; `None` if nothing is charged.
    pub(super) assignment: Option<usize>,
    pub(super) plan: Plan,
    /// For each claim of each placed unit.
    pub(super) claims: Vec<Vec<ClaimCost>>,
    /// How far up the quota tree it reaches.
    pub(super) borrow_level: usize,
    /// The Flavors on which it fits, of those that were tried, by their indices.
    pub(super) fits_on: Vec<usize>,
    /// Why it does not on others.
    pub(super) refused: Vec<(usize, Refusing)>,
    /// With how many of its pods, if these are more than it starts with at the least.
    pub(super) size: Option<Arc<Size>>,
}

impl Fitting {
    pub(super) fn suits(&self) -> Suitability {
        free_at(self.borrow_level)
    }
}

/// A Flavor that is free, and how far up the quota tree it is had from.
fn free_at(borrow_level: usize) -> Suitability {
    Suitability {
        mode: FlavorMode::Fit,
        borrow_level,
    }
}

/// What a claim is charged.
#[derive(Clone, Debug)]
pub(super) struct ClaimCost {
    pub(super) flavor: FlavorName,
    pub(super) charge: DeviceCharge,
}

/// A gang on one Flavor.
#[derive(Clone, Copy)]
pub(super) struct Candidate<'a> {
    pub(super) waiting: &'a WaitingGang,
    /// What is asked for: by as many of its pods as are tried.
    pub(super) demand: &'a Demand,
    pub(super) totals: &'a Totals,
    pub(super) node: Option<NodeId>,
    pub(super) assignments: &'a [Assignment],
    /// Which of them is tried.
    pub(super) at: usize,
}

impl<'a> Candidate<'a> {
    /// The request to place it.
    pub(super) fn request(&self, flavor: Option<&'a Flavor>) -> Request<'a> {
        Request {
            demand: self.demand,
            ..request(self.waiting, flavor)
        }
    }
}

impl Candidate<'_> {
    pub(super) fn assignment(&self) -> Option<&Assignment> {
        self.assignments.get(self.at)
    }

    /// Whether what it lacks is quota of its Team's own, since it may not borrow.
    pub(super) fn lacks_nominal(&self, refusing: &Refusing) -> bool {
        let is_own = matches!(
            refusing,
            Refusing::Nominal { .. } | Refusing::ExceedsMax { .. }
        );
        is_own && !self.waiting.may_borrow()
    }
}

impl State {
    /// Tries the Flavors in the Team's order, as far as its fungibility says; of those on which the gang fits it gets the
    /// best. All of it is one decision with one [`Effort`].
    pub(super) fn judge(
        &mut self,
        class: ClassId,
        gang: GangId,
        work: &mut Work,
    ) -> Result<Fitting, Vec<Refusing>> {
        let before = self.cluster.visited();
        let visited = &mut work.visited;
        let shape = self.classes.get(class).map(|class| class.shape);
        let asking = Asking::Least(shape.ok_or_else(Vec::new)?);
        let judged = match self.judge_elsewhere(asking, gang, visited) {
            Some(fitting) => Ok(fitting),
            None => self.judge_with(asking, gang, &View::Now, &mut Effort::default(), visited),
        };
        if judged.is_err() {
            work.note_in_vain(&self.cluster, before);
        }
        judged
    }

    /// What a gang that avoids nodes would get without them. It has an effort of its own, so that it is refused by what any
    /// other gang of its class is refused by. Nothing is remembered of it.
    fn judge_elsewhere(
        &mut self,
        asking: Asking<'_>,
        gang: GangId,
        visited: &mut Visited,
    ) -> Option<Fitting> {
        let view = self.view_elsewhere(gang)?;
        let effort = &mut Effort::default();
        self.judge_with(asking, gang, &view, effort, visited).ok()
    }

    /// The nodes without those that a gang avoids, if it does.
    pub(super) fn view_elsewhere(&self, gang: GangId) -> Option<View> {
        let avoided = self.waiting.get(gang)?.gang.topology.avoided.iter();
        self.cluster.without_nodes(avoided.take(MOST_AVOIDED_NODES))
    }

    pub(super) fn judge_with(
        &mut self,
        asking: Asking<'_>,
        gang: GangId,
        view: &View,
        effort: &mut Effort,
        visited: &mut Visited,
    ) -> Result<Fitting, Vec<Refusing>> {
        visited.classes += usize::from(matches!(asking, Asking::Least(_)));
        let Some(waiting) = self.waiting.get(gang) else {
            return Err(Vec::new());
        };
        let team = self.teams.get(waiting.team);
        let Some(team) = team else {
            return Err(Vec::new());
        };
        let (node, mut search) = (team.node, Search::new(team.fungibility));
        let assignments = Arc::clone(&team.assignments);
        let claims = self.totals(asking).map_or(0, |totals| totals.claims);
        let is_unequal = asking.demand(waiting).is_unequal();
        let standing = team.standing_of(waiting);
        let held_up: Vec<bool> = (0..assignments.len().max(1))
            .map(|at| {
                let first = team.discipline.first_before(at, &standing);
                first.is_some() && waiting.has_again.is_none()
            })
            .collect();
        let is_held_up = |at: usize| held_up.get(at).is_some_and(|held_up| *held_up);
        if assignments.is_empty() && claims == 0 {
            if is_held_up(0) {
                return Err(vec![Refusing::BehindHead]);
            }
            let placed = self.place_asking(asking, gang, None, view, effort, visited);
            return placed
                .map_err(|refusing| vec![refusing])
                .map(|plan| Fitting {
                    assignment: None,
                    claims: plan.units.iter().map(|_| Vec::new()).collect(),
                    plan,
                    borrow_level: 0,
                    fits_on: Vec::new(),
                    refused: Vec::new(),
                    size: None,
                });
        }
        let (mut refusals, mut fits_on) = (Vec::new(), Vec::new());
        let parts = if is_unequal {
            self.ways(asking, gang, &assignments)
        } else {
            1
        };
        for at in 0..assignments.len() {
            if is_held_up(at) {
                refusals.push((at, Refusing::BehindHead));
                continue;
            }
            let candidate = self.candidate_asking(asking, gang, node, &assignments, at);
            if candidate.is_some_and(|it| self.is_beaten(&it, &search, &self.tree)) {
                continue;
            }
            let judged = effort.part(parts, |effort| {
                self.judge_on(asking, gang, &assignments, at, view, effort, visited)
            });
            match judged {
                Ok(fitting) => {
                    fits_on.push(at);
                    if search.offer(fitting.suits(), fitting).is_break() {
                        break;
                    }
                }
                Err(refusing) => refusals.push((at, refusing)),
            }
        }
        match search.best() {
            Some((_, best)) => Ok(Fitting {
                fits_on,
                refused: refusals,
                ..best
            }),
            None => Err(refusals.into_iter().map(|(_, refusing)| refusing).collect()),
        }
    }

    /// Whether a Flavor would not be the best of those that were tried, whichever devices the gang got there: then nobody
    /// needs to look for a place.
    pub(super) fn is_beaten<T>(
        &self,
        candidate: &Candidate<'_>,
        search: &Search<T>,
        tree: &QuotaTree,
    ) -> bool {
        if search.best_so_far().is_none() {
            return false;
        }
        let least = self.may_be_charged(candidate, tree);
        least.is_ok_and(|level| !search.would_be_best(free_at(level)))
    }

    /// On how many Flavors a place is searched: those on which the least that the gang takes is too much cost nothing, and
    /// leave the steps to the others.
    fn ways(&self, asking: Asking<'_>, gang: GangId, assignments: &[Assignment]) -> usize {
        let waiting = self.waiting.get(gang);
        let team = waiting.and_then(|waiting| self.teams.get(waiting.team));
        let node = team.and_then(|team| team.node);
        let ways = (0..assignments.len()).filter(|at| {
            let candidate = self.candidate_asking(asking, gang, node, assignments, *at);
            candidate.is_some_and(|it| self.may_be_placed(&it, &self.tree).is_ok())
        });
        ways.count()
    }

    /// Whether the least that a candidate takes is within the quota and within what there is.
    pub(super) fn may_be_placed(
        &self,
        candidate: &Candidate<'_>,
        tree: &QuotaTree,
    ) -> Result<(), Refusing> {
        self.may_be_charged(candidate, tree)?;
        let flavor = candidate.assignment().map(|assignment| &assignment.flavor);
        if flavor.is_some_and(|flavor| candidate.totals.exceeds_inventory(flavor, &self.cluster)) {
            return Err(Refusing::TooFewDevices(self.refusal()));
        }
        Ok(())
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "a gang, where, and at what effort"
    )]
    fn judge_on(
        &mut self,
        asking: Asking<'_>,
        gang: GangId,
        assignments: &[Assignment],
        at: usize,
        view: &View,
        effort: &mut Effort,
        visited: &mut Visited,
    ) -> Result<Fitting, Refusing> {
        let waiting = self.waiting.get(gang);
        let team = waiting.and_then(|waiting| self.teams.get(waiting.team));
        let node = team.and_then(|team| team.node);
        let flavor = assignments
            .get(at)
            .map(|assignment| assignment.flavor.clone());
        {
            let candidate = self.candidate_asking(asking, gang, node, assignments, at);
            let candidate = candidate.ok_or(Refusing::Overflow)?;
            self.may_be_placed(&candidate, &self.tree)?;
        }
        let plan = self.place_asking(asking, gang, flavor.as_ref(), view, effort, visited)?;
        let candidate = self.candidate_asking(asking, gang, node, assignments, at);
        let candidate = candidate.ok_or(Refusing::Overflow)?;
        let refusing = match self.cost(&candidate, plan, &self.tree) {
            Ok(fitting) => return Ok(fitting),
            Err(refusing) => refusing,
        };
        let (Refusing::Quota { pair, asked, .. }
        | Refusing::Nominal { pair, asked, .. }
        | Refusing::ExceedsMax { pair, asked, .. }) = refusing
        else {
            return Err(refusing);
        };
        // The best place has devices that the quota does not admit.
        let lesser = self.place_lesser(&candidate, pair, &self.tree, view, effort, visited);
        let lack = node.and_then(|node| self.tree.lack(node, pair, asked));
        let gave_up = match lesser {
            Ok(Some(fitting)) => return Ok(fitting),
            Ok(None) => false,
            Err(GaveUp) => true,
        };
        if candidate.lacks_nominal(&refusing) {
            let lesser = Some((self.refusal(), gave_up));
            return Err(Refusing::Nominal {
                pair,
                asked,
                lesser,
            });
        }
        Err(Refusing::QuotaForDevices {
            pair,
            asked,
            lack: lack.ok_or(Refusing::Overflow)?,
            refusal: self.refusal(),
            gave_up,
        })
    }

    pub(super) fn candidate<'a>(
        &'a self,
        shape: ShapeId,
        gang: GangId,
        node: Option<NodeId>,
        assignments: &'a [Assignment],
        at: usize,
    ) -> Option<Candidate<'a>> {
        self.candidate_asking(Asking::Least(shape), gang, node, assignments, at)
    }

    pub(super) fn candidate_asking<'a>(
        &'a self,
        asking: Asking<'a>,
        gang: GangId,
        node: Option<NodeId>,
        assignments: &'a [Assignment],
        at: usize,
    ) -> Option<Candidate<'a>> {
        let waiting = self.waiting.get(gang)?;
        Some(Candidate {
            waiting,
            demand: asking.demand(waiting),
            totals: self.totals(asking)?,
            node,
            assignments,
            at,
        })
    }

    pub(super) fn refusal(&self) -> Refusal {
        Refusal {
            as_of: self.cluster.version(),
        }
    }

    /// Whether the least that a candidate may be charged, whichever devices it gets, is within the quota; how far up the
    /// quota tree it reaches then.
    pub(super) fn may_be_charged(
        &self,
        candidate: &Candidate<'_>,
        tree: &QuotaTree,
    ) -> Result<usize, Refusing> {
        let assignment = candidate.assignment().ok_or(Refusing::Unnamed)?;
        let flavor = self.flavors.get(&assignment.flavor);
        let flavor = flavor.ok_or(Refusing::UnknownFlavor)?;
        if !flavor.excluded.is_empty() {
            let classes = candidate.demand.classes.iter();
            let mut filters = classes.flat_map(|class| class.shape.filters());
            if filters.any(|filter| flavor.excluded.contains(filter)) {
                return Err(Refusing::ExcludedFlavor);
            }
        }
        let all = candidate.assignments;
        let least = candidate.totals.least(assignment, all, &self.cluster)?;
        judge_quota(candidate, &least, tree)
    }

    /// Places a gang of a shape, unless it is known that there is no place.
    pub(super) fn place_unless_refused(
        &mut self,
        shape: ShapeId,
        gang: GangId,
        flavor: Option<&FlavorName>,
        view: &View,
        effort: &mut Effort,
        visited: &mut Visited,
    ) -> Result<Plan, Refusing> {
        let key = flavor.cloned();
        let known = self
            .shapes
            .get(shape)
            .and_then(|shape| shape.refused.get(&key))
            .copied();
        let waiting = self.waiting.get(gang).ok_or(Refusing::Overflow)?;
        let request = request(waiting, flavor.and_then(|name| self.flavors.get(name)));
        let steps = effort.steps();
        let verdict = match known.filter(|known| known.holds_with(steps)) {
            Some(known) if !may_fit_since(&self.cluster, &View::Now, &request, known.refusal) => {
                if known.gave_up_after.is_some() {
                    Verdict::GaveUp(self.refusal())
                } else {
                    Verdict::NoPlace(self.refusal())
                }
            }
            Some(known) if known.gave_up_after.is_none() && matches!(view, View::Now) => {
                visited.plans += 1;
                plan_since(&self.cluster, &request, known.refusal, effort)
            }
            _ => {
                visited.plans += 1;
                plan(&self.cluster, view, &request, effort)
            }
        };
        let (refusal, gave_up) = match verdict {
            Verdict::Placed(plan) => return Ok(plan),
            Verdict::NoPlace(refusal) => (refusal, false),
            Verdict::GaveUp(refusal) => (refusal, true),
        };
        let mut gave_up_inside = false;
        if let (Some(inside), View::Now) = (self.view_for(waiting), view) {
            visited.plans += 1;
            match plan(&self.cluster, &inside, &request, effort) {
                Verdict::Placed(plan) => return Ok(plan),
                Verdict::NoPlace(_) => {}
                Verdict::GaveUp(_) => gave_up_inside = true,
            }
        }
        if let (Some(shape), View::Now) = (self.shapes.get_mut(shape), view) {
            let gave_up_after = gave_up.then_some(steps);
            shape.refused.insert(
                key,
                Refused {
                    refusal,
                    gave_up_after,
                },
            );
        }
        Err(Refusing::NoPlace {
            refusal,
            gave_up: gave_up || gave_up_inside,
        })
    }

    /// Whether what came free since the shape was refused may help it.
    pub(super) fn may_have_a_place(
        &self,
        shape: ShapeId,
        gang: GangId,
        flavor: Option<&FlavorName>,
    ) -> bool {
        let key = flavor.cloned();
        let known = self
            .shapes
            .get(shape)
            .and_then(|shape| shape.refused.get(&key));
        let Some((known, waiting)) = known.zip(self.waiting.get(gang)) else {
            return true;
        };
        let request = request(waiting, flavor.and_then(|name| self.flavors.get(name)));
        may_fit_since(&self.cluster, &View::Now, &request, known.refusal)
    }

    /// What a plan costs, if the quota suffices for it.
    pub(super) fn cost(
        &self,
        candidate: &Candidate<'_>,
        plan: Plan,
        tree: &QuotaTree,
    ) -> Result<Fitting, Refusing> {
        let (claims, exact) = self.charged(candidate, &plan)?;
        let borrow_level = judge_quota(candidate, &exact, tree)?;
        Ok(Fitting {
            assignment: Some(candidate.at),
            borrow_level,
            plan,
            claims,
            fits_on: vec![candidate.at],
            refused: Vec::new(),
            size: None,
        })
    }

    /// What a plan costs: by claim of each placed unit, and in all.
    pub(super) fn charged(
        &self,
        candidate: &Candidate<'_>,
        plan: &Plan,
    ) -> Result<(Vec<Vec<ClaimCost>>, QuotaRequest), Refusing> {
        let assignment = candidate.assignment().ok_or(Refusing::Unnamed)?;
        let mut granted = DeviceCharge::default();
        let mut claims = Vec::with_capacity(plan.units.len());
        for unit in &plan.units {
            let record = self.cluster.record(unit.slot).ok_or(Refusing::Overflow)?;
            let class = candidate.demand.classes.get(unit.class);
            let shapes = class.map_or(&[][..], |class| &class.shape.claims);
            let mut of_unit = Vec::with_capacity(shapes.len());
            for (claim, devices) in shapes.iter().zip(&unit.grants) {
                let cost = if let Some((node, devices)) = &claim.allocated {
                    let all = candidate.assignments;
                    let (to, charge) =
                        allocated_charge(node, devices, assignment, all, &self.cluster)?;
                    ClaimCost {
                        flavor: to.flavor.clone(),
                        charge,
                    }
                } else {
                    let charge = record
                        .kind
                        .charged_as(devices)
                        .map_err(RequestFault::from)?;
                    granted.gpus = granted.gpus.add(charge.gpus).map_err(RequestFault::from)?;
                    granted.vram = granted.vram.add(charge.vram).map_err(RequestFault::from)?;
                    ClaimCost {
                        flavor: assignment.flavor.clone(),
                        charge,
                    }
                };
                of_unit.push(cost);
            }
            claims.push(of_unit);
        }
        let all = candidate.assignments;
        let exact = candidate
            .totals
            .exact(assignment, all, &self.cluster, granted)?;
        Ok((claims, exact))
    }

    /// A placement with devices that the quota admits, where the best one has devices that it does not: of the kinds that match,
    /// larger ones are left out until the rest fits. `None` only if every kind was tried, and each search came to its end.
    pub(super) fn place_lesser(
        &self,
        candidate: &Candidate<'_>,
        lacking: crate::quota::PairId,
        tree: &QuotaTree,
        view: &View,
        effort: &mut Effort,
        visited: &mut Visited,
    ) -> Result<Option<Fitting>, GaveUp> {
        let Some(assignment) = candidate.assignment() else {
            return Ok(None);
        };
        let FlavorResource { resource, .. } = tree.named(lacking);
        let charge_of = |kind: DeviceCharge| match resource {
            Resource::Gpus => Some(kind.gpus),
            Resource::Vram => Some(kind.vram),
            _ => None,
        };
        let kinds: BTreeSet<Amount> = candidate
            .totals
            .selectors()
            .flat_map(|selector| self.cluster.kinds(&assignment.flavor, selector))
            .filter_map(charge_of)
            .collect();
        let flavor = self.flavors.get(&assignment.flavor);
        let lesser = kinds.len().saturating_sub(1);
        let tried = lesser.min(LESSER_KINDS);
        let mut gave_up = lesser > tried;
        for (at, most) in kinds.into_iter().rev().skip(1).take(tried).enumerate() {
            let unbounded = Amount(i64::MAX);
            let most_per_device = match resource {
                Resource::Gpus => DeviceCharge {
                    gpus: most,
                    vram: unbounded,
                },
                _ => DeviceCharge {
                    gpus: unbounded,
                    vram: most,
                },
            };
            let request = Request {
                most_per_device: Some(most_per_device),
                ..candidate.request(flavor)
            };
            visited.plans += 1;
            let shares = request.demand.shares(tried - at);
            let verdict =
                effort.share(shares, |effort| plan(&self.cluster, view, &request, effort));
            match verdict {
                Verdict::Placed(plan) => {
                    if let Ok(fitting) = self.cost(candidate, plan, tree) {
                        return Ok(Some(fitting));
                    }
                }
                Verdict::NoPlace(_) => {}
                Verdict::GaveUp(_) => gave_up = true,
            }
        }
        if gave_up { Err(GaveUp) } else { Ok(None) }
    }
}

/// How far up the quota tree a request reaches, if the quota suffices; of several resources that lack, the first by name is
/// told: the numbers of pairs depend on what was named first.
fn judge_quota(
    candidate: &Candidate<'_>,
    request: &QuotaRequest,
    tree: &QuotaTree,
) -> Result<usize, Refusing> {
    let node = candidate.node.ok_or(Refusing::Unnamed)?;
    let may_borrow = candidate.waiting.may_borrow();
    let mut highest = 0;
    let mut first: Option<(usize, &FlavorResource, Refusing)> = None;
    for (&pair, &asked) in request {
        let judged = if may_borrow {
            tree.judge_at(node, pair, asked)
        } else {
            tree.judge_within_nominal(node, pair, asked)
        };
        let (order, refusing) = match judged {
            Ok(borrow_level) => {
                highest = highest.max(borrow_level);
                continue;
            }
            Err(Shortage::Ever { most }) => (0, Refusing::ExceedsMax { pair, asked, most }),
            Err(Shortage::Now(lack)) => (1, Refusing::Quota { pair, asked, lack }),
            Err(Shortage::Nominal) => (
                1,
                Refusing::Nominal {
                    pair,
                    asked,
                    lesser: None,
                },
            ),
        };
        let named = tree.named(pair);
        if first
            .as_ref()
            .is_none_or(|(least, other, _)| (order, named) < (*least, *other))
        {
            first = Some((order, named, refusing));
        }
    }
    first.map_or(Ok(highest), |(.., refusing)| Err(refusing))
}

/// The request to place a gang on a Flavor.
pub(super) fn request<'a>(waiting: &'a WaitingGang, flavor: Option<&'a Flavor>) -> Request<'a> {
    Request {
        demand: &waiting.demand,
        flavor: flavor.map(|flavor| &flavor.name),
        topology: flavor.and_then(|flavor| flavor.topology.as_ref()),
        wish: &waiting.gang.topology,
        most_per_device: None,
    }
}

impl From<RequestFault> for Refusing {
    fn from(fault: RequestFault) -> Self {
        match fault {
            RequestFault::Unnamed => Self::Unnamed,
            RequestFault::Overflow => Self::Overflow,
        }
    }
}
