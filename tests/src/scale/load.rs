//! The gangs that are submitted: Indexed Jobs of two pods with eight GPUs each, in a few Teams of one Cohort.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::Result;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::{batch::v1::Job, resource::v1::ResourceClaimTemplate};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams},
};
use muster_api::NodeDevices;

use crate::{
    builders,
    cluster::Cluster,
    fake_nodes::{FakeNodes, LEAF_LABEL, SPINE_LABEL, has_answered},
    kubernetes::{self, Progress, eventually},
};

/// Teams that the gangs are spread over.
const TEAMS: usize = 8;
/// Pods of a gang, each with all GPUs of a node.
pub(super) const RANKS: usize = 2;
/// Jobs that are created at the same time.
const AT_ONCE: usize = 8;
const FLAVOR: &str = "h100";
const TOPOLOGY: &str = "fabric";
const TEMPLATE: &str = "whole-node";

/// The gangs of one measurement.
#[derive(Clone)]
pub(super) struct Load {
    client: Client,
    gangs: usize,
}

impl Load {
    /// Makes Flavor, Topology, Teams, namespaces and claim templates.
    pub(super) async fn prepare(cluster: &Cluster, nodes: FakeNodes) -> Result<Self> {
        let client = cluster.client();
        let gangs = (usize::try_from(nodes.count)? / RANKS * 9 / 10).max(1);
        builders::topology(
            &client,
            TOPOLOGY,
            &[("spine", SPINE_LABEL), ("leaf", LEAF_LABEL)],
        )
        .await?;
        builders::flavor(&client, FLAVOR, Some(TOPOLOGY)).await?;
        builders::cohort(&client, "all", Vec::new()).await?;
        let share = nodes.count * nodes.gpus / u32::try_from(TEAMS)?;
        for team in (0..TEAMS).map(team) {
            let quota = vec![builders::gpu_quota(FLAVOR, share, None)];
            builders::team(&client, &team, Some("all"), quota).await?;
            builders::namespace(&client, &team, Some(&team)).await?;
            let templates: Api<ResourceClaimTemplate> = Api::namespaced(client.clone(), &team);
            let template = builders::claim_template(TEMPLATE, nodes.gpus, None)?;
            kubernetes::create(&templates, &template).await?;
        }
        Ok(Self { client, gangs })
    }

    /// Number of gangs.
    pub(super) fn gangs(&self) -> usize {
        self.gangs
    }

    /// Creates all Jobs; when each was created, by `namespace/name`.
    pub(super) async fn submit(&self) -> Result<BTreeMap<String, Instant>> {
        stream::iter(0..self.gangs)
            .map(|number| async move {
                let (namespace, name) = (team(number % TEAMS), format!("gang-{number:05}"));
                let container = serde_json::from_value(serde_json::json!({
                    "name": "worker",
                    "image": "example.invalid/worker:1",
                    "resources": {"claims": [{"name": "gpus"}], "requests": {"cpu": "1", "memory": "1Gi"}},
                }))?;
                let spec = builders::pod_spec(&container)?;
                let spec = builders::with_claim_template(spec, TEMPLATE);
                let job = builders::indexed_job(&name, u32::try_from(RANKS)?, &[], &spec)?;
                let jobs: Api<Job> = Api::namespaced(self.client.clone(), &namespace);
                jobs.create(&PostParams::default(), &job).await?;
                Ok((format!("{namespace}/{name}"), Instant::now()))
            })
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await
    }

    /// Deletes all Jobs and waits until no node has a permit.
    pub(super) async fn clear(&self, limit: Duration) -> Result<()> {
        for namespace in (0..TEAMS).map(team) {
            let jobs: Api<Job> = Api::namespaced(self.client.clone(), &namespace);
            jobs.delete_collection(&DeleteParams::background(), &ListParams::default())
                .await?;
        }
        let devices: Api<NodeDevices> = Api::all(self.client.clone());
        eventually("no node has a permit", limit, async || {
            let all = devices.list(&ListParams::default()).await?.items;
            let busy = all
                .iter()
                .filter(|node| !node.spec.permits.is_empty() || !has_answered(node))
                .count();
            Ok(Progress::when(busy == 0, || format!("{busy} nodes have")))
        })
        .await
    }
}

fn team(number: usize) -> String {
    format!("team-{number}")
}
