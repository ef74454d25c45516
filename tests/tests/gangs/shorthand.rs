//! Pods that say what GPUs they need in annotations, and nothing else.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Pod, ResourceQuota},
    resource::v1::ResourceClaimTemplate,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use muster_api::{Reason, keys};
use muster_tests::{
    builders,
    cluster::Cluster,
    gangs,
    kubernetes::{self, list},
    scenarios,
    suite::Scenario,
    workloads::Workload,
};
use serde_json::json;

use crate::stage::{allocated_gpus, prepare_team, ranks_got_what_was_allocated};

pub(crate) fn scenarios() -> Vec<Scenario> {
    scenarios![
        a_pod_that_only_says_how_many_gpus_gets_them,
        a_template_that_may_not_be_made_is_told_and_made_once_it_may,
    ]
}

/// A Job whose pods ask for two connected GPUs each, and a pod that asks for two by the same words: one template
/// serves all. What no GPU has is refused with what there is,
/// and what was asked for stays.
async fn a_pod_that_only_says_how_many_gpus_gets_them(cluster: &mut Cluster) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "terse", "fabric", 8).await?;
    let asked = [
        (keys::GPUS, "2"),
        (keys::VRAM, "40Gi"),
        (keys::INTERCONNECT, "nvlink"),
    ];

    let of_job = Workload {
        namespace: "terse",
        name: "train",
        ranks: 2,
        gpus: 0,
    };
    let (job_ranks, spec) = of_job.prepare(cluster).await?;
    let mut job = builders::indexed_job("train", 2, &[], &spec)?;
    let template = &mut job.spec.as_mut().context("a spec")?.template;
    let annotations = asked.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let metadata = template.metadata.get_or_insert_default();
    metadata.annotations = Some(annotations.into());
    let jobs: Api<Job> = Api::namespaced(client.clone(), "terse");
    kubernetes::create(&jobs, &job).await?;

    let single = Workload {
        name: "alone",
        ranks: 1,
        ..of_job
    };
    let (ranks, spec) = single.prepare(cluster).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "terse");
    kubernetes::create(&pods, &builders::pod("alone", &[], &asked, &spec)?).await?;

    let gang = gangs::wait_until_running(&client, "terse", &gangs::of_pod("alone")).await?;
    let job_gang = gangs::wait_until_running(&client, "terse", &gangs::of_job("train")).await?;
    let charged = gangs::charged(&client).await?;
    ensure!(charged.get("terse") == Some(&6000), "{charged:?}");
    let templates: Vec<ResourceClaimTemplate> = list(&client, Some("terse")).await?;
    let names: Vec<String> = templates.iter().map(ResourceExt::name_any).collect();
    ensure!(
        names.len() == 1 && names[0].starts_with("muster-2-gpus-40gi-nvlink-"),
        "{names:?}"
    );

    let too_large = builders::pod("huge", &[], &[(keys::VRAM, "200Gi")], &spec)?;
    let refusal = kubernetes::create(&pods, &too_large).await;
    let said = format!("{:#}", refusal.err().context("200Gi was accepted")?);
    ensure!(
        said.contains("no GPU has 200Gi; the nearest smaller one has 81559Mi (NVIDIA H100"),
        "{said}"
    );

    let more = json!({"metadata": {"annotations": {keys::GPUS: "8"}}});
    let params = PatchParams::default();
    let changed = pods.patch("alone", &params, &Patch::Merge(&more)).await;
    let said = changed
        .err()
        .context("more GPUs were accepted")?
        .to_string();
    ensure!(said.contains("Immutable"), "{said}");

    let allocated = allocated_gpus(cluster, &gang).await?;
    let job_allocated = allocated_gpus(cluster, &job_gang).await?;
    ranks.finish()?;
    job_ranks.finish()?;
    gangs::wait_until_finished(&client, "terse", &gangs::of_pod("alone")).await?;
    gangs::wait_for_job(&client, "terse", "train").await?;
    ranks_got_what_was_allocated(&ranks, &allocated, &[2])?;
    ranks_got_what_was_allocated(&job_ranks, &job_allocated, &[2, 2])
}

async fn a_template_that_may_not_be_made_is_told_and_made_once_it_may(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "barred", "fabric", 8).await?;
    let none = serde_json::from_value(json!({"metadata": {"name": "none"},
        "spec": {"hard": {"count/resourceclaimtemplates.resource.k8s.io": "0"}}}))?;
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), "barred");
    kubernetes::create(&quotas, &none).await?;

    let workload = Workload {
        namespace: "barred",
        name: "alone",
        ranks: 1,
        gpus: 0,
    };
    let (ranks, spec) = workload.prepare(cluster).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "barred");
    let pod = builders::pod("alone", &[], &[(keys::GPUS, "1")], &spec)?;
    kubernetes::create(&pods, &pod).await?;
    let gang = gangs::of_pod("alone");
    let said =
        gangs::wait_for_reason(&client, "barred", &gang, Reason::RequestNotUnderstood).await?;
    ensure!(
        said.contains("cannot be made") && said.contains("quota"),
        "{said}"
    );

    quotas.delete("none", &DeleteParams::default()).await?;
    gangs::wait_until_running(&client, "barred", &gang).await?;
    ranks.finish()?;
    gangs::wait_until_finished(&client, "barred", &gang).await?;
    Ok(())
}
