//! What others gave up and is not proved released yet: who is to have it.
//!
//! A gang is told that it waits for a release only if it fits once all proofs are there. What is released can be
//! promised once: of those who would fit, the first in order is told so, the others that it goes first.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
};

use super::{
    State,
    ids::{ClassId, TeamId},
    judge::{Candidate, Fitting, request},
    wait_queue::{Precedence, WaitQueue},
    waits::Wait,
};
use crate::{
    decision::{Blocker, Visited, Why},
    model::Hold,
    names::{FlavorName, GangUid, PodUid},
    placement::{Cluster, Effort, GaveUp, Verdict, View, equal_pods_fit, may_fit_without, plan},
    queue::Place,
    quota::{NodeId, PairId, QuotaTree, Search, charges::largest},
};

/// How many classes are tried, in order. Nothing is promised to those behind: they are told what they lack now.
const CANDIDATES: usize = 16;

/// Who would fit after the releases on the way.
#[derive(Clone, Debug)]
pub(super) struct Promises {
    /// As of which change.
    as_of: u64,
    promised: BTreeMap<GangUid, Why>,
}

/// A gang that fits once everything is released.
struct Fits {
    gang: GangUid,
    name: String,
    team: TeamId,
    place: Place,
    flavor: Option<FlavorName>,
    borrow_level: usize,
    /// How many gangs of its Team go before it.
    round: usize,
}

/// Most pods with releases on the way of which is worked out who is to have them. With more, everybody is told what
/// lacks now.
const MOST_RELEASED: usize = 1024;

/// The world in which everything that only waits for the proof of its release were gone.
struct Afterwards<'a> {
    gone: BTreeMap<PodUid, &'a Hold>,
    tree: QuotaTree,
    /// What is free then, once somebody asked.
    view: OnceCell<View>,
    /// Where quota came free.
    freed: BTreeSet<(NodeId, PairId)>,
}

/// The first [`CANDIDATES`] classes by turn, each at its earliest.
#[derive(Default)]
struct Candidates<'a> {
    in_order: BTreeSet<((Precedence, &'a Place), ClassId)>,
    turns: BTreeMap<ClassId, (Precedence, &'a Place)>,
}

impl<'a> Candidates<'a> {
    /// Adds a class; whether one that comes later could still be among the first.
    fn add(&mut self, turn: (Precedence, &'a Place), class: ClassId) -> bool {
        if self.in_order.len() >= CANDIDATES
            && let Some(last) = self.in_order.last()
            && *last < (turn, class)
        {
            return last.0 >= turn;
        }
        if let Some(known) = self.turns.get_mut(&class) {
            if *known <= turn {
                return true;
            }
            self.in_order.remove(&(*known, class));
            *known = turn;
        } else {
            self.turns.insert(class, turn);
        }
        self.in_order.insert((turn, class));
        if self.in_order.len() > CANDIDATES
            && let Some((_, class)) = self.in_order.pop_last()
        {
            self.turns.remove(&class);
        }
        true
    }

    /// Adds who is listed in a queue, as long as they may be among the first.
    fn add_queue(&mut self, queue: Option<&'a WaitQueue>) {
        let Some(queue) = queue else { return };
        for (turn, team) in queue.listed() {
            let mut classes = queue.of_team(*team);
            let first = classes.next();
            if !first.is_some_and(|(place, class)| self.add((turn.0, place), *class)) {
                break;
            }
            for (place, class) in classes {
                if !self.add((turn.0, place), *class) {
                    break;
                }
            }
        }
    }
}

impl State {
    fn promises_something(&self) -> bool {
        (1..=MOST_RELEASED).contains(&self.releasing.len())
    }

    /// That a gang waits for a release, if it does.
    pub(super) fn promise(&self, gang: &GangUid) -> Option<Why> {
        // By limits that nobody was judged by yet nothing is promised.
        if !self.promises_something() || self.tree_is_stale {
            return None;
        }
        let mut cached = self.promises.borrow_mut();
        let current = cached.take().filter(|known| known.as_of == self.changes);
        let promises = current.unwrap_or_else(|| Promises {
            as_of: self.changes,
            promised: self.promised(),
        });
        let why = promises.promised.get(gang).cloned();
        *cached = Some(promises);
        why
    }

    /// What is being released changed: those to whom it was promised, and those to whom it may be now, may be told
    /// another reason. Who of them fits is worked out when somebody asks.
    pub(super) fn note_promises(&mut self) {
        let mut concerned = std::mem::take(&mut self.promise_candidates);
        if self.promises_something() {
            let candidates = self.candidates_for(&self.afterwards());
            let first = candidates.into_iter().filter_map(|class| {
                let line = &self.classes.get(class)?.line;
                line.values().next().copied()
            });
            self.promise_candidates = first.collect();
            concerned.extend(&self.promise_candidates);
        }
        self.changed_gangs.extend(concerned);
    }

    fn promised(&self) -> BTreeMap<GangUid, Why> {
        // Who was not judged yet may go first.
        if self.waits.is_anybody_awake() || !self.served.is_empty() {
            return BTreeMap::new();
        }
        let after = self.afterwards();
        self.cluster
            .note_visits((after.gone.len() + self.team_ids.len()) as u64);
        // Who waits for a claim by name that is released is in no queue, and may go first.
        let claims = after.gone.values().flat_map(|hold| &hold.claims);
        let mut released = claims.map(|claim| &claim.uid);
        if released.any(|claim| self.waiting.naming(claim).next().is_some()) {
            return BTreeMap::new();
        }
        let mut fitting = Vec::new();
        let mut effort = Effort::default();
        for class in self.candidates_for(&after) {
            match self.fits_afterwards(class, &after, &mut effort) {
                Ok(fits) => fitting.extend(fits),
                // It may go before all those who come after it.
                Err(GaveUp) => break,
            }
        }
        // The order of admission: the first of every Team, then the second.
        fitting.sort_by(|one, other| one.place.cmp(&other.place));
        let mut of_team: BTreeMap<TeamId, usize> = BTreeMap::new();
        for fits in &mut fitting {
            let before = of_team.entry(fits.team).or_default();
            fits.round = *before;
            *before += 1;
        }
        let order = |fits: &Fits| (fits.round, fits.borrow_level, fits.place.clone());
        fitting.sort_by_key(order);
        // One promise in all: a Team may fall back on the Flavor on which somebody else would be first.
        let mut first: Option<String> = None;
        let mut promised = BTreeMap::new();
        for fits in fitting {
            // Where shares are fair, who goes first depends on all who are awake then; so it does for whoever comes after.
            if first.is_none() && self.fair_root_of(fits.team).is_some() {
                break;
            }
            let behind = first.clone();
            let (pods, blocker) = after.released_on(fits.flavor.as_ref());
            if pods == 0 {
                continue;
            }
            first.get_or_insert(fits.name);
            let why = Why::Release {
                pods,
                blocker,
                behind,
            };
            promised.insert(fits.gang, why);
        }
        promised
    }

    fn afterwards(&self) -> Afterwards<'_> {
        let releasing = self.releasing.iter();
        let gone: BTreeMap<PodUid, &Hold> = releasing
            .filter_map(|pod| Some((pod.clone(), &**self.holds.get(pod)?)))
            .collect();
        let mut freed = BTreeSet::new();
        let tree = self.tree_after(&self.charges.without(&gone), |node, pair| {
            freed.insert((node, pair));
        });
        Afterwards {
            view: OnceCell::new(),
            gone,
            tree,
            freed,
        }
    }

    /// The first classes that what is released may help, in the order of their turns. Of each queue it looks at those who
    /// may be among them.
    fn candidates_for(&self, after: &Afterwards<'_>) -> Vec<ClassId> {
        let mut candidates = Candidates::default();
        for (node, pair) in &after.freed {
            let ceiling = after.tree.ceiling(*node, *pair);
            for wait in self
                .waits
                .for_quota_at(*node, *pair, ceiling.unwrap_or(i128::MAX))
            {
                candidates.add_queue(self.waits.queue(wait));
            }
        }
        for (group, _) in self.waits.groups() {
            candidates.add_queue(self.waits.queue(Wait::Place(group)));
        }
        for (node, pair) in &after.freed {
            for id in self.waits.watching(*node, *pair) {
                let class = self.classes.get(id);
                if let Some((class, place)) =
                    class.and_then(|class| Some((class, class.line.keys().next()?)))
                {
                    let precedence = self.precedence(class.team, Wait::Ready);
                    candidates.add((precedence, place), id);
                }
            }
        }
        let in_order = candidates.in_order.into_iter();
        in_order.map(|(_, class)| class).collect()
    }

    /// How the first gang of a class would fit, if it would.
    fn fits_afterwards(
        &self,
        class: ClassId,
        after: &Afterwards<'_>,
        effort: &mut Effort,
    ) -> Result<Option<Fits>, GaveUp> {
        let class = self.classes.get(class);
        let gang = class.and_then(|class| class.line.values().next());
        let Some((class, waiting)) = class.zip(gang.and_then(|gang| self.waiting.get(*gang)))
        else {
            return Ok(None);
        };
        let (entry, shape) = (self.teams.get(class.team), self.shapes.get(class.shape));
        let Some((entry, totals)) = entry.zip(shape.map(|shape| &shape.totals)) else {
            return Ok(None);
        };
        let placed = |flavor: Option<&FlavorName>, effort: &mut Effort| {
            let flavor = flavor.and_then(|name| self.flavors.get(name));
            let request = request(waiting, flavor);
            let view = after.view(&self.cluster);
            if equal_pods_fit(&self.cluster, &View::Now, &request) == Some(false)
                && !may_fit_without(&self.cluster, view, &request)
            {
                return Ok(None);
            }
            match plan(&self.cluster, view, &request, effort) {
                Verdict::Placed(plan) => Ok(Some(plan)),
                Verdict::NoPlace(_) => Ok(None),
                Verdict::GaveUp(_) => Err(GaveUp),
            }
        };
        let fits = |flavor: Option<&FlavorName>, borrow_level| Fits {
            gang: waiting.gang.uid.clone(),
            name: waiting.gang.name.clone(),
            team: class.team,
            place: waiting.place.clone(),
            flavor: flavor.cloned(),
            borrow_level,
            round: 0,
        };
        if entry.assignments.is_empty() && totals.claims == 0 {
            return Ok(placed(None, effort)?.map(|_| fits(None, 0)));
        }
        let mut search = Search::new(entry.fungibility);
        for (at, assignment) in entry.assignments.iter().enumerate() {
            let candidate = Candidate {
                waiting,
                totals,
                node: entry.node,
                assignments: &entry.assignments,
                at,
            };
            if !self.is_beaten(&candidate, &search, &after.tree)
                && self.may_be_charged(&candidate, &after.tree).is_ok()
                && let Some(plan) = placed(Some(&assignment.flavor), effort)?
            {
                let fitting = match self.cost(&candidate, plan, &after.tree) {
                    Ok(fitting) => Some(fitting),
                    Err(_) => self.fits_lesser_afterwards(&candidate, after, effort)?,
                };
                if let Some(fitting) = fitting
                    && search.offer(fitting.suits(), &assignment.flavor).is_break()
                {
                    break;
                }
            }
        }
        let best = search.best();
        Ok(best.map(|(suits, flavor)| fits(Some(flavor), suits.borrow_level)))
    }

    fn fits_lesser_afterwards(
        &self,
        candidate: &Candidate<'_>,
        after: &Afterwards<'_>,
        effort: &mut Effort,
    ) -> Result<Option<Fitting>, GaveUp> {
        let Some(assignment) = candidate.assignments.get(candidate.at) else {
            return Ok(None);
        };
        let (tree, view) = (&after.tree, after.view(&self.cluster));
        let mut gave_up = false;
        for pair in assignment.gpus.into_iter().chain(assignment.vram) {
            let visited = &mut Visited::default();
            match self.place_lesser(candidate, pair, tree, view, effort, visited) {
                Ok(None) => {}
                Ok(fitting) => return Ok(fitting),
                Err(GaveUp) => gave_up = true,
            }
        }
        if gave_up { Err(GaveUp) } else { Ok(None) }
    }
}

impl Afterwards<'_> {
    fn view(&self, cluster: &Cluster) -> &View {
        self.view.get_or_init(|| cluster.without(&self.gone))
    }

    /// How many pods are to release something of a Flavor, and of which gangs.
    fn released_on(&self, flavor: Option<&FlavorName>) -> (usize, Blocker) {
        let uses = |hold: &&&Hold| {
            let claims = hold.claims.iter().map(|claim| &claim.flavor);
            let besides = hold.charged.iter().map(|charge| &charge.of.flavor);
            flavor.is_none_or(|flavor| claims.chain(besides).any(|of| of == flavor))
        };
        let mut pods = 0;
        let mut gangs: BTreeMap<&str, i128> = BTreeMap::new();
        for hold in self.gone.values().filter(uses) {
            pods += 1;
            *gangs.entry(&hold.gang_name).or_default() += 1;
        }
        let gangs = gangs.into_iter().map(|(name, pods)| (pods, name));
        (pods, largest(gangs))
    }
}
