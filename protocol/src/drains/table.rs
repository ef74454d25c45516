//! Who is on what is drained, where they may go, and whose turn it is.

use std::collections::{BTreeMap, BTreeSet};

use muster_api::Gang;
use muster_cluster::{
    formed::GangKey,
    object::{Object, ObjectKey},
};
use muster_engine::{Elsewhere, NodeName};

use super::{as_asked, drained::Drained};
use crate::{EffectId, admission::plan::Plan, faults, poll_context::PollContext};

/// After how many seconds it is looked for a place again, or read again what did not say that it is drained.
pub(super) const LOOK_AGAIN_SECONDS: u64 = 30;
/// For how many gangs a place is looked for in a second at most: each may take 3 ms of the leader's task.
const MOST_LOOKS_PER_SECOND: usize = 8;
/// For how long a node has its turn because of a gang that was moved away from it and does not run yet, in seconds.
const MOST_MOVING_SECONDS: u64 = 600;

/// An attempt on what is drained.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: GangKey,
    pub(super) attempt: i64,
    pub(super) drained: Drained,
    /// UIDs of its pods, which may be planned anew.
    pub(super) pods: Vec<String>,
    /// Since when it is seen.
    pub(super) seen_at: u64,
    pub(super) looked_at: Option<u64>,
    /// When it may be looked again, if it is to be.
    look_at: Option<u64>,
    /// What the last look for a place found.
    pub(super) elsewhere: Option<Elsewhere>,
    /// Why it cannot be looked for one.
    pub(super) is_unknown: Option<String>,
    /// When the last read was begun that said that it is drained; none: the last one did not, or there was none.
    confirmed_at: Option<u64>,
    /// Whether the last read did not say that it is drained.
    is_denied: bool,
}

impl Entry {
    /// The second from which on it counts no more that the store said so since it is seen; `None`: it did not.
    pub(super) fn confirmed_until(&self) -> Option<u64> {
        let at = self.confirmed_at.filter(|at| *at >= self.seen_at)?;
        Some(at.saturating_add(LOOK_AGAIN_SECONDS + 1))
    }

    /// Where it is to go, if it is the turn of its node because of it.
    fn place(&self) -> Option<&BTreeSet<NodeName>> {
        match &self.elsewhere {
            Some(Elsewhere::On(place)) if !self.is_denied => Some(place),
            _ => None,
        }
    }
}

/// A gang that was evicted to be moved, and does not run again yet.
#[derive(Debug)]
struct Moving {
    node: NodeName,
    /// Where it was to go, as far as this leader knows.
    place: BTreeSet<NodeName>,
    since: u64,
    /// Whether its node has its turn still.
    counts: bool,
}

/// Reads of Nodes and rules.
#[derive(Debug, Default)]
pub(super) struct Checks {
    /// Reads under way, and when they were begun.
    pub(super) under_way: BTreeMap<EffectId, (ObjectKey, u64)>,
    /// When each was read last, or is.
    pub(super) asked_at: BTreeMap<ObjectKey, u64>,
}

/// Attempts on what is drained, and gangs that are being moved, by the UID of their Gang.
#[derive(Debug, Default)]
pub(crate) struct Drains {
    pub(super) entries: BTreeMap<String, Entry>,
    moving: BTreeMap<String, Moving>,
    /// The Gangs among these because of which a node has its turn.
    holders: BTreeSet<String>,
    /// The Gangs among the entries by what says that they are drained.
    by_object: BTreeMap<ObjectKey, BTreeSet<String>>,
    /// The second for which the last look was given out, and how many for it.
    looks: (u64, usize),
    /// Gangs that wait until another node's turn is over, by their own.
    waiting: BTreeMap<NodeName, BTreeSet<GangKey>>,
    /// Those whose node has its turn by now.
    awake: BTreeSet<GangKey>,
    pub(super) checks: Checks,
    /// Whether pods may be planned anew since this was asked that might not before.
    pub(super) is_any_anew: bool,
}

impl Drains {
    /// Gangs on what is drained.
    pub(crate) fn gangs(&self) -> impl Iterator<Item = &GangKey> {
        self.entries.values().map(|entry| &entry.key)
    }

    /// Whether pods may be planned anew, since this was asked, that might not before: their rules about nodes are to be read.
    pub(crate) fn take_anew(&mut self) -> bool {
        std::mem::take(&mut self.is_any_anew)
    }

    /// A Gang that was being moved is gone; who may have a turn by that.
    pub(super) fn forget_moving(&mut self, gang_uid: &str) -> BTreeSet<GangKey> {
        self.moving.remove(gang_uid);
        self.note_holder(gang_uid);
        self.whose_turn_comes()
    }

    /// The attempt is not on anything that is drained any more, or over. What it was.
    pub(super) fn remove(&mut self, gang_uid: &str) -> Option<Entry> {
        let entry = self.entries.remove(gang_uid)?;
        self.note_holder(gang_uid);
        let object = &entry.drained.first.object;
        let others = self.by_object.get_mut(object);
        let is_last = others.is_none_or(|others| {
            others.remove(gang_uid);
            others.is_empty()
        });
        if is_last {
            self.by_object.remove(object);
            self.checks.asked_at.remove(object);
        }
        Some(entry)
    }

    pub(super) fn entry(&self, plan: &Plan) -> Option<&Entry> {
        let entry = self.entries.get(&plan.gang_uid)?;
        (entry.attempt == plan.attempt).then_some(entry)
    }

    /// Notes whether a node has its turn because of a Gang.
    fn note_holder(&mut self, gang_uid: &str) {
        let entry = self.entries.get(gang_uid);
        let entry = entry.filter(|entry| entry.place().is_some());
        let granted = entry.map(|entry| &entry.drained.first.node);
        let moving = self.moving.get(gang_uid).filter(|moving| moving.counts);
        let left = moving.map(|moving| &moving.node);
        let nodes: Vec<NodeName> = granted.into_iter().chain(left).cloned().collect();
        if nodes.is_empty() {
            self.holders.remove(gang_uid);
        } else if self.holders.insert(gang_uid.to_owned()) {
            for node in &nodes {
                let mut same = self.waiting.remove(node).unwrap_or_default();
                self.awake.append(&mut same);
            }
        }
    }

    /// The nodes that have their turn, and the places of the gangs that are moved away from them, but for one Gang. It costs the gangs of these
    /// nodes, and not all that wait.
    fn turns(&self, but_for: &str) -> impl Iterator<Item = (&NodeName, &BTreeSet<NodeName>)> {
        let holders = self.holders.iter().filter(move |uid| *uid != but_for);
        holders.flat_map(move |uid| {
            let entry = self.entries.get(uid);
            let granted = entry.and_then(|entry| Some((&entry.drained.first.node, entry.place()?)));
            let moving = self.moving.get(uid).filter(|moving| moving.counts);
            let moving = moving.map(|moving| (&moving.node, &moving.place));
            granted.into_iter().chain(moving)
        })
    }

    /// Whether another node has its turn.
    pub(super) fn is_turn_of_another(&self, gang_uid: &str, node: &NodeName) -> bool {
        self.turns(gang_uid).any(|(turn, _)| turn != node)
    }

    /// Those whose turn it is who waited for it: of one node, if none has it any more. It is asked after each of them, so the next node has its
    /// turn if none of these takes it, and not all look who wait.
    pub(super) fn whose_turn_comes(&mut self) -> BTreeSet<GangKey> {
        let mut awake = std::mem::take(&mut self.awake);
        if self.holders.is_empty()
            && let Some((_, mut next)) = self.waiting.pop_first()
        {
            awake.append(&mut next);
        }
        awake
    }

    /// Takes what a read of an object that was begun then has shown; `None`: it is gone, or there was no answer. Who is to be looked at again.
    pub(super) fn take_answer(
        &mut self,
        object: &ObjectKey,
        begun_at: u64,
        stored: Option<&Object>,
    ) -> BTreeSet<GangKey> {
        let concerned = self.by_object.get(object).cloned().unwrap_or_default();
        let mut again = BTreeSet::new();
        for uid in concerned {
            let Some(entry) = self.entries.get_mut(&uid) else {
                continue;
            };
            let part = &entry.drained.first.part;
            let is_drained = stored.is_some_and(|stored| part.is_drained_by(stored));
            entry.confirmed_at = is_drained.then_some(begun_at);
            entry.is_denied = !is_drained;
            again.insert(entry.key.clone());
            self.note_holder(&uid);
        }
        again.append(&mut self.whose_turn_comes());
        again
    }

    /// Gives out a look: the second in which it may be taken. In the order in which they are asked for, so that each gets its turn.
    fn give_look(&mut self, now: u64) -> u64 {
        let (second, given) = self.looks;
        self.looks = if second < now {
            (now, 1)
        } else if given < MOST_LOOKS_PER_SECOND {
            (second, given + 1)
        } else {
            (second.saturating_add(1), 1)
        };
        self.looks.0
    }

    /// Notes whether a Gang is being moved, and away from which node.
    pub(super) fn note_moving(
        &mut self,
        context: PollContext<'_>,
        gang_uid: &str,
        from: Option<NodeName>,
    ) {
        let now = context.now.monotonic_seconds;
        let Some(node) = from else {
            if self.moving.remove(gang_uid).is_some() {
                self.note_holder(gang_uid);
            }
            return;
        };
        let place = self.entries.get(gang_uid).and_then(|entry| {
            let Some(Elsewhere::On(place)) = &entry.elsewhere else {
                return None;
            };
            Some(place.clone())
        });
        let moving = self.moving.entry(gang_uid.to_owned());
        let moving = moving.or_insert_with(|| Moving {
            node,
            place: place.unwrap_or_default(),
            since: now,
            counts: true,
        });
        moving.counts = !context.has_come(moving.since.saturating_add(MOST_MOVING_SECONDS));
        self.note_holder(gang_uid);
    }

    /// Notes what is drained under an attempt, and looks for a place where it may go, if that is due.
    pub(super) fn note(
        &mut self,
        context: PollContext<'_>,
        plan: &Plan,
        gang: &Gang,
        drained: Drained,
    ) {
        let now = context.now.monotonic_seconds;
        let uid = plan.gang_uid.as_str();
        let is_known = self
            .entry(plan)
            .is_some_and(|entry| entry.drained == drained);
        if !is_known {
            self.remove(uid);
            let object = drained.first.object.clone();
            self.by_object
                .entry(object)
                .or_default()
                .insert(uid.to_owned());
            let entry = Entry {
                key: plan.key.clone(),
                attempt: plan.attempt,
                drained,
                pods: plan.ranks.iter().map(|rank| rank.pod.clone()).collect(),
                seen_at: now,
                looked_at: None,
                look_at: None,
                elsewhere: None,
                is_unknown: None,
                confirmed_at: None,
                is_denied: false,
            };
            self.entries.insert(uid.to_owned(), entry);
        }
        let Some(entry) = self.entries.get(uid) else {
            return;
        };
        if entry.drained.left.is_some() {
            return;
        }
        if faults::held_back(context).is_some() {
            self.set_elsewhere(uid, None);
            return;
        }
        let node = entry.drained.first.node.clone();
        if self.is_turn_of_another(uid, &node) {
            // Who has no place is told so meanwhile, as of the last look.
            let is_granted = matches!(entry.elsewhere, Some(Elsewhere::On(_)));
            let waiting = self.waiting.entry(node).or_default();
            waiting.insert(plan.key.clone());
            if is_granted {
                self.set_elsewhere(uid, None);
            } else if let Some(entry) = self.entries.get_mut(uid) {
                entry.look_at = None;
            }
            return;
        }
        let again_at = entry
            .looked_at
            .map(|at| at.saturating_add(LOOK_AGAIN_SECONDS));
        if again_at.is_some_and(|at| !context.has_come(at)) {
            return;
        }
        let asked = match as_asked(context, gang, plan) {
            Some(Ok(asked)) => asked,
            Some(Err(why)) => {
                self.set_elsewhere(uid, None);
                self.note_look(context, uid, Some(why));
                return;
            }
            // It is looked at again when that is known.
            None => {
                self.set_elsewhere(uid, None);
                return;
            }
        };
        let given = entry.look_at;
        let look_at = given.unwrap_or_else(|| self.give_look(now));
        if !context.has_come(look_at) {
            if let Some(entry) = self.entries.get_mut(uid) {
                entry.look_at = Some(look_at);
            }
            return;
        }
        let taken = self.turns(uid).flat_map(|(_, place)| place);
        let drained = self.entries.get(uid).map(|entry| &entry.drained.nodes);
        let without: BTreeSet<NodeName> = taken
            .chain(drained.into_iter().flatten())
            .cloned()
            .collect();
        let elsewhere = context.engine.elsewhere(&asked, &without);
        self.set_elsewhere(uid, Some(elsewhere));
        self.note_look(context, uid, None);
    }

    /// Notes that it was looked, or why it could not be.
    fn note_look(&mut self, context: PollContext<'_>, gang_uid: &str, is_unknown: Option<String>) {
        let now = context.now.monotonic_seconds;
        if let Some(entry) = self.entries.get_mut(gang_uid) {
            entry.is_unknown = is_unknown;
            entry.looked_at = Some(now);
        }
        context.has_come(now.saturating_add(LOOK_AGAIN_SECONDS));
    }

    fn set_elsewhere(&mut self, gang_uid: &str, elsewhere: Option<Elsewhere>) {
        if let Some(entry) = self.entries.get_mut(gang_uid) {
            if elsewhere.is_none() {
                entry.looked_at = None;
            }
            entry.look_at = None;
            entry.elsewhere = elsewhere;
        }
        self.note_holder(gang_uid);
    }
}

#[cfg(test)]
mod tests;
