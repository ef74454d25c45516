//! Why a Gang is not admitted, and which Gangs the engine may admit.

use muster_api::{Gang, NodeDevices, Reason};
use muster_engine as engine;

use crate::{
    objects::{gang_object, has_foreign_gate, is_gated, is_terminal, stamp},
    poll_context::{PollContext, attempt, has_ended},
};
use muster_cluster::formed::{FormedGang, GangKey, PendingReason};

/// Why the Gang waits, with its place in the queue. `None`: it was not looked at yet.
pub(crate) fn why(
    picture: PollContext<'_>,
    key: &GangKey,
    gang: &Gang,
    attempt: i64,
) -> Option<(Option<i64>, PendingReason)> {
    let Some(formed) = picture.formed(key) else {
        let details = format!("0 of {} pods exist", gang.spec.size);
        let reason = Reason::MissingPods;
        return Some((None, PendingReason { reason, details }));
    };
    if let Some(wait) = by_objects(picture, formed, gang, attempt) {
        return Some((None, wait));
    }
    if let Some(wait) = unreleased(picture, formed) {
        return Some((None, wait));
    }
    let uid = gang.metadata.uid.as_deref().unwrap_or_default();
    picture.explanations.get(uid).cloned()
}

/// Why the engine is not asked, as far as the objects alone show it.
fn by_objects(
    picture: PollContext<'_>,
    formed: &FormedGang,
    gang: &Gang,
    attempt: i64,
) -> Option<PendingReason> {
    if let Some(wait) = &formed.wait {
        return Some(wait.clone());
    }
    if gang.spec.suspend {
        return Some(PendingReason {
            reason: Reason::Suspended,
            details: "spec.suspend is true".to_owned(),
        });
    }
    if formed.team.is_none() {
        return Some(PendingReason {
            reason: Reason::NoTeam,
            details: format!(
                "namespace {} names no Team that exists (label muster.dev/team)",
                formed.key.namespace
            ),
        });
    }
    leftover(picture, formed, attempt)
}

/// Pods that are free already, without an admission: of an earlier attempt, or around the gate. Nothing is
/// admitted beside them, since they may hold what it would be given.
fn leftover(picture: PollContext<'_>, formed: &FormedGang, attempt: i64) -> Option<PendingReason> {
    let pods = picture.index.pods_of_gang(&formed.key);
    let free = pods
        .iter()
        .find(|pod| !is_gated(pod) && !is_terminal(pod))?;
    let name = free.metadata.name.as_deref().unwrap_or_default();
    let stamp = stamp(free);
    Some(if stamp == 0 {
        PendingReason {
            reason: Reason::Bypass,
            details: format!("pod {name} passed the gate without an admission"),
        }
    } else {
        PendingReason {
            reason: Reason::WaitingForRelease,
            details: format!("pod {name} of attempt {stamp} is still there (this is {attempt})"),
        }
    })
}

/// Pods that an earlier attempt was to give devices to, and whose permit is not proved released. The engine does
/// not look at the gang before, so it has no explanation, or an old one.
fn unreleased(picture: PollContext<'_>, formed: &FormedGang) -> Option<PendingReason> {
    let mut held = formed
        .pods
        .iter()
        .map(|member| member.identity.uid.as_str())
        .filter(|uid| picture.index.has_hold(uid));
    let first = held.next()?;
    let count = 1 + held.count();
    let of_first = |devices: &NodeDevices| {
        let mut permits = devices.spec.permits.iter();
        permits.any(|permit| permit.pod_uid == first)
    };
    let place = picture
        .index
        .all_node_devices()
        .find(|(_, devices)| of_first(devices))
        .map_or_else(String::new, |(node, _)| {
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

/// The Gang as the engine is asked about it, if it may be.
pub(crate) fn candidate(
    picture: PollContext<'_>,
    key: &GangKey,
    gang: &Gang,
) -> Option<engine::Gang> {
    let status = gang.status.as_ref()?;
    let formed = picture.formed(key)?;
    let settled = !picture.busy(&gang_object(key))
        && picture.intent_of(key).is_none()
        && status.admission.is_none()
        && !has_ended(gang)
        && gang.metadata.deletion_timestamp.is_none()
        && attempt(gang) >= 1
        && attempt(gang) >= crate::outward::gangs::owed_attempt(picture, key, gang);
    if !settled || by_objects(picture, formed, gang, status.attempt).is_some() || formed.excepted {
        return None;
    }
    let pods: Option<Vec<engine::Pod>> = formed
        .pods
        .iter()
        .map(|member| {
            let pod = picture.index.pod_by_uid(&member.identity.uid)?;
            let free_of_others = is_gated(pod) && !has_foreign_gate(pod);
            let busy = picture.busy(&crate::objects::pod_object(pod));
            (free_of_others && !busy && stamp(pod) <= status.attempt)
                .then(|| member.request.clone())
                .flatten()
        })
        .collect();
    let topology = formed.spec.topology.as_ref();
    let level = |name: Option<&String>| name.map(|name| name.as_str().into());
    Some(engine::Gang {
        uid: gang.metadata.uid.as_deref()?.into(),
        name: key.to_string(),
        attempt: status.attempt,
        team: formed.team.clone()?,
        priority: formed.priority,
        queued_at: engine::Timestamp(formed.last_pod_created_at),
        topology: engine::TopologyRequest {
            required: level(topology.and_then(|request| request.required.as_ref())),
            preferred: level(topology.and_then(|request| request.preferred.as_ref())),
        },
        pods: pods.filter(|pods| !pods.is_empty())?,
    })
}
