//! Classes of gangs that wait for the same thing, in the order in which they are served.

use std::collections::{BTreeMap, BTreeSet};

use super::ids::{ClassId, TeamId};
use crate::{
    fairness::WeightedUse,
    queue::{Place, Standing},
};

/// What decides about a Team's turn before the place of its first gang does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Precedence {
    /// Its share, compared with those of its tree: all of them are taken off the lists first, to compete ([`super::fair_turns`]).
    ByShare,
    /// How far up the quota tree it has to reach at least.
    Reaching(usize),
}

/// A Team's turn in a queue: by precedence, then by the place of its first gang.
pub(super) type Turn = (Precedence, Place);

/// A queue of classes, each where its first gang stands. Within a Team the order is by [`Standing`]; between
/// Teams by [`Turn`].
///
/// A Team is *listed* or not: one that is being served is taken off the list and put back afterwards.
#[derive(Clone, Debug, Default)]
pub(super) struct WaitQueue {
    teams: BTreeMap<TeamId, TeamLine>,
    list: BTreeSet<(Turn, TeamId)>,
}

#[derive(Clone, Debug, Default)]
struct TeamLine {
    classes: BTreeSet<(Standing, ClassId)>,
    /// Of these, by place, the ones whose namespace used something: who is not the first in line may have waited for longer.
    by_place: BTreeSet<(Place, ClassId)>,
    /// How it is listed.
    turn: Option<Turn>,
}

impl TeamLine {
    /// The place of whoever waits longest of the highest tier that waits here: no class is judged before its turn.
    fn earliest(&self) -> Option<&Place> {
        let first = self.classes.first().map(|(standing, _)| standing.place());
        let used = self.by_place.first().map(|(place, _)| place);
        [first, used].into_iter().flatten().min()
    }
}

impl WaitQueue {
    /// Whether nobody waits here.
    pub(super) fn is_empty(&self) -> bool {
        self.teams.is_empty()
    }

    /// Puts a class in line. The Team is listed by `precedence`, or not at all.
    pub(super) fn insert(
        &mut self,
        team: TeamId,
        standing: Standing,
        class: ClassId,
        precedence: Option<Precedence>,
    ) {
        self.unlist(team);
        let line = self.teams.entry(team).or_default();
        if standing.used() > WeightedUse::NOTHING {
            line.by_place.insert((standing.place().clone(), class));
        }
        line.classes.insert((standing, class));
        self.list_again(team, precedence);
    }

    /// Takes a class out of line; whether the Team has none left here.
    pub(super) fn remove(
        &mut self,
        team: TeamId,
        standing: &Standing,
        class: ClassId,
        precedence: Option<Precedence>,
    ) -> bool {
        self.unlist(team);
        let Some(line) = self.teams.get_mut(&team) else {
            return true;
        };
        line.classes.remove(&(standing.clone(), class));
        if standing.used() > WeightedUse::NOTHING {
            line.by_place.remove(&(standing.place().clone(), class));
        }
        if line.classes.is_empty() {
            self.teams.remove(&team);
            return true;
        }
        self.list_again(team, precedence);
        false
    }

    /// Lists a Team anew, or takes it off the list.
    pub(super) fn relist(&mut self, team: TeamId, precedence: Option<Precedence>) {
        self.unlist(team);
        self.list_again(team, precedence);
    }

    fn unlist(&mut self, team: TeamId) {
        if let Some(line) = self.teams.get_mut(&team)
            && let Some(turn) = line.turn.take()
        {
            self.list.remove(&(turn, team));
        }
    }

    fn list_again(&mut self, team: TeamId, precedence: Option<Precedence>) {
        let Some(precedence) = precedence else { return };
        if let Some(line) = self.teams.get_mut(&team)
            && let Some(place) = line.earliest()
        {
            let turn = (precedence, place.clone());
            line.turn = Some(turn.clone());
            self.list.insert((turn, team));
        }
    }

    /// Whose turn it is.
    pub(super) fn next(&self) -> Option<&(Turn, TeamId)> {
        self.list.first()
    }

    /// The first class of a Team.
    pub(super) fn first_of(&self, team: TeamId) -> Option<&(Standing, ClassId)> {
        self.of_team(team).next()
    }

    /// No class of a Team is judged before the turn of this place.
    pub(super) fn earliest_of(&self, team: TeamId) -> Option<&Place> {
        self.teams.get(&team)?.earliest()
    }

    /// The classes of a Team, in order.
    pub(super) fn of_team(&self, team: TeamId) -> impl Iterator<Item = &(Standing, ClassId)> {
        let line = self.teams.get(&team);
        line.into_iter().flat_map(|line| &line.classes)
    }

    /// The classes of all Teams, by Team.
    pub(super) fn classes(&self) -> impl Iterator<Item = (TeamId, &(Standing, ClassId))> {
        self.teams
            .iter()
            .flat_map(|(team, line)| line.classes.iter().map(move |entry| (*team, entry)))
    }

    /// The Teams on the list, in order.
    pub(super) fn listed(&self) -> impl Iterator<Item = &(Turn, TeamId)> {
        self.list.iter()
    }
}
