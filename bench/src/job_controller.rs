//! The Job controller, as far as gangs that are evicted see it: of a Job that is suspended it deletes the pods, of one that is not it makes those that
//! it lacks. (`muster_sim::owners` has all of it, for a few Jobs.)

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use muster_cluster::object::Kind;
use muster_sim::fixtures;

use crate::{
    cluster::{JobGang, job, rank_pod, team_name},
    world::World,
};

/// The controller, and the Jobs that it sees to.
#[derive(Default)]
pub(crate) struct JobController {
    gangs: Vec<JobGang>,
    /// Pods that it made so far.
    made: usize,
}

impl JobController {
    /// The gangs whose Jobs were submitted.
    pub(crate) fn gangs(&self) -> &[JobGang] {
        &self.gangs
    }

    /// A user submits a Job. Its pods come with the next step.
    pub(crate) fn submit(&mut self, world: &mut World, gang: JobGang) -> Result<()> {
        world.put(Kind::Job, job(&gang))?;
        self.gangs.push(gang);
        Ok(())
    }

    /// Does all that there is to do.
    pub(crate) fn step(&mut self, world: &mut World) -> Result<()> {
        // By Job the names of its pods by rank.
        let mut active: BTreeMap<String, BTreeMap<usize, String>> = BTreeMap::new();
        for pod in world.api().list::<Pod>() {
            if pod.metadata.deletion_timestamp.is_some() {
                continue;
            }
            if let (Some(job), Some(rank)) = (fixtures::job_of(pod), fixtures::index_of(pod)) {
                let name = pod.metadata.name.clone().unwrap_or_default();
                active.entry(job.to_owned()).or_default().insert(rank, name);
            }
        }
        let now = world.api().time();
        for gang in &self.gangs {
            let (namespace, name) = (team_name(gang.team), gang.name());
            let pods = active.remove(&name).unwrap_or_default();
            let job = world.api().get::<Job>(&namespace, &name);
            let spec = job.context("a Job is gone")?.spec.as_ref();
            if spec.and_then(|spec| spec.suspend) == Some(true) {
                for pod in pods.values() {
                    world.delete_pod(&namespace, pod)?;
                }
                continue;
            }
            for rank in (0..gang.shape.pods).filter(|rank| !pods.contains_key(rank)) {
                self.made += 1;
                for (kind, value) in rank_pod(gang, rank, self.made, now) {
                    world.put(kind, value)?;
                }
            }
        }
        Ok(())
    }
}
