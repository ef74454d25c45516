//! What runs in the pods: ranks that wait for each other, work, and end.
//!
//! A rank succeeds only after all ranks of its gang ran at the same time, or had succeeded before. One that waits
//! for the others for two minutes fails, as a rendezvous does: so a gang that is never whole ends by itself. Where ranks
//! hang, none of them ends once one that they met has failed or vanished; and ranks of a service never end by themselves.
//! Whoever is told that it is to give way, and waits for its checkpoint, writes one, and says so.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use muster_api::{TierPreemption, keys};

use crate::{
    api_server::{ApiServer, has_ended},
    fixtures::{self, TIERS},
    gpu_node::GpuNode,
    owners::Owners,
};

const RENDEZVOUS_MILLISECONDS: u64 = 120_000;
const WORK_MILLISECONDS: u64 = 3_000;

/// Which ranks have met.
#[derive(Debug, Default)]
pub struct Workload {
    met: BTreeSet<String>,
    /// Ranks that hang for ever, because one that they had met failed.
    hung: BTreeSet<String>,
    /// Ranks that did their work.
    ended_well: BTreeSet<String>,
    /// The last meeting of every gang: who was there.
    meetings: BTreeMap<String, BTreeSet<String>>,
}

/// What a container does by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It ends.
    End(End),
    /// It has written a checkpoint, and says so on its pod: namespace and name.
    Checkpoint(String, String),
}

/// A container ends by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
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
                if self.hung.contains(pod) || serves(api, pod, owners) {
                    continue;
                }
                let has_met = self.met.contains(pod);
                let patience = if has_met {
                    WORK_MILLISECONDS
                } else {
                    RENDEZVOUS_MILLISECONDS
                };
                if container.started_at + patience <= now {
                    steps.push(Step::End(End {
                        node: name.clone(),
                        pod: pod.clone(),
                        succeeded: has_met,
                    }));
                }
                steps.extend(checkpoint(api, pod));
            }
        }
        steps
    }

    /// A container ended by itself.
    pub fn note_end(&mut self, step: &End) {
        if step.succeeded {
            self.ended_well.insert(step.pod.clone());
        }
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

    /// Of a gang whose ranks hang, who is left hangs when one that was there at its meeting is gone before its work is done.
    fn hang(&mut self, gang: &str, pods: &[&Pod], alive: &BTreeSet<&str>) {
        let Some(meeting) = self.meetings.get(gang) else {
            return;
        };
        let succeeded = |uid: &String| {
            pods.iter().any(|pod| {
                let phase = pod
                    .status
                    .as_ref()
                    .and_then(|status| status.phase.as_deref());
                pod.metadata.uid.as_ref() == Some(uid) && phase == Some("Succeeded")
            })
        };
        let is_lost = |uid: &String| {
            !alive.contains(uid.as_str()) && !self.ended_well.contains(uid) && !succeeded(uid)
        };
        if meeting.iter().any(is_lost) {
            self.hung.extend(meeting.iter().cloned());
        }
    }

    fn meet(&mut self, api: &ApiServer, alive: &BTreeSet<&str>, owners: &Owners) {
        let mut gangs: BTreeMap<&str, (usize, bool, Vec<&Pod>)> = BTreeMap::new();
        for pod in api.list::<Pod>() {
            if let Some(shape) = owners.shape_of(pod) {
                let (_, _, pods) = gangs.entry(shape.name.as_str()).or_insert((
                    shape.pods,
                    shape.ranks.hang,
                    Vec::new(),
                ));
                pods.push(pod);
            }
        }
        for (name, (size, hang, pods)) in gangs {
            if hang {
                self.hang(name, &pods, alive);
            }
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
                .chain(owners.completed_indexes(name, api))
                .collect();
            if indices.len() == size {
                let here = here.iter().filter_map(|pod| pod.metadata.uid.clone());
                let here: BTreeSet<String> = here.collect();
                let meeting = self.meetings.entry(name.to_owned()).or_default();
                if !here.is_subset(meeting) {
                    meeting.clone_from(&here);
                }
                self.met.extend(here);
            }
        }
    }
}

/// What is owed by a pod that was told when it is to give way, and may do so once it wrote a checkpoint.
fn checkpoint(api: &ApiServer, pod: &str) -> Option<Step> {
    let metadata = &api.pod_by_uid(pod)?.metadata;
    let (_, _, preemption) = TIERS.iter().copied().find(|(tier, _, _)| {
        let labels = metadata.labels.as_ref();
        labels.and_then(|labels| labels.get(keys::TIER)) == Some(&(*tier).to_owned())
    })?;
    let annotations = metadata.annotations.as_ref()?;
    let owes = preemption == TierPreemption::AfterCheckpoint
        && annotations.contains_key(keys::PREEMPT_AT)
        && !annotations.contains_key(keys::CHECKPOINTED_AT);
    owes.then(|| {
        let namespace = metadata.namespace.clone().unwrap_or_default();
        Step::Checkpoint(namespace, metadata.name.clone().unwrap_or_default())
    })
}

/// Whether it is a rank of a service.
fn serves(api: &ApiServer, pod: &str, owners: &Owners) -> bool {
    let shape = api.pod_by_uid(pod).and_then(|pod| owners.shape_of(pod));
    shape.is_some_and(|shape| !shape.owner.is_finite())
}
