//! Who lacks a place for long, and for whom one is kept.

use std::collections::BTreeSet;

use super::{
    FEWEST_DEVICES, HEAD_WAITS_SECONDS, Heads, Lacking, MOST_DOUBLED, MOST_DUE, MOST_LOOKED_FOR,
    MOST_PASSED, after,
};
use crate::{
    names::{FlavorName, Timestamp},
    state::{
        State,
        ids::{ClassId, GangId},
        team::Refusing,
    },
};

impl State {
    /// A class was refused: whether it lacks a place only, and since when, decides whether one is kept for it one day.
    pub(in crate::state) fn note_lacks_place(&mut self, id: ClassId, refusals: &[Refusing]) {
        let Some(class) = self.classes.get(id) else {
            return;
        };
        let gang = class.line.first();
        let waiting = gang.and_then(|gang| self.waiting.get(gang));
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
        let team = class.team;
        let Some(class) = self.classes.get_mut(id) else {
            return;
        };
        class.lacks_place_since.get_or_insert(now);
        let Some(standing) = class.line.standing() else {
            return;
        };
        let looked = class.looked;
        let lacking = Lacking::new(team, standing, looked.turn, flavors);
        let long_at = self.waits_long_at(id);
        let at = looked.again_at.map_or(long_at, |at| at.max(long_at));
        self.backfill.note_lacking(id, lacking, at);
        // Whoever led before kept a place for it, perhaps: those who are judged after it do not get that first.
        if !self.backfill.has_settled && self.backfill.looked_for < MOST_LOOKED_FOR {
            let has_looked = self.look_for_places();
            self.backfill.looked_for += usize::from(has_looked);
        }
    }

    /// When the first gang of a class has lacked a place for long.
    fn waits_long_at(&self, id: ClassId) -> Timestamp {
        let class = self.classes.get(id);
        let gang = class.and_then(|class| class.line.first());
        let waiting = gang.and_then(|gang| self.waiting.get(gang));
        let Some((class, waiting)) = class.zip(waiting) else {
            return self.backfill.now;
        };
        // Whoever came later was not refused before it came.
        let refused = class.lacks_place_since.unwrap_or(self.backfill.now);
        let seen = refused.max(waiting.gang.queued_at);
        let earlier = [waiting.gang.lacks_place_since, waiting.lacked_place_since];
        let since = earlier.into_iter().flatten().fold(seen, Timestamp::min);
        after(since, HEAD_WAITS_SECONDS)
    }

    /// Nobody fits any more who is awake: keeps places for those who lack one for long enough. It looks for one place in each call.
    pub(in crate::state) fn keep_places(&mut self) {
        self.backfill.has_settled = true;
        self.look_for_places();
    }

    /// Looks for the place of one gang, on one Flavor after the other; whether it came to that.
    fn look_for_places(&mut self) -> bool {
        self.backfill.line_up_due(MOST_DUE);
        let last = self.backfill.looked_on.as_ref();
        let flavors = self.backfill.heads.keys().cloned();
        let (before, behind): (Vec<FlavorName>, Vec<FlavorName>) =
            flavors.partition(|flavor| last.is_some_and(|last| flavor <= last));
        let (mut left, mut has_looked) = (MOST_PASSED, false);
        for flavor in behind.into_iter().chain(before) {
            if left == 0 || has_looked {
                break;
            }
            if self.backfill.is_taken(&flavor) {
                continue;
            }
            has_looked = self.keep_place_on(&flavor, &mut left);
            self.backfill.looked_on = Some(flavor);
        }
        let mut flavors = self.backfill.heads.keys();
        self.backfill.is_more_to_look_for =
            self.backfill.is_anybody_due() || flavors.any(|flavor| !self.backfill.is_taken(flavor));
        has_looked
    }

    /// Keeps a place of a Flavor for whose turn it is; whether it looked for one. Those who have no quota by now are passed over.
    fn keep_place_on(&mut self, flavor: &FlavorName, left: &mut usize) -> bool {
        let now = self.backfill.now;
        while *left > 0
            && let Some(class) = self.backfill.heads.get(flavor).and_then(Heads::first)
        {
            *left -= 1;
            self.cluster.note_visits(1);
            self.backfill.leave(flavor, class);
            let later = after(now, HEAD_WAITS_SECONDS);
            let long_at = self.waits_long_at(class);
            let Some(id) = self
                .first_in(class)
                .filter(|id| !self.is_place_kept_for(*id))
            else {
                self.backfill.put_off(class, later);
                continue;
            };
            if long_at > now {
                self.backfill.put_off(class, long_at);
                continue;
            }
            let turn = self.backfill.give_turn(flavor, class);
            let level = self.borrow_level_on(id, flavor);
            let found = level.and_then(|_| self.soonest(id, flavor));
            let Some(class_entry) = self.classes.get_mut(class) else {
                continue;
            };
            let looked = &mut class_entry.looked;
            looked.turn = turn;
            let Some(level) = level else {
                self.backfill.put_off(class, later);
                continue;
            };
            if let Some(found) = found {
                (looked.in_vain, looked.again_at) = (0, None);
                self.keep_place(id, flavor, found, level);
            } else {
                let seconds = HEAD_WAITS_SECONDS << looked.in_vain.min(MOST_DOUBLED);
                let again_at = after(now, seconds);
                looked.in_vain = looked.in_vain.saturating_add(1);
                looked.again_at = Some(again_at);
                self.backfill.put_off(class, again_at);
            }
            return true;
        }
        false
    }

    fn first_in(&self, class: ClassId) -> Option<GangId> {
        self.classes.get(class)?.line.first()
    }

    fn is_place_kept_for(&self, id: GangId) -> bool {
        let gang = self.waiting.get(id).map(|waiting| &waiting.gang.uid);
        let mut told = self.backfill.told();
        told.any(|told| Some(&told.gang) == gang)
    }
}
