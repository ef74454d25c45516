//! The heads of Teams that were judged and had no turn yet, and which of them the turn of another Team concerns.
//!
//! As long as nothing comes free, a Team whose head is known can only come later than it did, unless that head has lost its place or its
//! quota, or is charged less with other devices by now: then it may come earlier, with that gang or with one behind it. To find those out
//! costs what the turn touched, however many Teams borrow below one root:
//!
//! * A Team of which no gang could come earlier at all ([`State::earliest_turn`]) is not looked at. So it is with most.
//! * A place is looked at when one of its nodes changed. Heads that ask for the same share one: whoever planned as things were has
//!   chosen the same nodes. Once it is gone another one is searched, once for all of them.
//! * Quota is looked at when so much was charged in the tree of the Team, by others, as was left when that was looked at last.
//! * Only where the devices that a gang gets decide how far up it borrows, every turn may change that.
//!
//! Where others give way quota comes free: then all heads in that tree are looked at.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    State,
    ids::{ClassId, ShapeId, TeamId},
    judge::{Candidate, ClaimCost, Fitting, request},
    rounds::{Head, What},
    wait_queue::{Precedence, Turn, WaitQueue},
};
use crate::{
    amount::Amount,
    decision::Visited,
    names::FlavorName,
    placement::{DeviceCharge, Effort, Plan, Verdict, Version, View, holds_still, plan},
    quota::{NodeId, PairId, QuotaTree},
};

/// By the least of how many classes it is told when a Team could have its turn at the earliest.
const MOST_CLASSES: usize = 8;

/// A Team had its turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Served {
    pub(super) team: TeamId,
    /// As of when nodes were as they had been before.
    pub(super) nodes_before: Version,
    /// Whether others give way to its gang: then quota came free.
    pub(super) by_preemption: bool,
}

/// What is asked of a place that several heads share: equal pods of one shape, with devices of one charge on one Flavor.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PlaceKey {
    shape: ShapeId,
    flavor: Option<FlavorName>,
    charge: DeviceCharge,
}

/// The nodes that a head needs.
#[derive(Debug, Default)]
enum Nodes {
    /// It does not matter: the Team could not come earlier without them.
    #[default]
    Any,
    /// Those of its own plan.
    Planned(BTreeSet<usize>),
    /// Those of any plan for this.
    Shared(PlaceKey),
}

/// What has a head looked at again, besides quota that comes free.
#[derive(Debug, Default)]
pub(super) struct Watch {
    nodes: Nodes,
    /// That more than this was charged in its tree ([`super::moments::Moments::charged`]).
    until: Vec<(PairId, i128)>,
    /// Any turn of another Team.
    is_always: bool,
}

impl Watch {
    /// Every turn has it looked at.
    pub(super) fn always() -> Self {
        Self {
            is_always: true,
            ..Self::default()
        }
    }
}

struct Known {
    root: Option<NodeId>,
    turn: Turn,
    head: Head,
    watch: Watch,
}

/// A place that some heads have, as far as it is known: each of them would find it, or another one of the same charge.
struct SharedPlace {
    plan: Plan,
    as_of: Version,
    teams: BTreeSet<TeamId>,
}

#[derive(Default)]
struct OnNode {
    teams: BTreeSet<TeamId>,
    places: BTreeSet<PlaceKey>,
}

/// Whom a turn concerns.
pub(super) struct Concerned {
    /// There is no such place any more as they had.
    without_place: BTreeSet<TeamId>,
    /// They are to be looked at.
    others: BTreeSet<TeamId>,
}

impl Concerned {
    /// All of them, by Team, and whether a Team is known to have lost its place.
    pub(super) fn teams(&self) -> Vec<(TeamId, bool)> {
        let all: BTreeSet<TeamId> = self.without_place.union(&self.others).copied().collect();
        let all = all.into_iter();
        all.map(|team| (team, self.without_place.contains(&team)))
            .collect()
    }
}

/// What became of a place.
enum Found {
    Holds,
    Moved(Plan),
    Gone,
}

/// See the module.
#[derive(Default)]
pub(super) struct KnownHeads {
    heads: BTreeMap<TeamId, Known>,
    places: BTreeMap<PlaceKey, SharedPlace>,
    by_node: BTreeMap<usize, OnNode>,
    until: BTreeMap<(NodeId, PairId), BTreeSet<(i128, TeamId)>>,
    always: BTreeSet<TeamId>,
    by_root: BTreeMap<NodeId, BTreeSet<TeamId>>,
}

impl KnownHeads {
    /// The head of a Team is known from now on, and its turn, as things are.
    pub(super) fn enter(
        &mut self,
        team: TeamId,
        root: Option<NodeId>,
        (turn, head): (Turn, Head),
        watch: Watch,
    ) {
        self.leave(team);
        match &watch.nodes {
            Nodes::Any => {}
            Nodes::Planned(slots) => {
                for slot in slots {
                    self.by_node.entry(*slot).or_default().teams.insert(team);
                }
            }
            Nodes::Shared(key) => self.share(team, key, &head),
        }
        if let Some(root) = root {
            self.by_root.entry(root).or_default().insert(team);
            for (pair, until) in &watch.until {
                let of_pair = self.until.entry((root, *pair)).or_default();
                of_pair.insert((*until, team));
            }
        }
        if watch.is_always {
            self.always.insert(team);
        }
        let known = Known {
            root,
            turn,
            head,
            watch,
        };
        self.heads.insert(team, known);
    }

    fn share(&mut self, team: TeamId, key: &PlaceKey, head: &Head) {
        if let Some(place) = self.places.get_mut(key) {
            place.teams.insert(team);
            return;
        }
        let What::Fits { fitting, .. } = &head.turn else {
            return;
        };
        let place = SharedPlace {
            plan: fitting.plan.clone(),
            as_of: head.nodes_as_of(),
            teams: BTreeSet::from([team]),
        };
        self.stand_on(key, &place.plan);
        self.places.insert(key.clone(), place);
    }

    fn stand_on(&mut self, key: &PlaceKey, plan: &Plan) {
        for slot in plan.slots() {
            let on_node = self.by_node.entry(slot).or_default();
            on_node.places.insert(key.clone());
        }
    }

    fn leave_nodes(&mut self, key: &PlaceKey, plan: &Plan) {
        for slot in plan.slots() {
            if let Some(on_node) = self.by_node.get_mut(&slot) {
                on_node.places.remove(key);
            }
        }
    }

    /// The head of a Team is known no longer.
    pub(super) fn leave(&mut self, team: TeamId) -> Option<(Turn, Head)> {
        let known = self.heads.remove(&team)?;
        match &known.watch.nodes {
            Nodes::Any => {}
            Nodes::Planned(slots) => {
                for slot in slots {
                    if let Some(on_node) = self.by_node.get_mut(slot) {
                        on_node.teams.remove(&team);
                    }
                }
            }
            Nodes::Shared(key) => {
                // The place stays, and is forgotten when one of its nodes changes and nobody needs it: it may be another one by now than
                // those had planned who come back.
                if let Some(place) = self.places.get_mut(key) {
                    place.teams.remove(&team);
                }
            }
        }
        if let Some(root) = known.root {
            if let Some(of_root) = self.by_root.get_mut(&root) {
                of_root.remove(&team);
            }
            for (pair, until) in &known.watch.until {
                if let Some(of_pair) = self.until.get_mut(&(root, *pair)) {
                    of_pair.remove(&(*until, team));
                }
            }
        }
        self.always.remove(&team);
        Some((known.turn, known.head))
    }

    /// The turn of a Team whose head is known.
    pub(super) fn turn_of(&self, team: TeamId) -> Option<&Turn> {
        self.heads.get(&team).map(|known| &known.turn)
    }

    /// Whether a head has the place that was found for all who ask for the same.
    pub(super) fn shares_place(&self, team: TeamId) -> bool {
        let known = self.heads.get(&team);
        known.is_some_and(|known| matches!(known.watch.nodes, Nodes::Shared(_)))
    }

    /// Whom the turn of another Team concerns.
    pub(super) fn concerned(
        &mut self,
        state: &State,
        served: &Served,
        visited: &mut Visited,
    ) -> Concerned {
        let mut others = self.always.clone();
        let mut places = BTreeSet::new();
        for slot in state.cluster.changed_since(served.nodes_before) {
            if let Some(on_node) = self.by_node.get(&slot) {
                others.extend(&on_node.teams);
                places.extend(on_node.places.iter().cloned());
            }
        }
        let mut without_place = BTreeSet::new();
        for key in places {
            if !self.has_place_still(state, &key, visited)
                && let Some(place) = self.places.remove(&key)
            {
                self.leave_nodes(&key, &place.plan);
                without_place.extend(&place.teams);
            }
        }
        if let Some(root) = state.root_of(served.team) {
            if served.by_preemption {
                others.extend(self.by_root.get(&root).into_iter().flatten());
            }
            let of_root = self.until.range((root, PairId::FIRST)..);
            let of_root = of_root.take_while(|((at, _), _)| *at == root);
            for ((_, pair), teams) in of_root {
                let charged = state.moments.charged(root, *pair);
                let over = teams.iter().take_while(|(until, _)| *until < charged);
                others.extend(over.map(|(_, team)| *team));
            }
        }
        Concerned {
            without_place,
            others,
        }
    }

    /// Whether a place holds still, or there is another one like it, which counts from then on.
    fn has_place_still(&mut self, state: &State, key: &PlaceKey, visited: &mut Visited) -> bool {
        let Some(place) = self.places.get(key) else {
            return false;
        };
        // Nobody needs it any more.
        let Some(team) = place.teams.first() else {
            return false;
        };
        let Some(head) = self.heads.get(team).map(|known| &known.head) else {
            return false;
        };
        let found = state.find_place_again(*team, head, key, (&place.plan, place.as_of));
        if matches!(found, Found::Holds) {
            return true;
        }
        visited.plans += 1;
        let Found::Moved(moved) = found else {
            return false;
        };
        let before = place.plan.clone();
        self.leave_nodes(key, &before);
        self.stand_on(key, &moved);
        if let Some(place) = self.places.get_mut(key) {
            place.plan = moved;
            place.as_of = state.cluster.version();
        }
        true
    }
}

impl State {
    /// Whether a place for a head and all who ask for the same holds still, or where there is another one at the same charge.
    fn find_place_again(
        &self,
        team: TeamId,
        head: &Head,
        key: &PlaceKey,
        (planned, as_of): (&Plan, Version),
    ) -> Found {
        let Some((entry, waiting)) = self.teams.get(team).zip(self.waiting.get(head.gang)) else {
            return Found::Gone;
        };
        let flavor = key.flavor.as_ref().and_then(|name| self.flavors.get(name));
        let request = request(waiting, flavor);
        if holds_still(&self.cluster, &request, planned, as_of) {
            return Found::Holds;
        }
        let verdict = plan(&self.cluster, &View::Now, &request, &mut Effort::default());
        let Verdict::Placed(moved) = verdict else {
            return Found::Gone;
        };
        let What::Fits { fitting, .. } = &head.turn else {
            return Found::Gone;
        };
        let Some(at) = fitting.assignment else {
            return Found::Moved(moved);
        };
        let all = &entry.assignments;
        let candidate = self.candidate(key.shape, head.gang, entry.node, all, at);
        let charged = candidate.and_then(|it| self.charged(&it, &moved).ok());
        match charged {
            Some((claims, _)) if charge_of(&claims) == key.charge => Found::Moved(moved),
            _ => Found::Gone,
        }
    }

    /// What has a Team looked at again whose head has that turn; `afterwards` is the tree of that moment, and as before then.
    pub(super) fn watch_head(
        &self,
        team: TeamId,
        turn: &Turn,
        head: &Head,
        afterwards: &mut QuotaTree,
    ) -> Watch {
        let earliest = self.earliest_turn(team);
        if earliest.is_some_and(|earliest| earliest >= *turn) {
            return Watch::default();
        }
        match &head.turn {
            What::Fits { fitting, .. } => Watch {
                is_always: self.may_borrow_less(team, head),
                ..self.watch_fitting(team, head, fitting)
            },
            What::Preempts(preempting) => Watch {
                until: self.suffices_until(team, preempting, afterwards),
                ..Watch::default()
            },
        }
    }

    /// What may take the place or the quota of a head from under it.
    pub(super) fn watch_fitting(&self, team: TeamId, head: &Head, fitting: &Fitting) -> Watch {
        let node = self.teams.get(team).and_then(|entry| entry.node);
        let asked = self.asked_by(team, head);
        let until = asked.iter().filter_map(|(pair, amount)| {
            let until = self.available_until(&self.tree, node?, *pair, *amount)?;
            Some((*pair, until))
        });
        Watch {
            nodes: self
                .shared_place(team, head, fitting)
                .map_or_else(|| Nodes::Planned(fitting.plan.slots()), Nodes::Shared),
            until: until.collect(),
            is_always: false,
        }
    }

    /// What a head has in common with others, if it has the place that any gang of its shape would be given.
    fn shared_place(&self, team: TeamId, head: &Head, fitting: &Fitting) -> Option<PlaceKey> {
        let waiting = self.waiting.get(head.gang)?;
        let is_like_others = fitting.size.is_none()
            && waiting.demand.classes.len() == 1
            && waiting.gang.topology.avoided.is_empty()
            && self.backfill.told().next().is_none();
        let all = &self.teams.get(team)?.assignments;
        let assignment = fitting.assignment.and_then(|at| all.get(at));
        is_like_others.then(|| PlaceKey {
            shape: waiting.shape,
            flavor: assignment.map(|assignment| assignment.flavor.clone()),
            charge: charge_of(&fitting.claims),
        })
    }

    /// An amount that a Team may have now it may have until more than this was charged in its tree by others; `None` if that is nothing
    /// to it.
    pub(super) fn available_until(
        &self,
        tree: &QuotaTree,
        team: NodeId,
        pair: PairId,
        amount: i128,
    ) -> Option<i128> {
        let left = tree.left_above(team, pair, amount)?;
        let charged = self.moments.charged(tree.root_of(team), pair);
        Some(charged.saturating_add(left))
    }

    /// When a Team could have its turn at the earliest, whichever of its gangs that are awake is its head, as long as nothing comes
    /// free; `None` if it has too many classes to say.
    fn earliest_turn(&self, team: TeamId) -> Option<Turn> {
        let entry = self.teams.get(team)?;
        let may_preempt = self.may_preempt(team);
        let (classes, place): (BTreeSet<ClassId>, _) = if may_preempt || entry.is_strict() {
            // Others of its classes may be woken meanwhile.
            let classes = entry.classes.values().take(MOST_CLASSES + 1);
            (classes.copied().collect(), entry.line.keys().next()?)
        } else {
            let open = entry.queues.iter();
            let open = open.filter(|wait| self.waits.is_open(**wait));
            let queues: Vec<&WaitQueue> = open.filter_map(|wait| self.waits.queue(*wait)).collect();
            let classes = queues.iter();
            let classes = classes.flat_map(|queue| queue.of_team(team).take(MOST_CLASSES + 1));
            let places = queues.iter().filter_map(|queue| queue.earliest_of(team));
            (classes.map(|(_, class)| *class).collect(), places.min()?)
        };
        if classes.len() > MOST_CLASSES {
            return None;
        }
        let levels = classes.into_iter();
        let levels = levels.filter_map(|class| self.least_level_of(class, may_preempt));
        let least = levels.min().unwrap_or(usize::MAX);
        Some((Precedence::Reaching(least), place.clone()))
    }

    /// How far up the quota tree the gangs of a class reach at the least; `None` if they cannot be charged at all. Those that may preempt
    /// reach no further than they would if nothing were charged.
    fn least_level_of(&self, class: ClassId, may_preempt: bool) -> Option<usize> {
        let class = self.classes.get(class)?;
        let entry = self.teams.get(class.team)?;
        let gang = class.line.first()?;
        let all = &entry.assignments;
        if all.is_empty() {
            return Some(0);
        }
        let levels = (0..all.len()).filter_map(|at| {
            let candidate = self.candidate(class.shape, gang, entry.node, all, at)?;
            if may_preempt {
                self.least_level_ever(&candidate)
            } else {
                self.may_be_charged(&candidate, &self.tree).ok()
            }
        });
        levels.min()
    }

    fn least_level_ever(&self, candidate: &Candidate<'_>) -> Option<usize> {
        let node = candidate.node?;
        let all = candidate.assignments;
        let least = candidate
            .totals
            .least(all.get(candidate.at)?, all, &self.cluster);
        let least = least.ok()?;
        let levels = least.iter();
        let levels =
            levels.map(|(pair, amount)| self.tree.least_borrow_level_ever(node, *pair, *amount));
        Some(levels.max().unwrap_or(0))
    }
}

/// What all claims are charged as together.
fn charge_of(claims: &[Vec<ClaimCost>]) -> DeviceCharge {
    let mut sum = DeviceCharge::default();
    for ClaimCost { charge, .. } in claims.iter().flatten() {
        sum.gpus = Amount(sum.gpus.0.saturating_add(charge.gpus.0));
        sum.vram = Amount(sum.vram.0.saturating_add(charge.vram.0));
    }
    sum
}
