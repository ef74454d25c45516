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
    waiting::WaitingGang,
    waits::Wait,
};
use crate::{
    decision::{Blocker, Visited, Why},
    model::Hold,
    names::{FlavorName, GangUid, PodUid, Timestamp},
    placement::{
        Cluster, Effort, GaveUp, Plan, Verdict, View, equal_pods_fit, may_fit_without, plan,
    },
    queue::{Place, Standing},
    quota::{NodeId, PairId, QuotaTree, Search, charges::largest},
    remedy::Order,
};

/// How many classes are tried, in order. Nothing is promised to those behind: they are told what they lack now.
const CANDIDATES: usize = 16;

/// For so many seconds those who may be promised something are not named again, but for those who were. No reason is shown before it has
/// lasted for two, and to find it out takes as long as a decision.
const SECONDS_BETWEEN: i64 = 5;

/// Who would fit after the releases on the way.
#[derive(Clone, Debug)]
pub(super) struct Promises {
    /// As of which change.
    as_of: u64,
    promised: BTreeMap<GangUid, Why>,
}

/// When those were named last to whom something may be promised, and whether they are to be again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Naming {
    last_at: Option<Timestamp>,
    is_due: bool,
    /// Whether what was promised may be for somebody else by now: in some class another gang goes first, or limits changed.
    may_be_for_others: bool,
}

impl Naming {
    /// In some class another gang goes first, there is a new one or one less, or limits changed.
    pub(super) fn note_may_be_for_others(&mut self) {
        self.may_be_for_others = true;
    }
}

/// A gang that fits once everything is released.
struct Fits {
    gang: GangUid,
    name: String,
    team: TeamId,
    standing: Standing,
    flavor: Option<FlavorName>,
    /// At the least: of one that may start with fewer pods than it has, with as few.
    borrow_level: usize,
    /// Whether it would start with more pods than that, and may borrow more for them: then it may go later.
    may_borrow_more: bool,
    /// How many gangs of its Team go before it.
    round: usize,
}

/// Most pods with releases on the way of which is worked out who is to have them. With more, everybody is told what
/// lacks now.
const MOST_RELEASED: usize = 1024;

/// A world in which more is free: what only waits for the proof of its release is gone, say.
pub(super) struct Afterwards<'a> {
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

    /// Whether one that comes then could be among the first.
    fn may_add(&self, turn: (Precedence, &Place)) -> bool {
        let last = self.in_order.last();
        self.in_order.len() < CANDIDATES || last.is_none_or(|(last, _)| *last >= turn)
    }

    /// Adds who is listed in a queue, as long as they may be among the first.
    fn add_queue(&mut self, queue: Option<&'a WaitQueue>) {
        let Some(queue) = queue else { return };
        for ((precedence, earliest), team) in queue.listed() {
            if !self.may_add((*precedence, earliest)) {
                break;
            }
            // Whoever stands behind another one of the Team has its turn after that, however long it waits.
            let mut latest = earliest;
            for (standing, class) in queue.of_team(*team) {
                latest = latest.max(standing.place());
                if !self.add((*precedence, latest), *class) {
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

    /// That a gang waits for a release, if it does. Who is told so is named as soon as that may not be so any more.
    pub(super) fn promise(&self, gang: &GangUid) -> Option<Why> {
        let why = self.promise_to(gang);
        if why.is_some() {
            self.told_promises.borrow_mut().insert(gang.clone());
        }
        why
    }

    fn promise_to(&self, gang: &GangUid) -> Option<Why> {
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

    /// What is being released may have changed: those to whom it was promised may be told another reason, and so may those to whom it
    /// may be promised now. These are named once in [`SECONDS_BETWEEN`], and so are those to whom it was promised when others wait than
    /// did then, or limits changed: it may be for somebody else now. Who of them fits is worked out when somebody asks.
    pub(super) fn note_promises(&mut self, now: Timestamp) {
        if std::mem::take(&mut self.releasing_changed) {
            let told = std::mem::take(self.told_promises.get_mut());
            let told = told.iter().filter_map(|gang| self.waiting.id(gang));
            self.changed_gangs.extend(told);
            let may_be_promised = self.promises_something() && self.classes.iter().next().is_some();
            self.naming.is_due |= may_be_promised || !self.promise_candidates.is_empty();
        }
        if std::mem::take(&mut self.naming.may_be_for_others) {
            self.naming.is_due |= !self.told_promises.get_mut().is_empty();
        }
        // A clock that goes back keeps nobody waiting until it is as late as it was.
        let is_early =
            |due: Timestamp| due > now && self.naming.last_at.is_none_or(|last_at| last_at <= now);
        if self.promises_due().is_none_or(is_early) {
            return;
        }
        self.naming = Naming {
            last_at: Some(now),
            ..Naming::default()
        };
        let mut concerned = std::mem::take(&mut self.promise_candidates);
        let told = std::mem::take(self.told_promises.get_mut());
        concerned.extend(told.iter().filter_map(|gang| self.waiting.id(gang)));
        if self.promises_something() {
            let candidates = self.candidates_for(&self.afterwards());
            let first = candidates
                .into_iter()
                .filter_map(|class| self.classes.get(class)?.line.first());
            self.promise_candidates = first.collect();
            concerned.extend(&self.promise_candidates);
        }
        self.changed_gangs.extend(concerned);
    }

    /// When those are to be named to whom something may be promised, if what is being released changed since they were.
    pub(super) fn promises_due(&self) -> Option<Timestamp> {
        let due = self.naming.last_at.map_or(Timestamp(i64::MIN), |at| {
            Timestamp(at.0.saturating_add(SECONDS_BETWEEN))
        });
        self.naming.is_due.then_some(due)
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
        if self.is_claim_released(&after) {
            return BTreeMap::new();
        }
        let mut effort = Effort::default();
        // Who gave up may go before all those who come after it.
        let (fitting, _) = self.fitting_in_order(&after, None, &mut effort);
        let is_alone = fitting.len() == 1;
        // One promise in all: a Team may fall back on the Flavor on which somebody else would be first.
        let mut first: Option<String> = None;
        let mut promised = BTreeMap::new();
        for fits in fitting {
            // Where shares are fair, who goes first depends on all who are awake then; so it does for whoever comes after.
            let is_open =
                self.fair_root_of(fits.team).is_some() || (fits.may_borrow_more && !is_alone);
            if first.is_none() && is_open {
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

    /// Whether a claim is released that a gang which waits names: that one is in no queue, and may go first.
    fn is_claim_released(&self, after: &Afterwards<'_>) -> bool {
        let claims = after.gone.values().flat_map(|hold| &hold.claims);
        let mut released = claims.map(|claim| &claim.uid);
        released.any(|claim| self.waiting.naming(claim).next().is_some())
    }

    /// Those who fit in a world, of the first [`CANDIDATES`] whom it may help and of one class besides, in the order of admission;
    /// and whether they are all.
    fn fitting_in_order(
        &self,
        after: &Afterwards<'_>,
        besides: Option<ClassId>,
        effort: &mut Effort,
    ) -> (Vec<Fits>, bool) {
        let mut candidates = self.candidates_for(after);
        let mut are_all = candidates.len() < CANDIDATES;
        let besides = besides.filter(|class| !candidates.contains(class));
        candidates.extend(besides);
        let mut fitting = Vec::new();
        for class in candidates {
            let Ok(fits) = self.fits_afterwards(class, after, effort) else {
                are_all = false;
                break;
            };
            fitting.extend(fits);
        }
        // The first of every Team, then the second.
        fitting.sort_by(|one, other| one.standing.cmp(&other.standing));
        let mut of_team: BTreeMap<TeamId, usize> = BTreeMap::new();
        for fits in &mut fitting {
            let before = of_team.entry(fits.team).or_default();
            fits.round = *before;
            *before += 1;
        }
        let order = |fits: &Fits| {
            let place = fits.standing.place().clone();
            (fits.round, fits.borrow_level, place)
        };
        fitting.sort_by_key(order);
        (fitting, are_all)
    }

    /// The world in which these pods hold nothing.
    pub(super) fn world_without<'a>(
        &'a self,
        pods: impl Iterator<Item = &'a PodUid>,
    ) -> Afterwards<'a> {
        let gone: BTreeMap<PodUid, &Hold> = pods
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

    /// The world in which quota is another one, and more of it is there at these nodes.
    pub(super) fn world_with<'a>(
        tree: QuotaTree,
        freed: BTreeSet<(NodeId, PairId)>,
    ) -> Afterwards<'a> {
        Afterwards {
            view: OnceCell::new(),
            gone: BTreeMap::new(),
            tree,
            freed,
        }
    }

    /// Who would be admitted first in a world in which the first gang of a class fits.
    pub(super) fn order_in(
        &self,
        after: &Afterwards<'_>,
        (class, gang): (ClassId, &GangUid),
        effort: &mut Effort,
    ) -> Order {
        if self.is_claim_released(after) {
            return Order::Open;
        }
        let (fitting, are_all) = self.fitting_in_order(after, Some(class), effort);
        // Where shares are fair, they decide, and among the Teams of other trees, too.
        let is_fair = |fits: &Fits| self.fair_root_of(fits.team).is_some();
        let may_go_later = fitting.first().is_some_and(|first| first.may_borrow_more);
        let is_open = fitting.len() > 1 && (may_go_later || fitting.iter().any(is_fair));
        let is_open = is_open || !are_all;
        match fitting.first().filter(|_| !is_open) {
            Some(first) if first.gang == *gang => Order::Itself,
            Some(first) => Order::After(first.name.clone()),
            None => Order::Open,
        }
    }

    /// What is kept for a gang that recovers comes free for nobody.
    fn afterwards(&self) -> Afterwards<'_> {
        self.world_without(self.releasing.iter().filter(|pod| {
            let hold = self.holds.get(*pod);
            !hold.is_some_and(|hold| self.keeps.goes_on(&hold.gang, pod))
        }))
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
        for (node, pair) in &after.freed {
            let has = after.tree.usage_and_headroom(*node, *pair).1;
            for id in self.waits.for_nominal(*node, *pair, has) {
                self.add_ready(&mut candidates, id);
            }
        }
        for (group, _) in self.waits.groups() {
            candidates.add_queue(self.waits.queue(Wait::Place(group)));
        }
        for (node, pair) in &after.freed {
            for id in self.waits.watching(*node, *pair) {
                self.add_ready(&mut candidates, id);
            }
        }
        let in_order = candidates.in_order.into_iter();
        in_order.map(|(_, class)| class).collect()
    }

    fn add_ready<'a>(&'a self, candidates: &mut Candidates<'a>, id: ClassId) {
        let class = self.classes.get(id);
        if let Some((class, place)) = class.and_then(|class| Some((class, class.line.place()?))) {
            let precedence = self.precedence(class.team, Wait::Ready);
            candidates.add((precedence, place), id);
        }
    }

    /// How the first gang of a class would fit, if it would.
    fn fits_afterwards(
        &self,
        class: ClassId,
        after: &Afterwards<'_>,
        effort: &mut Effort,
    ) -> Result<Option<Fits>, GaveUp> {
        let class = self.classes.get(class);
        let gang = class.and_then(|class| class.line.first());
        let Some((class, waiting)) = class.zip(gang.and_then(|gang| self.waiting.get(gang))) else {
            return Ok(None);
        };
        let (entry, shape) = (self.teams.get(class.team), self.shapes.get(class.shape));
        let Some((entry, totals)) = entry.zip(shape.map(|shape| &shape.totals)) else {
            return Ok(None);
        };
        let fits = |flavor: Option<&FlavorName>, borrow_level| Fits {
            gang: waiting.gang.uid.clone(),
            name: waiting.gang.name.clone(),
            team: class.team,
            standing: entry.standing_of(waiting),
            flavor: flavor.cloned(),
            borrow_level,
            may_borrow_more: waiting.demand.pods < waiting.gang.pods.len(),
            round: 0,
        };
        let standing = entry.standing_of(waiting);
        let is_held_up = |at| entry.discipline.first_before(at, &standing).is_some();
        if entry.assignments.is_empty() && totals.claims == 0 {
            if is_held_up(0) {
                return Ok(None);
            }
            let placed = self.placed_in(waiting, None, after.view(&self.cluster), effort)?;
            return Ok(placed.map(|_| fits(None, 0)));
        }
        let mut search = Search::new(entry.fungibility);
        for (at, assignment) in entry.assignments.iter().enumerate() {
            let candidate = Candidate {
                waiting,
                demand: &waiting.demand,
                totals,
                node: entry.node,
                assignments: &entry.assignments,
                at,
            };
            if !is_held_up(at)
                && !self.is_beaten(&candidate, &search, &after.tree)
                && let Some(fitting) = self.fits_in_world(&candidate, after, effort)?
                && search.offer(fitting.suits(), &assignment.flavor).is_break()
            {
                break;
            }
        }
        let best = search.best();
        Ok(best.map(|(suits, flavor)| fits(Some(flavor), suits.borrow_level)))
    }

    /// How a gang would fit on a Flavor in a world, if it would.
    pub(super) fn fits_in_world(
        &self,
        candidate: &Candidate<'_>,
        after: &Afterwards<'_>,
        effort: &mut Effort,
    ) -> Result<Option<Fitting>, GaveUp> {
        if self.may_be_charged(candidate, &after.tree).is_err() {
            return Ok(None);
        }
        self.fits_in(candidate, &after.tree, after.view(&self.cluster), effort)
    }

    /// How a gang would fit on a Flavor with this quota and these nodes, if it would.
    pub(super) fn fits_in(
        &self,
        candidate: &Candidate<'_>,
        tree: &QuotaTree,
        view: &View,
        effort: &mut Effort,
    ) -> Result<Option<Fitting>, GaveUp> {
        let flavor = candidate.assignments.get(candidate.at).map(|it| &it.flavor);
        let Some(plan) = self.placed_in(candidate.waiting, flavor, view, effort)? else {
            return Ok(None);
        };
        match self.cost(candidate, plan, tree) {
            Ok(fitting) => Ok(Some(fitting)),
            Err(_) => self.fits_lesser_in(candidate, tree, view, effort),
        }
    }

    /// The place that a gang would have on these nodes, if any.
    pub(super) fn placed_in(
        &self,
        waiting: &WaitingGang,
        flavor: Option<&FlavorName>,
        view: &View,
        effort: &mut Effort,
    ) -> Result<Option<Plan>, GaveUp> {
        let request = request(waiting, flavor.and_then(|name| self.flavors.get(name)));
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
    }

    fn fits_lesser_in(
        &self,
        candidate: &Candidate<'_>,
        tree: &QuotaTree,
        view: &View,
        effort: &mut Effort,
    ) -> Result<Option<Fitting>, GaveUp> {
        let Some(assignment) = candidate.assignments.get(candidate.at) else {
            return Ok(None);
        };
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
    /// The same world with these nodes.
    pub(super) fn seen_as(self, view: View) -> Self {
        let view = OnceCell::from(view);
        Self { view, ..self }
    }

    /// What is free there.
    pub(super) fn view(&self, cluster: &Cluster) -> &View {
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
