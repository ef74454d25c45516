//! When an installation is ready for its users: not when its programs are, but when they have told each other what
//! they need to know.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};
use muster_api::{NodeDevices, Team, TeamSpec, keys};

use crate::{
    kubernetes::{Progress, eventually},
    node::Node,
};

/// Longest time for each. The leader looks after the webhook configurations every few seconds.
const LIMIT: Duration = Duration::from_secs(60);

/// Waits until the API server can ask the webhook: a ready webhook is of no use before the leader has put its CA
/// into the webhook configurations.
pub(super) async fn wait_until_reviewed(client: &Client) -> Result<()> {
    let teams = Api::<Team>::all(client.clone());
    let probe = Team::new("probe", TeamSpec::default());
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    eventually("the webhook reviews a Team", LIMIT, async || {
        teams.create(&dry_run, &probe).await?;
        Ok(Progress::Done(()))
    })
    .await
}

/// Waits until every node with GPUs can be planned: its devices are published, and its driver has answered the
/// controller. A gang that comes earlier is placed well among the nodes that are there, which need not be all.
pub(super) async fn wait_until_plannable(client: &Client, nodes: &[Node]) -> Result<()> {
    let with_gpus: Vec<&str> = nodes
        .iter()
        .filter(|node| node.board().is_some())
        .map(Node::name)
        .collect();
    let everything = ListParams::default();
    eventually("all GPU nodes can be planned", LIMIT, async || {
        let slices = Api::all(client.clone()).list(&everything).await?.items;
        let devices = Api::all(client.clone()).list(&everything).await?.items;
        let missing: Vec<&str> = with_gpus
            .iter()
            .copied()
            .filter(|node| !is_published(&slices, node) || !has_answered(&devices, node))
            .collect();
        Ok(Progress::when(missing.is_empty(), || {
            format!("not yet: {missing:?}")
        }))
    })
    .await
}

fn is_published(slices: &[ResourceSlice], node: &str) -> bool {
    slices.iter().any(|slice| {
        let spec = &slice.spec;
        spec.driver == keys::DRIVER && spec.node_name.as_deref() == Some(node)
    })
}

fn has_answered(devices: &[NodeDevices], node: &str) -> bool {
    devices.iter().any(|devices| {
        let metadata = &devices.metadata;
        metadata.name.as_deref() == Some(node)
            && devices.status.as_ref().is_some_and(|status| {
                Some(&status.uid) == metadata.uid.as_ref()
                    && Some(status.observed_generation) >= metadata.generation
            })
    })
}
