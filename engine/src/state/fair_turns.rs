//! Turns where shares are fair: the Teams below one root Cohort compete in a [`Tournament`], and who wins there takes its turn
//! among the Teams of other trees by the precedence and place that its gang has.
//!
//! All Teams of such a tree that are awake compete. A Team is judged only when its gang might be the next: until then it
//! competes by the least that any of its gangs may be charged that are awake, or come to be so as it is judged. What one Team is
//! charged moves nobody else's share, so that who was judged goes on competing by that, unless it lost its place or its quota, or
//! may be charged less by now; then it may come earlier, and competes by the least again.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    State,
    ids::{ClassId, TeamId},
    judge::Fitting,
    known_heads::{KnownHeads, Served, Watch},
    rounds::{Head, What},
    wait_queue::Turn,
    work::Work,
};
use crate::{
    queue::Place,
    quota::{Asked, Next, NodeId, PairId, Sharing, Tournament, request::QuotaRequest},
};

/// By the least of how many classes a Team competes that was not judged; with more, by nothing.
const MOST_CLASSES: usize = 8;

/// The Teams that compete, by root.
#[derive(Default)]
pub(super) struct FairTurns {
    tournaments: BTreeMap<NodeId, Tournament>,
    /// Those that were judged.
    heads: KnownHeads,
    teams: BTreeMap<NodeId, TeamId>,
}

/// What is to be done so that a turn can be taken.
pub(super) enum FairTurn {
    /// This Team is to be judged.
    Judge(TeamId),
    /// The turns of those who have won in their trees are known, the first of all is this one; if there is any.
    First(Option<(Turn, TeamId)>),
}

impl FairTurns {
    /// Takes a Team out, with its head if that is known.
    pub(super) fn leave(&mut self, state: &State, team: TeamId) -> Option<Head> {
        let place = state.fair_root_of(team);
        if let Some((root, node)) = place
            && let Some(tournament) = self.tournaments.get_mut(&root)
        {
            tournament.leave(&state.tree, node);
            self.teams.remove(&node);
        }
        self.heads.leave(team).map(|(_, head)| head)
    }

    /// Everybody who competes.
    pub(super) fn all(&self) -> impl Iterator<Item = TeamId> + '_ {
        self.teams.values().copied()
    }

    /// Whose turn it is.
    pub(super) fn next(&mut self, state: &State) -> FairTurn {
        let mut first: Option<(Turn, TeamId)> = None;
        for tournament in self.tournaments.values_mut() {
            match tournament.next(&state.tree) {
                Next::Nobody => {}
                Next::Unknown(node) => {
                    if let Some(team) = self.teams.get(&node) {
                        return FairTurn::Judge(*team);
                    }
                }
                Next::Winner(node) => {
                    let winner = self
                        .teams
                        .get(&node)
                        .and_then(|team| Some((self.heads.turn_of(*team)?.clone(), *team)));
                    first = [first, winner].into_iter().flatten().min();
                }
            }
        }
        FairTurn::First(first)
    }
}

impl State {
    /// The root of a Team's tree and its own node there, if shares are fair in it.
    pub(super) fn fair_root_of(&self, team: TeamId) -> Option<(NodeId, NodeId)> {
        let node = self.teams.get(team)?.node?;
        let is_fair = matches!(self.tree.sharing_of(node), Sharing::Fair(_));
        is_fair.then(|| (self.tree.root_of(node), node))
    }

    /// A Team below a root with fair shares competes from now on, with its head if that is known.
    pub(super) fn compete(
        &self,
        turns: &mut FairTurns,
        (root, node): (NodeId, NodeId),
        team: TeamId,
        head: Option<(Turn, Head)>,
    ) {
        let known = head.as_ref().map(|((_, place), head)| {
            let asked = self.asked_by(team, head);
            (asked, place.clone())
        });
        let is_known = known.is_some();
        let (asked, place) = known.unwrap_or_else(|| self.least_asked(team));
        turns.teams.insert(node, team);
        match head {
            Some((turn, head)) => {
                let watch = self.watch_competing(team, &head, (&asked, &place));
                turns.heads.enter(team, Some(root), (turn, head), watch);
            }
            None => drop(turns.heads.leave(team)),
        }
        let tournament = turns.tournaments.entry(root);
        let tournament = tournament.or_insert_with(|| Tournament::new(root));
        tournament.enter(&self.tree, node, asked, place, is_known);
    }

    /// A Team was charged, and nodes were taken.
    pub(super) fn compete_anew(&self, turns: &mut FairTurns, served: &Served, work: &mut Work) {
        if let Some((root, node)) = self.fair_root_of(served.team)
            && let Some(tournament) = turns.tournaments.get_mut(&root)
        {
            tournament.note_charged(&self.tree, node);
        }
        let concerned = turns.heads.concerned(self, served, &mut work.visited);
        for (team, is_place_gone) in concerned.teams() {
            work.visited.heads += 1;
            let has_place = turns.heads.shares_place(team);
            let Some(place) = self.fair_root_of(team) else {
                continue;
            };
            let Some((turn, head)) = turns.heads.leave(team) else {
                continue;
            };
            if is_place_gone || self.may_ask_less(team, &head, served.team, has_place) {
                self.compete(turns, place, team, None);
            } else {
                let asked = self.asked_by(team, &head);
                let watch = self.watch_competing(team, &head, (&asked, &turn.1));
                turns.heads.enter(team, Some(place.0), (turn, head), watch);
            }
        }
    }

    /// What has a Team looked at again that competes by that. A head that does not fit any more would go on standing for its Cohort, by
    /// what it asks for, against others who do fit. Who has others give way and competes by the least that any gang of its Team may be charged
    /// is not looked at: it would compete by no less.
    fn watch_competing(
        &self,
        team: TeamId,
        head: &Head,
        (asked, place): (&Asked, &Place),
    ) -> Watch {
        match &head.turn {
            What::Fits { fitting, .. }
                if fitting.fits_on.len() <= 1 && !self.may_be_charged_less(team, head, fitting) =>
            {
                self.watch_fitting(team, head, fitting)
            }
            What::Fits { .. } => Watch::always(),
            What::Preempts(_) => {
                let classes = self.teams.get(team).map_or(0, |entry| entry.classes.len());
                let may_others_wake = classes > 1 && self.may_preempt(team);
                let (least, earliest) = self.least_asked(team);
                if !may_others_wake && least == *asked && earliest >= *place {
                    Watch::default()
                } else {
                    Watch::always()
                }
            }
        }
    }

    /// Whether a Team, judged now, may have another head, or one that is charged less. Who has others give way may be
    /// given way to by nobody any more, now that another Team of its tree was charged: then a gang behind it is the head.
    fn may_ask_less(&self, team: TeamId, head: &Head, charged: TeamId, has_place: bool) -> bool {
        let What::Fits { fitting, .. } = &head.turn else {
            let root = |team| self.fair_root_of(team).map(|(root, _)| root);
            return root(team) == root(charged)
                && self.least_asked(team).0 != self.asked_by(team, head);
        };
        fitting.fits_on.len() > 1
            || !self.still_fits(team, head, has_place)
            || self.may_be_charged_less(team, head, fitting)
    }

    /// Whether a head might be charged less with other devices on its Flavor.
    fn may_be_charged_less(&self, team: TeamId, head: &Head, fitting: &Fitting) -> bool {
        let least = fitting.assignment.and_then(|at| {
            let asking = fitting.asking(self.waiting.get(head.gang)?.shape);
            let totals = self.totals(asking)?;
            let assignments = &self.teams.get(team)?.assignments;
            totals
                .least(assignments.get(at)?, assignments, &self.cluster)
                .ok()
        });
        least.is_some_and(|least| asked(least) != self.asked_by(team, head))
    }

    /// What a head would be charged.
    pub(super) fn asked_by(&self, team: TeamId, head: &Head) -> Asked {
        match &head.turn {
            What::Fits { fitting, .. } => {
                let exact = fitting.assignment.and_then(|at| {
                    let entry = self.teams.get(team)?;
                    let asking = fitting.asking(self.waiting.get(head.gang)?.shape);
                    let (node, all) = (entry.node, &entry.assignments);
                    let candidate = self.candidate_asking(asking, head.gang, node, all, at)?;
                    let (_, exact) = self.charged(&candidate, &fitting.plan).ok()?;
                    Some(asked(exact))
                });
                exact.unwrap_or_default()
            }
            What::Preempts(preempting) => {
                let mut asked = Asked::new();
                for delta in preempting.charges() {
                    if let Some(pair) = self.tree.known_pair(&delta.of) {
                        *asked.entry(pair).or_default() += delta.amount;
                    }
                }
                asked
            }
        }
    }

    /// The least that a gang of a Team may be charged that is awake, and the place of the first of them. Where the order is strict
    /// those behind it count, too: if it turns out that it can never run, the next one wakes up, which may ask for less.
    fn least_asked(&self, team: TeamId) -> (Asked, Place) {
        let Some(entry) = self.teams.get(team) else {
            return (Asked::new(), Place::first_of_all());
        };
        let open = entry
            .queues
            .iter()
            .filter(|wait| self.waits.is_open(**wait));
        let queues = open.filter_map(|wait| self.waits.queue(*wait));
        let mut classes: BTreeSet<ClassId> = BTreeSet::new();
        let mut first: Option<&Place> = None;
        for queue in queues {
            first = [first, queue.earliest_of(team)].into_iter().flatten().min();
            let of_team = queue.of_team(team).take(MOST_CLASSES + 1);
            classes.extend(of_team.map(|(_, class)| *class));
        }
        let Some(place) = first.cloned() else {
            return (Asked::new(), Place::first_of_all());
        };
        if entry.is_strict() {
            classes.extend(entry.classes.values().take(MOST_CLASSES + 1));
        }
        if classes.len() > MOST_CLASSES {
            return (Asked::new(), place);
        }
        let mut least: Option<Asked> = None;
        for class in classes {
            let shape = self.classes.get(class).map(|class| class.shape);
            let Some(shape) = shape.and_then(|shape| self.shapes.get(shape)) else {
                continue;
            };
            let all = &entry.assignments;
            for assignment in all.iter() {
                // One that cannot be charged is not taken.
                if let Ok(request) = shape.totals.least(assignment, all, &self.cluster) {
                    let request = asked(request);
                    least = Some(
                        least.map_or_else(|| request.clone(), |known| lesser(known, &request)),
                    );
                }
            }
            if all.is_empty() {
                least = Some(Asked::new());
            }
        }
        (least.unwrap_or_default(), place)
    }
}

fn asked(request: QuotaRequest) -> Asked {
    let request = request.into_iter();
    request
        .map(|(pair, amount)| (pair, i128::from(amount.0)))
        .collect()
}

/// Of each amount the lesser one.
fn lesser(mut one: Asked, other: &Asked) -> Asked {
    one.retain(|pair: &PairId, amount| match other.get(pair) {
        Some(less) => {
            *amount = (*amount).min(*less);
            true
        }
        None => false,
    });
    one
}
