//! What is kept for gangs that others give way to.
//!
//! From the moment that a preemption is decided until it is over, nobody else takes what is freed by it: the preemptor is
//! charged beside its victims, which are charged until they are proved released (S1), and nothing new is planned on the nodes
//! on which it would have its place. That is more than it needs while both are charged; a preemption is short. Those to whom
//! others give way are not held up by each other: whoever preempts counts with what is kept for those before it, so what is kept
//! for those after it is left out when its turn comes.
//!
//! It is over when all victims are released, when the preemptor is gone or another one, or after
//! [`MOST_SECONDS`]: then the gang is judged before anybody else. Should it not fit after all it waits as before, and may
//! preempt others: a victim that did not go in that time is counted on no more.

use std::collections::{BTreeMap, BTreeSet};

use super::{State, ids::GangId, work::Work};
use crate::{
    decision::{Blocker, Budget, CommitRoom, Decisions, Why},
    names::{GangUid, NodeName, Timestamp},
    quota::charges::{Delta, largest},
};

/// For how many seconds something is kept for a gang at most, and a victim is counted on.
pub(super) const MOST_SECONDS: i64 = 600;

/// What is kept for one gang.
#[derive(Clone, Debug)]
pub(super) struct Reservation {
    /// Those of its victims that hold something still.
    pub(super) victims: BTreeSet<GangUid>,
    /// What it is charged ahead.
    pub(super) charges: Vec<Delta>,
    /// Where nothing new is planned.
    pub(super) nodes: BTreeSet<NodeName>,
    /// Since when.
    pub(super) since: Timestamp,
    /// How many were made before.
    pub(super) number: u64,
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Reservations {
    by_gang: BTreeMap<GangUid, Reservation>,
    /// For whom a gang gives way.
    by_victim: BTreeMap<GangUid, BTreeSet<GangUid>>,
    /// Gangs whose victims are all released.
    released: BTreeSet<GangUid>,
    by_end: BTreeSet<(Timestamp, GangUid)>,
    made: u64,
}

impl Reservations {
    fn enter(&mut self, gang: &GangUid, mut reservation: Reservation) {
        reservation.number = self.made;
        self.made += 1;
        for victim in &reservation.victims {
            let preemptors = self.by_victim.entry(victim.clone()).or_default();
            preemptors.insert(gang.clone());
        }
        self.by_end.insert((end(&reservation), gang.clone()));
        self.by_gang.insert(gang.clone(), reservation);
    }

    fn leave(&mut self, gang: &GangUid) -> Option<Reservation> {
        let reservation = self.by_gang.remove(gang)?;
        for victim in &reservation.victims {
            if let Some(preemptors) = self.by_victim.get_mut(victim) {
                preemptors.remove(gang);
                if preemptors.is_empty() {
                    self.by_victim.remove(victim);
                }
            }
        }
        self.released.remove(gang);
        self.by_end.remove(&(end(&reservation), gang.clone()));
        Some(reservation)
    }

    /// A gang holds nothing any more.
    pub(super) fn note_released(&mut self, victim: &GangUid) {
        for gang in self.by_victim.remove(victim).unwrap_or_default() {
            if let Some(reservation) = self.by_gang.get_mut(&gang) {
                reservation.victims.remove(victim);
                if reservation.victims.is_empty() {
                    self.released.insert(gang);
                }
            }
        }
    }

    /// Since when a gang gives way to others.
    pub(super) fn gives_way_since(&self, victim: &GangUid) -> Option<Timestamp> {
        let preemptors = self.by_victim.get(victim)?.iter();
        let since = preemptors.filter_map(|gang| Some(self.by_gang.get(gang)?.since));
        since.min()
    }

    /// Everything that is charged ahead.
    pub(super) fn charges(&self) -> impl Iterator<Item = &Delta> {
        self.by_gang.values().flat_map(|kept| &kept.charges)
    }

    /// What is charged ahead for those that came after one.
    fn charges_after(&self, number: u64) -> Vec<Delta> {
        let later = self.by_gang.values().filter(|kept| kept.number > number);
        later
            .flat_map(|kept| kept.charges.iter().cloned())
            .collect()
    }

    /// The first to end by time.
    pub(super) fn ends_next(&self) -> Option<Timestamp> {
        self.by_end.first().map(|(at, _)| *at)
    }

    /// Those that are over, each with whether all its victims are released.
    fn over(&self, now: Timestamp) -> Vec<GangUid> {
        let by_end = self.by_end.iter().take_while(|(at, _)| *at <= now);
        let ended = by_end.map(|(_, gang)| gang);
        let over: BTreeSet<&GangUid> = ended.chain(&self.released).collect();
        over.into_iter().cloned().collect()
    }
}

fn negative(charges: &[Delta]) -> Vec<Delta> {
    let charges = charges.iter().cloned();
    charges
        .map(|delta| Delta {
            amount: delta.amount.saturating_neg(),
            ..delta
        })
        .collect()
}

fn end(reservation: &Reservation) -> Timestamp {
    Timestamp(reservation.since.0.saturating_add(MOST_SECONDS))
}

impl State {
    /// Keeps something for a gang, which is not judged until that is over.
    pub(super) fn reserve(&mut self, id: GangId, reservation: Reservation) {
        let Some(waiting) = self.waiting.get_mut(id) else {
            return;
        };
        waiting.is_reserved_for = true;
        let uid = waiting.gang.uid.clone();
        self.drop_out(id);
        self.changed_gangs.insert(id);
        self.change_tree(&reservation.charges);
        for node in &reservation.nodes {
            self.cluster.reserve(node, true);
        }
        self.reservations.enter(&uid, reservation);
    }

    /// Keeps nothing for a gang any longer; the number of what was kept.
    pub(super) fn give_up_reservation(&mut self, id: GangId) -> Option<u64> {
        let waiting = self.waiting.get_mut(id)?;
        let reservation = self.reservations.leave(&waiting.gang.uid)?;
        waiting.is_reserved_for = false;
        let holds = waiting.pods_that_hold > 0;
        let charges: Vec<Delta> = negative(&reservation.charges);
        self.change_tree(&charges);
        for node in &reservation.nodes {
            self.cluster.reserve(node, false);
        }
        if !holds {
            self.line_up(id);
        }
        Some(reservation.number)
    }

    /// Does something as if nothing of this were charged.
    fn without_charges<T>(&mut self, charges: &[Delta], work: impl FnOnce(&mut Self) -> T) -> T {
        self.charge_silently(&negative(charges));
        let done = work(self);
        self.charge_silently(charges);
        done
    }

    /// Nobody is woken by what is charged again at once.
    fn charge_silently(&mut self, charges: &[Delta]) {
        for delta in charges {
            if let Some(node) = self.tree.node_of(&delta.team) {
                let pair = self.tree.pair(&delta.of);
                self.tree
                    .change(node, pair, i128::from(delta.amount), |_, _| {});
            }
        }
    }

    /// Judges those whose reservations are over, before anybody else: what was kept for them is theirs first.
    pub(super) fn settle_reservations(
        &mut self,
        budget: &Budget,
        left: &mut CommitRoom,
        decisions: &mut Decisions,
        work: &mut Work,
    ) {
        let over = self.reservations.over(work.now).into_iter();
        let mut over: Vec<GangId> = over.filter_map(|uid| self.waiting.id(&uid)).collect();
        over.sort_by_key(|id| self.waiting.get(*id).map(|waiting| waiting.place.clone()));
        for id in over {
            // It is to be admitted as soon as nothing is kept for it any more; how many nodes it needs then is not known.
            let pods = self.waiting.get(id).map_or(0, |it| it.demand.pods);
            let claims = self
                .waiting
                .get(id)
                .and_then(|it| self.shapes.get(it.shape));
            let most = CommitRoom {
                gangs: 1,
                pods,
                claims: claims.map_or(0, |shape| shape.totals.claims),
                nodes: pods,
            };
            if !left.holds(&most) && *left != budget.empty {
                decisions.exhausted = true;
                return;
            }
            let number = self.give_up_reservation(id);
            let Some(class) = self.waiting.get(id).and_then(|it| it.class) else {
                continue;
            };
            self.wake(class);
            let later = number.map_or_else(Vec::new, |it| self.reservations.charges_after(it));
            let judged = self.without_charges(&later, |state| state.judge(class, id, work));
            let Ok(fitting) = judged else {
                continue;
            };
            let slots: BTreeSet<usize> = fitting.plan.units.iter().map(|unit| unit.slot).collect();
            let needs = CommitRoom {
                nodes: slots.len(),
                ..most
            };
            if left.holds(&needs) {
                *left = left.less(&needs);
                decisions.admissions.extend(self.admit(id, &fitting));
            }
        }
    }

    /// That others give way to a gang, if they do.
    pub(super) fn why_reserved(&self, gang: &GangUid) -> Option<Why> {
        let reservation = self.reservations.by_gang.get(gang)?;
        let names = reservation.victims.iter().filter_map(|victim| {
            let mut pods = self.running.pods_of(victim);
            let hold = self.holds.get(pods.next()?)?;
            Some((1, hold.gang_name.as_str()))
        });
        let victims: Blocker = largest(names);
        Some(Why::Preemption { victims })
    }
}
