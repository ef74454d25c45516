//! What others gave up and is not proved released yet: who is to have it.
//!
//! A gang is told that it waits for a release only if it fits once all proofs are there. What is released can be
//! promised once: of those who would fit, the first in order is told so, the others that it goes first.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    State,
    ids::{ClassId, TeamId},
    judge::{Candidate, Fitting, request},
    wait_queue::Turn,
    waits::Wait,
};
use crate::{
    decision::{Blocker, Visited, Why},
    model::Hold,
    names::{FlavorName, GangUid, PodUid},
    placement::{Effort, Verdict, View, plan},
    queue::Place,
    quota::{NodeId, PairId, QuotaTree, charges::largest},
};

/// How many classes are tried, in order. Those behind are told what they lack now, which is true too.
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

/// The world in which everything that only waits for the proof of its release were gone.
struct Afterwards<'a> {
    gone: BTreeMap<PodUid, &'a Hold>,
    tree: QuotaTree,
    view: View,
    /// Where quota came free.
    freed: BTreeSet<(NodeId, PairId)>,
}

impl State {
    /// That a gang waits for a release, if it does.
    pub(super) fn promise(&self, gang: &GangUid) -> Option<Why> {
        if self.releasing.is_empty() {
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

    /// What is being released changed: some gangs are told another reason.
    pub(super) fn note_promises(&mut self) {
        let before = self.promises.take();
        let now = Promises {
            as_of: self.changes,
            promised: if self.releasing.is_empty() {
                BTreeMap::new()
            } else {
                self.promised()
            },
        };
        let concerned = before
            .iter()
            .flat_map(|promises| promises.promised.keys())
            .chain(now.promised.keys())
            .filter_map(|uid| self.waiting.id(uid));
        self.changed_gangs.extend(concerned);
        *self.promises.borrow_mut() = Some(now);
    }

    fn promised(&self) -> BTreeMap<GangUid, Why> {
        let after = self.afterwards();
        let mut effort = Effort::default();
        let mut tried = BTreeSet::new();
        let mut fitting = Vec::new();
        for (_, class) in self.candidates_for(&after) {
            if tried.len() == CANDIDATES {
                break;
            }
            if tried.insert(class) {
                fitting.extend(self.fits_afterwards(class, &after, &mut effort));
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
        let mut tree = self.tree.clone();
        let mut freed = BTreeSet::new();
        for delta in self.charges.without(&gone) {
            if let Some(node) = tree.node_of(&delta.team) {
                let pair = tree.pair(&delta.of);
                tree.change(node, pair, i128::from(delta.amount), |node, _| {
                    freed.insert((node, pair));
                });
            }
        }
        Afterwards {
            view: self.cluster.without(&gone),
            gone,
            tree,
            freed,
        }
    }

    /// Classes that what is released may help, in the order of their turns.
    fn candidates_for(&self, after: &Afterwards<'_>) -> BTreeSet<(Turn, ClassId)> {
        let mut candidates = BTreeSet::new();
        let mut add = |wait: Wait| {
            let Some(queue) = self.waits.queue(wait) else {
                return;
            };
            for (turn, team) in queue.listed().take(CANDIDATES) {
                for (place, class) in queue.of_team(*team).take(CANDIDATES) {
                    candidates.insert(((turn.0, place.clone()), *class));
                }
            }
        };
        for (node, pair) in &after.freed {
            let ceiling = after.tree.ceiling(*node, *pair);
            for wait in self
                .waits
                .for_quota_at(*node, *pair, ceiling.unwrap_or(i128::MAX))
            {
                add(wait);
            }
        }
        for (group, _) in self.waits.groups() {
            add(Wait::Place(group));
        }
        for (node, pair) in &after.freed {
            for id in self.waits.watching(*node, *pair) {
                let class = self.classes.get(id);
                if let Some((class, place)) =
                    class.and_then(|class| Some((class, class.line.keys().next()?)))
                {
                    let level = self.borrow_level(class.team, Wait::Ready);
                    candidates.insert(((level, place.clone()), id));
                }
            }
        }
        candidates
    }

    /// How the first gang of a class would fit.
    fn fits_afterwards(
        &self,
        class: ClassId,
        after: &Afterwards<'_>,
        effort: &mut Effort,
    ) -> Option<Fits> {
        let class = self.classes.get(class)?;
        let gang = *class.line.values().next()?;
        let waiting = self.waiting.get(gang)?;
        let entry = self.teams.get(class.team)?;
        let totals = &self.shapes.get(class.shape)?.totals;
        let placed = |flavor: Option<&FlavorName>, effort: &mut Effort| {
            let flavor = flavor.and_then(|name| self.flavors.get(name));
            let request = request(waiting, flavor);
            match plan(&self.cluster, &after.view, &request, effort) {
                Verdict::Placed(plan) => Some(plan),
                Verdict::NoPlace(_) | Verdict::GaveUp(_) => None,
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
            return placed(None, effort).map(|_| fits(None, 0));
        }
        for (at, assignment) in entry.assignments.iter().enumerate() {
            let candidate = Candidate {
                waiting,
                totals,
                node: entry.node,
                assignments: &entry.assignments,
                at,
            };
            if self.may_be_charged(&candidate, &after.tree).is_ok()
                && let Some(plan) = placed(Some(&assignment.flavor), effort)
            {
                let fitting = self.cost(&candidate, plan, &after.tree).ok();
                let fitting = fitting.or_else(|| self.fits_lesser_afterwards(&candidate, after));
                if let Some(fitting) = fitting {
                    return Some(fits(Some(&assignment.flavor), fitting.borrow_level));
                }
            }
        }
        None
    }

    fn fits_lesser_afterwards(
        &self,
        candidate: &Candidate<'_>,
        after: &Afterwards<'_>,
    ) -> Option<Fitting> {
        let assignment = candidate.assignments.get(candidate.at)?;
        let mut pairs = assignment.gpus.into_iter().chain(assignment.vram);
        pairs.find_map(|pair| {
            let (tree, view) = (&after.tree, &after.view);
            self.place_lesser(candidate, pair, tree, view, &mut Visited::default())
        })
    }
}

impl Afterwards<'_> {
    /// How many pods are to release something of a Flavor, and of which gangs.
    fn released_on(&self, flavor: Option<&FlavorName>) -> (usize, Blocker) {
        let uses = |hold: &&&Hold| {
            let claims = hold.claims.iter().map(|claim| &claim.flavor);
            let besides = hold.charged.iter().map(|(flavor, ..)| flavor);
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
