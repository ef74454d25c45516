//! A node full of the smallest slices, then without any, then whole.
//!
//! The longest scenario of the suite: one kubelet starts and ends 56 pods, and one driver makes and removes a slice for each, one after the other.
//! It waits for nothing else. As a gang of 56 is charged until its last pod has ended, what the observer grants for a release counts from there,
//! and for each permit from the end of its own pod.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Result, ensure};
use k8s_openapi::api::{batch::v1::Job, resource::v1::ResourceClaimTemplate};
use kube::Api;
use muster_api::Reason;
use muster_tests::{
    builders::{self, RankProgram, RankSource},
    cluster::Cluster,
    gangs, kubernetes, scenarios,
    suite::Scenario,
    workloads::Workload,
};

use crate::stage::{H100, cards, on, prepare_team, wait_until_uncut};

/// Slices of the smallest profile on eight H100: seven on each.
const SLICES: u32 = 56;
/// What the scenario has beside the usual: as long as 56 pods of one node may take to start, and as long as they may take to end, on two cores
/// that have other things to do.
const MORE: Duration = Duration::from_mins(8);
/// How often a notebook looks whether it is to finish: as many of them as there are slices do, on those two cores.
const STEP_MILLIS: u64 = 500;
/// What each is charged as, in thousandths of a GPU.
const SEVENTH: i64 = 142;

pub(crate) fn scenarios() -> Vec<Scenario> {
    let full = scenarios![a_node_full_of_slices_is_freed_and_taken_whole_by_a_gang_that_waited];
    let full = full.into_iter();
    full.map(|it| it.with_more_time(MORE)).collect()
}

/// While the slices are in use no GPU of the node is to be had whole, and who waits for eight is told so. When they are gone the driver takes
/// the GPUs out of MIG mode again.
async fn a_node_full_of_slices_is_freed_and_taken_whole_by_a_gang_that_waited(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "full").await?;
    let notebooks = fill(cluster).await?;
    gangs::wait_until_all_of_many_run(&client, "full", &gangs::of_job("notebooks")).await?;
    let granted = gangs::granted(&client, "full").await?;
    let devices: BTreeSet<&(String, String)> = granted.values().flatten().collect();
    let is_smallest =
        |(node, device): &&(String, String)| node == H100 && device.contains("-mig-1g10gb-");
    ensure!(
        devices.len() == usize::try_from(SLICES)? && devices.iter().all(is_smallest),
        "{} devices were granted: {devices:?}",
        devices.len()
    );
    for card in cards(cluster, H100)? {
        let is_full = card.mig_current && card.gpu_instances.len() == 7;
        ensure!(is_full, "{card:?}");
    }
    let charged = gangs::charged(&client).await?;
    let expected = i64::from(SLICES) * SEVENTH;
    ensure!(charged.get("full") == Some(&expected), "{charged:?}");

    let whole = Workload {
        namespace: "full",
        name: "whole",
        ranks: 2,
        gpus: 4,
    };
    let (ranks, spec) = whole.prepare(cluster).await?;
    let job = builders::indexed_job(whole.name, whole.ranks, &[], &on(H100)(spec))?;
    let jobs: Api<Job> = Api::namespaced(client.clone(), "full");
    kubernetes::create(&jobs, &job).await?;
    let of_whole = gangs::of_job("whole");
    let details =
        gangs::wait_for_reason(&client, "full", &of_whole, Reason::WaitingForPlacement).await?;
    gangs::ensure_says(&details, &["whole GPUs wait for slices to end"])?;
    gangs::ensure_none_bound(&client, "full", "whole").await?;

    notebooks.finish()?;
    gangs::wait_until_all_of_many_run(&client, "full", &of_whole).await?;
    gangs::wait_for_job(&client, "full", "notebooks").await?;
    for card in cards(cluster, H100)? {
        let is_whole = !card.mig_current && card.gpu_instances.is_empty();
        ensure!(is_whole, "{card:?}");
    }
    ranks.finish()?;
    gangs::wait_for_job(&client, "full", "whole").await?;
    ranks.ensure_all_met()?;
    let seen: BTreeSet<String> = ranks.gpus()?.into_values().flatten().collect();
    let uuids: BTreeSet<String> = cluster.node(H100)?.gpu_uuids().into_iter().collect();
    ensure!(
        seen == uuids,
        "the gang saw {seen:?}, the node has {uuids:?}"
    );
    wait_until_uncut(cluster, H100).await
}

/// A Job of as many pods as there are slices, which know nothing of each other and run until they are told to finish.
async fn fill(cluster: &Cluster) -> Result<RankProgram> {
    let client = cluster.client();
    let selector = "device.attributes['gpu.muster.dev'].profile == '1g.10gb'";
    let templates: Api<ResourceClaimTemplate> = Api::namespaced(client.clone(), "full");
    let template = builders::slice_template("smallest", selector)?;
    kubernetes::create(&templates, &template).await?;
    let peers = builders::peers_directory(cluster.directory(), "full-notebooks")?;
    let mut ranks = RankProgram::new(cluster.programs().path("rank"), peers, 1).until_finished();
    ranks.rank = RankSource::Fixed(0);
    ranks.step_millis = STEP_MILLIS;
    let spec = builders::pod_spec(&ranks.container(&["gpus"])?)?;
    let spec = builders::with_claim_template(spec, "smallest");
    let job = builders::indexed_job("notebooks", SLICES, &[], &spec)?;
    let jobs: Api<Job> = Api::namespaced(client, "full");
    kubernetes::create(&jobs, &job).await?;
    Ok(ranks)
}
