//! What runs in the pods: ranks that wait for each other, work, and end.
//!
//! A rank succeeds only after all ranks of its gang ran at the same time, or had succeeded before. One that waits
//! for the others for two minutes fails, as a rendezvous does: so a gang that is never whole ends by itself.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;

use crate::{
    api_server::{ApiServer, has_ended},
    fixtures,
    gpu_node::GpuNode,
    owners::Owners,
};

const RENDEZVOUS_MILLISECONDS: u64 = 120_000;
const WORK_MILLISECONDS: u64 = 3_000;

/// Which ranks have met.
#[derive(Debug, Default)]
pub struct Workload {
    met: BTreeSet<String>,
}

/// A container ends by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its node.
    pub node: String,
    /// UID of its pod.
    pub pod: String,
    /// Whether it ends well.
    pub succeeded: bool,
}

impl Workload {
    /// All that may happen next.
    pub fn steps(
        &mut self,
        now: u64,
        api: &ApiServer,
        nodes: &BTreeMap<String, GpuNode>,
        owners: &Owners,
    ) -> Vec<Step> {
        let alive: BTreeSet<&str> = nodes
            .values()
            .flat_map(|node| node.containers.keys().map(String::as_str))
            .collect();
        self.meet(api, &alive, owners);
        let mut steps = Vec::new();
        for (name, node) in nodes {
            for (pod, container) in &node.containers {
                let has_met = self.met.contains(pod);
                let patience = if has_met {
                    WORK_MILLISECONDS
                } else {
                    RENDEZVOUS_MILLISECONDS
                };
                if container.started_at + patience <= now {
                    steps.push(Step {
                        node: name.clone(),
                        pod: pod.clone(),
                        succeeded: has_met,
                    });
                }
            }
        }
        steps
    }

    /// When time alone will make a step possible.
    pub fn wakes_at(&self, now: u64, nodes: &BTreeMap<String, GpuNode>) -> Option<u64> {
        nodes
            .values()
            .flat_map(|node| node.containers.values())
            .flat_map(|container| {
                [WORK_MILLISECONDS, RENDEZVOUS_MILLISECONDS]
                    .map(|patience| container.started_at + patience)
            })
            .filter(|at| *at > now)
            .min()
    }

    fn meet(&mut self, api: &ApiServer, alive: &BTreeSet<&str>, owners: &Owners) {
        let mut gangs: BTreeMap<&str, (usize, Vec<&Pod>)> = BTreeMap::new();
        for pod in api.list::<Pod>() {
            if let Some(shape) = owners.shape_of(pod) {
                let (_, pods) = gangs
                    .entry(shape.name.as_str())
                    .or_insert((shape.pods, Vec::new()));
                pods.push(pod);
            }
        }
        for (size, pods) in gangs.into_values() {
            let here: Vec<&&Pod> = pods
                .iter()
                .filter(|pod| {
                    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
                    alive.contains(uid) && pod.metadata.deletion_timestamp.is_none()
                })
                .collect();
            let done = pods.iter().filter(|pod| {
                has_ended(pod)
                    && pod
                        .metadata
                        .uid
                        .as_ref()
                        .is_some_and(|uid| self.met.contains(uid))
            });
            let indices: BTreeSet<usize> = here
                .iter()
                .map(|pod| **pod)
                .chain(done.copied())
                .filter_map(fixtures::index_of)
                .collect();
            if indices.len() == size {
                self.met
                    .extend(here.iter().filter_map(|pod| pod.metadata.uid.clone()));
            }
        }
    }
}
