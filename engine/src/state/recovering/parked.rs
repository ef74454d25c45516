//! Gangs that recover and wait: they do not stand in line.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use super::comers::Kind;
use crate::{
    queue::Place,
    state::{State, ids::GangId},
};

/// All of them, in the order in which they are asked.
#[derive(Clone, Debug, Default)]
pub(super) struct Parked {
    in_order: BTreeMap<Place, GangId>,
    places: BTreeMap<GangId, (Place, Kind)>,
    /// How many are of a kind.
    by_kind: BTreeMap<Kind, usize>,
    /// Those of which nothing is known that was found out.
    unasked: BTreeSet<Place>,
}

impl Parked {
    fn enter(&mut self, id: GangId, place: Place, kind: Kind) {
        self.leave(id);
        self.unasked.insert(place.clone());
        self.in_order.insert(place.clone(), id);
        self.places.insert(id, (place, kind));
        *self.by_kind.entry(kind).or_default() += 1;
    }

    /// Its kind, if it was among them.
    fn leave(&mut self, id: GangId) -> Option<Kind> {
        let (place, kind) = self.places.remove(&id)?;
        self.in_order.remove(&place);
        self.unasked.remove(&place);
        if let Some(count) = self.by_kind.get_mut(&kind) {
            *count -= 1;
            if *count == 0 {
                self.by_kind.remove(&kind);
            }
        }
        Some(kind)
    }

    /// Whether any of a kind is among them.
    pub(super) fn is_any_of(&self, kind: Kind) -> bool {
        self.by_kind.contains_key(&kind)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.in_order.is_empty()
    }

    /// What was found out about one does not hold any more.
    pub(super) fn ask_again(&mut self, id: GangId) {
        if let Some((place, _)) = self.places.get(&id) {
            self.unasked.insert(place.clone());
        }
    }

    /// One was asked, or is not to be asked before it is told so.
    pub(super) fn note_asked(&mut self, place: &Place) {
        self.unasked.remove(place);
    }

    /// Whether anybody is to be asked for itself.
    pub(super) fn is_anybody_unasked(&self) -> bool {
        !self.unasked.is_empty()
    }

    /// The first behind a place.
    pub(super) fn next_after(&self, place: Option<&Place>) -> Option<(Place, GangId)> {
        let behind = (behind(place), Bound::Unbounded);
        let (place, id) = self.in_order.range(behind).next()?;
        Some((place.clone(), *id))
    }

    /// The first behind a place that is to be asked for itself.
    pub(super) fn next_unasked_after(&self, place: Option<&Place>) -> Option<(Place, GangId)> {
        let behind = (behind(place), Bound::Unbounded);
        let place = self.unasked.range(behind).next()?;
        Some((place.clone(), *self.in_order.get(place)?))
    }
}

fn behind(place: Option<&Place>) -> Bound<Place> {
    place.cloned().map_or(Bound::Unbounded, Bound::Excluded)
}

impl State {
    /// A gang that recovers waits again: it does not stand in line, as one does not to which others give way.
    pub(in crate::state) fn park(&mut self, id: GangId) {
        let Some(waiting) = self.waiting.get(id) else {
            return;
        };
        let uid = waiting.gang.uid.clone();
        if !self.keeps.has(&uid) || waiting.is_reserved_for || waiting.pods_that_hold > 0 {
            return;
        }
        let (team, place) = (waiting.team, waiting.place.clone());
        let kind = (team, waiting.gang.priority);
        self.end_head_reservation(&uid, true);
        let led = self.drop_out(id);
        self.ask_next(led);
        if let Some(waiting) = self.waiting.get_mut(id) {
            waiting.is_reserved_for = true;
        }
        if let Some(entry) = self.teams.get_mut(team) {
            entry.given_way.insert(place.clone(), id);
        }
        self.keeps.parked.enter(id, place, kind);
        self.keeps.judge_again(&uid, id);
        self.stand_aside(id, true);
        self.settle_aside();
        self.changed_gangs.insert(id);
    }

    /// It stands in line like any other.
    pub(in crate::state) fn unpark(&mut self, id: GangId) {
        let Some(kind) = self.keeps.parked.leave(id) else {
            return;
        };
        self.keeps.comers.note_left(kind);
        self.stand_aside(id, false);
        let Some(waiting) = self.waiting.get_mut(id) else {
            return;
        };
        waiting.is_reserved_for = false;
        let holds = waiting.pods_that_hold > 0;
        if let Some(entry) = self.teams.get_mut(waiting.team) {
            entry.given_way.remove(&waiting.place);
        }
        if !holds {
            self.line_up(id);
        }
    }
}
