//! The driver comes and goes, and so does the kubelet: who has a slice keeps it, who waits for one gets it afterwards.

use std::time::Duration;

use anyhow::Result;
use kube::Client;
use muster_api::keys;
use muster_tests::{
    cluster::{Cluster, Program},
    kubernetes::{self, Progress, always},
    node::NodePart,
    scenarios,
    suite::Scenario,
};

use crate::stage::{Given, H100, Single, on, prepare_team, wait_until_uncut};

/// Shorter than what the kubelet waits before it deletes the ResourceSlices of a driver that is gone, 30 s.
const BRIEFLY: Duration = Duration::from_secs(10);
/// Longer than that.
const LONG: Duration = Duration::from_secs(40);

/// What each asks for: the smallest slice of an H100.
const LEAST: [(&str, &str); 1] = [(keys::VRAM, "10Gi")];

pub(crate) fn scenarios() -> Vec<Scenario> {
    scenarios![
        a_slice_outlives_ten_seconds_without_a_driver_and_a_restart_of_the_kubelet,
        two_drivers_hand_over_during_an_update_while_slices_are_asked_for,
    ]
}

pub(crate) fn longer_scenarios() -> Vec<Scenario> {
    scenarios![a_slice_outlives_forty_seconds_without_a_driver]
}

async fn a_slice_outlives_ten_seconds_without_a_driver_and_a_restart_of_the_kubelet(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "briefly").await?;
    let mut held = outlive(cluster, "briefly", BRIEFLY).await?;
    cluster.node(H100)?.restart_kubelet().await?;
    let later = Single::create(cluster, "briefly", "later", &LEAST, on(H100)).await?;
    let given = later.runs_on_one(cluster).await?;
    held.push((later, given));
    finish(cluster, &client, held).await
}

async fn a_slice_outlives_forty_seconds_without_a_driver(cluster: &mut Cluster) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "long").await?;
    let held = outlive(cluster, "long", LONG).await?;
    finish(cluster, &client, held).await
}

/// The next one begins while the first serves; whoever asks meanwhile is served by one of them, and by one alone.
async fn two_drivers_hand_over_during_an_update_while_slices_are_asked_for(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "update").await?;
    cluster.node(H100)?.start_next_driver()?;
    let mut waiting = Vec::new();
    for name in ["before-a", "before-b", "before-c"] {
        waiting.push(Single::create(cluster, "update", name, &LEAST, on(H100)).await?);
    }
    cluster.node(H100)?.hand_over_driver().await?;
    let after = Single::create(cluster, "update", "after", &LEAST, on(H100)).await?;
    waiting.push(after);
    let mut held = Vec::new();
    for pod in waiting {
        let given = pod.runs_on_one(cluster).await?;
        held.push((pod, given));
    }
    finish(cluster, &client, held).await
}

/// A pod gets a slice, its node's driver is gone for so long, and another pod asks for one meanwhile. Both with what they have.
async fn outlive<'a>(
    cluster: &mut Cluster,
    namespace: &'a str,
    absence: Duration,
) -> Result<Vec<(Single<'a>, Given)>> {
    let client = cluster.client();
    let stays = Single::create(cluster, namespace, "stays", &LEAST, on(H100)).await?;
    let of_stays = stays.runs_on_one(cluster).await?;
    cluster.node(H100)?.stop_driver().await;
    let comes = Single::create(cluster, namespace, "comes", &LEAST, on(H100)).await?;
    let waited = always("one runs and one waits", absence, async || {
        kubernetes::ensure_untouched(&stays.pod(&client).await?)?;
        let phase = comes.pod(&client).await?.status.unwrap_or_default().phase;
        let waits = phase.as_deref() == Some("Pending");
        Ok(Progress::when(waits, || format!("{phase:?}")))
    })
    .await;
    let driver = cluster.service(Program::Node(H100, NodePart::Driver))?;
    driver.start().await?;
    waited?;
    let of_comes = comes.runs_on_one(cluster).await?;
    Ok(vec![(stays, of_stays), (comes, of_comes)])
}

/// All still run as they did, see what they have, and leave nothing.
async fn finish(cluster: &Cluster, client: &Client, held: Vec<(Single<'_>, Given)>) -> Result<()> {
    for (pod, _) in &held {
        kubernetes::ensure_untouched(&pod.pod(client).await?)?;
    }
    for (pod, given) in held {
        pod.finishes(client, &[given]).await?;
    }
    wait_until_uncut(cluster, H100).await
}
