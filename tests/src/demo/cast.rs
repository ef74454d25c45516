//! Who plays: four nodes on two leaves, two teams in a cohort, and the Jobs that they submit.

use std::collections::BTreeMap;

use anyhow::Result;
use k8s_openapi::api::batch::v1::Job;
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
/// Template of claims for what is left of a node when one of its GPUs is broken.
const CLAIM_TEMPLATE_BESIDE: &str = "seven-gpus";
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
            for (template, gpus) in [(CLAIM_TEMPLATE, 8), (CLAIM_TEMPLATE_BESIDE, 7)] {
                let template = builders::claim_template(template, gpus, None)?;
                kubernetes::create(&Api::namespaced(client.clone(), team), &template).await?;
            }
        }
        Ok(Self { client, cluster })
    }

    /// Submits an Indexed Job of `ranks` pods with eight GPUs each, which runs for about `seconds`; of the default tier if
    /// none is named. What its ranks run.
    pub(super) async fn submit(
        &self,
        team: &str,
        name: &str,
        ranks: u32,
        seconds: u32,
        tier: Option<&str>,
    ) -> Result<RankProgram> {
        let program = self.program(team, name, ranks, seconds)?;
        let spec = builders::pod_spec(&program.container(&["gpus"])?)?;
        let spec = builders::with_claim_template(spec, CLAIM_TEMPLATE);
        let mut job = builders::indexed_job(name, ranks, &[], &spec)?;
        if let Some(tier) = tier {
            job = builders::in_tier(job, tier);
        }
        self.create(team, &job).await?;
        Ok(program)
    }

    /// Submits an Indexed Job of one pod with seven GPUs of this node, which runs for about `seconds`.
    pub(super) async fn submit_beside(
        &self,
        team: &str,
        name: &str,
        node: &str,
        seconds: u32,
    ) -> Result<()> {
        let program = self.program(team, name, 1, seconds)?;
        let spec = builders::pod_spec(&program.container(&["gpus"])?)?;
        let spec = builders::with_claim_template(spec, CLAIM_TEMPLATE_BESIDE);
        let spec = builders::on_node(spec, node);
        self.create(team, &builders::indexed_job(name, 1, &[], &spec)?)
            .await
    }

    fn program(&self, team: &str, name: &str, ranks: u32, seconds: u32) -> Result<RankProgram> {
        let peers = builders::peers_directory(self.cluster.directory(), &format!("{team}-{name}"))?;
        let program = self.cluster.programs().path("rank");
        // Else a rank whose peer was told to go a moment before it fails, and with it a Job that forgives nothing.
        let program = RankProgram::new(program, peers, ranks).hanging_when_lost();
        let mut program = program.running_for(seconds);
        program.rank = RankSource::Annotation;
        Ok(program)
    }

    async fn create(&self, team: &str, job: &Job) -> Result<()> {
        let jobs: Api<Job> = Api::namespaced(self.client.clone(), team);
        kubernetes::create(&jobs, job).await.map(drop)
    }
}
