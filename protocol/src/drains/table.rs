//! Who is on what is drained, where they may go, and whose turn it is.

use std::collections::{BTreeMap, BTreeSet};

use muster_api::Gang;
use muster_cluster::{formed::GangKey, object::ObjectKey};
use muster_engine::{Elsewhere, NodeName};

use super::{Drained, as_asked};
use crate::{EffectId, admission::plan::Plan, faults, poll_context::PollContext};

/// After how many seconds it is looked for a place again, or read again what did not say that it is drained.
pub(super) const LOOK_AGAIN_SECONDS: u64 = 30;
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
    /// What the last look for a place found.
    pub(super) elsewhere: Option<Elsewhere>,
    /// Why it cannot be looked for one.
    pub(super) is_unknown: Option<String>,
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

/// What the last reads of Nodes and rules showed.
#[derive(Debug, Default)]
pub(super) struct Checks {
    /// Reads under way, and when they were begun.
    pub(super) under_way: BTreeMap<EffectId, (ObjectKey, u64)>,
    /// When each was read last, or is.
    pub(super) asked_at: BTreeMap<ObjectKey, u64>,
    /// What said that it is drained, and when that read was begun.
    pub(super) confirmed_at: BTreeMap<ObjectKey, u64>,
}

/// Attempts on what is drained, and gangs that are being moved, by the UID of their Gang.
#[derive(Debug, Default)]
pub(crate) struct Drains {
    pub(super) entries: BTreeMap<String, Entry>,
    moving: BTreeMap<String, Moving>,
    /// Gangs that wait until another node's turn is over.
    waiting: BTreeSet<GangKey>,
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

    /// A Gang is gone; who may have a turn by that.
    pub(crate) fn forget(&mut self, gang_uid: &str) -> BTreeSet<GangKey> {
        self.remove(gang_uid);
        self.moving.remove(gang_uid);
        self.whose_turn_comes()
    }

    /// The attempt is not on anything that is drained any more, or over. What it was.
    pub(super) fn remove(&mut self, gang_uid: &str) -> Option<Entry> {
        let entry = self.entries.remove(gang_uid)?;
        let object = &entry.drained.first.object;
        let mut others = self.entries.values();
        if !others.any(|other| other.drained.first.object == *object) {
            self.checks.asked_at.remove(object);
            self.checks.confirmed_at.remove(object);
        }
        Some(entry)
    }

    pub(super) fn entry(&self, plan: &Plan) -> Option<&Entry> {
        let entry = self.entries.get(&plan.gang_uid)?;
        (entry.attempt == plan.attempt).then_some(entry)
    }

    /// The nodes that have their turn, and the places of the gangs that are moved away from them, but for one Gang.
    fn turns(&self, but_for: &str) -> impl Iterator<Item = (&NodeName, &BTreeSet<NodeName>)> {
        let entries = self.entries.iter().filter(move |(uid, _)| *uid != but_for);
        let granted = entries.filter_map(|(_, entry)| match &entry.elsewhere {
            Some(Elsewhere::On(place)) => Some((&entry.drained.first.node, place)),
            Some(Elsewhere::Nowhere(_)) | None => None,
        });
        let moving = self.moving.iter();
        let moving = moving.filter(move |(uid, moving)| moving.counts && *uid != but_for);
        granted.chain(moving.map(|(_, moving)| (&moving.node, &moving.place)))
    }

    /// Another node that has its turn, if one has.
    pub(super) fn turn_of_another(&self, gang_uid: &str, node: &NodeName) -> Option<&NodeName> {
        let mut turns = self.turns(gang_uid).map(|(turn, _)| turn);
        turns.find(|turn| *turn != node)
    }

    /// Those who waited for a turn, if no node has it any more.
    pub(super) fn whose_turn_comes(&mut self) -> BTreeSet<GangKey> {
        if self.turns("").next().is_some() {
            return BTreeSet::new();
        }
        std::mem::take(&mut self.waiting)
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
            self.moving.remove(gang_uid);
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
            let entry = Entry {
                key: plan.key.clone(),
                attempt: plan.attempt,
                drained,
                pods: plan.ranks.iter().map(|rank| rank.pod.clone()).collect(),
                seen_at: now,
                looked_at: None,
                elsewhere: None,
                is_unknown: None,
            };
            self.entries.insert(uid.to_owned(), entry);
        }
        let Some(entry) = self.entries.get(uid) else {
            return;
        };
        let is_later = self
            .turn_of_another(uid, &entry.drained.first.node)
            .is_some();
        if faults::held_back(context).is_some() || is_later {
            if is_later {
                self.waiting.insert(plan.key.clone());
            }
            self.set_elsewhere(uid, None);
            return;
        }
        let again_at = entry
            .looked_at
            .map(|at| at.saturating_add(LOOK_AGAIN_SECONDS));
        if again_at.is_some_and(|at| !context.has_come(at)) {
            return;
        }
        let taken = self.turns(uid).flat_map(|(_, place)| place);
        let without: BTreeSet<NodeName> = taken.chain(&entry.drained.nodes).cloned().collect();
        let (elsewhere, is_unknown) = match as_asked(context, gang, plan) {
            Some(Ok(asked)) => (Some(context.engine.elsewhere(&asked, &without)), None),
            Some(Err(why)) => (None, Some(why)),
            // It is looked at again when that is known.
            None => (None, None),
        };
        let is_answered = elsewhere.is_some() || is_unknown.is_some();
        self.set_elsewhere(uid, elsewhere);
        if let Some(entry) = self.entries.get_mut(uid) {
            entry.is_unknown = is_unknown;
            entry.looked_at = is_answered.then_some(now);
        }
        if is_answered {
            context.has_come(now.saturating_add(LOOK_AGAIN_SECONDS));
        }
    }

    fn set_elsewhere(&mut self, gang_uid: &str, elsewhere: Option<Elsewhere>) {
        if let Some(entry) = self.entries.get_mut(gang_uid) {
            if elsewhere.is_none() {
                entry.looked_at = None;
            }
            entry.elsewhere = elsewhere;
        }
    }

    pub(super) fn confirms(&self, object: &ObjectKey, since: u64) -> bool {
        let confirmed_at = self.checks.confirmed_at.get(object);
        confirmed_at.is_some_and(|at| *at >= since)
    }
}
