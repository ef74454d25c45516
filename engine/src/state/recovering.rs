//! What is kept for gangs that recover.
//!
//! An attempt that ended by a fault, a lost node or the like gives back what it held pod by pod, and its gang asks for the same again a
//! minute later. In between everybody would be served with it. So what a pod gives back is held on in its place: by the same gang, of the
//! same Team, on the same devices. Such a *keep* is a [`Hold`] like any other. It is charged (S1), it is in the way of others, who are told so, it can be
//! lent quota that comes back, and whoever may preempt the gang while it runs may have it while it recovers. Only that nobody has to be told
//! to go: what is kept is given up in the same moment.
//!
//! | of what an attempt held | quota | place |
//! |---|---|---|
//! | what stands on healthy devices of a node that may be planned on | kept | kept |
//! | what stands elsewhere, or on a node that the gang is not to have again | kept | not kept |
//! | what was released before anybody told of it | kept as far as it is free | kept as far as it is free |
//!
//! **For how long**: until the gang is admitted (what of it nobody has by then is kept again, should that be undone), is told to recover no more, asks
//! for more than it held, its time is over, or others preempt it. Where limits changed so that a Team has not enough for all that is kept, just so many pods' is
//! given up: first what has no place. That is found out once all of its pods have released theirs, so that it does not depend on their order.
//!
//! **Who is judged when.** Once the gang waits again it does not stand in line, but is judged before anybody else, as if nothing were kept for
//! it: in the domain in which it was, then in those around it, then anywhere; nor does a strict order hold it up, which did not while it ran. What it gets
//! need not be what is kept, but is no more than it held: for more it stands in line. If it has no room, that is not asked
//! again before something came free, or somebody came whom it may preempt ([`comers`]), be it by time alone; and of many just so many are asked by one call that an event costs the same however many wait ([`turns`]). Where nobody's leaving
//! helps but that of somebody who may be preempted, others give way to it, as to any gang that waits, and what was kept becomes part of what is kept then
//! ([`super::reservations`]).
//!
//! **Twice, late, never.** For each attempt something is kept once: told again after it was given up it changes nothing. What
//! is told after its time is over ends with the next decision. A new process is told who recovers before it decides first; what is held still goes
//! over as it is released, and what is released already is kept as far as nobody has it. Where that is not enough for all, it goes in the order in which a
//! lowered limit leaves it.

mod alike;
mod comers;
mod judging;
mod keep;
mod keeps;
mod parked;
mod parts;
mod place;
mod telling;
mod trimming;
mod turns;

use std::{collections::BTreeMap, sync::Arc};

pub(super) use comers::Lacks;
use keep::Keep;
pub(super) use keeps::Keeps;

use super::{CLASS_NAMED, State, ids::GangId};
use crate::{
    model::{Hold, Recovering},
    names::{GangUid, PodUid, TeamName, Timestamp},
    queue::Place,
};

impl State {
    /// A gang recovers.
    pub(super) fn set_recovering(&mut self, told: Recovering) {
        let uid = told.gang.clone();
        if self.keeps.over.get(&uid) == Some(&told.attempt) {
            return;
        }
        let known = self.keeps.by_gang.get(&uid);
        if known.is_some_and(|known| known.told.attempt == told.attempt) {
            return;
        }
        if known.is_some() {
            self.end_keep(&uid);
        }
        let keep = Keep::of(told);
        let holds_anew = self.provisional.contains_key(&uid) || self.holds_beside(&keep);
        // It holds something by a later attempt, or goes for somebody who has a right to what it held.
        if keep.parts.is_empty() || holds_anew || self.reservations.gives_way(&uid) {
            self.keeps.over.insert(uid.clone(), keep.told.attempt);
            self.note_preemption_changed(uid);
            return;
        }
        self.begin_keep(keep);
    }

    /// Whether a gang that waits holds something by pods that are not of the attempt that ended. Those of one that was taken back before they ran wait for
    /// the next one, and may hold what they were to have then.
    fn holds_beside(&self, keep: &Keep) -> bool {
        let own = self.waiting.id(&keep.told.gang);
        let Some((own, waiting)) = own.and_then(|own| Some((own, self.waiting.get(own)?))) else {
            return false;
        };
        let of_attempt = keep
            .parts
            .keys()
            .filter(|pod| self.holds.contains_key(*pod) && self.waiting.of_pod(pod) == Some(own));
        waiting.pods_that_hold > of_attempt.count()
    }

    fn begin_keep(&mut self, mut keep: Keep) {
        let uid = keep.told.gang.clone();
        let pods: Vec<PodUid> = keep.parts.keys().cloned().collect();
        for pod in pods {
            let hold = self.holds.get(&pod);
            if hold.is_some_and(|hold| hold.gang == uid && !hold.charged_to_node) {
                keep.held.insert(pod);
            } else {
                keep.missing.insert(pod);
            }
        }
        if !keep.missing.is_empty() {
            self.keeps.with_missing.insert(uid.clone());
        }
        self.enter_keep(keep);
    }

    /// From now on it counts as one that runs, not as one that ends by itself: what it held does not come free.
    fn enter_keep(&mut self, keep: Keep) {
        let uid = keep.told.gang.clone();
        let (running, team) = (keep.running(), keep.team().cloned());
        // That it recovers releases nothing: it is counted on again once its pods have, since what is kept then nobody has to end.
        let is_overdue = self.reservations.is_overdue(&uid) && !keep.held.is_empty();
        self.keeps.over.remove(&uid);
        self.keeps.enter(uid.clone(), keep);
        self.running.remove(&uid);
        if let Some(running) = running {
            self.set_running(running);
        }
        if is_overdue {
            self.reservations.note_overdue([uid.clone()]);
        }
        if let Some(id) = self.waiting.id(&uid) {
            self.park(id);
        }
        self.note_heads(team.as_ref());
        self.note_preemption_changed(uid);
    }

    /// Those of its Team at the head of a line who may wait for what is kept are told otherwise than before who has it. Those of other Teams are once
    /// they are told anything else: one event costs what it touches.
    fn note_heads(&mut self, team: Option<&TeamName>) {
        let id = team.and_then(|team| self.team_ids.get(team)).copied();
        let Some((id, entry)) = id.and_then(|id| Some((id, self.teams.get(id)?))) else {
            return;
        };
        if entry.classes.len() > CLASS_NAMED {
            self.changed_teams.insert(id);
            return;
        }
        let classes = entry.classes.values();
        let classes = classes.filter_map(|class| self.classes.get(*class));
        let heads: Vec<GangId> = classes.filter_map(|class| class.line.first()).collect();
        self.cluster.note_visits(heads.len() as u64);
        self.changed_gangs.extend(heads);
    }

    /// It is told that a gang does not recover any more.
    pub(super) fn set_not_recovering(&mut self, gang: &GangUid) {
        self.end_keep(gang);
        self.keeps.over.remove(gang);
        // Should its admission be undone, it is held back.
        self.keeps.admitted.remove(gang);
    }

    /// Keeps nothing for a gang any longer. What its pods hold still comes free by itself.
    pub(super) fn end_keep(&mut self, gang: &GangUid) {
        if let Some(keep) = self.lift_keep(gang) {
            self.keeps.over.insert(gang.clone(), keep.told.attempt);
            self.note_heads(keep.team());
            if let (false, Some(running)) = (self.running.is_released(gang), keep.running()) {
                let is_overdue = self.reservations.is_overdue(gang);
                self.set_running(running);
                self.set_ending(gang);
                if is_overdue {
                    self.reservations.note_overdue([gang.clone()]);
                }
            }
            self.note_preemption_changed(gang.clone());
        }
    }

    /// What is kept for a gang is free from now on, and the gang waits as any other, if it does.
    fn lift_keep(&mut self, gang: &GangUid) -> Option<Keep> {
        let keep = self.keeps.leave(gang)?;
        self.note_other_order(gang);
        for hold in keep.kept.values() {
            self.remove_hold(&hold.pod);
            self.keeps.pods.remove(&hold.pod);
        }
        self.running.remove(gang);
        self.note_shrinking_of(gang);
        if let Some(id) = self.waiting.id(gang) {
            self.unpark(id);
        }
        Some(keep)
    }

    /// What was given up to judge its gang is kept again: nobody else had a turn since.
    fn keep_on(&mut self, keep: Keep) {
        let holds: Vec<Arc<Hold>> = keep.kept.values().cloned().collect();
        self.keeps
            .pods
            .extend(holds.iter().map(|hold| hold.pod.clone()));
        let (uid, is_any_missing) = (keep.told.gang.clone(), !keep.missing.is_empty());
        for hold in holds {
            self.set_hold(Arc::unwrap_or_clone(hold));
        }
        if is_any_missing {
            self.keeps.with_missing.insert(uid);
        }
        self.enter_keep(keep);
    }

    /// An admission was taken back. Others were asked since, and may have what was kept: what nobody has is kept again before anybody is asked by the
    /// next decision (S1), be it by then that their admissions were taken back as well.
    pub(super) fn keep_for_recovery_again(&mut self, gang: &GangUid) {
        let Some(mut keep) = self.keeps.admitted.remove(gang) else {
            return;
        };
        keep.to_keep_again.append(&mut keep.kept);
        keep.judged = None;
        self.keeps.with_missing.insert(gang.clone());
        self.enter_keep(keep);
    }

    /// It is told what a pod holds: if it is of the attempt that ended, nothing is kept for it beside that; if it is of a later one, the gang
    /// recovers no more.
    pub(super) fn note_held_again(&mut self, hold: &Hold) {
        let Some(keep) = self.keeps.by_gang.get_mut(&hold.gang) else {
            return;
        };
        let Some(part) = keep.parts.get(&hold.pod) else {
            let own = self.waiting.id(&hold.gang);
            if own.is_some() && self.waiting.of_pod(&hold.pod) == own {
                self.end_keep(&hold.gang);
            }
            return;
        };
        if hold.charged_to_node || keep.held.contains(&hold.pod) {
            return;
        }
        if !keep.missing.remove(&hold.pod) {
            for claim in &part.claims {
                *keep.claims.entry(claim.uid.clone()).or_default() += 1;
            }
        }
        keep.held.insert(hold.pod.clone());
        keep.to_keep_again.remove(&hold.pod);
        self.give_up_part(&hold.gang, &hold.pod);
    }

    /// Ends what is over by time, keeps what was released before anybody told or was kept before an admission that came to nothing, and gives up what limits do
    /// not let Teams have. Where there is not enough for all, it is as if it had been kept all the time, and limits had changed since: who comes first keeps
    /// first, and of one gang what has its place still.
    pub(super) fn settle_keeps(&mut self, now: Timestamp) {
        for gang in self.keeps.ended(now) {
            self.end_keep(&gang);
        }
        self.end_keeps_of_recorded_victims(now);
        let with_missing = std::mem::take(&mut self.keeps.with_missing);
        let gangs = with_missing.into_iter().filter_map(|gang| {
            let keep = self.keeps.by_gang.get_mut(&gang)?;
            let again = std::mem::take(&mut keep.to_keep_again);
            Some((keep.place(), (gang, keep.missing.clone(), again)))
        });
        let in_order: BTreeMap<Place, _> = gangs.collect();
        for (gang, missing, again) in in_order.into_values() {
            for (pod, hold) in again {
                self.keep_part_again(&gang, &pod, hold);
            }
            // Two of them may not have theirs both: each is looked at once those before it have theirs.
            let mut others = Vec::new();
            for pod in &missing {
                if self.has_its_place_still(&gang, pod) {
                    self.keep_part(&gang, pod, None);
                } else {
                    others.push(pod);
                }
            }
            for pod in others {
                self.keep_part(&gang, pod, None);
            }
            self.end_keep_of_nothing(&gang);
        }
        if !self.keeps.to_trim.is_empty() {
            let gangs = std::mem::take(&mut self.keeps.to_trim);
            self.trim(gangs);
        }
    }

    /// Whoever was told by a former leader to go for another gang goes for that, however its attempt ended.
    fn end_keeps_of_recorded_victims(&mut self, now: Timestamp) {
        let recorded = self.recorded.values();
        let recorded = recorded.filter(|reserved| now < reserved.until);
        let victims = recorded.flat_map(|reserved| reserved.victims.keys());
        let victims = victims.filter(|victim| self.keeps.has(victim));
        let victims: Vec<GangUid> = victims.cloned().collect();
        for victim in victims {
            self.end_keep(&victim);
        }
    }

    /// A gang for which nothing is kept after all waits as any other.
    fn end_keep_of_nothing(&mut self, gang: &GangUid) {
        let keep = self.keeps.by_gang.get(gang);
        if keep.is_some_and(|keep| {
            keep.kept.is_empty()
                && keep.held.is_empty()
                && keep.missing.is_empty()
                && keep.to_keep_again.is_empty()
        }) {
            self.end_keep(gang);
        }
    }
}
