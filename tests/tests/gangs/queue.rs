//! More than the quota: what is over it queues, visibly, and comes when quota is proved free.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt, api::DeleteParams};
use muster_api::{Gang, PendingGang, Queue, Reason};
use muster_tests::{
    cluster::Cluster,
    events, gangs,
    kubernetes::{self, LIMIT, Progress, always, eventually},
    scenarios,
    suite::Scenario,
    users,
    workloads::Workload,
};
use serde_json::json;

use crate::stage::prepare_team;

pub(crate) fn scenarios() -> Vec<Scenario> {
    scenarios![
        twice_the_quota_is_queued_and_says_why_in_numbers,
        quota_comes_back_only_when_the_devices_are_proved_released,
    ]
}

async fn twice_the_quota_is_queued_and_says_why_in_numbers(cluster: &mut Cluster) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "twice", "fabric", 16).await?;
    let names: Vec<String> = (0..8).map(|number| format!("job{number}")).collect();
    let mut programs = Vec::new();
    for name in &names {
        let workload = Workload {
            namespace: "twice",
            name,
            ranks: 2,
            gpus: 2,
        };
        programs.push(workload.submit_job(cluster, &[]).await?);
    }
    let queue = eventually("four gangs are admitted and four wait", LIMIT, async || {
        let queues: Api<Queue> = Api::namespaced(client.clone(), "twice");
        let Some(queue) = queues.get_opt("twice").await? else {
            return Ok(Progress::NotYet("there is no Queue".to_owned()));
        };
        let status = queue.status.unwrap_or_default();
        Ok(
            if status.admitted_gangs == 4 && status.pending_gangs == 4 && status.pending.len() == 4
            {
                Progress::Done(status)
            } else {
                Progress::NotYet(format!("{status:?}"))
            },
        )
    })
    .await?;
    for (place, pending) in (1..).zip(&queue.pending) {
        ensure!(
            pending.position == place && pending.reason == Reason::WaitingForQuota,
            "{pending:?}"
        );
        gangs::ensure_says(&pending.details, &["4 GPUs of fabric", "0 can be had now"])?;
    }
    let limit = queue
        .limits
        .iter()
        .find(|limit| limit.resource == "gpus")
        .context("a limit of GPUs")?;
    ensure!(limit.nominal.0 == "16" && limit.used.0 == "16", "{limit:?}");
    ensure!(gangs::charged(&client).await?.get("twice") == Some(&16_000));
    describe_says_why(cluster, &queue.pending).await?;
    let member = users::user(cluster, "twice", "member", "view", Vec::new()).await?;
    let queues: Api<Queue> = Api::namespaced(member, "twice");
    queues
        .get("twice")
        .await
        .context("a member with view reads the Queue")?;
    for program in &programs {
        program.finish()?;
    }
    for name in &names {
        gangs::wait_for_job(&client, "twice", name).await?;
    }
    Ok(())
}

/// What `kubectl describe` shows of the Job and the pods of the first gang that waits.
async fn describe_says_why(cluster: &Cluster, pending: &[PendingGang]) -> Result<()> {
    let client = cluster.client();
    let gang = &pending.first().context("nothing waits")?.name;
    let gang: Gang = Api::namespaced(client.clone(), "twice").get(gang).await?;
    let mut owners = gang.metadata.owner_references.into_iter().flatten();
    let job = owners
        .next()
        .context("the gang of a Job has an owner")?
        .name;
    let pods: Vec<Pod> = kubernetes::list(&client, Some("twice")).await?;
    let mut pods = pods.iter().map(ResourceExt::name_any);
    let pod = pods.find(|pod| pod.starts_with(&format!("{job}-")));
    for (kind, name) in [("Job", job), ("Pod", pod.context("a pod of the Job")?)] {
        events::wait_for_reason(&client, "twice", kind, &name, Reason::WaitingForQuota).await?;
        let shown = cluster
            .control_plane
            .kubectl(&["describe", kind, &name, "--namespace=twice"])
            .await?;
        gangs::ensure_says(&shown, &["WaitingForQuota", "asks for 4 GPUs of fabric"])?;
    }
    Ok(())
}

async fn quota_comes_back_only_when_the_devices_are_proved_released(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "proof", "solo", 8).await?;
    let first = Workload {
        namespace: "proof",
        name: "first",
        ranks: 1,
        gpus: 8,
    };
    let (_, spec) = first.prepare(cluster).await?;
    first.create_labelled_pod(&client, &spec, 0).await?;
    gangs::wait_until_running(&client, "proof", &gangs::of_label("first")).await?;
    // The API forgets the pod at once; its process goes on.
    cluster
        .node("solo")?
        .set_runtime_faults(&json!({"hangStop": [{"pod": "first"}]}))?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "proof");
    pods.delete("first-0", &DeleteParams::default().grace_period(0))
        .await?;
    let second = Workload {
        name: "second",
        ..first
    };
    let (ranks, spec) = second.prepare(cluster).await?;
    second.create_labelled_pod(&client, &spec, 0).await?;
    let waits = waits_for_the_release(&client).await;
    cluster.node("solo")?.set_runtime_faults(&json!({}))?;
    waits?;
    gangs::wait_until_running(&client, "proof", &gangs::of_label("second")).await?;
    ranks.finish()?;
    gangs::wait_until_finished(&client, "proof", &gangs::of_label("second")).await
}

/// The second gang says what it waits for, and goes on waiting.
async fn waits_for_the_release(client: &Client) -> Result<()> {
    let second = gangs::of_label("second");
    let why = gangs::wait_for_reason(client, "proof", &second, Reason::WaitingForRelease).await?;
    gangs::ensure_says(&why, &["1 pod", "group-first"])?;
    let gangs: Api<Gang> = Api::namespaced(client.clone(), "proof");
    let name = gangs::find(client, "proof", &second)
        .await?
        .map(|gang| gang.name_any());
    let name = name.context("it is gone")?;
    always("it still waits", Duration::from_secs(3), async || {
        let queue = gangs
            .get(&name)
            .await?
            .status
            .and_then(|status| status.queue);
        let waits = queue
            .as_ref()
            .is_some_and(|queue| queue.reason == Reason::WaitingForRelease);
        Ok(Progress::when(waits, || format!("{queue:?}")))
    })
    .await
}
