//! What the scenarios of this suite stand on: a Team of each, pods that hold what they ask for, and what the cards say.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    core::v1::{Pod, PodSpec},
    resource::v1::{DeviceAttribute, ResourceSlice},
};
use kube::{Api, Client, api::ListParams};
use muster_tests::{
    builders::{self, RankProgram, gpu_quota},
    cluster::Cluster,
    device_nodes::{self, OnHardware},
    gangs,
    kubernetes::{self, LIMIT, Progress, eventually},
    node::Node,
    workloads::Workload,
};
use nvidia_ml_mock::Card;
use serde_json::Value;

/// Node label by which pods choose their node: its name.
pub(crate) const POOL: &str = "example.com/pool";
/// Eight GPUs that are cut as it is asked for.
pub(crate) const H100: &str = "h100";
/// Sixteen GPUs that are in MIG mode and stay in it.
pub(crate) const A30: &str = "a30";
/// Four GPUs that are not cut: they would have to be reset for it. Bridges connect the first with the third, and the second with the fourth.
pub(crate) const BRIDGED: &str = "bridged";
/// The resource by which pods may ask for whole GPUs.
pub(crate) const RESOURCE: &str = "example.com/gpu";
/// What each Team may have: more than there is, so that nobody waits for quota.
const QUOTA: u32 = 32;

/// A Team with one namespace of the same name, and quota of everything.
pub(crate) async fn prepare_team(client: &Client, name: &str) -> Result<()> {
    builders::flavor(client, "gpus", None).await?;
    builders::team(client, name, None, vec![gpu_quota("gpus", QUOTA, None)]).await?;
    builders::namespace(client, name, Some(name)).await
}

/// A pod that runs until it is told to finish.
pub(crate) struct Single<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) ranks: RankProgram,
}

/// What a device is, and who it is on the hardware.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) node: String,
    /// Name of the device: `gpu-0`, `gpu-0-mig-1g10gb-6`.
    pub(crate) device: String,
    pub(crate) uuid: String,
}

impl<'a> Single<'a> {
    /// Creates the pod with these annotations, and with what else is made of its spec.
    pub(crate) async fn create(
        cluster: &Cluster,
        namespace: &'a str,
        name: &'a str,
        annotations: &[(&str, &str)],
        adapt: impl FnOnce(PodSpec) -> PodSpec,
    ) -> Result<Self> {
        let workload = Workload {
            namespace,
            name,
            ranks: 1,
            gpus: 0,
        };
        let (ranks, spec) = workload.prepare(cluster).await?;
        let pods: Api<Pod> = Api::namespaced(cluster.client(), namespace);
        let pod = builders::pod(name, &[], annotations, &adapt(spec))?;
        kubernetes::create(&pods, &pod).await?;
        Ok(Self {
            namespace,
            name,
            ranks,
        })
    }

    /// The same with a claim of a template, which the container has.
    pub(crate) async fn create_with_template(
        cluster: &Cluster,
        namespace: &'a str,
        name: &'a str,
        template: &str,
    ) -> Result<Self> {
        let workload = Workload {
            namespace,
            name,
            ranks: 1,
            gpus: 0,
        };
        let (ranks, _) = workload.prepare(cluster).await?;
        let spec = builders::pod_spec(&ranks.container(&["gpus"])?)?;
        let spec = builders::with_claim_template(spec, template);
        let pods: Api<Pod> = Api::namespaced(cluster.client(), namespace);
        kubernetes::create(&pods, &builders::pod(name, &[], &[], &spec)?).await?;
        Ok(Self {
            namespace,
            name,
            ranks,
        })
    }

    /// Waits until it runs; the devices that it was given.
    pub(crate) async fn runs(&self, cluster: &Cluster) -> Result<Vec<Given>> {
        let client = cluster.client();
        gangs::wait_until_running(&client, self.namespace, &gangs::of_pod(self.name)).await?;
        given(cluster, self.namespace, self.name).await
    }

    /// Waits until it runs; the only device that it was given.
    pub(crate) async fn runs_on_one(&self, cluster: &Cluster) -> Result<Given> {
        let given = self.runs(cluster).await?;
        let [one] = given.as_slice() else {
            anyhow::bail!("{} was given {given:?}, not one device", self.name);
        };
        Ok(one.clone())
    }

    /// Its pod, as it is now.
    pub(crate) async fn pod(&self, client: &Client) -> Result<Pod> {
        let pods: Api<Pod> = Api::namespaced(client.clone(), self.namespace);
        Ok(pods.get(self.name).await?)
    }

    /// Tells it to finish, waits until its gang has, and fails unless its program was told what it was given.
    pub(crate) async fn finishes(self, client: &Client, given: &[Given]) -> Result<()> {
        self.ranks.finish()?;
        gangs::wait_until_finished(client, self.namespace, &gangs::of_pod(self.name)).await?;
        self.saw(given)
    }

    /// Fails unless its program, which has ended, was told what it was given. That it had the device nodes of that is known since it ran.
    pub(crate) fn saw(&self, given: &[Given]) -> Result<()> {
        ensure_saw(&self.ranks, 0, given).with_context(|| self.name.to_owned())
    }
}

/// Fails unless the program of this rank, which has ended, was told what it was given.
pub(crate) fn ensure_saw(ranks: &RankProgram, rank: u32, given: &[Given]) -> Result<()> {
    let mut by_rank = ranks.gpus()?;
    let seen = by_rank.remove(&rank);
    let seen = seen.with_context(|| format!("rank {rank} has not reported"))?;
    let seen: BTreeSet<&str> = seen.iter().map(String::as_str).collect();
    let uuids: BTreeSet<&str> = given.iter().map(|given| &*given.uuid).collect();
    ensure!(
        seen == uuids,
        "rank {rank} saw {seen:?}, and was given {given:?}"
    );
    Ok(())
}

/// The devices that a pod that runs was given: those that it was allocated. Fails unless its container was started with the device nodes of
/// exactly these.
pub(crate) async fn given(cluster: &Cluster, namespace: &str, pod: &str) -> Result<Vec<Given>> {
    let mut granted = gangs::granted(&cluster.client(), namespace).await?;
    let devices = granted.remove(pod).unwrap_or_default();
    let mut given = Vec::new();
    let mut by_node: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (node, device) in devices {
        let state = node_named(cluster, &node)?.hardware().read()?;
        let found = OnHardware::find(&state, &device).with_context(|| node.clone())?;
        let wanted = by_node.entry(node.clone()).or_default();
        wanted.extend(found.device_nodes);
        given.push(Given {
            node,
            device,
            uuid: found.uuid,
        });
    }
    for (node, wanted) in by_node {
        let record = node_named(cluster, &node)?.record();
        let record = fs::read_to_string(&record).with_context(|| record.display().to_string())?;
        let has =
            device_nodes::of_container(&record, namespace, pod).with_context(|| node.clone())?;
        ensure!(
            has == wanted,
            "the container of {namespace}/{pod} on {node} was given the device nodes {has:?}; {given:?} was allocated, which has {wanted:?}"
        );
    }
    Ok(given)
}

fn node_named<'a>(cluster: &'a Cluster, name: &str) -> Result<&'a Node> {
    let mut nodes = cluster.nodes.iter();
    let node = nodes.find(|known| known.name() == name);
    node.with_context(|| format!("there is no node {name}"))
}

/// An attribute of each of these devices, as it is published.
pub(crate) async fn attributes(
    client: &Client,
    given: &[Given],
    name: &str,
) -> Result<Vec<DeviceAttribute>> {
    let slices: Api<ResourceSlice> = Api::all(client.clone());
    let slices = slices.list(&ListParams::default()).await?.items;
    let of = |given: &Given| {
        let pool = slices
            .iter()
            .filter(|slice| slice.spec.pool.name == given.node);
        let mut devices = pool.flat_map(|slice| slice.spec.devices.iter().flatten());
        let device = devices.find(|device| device.name == given.device);
        let attribute = device.and_then(|device| device.attributes.as_ref()?.get(name));
        let attribute = attribute.cloned();
        attribute.with_context(|| format!("{given:?} tells no {name}"))
    };
    given.iter().map(of).collect()
}

/// The objects of a file of `manifests/examples`.
pub(crate) fn example<const OBJECTS: usize>(file: &str) -> Result<[Value; OBJECTS]> {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/examples");
    let file = examples.join(file);
    let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let mut documents: Vec<Value> = Vec::new();
    for document in text.split("\n---\n") {
        documents.push(serde_saphyr::from_str(document)?);
    }
    let documents: Result<[Value; OBJECTS], Vec<Value>> = documents.try_into();
    documents.map_err(|other| anyhow::anyhow!("{} has {} objects", file.display(), other.len()))
}

/// The cards of a node, in the order of its devices.
pub(crate) fn cards(cluster: &Cluster, node: &str) -> Result<Vec<Card>> {
    let node = node_named(cluster, node)?;
    let mut state = node.hardware().read()?;
    let uuids = node.gpu_uuids().into_iter();
    let cards = uuids.map(|uuid| state.cards.remove(&uuid).unwrap_or_default());
    Ok(cards.collect())
}

/// Waits until no slice is left on any card of a node.
pub(crate) async fn wait_until_uncut(cluster: &Cluster, node: &str) -> Result<()> {
    eventually("no slice is left", LIMIT, async || {
        let cards = cards(cluster, node)?;
        let slices: Vec<usize> = cards.iter().map(|card| card.gpu_instances.len()).collect();
        let is_uncut = slices.iter().all(|slices| *slices == 0);
        Ok(Progress::when(is_uncut, || {
            format!("slices by GPU: {slices:?}")
        }))
    })
    .await
}

/// Chooses a node for a pod.
pub(crate) fn on(node: &str) -> impl FnOnce(PodSpec) -> PodSpec {
    let selector = BTreeMap::from([(POOL.to_owned(), node.to_owned())]);
    |mut spec: PodSpec| {
        spec.node_selector = Some(selector);
        spec
    }
}
