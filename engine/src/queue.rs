//! The order in which gangs are served.

use std::cmp::Reverse;

use crate::{
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
}
