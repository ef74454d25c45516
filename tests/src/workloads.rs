//! Gangs that scenarios submit: Jobs and labelled pods whose ranks run until they are told to finish.

use anyhow::Result;
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Pod, PodSpec},
    resource::v1::ResourceClaimTemplate,
};
use kube::{Api, Client};
use muster_api::keys;

use crate::{
    builders::{self, RankProgram, RankSource},
    cluster::Cluster,
    gangs,
    kubernetes::{self, LIMIT, Progress, eventually},
};

/// A gang to be: in which namespace, under which name, how many pods with how many GPUs each.
#[derive(Clone, Copy, Debug)]
pub struct Workload<'a> {
    /// The namespace.
    pub namespace: &'a str,
    /// Name of the Job, or value of the gang label and prefix of the pods' names.
    pub name: &'a str,
    /// Number of pods.
    pub ranks: u32,
    /// Whole GPUs of each pod; 0 for none.
    pub gpus: u32,
}

/// Creates a pod without devices in a namespace and waits until it has succeeded.
pub async fn run_unmanaged_pod(cluster: &Cluster, namespace: &str) -> Result<()> {
    let peers = builders::peers_directory(cluster.directory(), namespace)?;
    let mut program = RankProgram::new(cluster.programs().path("rank"), peers, 1);
    program.rank = RankSource::Fixed(0);
    let spec = builders::pod_spec(&program.container(&[])?)?;
    let pods: Api<Pod> = Api::namespaced(cluster.client(), namespace);
    kubernetes::create(&pods, &builders::pod("web", &[], &[], &spec)?).await?;
    eventually("the pod succeeds", LIMIT, async || {
        let status = pods.get("web").await?.status.unwrap_or_default();
        let has_succeeded = status.phase.as_deref() == Some("Succeeded");
        Ok(Progress::when(has_succeeded, || format!("{status:?}")))
    })
    .await
}

impl Workload<'_> {
    /// What the name of its Gang begins with, where its pods carry the gang label.
    pub fn gang(&self) -> String {
        gangs::of_label(self.name)
    }

    /// Submits it as an Indexed Job with these annotations.
    pub async fn submit_job(
        &self,
        cluster: &Cluster,
        annotations: &[(&str, &str)],
    ) -> Result<RankProgram> {
        let (program, spec) = self.prepare(cluster).await?;
        self.create_job(&cluster.client(), annotations, None, &spec)
            .await?;
        Ok(program)
    }

    /// Submits it as an Indexed Job of this tier, whose ranks behave as `program` makes them.
    pub async fn submit_job_of_tier(
        &self,
        cluster: &Cluster,
        tier: &str,
        program: impl FnOnce(RankProgram) -> RankProgram,
    ) -> Result<RankProgram> {
        let program = program(self.program(cluster)?);
        let spec = self.pod_spec(&cluster.client(), &program).await?;
        self.create_job(&cluster.client(), &[], Some(tier), &spec)
            .await?;
        Ok(program)
    }

    async fn create_job(
        &self,
        client: &Client,
        annotations: &[(&str, &str)],
        tier: Option<&str>,
        spec: &PodSpec,
    ) -> Result<()> {
        let mut job = builders::indexed_job(self.name, self.ranks, annotations, spec)?;
        if let Some(tier) = tier {
            job = builders::in_tier(job, tier);
        }
        let jobs: Api<Job> = Api::namespaced(client.clone(), self.namespace);
        kubernetes::create(&jobs, &job).await.map(drop)
    }

    /// Makes what its pods need, and one pod's spec.
    pub async fn prepare(&self, cluster: &Cluster) -> Result<(RankProgram, PodSpec)> {
        let program = self.program(cluster)?;
        let spec = self.pod_spec(&cluster.client(), &program).await?;
        Ok((program, spec))
    }

    /// What its ranks run: until they are told to finish.
    fn program(&self, cluster: &Cluster) -> Result<RankProgram> {
        let directory = format!("{}-{}", self.namespace, self.name);
        let peers = builders::peers_directory(cluster.directory(), &directory)?;
        let program = RankProgram::new(cluster.programs().path("rank"), peers, self.ranks);
        Ok(program.until_finished())
    }

    /// The same with a claim that exists by itself and has this name.
    pub async fn prepare_with_claim(
        &self,
        cluster: &Cluster,
        claim: &str,
    ) -> Result<(RankProgram, PodSpec)> {
        let (program, _) = Workload { gpus: 0, ..*self }.prepare(cluster).await?;
        let spec = builders::pod_spec(&program.container(&["gpus"])?)?;
        Ok((program, builders::with_claim(spec, claim)))
    }

    /// Creates the pod with this number, with the gang label and size.
    pub async fn create_labelled_pod(
        &self,
        client: &Client,
        spec: &PodSpec,
        number: u32,
    ) -> Result<Pod> {
        let size = self.ranks.to_string();
        self.create_pod_of_size(client, spec, number, &size).await
    }

    /// Creates all its pods, with the gang label and size.
    pub async fn create_labelled_pods(&self, client: &Client, spec: &PodSpec) -> Result<()> {
        for number in 0..self.ranks {
            self.create_labelled_pod(client, spec, number).await?;
        }
        Ok(())
    }

    /// The pod with this number, with a size of its own.
    pub async fn create_pod_of_size(
        &self,
        client: &Client,
        spec: &PodSpec,
        number: u32,
        size: &str,
    ) -> Result<Pod> {
        let name = format!("{}-{number}", self.name);
        let labels = [(keys::GANG, self.name)];
        let annotations = [(keys::GANG_SIZE, size)];
        let pod = builders::pod(&name, &labels, &annotations, spec)?;
        let pods: Api<Pod> = Api::namespaced(client.clone(), self.namespace);
        kubernetes::create(&pods, &pod).await
    }

    /// A pod's spec, with a template for its claim made where there is none.
    pub async fn pod_spec(&self, client: &Client, program: &RankProgram) -> Result<PodSpec> {
        if self.gpus == 0 {
            return builders::pod_spec(&program.container(&[])?);
        }
        let template = format!("gpus-{}", self.gpus);
        let templates: Api<ResourceClaimTemplate> = Api::namespaced(client.clone(), self.namespace);
        let object = builders::claim_template(&template, self.gpus, None)?;
        kubernetes::apply(&templates, &object).await?;
        let spec = builders::pod_spec(&program.container(&["gpus"])?)?;
        Ok(builders::with_claim_template(spec, &template))
    }
}
