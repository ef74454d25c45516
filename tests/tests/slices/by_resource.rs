//! Pods that ask for whole GPUs by the name of a resource, for which kube-scheduler makes the claim.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::{Client, ResourceExt};
use muster_api::keys;
use muster_tests::{
    builders,
    cluster::Cluster,
    gangs,
    kubernetes::{self, LIMIT, Progress, eventually},
    scenarios,
    suite::Scenario,
    workloads::Workload,
};

use crate::stage::{BRIDGED, RESOURCE, Single, ensure_saw, given, on, prepare_team};

pub(crate) fn scenarios() -> Vec<Scenario> {
    scenarios![
        a_pod_that_asks_by_the_name_of_a_resource_gets_a_whole_gpu_and_is_charged_for_it,
        each_rank_of_a_gang_that_asks_for_two_by_the_name_of_a_resource_gets_two_whole_gpus,
    ]
}

async fn a_pod_that_asks_by_the_name_of_a_resource_gets_a_whole_gpu_and_is_charged_for_it(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "resource").await?;
    let pod = Single::create(cluster, "resource", "limits", &[], |spec| {
        builders::with_limit(on(BRIDGED)(spec), RESOURCE, 1)
    })
    .await?;
    let given = pod.runs_on_one(cluster).await?;
    ensure!(
        given.node == BRIDGED && !given.device.contains("-mig-"),
        "{given:?}"
    );
    let uid = pod.pod(&client).await?.uid().context("a pod has a UID")?;
    let name = format!(
        "{uid}/{}{}",
        keys::DEVICE_CLASS_RESOURCE_PREFIX,
        keys::DEVICE_CLASS_GPU
    );
    let gang = gangs::find(&client, "resource", &gangs::of_pod("limits")).await?;
    let admission = gang
        .and_then(|gang| gang.status?.admission)
        .context("its gang is admitted")?;
    let charged = admission.charge.claims;
    let [group] = charged.as_slice() else {
        anyhow::bail!("{charged:?}");
    };
    ensure!(
        group.uids == [name.as_str()] && group.gpus_milli == 1000,
        "{group:?}"
    );
    pod.finishes(&client, &[given]).await?;
    wait_until_no_claim_is_left(&client, "resource").await
}

/// All four GPUs of the node: kube-scheduler makes a claim of two for each rank when it comes to it, and the gang starts whole all the same.
async fn each_rank_of_a_gang_that_asks_for_two_by_the_name_of_a_resource_gets_two_whole_gpus(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "resources").await?;
    let workload = Workload {
        namespace: "resources",
        name: "pairs",
        ranks: 2,
        gpus: 0,
    };
    let (ranks, spec) = workload.prepare(cluster).await?;
    let spec = builders::with_limit(on(BRIDGED)(spec), RESOURCE, 2);
    workload.create_labelled_pods(&client, &spec).await?;
    let gang = gangs::wait_until_running(&client, "resources", &workload.gang()).await?;
    let mut of_ranks = Vec::new();
    let mut uuids = BTreeSet::new();
    for (rank, pod) in gangs::pods(&client, &gang).await? {
        let given = given(cluster, "resources", &pod.name_any()).await?;
        let are_whole = given
            .iter()
            .all(|given| given.node == BRIDGED && !given.device.contains("-mig-"));
        ensure!(
            given.len() == 2 && are_whole,
            "rank {rank} was given {given:?}"
        );
        uuids.extend(given.iter().map(|given| given.uuid.clone()));
        of_ranks.push((rank, given));
    }
    ensure!(
        of_ranks.len() == 2 && uuids.len() == 4,
        "two ranks with two GPUs each have {of_ranks:?}"
    );
    let charged = gangs::charged(&client).await?;
    ensure!(charged.get("resources") == Some(&4_000), "{charged:?}");
    ranks.finish()?;
    gangs::wait_until_finished(&client, "resources", &workload.gang()).await?;
    ranks.ensure_all_met()?;
    for (rank, given) in &of_ranks {
        ensure_saw(&ranks, *rank, given)?;
    }
    wait_until_no_claim_is_left(&client, "resources").await
}

/// kube-controller-manager deletes the claim when its pod has ended.
async fn wait_until_no_claim_is_left(client: &Client, namespace: &str) -> Result<()> {
    eventually("the claim is gone, or free", LIMIT, async || {
        let claims: Vec<ResourceClaim> = kubernetes::list(client, Some(namespace)).await?;
        let is_free = |claim: &ResourceClaim| {
            let status = claim.status.as_ref();
            status.is_none_or(|status| status.allocation.is_none())
        };
        Ok(Progress::when(claims.iter().all(is_free), || {
            format!("{claims:?}")
        }))
    })
    .await
}
