//! What is kept for gangs that others give way to.
//!
//! From the moment that a preemption is decided until it is over, nobody else takes what is freed by it: the preemptor is
//! charged for the time afterwards, its victims are charged until they are proved released (S1), and whoever else is to be
//! admitted must fit now and afterwards ([`super::moments`]). Nothing new is planned on the nodes on which it would have its
//! place. That is more than it needs; a preemption is short.
//!
//! Those to whom others give way do not hold up each other, but for those of one Team whose order is strict ([`super::lines`]).
//! Who preempts counts the victims of those before it as gone, and what is kept for those as taken: so all of them have room once
//! all victims are gone. When its own victims are gone, or it finds room elsewhere meanwhile, it is judged before anybody else
//! ([`super::settle`]), be it in the middle of a call, if what it finds comes free by a turn in that; should what it needs be held by victims of others
//! still, it goes on waiting for them. Gangs that end by themselves are waited for like victims, and told nothing.
//!
//! A reservation is over when its gang is admitted (by whomever), gone, another one or stopped, when a node where it would have its place is closed to it
//! ([`crate::TopologyRequest::closed`]), when limits changed so that it has no room afterwards either, or [`MOST_SECONDS_AFTER_NOTICE`] after the longest notice of its victims has ended: then the gang waits as
//! before, and may preempt others. A victim that did not go in that time is *overdue*, and counted on no more before it is told that it is not ending any more, was
//! admitted anew, or its pods have released theirs: what is kept then, if it recovers, is given up at once. Should an admission not be committed, what was kept for it is kept again.

use std::collections::{BTreeMap, BTreeSet};

use super::{State, clock::earlier, ids::GangId, rounds::Moment};
use crate::{
    decision::{Blocker, GivesWay, Kept, Why},
    model::{Hold, MOST_SECONDS_AFTER_NOTICE, Running},
    names::{ClaimUid, FlavorName, GangUid, NodeName, PodUid, Timestamp},
    quota::{
        PreemptionReason,
        charges::{Delta, largest, undoing},
    },
};

/// What is kept for one gang.
#[derive(Clone, Debug)]
pub(super) struct Reservation {
    /// Those of its victims that hold something still, and by what right they go.
    pub(super) victims: BTreeMap<GangUid, PreemptionReason>,
    /// Those that were ending by themselves, and hold something still: nobody tells them to.
    pub(super) ending: BTreeSet<GangUid>,
    /// The claims that those held which are waited for, or were: they may be allocated for a while after nobody holds them any more.
    /// [`State::reserve`] notes them.
    pub(super) claims: BTreeSet<ClaimUid>,
    /// Whether anybody was told to give way.
    pub(super) is_told: bool,
    /// The Flavor on which it is charged.
    pub(super) flavor: FlavorName,
    /// What it is charged ahead.
    pub(super) charges: Vec<Delta>,
    /// Where nothing new is planned.
    pub(super) nodes: BTreeSet<NodeName>,
    /// Since when.
    pub(super) since: Timestamp,
    /// Until when at the latest.
    pub(super) until: Timestamp,
    /// As of when it was judged last, without success.
    pub(super) judged: Option<Judged>,
    /// Whether all that lacked then was a place.
    pub(super) lacks_place_alone: bool,
}

/// As of when a gang was judged for which something is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Judged {
    pub(super) moment: Moment,
    /// See [`super::moments::Moments::freed`].
    pub(super) freed: u64,
}

impl Reservation {
    /// All that are waited for.
    pub(super) fn all_victims(&self) -> Vec<GangUid> {
        self.victims.keys().chain(&self.ending).cloned().collect()
    }

    /// As if it had never been judged.
    pub(super) fn never_judged(self) -> Self {
        Self {
            judged: None,
            ..self
        }
    }

    fn is_released(&self) -> bool {
        self.victims.is_empty() && self.ending.is_empty()
    }
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
    /// What was kept for gangs that were admitted, until it is known that the admission was committed.
    admitted: BTreeMap<GangUid, Reservation>,
    /// Victims that did not go in time, as long as they hold something.
    overdue: BTreeSet<GangUid>,
    /// Who gave way at any moment since that was told, and may give way to nobody now.
    spared: BTreeSet<GangUid>,
    /// For whom something is kept, or who gives way, otherwise than when that was asked last.
    changed: BTreeSet<GangUid>,
    /// Those for whom others began to give way since everybody had a turn last.
    by_turn: BTreeSet<GangUid>,
    /// Whether others stood before one of them since it was judged, and do so no longer.
    pub(super) is_any_to_judge_again: bool,
    /// Whether the last call searched enough before each was judged.
    pub(super) is_any_left: bool,
}

impl Reservations {
    /// Keeps something; who gives way from now on that did not before.
    fn enter(&mut self, gang: &GangUid, reservation: Reservation) -> Vec<GangUid> {
        let mut new = Vec::new();
        for victim in &reservation.all_victims() {
            let preemptors = self.by_victim.entry(victim.clone()).or_default();
            if preemptors.is_empty() {
                new.push(victim.clone());
            }
            // That it goes does not depend on them alone any more.
            for other in &*preemptors {
                if let Some(kept) = self.by_gang.get_mut(other) {
                    kept.judged = None;
                }
            }
            preemptors.insert(gang.clone());
            self.changed.insert(victim.clone());
        }
        self.changed.insert(gang.clone());
        if reservation.is_released() {
            self.released.insert(gang.clone());
        }
        self.by_end.insert((reservation.until, gang.clone()));
        self.by_gang.insert(gang.clone(), reservation);
        new
    }

    /// Keeps something no longer; who gives way to nobody any more.
    fn leave(&mut self, gang: &GangUid) -> Option<(Reservation, Vec<GangUid>)> {
        let reservation = self.by_gang.remove(gang)?;
        let mut spared = Vec::new();
        for victim in &reservation.all_victims() {
            if let Some(preemptors) = self.by_victim.get_mut(victim) {
                preemptors.remove(gang);
                self.changed.insert(victim.clone());
                if preemptors.is_empty() {
                    self.by_victim.remove(victim);
                    spared.push(victim.clone());
                }
            }
        }
        self.spared.extend(spared.iter().cloned());
        self.changed.insert(gang.clone());
        self.released.remove(gang);
        self.by_end.remove(&(reservation.until, gang.clone()));
        Some((reservation, spared))
    }

    /// A gang holds nothing any more.
    fn note_released(&mut self, victim: &GangUid) {
        self.overdue.remove(victim);
        let preemptors = self.by_victim.remove(victim);
        if preemptors.is_some() {
            self.changed.insert(victim.clone());
        }
        for gang in preemptors.unwrap_or_default() {
            if let Some(reservation) = self.by_gang.get_mut(&gang) {
                reservation.victims.remove(victim);
                reservation.ending.remove(victim);
                if reservation.is_released() {
                    self.released.insert(gang);
                }
            }
        }
    }

    /// Who gives way to nobody any more; told once.
    pub(super) fn take_spared(&mut self) -> Vec<GangUid> {
        let spared = std::mem::take(&mut self.spared).into_iter();
        spared.filter(|victim| !self.gives_way(victim)).collect()
    }

    /// An admission cannot be taken back any more.
    pub(super) fn note_committed(&mut self, gang: &GangUid) {
        if self.admitted.remove(gang).is_some() {
            self.changed.insert(gang.clone());
        }
    }

    /// Nobody asked what changed before a decision.
    pub(super) fn forget_changes(&mut self) {
        self.changed.clear();
    }

    /// Those for whom nothing is kept any more give way, and wait, in vain: they are counted on no longer.
    pub(super) fn note_overdue(&mut self, victims: impl IntoIterator<Item = GangUid>) {
        self.overdue.extend(victims);
    }

    /// The pods of a gang released theirs after all; whether it was counted on no longer.
    pub(super) fn note_gone(&mut self, victim: &GangUid) -> bool {
        self.overdue.remove(victim)
    }

    /// For how many gangs something is kept.
    pub(super) fn len(&self) -> usize {
        self.by_gang.len()
    }

    /// Whether nothing is kept for anybody.
    pub(super) fn is_empty(&self) -> bool {
        self.by_gang.is_empty()
    }

    /// Whether a gang gives way to others.
    pub(super) fn gives_way(&self, victim: &GangUid) -> bool {
        self.by_victim.contains_key(victim)
    }

    /// Whether a gang was to give way and did not.
    pub(super) fn is_overdue(&self, victim: &GangUid) -> bool {
        self.overdue.contains(victim)
    }

    /// For whom a gang is told to give way, the first by UID of those that still wait for it, and by what right.
    fn first_preemptor(&self, victim: &GangUid) -> Option<(&GangUid, PreemptionReason)> {
        let mut preemptors = self.by_victim.get(victim)?.iter();
        preemptors.find_map(|preemptor| {
            let kept = self.by_gang.get(preemptor)?;
            Some((preemptor, *kept.victims.get(victim)?))
        })
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

    /// What was found out about them does not hold any more.
    pub(super) fn judge_all_again(&mut self) {
        for reservation in self.by_gang.values_mut() {
            reservation.judged = None;
        }
    }

    /// What was found out about a gang does not hold any more: others stood before it, and do so no longer.
    pub(super) fn judge_again(&mut self, gang: &GangUid) {
        if let Some(reservation) = self.by_gang.get_mut(gang) {
            reservation.judged = None;
            self.is_any_to_judge_again = true;
        }
    }

    /// What is kept for a gang.
    pub(super) fn of(&self, gang: &GangUid) -> Option<&Reservation> {
        self.by_gang.get(gang)
    }

    /// Whether a gang for which something is kept would have its place on any of these nodes.
    pub(super) fn is_on_any(&self, gang: &GangUid, nodes: &BTreeSet<NodeName>) -> bool {
        let kept = self.by_gang.get(gang);
        kept.is_some_and(|kept| !kept.nodes.is_disjoint(nodes))
    }

    /// Those that were not judged as of a moment, each with whether its victims are all released.
    pub(super) fn unsettled(&self, moment: Moment) -> impl Iterator<Item = (&GangUid, bool)> {
        let unsettled = self.by_gang.iter();
        let unsettled = unsettled
            .filter(move |(_, kept)| kept.judged.is_none_or(|judged| judged.moment != moment));
        unsettled.map(|(gang, kept)| (gang, kept.is_released()))
    }

    /// Those that were judged as of a moment.
    pub(super) fn judged_at(&self, moment: Moment) -> impl Iterator<Item = &GangUid> {
        let judged = self.by_gang.iter();
        let judged = judged
            .filter(move |(_, kept)| kept.judged.is_some_and(|judged| judged.moment == moment));
        judged.map(|(gang, _)| gang)
    }

    /// A gang was judged, in vain.
    pub(super) fn note_judged(&mut self, gang: &GangUid, judged: Judged) {
        if let Some(kept) = self.by_gang.get_mut(gang) {
            kept.judged = Some(judged);
        }
    }

    /// Others give way to a gang from now on. Without them it was judged just now, in vain: whoever comes next to be judged
    /// by what came free is not this one, before something does.
    pub(super) fn note_judged_by_turn(&mut self, gang: &GangUid, judged: Judged) {
        self.note_judged(gang, judged);
        self.by_turn.insert(gang.clone());
    }

    /// Everybody had a turn: the next call judges those, too, for whom others began to give way.
    pub(super) fn end_turns(&mut self) {
        for gang in std::mem::take(&mut self.by_turn) {
            self.judge_again(&gang);
        }
    }

    /// A gang was admitted: what was kept for it may have to be kept again.
    pub(super) fn note_admitted(&mut self, gang: &GangUid, kept: Reservation) {
        self.admitted.insert(gang.clone(), kept);
    }

    /// Those that give way to nobody but one gang.
    pub(super) fn only_victims_of(&self, gang: &GangUid) -> Vec<GangUid> {
        let kept = self.by_gang.get(gang);
        let victims = kept.map_or_else(Vec::new, Reservation::all_victims);
        let is_alone =
            |victim: &GangUid| self.by_victim.get(victim).is_some_and(|of| of.len() == 1);
        victims.into_iter().filter(is_alone).collect()
    }

    /// The clock went back by so much: nothing is kept for longer by that, nor for a shorter time by whoever takes it up, who goes by how long it
    /// was to be kept.
    pub(super) fn end_earlier(&mut self, seconds: i64) {
        let kept = self.by_gang.iter_mut().chain(&mut self.admitted);
        for (gang, kept) in kept {
            kept.since = earlier(kept.since, seconds);
            kept.until = earlier(kept.until, seconds);
            self.changed.insert(gang.clone());
        }
        let by_end = self.by_gang.iter();
        let by_end = by_end.map(|(gang, kept)| (kept.until, gang.clone()));
        self.by_end = by_end.collect();
    }

    /// Those whose time is over.
    pub(super) fn ended(&self, now: Timestamp) -> Vec<GangUid> {
        let by_end = self.by_end.iter().take_while(|(at, _)| *at <= now);
        by_end.map(|(_, gang)| gang.clone()).collect()
    }
}

impl State {
    /// Until when something is kept for a gang for which these go, told from now on or before, or end by themselves: until none of those
    /// that are told is counted on any more.
    pub(super) fn kept_until<'a>(
        &self,
        since: Timestamp,
        victims: impl Iterator<Item = &'a GangUid>,
        ending: impl Iterator<Item = &'a GangUid>,
    ) -> Timestamp {
        let told = |gang| self.running.get(gang);
        let victims = victims.filter_map(told);
        let victims = victims.map(|gang| (gang, gang.ending_since.unwrap_or(since)));
        let ending = ending.filter_map(told);
        let ending = ending.filter_map(|gang| Some((gang, gang.ending_since?)));
        let counted_on = victims.chain(ending);
        // Whoever was told by a clock that was ahead is counted on no longer by that.
        let counted_on = counted_on.map(|(gang, told_at)| (gang, told_at.min(since)));
        let counted_on = counted_on.map(|(gang, told_at)| gang.counted_on_until(told_at));
        let least = Timestamp(since.0.saturating_add(MOST_SECONDS_AFTER_NOTICE));
        counted_on.fold(least, Timestamp::max)
    }

    /// What preemption goes by is told of a gang.
    pub(super) fn set_running(&mut self, running: Running) {
        let known = self.running.get(&running.uid);
        // The same told twice is no news.
        let does_not_end = running.ending_since.is_none()
            && known.is_none_or(|known| {
                known.ending_since.is_some() || known.admitted_at != running.admitted_at
            });
        if does_not_end {
            self.reservations.overdue.remove(&running.uid);
        }
        // That it ends from now on helps nobody more than before. What decides only who goes first helps those who have enough in
        // another order, and so does that it can be asked no more.
        let is_news = known.is_none_or(|known| {
            let mut before = known.clone();
            before.ending_since = before.ending_since.or(running.ending_since);
            before.checkpointed_at = running.checkpointed_at;
            before.is_made_again = running.is_made_again;
            before.is_told_over_quota = running.is_told_over_quota;
            before != running
        });
        let goes_at_another_place = known.is_some_and(|known| {
            known.checkpointed_at != running.checkpointed_at
                || known.is_made_again != running.is_made_again
        });
        let (uid, may_be_preempted) = (running.uid.clone(), running.may_be_preempted);
        if goes_at_another_place || (is_news && !may_be_preempted) {
            self.note_other_order(&uid);
        }
        self.running.set(running);
        if is_news && may_be_preempted {
            self.note_can_be_asked(&uid);
        }
        self.note_shrinking_of(&uid);
    }

    /// A gang ends by itself: who looks for victims counts on it, whether or not its minimum run time is over.
    pub(super) fn set_ending(&mut self, gang: &GangUid) {
        if self.running.note_ending(gang) {
            self.note_can_be_asked(gang);
            self.note_shrinking_of(gang);
        }
    }

    /// Keeps something for a gang, which is not judged until that is over.
    pub(super) fn reserve(&mut self, id: GangId, mut reservation: Reservation) {
        let Some(waiting) = self.waiting.get(id) else {
            return;
        };
        let uid = waiting.gang.uid.clone();
        let (team, place) = (waiting.team, waiting.place.clone());
        self.end_head_reservation(&uid, true);
        self.drop_out(id);
        if let Some(waiting) = self.waiting.get_mut(id) {
            waiting.is_reserved_for = true;
        }
        if let Some(entry) = self.teams.get_mut(team) {
            entry.given_way.insert(place, id);
        }
        self.stand_aside(id, true);
        self.settle_aside();
        self.changed_gangs.insert(id);
        for victim in reservation.all_victims() {
            let pods = self.running.pods_of(&victim);
            let holds = pods.filter_map(|pod| self.holds.get(pod));
            let claims = holds.flat_map(|hold| &hold.claims);
            let claims = claims.map(|claim| claim.uid.clone());
            reservation.claims.extend(claims);
        }
        let (charges, nodes) = (reservation.charges.clone(), reservation.nodes.clone());
        let victims = self.reservations.enter(&uid, reservation);
        for victim in &victims {
            self.change_afterwards(&undoing(&self.charges_of(victim)));
            self.note_all_going(victim);
        }
        self.change_afterwards(&charges);
        for node in &nodes {
            self.cluster.reserve(node);
            self.note_going_on(node);
        }
    }

    /// Keeps nothing for a gang any longer.
    pub(super) fn give_up_reservation(&mut self, id: GangId) -> Option<Reservation> {
        let waiting = self.waiting.get_mut(id)?;
        let (reservation, spared) = self.reservations.leave(&waiting.gang.uid)?;
        self.stand_aside(id, false);
        let waiting = self.waiting.get_mut(id)?;
        waiting.is_reserved_for = false;
        if let Some(entry) = self.teams.get_mut(waiting.team) {
            entry.given_way.remove(&waiting.place);
        }
        let holds = waiting.pods_that_hold > 0;
        for victim in &spared {
            self.change_afterwards(&self.charges_of(victim));
            self.note_all_going(victim);
        }
        self.change_afterwards(&undoing(&reservation.charges));
        for node in &reservation.nodes {
            self.cluster.end_reservation(node);
            self.note_going_on(node);
        }
        if !holds {
            self.line_up(id);
        }
        Some(reservation)
    }

    /// A gang holds nothing any more: nobody has to wait for it.
    pub(super) fn note_released(&mut self, gang: &GangUid) {
        self.running.note_released(gang);
        self.reservations.note_released(gang);
    }

    /// A pod may be on its way now from a node that is kept for nobody, or not any more.
    pub(super) fn note_going(&mut self, pod: &PodUid) {
        let hold = self.holds.get(pod);
        let is_going = hold.is_some_and(|hold| {
            self.reservations.gives_way(&hold.gang) && !self.cluster.is_reserved(&hold.node)
        });
        if is_going {
            self.going.insert(pod.clone());
        } else {
            self.going.remove(pod);
        }
    }

    fn note_all_going(&mut self, gang: &GangUid) {
        for pod in self.running.pods_of(gang).cloned().collect::<Vec<_>>() {
            self.note_going(&pod);
        }
    }

    fn note_going_on(&mut self, node: &NodeName) {
        for pod in self.cluster.pods_on(node).cloned().collect::<Vec<_>>() {
            self.note_going(&pod);
        }
    }

    /// What is held by those that give way, but for what is held on nodes that are kept for somebody.
    pub(super) fn going(&self) -> impl Iterator<Item = &Hold> {
        let going = self.going.iter();
        going.filter_map(|pod| self.holds.get(pod).map(AsRef::as_ref))
    }

    /// Limits changed, or Teams were stopped: who has no room afterwards either waits as before. Of several that have no room
    /// together, those that come first in their order keep theirs.
    pub(super) fn end_vain_reservations(&mut self) {
        let reserved = self.reservations.by_gang.keys();
        let mut reserved: Vec<GangId> = reserved.filter_map(|uid| self.waiting.id(uid)).collect();
        reserved.sort_by_key(|id| self.waiting.get(*id).map(|waiting| waiting.place.clone()));
        for id in reserved.into_iter().rev() {
            if !self.has_room_afterwards(id) {
                self.give_up_reservation(id);
                self.wake_class_of(id);
            }
        }
    }

    /// Whether what a gang is charged ahead is within the quota of its Team once all victims are gone.
    pub(super) fn has_room_afterwards(&mut self, id: GangId) -> bool {
        let Some(waiting) = self.waiting.get(id) else {
            return false;
        };
        let node = self.teams.get(waiting.team).and_then(|team| team.node);
        let Some(node) = node else { return false };
        let Some(kept) = self.reservations.by_gang.get(&waiting.gang.uid) else {
            return false;
        };
        let tree = &mut self.moments.afterwards;
        tree.apply(&undoing(&kept.charges), |_, _, _| {});
        let mut charges = kept.charges.iter();
        let has_room = charges.all(|delta| {
            let pair = tree.known_pair(&delta.of);
            let available = pair.map(|pair| tree.available_at(node, pair));
            available.is_some_and(|available| delta.amount <= i128::from(available.0))
        });
        tree.apply(&kept.charges, |_, _, _| {});
        has_room
    }

    /// An admission was taken back: what was kept for it is kept again, until its time is over.
    pub(super) fn keep_again(&mut self, gang: &GangUid) {
        let Some(kept) = self.reservations.admitted.remove(gang) else {
            return;
        };
        // Whether or not it is kept again, it was kept until now.
        self.reservations.changed.insert(gang.clone());
        if let Some(id) = self.waiting.id(gang)
            && let Some(waiting) = self.waiting.get(id)
            && waiting.pods_that_hold == 0
        {
            self.reserve(id, kept);
            if !self.tree_is_stale && !self.has_room_afterwards(id) {
                self.give_up_reservation(id);
                self.wake_class_of(id);
            }
        }
    }

    /// To whom a gang is to give way, if it is: as decided, and not taken back since.
    pub fn gives_way_to(&self, victim: &GangUid) -> Option<GivesWay<'_>> {
        let (preemptor, reason) = self.reservations.first_preemptor(victim)?;
        let preemptor = self.waiting(preemptor)?;
        Some(GivesWay {
            preemptor: &preemptor.name,
            preemptor_uid: &preemptor.uid,
            reason,
        })
    }

    /// What is kept for a gang, if others were told to give way to it; as well after it was admitted, until that can be undone no more.
    pub fn kept_for(&self, gang: &GangUid) -> Option<Kept<'_>> {
        let Reservations {
            by_gang, admitted, ..
        } = &self.reservations;
        let kept = by_gang.get(gang).or_else(|| admitted.get(gang));
        let kept = kept.filter(|kept| kept.is_told)?;
        Some(Kept {
            since: kept.since,
            until: kept.until,
            flavor: &kept.flavor,
            victims: &kept.victims,
        })
    }

    /// Notes that a gang is to go, or not, for another reason than before.
    pub(super) fn note_preemption_changed(&mut self, gang: GangUid) {
        self.reservations.changed.insert(gang);
    }

    /// Gangs of which [`State::gives_way_to`], [`State::kept_for`] or [`State::over_quota`] may say something else than when this was asked last. What was
    /// not asked about by then is forgotten by the next decision.
    pub fn take_changed_preemptions(&mut self) -> BTreeSet<GangUid> {
        std::mem::take(&mut self.reservations.changed)
    }

    pub(super) fn wake_class_of(&mut self, id: GangId) {
        if let Some(class) = self.waiting.get(id).and_then(|it| it.class) {
            self.wake(class);
        }
    }

    /// That others give way to a gang, or end by themselves, if it waits for that.
    pub(super) fn why_reserved(&self, gang: &GangUid) -> Option<Why> {
        let reservation = self.reservations.by_gang.get(gang)?;
        let told = || reservation.victims.keys();
        let names = |gangs: &mut dyn Iterator<Item = &GangUid>| -> Blocker {
            let mut names = Vec::new();
            for gang in gangs {
                let mut pods = self.running.pods_of(gang);
                let hold = pods.next().and_then(|pod| self.holds.get(pod));
                names.extend(hold.map(|hold| (1, hold.gang_name.as_str())));
            }
            largest(names.into_iter())
        };
        if told().next().is_some() || reservation.ending.is_empty() {
            let victims = names(&mut told());
            return Some(Why::Preemption { victims });
        }
        // Nobody goes for it.
        let ending = || reservation.ending.iter();
        Some(Why::Release {
            pods: ending()
                .map(|gang| self.running.pods_of(gang).count())
                .sum(),
            blocker: names(&mut ending()),
            behind: None,
        })
    }
}
