//! The order in which the gangs of a Team are served.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use crate::{
    model::Gang,
    names::{GangUid, TeamName, Timestamp},
};

/// A gang's place: the higher tier first (S14), then who waits longest, then the smaller UID.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    priority: Reverse<i32>,
    queued_at: Timestamp,
    /// Whose place it is.
    pub(crate) gang: GangUid,
}

impl Place {
    pub(crate) fn of(gang: &Gang) -> Self {
        Self {
            priority: Reverse(gang.priority),
            queued_at: gang.queued_at,
            gang: gang.uid.clone(),
        }
    }
}

/// The queue of every Team that has one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queues(BTreeMap<TeamName, BTreeSet<Place>>);

impl Queues {
    pub(crate) fn enter(&mut self, gang: &Gang) {
        let queue = self.0.entry(gang.team.clone()).or_default();
        queue.insert(Place::of(gang));
    }

    pub(crate) fn leave(&mut self, gang: &Gang) {
        if let Some(queue) = self.0.get_mut(&gang.team) {
            queue.remove(&Place::of(gang));
            if queue.is_empty() {
                self.0.remove(&gang.team);
            }
        }
    }

    /// The Teams with gangs that wait.
    pub(crate) fn teams(&self) -> impl Iterator<Item = &TeamName> {
        self.0.keys()
    }

    /// The places of one Team's queue, first to be served first.
    pub(crate) fn of(&self, team: &TeamName) -> impl Iterator<Item = &Place> {
        self.0.get(team).into_iter().flatten()
    }
}
