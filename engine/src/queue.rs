//! The order in which gangs are served.

use std::cmp::{Ordering, Reverse};

use crate::{
    fairness::WeightedUse,
    model::Gang,
    names::{GangUid, Timestamp},
};

/// A gang's place: the higher tier first (S14), then who waits longest, then the smaller UID.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    priority: Reverse<i32>,
    queued_at: Timestamp,
    gang: GangUid,
}

impl Place {
    pub(crate) fn of(gang: &Gang) -> Self {
        Self::new(gang.priority, gang.queued_at, gang.uid.clone())
    }

    /// A place that nobody stands before.
    pub(crate) fn first_of_all() -> Self {
        Self::new(i32::MAX, Timestamp(i64::MIN), GangUid::from(""))
    }

    pub(crate) fn new(priority: i32, queued_at: Timestamp, gang: GangUid) -> Self {
        Self {
            priority: Reverse(priority),
            queued_at,
            gang,
        }
    }

    /// Whose tier is higher: that one is less.
    pub(crate) fn compare_priority(&self, other: &Self) -> Ordering {
        self.priority.cmp(&other.priority)
    }
}

/// Where a gang or a class of gangs stands in the line of its Team: the higher tier first (S14), then whose namespace used less
/// where its Team goes by that ([`crate::fairness`]), then by place. Between Teams only places are compared: what namespaces of
/// different Teams used has nothing in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Standing {
    priority: Reverse<i32>,
    used: WeightedUse,
    place: Place,
}

impl Standing {
    pub(crate) fn new(used: WeightedUse, place: Place) -> Self {
        Self {
            priority: place.priority,
            used,
            place,
        }
    }

    /// The place, whatever was used.
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// What the namespace used.
    pub(crate) fn used(&self) -> WeightedUse {
        self.used
    }
}
