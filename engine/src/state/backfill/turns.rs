//! Whose turn it is: those who lack a place for long enough, by Flavor. Of a Team that had its turn longest ago the class that had
//! its own longest ago, and among equals the first in order. So whoever comes in any number takes one turn in each round, and to find the next
//! one costs the same however many there are.

use std::collections::{BTreeMap, BTreeSet};

use super::Backfill;
use crate::{
    names::{FlavorName, Timestamp},
    queue::{Place, Standing},
    state::ids::{ClassId, TeamId},
};

/// What is known of a class by how often a place was looked for.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::state) struct Looked {
    /// When it was its turn last: a number that grows.
    pub(super) turn: u64,
    /// How often in vain since a place was found.
    pub(super) in_vain: u32,
    /// Not before then again.
    pub(super) again_at: Option<Timestamp>,
}

/// A class that lacks a place only.
#[derive(Clone, Debug)]
pub(super) struct Lacking {
    pub(super) team: TeamId,
    /// Of its first gang.
    pub(super) standing: Standing,
    pub(super) turn: u64,
    pub(super) flavors: BTreeSet<FlavorName>,
    /// When it is to be thought of, if it is not yet.
    due: Option<Timestamp>,
}

impl Lacking {
    pub(super) fn new(
        team: TeamId,
        standing: Standing,
        turn: u64,
        flavors: BTreeSet<FlavorName>,
    ) -> Self {
        Self {
            team,
            standing,
            turn,
            flavors,
            due: None,
        }
    }

    fn key(&self, class: ClassId) -> Key {
        (self.turn, self.standing.clone(), class)
    }
}

/// Where a class stands among those of its Team.
type Key = (u64, Standing, ClassId);

/// Those for whom a place of one Flavor may be kept.
#[derive(Clone, Debug, Default)]
pub(super) struct Heads {
    teams: BTreeMap<TeamId, OfTeam>,
    /// Each Team once, by its turn and the place of the first of it.
    order: BTreeSet<(u64, Place, TeamId)>,
}

/// Those of one Team.
#[derive(Clone, Debug, Default)]
struct OfTeam {
    turn: u64,
    classes: BTreeSet<Key>,
}

impl Heads {
    /// Whose turn it is.
    pub(super) fn first(&self) -> Option<ClassId> {
        let (_, _, team) = self.order.first()?;
        let (_, _, class) = self.teams.get(team)?.classes.first()?;
        Some(*class)
    }

    fn change(&mut self, team: TeamId, change: impl FnOnce(&mut OfTeam)) {
        let listed = |of_team: &OfTeam| {
            let (_, standing, _) = of_team.classes.first()?;
            Some((of_team.turn, standing.place().clone(), team))
        };
        let of_team = self.teams.entry(team).or_default();
        if let Some(before) = listed(of_team) {
            self.order.remove(&before);
        }
        change(of_team);
        if let Some(after) = listed(of_team) {
            self.order.insert(after);
        } else {
            self.teams.remove(&team);
        }
    }
}

impl Backfill {
    /// A class lacks a place only, and is to be thought of then.
    pub(super) fn note_lacking(&mut self, class: ClassId, lacking: Lacking, at: Timestamp) {
        self.forget(class);
        self.lacking.insert(class, lacking);
        self.put_off(class, at);
    }

    /// A class does not lack a place any more, or is about to be judged.
    pub(in crate::state) fn forget(&mut self, class: ClassId) {
        let flavors = self.lacking.get(&class).map(|it| it.flavors.clone());
        for flavor in flavors.into_iter().flatten() {
            self.leave(&flavor, class);
        }
        if let Some(lacking) = self.lacking.remove(&class)
            && let Some(at) = lacking.due
        {
            self.due
                .remove(&(at, lacking.standing.place().clone(), class));
        }
    }

    /// There is no such Team any more.
    pub(in crate::state) fn forget_team(&mut self, team: TeamId) {
        self.turns.retain(|(_, of), _| *of != team);
    }

    /// A class that lacks a place is to be thought of then.
    pub(super) fn put_off(&mut self, class: ClassId, at: Timestamp) {
        let Some(lacking) = self.lacking.get_mut(&class) else {
            return;
        };
        let place = lacking.standing.place();
        if let Some(known) = lacking.due.replace(at) {
            self.due.remove(&(known, place.clone(), class));
        }
        self.due.insert((at, place.clone(), class));
    }

    /// Has so many of those thought of for whom it is time.
    pub(super) fn line_up_due(&mut self, most: usize) {
        for _ in 0..most {
            let Some((at, _, class)) = self.due.first().cloned() else {
                return;
            };
            if at > self.now {
                return;
            }
            self.due.pop_first();
            let Some(lacking) = self.lacking.get_mut(&class) else {
                continue;
            };
            lacking.due = None;
            for flavor in lacking.flavors.clone() {
                self.enter(flavor, class);
            }
        }
    }

    /// Whether it is time for somebody who is not thought of yet.
    pub(super) fn is_anybody_due(&self) -> bool {
        self.due.first().is_some_and(|(at, ..)| *at <= self.now)
    }

    /// A class is one of those for whom a place of a Flavor may be kept.
    fn enter(&mut self, flavor: FlavorName, class: ClassId) {
        let Some(lacking) = self.lacking.get(&class) else {
            return;
        };
        let (team, key) = (lacking.team, lacking.key(class));
        let turn = self.turns.get(&(flavor.clone(), team)).copied();
        let heads = self.heads.entry(flavor).or_default();
        heads.change(team, |of_team| {
            of_team.turn = turn.unwrap_or(0);
            of_team.classes.insert(key);
        });
    }

    /// A class is not one of those any more for whom a place of a Flavor may be kept; whether it was.
    pub(super) fn leave(&mut self, flavor: &FlavorName, class: ClassId) -> bool {
        let (Some(heads), Some(lacking)) = (self.heads.get_mut(flavor), self.lacking.get(&class))
        else {
            return false;
        };
        let (key, mut was_there) = (lacking.key(class), false);
        heads.change(lacking.team, |of_team| {
            was_there = of_team.classes.remove(&key);
        });
        if heads.order.is_empty() {
            self.heads.remove(flavor);
        }
        was_there
    }

    /// It is the turn of a class, and of its Team; the number of the turn.
    pub(super) fn give_turn(&mut self, flavor: &FlavorName, class: ClassId) -> u64 {
        self.turns_given += 1;
        let turn = self.turns_given;
        if let Some(team) = self.lacking.get(&class).map(|lacking| lacking.team) {
            self.turns.insert((flavor.clone(), team), turn);
            if let Some(heads) = self.heads.get_mut(flavor) {
                heads.change(team, |of_team| of_team.turn = turn);
            }
        }
        self.stand_elsewhere(class, |lacking| lacking.turn = turn);
        turn
    }

    /// The first gang of a class is another one, or stands elsewhere.
    pub(in crate::state) fn move_class(&mut self, class: ClassId, standing: &Standing) {
        self.stand_elsewhere(class, |lacking| lacking.standing = standing.clone());
    }

    fn stand_elsewhere(&mut self, class: ClassId, change: impl FnOnce(&mut Lacking)) {
        let Some(before) = self.lacking.get(&class).cloned() else {
            return;
        };
        let mut on = before.flavors.clone();
        on.retain(|flavor| self.leave(flavor, class));
        let Some(lacking) = self.lacking.get_mut(&class) else {
            return;
        };
        change(lacking);
        if let Some(at) = before.due {
            let (before, after) = (before.standing.place(), lacking.standing.place());
            self.due.remove(&(at, before.clone(), class));
            self.due.insert((at, after.clone(), class));
        }
        for flavor in on {
            self.enter(flavor, class);
        }
    }
}
