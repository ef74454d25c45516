//! What the API server says about gangs: found by the beginning of their names, because the end is made
//! from the owner's UID.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod, resource::v1::ResourceClaim};
use kube::{
    Api, Client, ResourceExt,
    api::ListParams,
    runtime::{WatchStreamExt, watcher},
};
use muster_api::{Gang, GangPhase, Reason, keys};
use tokio_util::task::AbortOnDropHandle;

use crate::kubernetes::{LIMIT, Progress, eventually, list};

/// Name of the Gang of a Job, but for its end.
pub fn of_job(job: &str) -> String {
    format!("job-{job}-")
}

/// Name of the Gang of a gang label, but for its end.
pub fn of_label(label: &str) -> String {
    format!("group-{label}-")
}

/// Name of the Gang of a single pod, but for its end.
pub fn of_pod(pod: &str) -> String {
    format!("pod-{pod}-")
}

/// The Gang whose name begins so; of several the one with the shortest name, which has nothing but the
/// part that is made from a UID behind it; of several incarnations of a label the first.
pub async fn find(client: &Client, namespace: &str, beginning: &str) -> Result<Option<Gang>> {
    let gangs: Vec<Gang> = list(client, Some(namespace)).await?;
    let named = gangs
        .into_iter()
        .filter(|gang| gang.name_any().starts_with(beginning));
    Ok(named.min_by_key(|gang| (gang.name_any().len(), gang.creation_timestamp())))
}

/// Namespace and name of the Job, or whatever else owns the Gang.
pub fn owner_of(gang: &Gang) -> Option<(String, String)> {
    let owner = gang.owner_references().first()?.name.clone();
    Some((gang.namespace().unwrap_or_default(), owner))
}

/// Tells every Gang that there is, and each that changes, until what is returned is dropped.
pub fn watch(
    client: Client,
    mut note: impl FnMut(&Gang) + Send + 'static,
) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        let gangs = watcher(Api::<Gang>::all(client), watcher::Config::default());
        let mut gangs = gangs.default_backoff().touched_objects().boxed();
        while let Some(event) = gangs.next().await {
            match event {
                Ok(gang) => note(&gang),
                Err(error) => tracing::warn!(%error, "watch of Gangs"),
            }
        }
    }))
}

/// Waits until the Gang is in one of these phases.
pub async fn wait_for_phase(
    client: &Client,
    namespace: &str,
    beginning: &str,
    phases: &[GangPhase],
) -> Result<Gang> {
    wait_for_phase_within(client, namespace, beginning, phases, LIMIT).await
}

/// The same within another limit.
async fn wait_for_phase_within(
    client: &Client,
    namespace: &str,
    beginning: &str,
    phases: &[GangPhase],
    limit: Duration,
) -> Result<Gang> {
    let what = format!("gang {namespace}/{beginning}* is {phases:?}");
    eventually(&what, limit, async || {
        let Some(gang) = find(client, namespace, beginning).await? else {
            return Ok(Progress::NotYet("there is no such Gang".to_owned()));
        };
        let status = gang.status.clone().unwrap_or_default();
        Ok(if phases.contains(&status.phase) {
            Progress::Done(gang)
        } else {
            Progress::NotYet(format!("it is {:?}, {:?}", status.phase, status.queue))
        })
    })
    .await
}

/// Waits until all pods of the Gang run.
pub async fn wait_until_running(client: &Client, namespace: &str, beginning: &str) -> Result<Gang> {
    wait_for_phase(client, namespace, beginning, &[GangPhase::Running]).await
}

/// Waits until all pods of a Gang run where a node has so many to start or to end for it that its kubelet may have to ask for some a second
/// time, a minute later.
pub async fn wait_until_all_of_many_run(
    client: &Client,
    namespace: &str,
    beginning: &str,
) -> Result<Gang> {
    let running = &[GangPhase::Running];
    wait_for_phase_within(client, namespace, beginning, running, 4 * LIMIT).await
}

/// Waits until all pods of the Gang run in this attempt or a later one.
pub async fn wait_until_running_again(
    client: &Client,
    namespace: &str,
    beginning: &str,
    attempt: i64,
) -> Result<Gang> {
    wait_until_running_again_within(client, namespace, beginning, attempt, LIMIT).await
}

/// The same, and it may take longer.
pub async fn wait_until_running_again_within(
    client: &Client,
    namespace: &str,
    beginning: &str,
    attempt: i64,
    limit: Duration,
) -> Result<Gang> {
    let what = format!("gang {namespace}/{beginning}* runs in attempt {attempt}");
    eventually(&what, limit, async || {
        let Some(gang) = find(client, namespace, beginning).await? else {
            return Ok(Progress::NotYet("there is no such Gang".to_owned()));
        };
        let status = gang.status.clone().unwrap_or_default();
        let runs = status.phase == GangPhase::Running && status.attempt >= attempt;
        Ok(if runs {
            Progress::Done(gang)
        } else {
            Progress::NotYet(format!(
                "it is {:?} in attempt {}, {:?}, {:?}, {:?}",
                status.phase, status.attempt, status.queue, status.requeue_at, status.evictions
            ))
        })
    })
    .await
}

/// Waits until all pods of the Gang have ended well.
pub async fn wait_until_finished(client: &Client, namespace: &str, beginning: &str) -> Result<()> {
    wait_for_phase(client, namespace, beginning, &[GangPhase::Finished])
        .await
        .map(drop)
}

/// Waits until the Gang waits for exactly this reason, and returns what it says with it.
pub async fn wait_for_reason(
    client: &Client,
    namespace: &str,
    beginning: &str,
    reason: Reason,
) -> Result<String> {
    let what = format!("gang {namespace}/{beginning}* waits with reason {reason}");
    eventually(&what, LIMIT, async || {
        let Some(gang) = find(client, namespace, beginning).await? else {
            return Ok(Progress::NotYet("there is no such Gang".to_owned()));
        };
        let status = gang.status.unwrap_or_default();
        Ok(match status.queue {
            Some(queue) if queue.reason == reason => Progress::Done(queue.details),
            other => Progress::NotYet(format!("it is {:?}, {other:?}", status.phase)),
        })
    })
    .await
}

/// Waits until the Job is complete.
pub async fn wait_for_job(client: &Client, namespace: &str, job: &str) -> Result<()> {
    let jobs: Api<Job> = Api::namespaced(client.clone(), namespace);
    eventually(
        &format!("Job {namespace}/{job} is complete"),
        LIMIT,
        async || {
            let status = jobs.get_status(job).await?.status.unwrap_or_default();
            let conditions = status.conditions.clone().unwrap_or_default();
            let has = |kind: &str| {
                conditions
                    .iter()
                    .any(|c| c.type_ == kind && c.status == "True")
            };
            if has("Failed") {
                return Ok(Progress::Never(anyhow::anyhow!(
                    "the Job failed: {status:?}"
                )));
            }
            Ok(Progress::when(has("Complete"), || format!("{status:?}")))
        },
    )
    .await
}

/// The pods of a Gang, by rank: those of its latest attempt, since one of an earlier attempt may hang on a node that is dead.
pub async fn pods(client: &Client, gang: &Gang) -> Result<BTreeMap<u32, Pod>> {
    let namespace = gang.namespace();
    let pods: Vec<Pod> = list(client, namespace.as_deref()).await?;
    let members = pods
        .into_iter()
        .filter(|pod| pod.annotations().get(keys::GANG_NAME) == Some(&gang.name_any()));
    let mut members: Vec<Pod> = members.collect();
    members.sort_by_key(|pod| {
        let attempt = pod.annotations().get(keys::ATTEMPT);
        attempt.and_then(|attempt| attempt.parse::<i64>().ok())
    });
    members
        .into_iter()
        .map(|pod| {
            let rank = pod.annotations().get(keys::RANK);
            let rank = rank.with_context(|| format!("{} has no rank", pod.name_any()))?;
            Ok((rank.parse()?, pod))
        })
        .collect()
}

/// The nodes of a Gang's pods, by rank, as they are bound.
pub async fn nodes(client: &Client, gang: &Gang) -> Result<Vec<String>> {
    let bound = pods(client, gang).await?.into_values();
    bound
        .map(|pod| {
            let name = pod.name_any();
            let node = pod.spec.and_then(|spec| spec.node_name);
            node.with_context(|| format!("pod {name} is not bound"))
        })
        .collect()
}

/// Devices that the claims of this namespace's pods were granted: (node, device) by pod name.
pub async fn granted(
    client: &Client,
    namespace: &str,
) -> Result<BTreeMap<String, Vec<(String, String)>>> {
    let claims: Vec<ResourceClaim> = list(client, Some(namespace)).await?;
    let mut granted: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for claim in claims {
        let status = claim.status.unwrap_or_default();
        let devices = status.allocation.and_then(|allocation| allocation.devices);
        let results = devices
            .and_then(|devices| devices.results)
            .unwrap_or_default();
        for user in status.reserved_for.unwrap_or_default() {
            let mut devices: Vec<_> = results
                .iter()
                .map(|result| (result.pool.clone(), result.device.clone()))
                .collect();
            granted.entry(user.name).or_default().append(&mut devices);
        }
    }
    Ok(granted)
}

/// Thousandths of GPUs that the Teams' admitted gangs are charged for, by Team.
pub async fn charged(client: &Client) -> Result<BTreeMap<String, i64>> {
    let gangs: Api<Gang> = Api::all(client.clone());
    let mut charged = BTreeMap::new();
    for gang in gangs.list(&ListParams::default()).await? {
        let Some(admission) = gang.status.and_then(|status| status.admission) else {
            continue;
        };
        for group in admission.charge.claims {
            let claims = i64::try_from(group.uids.len())?;
            *charged.entry(admission.team.clone()).or_default() += claims * group.gpus_milli;
        }
    }
    Ok(charged)
}

/// Fails unless the details of a reason have each of these: a number as a whole, a name.
pub fn ensure_says(details: &str, words: &[&str]) -> Result<()> {
    let is_part = |c: char| c.is_ascii_alphanumeric();
    for word in words {
        let is_said = details.match_indices(word).any(|(at, _)| {
            let before = details[..at].chars().next_back();
            let after = details[at + word.len()..].chars().next();
            !before.is_some_and(is_part) && !after.is_some_and(is_part)
        });
        ensure!(is_said, "expected {word:?} in {details:?}");
    }
    Ok(())
}

/// Fails if any pod of the namespace whose name begins so is bound.
pub async fn ensure_none_bound(client: &Client, namespace: &str, beginning: &str) -> Result<()> {
    let pods: Vec<Pod> = list(client, Some(namespace)).await?;
    for pod in pods {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
        ensure!(
            !pod.name_any().starts_with(beginning) || node.is_none(),
            "pod {namespace}/{} is bound to {node:?}",
            pod.name_any()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_counts_only_as_a_whole() {
        let details = "asks for 16 GPUs of h100, 8 can be had now; used by ml/group-a-x1";
        for said in ["16", "8", "h100", "ml/group-a-x1", "asks for 16 GPUs"] {
            assert!(ensure_says(details, &[said]).is_ok(), "{said}");
        }
        for not_said in ["6", "1", "h10", "group-b", "x"] {
            assert!(ensure_says(details, &[not_said]).is_err(), "{not_said}");
        }
    }
}
