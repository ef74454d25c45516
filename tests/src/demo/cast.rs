//! Who plays: four nodes on two leaves, two teams in a cohort, and the Jobs that they submit.

use std::collections::BTreeMap;

use anyhow::Result;
use kube::{Api, Client};
use muster_api::TierPreemption;

use crate::{
    builders::{self, RankProgram, RankSource},
    cluster::Cluster,
    gpu_board::Board,
    kubernetes,
    node::NodeOptions,
};

/// Node label of the leaf switch.
pub const LEAF_LABEL: &str = "fabric.example.com/leaf";
/// Node label of the spine switch.
const SPINE_LABEL: &str = "fabric.example.com/spine";
/// Template of claims for a whole node's GPUs.
const CLAIM_TEMPLATE: &str = "eight-gpus";
/// The flavor of all GPUs of the fabric.
const FLAVOR: &str = "h100";
/// The only spine.
const SPINE: &str = "spine-0";

/// The tier whose gangs give way.
pub(super) const GIVES_WAY: &str = "gives-way-soon";
/// For how long they are told before. Short, so that nobody has to wait for the story to go on.
pub const NOTICE_SECONDS: i64 = 8;

/// Four nodes of eight GPUs; the leaves in the given order, so that luck in names does not place a gang well.
pub fn nodes(leaves: [&str; 4]) -> Vec<NodeOptions> {
    leaves
        .into_iter()
        .enumerate()
        .map(|(number, leaf)| NodeOptions {
            name: format!("node-{number}"),
            labels: BTreeMap::from([
                (SPINE_LABEL.to_owned(), SPINE.to_owned()),
                (LEAF_LABEL.to_owned(), leaf.to_owned()),
            ]),
            board: Some(Board::H100Nvswitch8),
            ..NodeOptions::default()
        })
        .collect()
}

/// The teams and what they submit with.
pub(super) struct Roles<'a> {
    client: Client,
    cluster: &'a Cluster,
}

impl<'a> Roles<'a> {
    /// Makes Topology, Flavor, Cohort, Teams, their namespaces and claim templates.
    pub(super) async fn prepare(cluster: &'a Cluster) -> Result<Self> {
        let client = cluster.client();
        builders::topology(
            &client,
            "fabric",
            &[("spine", SPINE_LABEL), ("leaf", LEAF_LABEL)],
        )
        .await?;
        let nodes = [(SPINE_LABEL, SPINE)];
        builders::flavor_on(&client, FLAVOR, Some("fabric"), &nodes).await?;
        let immediate = TierPreemption::Immediate;
        builders::tier(&client, GIVES_WAY, 10, immediate, Some(NOTICE_SECONDS)).await?;
        builders::cohort(&client, "lab", vec![builders::gpu_quota(FLAVOR, 8, None)]).await?;
        for (team, gpus) in [("research", 16), ("product", 8)] {
            builders::team(
                &client,
                team,
                Some("lab"),
                vec![builders::gpu_quota(FLAVOR, gpus, None)],
            )
            .await?;
            builders::namespace(&client, team, Some(team)).await?;
            let template = builders::claim_template(CLAIM_TEMPLATE, 8, None)?;
            kubernetes::create(&Api::namespaced(client.clone(), team), &template).await?;
        }
        Ok(Self { client, cluster })
    }

    /// Submits an Indexed Job of `ranks` pods with eight GPUs each, which runs for about `seconds`; of the default tier if
    /// none is named.
    pub(super) async fn submit(
        &self,
        team: &str,
        name: &str,
        ranks: u32,
        seconds: u32,
        tier: Option<&str>,
    ) -> Result<()> {
        let peers = builders::peers_directory(self.cluster.directory(), &format!("{team}-{name}"))?;
        let mut program = RankProgram::new(self.cluster.programs().path("rank"), peers, ranks)
            .running_for(seconds);
        program.rank = RankSource::Annotation;
        let spec = builders::pod_spec(&program.container(&["gpus"])?)?;
        let spec = builders::with_claim_template(spec, CLAIM_TEMPLATE);
        let mut job = builders::indexed_job(name, ranks, &[], &spec)?;
        if let Some(tier) = tier {
            job = builders::in_tier(job, tier);
        }
        kubernetes::create(&Api::namespaced(self.client.clone(), team), &job).await?;
        Ok(())
    }
}
