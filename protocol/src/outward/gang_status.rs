//! What `Gang.status` has to say. Written by the leader only, conditional on UID and resourceVersion, and only
//! when something changed.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use muster_api::{
    Gang, GangPhase, GangStatus, QueuePosition, Reason, conditions as condition_types,
};

use crate::{
    ApiRequest,
    admission::place,
    admission::plan::Plan,
    feed::waiting,
    injected_bug::InjectedBug,
    objects::{bound_node, gang_object, is_gated, is_terminal, phase, stamp},
    outward::conditions::{self, ConditionUpdate},
    poll_context::{PollContext, attempt},
};
use muster_cluster::formed::{Ended, GangKey, PendingReason};

/// The status of a Gang that stays in the attempt it is in, if it has to be written.
pub(crate) fn update(picture: PollContext<'_>, key: &GangKey, gang: &Gang) -> Option<ApiRequest> {
    let mut status = gang.status.clone().unwrap_or_default();
    match Plan::of_gang(key, gang) {
        Some(plan) => tell_admitted(picture, gang, &plan, &mut status),
        None => tell_waiting(picture, key, gang, &mut status),
    }
    write(picture, key, gang, status)
}

/// The Gang in the attempt after its present one, holding nothing.
pub(crate) fn next_attempt(
    picture: PollContext<'_>,
    key: &GangKey,
    gang: &Gang,
) -> Option<ApiRequest> {
    raised_to(picture, key, gang, attempt(gang) + 1)
}

/// The Gang in a given attempt, holding nothing.
pub(crate) fn raised_to(
    picture: PollContext<'_>,
    key: &GangKey,
    gang: &Gang,
    attempt: i64,
) -> Option<ApiRequest> {
    let mut status = gang.status.clone().unwrap_or_default();
    status.attempt = attempt;
    status.admission = None;
    status.placement = None;
    status.finished_at = None;
    tell_waiting(picture, key, gang, &mut status);
    write(picture, key, gang, status)
}

/// The Gang as ended, holding nothing.
pub(crate) fn ended(
    picture: PollContext<'_>,
    key: &GangKey,
    gang: &Gang,
    ended: &Ended,
) -> Option<ApiRequest> {
    let (phase, reason, message) = match ended {
        Ended::Finished => (
            GangPhase::Finished,
            Reason::Completed,
            "all pods ended well".to_owned(),
        ),
        Ended::Failed(details) => (GangPhase::Failed, Reason::PodFailed, details.clone()),
    };
    let mut status = gang.status.clone().unwrap_or_default();
    status.phase = phase;
    status.admission = None;
    status.placement = None;
    status.queue = None;
    if status.finished_at.is_none() {
        status.finished_at = Some(Time(picture.now.wall));
    }
    let mut says = |type_, holds, message: &str| {
        let says = ConditionUpdate {
            type_,
            holds,
            reason: reason.as_str(),
            message: message.to_owned(),
        };
        tell(picture, gang, &mut status, says);
    };
    says(condition_types::ADMITTED, false, "the gang ended");
    says(condition_types::RUNNING, false, "the gang ended");
    says(
        condition_types::FINISHED,
        phase == GangPhase::Finished,
        &message,
    );
    write(picture, key, gang, status)
}

/// The write, if the status differs from what stands there.
pub(crate) fn write(
    picture: PollContext<'_>,
    key: &GangKey,
    gang: &Gang,
    mut status: GangStatus,
) -> Option<ApiRequest> {
    status.observed_generation = gang.metadata.generation.unwrap_or_default();
    if gang.status.as_ref() == Some(&status) {
        return None;
    }
    replacement(picture, key, gang, status)
}

/// The status as it stands, under this leader's epoch: whatever an older leader still sends conflicts.
pub(crate) fn under_own_epoch(
    picture: PollContext<'_>,
    key: &GangKey,
    gang: &Gang,
) -> Option<ApiRequest> {
    replacement(picture, key, gang, gang.status.clone()?)
}

fn replacement(
    picture: PollContext<'_>,
    key: &GangKey,
    gang: &Gang,
    mut status: GangStatus,
) -> Option<ApiRequest> {
    if !picture.bugs.has(InjectedBug::NoFence) {
        status.leader_epoch = picture.epoch;
    }
    Some(ApiRequest::ReplaceGangStatus {
        key: gang_object(key),
        uid: gang.metadata.uid.clone()?,
        resource_version: gang.metadata.resource_version.clone()?,
        status: Box::new(status),
    })
}

fn tell(picture: PollContext<'_>, gang: &Gang, status: &mut GangStatus, says: ConditionUpdate<'_>) {
    let generation = gang.metadata.generation.unwrap_or_default();
    conditions::set(&mut status.conditions, says, generation, picture.now.wall);
}

fn tell_waiting(picture: PollContext<'_>, key: &GangKey, gang: &Gang, status: &mut GangStatus) {
    let formed = picture.formed(key);
    if let Some(team) = formed.and_then(|formed| formed.team.as_ref()) {
        status.team = Some(team.to_string());
    }
    let Some((position, wait)) = waiting::why(picture, key, gang, status.attempt) else {
        status.phase = GangPhase::Pending;
        return;
    };
    status.phase = match wait.reason {
        Reason::MissingPods | Reason::SizeMismatch => GangPhase::Assembling,
        _ => GangPhase::Pending,
    };
    let says = ConditionUpdate {
        type_: condition_types::ADMITTED,
        holds: false,
        reason: wait.reason.as_str(),
        message: wait.details.clone(),
    };
    tell(picture, gang, status, says);
    status.queue = Some(QueuePosition {
        position,
        reason: wait.reason,
        details: wait.details,
    });
    for type_ in [
        condition_types::RUNNING,
        condition_types::DEGRADED,
        condition_types::FINISHED,
    ] {
        let says = ConditionUpdate {
            type_,
            holds: false,
            reason: Reason::NotAdmitted.as_str(),
            message: "the gang is not admitted".to_owned(),
        };
        let generation = gang.metadata.generation.unwrap_or_default();
        conditions::clear(&mut status.conditions, says, generation, picture.now.wall);
    }
}

/// Phase and conditions of an admitted gang; also told in the write that admits it.
pub(crate) fn tell_admitted(
    picture: PollContext<'_>,
    gang: &Gang,
    plan: &Plan<'_>,
    status: &mut GangStatus,
) {
    status.queue = None;
    status.team = Some(plan.team.to_owned());
    let running = plan
        .ranks
        .iter()
        .filter_map(|rank| picture.index.pod_by_uid(rank.pod))
        .filter(|pod| phase(pod) == "Running" || is_terminal(pod))
        .count();
    let all = running == plan.ranks.len();
    status.phase = if all {
        GangPhase::Running
    } else {
        GangPhase::Admitted
    };
    let (reason, message) = if plan.adopted {
        let message = "found holding devices and charged as it is".to_owned();
        (Reason::Adopted, message)
    } else {
        let nodes = plan.nodes().len();
        let message = format!("{} ranks on {nodes} nodes", plan.ranks.len());
        (Reason::Admitted, message)
    };
    let says = ConditionUpdate {
        type_: condition_types::ADMITTED,
        holds: true,
        reason: reason.as_str(),
        message,
    };
    tell(picture, gang, status, says);
    let says = ConditionUpdate {
        type_: condition_types::RUNNING,
        holds: all,
        reason: if all { "Running" } else { "Admitted" },
        message: format!("{running} of {} pods run or ended", plan.ranks.len()),
    };
    tell(picture, gang, status, says);
    tell_degraded(picture, gang, plan, status);
}

fn tell_degraded(picture: PollContext<'_>, gang: &Gang, plan: &Plan<'_>, status: &mut GangStatus) {
    if let Some(wait) = degraded(picture, gang, plan) {
        let says = ConditionUpdate {
            type_: condition_types::DEGRADED,
            holds: true,
            reason: wait.reason.as_str(),
            message: wait.details,
        };
        tell(picture, gang, status, says);
        return;
    }
    let says = ConditionUpdate {
        type_: condition_types::DEGRADED,
        holds: false,
        reason: Reason::Admitted.as_str(),
        message: "as planned".to_owned(),
    };
    let generation = gang.metadata.generation.unwrap_or_default();
    conditions::clear(&mut status.conditions, says, generation, picture.now.wall);
}

/// Why an admitted gang cannot start as planned: what an eviction would be owed for. Its charge is kept.
fn degraded(picture: PollContext<'_>, gang: &Gang, plan: &Plan<'_>) -> Option<PendingReason> {
    if let Some((_, wait)) = plan.mismatch(picture) {
        return Some(wait);
    }
    if let Some(wait) = place::lost(picture, plan) {
        return Some(wait);
    }
    let stalled = picture.clocks.stalled_since(plan.gang_uid)?;
    let seconds = picture.now.monotonic_seconds.saturating_sub(stalled);
    if seconds < u64::try_from(gang.spec.start_timeout_seconds).unwrap_or(u64::MAX) {
        return None;
    }
    let late = plan.ranks.iter().position(|rank| {
        picture
            .index
            .pod_by_uid(rank.pod)
            .is_none_or(|pod| phase(pod) != "Running" && !is_terminal(pod))
    })?;
    let pod = picture.index.pod_by_uid(plan.ranks[late].pod)?;
    let stage = if is_gated(pod) {
        "not released yet"
    } else if bound_node(pod).is_none() {
        "not bound yet"
    } else {
        "bound, but does not run"
    };
    // Whole multiples of the limit, so that the text does not change at every poll.
    let limit = gang.spec.start_timeout_seconds;
    Some(PendingReason {
        reason: Reason::StartTimeout,
        details: format!(
            "rank {late} (attempt {}) is {stage}; no rank made progress for {limit} s",
            stamp(pod)
        ),
    })
}
