//! Queues: each Team as the members of its namespaces see it. Written when something changed, at
//! most once a second; nothing is ever decided by what stands there.

use std::collections::BTreeMap;

use muster_api::{PendingGang, QueueLimit, QueueStatus};
use muster_engine as engine;

use crate::{
    ApiRequest,
    poll_context::{PollContext, has_ended},
};
use muster_cluster::{
    index::NamespacedName,
    object::{Kind, ObjectKey},
    quantity,
};

/// Most waiting gangs that a Queue lists.
const PENDING_LISTED: usize = 100;

/// Queues that are to be written or removed.
pub(crate) fn writes(picture: PollContext<'_>, engine: &engine::State) -> Vec<ApiRequest> {
    let counts = counts(picture);
    let mut writes = Vec::new();
    for (team, _) in picture.index.teams() {
        let namespaces = picture.index.namespaces_of_team(team);
        if namespaces.is_empty() {
            continue;
        }
        let name = team.as_str().into();
        let limits: Vec<QueueLimit> = engine.usage(&name).iter().map(limit).collect();
        let (admitted_gangs, pending_gangs) = counts.get(team).copied().unwrap_or_default();
        let waiting = engine.queue(&name);
        for namespace in namespaces {
            let status = QueueStatus {
                limits: limits.clone(),
                admitted_gangs,
                pending_gangs,
                pending: pending(picture, namespace, &waiting),
            };
            writes.extend(publication(picture, namespace, team, status));
        }
    }
    writes.extend(removals(picture));
    writes
}

fn publication(
    picture: PollContext<'_>,
    namespace: &str,
    team: &str,
    status: QueueStatus,
) -> Option<ApiRequest> {
    let key = NamespacedName {
        namespace: namespace.to_owned(),
        name: team.to_owned(),
    };
    let stands = picture
        .index
        .queue(&key)
        .and_then(|queue| queue.status.as_ref());
    (stands != Some(&status)).then(|| ApiRequest::PublishQueue {
        namespace: namespace.to_owned(),
        team: team.to_owned(),
        status: Box::new(status),
    })
}

fn removals(picture: PollContext<'_>) -> Vec<ApiRequest> {
    picture
        .index
        .queues()
        .filter(|(key, queue)| {
            let team = picture.index.team_of_namespace(&key.namespace);
            queue.metadata.deletion_timestamp.is_none()
                && team.is_none_or(|team| team.as_str() != key.name)
        })
        .map(|(key, _)| ApiRequest::DeleteQueue {
            key: ObjectKey {
                kind: Kind::Queue,
                namespace: key.namespace.clone(),
                name: key.name.clone(),
            },
        })
        .collect()
}

/// Gangs that hold quota and gangs that wait, by Team.
fn counts(picture: PollContext<'_>) -> BTreeMap<String, (i64, i64)> {
    let mut counts: BTreeMap<String, (i64, i64)> = BTreeMap::new();
    for (_, gang) in picture.index.gangs() {
        let Some(status) = &gang.status else { continue };
        let Some(team) = &status.team else { continue };
        let (admitted, pending) = counts.entry(team.clone()).or_default();
        if status.admission.is_some() {
            *admitted += 1;
        } else if !has_ended(gang) {
            *pending += 1;
        }
    }
    counts
}

fn pending(
    picture: PollContext<'_>,
    namespace: &str,
    waiting: &[&engine::Gang],
) -> Vec<PendingGang> {
    let own = waiting.iter().filter_map(|gang| {
        let object = picture.index.gang_by_uid(gang.uid.as_str())?;
        if object.metadata.namespace.as_deref() != Some(namespace) {
            return None;
        }
        let (position, wait) = picture.explanations.get(gang.uid.as_str())?;
        Some(PendingGang {
            name: object.metadata.name.clone()?,
            position: (*position)?,
            reason: wait.reason,
            details: wait.details.clone(),
        })
    });
    own.take(PENDING_LISTED).collect()
}

fn limit(usage: &engine::Usage) -> QueueLimit {
    let quantity = |amount: engine::Amount| quantity::written(&usage.of.resource, amount);
    QueueLimit {
        flavor: usage.of.flavor.to_string(),
        resource: usage.of.resource.to_string(),
        nominal: quantity(usage.nominal),
        used: quantity(usage.used),
        borrowed: quantity(usage.borrowed),
        available: quantity(usage.available),
    }
}
