//! Which gang is judged with whom, and where each class stands in line.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    State,
    class_line::ClassLine,
    ids::{ClassId, GangId, GroupId, TeamId},
    namespace_line::NamespaceLine,
    team::Class,
    wait_queue::Precedence,
    waiting::Obstacle,
    waits::{Group, Wait},
};
use crate::{
    fairness::WeightedUse,
    names::NamespaceName,
    queue::Standing,
    quota::{PreemptionPolicy, request::Assignment},
};

impl State {
    /// A gang waits for admission from now on.
    pub(super) fn line_up(&mut self, id: GangId) {
        let Some(waiting) = self.waiting.get(id) else {
            return;
        };
        let (team, place) = (waiting.team, waiting.place.clone());
        let without_devices = self.is_without_devices(id);
        let used = self.used_by(&waiting.gang.team, &waiting.namespace);
        if let Some(entry) = self.teams.get_mut(team) {
            if let Some(line) = &mut entry.namespaces {
                line.insert(&waiting.namespace, used, place.clone(), id);
            }
            if entry.line.insert(place, id).is_none() {
                entry.without_devices += usize::from(without_devices);
            }
        }
        self.changed_gangs.insert(id);
        self.seat(id);
    }

    /// A gang waits no longer; see [`State::unseat`].
    pub(super) fn drop_out(&mut self, id: GangId) -> Option<ClassId> {
        let led = self.unseat(id);
        let without_devices = self.is_without_devices(id);
        let Some(waiting) = self.waiting.get(id) else {
            return led;
        };
        let (team, place) = (waiting.team, waiting.place.clone());
        if let Some(entry) = self.teams.get_mut(team)
            && entry.line.remove(&place).is_some()
        {
            entry.without_devices -= usize::from(without_devices);
            if let Some(line) = &mut entry.namespaces {
                line.remove(&waiting.namespace, &place);
            }
        }
        self.changed_gangs.remove(&id);
        led
    }

    fn is_without_devices(&self, id: GangId) -> bool {
        let shape = self
            .waiting
            .get(id)
            .and_then(|it| self.shapes.get(it.shape));
        shape.is_some_and(|shape| !shape.totals.draws_devices())
    }

    /// Has a gang judged, if it may be.
    pub(super) fn seat(&mut self, id: GangId) {
        let Some(waiting) = self.waiting.get(id) else {
            return;
        };
        let (team, shape, place) = (waiting.team, waiting.shape, waiting.place.clone());
        let namespace = waiting.namespace.clone();
        let (may_borrow, looked) = (waiting.gang.may_borrow, waiting.looked);
        if waiting.pods_that_hold > 0 || waiting.is_reserved_for || waiting.class.is_some() {
            return;
        }
        let (obstacle, too_large) = (waiting.obstacle(), waiting.too_large);
        if obstacle.is_some_and(Obstacle::holds_up) {
            self.stand_aside(id, true);
        }
        if obstacle.is_some() || too_large {
            return;
        }
        let Some(entry) = self.teams.get(team) else {
            return;
        };
        let known = entry.classes.get(&(shape, may_borrow)).copied();
        let class = known.unwrap_or_else(|| {
            self.classes.insert(Class {
                team,
                shape,
                line: if entry.namespaces.is_some() {
                    ClassLine::ByUse(NamespaceLine::default())
                } else {
                    ClassLine::ByPlace(BTreeMap::new())
                },
                waits: BTreeSet::new(),
                may_borrow,
                watches: Vec::new(),
                within_nominal: Vec::new(),
                reason: None,
                lacks_place_since: None,
                looked,
            })
        });
        let has_allocated = |state: &Self| {
            let shape = state.shapes.get(shape);
            shape.is_some_and(|shape| shape.totals.has_allocated())
        };
        if known.is_none() && has_allocated(self) {
            self.with_allocated_claims.insert(class);
        }
        if known.is_none()
            && let Some(entry) = self.teams.get_mut(team)
        {
            entry.classes.insert((shape, may_borrow), class);
        }
        if let Some(waiting) = self.waiting.get_mut(id) {
            waiting.class = Some(class);
        }
        let entry = self.teams.get_mut(team);
        let used = entry.map_or(WeightedUse::NOTHING, |entry| {
            if entry.namespaces.is_some() {
                let classes = entry.classes_of.entry(namespace.clone()).or_default();
                classes.insert(class);
            }
            entry.used_by(&namespace)
        });
        self.change_class_line(class, |line| line.insert((&namespace, used), place, id));
        let first = self.classes.get(class).and_then(|class| class.line.first());
        if known.is_none() || (first == Some(id) && self.is_first_asked_again(team)) {
            self.wake(class);
        }
    }

    /// Whether a class is judged again since another gang of it goes first: that one may preempt whom those behind it may not, and
    /// be let in where they are not.
    fn is_first_asked_again(&self, team: TeamId) -> bool {
        self.backfill.told().next().is_some() || self.may_preempt(team)
    }

    /// A namespace of a Team stands elsewhere in all lines: as many classes move as it has, and no gang.
    pub(super) fn move_namespace(
        &mut self,
        team: TeamId,
        namespace: &NamespaceName,
        used: WeightedUse,
    ) {
        let Some(entry) = self.teams.get_mut(team) else {
            return;
        };
        let Some(line) = &mut entry.namespaces else {
            return;
        };
        if line.used_by(namespace).is_none_or(|before| before == used) {
            return;
        }
        line.set_used(namespace, used);
        let classes = entry.classes_of.get(namespace).cloned().unwrap_or_default();
        self.cluster.note_visits(1 + classes.len() as u64);
        self.move_aside(team, namespace, used);
        for class in classes {
            let first = |state: &Self| state.classes.get(class).and_then(|it| it.line.first());
            let before = first(self);
            self.change_class_line(class, |line| line.set_used(namespace, used));
            if before != first(self) && self.is_first_asked_again(team) {
                self.wake(class);
            }
        }
        self.let_in_by_use(team);
    }

    /// Whether the gangs of a Team may preempt others at all.
    pub(super) fn may_preempt(&self, team: TeamId) -> bool {
        let node = self.teams.get(team).and_then(|entry| entry.node);
        node.is_some_and(|node| self.tree.policy_of(node) != PreemptionPolicy::NEVER)
    }

    /// Another gang of a class goes first since the one that did left without being admitted.
    pub(super) fn ask_next(&mut self, led: Option<ClassId>) {
        let class = led.and_then(|class| Some((class, self.classes.get(class)?.team)));
        if let Some((class, team)) = class
            && self.is_first_asked_again(team)
        {
            self.wake(class);
        }
    }

    /// Has a gang judged no longer. Returns its class, if that has others which it went before: the next of them speaks for all now.
    pub(super) fn unseat(&mut self, id: GangId) -> Option<ClassId> {
        let waiting = self.waiting.get_mut(id)?;
        let Some(class) = waiting.class.take() else {
            if !waiting.is_reserved_for {
                self.stand_aside(id, false);
            }
            return None;
        };
        let (place, namespace) = (waiting.place.clone(), waiting.namespace.clone());
        // However long it lacked a place, and however often one was looked for, it did, should it be judged again.
        let known = self.classes.get(class);
        waiting.looked = known.map(|it| it.looked).unwrap_or_default();
        if let Some(since) = known.and_then(|it| it.lacks_place_since) {
            let since = since.max(waiting.gang.queued_at);
            let known = waiting.lacked_place_since.get_or_insert(since);
            *known = since.min(*known);
        }
        let is_first = known.is_some_and(|it| it.line.first() == Some(id));
        self.change_class_line(class, |line| line.remove(&namespace, &place));
        self.forget_class_of(class, &namespace);
        if self
            .classes
            .get(class)
            .is_some_and(|class| class.line.is_empty())
        {
            self.leave_all_queues(class);
            self.with_allocated_claims.remove(&class);
            if let Some(class) = self.classes.remove(class)
                && let Some(entry) = self.teams.get_mut(class.team)
            {
                entry.classes.remove(&(class.shape, class.may_borrow));
            }
            return None;
        }
        is_first.then_some(class)
    }

    /// A namespace may have no gang in a class any more.
    fn forget_class_of(&mut self, id: ClassId, namespace: &NamespaceName) {
        let class = self.classes.get(id);
        let Some(class) = class.filter(|class| !class.line.has(namespace)) else {
            return;
        };
        if let Some(entry) = self.teams.get_mut(class.team)
            && let Some(classes) = entry.classes_of.get_mut(namespace)
        {
            classes.remove(&id);
            if classes.is_empty() {
                entry.classes_of.remove(namespace);
            }
        }
    }

    /// Changes who is in a class, or in which order: it stands in its queues where its first gang does.
    fn change_class_line(&mut self, id: ClassId, change: impl FnOnce(&mut ClassLine)) {
        let first = |state: &Self| -> Option<Standing> { state.classes.get(id)?.line.standing() };
        let before = first(self);
        let waits = self.classes.get(id).map(|class| class.waits.clone());
        let Some(class) = self.classes.get_mut(id) else {
            return;
        };
        change(&mut class.line);
        let after = first(self);
        if before == after {
            return;
        }
        self.naming.note_may_be_for_others();
        match &after {
            Some(after) => self.backfill.move_class(id, after),
            None => self.backfill.forget(id),
        }
        for wait in waits.unwrap_or_default() {
            if let Some(place) = &before {
                self.step_out(id, wait, place);
            }
            if after.is_some() {
                self.step_in(id, wait);
            }
        }
        if let Some(team) = self.classes.get(id).map(|it| it.team) {
            self.move_in_lines(team, before.as_ref(), after.as_ref());
        }
    }

    /// Takes a class out of one queue.
    pub(super) fn step_out(&mut self, id: ClassId, wait: Wait, place: &Standing) {
        let Some(team) = self.classes.get(id).map(|class| class.team) else {
            return;
        };
        if wait == Wait::Change {
            self.waits.change.remove(&id);
            return;
        }
        if let Wait::Place(group) = wait
            && self.waits.unpass(group, id)
        {
            return;
        }
        let precedence = self.precedence_if_listed(team, wait);
        let left = self
            .waits
            .queue_mut(wait)
            .is_some_and(|queue| queue.remove(team, place, id, precedence));
        if left && let Some(entry) = self.teams.get_mut(team) {
            entry.queues.remove(&wait);
        }
    }

    /// Puts a class into one queue.
    fn step_in(&mut self, id: ClassId, wait: Wait) {
        let Some(class) = self.classes.get(id) else {
            return;
        };
        let team = class.team;
        let Some(place) = class.line.standing() else {
            return;
        };
        if wait == Wait::Change {
            self.waits.change.insert(id);
            return;
        }
        let precedence = self.precedence_if_listed(team, wait);
        if let Some(queue) = self.waits.queue_mut(wait) {
            queue.insert(team, place, id, precedence);
        }
        if let Some(entry) = self.teams.get_mut(team) {
            entry.queues.insert(wait);
        }
    }

    /// Has a class wait for something more.
    pub(super) fn wait_for(&mut self, id: ClassId, wait: Wait) {
        let Some(class) = self.classes.get_mut(id) else {
            return;
        };
        if !class.waits.insert(wait) {
            return;
        }
        if let Wait::Place(group) = wait
            && self.waits.is_open(wait)
        {
            // It was refused after the group opened.
            let team = class.team;
            self.waits.pass(group, team, id);
        } else {
            self.step_in(id, wait);
        }
    }

    /// Takes a class out of every queue.
    pub(super) fn leave_all_queues(&mut self, id: ClassId) {
        let Some(class) = self.classes.get_mut(id) else {
            return;
        };
        self.hopes.forget(id);
        self.share_waits.forget(&self.moments.afterwards, id);
        let waits = std::mem::take(&mut class.waits);
        let watches = std::mem::take(&mut class.watches);
        let within_nominal = std::mem::take(&mut class.within_nominal);
        let place = class.line.standing();
        self.backfill.forget(id);
        for (node, pair) in watches {
            self.waits.unwatch(node, pair, id);
        }
        for needs in within_nominal {
            self.waits.forget_nominal(needs, id);
        }
        for wait in waits {
            if let Some(place) = &place {
                self.step_out(id, wait, place);
            } else if wait == Wait::Change {
                self.waits.change.remove(&id);
            }
            self.waits.tidy(wait);
        }
    }

    /// Has a class judged again, whatever it waits for.
    pub(super) fn wake(&mut self, id: ClassId) {
        let Some(class) = self.classes.get(id) else {
            return;
        };
        let active = self
            .teams
            .get(class.team)
            .is_some_and(|team| team.node.is_some());
        if class.waits.contains(&Wait::Ready) && active {
            return;
        }
        self.leave_all_queues(id);
        if active {
            self.wait_for(id, Wait::Ready);
        }
    }

    /// Has all classes of a Team judged again.
    pub(super) fn wake_team(&mut self, team: TeamId) {
        for class in self.classes_of(team) {
            self.wake(class);
        }
    }

    pub(super) fn classes_of(&self, team: TeamId) -> BTreeSet<ClassId> {
        let Some(entry) = self.teams.get(team) else {
            return BTreeSet::new();
        };
        let gangs = entry.line.values();
        gangs
            .filter_map(|gang| self.waiting.get(*gang)?.class)
            .collect()
    }

    /// Puts what was set aside back in line.
    pub(super) fn step_back_in(&mut self, group: GroupId, passed: BTreeMap<ClassId, TeamId>) {
        for class in passed.into_keys() {
            self.step_in(class, Wait::Place(group));
        }
    }

    /// By what a Team is listed in a queue.
    pub(super) fn precedence(&self, team: TeamId, wait: Wait) -> Precedence {
        if self.fair_root_of(team).is_some() {
            Precedence::ByShare
        } else {
            Precedence::Reaching(self.borrow_level(team, wait))
        }
    }

    /// No gang of the Team in this queue is had from less far up than this.
    fn borrow_level(&self, team: TeamId, wait: Wait) -> usize {
        let Some(entry) = self.teams.get(team) else {
            return 0;
        };
        let Some(node) = entry.node else { return 0 };
        // Once others have given way it may borrow nothing.
        if self.may_preempt(team) {
            return 0;
        }
        let by_gpus = |assignment: &Assignment| {
            let gpus = assignment.gpus;
            gpus.map_or(0, |gpus| self.tree.least_borrow_level(node, gpus))
        };
        match wait {
            Wait::Quota(_, pair, _) => self.tree.least_borrow_level(node, pair),
            Wait::Place(group) => {
                let group = self
                    .waits
                    .group_of(group)
                    .filter(|group| group.needs_devices);
                let flavor = group.and_then(Group::flavor);
                let mut all = entry.assignments.iter();
                all.find(|assignment| Some(&assignment.flavor) == flavor)
                    .map_or(0, by_gpus)
            }
            // A gang that asks for no GPU is not bound by what GPUs are borrowed.
            Wait::Ready | Wait::Change if entry.without_devices > 0 => 0,
            Wait::Ready | Wait::Change => entry.assignments.iter().map(by_gpus).min().unwrap_or(0),
        }
    }

    fn precedence_if_listed(&self, team: TeamId, wait: Wait) -> Option<Precedence> {
        let listed = self.teams.get(team).is_some_and(|entry| entry.listed);
        listed.then(|| self.precedence(team, wait))
    }

    /// Lists a Team in all its queues, or in none.
    pub(super) fn list(&mut self, team: TeamId, listed: bool) {
        let Some(entry) = self.teams.get_mut(team) else {
            return;
        };
        entry.listed = listed;
        for wait in entry.queues.clone() {
            let precedence = self.precedence_if_listed(team, wait);
            if let Some(queue) = self.waits.queue_mut(wait) {
                queue.relist(team, precedence);
            }
        }
    }
}
