//! What is committed is carried out: Gangs, permits, pods; and what is reported of it.

pub(crate) mod capacity_status;
pub(crate) mod conditions;
pub(crate) mod event_budget;
pub(crate) mod events;
pub(crate) mod evict;
pub(crate) mod force;
pub(crate) mod gang_status;
pub(crate) mod gangs;
pub(crate) mod nudge;
pub(crate) mod patch;
pub(crate) mod permits;
pub(crate) mod preemption;
pub(crate) mod queue_status;
mod quota_conditions;
pub(crate) mod recovery;
pub(crate) mod release;
pub(crate) mod restarts;
pub(crate) mod still_prepared;
pub(crate) mod ungate;
pub(crate) mod window;
