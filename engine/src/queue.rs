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
        Self {
            priority: Reverse(gang.priority),
            queued_at: gang.queued_at,
            gang: gang.uid.clone(),
        }
    }
}
