//! What one poll looks at: the observations, what is under way, and the time.

use std::cell::Cell;

use muster_api::Gang;
use muster_engine::{self as engine, recovery::ResetTurns};

use crate::{
    Config, Now,
    admission::checkpoints::Checkpoints,
    admission::plan::Plan,
    admission::preempt::{self, Goes},
    admission::stage::Views,
    clocks::Clocks,
    disruptions::Disruptions,
    drains::Drains,
    faults::{breaker::BreakerView, check::FaultChecks},
    feed::Explanations,
    in_flight::InFlightWrites,
    injected_bug::InjectedBugs,
    leadership::newest::NewestLeader,
    nodes::{check::NodeChecks, health::NodeHealth},
    outward::{force::Forcing, preemption},
    stalls::Stalls,
    tables::permits::PermitTable,
    tables::plans::{Committed, Plans},
};
use muster_cluster::{
    formed::{FormedGang, GangKey},
    index::Index,
    object::ObjectKey,
};

/// Read-only: what is owed is worked out of this alone, so a poll is a function of what is observed.
#[derive(Clone, Copy)]
pub(crate) struct PollContext<'a> {
    pub(crate) config: &'a Config,
    pub(crate) index: &'a Index,
    pub(crate) flights: &'a InFlightWrites,
    pub(crate) plans: &'a Plans,
    pub(crate) permits: &'a PermitTable,
    pub(crate) views: &'a Views,
    pub(crate) explanations: &'a Explanations,
    pub(crate) engine: &'a engine::State,
    /// Whether the engine decided once about everything that it was told: before, it knows of no preemption.
    pub(crate) has_decided: bool,
    pub(crate) clocks: &'a Clocks,
    pub(crate) checkpoints: &'a Checkpoints,
    pub(crate) health: &'a NodeHealth,
    pub(crate) node_checks: &'a NodeChecks,
    pub(crate) fault_checks: &'a FaultChecks,
    pub(crate) stalls: &'a Stalls,
    pub(crate) drains: &'a Drains,
    pub(crate) disruptions: &'a Disruptions,
    pub(crate) forcing: &'a Forcing,
    pub(crate) breaker: &'a BreakerView,
    pub(crate) resets: &'a ResetTurns,
    pub(crate) newest: &'a NewestLeader,
    pub(crate) bugs: InjectedBugs,
    /// The epoch of this leadership.
    pub(crate) epoch: i64,
    pub(crate) now: Now,
    /// When this leader began.
    pub(crate) began: Now,
    /// The earliest second at which the answer to a question about time changes. Whoever compares with the clock says so
    /// by [`PollContext::has_come`], so that nothing has to be asked in between.
    pub(crate) wake: &'a Cell<Option<u64>>,
}

impl<'a> PollContext<'a> {
    /// Whether a write of the object is under way, or nothing may be written to it.
    pub(crate) fn busy(self, key: &ObjectKey) -> bool {
        self.flights.busy(key)
    }

    /// The intent about a Gang, by its name.
    pub(crate) fn intent_of(self, key: &GangKey) -> Option<&'a Committed> {
        self.plans.committed(key)
    }

    /// The Gang that a plan is of, unless it was deleted or made again.
    pub(crate) fn gang_of(self, plan: &Plan) -> Option<&'a Gang> {
        let gang = self.index.gang(&plan.key)?;
        (gang.metadata.uid.as_deref() == Some(&plan.gang_uid)).then_some(gang)
    }

    /// Whether the Gang says of what is kept for it now that others give way, so that this is known to whoever leads next. What it says
    /// may be of what was kept for it before.
    pub(crate) fn is_reservation_recorded(self, gang_uid: &str) -> bool {
        let gang = self.index.gang_by_uid(gang_uid);
        let status = gang.and_then(|gang| gang.status.as_ref());
        let known = status.and_then(|status| status.reservation.as_ref());
        let kept = self.engine.kept_for(&gang_uid.into());
        known
            .zip(kept)
            .is_some_and(|(known, kept)| preemption::says(self, known, &kept))
    }

    /// To whom a Gang is to give way, as the engine has it now.
    pub(crate) fn gives_way(self, gang_uid: &str) -> Option<engine::GivesWay<'a>> {
        self.engine.gives_way_to(&gang_uid.into())
    }

    /// For what a Gang is to go, as the engine has it now.
    pub(crate) fn goes(self, gang_uid: &str) -> Option<Goes<'a>> {
        preempt::goes(self.engine, gang_uid)
    }

    /// The gang as its pods declare it.
    pub(crate) fn formed(self, key: &GangKey) -> Option<&'a FormedGang> {
        self.index.formed_gang(key)
    }

    /// Whether the Gang carries the attempt of a plan.
    pub(crate) fn carries(gang: &Gang, plan: &Plan) -> bool {
        gang.status
            .as_ref()
            .is_some_and(|status| status.admission.is_some() && status.attempt == plan.attempt)
    }

    /// Whether that second of the monotonic clock has come. What is being looked at is looked at again then.
    pub(crate) fn has_come(self, second: u64) -> bool {
        if second <= self.now.monotonic_seconds {
            return true;
        }
        let earliest = self.wake.get().map_or(second, |other| other.min(second));
        self.wake.set(Some(earliest));
        false
    }
}

/// The attempt of a Gang: its first one while its status was never written.
pub(crate) fn attempt(gang: &Gang) -> i64 {
    gang.status
        .as_ref()
        .map_or(gang.spec.first_attempt, |status| status.attempt)
}
