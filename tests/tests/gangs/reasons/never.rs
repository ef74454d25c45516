//! Waits that end only when somebody asks for something else.

use anyhow::Result;
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::Api;
use muster_api::Reason;
use muster_tests::{
    builders::{self, gpu_quota},
    cluster::Cluster,
    events, gangs,
    kubernetes::{self, LIMIT, Progress, eventually},
    scenarios,
    suite::Scenario,
    workloads::Workload,
};
use serde_json::json;

use super::{Waiting, all_wait_and_hold_nobody_up, pair, single, strict, team};
use crate::stage::prepare_flavors;

pub(super) fn scenarios() -> Vec<Scenario> {
    scenarios![every_gang_that_cannot_start_says_exactly_why_and_holds_nobody_up]
}

async fn every_gang_that_cannot_start_says_exactly_why_and_holds_nobody_up(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_flavors(&client).await?;
    team(&client, "reasons", strict()).await?;
    builders::namespace(&client, "crowded", Some("reasons")).await?;
    builders::team(&client, "small", None, vec![gpu_quota("fabric", 2, None)]).await?;
    builders::namespace(&client, "small", Some("small")).await?;

    let missing = pair("reasons", "missing");
    let (_, spec) = missing.prepare(cluster).await?;
    missing.create_labelled_pod(&client, &spec, 0).await?;
    let sizes = pair("reasons", "sizes");
    let (_, spec) = sizes.prepare(cluster).await?;
    sizes.create_pod_of_size(&client, &spec, 0, "2").await?;
    sizes.create_pod_of_size(&client, &spec, 1, "3").await?;
    // The cluster has 4 nodes of 8 GPUs in this flavor.
    let huge = Workload {
        ranks: 5,
        gpus: 8,
        ..pair("reasons", "huge")
    };
    huge.submit_job(cluster, &[]).await?;
    let over = Workload {
        gpus: 2,
        ..pair("small", "over")
    };
    over.submit_job(cluster, &[]).await?;
    let strange = single("reasons", "strange");
    submit_with_strange_selector(cluster, &strange).await?;
    let crowd = Workload {
        ranks: 5000,
        ..pair("crowded", "crowd")
    };
    submit_a_crowd(cluster, &crowd).await?;

    let waiting = [
        Waiting::new(&missing, Reason::MissingPods, &["1 of 2 pods"]),
        Waiting::new(&sizes, Reason::SizeMismatch, &["2", "3"]),
        Waiting::new(&huge, Reason::PlacementImpossible, &["4 of 5 pods"]).job("huge"),
        Waiting::new(&over, Reason::ExceedsMaxQuota, &["4 GPUs", "2"]).job("over"),
        Waiting::new(&strange, Reason::RequestNotUnderstood, &["ResourceClaim"]),
        Waiting::new(&crowd, Reason::GangTooLarge, &["5000", "4096"]).job("crowd"),
    ];
    let behind = pair("reasons", "behind");
    let ranks = all_wait_and_hold_nobody_up(cluster, &waiting, &behind).await?;

    // A pod that comes too late for the gang that runs waits, too.
    let (_, spec) = behind.prepare(cluster).await?;
    behind.create_labelled_pod(&client, &spec, 2).await?;
    events::wait_for_reason(&client, "reasons", "Pod", "behind-2", Reason::ExcessPod).await?;
    gangs::ensure_none_bound(&client, "reasons", "behind-2").await?;
    ranks.finish()?;
    gangs::wait_until_finished(&client, "reasons", &behind.gang()).await
}

/// A selector that asks for an attribute that no device has, in an expression that cannot be evaluated.
async fn submit_with_strange_selector(cluster: &Cluster, strange: &Workload<'_>) -> Result<()> {
    let client = cluster.client();
    let selector = "device.attributes['gpu.muster.dev'].noSuchAttribute == 'x'";
    let template = builders::claim_template("strange", 1, Some(selector))?;
    let templates = Api::namespaced(client.clone(), strange.namespace);
    kubernetes::create(&templates, &template).await?;
    let (ranks, _) = strange.prepare(cluster).await?;
    let spec = builders::pod_spec(&ranks.container(&["gpus"])?)?;
    let spec = builders::with_claim_template(spec, "strange");
    strange.create_labelled_pods(&client, &spec).await
}

/// A Job of more pods than a gang may have, of which the namespace lets one be made.
async fn submit_a_crowd(cluster: &Cluster, crowd: &Workload<'_>) -> Result<()> {
    let client = cluster.client();
    let quotas: Api<ResourceQuota> = Api::namespaced(client, crowd.namespace);
    let one_pod: ResourceQuota = serde_json::from_value(
        json!({"metadata": {"name": "one-pod"}, "spec": {"hard": {"pods": "1"}}}),
    )?;
    kubernetes::create(&quotas, &one_pod).await?;
    eventually("the ResourceQuota counts", LIMIT, async || {
        let status = quotas.get("one-pod").await?.status.unwrap_or_default();
        Ok(Progress::when(status.used.is_some(), || {
            "it was not looked at yet".to_owned()
        }))
    })
    .await?;
    crowd.submit_job(cluster, &[]).await.map(drop)
}
