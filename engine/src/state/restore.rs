//! What was kept for gangs by whoever decided before, and is not over: it is kept again, for as long as if it began now. Whoever decides
//! counts the notices of victims anew, too, so they may go later than was thought.
//!
//! A new process knows what is held and who waits, and not who gives way to whom. It is told that before its first decision
//! ([`crate::model::Reserved`]), so that nobody takes meanwhile what was freed for another gang, and nobody goes for one that has
//! victims already. Nothing but the names of both sides and the time is told: charges and nodes are worked out anew, as they would be
//! were the victims chosen now. A gang that has no quota or no place then waits like any other.
//!
//! What is recorded for a gang that does not wait yet may be taken up much later. Victims are recorded as attempts, and this process
//! alone admits from its first decision on: whoever it admits anew is a victim by no record any more.

use std::collections::BTreeSet;

use super::{State, reservations::Reservation};
use crate::{
    model::Reserved,
    names::{GangUid, Timestamp},
};

impl State {
    /// Takes up what was recorded, the oldest first: later ones were decided when earlier ones were known. Each costs one search
    /// for a place.
    pub(super) fn restore_reservations(&mut self, now: Timestamp) {
        if self.recorded.is_empty() {
            return;
        }
        let recorded = std::mem::take(&mut self.recorded);
        let mut recorded: Vec<Reserved> = recorded.into_values().collect();
        recorded.sort_by(|one, other| {
            let by = |reserved: &Reserved| (reserved.since, reserved.gang.clone());
            by(one).cmp(&by(other))
        });
        for reserved in recorded {
            let is_over = now >= reserved.until;
            if is_over || self.waiting.id(&reserved.gang).is_some() {
                self.restore_reservation(reserved, now);
            } else {
                // Its pods may not be understood yet.
                self.recorded.insert(reserved.gang.clone(), reserved);
            }
        }
    }

    /// A gang begins an attempt. What was recorded chose an earlier one to give way, which is over; nobody chose this one.
    pub(super) fn note_begun(&mut self, gang: &GangUid) {
        for reserved in self.recorded.values_mut() {
            reserved.victims.remove(gang);
        }
    }

    fn restore_reservation(&mut self, mut reserved: Reserved, now: Timestamp) {
        let running = &self.running;
        reserved
            .victims
            .retain(|victim, _| !running.is_released(victim));
        // A clock that was ahead keeps nothing for longer.
        let since = reserved.since.min(now);
        let lasts_seconds = reserved.until.0.saturating_sub(reserved.since.0).max(0);
        if now.0.saturating_sub(since.0) >= lasts_seconds {
            // Who was never told to go did not fail to: it is asked like any other. Of one that recovers since, nobody says any more whether it was: it is counted on
            // once its pods have released what they hold.
            let victims = reserved.victims.into_keys();
            let keeps = &self.keeps;
            let told = victims.filter(|victim| {
                let known = running.get(victim);
                known.is_none_or(|known| known.ending_since.is_some()) || keeps.holds_still(victim)
            });
            self.reservations.note_overdue(told);
            return;
        }
        let Some(id) = self.waiting.id(&reserved.gang) else {
            return;
        };
        let is_open = |state: &Self| {
            let waiting = state.waiting.get(id);
            waiting.is_some_and(|it| it.pods_that_hold == 0 && !it.is_reserved_for)
        };
        if !is_open(self) {
            return;
        }
        // Whoever gives way from now on leaves its place for the search.
        let reservation = Reservation {
            is_told: true,
            victims: reserved.victims,
            ending: BTreeSet::new(),
            claims: BTreeSet::new(),
            flavor: reserved.flavor.clone(),
            charges: Vec::new(),
            nodes: BTreeSet::new(),
            since,
            until: Timestamp(now.0.saturating_add(lasts_seconds)),
            judged: None,
            lacks_place_alone: false,
        };
        self.reserve(id, reservation);
        let ahead = self.ahead(id, &reserved.flavor);
        let Some(mut reservation) = self.give_up_reservation(id) else {
            return;
        };
        let Some((charges, nodes)) = ahead else {
            return;
        };
        reservation.charges = charges;
        reservation.nodes = nodes;
        self.reserve(id, reservation);
        if !self.has_room_afterwards(id) {
            self.give_up_reservation(id);
        }
    }
}
