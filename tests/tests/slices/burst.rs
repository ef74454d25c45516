//! More notebooks at once than there is room for.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use muster_api::keys;
use muster_tests::{
    builders::{self, RankProgram},
    cluster::Cluster,
    kubernetes::{self, Progress, eventually},
    scenarios,
    suite::Scenario,
};

use crate::stage::{A30, H100, prepare_team, wait_until_uncut};

/// Notebooks, of which each gets a slice in its turn.
const NOTEBOOKS: usize = 200;
/// How many are created side by side.
const AT_ONCE: usize = 20;
/// Longest time until all have had theirs.
const LIMIT: Duration = Duration::from_mins(8);

pub(crate) fn scenarios() -> Vec<Scenario> {
    let burst = scenarios![a_burst_of_two_hundred_notebooks_gets_a_slice_each];
    let burst = burst.into_iter();
    burst.map(|it| it.with_more_time(LIMIT)).collect()
}

async fn a_burst_of_two_hundred_notebooks_gets_a_slice_each(cluster: &mut Cluster) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "burst").await?;
    let names = (0..NOTEBOOKS).map(|number| format!("notebook-{number}"));
    let pods: Api<Pod> = Api::namespaced(client, "burst");
    let cluster: &Cluster = cluster;
    let created = names.map(|name| create(cluster, &pods, name));
    let programs: Vec<(String, RankProgram)> = stream::iter(created)
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    // The control plane removes pods that have ended once there are a hundred of them: who ended well is told by the programs.
    eventually("every notebook has ended well", LIMIT, async || {
        let finished = programs
            .iter()
            .filter(|(_, it)| it.outcome(0).as_deref() == Some("Finished"))
            .count();
        let pods = pods.list(&kube::api::ListParams::default()).await?;
        let phases = pods.iter().map(|pod| pod.status.as_ref()?.phase.as_deref());
        let left = phases.filter(|phase| *phase != Some("Succeeded")).count();
        Ok(Progress::when(finished == NOTEBOOKS && left == 0, || {
            format!("{finished} of {NOTEBOOKS} have; {left} pods have not succeeded")
        }))
    })
    .await?;
    for (name, program) in programs {
        let seen = program.gpus()?.remove(&0).context("rank 0 has reported")?;
        ensure!(seen.len() == 1, "{name} saw {seen:?}");
    }
    wait_until_uncut(cluster, H100).await?;
    wait_until_uncut(cluster, A30).await
}

/// Creates a notebook that runs for a moment.
async fn create(cluster: &Cluster, pods: &Api<Pod>, name: String) -> Result<(String, RankProgram)> {
    let peers = builders::peers_directory(cluster.directory(), &format!("burst-{name}"))?;
    let program = RankProgram::new(cluster.programs().path("rank"), peers, 1);
    let spec = builders::pod_spec(&program.container(&[])?)?;
    let pod = builders::pod(&name, &[], &[(keys::VRAM, "10Gi")], &spec)?;
    kubernetes::create(pods, &pod).await?;
    Ok((name, program))
}
