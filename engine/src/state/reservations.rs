//! What is kept for gangs that others give way to.
//!
//! From the moment that a preemption is decided until it is over, nobody else takes what is freed by it: the preemptor is
//! charged beside its victims, which are charged until they are proved released (S1), and nothing new is planned on the nodes
//! on which it would have its place. That is more than it needs while both are charged; a preemption is short.
//!
//! Those to whom others give way do not hold up each other. Who preempts counts the victims of those before it as gone, and
//! what is kept for those as taken: so all of them have room once all victims are gone. When its own victims are gone, it is judged
//! by what is really charged (S1), before anybody else; should that not suffice yet since victims of others hold it, it goes on
//! waiting for them.
//!
//! A reservation is over when its gang is admitted, gone or another one, or after [`MOST_SECONDS`]: then the gang waits as
//! before, and may preempt others. A victim that did not go in that time is counted on no more.

use std::collections::{BTreeMap, BTreeSet};

use super::{State, ids::GangId, work::Work};
use crate::{
    decision::{Blocker, Budget, CommitRoom, Decisions, Why},
    names::{GangUid, NodeName, Timestamp},
    quota::charges::{Delta, largest, undoing},
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
}

impl Reservations {
    fn enter(&mut self, gang: &GangUid, reservation: Reservation) {
        for victim in &reservation.victims {
            let preemptors = self.by_victim.entry(victim.clone()).or_default();
            preemptors.insert(gang.clone());
        }
        if reservation.victims.is_empty() {
            self.released.insert(gang.clone());
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

    /// Whether a gang gives way to others.
    pub(super) fn gives_way(&self, victim: &GangUid) -> bool {
        self.by_victim.contains_key(victim)
    }

    /// Everything that is charged ahead.
    pub(super) fn charges(&self) -> impl Iterator<Item = &Delta> {
        self.by_gang.values().flat_map(|kept| &kept.charges)
    }

    /// Gangs that give way and hold something still.
    pub(super) fn victims(&self) -> impl Iterator<Item = &GangUid> {
        self.by_victim.keys()
    }

    /// The first to end by time.
    pub(super) fn ends_next(&self) -> Option<Timestamp> {
        self.by_end.first().map(|(at, _)| *at)
    }

    /// Those whose time is over.
    fn ended(&self, now: Timestamp) -> Vec<GangUid> {
        let by_end = self.by_end.iter().take_while(|(at, _)| *at <= now);
        by_end.map(|(_, gang)| gang.clone()).collect()
    }
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

    /// Keeps nothing for a gang any longer.
    pub(super) fn give_up_reservation(&mut self, id: GangId) -> Option<Reservation> {
        let waiting = self.waiting.get_mut(id)?;
        let reservation = self.reservations.leave(&waiting.gang.uid)?;
        waiting.is_reserved_for = false;
        let holds = waiting.pods_that_hold > 0;
        self.change_tree(&undoing(&reservation.charges));
        for node in &reservation.nodes {
            self.cluster.reserve(node, false);
        }
        if !holds {
            self.line_up(id);
        }
        Some(reservation)
    }

    /// Does something as if nothing of this were charged. Nobody is woken by it.
    fn without_charges<T>(&mut self, charges: &[Delta], work: impl FnOnce(&mut Self) -> T) -> T {
        self.tree.apply(&undoing(charges), |_, _, _| {});
        let done = work(self);
        self.tree.apply(charges, |_, _, _| {});
        done
    }

    /// Judges those whose victims are released, before anybody else, and lets those wait as before whose time is over.
    pub(super) fn settle_reservations(
        &mut self,
        budget: &Budget,
        left: &mut CommitRoom,
        decisions: &mut Decisions,
        work: &mut Work,
    ) {
        for uid in self.reservations.ended(work.now) {
            if let Some(id) = self.waiting.id(&uid) {
                self.give_up_reservation(id);
                self.wake_class_of(id);
            }
        }
        let released = self.reservations.released.iter();
        let mut released: Vec<GangId> = released.filter_map(|uid| self.waiting.id(uid)).collect();
        released.sort_by_key(|id| self.waiting.get(*id).map(|waiting| waiting.place.clone()));
        for id in released {
            // It is to be admitted as soon as nothing is kept for it any more; how many nodes it needs then is not known.
            let Some(needs) = self.needs(id) else {
                continue;
            };
            let most = CommitRoom {
                nodes: needs.pods,
                ..needs
            };
            if !left.holds(&most) && *left != budget.empty {
                decisions.exhausted = true;
                return;
            }
            let kept = self.give_up_reservation(id);
            self.wake_class_of(id);
            let class = self.waiting.get(id).and_then(|it| it.class);
            let Some((class, kept)) = class.zip(kept) else {
                continue;
            };
            let ahead: Vec<Delta> = self.reservations.charges().cloned().collect();
            let judged = self.without_charges(&ahead, |state| state.judge(class, id, work));
            let Ok(fitting) = judged else {
                if self.reservations.victims().next().is_some() {
                    self.reserve(id, kept);
                }
                continue;
            };
            let needs = CommitRoom {
                nodes: fitting.plan.slots().len(),
                ..needs
            };
            if left.holds(&needs) {
                *left = left.less(&needs);
                decisions.admissions.extend(self.admit(id, &fitting));
            }
        }
    }

    fn wake_class_of(&mut self, id: GangId) {
        if let Some(class) = self.waiting.get(id).and_then(|it| it.class) {
            self.wake(class);
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
