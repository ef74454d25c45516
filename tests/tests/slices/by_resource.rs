//! Pods that ask for a whole GPU by the name of a resource, for which kube-scheduler makes the claim.

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
};

use crate::stage::{BRIDGED, RESOURCE, Single, on, prepare_team};

pub(crate) fn scenarios() -> Vec<Scenario> {
    scenarios![a_pod_that_asks_by_the_name_of_a_resource_gets_a_whole_gpu_and_is_charged_for_it]
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
    wait_until_no_claim_is_left(&client).await
}

/// kube-controller-manager deletes the claim when its pod has ended.
async fn wait_until_no_claim_is_left(client: &Client) -> Result<()> {
    eventually("the claim is gone, or free", LIMIT, async || {
        let claims: Vec<ResourceClaim> = kubernetes::list(client, Some("resource")).await?;
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
