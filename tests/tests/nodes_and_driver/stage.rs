//! What the scenarios of this suite stand on: pods that hold GPUs until they are told to finish.

use std::{fs, path::PathBuf};

use anyhow::{Result, ensure};
use k8s_openapi::api::{
    core::v1::{Pod, PodSpec},
    resource::v1::{ResourceClaim, ResourceClaimTemplate, ResourceSlice},
};
use kube::{Api, Client, ResourceExt, api::ListParams};
use muster_api::{Reason, keys};
use muster_tests::{
    builders::{self, RankProgram, RankSource},
    cluster::Cluster,
    kubernetes::{self, LIMIT, Progress, eventually},
};

/// The only node, with two GPUs.
pub(crate) const NODE: &str = "t4";

/// Makes a namespace and in it a pod of the same name that runs until it is told to finish, with this many
/// GPUs.
pub(crate) async fn start(
    cluster: &Cluster,
    name: &str,
    gpus: u32,
) -> Result<(Api<Pod>, RankProgram)> {
    let client = cluster.client();
    let namespace = format!("driver-{name}");
    let (ranks, spec) = program(cluster, &namespace).await?;
    let spec = if gpus == 0 {
        builders::pod_spec(&ranks.container(&[])?)?
    } else {
        let templates: Api<ResourceClaimTemplate> = Api::namespaced(client.clone(), &namespace);
        kubernetes::create(&templates, &builders::claim_template("gpus", gpus, None)?).await?;
        builders::with_claim_template(spec, "gpus")
    };
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    kubernetes::create(&pods, &builders::pod(name, &[], &[], &spec)?).await?;
    Ok((pods, ranks))
}

/// Makes a namespace; a program that runs in it until it is told to finish, and the spec of its pod, which lacks a
/// claim for the container's `gpus`.
pub(crate) async fn program(cluster: &Cluster, namespace: &str) -> Result<(RankProgram, PodSpec)> {
    builders::namespace(&cluster.client(), namespace, None).await?;
    let peers = builders::peers_directory(cluster.directory(), namespace)?;
    let mut ranks = RankProgram::new(cluster.programs().path("rank"), peers, 1).until_finished();
    ranks.rank = RankSource::Fixed(0);
    let spec = builders::pod_spec(&ranks.container(&["gpus"])?)?;
    Ok((ranks, spec))
}

/// The claim that was made for the only pod of a namespace.
pub(crate) async fn only_claim(client: &Client, namespace: &str) -> Result<ResourceClaim> {
    let claims: Api<ResourceClaim> = Api::namespaced(client.clone(), namespace);
    eventually("the pod's claim is made", LIMIT, async || {
        let made = claims.list(&ListParams::default()).await?.items;
        Ok(match made.into_iter().next() {
            Some(claim) => Progress::Done(claim),
            None => Progress::NotYet("there is none".to_owned()),
        })
    })
    .await
}

pub(crate) async fn wait_for_phase(pods: &Api<Pod>, name: &str, phase: &str) -> Result<Pod> {
    eventually(&format!("pod {name} is {phase}"), LIMIT, async || {
        let pod = pods.get(name).await?;
        let status = pod.status.clone().unwrap_or_default();
        Ok(if status.phase.as_deref() == Some(phase) {
            Progress::Done(pod)
        } else {
            Progress::NotYet(format!(
                "{:?} {:?}",
                status.phase, status.container_statuses
            ))
        })
    })
    .await
}

pub(crate) async fn wait_for_devices(client: &Client, expected: &[&str]) -> Result<()> {
    let slices: Api<ResourceSlice> = Api::all(client.clone());
    eventually(
        &format!("the devices {expected:?} are published"),
        LIMIT,
        async || {
            let slices = slices.list(&ListParams::default()).await?;
            let mut names: Vec<String> = slices
                .iter()
                .filter(|slice| slice.spec.driver == keys::DRIVER)
                .flat_map(|slice| slice.spec.devices.iter().flatten())
                .map(|device| device.name.clone())
                .collect();
            names.sort();
            Ok(Progress::when(names == expected, || {
                format!(
                    "{names:?} in {} slices",
                    slices.iter().map(ResourceExt::name_any).count()
                )
            }))
        },
    )
    .await
}

/// The driver's record of a claim.
pub(crate) fn record_of(cluster: &mut Cluster, claim: &ResourceClaim) -> Result<PathBuf> {
    let uid = claim.uid().unwrap_or_default();
    Ok(cluster.node(NODE)?.driver_record(&uid))
}

/// What is in use is not given back; the kubelet tries again.
pub(crate) fn ensure_held(error: &str) -> Result<()> {
    ensure!(
        error.starts_with(Reason::DeviceHeld.as_str()),
        "a claim in use was given back: {error:?}"
    );
    Ok(())
}

pub(crate) async fn wait_until_nothing_is_prepared(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node(NODE)?;
    let directories = [node.cdi_directory(), node.directory().join("muster/claims")];
    eventually("neither CDI file nor record is left", LIMIT, async || {
        let mut left = Vec::new();
        for directory in &directories {
            for entry in fs::read_dir(directory)? {
                left.push(entry?.path());
            }
        }
        Ok(Progress::when(left.is_empty(), || format!("{left:?}")))
    })
    .await
}
