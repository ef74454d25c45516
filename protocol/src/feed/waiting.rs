//! Why a Gang is not admitted, and which Gangs the engine may admit.

use muster_api::{
    Gang, GangStatus, Reason, TierPreemption, conditions as condition_types, team::Stop,
};
use muster_engine as engine;

use crate::{
    Mode,
    admission::intent_state::release_refused,
    drains,
    feed::running,
    injected_bug::InjectedBug,
    objects::{gang_object, has_foreign_gate, is_gated, is_terminal, stamp},
    outward::{evict, force, gang_status, restarts, still_prepared},
    poll_context::{PollContext, attempt},
};
use muster_cluster::{
    formed::{FormedGang, GangKey, PendingReason, has_ended},
    pod::{self, PodFields},
};

/// Why the Gang is not admitted. `None`: it was not looked at yet.
pub(crate) fn why(context: PollContext<'_>, key: &GangKey, gang: &Gang) -> Option<PendingReason> {
    let mut why = why_not(context, key, gang)?;
    if why.reason == Reason::MissingPods
        && let Some(held) = evict::held_suspended(context, gang)
    {
        return Some(held);
    }
    if why.reason == Reason::MissingPods
        && let Some(refused) = evict::refused_resumption(context, gang)
    {
        why.details = format!("{}; {refused}", why.details);
    }
    if why.reason == Reason::WaitingForPlacement
        && let Some(formed) = context.formed(key)
        && let Some(closed) = still_prepared::told(context, formed)
    {
        why.details = format!("{}; {closed}", why.details);
    }
    // Whoever makes its pods may wait for the old ones though the gang itself does not.
    if matches!(
        why.reason,
        Reason::MissingPods | Reason::Evicting | Reason::WaitingForRelease
    ) && let Some(hanging) = force::told(context, key, gang)
    {
        why.details = format!("{}; {hanging}", why.details);
    }
    Some(why)
}

fn why_not(context: PollContext<'_>, key: &GangKey, gang: &Gang) -> Option<PendingReason> {
    let Some(formed) = context.formed(key) else {
        let details = format!("0 of {} pods exist", gang.spec.size);
        let reason = Reason::MissingPods;
        return Some(PendingReason { reason, details });
    };
    if let Some(wait) = by_objects(context, formed, gang) {
        return Some(wait);
    }
    if let Some(wait) = unreleased(context, formed) {
        return Some(wait);
    }
    let uid = gang.metadata.uid.as_deref().unwrap_or_default();
    let explained = context.explanations.get(uid)?;
    Some(explained.wait.clone())
}

/// Why the engine is not asked, as far as the objects alone show it.
fn by_objects(context: PollContext<'_>, formed: &FormedGang, gang: &Gang) -> Option<PendingReason> {
    let left = evict::waits_for(context, &formed.key, gang);
    if let Some(wait) = left.as_ref().or(formed.wait.as_ref()) {
        return Some(wait.clone());
    }
    if let Some(wait) = suspended(gang) {
        return Some(wait);
    }
    if formed.team.is_none() {
        return Some(no_team(&formed.key.namespace));
    }
    if let Some(ran_out) = ran_out(gang) {
        return Some(ran_out);
    }
    if let Some(exhausted) = restarts::exhausted(context, &formed.key, gang) {
        return Some(exhausted);
    }
    let bypass = bypass(context, formed, attempt(gang));
    let bypass = bypass.or_else(|| refused(context, formed));
    let bypass = bypass.or_else(|| drains::keeps_waiting(context, formed));
    bypass.or_else(|| backing_off(context, Some(formed), gang))
}

/// Why a gang would wait if its pods existed, as far as that is known without them.
pub(crate) fn held_back(context: PollContext<'_>, gang: &Gang) -> Option<PendingReason> {
    let namespace = gang.metadata.namespace.as_deref().unwrap_or_default();
    if let Some(wait) = suspended(gang) {
        return Some(wait);
    }
    let Some(team) = context.index.team_of_namespace(namespace) else {
        return Some(no_team(namespace));
    };
    let stop = context.index.team(team.as_str()).map(|it| it.spec.stop);
    if stop.is_some_and(|stop| stop != Stop::None) {
        return Some(PendingReason {
            reason: Reason::TeamStopped,
            details: format!("Team {team} is stopped"),
        });
    }
    backing_off(context, None, gang)
}

fn suspended(gang: &Gang) -> Option<PendingReason> {
    gang.spec.suspend.then(|| PendingReason {
        reason: Reason::Suspended,
        details: "spec.suspend is true".to_owned(),
    })
}

fn no_team(namespace: &str) -> PendingReason {
    PendingReason {
        reason: Reason::NoTeam,
        details: format!("namespace {namespace} names no Team that exists (label muster.dev/team)"),
    }
}

/// Pods that are free already, without an admission: they went around the gate, or are of an earlier attempt and out of anybody's
/// reach. Nothing is admitted beside the former, since they may hold what it would be given.
fn bypass(context: PollContext<'_>, formed: &FormedGang, attempt: i64) -> Option<PendingReason> {
    let pods = context.index.pods_of_gang(&formed.key);
    let mut free = pods
        .iter()
        .filter(|pod| !is_gated(pod) && !is_terminal(pod) && !evict::is_out_of_reach(context, pod));
    let first = free.next()?;
    let (name, stamp) = (first.name(), stamp(first));
    let way_out = "delete it, or its owner, to have the gang started again";
    Some(if stamp == 0 {
        PendingReason {
            reason: Reason::Bypass,
            details: format!("pod {name} passed the gate without an admission; {way_out}"),
        }
    } else {
        PendingReason {
            reason: Reason::WaitingForRelease,
            details: format!(
                "pod {name} of attempt {stamp} is still there (this is {attempt}); {way_out}"
            ),
        }
    })
}

/// The pause after an eviction. Until when it lasts was told by the clock of another machine, perhaps. Counted from when this
/// leader learnt of it, it is never longer than it was meant to be; and unless it seems to be over for long, never shorter than the
/// shortest.
fn backing_off(
    context: PollContext<'_>,
    formed: Option<&FormedGang>,
    gang: &Gang,
) -> Option<PendingReason> {
    let status = gang.status.as_ref()?;
    let at = status.requeue_at.as_ref()?.0;
    if is_changed_since_eviction(context, formed, gang, status) {
        return None;
    }
    let left = at.as_second().saturating_sub(context.now.wall.as_second());
    let now = context.now.monotonic_seconds;
    let uid = gang.metadata.uid.as_deref().unwrap_or_default();
    let since = context.clocks.pauses_since(uid).unwrap_or(now);
    let recovery = &context.config.recovery;
    let pause = gang_status::pause_seconds(status, recovery);
    let most = since.saturating_add(pause);
    let mut until = now
        .saturating_add(u64::try_from(left).unwrap_or(0))
        .min(most);
    if left > -recovery.longest_pause_seconds() {
        let shortest = u64::from(recovery.retry_pause_seconds);
        until = until.max(since.saturating_add(shortest.min(pause)));
    }
    if context.has_come(until) {
        return None;
    }
    let times = gang_status::attempts_in_vain(status, recovery);
    Some(PendingReason {
        reason: Reason::BackingOff,
        details: format!(
            "it did not start within its limit, or lost a node soon, {times} times in a row, and is tried again at {at}"
        ),
    })
}

/// Whether somebody changed what may have kept the gang from starting: its spec (a user may change the tier, or suspend the gang and let
/// it go on), or the template of its pods.
fn is_changed_since_eviction(
    context: PollContext<'_>,
    formed: Option<&FormedGang>,
    gang: &Gang,
    status: &GangStatus,
) -> bool {
    let mut conditions = status.conditions.iter();
    let evicted = conditions.find(|it| it.type_ == condition_types::EVICTED);
    let as_of = evicted.and_then(|evicted| evicted.observed_generation);
    if as_of.is_some_and(|as_of| gang.metadata.generation.unwrap_or(as_of) > as_of) {
        return true;
    }
    let before = status.evictions.last();
    let before = before.and_then(|eviction| eviction.template.as_deref());
    let pod = formed.and_then(|formed| formed.pods.first());
    let pod = pod.and_then(|member| context.index.pod_by_uid(&member.identity.uid));
    let now = pod.and_then(|pod| pod::template(pod));
    before.zip(now).is_some_and(|(before, now)| before != now)
}

/// A pod that was not let go the last time: it would not be this time.
fn refused(context: PollContext<'_>, formed: &FormedGang) -> Option<PendingReason> {
    let pods = formed.pods.iter();
    let mut pods = pods.filter_map(|member| context.index.pod_by_uid(&member.identity.uid));
    pods.find_map(|pod| release_refused(context, pod))
}

/// Pods that an earlier attempt was to give devices to, and whose permit is not proved released. The engine does
/// not look at the gang before, so it has no explanation, or an old one.
fn unreleased(context: PollContext<'_>, formed: &FormedGang) -> Option<PendingReason> {
    let mut held = formed
        .pods
        .iter()
        .map(|member| member.identity.uid.as_str())
        .filter(|uid| context.index.has_hold(uid));
    let first = held.next()?;
    let count = 1 + held.count();
    let place = context
        .permits
        .of_pod(first)
        .next()
        .map_or_else(String::new, |node| {
            format!("; node {node} has not answered yet")
        });
    let pods = formed.pods.len();
    Some(PendingReason {
        reason: Reason::WaitingForRelease,
        details: format!(
            "the devices that an earlier attempt was to give {count} of {pods} pods are not proved released{place}"
        ),
    })
}

/// How long the gang would run, and after how long others could preempt it.
fn run_time(context: PollContext<'_>, formed: &FormedGang) -> engine::RunTime {
    let seconds = |seconds: i64| u64::try_from(seconds).unwrap_or(0);
    let preemptible = formed.preemptible;
    let may_be_preempted =
        context.config.mode == Mode::Enforce && preemptible.when != TierPreemption::Never;
    engine::RunTime {
        max_seconds: formed.spec.max_runtime_seconds.map(seconds),
        ends_within_seconds: running::ends_within_seconds(
            context,
            formed
                .pods
                .iter()
                .map(|member| member.identity.uid.as_str()),
        ),
        preemptable_after_seconds: may_be_preempted
            .then(|| seconds(preemptible.min_runtime_seconds)),
    }
}

/// Since when the Gang is known to lack nothing but a place, whoever led.
fn lacks_place_since(gang: &Gang) -> Option<engine::Timestamp> {
    let waits = gang.status.as_ref()?.queue.as_ref()?;
    let since = waits.since.as_ref()?;
    (waits.reason == Reason::WaitingForPlacement).then(|| engine::Timestamp(since.0.as_second()))
}

/// That an attempt ran for as long as it may: whoever set that limit did not ask for another one.
fn ran_out(gang: &Gang) -> Option<PendingReason> {
    let evictions = &gang.status.as_ref()?.evictions;
    let last = evictions.last()?;
    (last.reason == Reason::MaxRuntimeExceeded).then(|| PendingReason {
        reason: Reason::MaxRuntimeExceeded,
        details: format!(
            "{}; it is not started again: delete it, or its owner, and create it anew",
            last.message
        ),
    })
}

/// The Gang as the engine is asked about it, if it may be.
pub(crate) fn candidate(
    context: PollContext<'_>,
    key: &GangKey,
    gang: &Gang,
) -> Option<engine::Gang> {
    let status = gang.status.as_ref();
    let attempt = attempt(gang);
    let formed = context.formed(key)?;
    let settled = !context.flights.changes(&gang_object(key))
        && context.intent_of(key).is_none()
        && status.is_none_or(|status| status.admission.is_none())
        && !has_ended(gang)
        && gang.metadata.deletion_timestamp.is_none()
        && attempt >= 1
        && attempt >= crate::outward::gangs::owed_attempt(context, key, gang);
    if !settled || by_objects(context, formed, gang).is_some() || formed.excepted {
        return None;
    }
    let mut pods = Vec::with_capacity(formed.pods.len());
    for member in &formed.pods {
        let pod = context.index.pod_by_uid(&member.identity.uid)?;
        let free_of_others = is_gated(pod) && !has_foreign_gate(pod);
        let busy = context.busy(&crate::objects::pod_object(pod));
        if !free_of_others || busy || stamp(pod) > attempt {
            return None;
        }
        pods.push(member.request.as_deref()?.clone());
    }
    let topology = formed.spec.topology.as_ref();
    let level = |name: Option<&String>| name.map(|name| name.as_str().into());
    Some(engine::Gang {
        uid: gang.metadata.uid.as_deref()?.into(),
        name: key.to_string(),
        attempt,
        team: formed.team.clone()?,
        priority: formed.priority,
        queued_at: engine::Timestamp(
            status
                .and_then(|status| status.queued_at.as_ref())
                .map_or(formed.last_pod_created_at, |at| at.0.as_second()),
        ),
        // What is lent comes back by preemption alone.
        may_borrow: formed.preemptible.when != TierPreemption::Never,
        topology: engine::TopologyRequest {
            required: level(topology.and_then(|request| request.required.as_ref())),
            preferred: level(topology.and_then(|request| request.preferred.as_ref())),
            avoided: status
                .into_iter()
                .flat_map(|status| gang_status::avoided_nodes(context, status))
                .map(|(node, _)| node.into())
                .collect(),
            closed: still_prepared::closed_nodes(context, &pods),
        },
        run_time: run_time(context, formed),
        lacks_place_since: lacks_place_since(gang),
        min_count: formed
            .spec
            .min_count
            .map(|least| {
                if context.bugs.has(InjectedBug::LeastIgnored) {
                    1
                } else {
                    least
                }
            })
            .and_then(|least| usize::try_from(least).ok()),
        pods: Some(pods).filter(|pods| !pods.is_empty())?,
    })
}
