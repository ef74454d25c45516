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
    builders::{self, RankProgram},
    cluster::Cluster,
    kubernetes,
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

impl Workload<'_> {
    /// Submits it as an Indexed Job with these annotations.
    pub async fn submit_job(
        &self,
        cluster: &Cluster,
        annotations: &[(&str, &str)],
    ) -> Result<RankProgram> {
        let (program, spec) = self.prepare(cluster).await?;
        let jobs: Api<Job> = Api::namespaced(cluster.client(), self.namespace);
        let job = builders::indexed_job(self.name, self.ranks, annotations, &spec)?;
        kubernetes::create(&jobs, &job).await?;
        Ok(program)
    }

    /// Makes what its pods need, and one pod's spec.
    pub async fn prepare(&self, cluster: &Cluster) -> Result<(RankProgram, PodSpec)> {
        let directory = format!("{}-{}", self.namespace, self.name);
        let peers = builders::peers_directory(cluster.directory(), &directory)?;
        let program =
            RankProgram::new(cluster.programs().path("rank"), peers, self.ranks).until_finished();
        let spec = self.pod_spec(&cluster.client(), &program).await?;
        Ok((program, spec))
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

    /// The same with a size of its own.
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
