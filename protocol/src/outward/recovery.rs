//! For how long a Gang says that what its last attempt held is kept for it.
//!
//! **Written** with the attempt that ends it, by the same write: `status.recovery` says why, since when and until when, and `status.proposal` goes on
//! saying what was held. It is taken back by the write that admits the gang again, ends it, or tells that it is over: since its time is, since others
//! have what was kept, or since somebody holds the gang back. It is over no later than the attempt would have been by its max-runtime-seconds: others
//! wait for the place by that, or were let in. The engine keeps what is kept ([`muster_engine::Recovering`]), and says whether it does still.
//!
//! **An admission that is taken back** before the Gang carries it, as a new leader takes back what a former one committed, is an attempt more, and the gang goes on
//! recovering from that ([`after_void`]). One that the Gang carries has ended the recovery: what came of it then is no matter of the fault any more.
//!
//! **Twice, late, never.** All of it is one object, under its resourceVersion. A new leader reads it and goes on; a leader that was superseded conflicts.
//! Where the API server does not store the field, since its definition of the Gang is older, nothing is kept.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use muster_api::{Gang, GangPhase, GangStatus, Reason, gang::GangRecovery, team::Stop};
use muster_cluster::{formed::has_ended, rank_state::RankState};

use crate::{
    Mode, admission::plan::Plan, feed::running, jobs, outward::restarts, poll_context::PollContext,
};

/// What is kept after an attempt that ended so (`cause`: why it was evicted; none if all its pods ended). `status`: that of its Gang in the next
/// attempt, with the pause that it makes and the failures that were counted.
///
/// Nothing is kept for whom somebody's will ended: another gang, a limit, an administrator, its user. Nor for pods that fail by themselves where
/// nobody said how often they may: they would keep what nobody uses for ever.
pub(crate) fn after(
    context: PollContext<'_>,
    gang: &Gang,
    plan: &Plan,
    cause: Option<Reason>,
    status: &GangStatus,
) -> Option<GangRecovery> {
    let ends_at = running::ends_at(context, gang, plan).unwrap_or(u64::MAX);
    let might_run_for = ends_at.saturating_sub(context.now.monotonic_seconds);
    let seconds = context.config.recovery.keep_seconds.min(might_run_for);
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    let mut owners = gang.metadata.owner_references.iter().flatten();
    let is_out_of_question = seconds <= 0
        || context.config.mode == Mode::Observe
        || plan.adopted
        || plan.ranks.is_empty()
        || gang.metadata.deletion_timestamp.is_some()
        || is_held_back(context, gang, &plan.team)
        || owners.next().is_none()
        || jobs::of_plan(context, plan)
            .iter()
            .any(|job| jobs::is_ending(job) || jobs::is_drained_queue(context.index, job));
    if is_out_of_question {
        return None;
    }
    let may_fail = || {
        let mut states = plan.states(context);
        let has_failed = states.any(|(_, state)| state == RankState::Failed);
        let by_itself = restarts::failed_by_themselves(context, plan, cause) > 0;
        let failures = status.failed_attempts;
        has_failed && (!by_itself || restarts::are_left(context, &plan.key, gang, failures))
    };
    let reason = match cause {
        Some(cause @ (Reason::DeviceFault | Reason::NodeLost | Reason::NoProgress)) => cause,
        None | Some(Reason::PodFailed) if may_fail() => Reason::PodFailed,
        _ => return None,
    };
    // The API server keeps whole seconds.
    let since = Timestamp::from_second(context.now.wall.as_second()).ok()?;
    let until = since.checked_add(SignedDuration::from_secs(seconds)).ok()?;
    let pauses_longer = status.requeue_at.as_ref().is_some_and(|at| at.0 >= until);
    (!pauses_longer).then_some(GangRecovery {
        attempt: plan.attempt,
        reason,
        since: Time(since),
        until: Time(until),
    })
}

/// What is kept after an admission is taken back that the Gang does not carry: what it was admitted to, for as long as was said of what it recovered from.
/// Its own attempt ended for no other reason than that, and nobody else was to have it.
pub(crate) fn after_void(
    context: PollContext<'_>,
    gang: &Gang,
    plan: &Plan,
) -> Option<GangRecovery> {
    let recovery = of(context, gang)?;
    (recovery.attempt + 1 == plan.attempt).then(|| GangRecovery {
        attempt: plan.attempt,
        ..recovery.clone()
    })
}

/// Whether somebody wants the gang, or all of its Team, not to start.
pub(crate) fn is_held_back(context: PollContext<'_>, gang: &Gang, team: &str) -> bool {
    let team = context.index.team(team);
    gang.spec.suspend || team.is_none_or(|team| team.spec.stop != Stop::None)
}

/// What a Gang says of its recovery, if that goes on as far as its objects show it.
pub(crate) fn of<'a>(context: PollContext<'_>, gang: &'a Gang) -> Option<&'a GangRecovery> {
    let status = gang.status.as_ref()?;
    let recovery = status.recovery.as_ref()?;
    let team = status.team.as_deref().unwrap_or_default();
    let goes_on = recovery.attempt + 1 == status.attempt
        && status.admission.is_none()
        && context.config.mode == Mode::Enforce
        && !has_ended(gang)
        && gang.metadata.deletion_timestamp.is_none()
        && !is_held_back(context, gang, team);
    let is_over = || context.has_come(over_at(context, recovery));
    (goes_on && !is_over()).then_some(recovery)
}

/// The second of the monotonic clock in which nothing is kept any more. A time of day that was ahead when it was written keeps nothing for longer
/// than is kept at most.
pub(crate) fn over_at(context: PollContext<'_>, recovery: &GangRecovery) -> u64 {
    let until = recovery.until.0.as_second();
    let left = until.saturating_sub(context.now.wall.as_second());
    let left = u64::try_from(left).unwrap_or(0);
    let left = left.min(context.config.recovery.keep_seconds);
    context.now.monotonic_seconds.saturating_add(left)
}

/// Writes into the status of a gang that holds nothing whether it recovers still.
pub(crate) fn tell(context: PollContext<'_>, gang: &Gang, status: &mut GangStatus) {
    let Some(recovery) = &status.recovery else {
        return;
    };
    let uid = gang.metadata.uid.as_deref().unwrap_or_default();
    let is_over = context
        .engine
        .is_recovery_over(&uid.into(), recovery.attempt);
    if of(context, gang).is_none() || is_over {
        status.recovery = None;
    }
    tell_phase(status);
}

/// The phase of a gang that recovers, once its pods are ended: it is no other gang's turn meanwhile.
pub(crate) fn tell_phase(status: &mut GangStatus) {
    status.phase = match (status.phase, &status.recovery) {
        (GangPhase::Assembling | GangPhase::Pending, Some(_)) => GangPhase::Recovering,
        (GangPhase::Recovering, None) => GangPhase::Pending,
        (phase, _) => phase,
    };
}
