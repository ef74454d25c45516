//! Who lacks a place for long, and whose turn it is to have one kept.

use std::collections::BTreeSet;

use super::{Backfill, FEWEST_DEVICES, HEAD_WAITS_SECONDS, MOST_LOOKED_FOR, after};
use crate::{
    names::{FlavorName, TeamName, Timestamp},
    queue::Place,
    state::{
        State,
        ids::{ClassId, TeamId},
        team::Refusing,
    },
};

impl Backfill {
    /// A class does not lack a place any more, or is about to be judged.
    pub(in crate::state) fn forget(&mut self, class: ClassId, team: TeamId, place: Option<&Place>) {
        let Some(flavors) = self.lacking.remove(&class) else {
            return;
        };
        if let Some(at) = self.due_of.remove(&class) {
            self.due.remove(&(at, class));
        }
        for flavor in flavors {
            self.leave(&flavor, team, class, place);
        }
    }

    /// A class is to be thought of again then.
    fn put_off(&mut self, class: ClassId, at: Timestamp) {
        if let Some(known) = self.due_of.insert(class, at) {
            self.due.remove(&(known, class));
        }
        self.due.insert((at, class));
    }

    /// There is no such Team any more.
    pub(in crate::state) fn forget_team(&mut self, name: &TeamName) {
        self.turns.retain(|(_, team), _| team != name);
    }

    fn leave(&mut self, flavor: &FlavorName, team: TeamId, class: ClassId, place: Option<&Place>) {
        let Some(teams) = self.heads.get_mut(flavor) else {
            return;
        };
        if let Some(classes) = teams.get_mut(&team) {
            if let Some(place) = place {
                classes.remove(&(place.clone(), class));
            } else {
                classes.retain(|(_, other)| *other != class);
            }
            if classes.is_empty() {
                teams.remove(&team);
            }
        }
        if teams.is_empty() {
            self.heads.remove(flavor);
        }
    }

    /// The first gang of a class is another one, or stands elsewhere.
    pub(in crate::state) fn move_class(
        &mut self,
        class: ClassId,
        team: TeamId,
        (before, after): (&Place, &Place),
    ) {
        let flavors = self.lacking.get(&class).into_iter().flatten();
        for flavor in flavors {
            let teams = self.heads.get_mut(flavor);
            if let Some(classes) = teams.and_then(|teams| teams.get_mut(&team))
                && classes.remove(&(before.clone(), class))
            {
                classes.insert((after.clone(), class));
            }
        }
    }
}

impl State {
    /// A class was refused: whether it lacks a place only, and since when, decides whether one is kept for it one day.
    pub(in crate::state) fn note_lacks_place(&mut self, id: ClassId, refusals: &[Refusing]) {
        let Some(class) = self.classes.get(id) else {
            return;
        };
        let gang = class.line.values().next();
        let waiting = gang.and_then(|gang| self.waiting.get(*gang));
        let Some((waiting, entry)) = waiting.zip(self.teams.get(class.team)) else {
            return;
        };
        if waiting.demand.open_devices() < FEWEST_DEVICES {
            return;
        }
        let flavors = entry.assignments.iter().zip(refusals);
        let flavors = flavors
            .filter(|(_, refusing)| matches!(refusing, Refusing::NoPlace { gave_up: false, .. }));
        let flavors: BTreeSet<FlavorName> = flavors
            .map(|(assignment, _)| assignment.flavor.clone())
            .collect();
        if flavors.is_empty() {
            return;
        }
        let now = self.backfill.now;
        if let Some(class) = self.classes.get_mut(id) {
            class.lacks_place_since.get_or_insert(now);
        }
        self.backfill.lacking.insert(id, flavors);
        self.backfill.put_off(id, self.waits_long_at(id));
        // Whoever led before kept a place for it, perhaps: those who are judged after it do not get that first.
        if !self.backfill.has_settled && self.backfill.looked_for < MOST_LOOKED_FOR {
            let kept = self.backfill.kept.len();
            self.look_for_places();
            let is_kept = self.backfill.kept.len() > kept;
            let has_looked = is_kept || self.backfill.is_more_to_look_for;
            self.backfill.looked_for += usize::from(has_looked);
        }
    }

    /// When the first gang of a class has lacked a place for long.
    fn waits_long_at(&self, id: ClassId) -> Timestamp {
        let class = self.classes.get(id);
        let gang = class.and_then(|class| class.line.values().next());
        let waiting = gang.and_then(|gang| self.waiting.get(*gang));
        let Some((class, waiting)) = class.zip(waiting) else {
            return self.backfill.now;
        };
        // Whoever came later was not refused before it came.
        let refused = class.lacks_place_since.unwrap_or(self.backfill.now);
        let seen = refused.max(waiting.gang.queued_at);
        let since = waiting
            .gang
            .lacks_place_since
            .map_or(seen, |told| told.min(seen));
        after(since, HEAD_WAITS_SECONDS)
    }

    /// Nobody fits any more who is awake: keeps places for those who lack one for long enough. It looks for one place in each call.
    pub(in crate::state) fn keep_places(&mut self) {
        self.backfill.has_settled = true;
        self.look_for_places();
    }

    fn look_for_places(&mut self) {
        let now = self.backfill.now;
        while let Some((at, class)) = self.backfill.due.first().copied()
            && at <= now
        {
            self.backfill.due.pop_first();
            self.backfill.due_of.remove(&class);
            let Some((team, place)) = self.classes.get(class).and_then(|class| {
                let place = class.line.keys().next()?;
                Some((class.team, place.clone()))
            }) else {
                continue;
            };
            for flavor in self
                .backfill
                .lacking
                .get(&class)
                .cloned()
                .unwrap_or_default()
            {
                let teams = self.backfill.heads.entry(flavor).or_default();
                let classes = teams.entry(team).or_default();
                classes.insert((place.clone(), class));
            }
        }
        self.backfill.is_more_to_look_for = false;
        let mut has_looked = false;
        let flavors: Vec<FlavorName> = self.backfill.heads.keys().cloned().collect();
        for flavor in flavors {
            let is_taken = self.backfill.kept.contains_key(&flavor)
                || self.backfill.rests.contains_key(&flavor);
            if is_taken {
                continue;
            }
            if has_looked {
                self.backfill.is_more_to_look_for = true;
                return;
            }
            has_looked = self.keep_place_on(&flavor);
        }
    }

    /// Keeps a place of a Flavor for whose turn it is; whether it looked for one.
    fn keep_place_on(&mut self, flavor: &FlavorName) -> bool {
        let now = self.backfill.now;
        while let Some((team, class)) = self.head_on(flavor) {
            let line = self.classes.get(class).map(|class| &class.line);
            let first = line.and_then(|line| line.iter().next());
            let Some((place, id)) = first.map(|(place, id)| (place.clone(), *id)) else {
                return false;
            };
            let long_at = self.waits_long_at(class);
            let level = self.borrow_level_on(id, flavor).filter(|_| long_at <= now);
            let found = level.and_then(|_| self.soonest(id, flavor));
            if let Some((level, found)) = level.zip(found) {
                self.keep_place(id, flavor, found, level);
                return true;
            }
            // It is looked for again later, and for others meanwhile.
            self.backfill.leave(flavor, team, class, Some(&place));
            let later = after(now, HEAD_WAITS_SECONDS);
            let again_at = if long_at > now { long_at } else { later };
            self.backfill.put_off(class, again_at);
            if level.is_some() {
                self.backfill.is_more_to_look_for = self.backfill.heads.contains_key(flavor);
                return true;
            }
        }
        false
    }

    /// Whose turn it is to have a place kept: the first of the Team that had none for longest.
    fn head_on(&self, flavor: &FlavorName) -> Option<(TeamId, ClassId)> {
        let teams = self.backfill.heads.get(flavor)?;
        self.cluster.note_visits(teams.len() as u64);
        let is_kept_for = |class: ClassId| {
            let gang = self
                .classes
                .get(class)
                .and_then(|class| class.line.values().next());
            let waiting = gang.and_then(|gang| self.waiting.get(*gang));
            waiting.is_some_and(|waiting| {
                let mut told = self.backfill.told();
                told.any(|told| told.gang == waiting.gang.uid)
            })
        };
        let heads = teams.iter().filter_map(|(team, classes)| {
            let mut classes = classes.iter();
            let (place, class) = classes.find(|(_, class)| !is_kept_for(*class))?;
            let key = (flavor.clone(), self.teams.get(*team)?.name.clone());
            let turn = self.backfill.turns.get(&key).copied().unwrap_or(0);
            Some(((turn, place), (*team, *class)))
        });
        Some(heads.min()?.1)
    }
}
