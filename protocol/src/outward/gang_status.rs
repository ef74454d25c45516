//! What `Gang.status` has to say. Written by the leader only, conditional on UID and resourceVersion, and only
//! when something changed.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use muster_api::{
    Gang, GangPhase, GangStatus, Proposal, Reason, WaitReason, conditions as condition_types,
    gang::{Eviction, EvictionFault},
};

use crate::{
    ApiRequest, Recovery,
    admission::intent_state::obstacle,
    admission::plan::{Plan, Rank},
    disruptions, drains,
    faults::held,
    injected_bug::InjectedBug,
    nodes::loss,
    objects::{bound_node, gang_object, is_gated, stamp},
    outward::conditions::{self, ConditionUpdate},
    outward::{preemption, recovery, restarts, still_prepared},
    poll_context::{PollContext, attempt},
    stalls,
    tables::plans::Committed,
};
use muster_cluster::{
    explain::name_unmodelled,
    formed::{Ended, GangKey, PendingReason},
    pod::{self, PodFields},
    rank_state::RankState,
};
use muster_engine::recovery::Action;

/// The status of a Gang that stays in the attempt it is in, if it has to be written.
///
/// A change of phase, condition or reason is written, once a reason has lasted [`TOLD_AFTER_SECONDS`]: what ends before
/// (pods whose claims are just being made) is nobody's news. Where only numbers inside a reason differ, it is written at
/// most once in [`NUMBERS_EVERY_SECONDS`], or in [`DISTANT_NUMBERS_EVERY_SECONDS`].
pub(crate) fn update(context: PollContext<'_>, key: &GangKey, gang: &Gang) -> Option<ApiRequest> {
    let mut status = told_by(gang);
    let uid = gang.metadata.uid.as_deref().unwrap_or_default();
    let reason = context.views.of(key).and_then(|view| view.reason.as_ref());
    let lasts = reason.is_none() || lasts(context, uid);
    tell_tier(context, key, &mut status);
    if let Some(plan) = context.plans.carried(key) {
        tell_running(context, gang, plan, &mut status);
        preemption::tell(context, gang, plan, &mut status);
        if lasts {
            tell_degraded(context, gang, reason, &mut status);
        }
    } else {
        if let Some(team) = context.formed(key).and_then(|formed| formed.team.as_ref()) {
            status.team = Some(team.to_string());
        }
        if let (Some(wait), true) = (reason, lasts) {
            tell_waiting(context, gang, wait, &mut status);
        }
        preemption::tell_waiting(context, gang, &mut status);
        recovery::tell(context, gang, &mut status);
    }
    status.observed_generation = gang.metadata.generation.unwrap_or_default();
    let Some(before) = gang.status.as_ref() else {
        // The first one is written when there is something to say.
        let says = reason.is_some() && lasts || status.reservation.is_some();
        return says.then(|| replacement(context, key, gang, status))?;
    };
    let is_owed = match Difference::between(before, &status) {
        Difference::None => false,
        Difference::Numbers => are_numbers_due(context, uid),
        Difference::News => true,
    };
    if !is_owed {
        return None;
    }
    status.admission.clone_from(&before.admission);
    status.placement.clone_from(&before.placement);
    // What an eviction leaves of it is for whoever has to know what the Ledger names.
    let is_left = |proposal: &&Proposal| {
        let recovery = status.recovery.as_ref();
        proposal.attempt >= status.attempt
            || recovery.is_some_and(|recovery| recovery.attempt == proposal.attempt)
            || context.intent_of(key).is_some()
    };
    status.proposal = before.proposal.as_ref().filter(is_left).cloned();
    replacement(context, key, gang, status)
}

/// How long a reason lasts before it is told, in seconds.
const TOLD_AFTER_SECONDS: u64 = 2;
/// How often a status is written at most where only numbers in it change, in seconds. For so long a gang is to be near the head of its
/// line, too: one that is admitted sooner is told that next.
pub(crate) const NUMBERS_EVERY_SECONDS: u64 = 30;
/// The same for a gang that waits behind so many others of its Team that no number is soon to let it in: a line of hundreds would
/// otherwise be written twice a minute for what nobody reads. The Team's Queues show the whole line meanwhile.
pub(crate) const DISTANT_NUMBERS_EVERY_SECONDS: u64 = 300;

/// Whether the numbers of a Gang are to be written. What no explanation says (how many of its pods exist, say) has nothing to do with
/// the line.
fn are_numbers_due(context: PollContext<'_>, gang_uid: &str) -> bool {
    let Some(written_at) = context.clocks.status_written_at(gang_uid) else {
        return true;
    };
    let explained = context.explanations.get(gang_uid);
    context.has_come(match explained.map(|explained| explained.near_since) {
        Some(None) => written_at + DISTANT_NUMBERS_EVERY_SECONDS,
        Some(Some(near_since)) => written_at.max(near_since) + NUMBERS_EVERY_SECONDS,
        None => written_at + NUMBERS_EVERY_SECONDS,
    })
}

fn lasts(context: PollContext<'_>, gang_uid: &str) -> bool {
    context
        .clocks
        .reason_since(gang_uid)
        .is_some_and(|since| context.has_come(since + TOLD_AFTER_SECONDS))
}

/// The status as it is, without what the Gang holds and is proposed: that is large, and nothing that is reported changes it.
fn told_by(gang: &Gang) -> GangStatus {
    let Some(status) = &gang.status else {
        return status_of(gang);
    };
    GangStatus {
        leader_epoch: status.leader_epoch,
        phase: status.phase,
        attempt: status.attempt,
        team: status.team.clone(),
        tier: status.tier.clone(),
        admission: None,
        placement: None,
        proposal: None,
        queue: status.queue.clone(),
        conditions: status.conditions.clone(),
        observed_generation: status.observed_generation,
        queued_at: status.queued_at.clone(),
        requeue_at: status.requeue_at.clone(),
        evictions: status.evictions.clone(),
        failed_attempts: status.failed_attempts,
        failed_pods: status.failed_pods,
        pods_of_past_attempts: status.pods_of_past_attempts,
        preemption: status.preemption.clone(),
        reservation: status.reservation.clone(),
        recovery: status.recovery.clone(),
        finished_at: status.finished_at.clone(),
    }
}

/// How two statuses of a Gang differ that holds the same in both.
enum Difference {
    None,
    /// In nothing but texts, which carry numbers.
    Numbers,
    News,
}

impl Difference {
    fn between(before: &GangStatus, after: &GangStatus) -> Self {
        fn facts(status: &GangStatus) -> impl PartialEq + '_ {
            let GangStatus {
                leader_epoch,
                phase,
                attempt,
                team,
                tier,
                admission: _,
                placement: _,
                proposal: _,
                queue,
                conditions,
                observed_generation,
                queued_at,
                requeue_at,
                evictions,
                failed_attempts,
                failed_pods,
                pods_of_past_attempts,
                preemption,
                reservation,
                recovery,
                finished_at,
            } = status;
            let queue = queue.as_ref().map(|queue| queue.reason);
            let evicted = (
                requeue_at,
                evictions,
                (failed_attempts, failed_pods, pods_of_past_attempts),
                preemption,
                reservation,
                recovery,
            );
            let life = (phase, attempt, queue, queued_at, evicted, finished_at);
            let of = (team, tier);
            (
                leader_epoch,
                observed_generation,
                of,
                life,
                conditions.len(),
            )
        }
        fn state(condition: &Condition) -> impl PartialEq + '_ {
            let Condition {
                type_,
                status,
                reason,
                message: _,
                observed_generation,
                last_transition_time,
            } = condition;
            let since = (observed_generation, last_transition_time);
            (type_, status, reason, since)
        }
        let pairs = || before.conditions.iter().zip(&after.conditions);
        let same_states = || pairs().all(|(before, after)| state(before) == state(after));
        if facts(before) != facts(after) || !same_states() {
            return Self::News;
        }
        let same_texts = pairs().all(|(before, after)| before.message == after.message);
        if same_texts && before.queue == after.queue {
            Self::None
        } else {
            Self::Numbers
        }
    }
}

/// The Gang in the attempt after its present one, holding nothing.
pub(crate) fn next_attempt(
    context: PollContext<'_>,
    key: &GangKey,
    gang: &Gang,
) -> Option<ApiRequest> {
    raised_to(context, key, gang, attempt(gang) + 1)
}

/// The same, after all pods of the attempt that it carries ended.
pub(crate) fn attempt_after(
    context: PollContext<'_>,
    gang: &Gang,
    plan: &Plan,
) -> Option<ApiRequest> {
    let mut request = next_attempt(context, &plan.key, gang)?;
    if let ApiRequest::ReplaceGangStatus { status, .. } = &mut request {
        count_attempt(context, plan, None, status);
        status.recovery = recovery::after(context, gang, plan, None, status);
        if status.recovery.is_some() {
            status.proposal = Some(plan.to_proposal());
        }
        recovery::tell_phase(status);
    }
    Some(request)
}

/// Counts the pods of the attempt that ends, and, if those that failed did so by themselves, these and the attempt.
fn count_attempt(
    context: PollContext<'_>,
    plan: &Plan,
    cause: Option<Reason>,
    status: &mut GangStatus,
) {
    let pods = i32::try_from(plan.ranks.len()).unwrap_or(i32::MAX);
    let before = match status.pods_of_past_attempts {
        // Nobody counted those before, if there were any: they are taken to have been as large.
        0 => {
            let attempts = plan.attempt.saturating_sub(1).max(0);
            pods.saturating_mul(i32::try_from(attempts).unwrap_or(i32::MAX))
        }
        counted => counted,
    };
    status.pods_of_past_attempts = before.saturating_add(pods);
    let failed = restarts::failed_by_themselves(context, plan, cause);
    if failed > 0 {
        status.failed_attempts = status.failed_attempts.saturating_add(1);
        status.failed_pods = status.failed_pods.saturating_add(failed);
    }
}

/// Most evictions that a Gang remembers.
const EVICTIONS_TOLD: usize = 8;

/// The Gang after the attempt that an Evict takes back: in the next one, holding nothing. It keeps its place in the queue.
///
/// **Which fault it was** is what the Evict says, not what is found by now: the claims of a rank that died are gone soon, and who holds no device has no
/// fault. One that an older version committed, or that an older definition of the Ledger cut short, does not say it; then it is looked for.
pub(crate) fn evicted(
    context: PollContext<'_>,
    gang: &Gang,
    evict: &Committed,
) -> Option<ApiRequest> {
    let plan = &*evict.plan;
    let cause = evict.cause.unwrap_or(Reason::AttemptSuperseded);
    let found_fault = || held::find(context, gang, plan)?.record();
    let fault = (cause == Reason::DeviceFault)
        .then(|| evict.fault.clone().or_else(found_fault))
        .flatten();
    // A successor may find something else by now, or nothing.
    let view = context.views.of(&plan.key);
    let found = view
        .into_iter()
        .flat_map(|view| [&view.eviction, &view.reason]);
    let mut found = found.flatten().filter(|found| found.reason == cause);
    let message = found.next().map_or_else(
        || format!("attempt {} is evicted", plan.attempt),
        |found| found.details.clone(),
    );
    let request = raised_to(context, &plan.key, gang, plan.attempt + 1)?;
    let ApiRequest::ReplaceGangStatus {
        key,
        uid,
        resource_version,
        mut status,
        tells,
    } = request
    else {
        return None;
    };
    let now = context.now.wall;
    if context.bugs.has(InjectedBug::AgeLost) {
        status.queued_at = None;
    }
    status.phase = GangPhase::Evicting;
    count_attempt(context, plan, Some(cause), &mut status);
    status.evictions.push(Eviction {
        attempt: plan.attempt,
        reason: cause,
        message: message.clone(),
        at: Time(now),
        node: failing_node(context, plan, cause, fault.as_ref()),
        fault,
        template: plan.ranks.iter().find_map(|rank| {
            let pod = context.index.pod_by_uid(&rank.pod)?;
            pod::template(pod).map(str::to_owned)
        }),
    });
    let surplus = status.evictions.len().saturating_sub(EVICTIONS_TOLD);
    status.evictions.drain(..surplus);
    let recovery = &context.config.recovery;
    let pause = recovery.pause_seconds(attempts_in_vain(&status, recovery));
    status.requeue_at = (pause > 0)
        .then(|| now + SignedDuration::from_secs(pause))
        .map(Time);
    status.recovery = recovery::after(context, gang, plan, Some(cause), &status);
    let says = ConditionUpdate {
        type_: condition_types::EVICTED,
        holds: true,
        reason: cause.as_str(),
        message,
    };
    tell(context, gang, &mut status, says);
    Some(ApiRequest::ReplaceGangStatus {
        key,
        uid,
        resource_version,
        status,
        tells,
    })
}

/// What is lost or broken so soon after the eviction before it, in seconds, got nowhere, however short the pauses are.
const SOON_SECONDS: i64 = 3_600;

/// How many of the last attempts of a Gang in a row got nowhere: they were evicted by the start limit, or lost their node, a device or a pod to somebody else, or made no
/// progress, soon after such an attempt. A node that is lost once, or a device that breaks, is no fault of the gang, and costs no pause. An attempt in between that was not evicted, since its
/// pods ended otherwise, or that ran for long, ends the row.
pub(crate) fn attempts_in_vain(status: &GangStatus, recovery: &Recovery) -> usize {
    // So soon after the eviction before it, it got nowhere: most of that may have been the pause.
    let soon = (2 * recovery.longest_pause_seconds()).max(SOON_SECONDS);
    let before = |eviction: &Eviction| {
        let attempt = eviction.attempt - 1;
        let mut evictions = status.evictions.iter();
        evictions.find(|before| before.attempt == attempt)
    };
    let is_in_vain = |eviction: &&Eviction| match eviction.reason {
        Reason::StartTimeout => true,
        Reason::NodeLost | Reason::DeviceFault | Reason::NoProgress | Reason::PodDisrupted => {
            before(eviction).is_some_and(|before| {
                let seconds = eviction.at.0.as_second() - before.at.0.as_second();
                let was_short = matches!(
                    before.reason,
                    Reason::StartTimeout
                        | Reason::NodeLost
                        | Reason::DeviceFault
                        | Reason::NoProgress
                        | Reason::PodDisrupted
                );
                was_short && seconds < soon
            })
        }
        _ => false,
    };
    let last = status.evictions.last().filter(is_in_vain);
    std::iter::successors(last, |eviction| before(eviction).filter(is_in_vain)).count()
}

/// How long a node is avoided after an attempt failed there, in seconds.
const AVOIDED_SECONDS: i64 = 6 * 3_600;

/// The node where an attempt failed that is evicted for that cause: where the start of its first late rank got no further, what
/// failed a rank, or what was lost. A successor that completes the eviction may know of none by then.
fn failing_node(
    context: PollContext<'_>,
    plan: &Plan,
    cause: Reason,
    fault: Option<&EvictionFault>,
) -> Option<String> {
    let pod_of = |rank: &Rank| context.index.pod_by_uid(&rank.pod);
    let rank = match cause {
        Reason::StartTimeout => {
            let (_, rank) = late_rank(context, plan)?;
            pod_of(rank)
                .is_some_and(|pod| !is_gated(pod))
                .then_some(rank)
        }
        Reason::PodFailed | Reason::PodDisrupted => {
            let mut ranks = plan.ranks.iter();
            ranks.find(|rank| pod_of(rank).is_some_and(|pod| pod.failed_by_its_node()))
        }
        Reason::NodeLost => {
            let lost = loss::of_plan(context, plan)?;
            return lost.is_due.then_some(lost.node);
        }
        Reason::DeviceFault => {
            return held::node_to_avoid(plan, fault?).cloned();
        }
        Reason::Drained => return drains::node_of(context, plan),
        _ => None,
    };
    rank.map(|rank| rank.node.name.clone())
}

/// The nodes where attempts of a Gang failed lately, and which attempts: new plans avoid them. By whose clock that was is not known;
/// what is to come counts as now. The Gang is looked at again when that is over.
pub(crate) fn avoided_nodes<'a>(
    context: PollContext<'_>,
    status: &'a GangStatus,
) -> impl Iterator<Item = (&'a str, i64)> {
    let now = context.now.wall.as_second();
    let is_recent = move |eviction: &&Eviction| {
        let age = now.saturating_sub(eviction.at.0.as_second()).max(0);
        let left = u64::try_from(AVOIDED_SECONDS - age).unwrap_or(0);
        eviction.node.is_some() && !context.has_come(context.now.monotonic_seconds + left)
    };
    let evictions = status.evictions.iter().filter(is_recent);
    evictions.filter_map(|eviction| Some((eviction.node.as_deref()?, eviction.attempt)))
}

/// How long a Gang pauses after its last eviction, in seconds, whatever the clock said that its times were taken by.
pub(crate) fn pause_seconds(status: &GangStatus, recovery: &Recovery) -> u64 {
    let evicted = status.evictions.last().map(|eviction| &eviction.at.0);
    let until = status.requeue_at.as_ref().map(|at| &at.0);
    let pause = evicted.zip(until).map_or(0, |(evicted, until)| {
        until.as_second().saturating_sub(evicted.as_second())
    });
    u64::try_from(pause.clamp(0, recovery.longest_pause_seconds())).unwrap_or(0)
}

/// The Gang in a given attempt, holding nothing.
pub(crate) fn raised_to(
    context: PollContext<'_>,
    key: &GangKey,
    gang: &Gang,
    attempt: i64,
) -> Option<ApiRequest> {
    let mut status = status_of(gang);
    let was_admitted = status.admission.take().is_some();
    status.attempt = attempt;
    status.placement = None;
    status.recovery = None;
    status.finished_at = None;
    // Why it waits now is told once it is known, and lasts.
    status.queue = None;
    let formed = context.formed(key);
    if let Some(team) = formed.and_then(|formed| formed.team.as_ref()) {
        status.team = Some(team.to_string());
    }
    tell_tier(context, key, &mut status);
    let missing = formed.is_none_or(|formed| {
        let wait = formed.wait.as_ref();
        wait.is_some_and(|wait| is_assembling(wait.reason))
    });
    status.phase = if missing {
        GangPhase::Assembling
    } else {
        GangPhase::Pending
    };
    if was_admitted {
        let says = ConditionUpdate {
            type_: condition_types::ADMITTED,
            holds: false,
            reason: Reason::NotAdmitted.as_str(),
            message: format!("attempt {attempt} begins"),
        };
        tell(context, gang, &mut status, says);
    }
    clear_what_an_admission_says(context, gang, &mut status);
    write(context, key, gang, status)
}

/// The tier that counts; what was known of it stays while the gang has no pods.
fn tell_tier(context: PollContext<'_>, key: &GangKey, status: &mut GangStatus) {
    if let Some(formed) = context.formed(key) {
        status.tier.clone_from(&formed.tier);
    }
}

fn is_assembling(reason: Reason) -> bool {
    matches!(reason, Reason::MissingPods | Reason::SizeMismatch)
}

/// The Gang as ended, holding nothing.
pub(crate) fn ended(
    context: PollContext<'_>,
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
        Ended::Failed(details) => {
            let message = after_eviction(gang, details.clone());
            (GangPhase::Failed, Reason::PodFailed, message)
        }
    };
    let mut status = status_of(gang);
    status.phase = phase;
    status.admission = None;
    status.placement = None;
    status.proposal = None;
    status.preemption = None;
    status.reservation = None;
    status.recovery = None;
    status.queue = None;
    if status.finished_at.is_none() {
        status.finished_at = Some(Time(context.now.wall));
    }
    let mut says = |type_, holds, message: &str| {
        let says = ConditionUpdate {
            type_,
            holds,
            reason: reason.as_str(),
            message: message.to_owned(),
        };
        tell(context, gang, &mut status, says);
    };
    says(condition_types::ADMITTED, false, "the gang ended");
    says(condition_types::RUNNING, false, "the gang ended");
    says(
        condition_types::FINISHED,
        phase == GangPhase::Finished,
        &message,
    );
    write(context, key, gang, status)
}

/// What is told of a gang that failed: pods without an owner are made again by nobody, so it failed by its eviction. An owner
/// says itself why it ended.
fn after_eviction(gang: &Gang, details: String) -> String {
    let mut owners = gang.metadata.owner_references.iter().flatten();
    if owners.next().is_some() {
        return details;
    }
    let conditions = gang.status.iter().flat_map(|status| &status.conditions);
    let mut evicted = conditions.filter(|it| it.type_ == condition_types::EVICTED);
    match evicted.next().filter(|it| it.status == "True") {
        Some(evicted) => format!(
            "{details} after it was evicted ({}: {}), and nobody made them again",
            evicted.reason, evicted.message
        ),
        None => details,
    }
}

/// The write, if the status differs from the one that is seen.
pub(crate) fn write(
    context: PollContext<'_>,
    key: &GangKey,
    gang: &Gang,
    mut status: GangStatus,
) -> Option<ApiRequest> {
    status.observed_generation = gang.metadata.generation.unwrap_or_default();
    if gang.status.as_ref() == Some(&status) {
        return None;
    }
    replacement(context, key, gang, status)
}

/// The status as it is, under this leader's epoch: whatever an older leader still sends conflicts.
pub(crate) fn under_own_epoch(
    context: PollContext<'_>,
    key: &GangKey,
    gang: &Gang,
) -> Option<ApiRequest> {
    replacement(context, key, gang, status_of(gang))
}

/// The status as it is; of a Gang that was never written, its first attempt.
pub(crate) fn status_of(gang: &Gang) -> GangStatus {
    gang.status.clone().unwrap_or_else(|| GangStatus {
        attempt: attempt(gang),
        ..GangStatus::default()
    })
}

fn replacement(
    context: PollContext<'_>,
    key: &GangKey,
    gang: &Gang,
    mut status: GangStatus,
) -> Option<ApiRequest> {
    if !context.bugs.has(InjectedBug::NoFence) {
        status.leader_epoch = context.epoch;
    }
    // Stored with whatever is written first once the gang is complete; a write of its own it is not worth.
    let formed = context.formed(key).filter(|formed| formed.wait.is_none());
    if let (None, Some(formed)) = (&status.queued_at, formed) {
        let complete = Timestamp::from_second(formed.last_pod_created_at).ok();
        status.queued_at = complete.map(Time);
    }
    let decides = |status: &GangStatus| {
        // What an earlier attempt was proposed is what it held, and nobody is given that by it: a gang that waits goes on waiting while it is taken back.
        let proposal = status.proposal.as_ref();
        let proposal = proposal.filter(|proposal| proposal.attempt >= status.attempt);
        let proposed = proposal.map(|proposal| proposal.digest.clone());
        let holds = (status.admission.is_some(), proposed);
        // A notice is for who has a place. One that was left on a gang that waits decides nothing any more.
        let is_told_to_go = status.admission.is_some() && status.preemption.is_some();
        let ends = (status.finished_at.is_some(), is_told_to_go);
        (status.attempt, holds, ends)
    };
    let tells = decides(&status_of(gang)) == decides(&status);
    Some(ApiRequest::ReplaceGangStatus {
        key: gang_object(key),
        uid: gang.metadata.uid.clone()?,
        resource_version: gang.metadata.resource_version.clone()?,
        status: Box::new(status),
        tells,
    })
}

fn tell(context: PollContext<'_>, gang: &Gang, status: &mut GangStatus, says: ConditionUpdate<'_>) {
    let generation = gang.metadata.generation.unwrap_or_default();
    conditions::set(&mut status.conditions, says, generation, context.now.wall);
}

fn tell_waiting(
    context: PollContext<'_>,
    gang: &Gang,
    wait: &PendingReason,
    status: &mut GangStatus,
) {
    status.phase = match wait.reason {
        Reason::Evicting => GangPhase::Evicting,
        reason if is_assembling(reason) => GangPhase::Assembling,
        _ => GangPhase::Pending,
    };
    let says = ConditionUpdate {
        type_: condition_types::ADMITTED,
        holds: false,
        reason: wait.reason.as_str(),
        message: wait.details.clone(),
    };
    tell(context, gang, status, says);
    // The Queue shows its place: it changes with every gang before it.
    let before = status.queue.take();
    let before = before.filter(|before| before.reason == wait.reason);
    let since = before.map_or_else(|| Some(Time(context.now.wall)), |before| before.since);
    status.queue = Some(WaitReason {
        reason: wait.reason,
        details: wait.details.clone(),
        since,
    });
    clear_what_an_admission_says(context, gang, status);
}

fn clear_what_an_admission_says(context: PollContext<'_>, gang: &Gang, status: &mut GangStatus) {
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
        conditions::clear(&mut status.conditions, says, generation, context.now.wall);
    }
}

/// Phase and conditions of a gang in the write that admits it.
pub(crate) fn tell_admitted(
    context: PollContext<'_>,
    gang: &Gang,
    plan: &Plan,
    status: &mut GangStatus,
) {
    status.queue = None;
    status.preemption = None;
    status.reservation = None;
    status.recovery = None;
    status.team = Some(plan.team.clone());
    let (reason, message) = if plan.adopted {
        let message = "found holding devices and charged as it is".to_owned();
        (Reason::Adopted, message)
    } else {
        let nodes = plan.nodes().count();
        let ranks = plan.ranks.len();
        let mut message = match plan.gang_size {
            Some(all) => format!(
                "the first {ranks} of {all} ranks on {nodes} nodes; the others wait for the next attempt"
            ),
            None => format!("{ranks} ranks on {nodes} nodes"),
        };
        let mut avoided = avoided_nodes(context, status);
        if let Some((node, attempt)) = avoided.find(|(node, _)| plan.places.contains_key(*node)) {
            let why = "there was no room without it";
            message = format!("{message}; attempt {attempt} failed on {node}, but {why}");
        }
        (Reason::Admitted, message)
    };
    // It stands there for as long as the gang is admitted, and costs no write of its own.
    let message = with_unmodelled(context, plan, message);
    let says = ConditionUpdate {
        type_: condition_types::ADMITTED,
        holds: true,
        reason: reason.as_str(),
        message,
    };
    tell(context, gang, status, says);
    status.requeue_at = None;
    let says = ConditionUpdate {
        type_: condition_types::EVICTED,
        holds: false,
        reason: reason.as_str(),
        message: "the gang is admitted again".to_owned(),
    };
    let generation = gang.metadata.generation.unwrap_or_default();
    conditions::clear(&mut status.conditions, says, generation, context.now.wall);
    tell_running(context, gang, plan, status);
    tell_degraded(context, gang, None, status);
}

/// Whether all its pods run: how many do is no news.
fn tell_running(context: PollContext<'_>, gang: &Gang, plan: &Plan, status: &mut GangStatus) {
    let pods = plan.ranks.len();
    let all = plan.states(context).all(|(_, state)| state.is_well());
    status.phase = if all {
        // Whatever failed before does not fail the gang any more.
        for eviction in &mut status.evictions {
            eviction.node = None;
        }
        GangPhase::Running
    } else {
        GangPhase::Admitted
    };
    let message = if all {
        format!("{pods} of {pods} pods run or succeeded")
    } else {
        format!("not all of {pods} pods run")
    };
    let says = ConditionUpdate {
        type_: condition_types::RUNNING,
        holds: all,
        reason: if all { "Running" } else { "Admitted" },
        message,
    };
    tell(context, gang, status, says);
}

fn tell_degraded(
    context: PollContext<'_>,
    gang: &Gang,
    wait: Option<&PendingReason>,
    status: &mut GangStatus,
) {
    if let Some(wait) = wait {
        let says = ConditionUpdate {
            type_: condition_types::DEGRADED,
            holds: true,
            reason: wait.reason.as_str(),
            message: wait.details.clone(),
        };
        tell(context, gang, status, says);
        return;
    }
    let says = ConditionUpdate {
        type_: condition_types::DEGRADED,
        holds: false,
        reason: Reason::Admitted.as_str(),
        message: "as planned".to_owned(),
    };
    let generation = gang.metadata.generation.unwrap_or_default();
    conditions::clear(&mut status.conditions, says, generation, context.now.wall);
}

/// Why an admitted gang does not run as planned: what costs it its attempt if it lasts.
pub(crate) fn degraded(
    context: PollContext<'_>,
    gang: &Gang,
    plan: &Plan,
) -> Option<PendingReason> {
    let wait = disruptions::of_plan(context, plan).or_else(|| obstacle(context, plan));
    let wait = wait.or_else(|| failed(context, plan));
    let wait = wait.or_else(|| loss::of_plan(context, plan).map(|lost| lost.reason));
    if wait.is_some() {
        return wait;
    }
    // What costs the attempt nothing is told where there is nothing else to tell: whoever is late is evicted for that.
    let fault = held::find(context, gang, plan);
    match fault {
        Some(fault) if !matches!(fault.action, Action::Spare(_)) => Some(fault.reason),
        fault => late(context, gang, plan)
            .or_else(|| stalls::told(context, gang, plan))
            .or_else(|| drains::told(context, plan))
            .or_else(|| fault.map(|fault| fault.reason)),
    }
}

/// That a start made no progress for as long as it may, if so.
fn late(context: PollContext<'_>, gang: &Gang, plan: &Plan) -> Option<PendingReason> {
    let limit = late_after_seconds(context, gang, plan)?;
    let (late, rank) = late_rank(context, plan)?;
    let pod = context.index.pod_by_uid(&rank.pod)?;
    let stage = if is_gated(pod) {
        match still_prepared::withheld_of(context, plan, late) {
            Some(withheld) => format!("not released yet ({withheld})"),
            None => "not released yet".to_owned(),
        }
    } else if let Some(node) = bound_node(pod) {
        // The pod, and what it says, are gone once it is evicted.
        let waits_for = pod.waits_for();
        let waits_for = waits_for.map_or_else(String::new, |what| format!(" ({what})"));
        format!("bound to node {node}, but does not run{waits_for}")
    } else {
        "not bound yet".to_owned()
    };
    let details = format!(
        "rank {late} (attempt {}) is {stage}; no rank made progress for {limit} s",
        stamp(pod)
    );
    Some(PendingReason {
        reason: Reason::StartTimeout,
        details: with_unmodelled(context, plan, details),
    })
}

/// For how many seconds no rank of the attempt that the Gang carries made progress, if that is as long as its start may take.
pub(crate) fn late_after_seconds(
    context: PollContext<'_>,
    gang: &Gang,
    plan: &Plan,
) -> Option<u64> {
    let spec = limits(context, &plan.key, gang);
    let limit = u64::try_from(spec.start_timeout_seconds).unwrap_or(u64::MAX);
    let late = context.clocks.late(&plan.gang_uid, limit)?;
    context.has_come(late.at).then_some(late.after_seconds)
}

/// The first rank that does not run, and its place.
fn late_rank<'a>(context: PollContext<'a>, plan: &'a Plan) -> Option<(usize, &'a Rank)> {
    let mut states = plan.states(context).enumerate();
    states.find_map(|(place, (rank, state))| (!state.is_well()).then_some((place, rank)))
}

/// The spec whose limits the attempt goes by: pods may name others than those of whom its Gang was made.
pub(crate) fn limits<'a>(
    context: PollContext<'a>,
    key: &GangKey,
    gang: &'a Gang,
) -> &'a muster_api::GangSpec {
    let formed = context.formed(key);
    formed.map_or(&gang.spec, |formed| &formed.spec)
}

/// A text that also names what the plan does not look at.
fn with_unmodelled(context: PollContext<'_>, plan: &Plan, mut text: String) -> String {
    if let Some(formed) = context.formed(&plan.key) {
        name_unmodelled(&mut text, &formed.unmodelled);
    }
    text
}

/// The first rank that failed while others of its attempt go on: they wait for it, and whatever replaces its pod waits for
/// them.
fn failed(context: PollContext<'_>, plan: &Plan) -> Option<PendingReason> {
    if plan.is_over(context) {
        return None;
    }
    let mut states = plan.states(context).enumerate();
    let (place, (rank, _)) = states.find(|(_, (_, state))| *state == RankState::Failed)?;
    let pod = context.index.pod_by_uid(&rank.pod)?;
    let name = pod.name();
    Some(PendingReason {
        reason: Reason::PodFailed,
        details: format!(
            "rank {place}: pod {name} failed, and its attempt cannot go on without it"
        ),
    })
}
