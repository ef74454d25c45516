//! What happens to gangs and limits, and what is told of it.

use std::sync::Arc;

use super::{
    history::{Arrival, Event},
    model::{Gang, Kept, MOST_SECONDS, Model, Told, Uid, at},
};
use crate::model::{Name, Node};

impl Model {
    /// Keeps nothing for a gang any more.
    pub(super) fn leave(&mut self, gang: Uid) -> Option<Kept> {
        let kept = self.kept.remove(&gang)?;
        self.gave_way.extend(kept.waits_for());
        Some(kept)
    }

    /// A gang holds nothing any more.
    pub(super) fn release(&mut self, gang: Uid) {
        self.held.remove(&gang);
        self.overdue.remove(&gang);
        for kept in self.kept.values_mut() {
            kept.victims.remove(&gang);
            kept.ending.remove(&gang);
        }
    }

    /// What preemption goes by is told of a gang.
    pub(super) fn tell(&mut self, gang: Uid, ending_since: Option<i64>) {
        let Some(told) = self.told.get_mut(&gang) else {
            return;
        };
        told.ends = false;
        told.ending_since = ending_since;
        if ending_since.is_none() {
            self.overdue.remove(&gang);
        }
    }

    /// An admission was committed.
    pub(super) fn commit(&mut self, gang: Uid) {
        self.waiting.remove(&gang);
        self.admitted.remove(&gang);
        self.kept_before.remove(&gang);
        self.overdue.remove(&gang);
        let Arrival {
            priority,
            min_run_time,
            notice,
            ..
        } = self.gangs[&gang].asked;
        let protected_until = (min_run_time > 0).then_some(self.now + min_run_time);
        self.told.insert(
            gang,
            Told {
                priority,
                admitted_at: self.now,
                protected_until,
                ending_since: None,
                notice,
                ends: false,
            },
        );
    }

    /// Nothing is kept any more for a gang that recovers.
    pub(super) fn end_recovery(&mut self, gang: Uid) {
        self.recovering.remove(&gang);
        self.told.remove(&gang);
        self.release(gang);
    }

    /// An admission could not be committed.
    pub(super) fn undo(&mut self, gang: Uid) {
        self.admitted.remove(&gang);
        self.release(gang);
        if let Some(kept) = self.kept_before.remove(&gang) {
            self.kept.insert(gang, kept);
            if !self.tree_changed && !self.has_room_afterwards(gang) {
                self.leave(gang);
            }
        }
    }

    fn edit(&mut self, name: Name, edit: impl FnOnce(&mut Node) -> bool) {
        if let Some(node) = Arc::make_mut(&mut self.limits).nodes.get_mut(&name)
            && edit(node)
        {
            self.tree_changed = true;
        }
    }

    /// What happens; whether anything does.
    pub(super) fn happens(&mut self, event: &Event) {
        match event {
            Event::Arrives(arrival) => {
                self.waiting.insert(arrival.uid);
                let gang = Gang {
                    asked: arrival.clone(),
                    attempt: 1,
                    was_victim: false,
                };
                self.gangs.insert(arrival.uid, gang);
            }
            Event::IsWithdrawn(position) => {
                if let Some(gang) = at(&self.open(), *position) {
                    self.leave(gang);
                    self.waiting.remove(&gang);
                }
            }
            Event::Priority(position, priority) => {
                if let Some(gang) = at(&self.open(), *position)
                    && let Some(known) = self.gangs.get_mut(&gang)
                    && known.asked.priority != *priority
                {
                    known.asked.priority = *priority;
                    self.leave(gang);
                }
            }
            Event::BeginsToEnd(position) => {
                if let Some(gang) = at(&self.running(), *position)
                    && let Some(told) = self.told.get_mut(&gang)
                {
                    told.ends = true;
                }
            }
            Event::Ends(position) => {
                if let Some(gang) = at(&self.running(), *position) {
                    self.told.remove(&gang);
                    self.release(gang);
                }
            }
            Event::Notice(position) => {
                if let Some(gang) = at(&self.not_noticed(), *position) {
                    self.tell(gang, Some(self.now));
                }
            }
            Event::Spared(position) => {
                if let Some(gang) = at(&self.noticed_in_vain(), *position) {
                    self.tell(gang, None);
                }
            }
            Event::Released { gang, comes_back } => {
                if let Some(gang) = at(&self.going(), *gang) {
                    self.told.remove(&gang);
                    self.release(gang);
                    self.comes_back(gang, *comes_back);
                }
            }
            Event::ComesBackEarly(position) => {
                let going = self.running().into_iter();
                let going: Vec<Uid> = going.filter(|gang| self.gives_way(*gang)).collect();
                if let Some(gang) = at(&going, *position) {
                    self.told.remove(&gang);
                    self.comes_back(gang, true);
                }
            }
            Event::Passes(seconds) => self.now += seconds,
            Event::Limit(name, pair, limit) => self.edit(*name, |node| match limit {
                Some(limit) => node.limits.insert(*pair, *limit) != Some(*limit),
                None => node.limits.remove(pair).is_some(),
            }),
            Event::Weight(name, weight) => self.edit(*name, |node| {
                std::mem::replace(&mut node.weight, *weight) != *weight
            }),
            Event::Policy(name, policy) => {
                self.edit(*name, |node| node.policy.replace(*policy) != Some(*policy));
            }
            Event::Moves(name, parent) => self.edit(*name, |node| {
                std::mem::replace(&mut node.parent, *parent) != *parent
            }),
            Event::Fungibility(team, fungibility) => {
                let all = &mut Arc::make_mut(&mut self.limits).fungibility;
                self.teams_changed |= all.insert(*team, *fungibility) != Some(*fungibility);
            }
            Event::Stops(team, stops) => {
                let stopped = &mut Arc::make_mut(&mut self.limits).stopped;
                self.teams_changed |= if *stops {
                    stopped.insert(*team)
                } else {
                    stopped.remove(team)
                };
            }
            // What it held is held on, as if it was admitted just now: without a minimum run time, and without notice. If it was told to
            // go before and did not, it has gone by this, late.
            Event::Fails(position) => {
                if let Some(gang) = at(&self.may_fail(), *position)
                    && let Some(told) = self.told.get_mut(&gang)
                {
                    told.admitted_at = self.now;
                    told.protected_until = None;
                    told.notice = 0;
                    self.overdue.remove(&gang);
                    self.recovering.insert(gang, self.now + MOST_SECONDS);
                }
            }
            Event::IsStrict(team, is_strict) => {
                let strict = &mut Arc::make_mut(&mut self.limits).strict;
                self.teams_changed |= if *is_strict {
                    strict.insert(*team)
                } else {
                    strict.remove(team)
                };
            }
        }
    }

    /// A gang that was told to give way waits as its next attempt.
    fn comes_back(&mut self, gang: Uid, may: bool) {
        let waits = self.waiting.contains(&gang);
        if let Some(known) = self.gangs.get_mut(&gang)
            && known.was_victim
            && may
            && !waits
        {
            known.attempt += 1;
            known.was_victim = false;
            self.waiting.insert(gang);
        }
    }
}
