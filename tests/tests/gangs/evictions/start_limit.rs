//! A gang that does not come up.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use kube::Api;
use muster_api::{Reason, conditions, keys};
use muster_tests::{
    builders, cluster::Cluster, events, gangs, kubernetes, scenarios, suite::Scenario,
    workloads::Workload,
};
use serde_json::json;

use super::{ensure_job_goes_on, wait_for_eviction};
use crate::stage::{FABRIC_NODES, prepare_team};

pub(super) fn scenarios() -> Vec<Scenario> {
    scenarios![
        a_gang_one_of_whose_images_never_arrives_is_evicted_told_and_tried_again_after_a_pause
    ]
}

/// The image that one node does not get.
const IMAGE: &str = "example.invalid/late:1";
/// Longest time without progress, in seconds: longer than any step takes where all is well. A kubelet that asked for a claim
/// before the API server knew that the pod is bound to its node is refused, and asks again after up to 15 s.
const START_LIMIT_SECONDS: &str = "20";
/// The pause after the first start that came to nothing.
const PAUSE_SECONDS: i64 = 30;

/// Three of four ranks come up, and wait for the fourth.
async fn a_gang_one_of_whose_images_never_arrives_is_evicted_told_and_tried_again_after_a_pause(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "images", "fabric", 32).await?;
    let workload = Workload {
        namespace: "images",
        name: "late",
        ranks: 4,
        gpus: 8,
    };
    let (ranks, mut spec) = workload.prepare(cluster).await?;
    for container in &mut spec.containers {
        container.image = Some(IMAGE.to_owned());
    }
    let missing = json!({"missingImage": [{"image": IMAGE, "message": "manifest unknown"}]});
    cluster
        .node(FABRIC_NODES[3])?
        .set_runtime_faults(&missing)?;
    let jobs: Api<Job> = Api::namespaced(client.clone(), "images");
    let limits = [(keys::START_TIMEOUT_SECONDS, START_LIMIT_SECONDS)];
    let job = builders::indexed_job("late", 4, &limits, &spec)?;
    kubernetes::create(&jobs, &job).await?;
    let late = gangs::of_job("late");

    let evicted = wait_for_eviction(&client, "images", &late, Reason::StartTimeout).await;
    cluster
        .node(FABRIC_NODES[3])?
        .set_runtime_faults(&json!({}))?;
    let (gang, eviction) = evicted?;
    let seconds = format!("{START_LIMIT_SECONDS} s");
    gangs::ensure_says(&eviction.message, &["rank", &seconds, FABRIC_NODES[3]])?;
    let names_image = eviction.message.contains("ImagePull");
    ensure!(names_image, "what is waited for: {}", eviction.message);
    let requeue_at = gang.status.and_then(|status| status.requeue_at);
    let requeue_at = requeue_at.context("it is tried again at once")?.0;
    let pause = requeue_at.as_second() - eviction.at.0.as_second();
    ensure!(pause == PAUSE_SECONDS, "the pause is {pause} s");
    for (kind, beginning) in [("Gang", late.as_str()), ("Job", "late")] {
        events::wait_for_reason(&client, "images", kind, beginning, Reason::StartTimeout).await?;
    }
    gangs::wait_for_reason(&client, "images", &late, Reason::BackingOff).await?;
    gangs::ensure_none_bound(&client, "images", "late-").await?;
    ensure_job_goes_on(&client, "images", "late", 0, 0).await?;

    let gang = gangs::wait_until_running_again(&client, "images", &late, 2).await?;
    let status = gang.status.context("a status")?;
    ensure!(status.attempt == 2, "it took more: {}", status.attempt);
    let mut told = status.conditions.iter();
    let admitted = told.find(|it| it.type_ == conditions::ADMITTED);
    let admitted = admitted.context("it runs")?.last_transition_time.0;
    ensure!(
        admitted.as_second() >= requeue_at.as_second(),
        "it was admitted at {admitted}, and not to be before {requeue_at}"
    );
    ranks.finish()?;
    gangs::wait_for_job(&client, "images", "late").await?;
    ranks.ensure_all_met()
}
