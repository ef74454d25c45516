//! What is kept for gangs: how it ends when limits changed or time passed, or when its gang is admitted.

use std::cmp::Reverse;

use super::{
    judge::is_available,
    model::{Charges, MOST_SECONDS, Model, Uid},
};
use crate::model::{Name, Tree};

impl Model {
    /// Those for whom something is kept, in their order.
    fn reserved(&self) -> Vec<Uid> {
        let mut reserved: Vec<Uid> = self.kept.keys().copied().collect();
        reserved.sort_by_key(|gang| self.gangs[gang].place());
        reserved
    }

    /// Whether what is kept for a gang is within the quota of its Team once all victims are gone.
    pub(super) fn has_room_afterwards(&self, gang: Uid) -> bool {
        let team = self.gangs[&gang].asked.team;
        let mut charged = self.charged_afterwards(|_| false);
        let kept: Vec<_> = self.as_charges(gang, &self.kept[&gang].charges).collect();
        for charge in kept {
            if let Some(at) = charged.iter().position(|known| *known == charge) {
                charged.remove(at);
            }
        }
        let tree = Tree::new(&self.limits.nodes, charged);
        self.is_active(team) && is_available(&tree, team, &self.kept[&gang].charges, true)
    }

    /// Before a decision: limits that changed, and time.
    pub(super) fn bring_up_to_date(&mut self) {
        let over = self
            .recovering
            .iter()
            .filter(|(_, until)| **until <= self.now);
        let over: Vec<Uid> = over.map(|(gang, _)| *gang).collect();
        for gang in over {
            self.end_recovery(gang);
        }
        let tree_changed = std::mem::take(&mut self.tree_changed);
        let teams_changed = std::mem::take(&mut self.teams_changed);
        if tree_changed {
            self.memory.forget();
            self.in_turn.clear();
        }
        if tree_changed || teams_changed {
            for gang in self.reserved().into_iter().rev() {
                if !self.has_room_afterwards(gang) {
                    self.leave(gang);
                }
            }
        }
        for gang in self.reserved() {
            if self.now >= self.kept[&gang].until
                && let Some(kept) = self.leave(gang)
            {
                self.overdue.extend(kept.waits_for());
            }
        }
    }

    /// Admits those whose victims are gone, and those that found room without: who and for what, in order.
    pub(super) fn settle(&mut self) -> Vec<(Uid, Charges)> {
        self.settle_those(|_, _, _| true)
    }

    /// A gang had its turn. Where others give way for it, somebody of its tree for whom something was kept before may have room by that; and
    /// where it was admitted in a strict order, somebody of its Team, who stood behind it. They are judged before anybody has
    /// another turn; the gang itself, which was judged just now, and the rest of its tree only once one of them got something. Unless
    /// somebody that gives way to it recovered: what was kept for that came free after it was judged, and may be room enough.
    pub(super) fn settle_after_turn(&mut self, gang: Uid) -> Vec<(Uid, Charges)> {
        let (root, team) = (self.root_of(gang), self.gangs[&gang].asked.team);
        let by_preemption = self.kept.contains_key(&gang);
        let is_asked = |model: &Self, other: Uid, is_first: bool| {
            let is_helped = if by_preemption {
                other != gang || model.kept.get(&gang).is_some_and(|kept| kept.frees_at_once)
            } else {
                model.gangs[&other].asked.team == team
            };
            model.root_of(other) == root && (is_helped || !is_first)
        };
        if !by_preemption && !self.limits.strict.contains(&team) {
            return Vec::new();
        }
        let has_room = |other| {
            if self.is_released(other) {
                self.has_quota_now(other)
            } else {
                self.finds_room_elsewhere(other)
            }
        };
        let mut reserved = self.reserved().into_iter();
        let is_any_helped = reserved.any(|other| is_asked(self, other, true) && has_room(other));
        if is_any_helped {
            return self.settle_those(is_asked);
        }
        Vec::new()
    }

    /// Admits those that are asked, the first time and once one of them needs nothing kept any more.
    fn settle_those(&mut self, is_asked: impl Fn(&Self, Uid, bool) -> bool) -> Vec<(Uid, Charges)> {
        let (mut admitted, mut is_first) = (Vec::new(), true);
        loop {
            let before = self.kept.len();
            for gang in self.reserved() {
                if !is_asked(self, gang, is_first) {
                    continue;
                }
                let is_released = self.is_released(gang);
                if is_released || self.finds_room_elsewhere(gang) {
                    admitted.extend(self.settle_one(gang, is_released));
                }
            }
            if self.kept.len() == before {
                return admitted;
            }
            is_first = false;
        }
    }

    /// Whether nobody is waited for any more for a gang for which something is kept.
    fn is_released(&self, gang: Uid) -> bool {
        self.kept[&gang].waits_for().next().is_none()
    }

    fn has_quota_now(&self, gang: Uid) -> bool {
        let team = self.gangs[&gang].asked.team;
        is_available(&self.trees().now, team, &self.kept[&gang].charges, true)
    }

    /// The root of the tree of a gang's Team.
    fn root_of(&self, gang: Uid) -> Name {
        let team = self.gangs[&gang].asked.team;
        let above = Tree::new(&self.limits.nodes, []).ancestors(team);
        above.last().copied().unwrap_or(team)
    }

    fn settle_one(&mut self, gang: Uid, is_released: bool) -> Option<(Uid, Charges)> {
        let kept = self.leave(gang)?;
        let team = self.gangs[&gang].asked.team;
        if let Some(found) = self.judge_free(&self.trees(), gang, is_released) {
            let found = self.grown(&self.trees(), gang, found);
            self.admit(gang, &found.charges);
            self.kept_before.insert(gang, kept);
            return Some((gang, found.charges));
        }
        let others_go = self
            .kept
            .values()
            .any(|kept| kept.waits_for().next().is_some());
        let fits_later =
            others_go && is_available(&self.trees().afterwards, team, &kept.charges, true);
        if !is_released || fits_later {
            self.kept.insert(gang, kept);
        }
        None
    }

    /// Whether a gang has quota at both moments though those stay that go for nobody else.
    fn finds_room_elsewhere(&self, gang: Uid) -> bool {
        let (team, kept) = (self.gangs[&gang].asked.team, &self.kept[&gang]);
        let mut without = self.clone();
        without.leave(gang);
        let trees = without.trees();
        is_available(&trees.now, team, &kept.charges, true)
            && is_available(&trees.afterwards, team, &kept.charges, true)
    }

    /// A gang holds this from now on.
    pub(super) fn admit(&mut self, gang: Uid, charges: &Charges) {
        self.held.insert(gang, charges.clone());
        self.admitted.insert(gang);
    }

    /// These are told to go, for this gang.
    pub(super) fn preempt(&mut self, gang: Uid, verdict: &super::judge::Verdict) {
        let mut kept = super::model::Kept {
            victims: std::collections::BTreeMap::new(),
            ending: std::collections::BTreeSet::new(),
            charges: verdict.charges.clone(),
            until: self.now + MOST_SECONDS,
            frees_at_once: false,
        };
        let Reverse(priority) = self.gangs[&gang].place().0;
        for (victim, reason) in &verdict.victims {
            let told = &self.told[victim];
            if self.recovering.contains_key(victim) {
                self.memory.note((*victim, told.priority), (gang, priority));
                self.end_recovery(*victim);
                kept.frees_at_once = true;
                self.yielded += 1;
                continue;
            }
            let goes_at = told.ending_since.unwrap_or(self.now) + told.notice;
            if !told.ends || told.ending_since.is_some() {
                kept.until = kept.until.max(goes_at + MOST_SECONDS);
            }
            if told.ends {
                kept.ending.insert(*victim);
                continue;
            }
            kept.victims.insert(*victim, *reason);
            self.memory.note((*victim, told.priority), (gang, priority));
            if let Some(known) = self.gangs.get_mut(victim) {
                known.was_victim = true;
            }
        }
        self.kept.insert(gang, kept);
    }
}
