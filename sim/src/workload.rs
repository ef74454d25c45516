//! What runs in the pods: ranks that wait for each other, work, and end.
//!
//! A rank succeeds only after all ranks of its gang ran at the same time, or had succeeded before: where the gang may start with fewer
//! pods than it has, as many ranks of its attempt as it is told. One that waits
//! for the others for two minutes fails, as a rendezvous does: so a gang that is never whole ends by itself. Where ranks
//! hang, none of them ends once one that they met has failed or vanished; and ranks of a service never end by themselves. A rank whose
//! container is started anew, by a machine that knows nothing of the one before, is another process, which has met nobody.
//! Whoever is told that it is to give way, and waits for its checkpoint, writes one, and says so, by the clock of its machine; and so does it when it begins,
//! since it goes on from one. The first rank of some gangs tells of its
//! progress, until all of them stand still ([`progress`]).

mod progress;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use muster_api::{TierPreemption, keys};

use crate::{
    api_server::{ApiServer, has_ended},
    fixtures::{self, TIERS},
    gpu_node::GpuNode,
    owners::Owners,
    scenario::{Counting, GangShape},
};
pub use progress::Tell;
use progress::{Now, Told};

const RENDEZVOUS_MILLISECONDS: u64 = 120_000;
const WORK_MILLISECONDS: u64 = 3_000;
/// The annotation of a pod whose rank wrote a checkpoint since it was told to go.
const SAVED: &str = "saved";

/// Which ranks have met.
#[derive(Debug, Default)]
pub struct Workload {
    met: BTreeSet<String>,
    /// Ranks that hang for ever, because one that they had met failed, or because they stand still.
    hung: BTreeSet<String>,
    /// Ranks that did their work.
    ended_well: BTreeSet<String>,
    /// The last meeting of every gang: who was there.
    meetings: BTreeMap<String, BTreeSet<String>>,
    /// Who met in an attempt whose ranks are told how many they are, by the UID of their owner and the attempt.
    met_in: BTreeMap<(String, String), BTreeSet<String>>,
    told: Told,
    /// When the container of a pod was started last.
    started: BTreeMap<String, u64>,
}

/// What a container does by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It ends.
    End(End),
    /// It has written a checkpoint, and says so on its pod: namespace and name.
    Checkpoint(String, String),
    /// It tells how far it has come, on its pod.
    Tell(Tell),
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
        self.note_starts(nodes);
        self.meet(api, &alive, owners);
        let mut steps = Vec::new();
        for (name, node) in nodes {
            for (pod, container) in &node.containers {
                if self.hung.contains(pod) {
                    continue;
                }
                let object = api.pod_by_uid(pod);
                let shape = object.and_then(|object| owners.shape_of(object));
                if shape.is_some_and(|shape| !shape.owner.is_finite()) {
                    continue;
                }
                let has_met = self.met.contains(pod);
                if let (true, Some(object), Some(shape)) = (has_met, object, shape) {
                    match self.told.next(now, api, object, shape) {
                        Some(Now::Tells(tell)) => steps.push(Step::Tell(tell)),
                        Some(Now::Stalls) => {
                            let meeting = self.meetings.get(&shape.name);
                            self.hung.extend(meeting.into_iter().flatten().cloned());
                            self.hung.insert(pod.clone());
                            continue;
                        }
                        None => {}
                    }
                }
                let patience = if has_met {
                    work_milliseconds(shape)
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

    /// A container that was started anew hangs no more, and has met nobody.
    fn note_starts(&mut self, nodes: &BTreeMap<String, GpuNode>) {
        for (pod, container) in nodes.values().flat_map(|node| &node.containers) {
            let before = self.started.insert(pod.clone(), container.started_at);
            if before.is_some_and(|before| before != container.started_at) {
                self.hung.remove(pod);
                self.met.remove(pod);
                for met in self.met_in.values_mut() {
                    met.remove(pod);
                }
            }
        }
    }

    /// A container ended by itself.
    pub fn note_end(&mut self, step: &End) {
        if step.succeeded {
            self.ended_well.insert(step.pod.clone());
        }
    }

    /// A container has told how far it has come.
    pub fn note_told(&mut self, now: u64, tell: &Tell) {
        self.told.note(now, tell);
    }

    /// When time alone will make a step possible.
    pub fn wakes_at(
        &self,
        now: u64,
        api: &ApiServer,
        nodes: &BTreeMap<String, GpuNode>,
        owners: &Owners,
    ) -> Option<u64> {
        nodes
            .values()
            .flat_map(|node| &node.containers)
            .flat_map(|(pod, container)| {
                let shape = api.pod_by_uid(pod).and_then(|pod| owners.shape_of(pod));
                let ends = [work_milliseconds(shape), RENDEZVOUS_MILLISECONDS]
                    .map(|patience| container.started_at + patience);
                let tells = self.told.again_at(pod);
                let tells = tells.filter(|_| !self.hung.contains(pod));
                ends.into_iter().chain(tells)
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
        let mut gangs: BTreeMap<&str, (&GangShape, Vec<&Pod>)> = BTreeMap::new();
        for pod in api.list::<Pod>() {
            if let Some(shape) = owners.shape_of(pod) {
                let gang = gangs.entry(shape.name.as_str());
                gang.or_insert((shape, Vec::new())).1.push(pod);
            }
        }
        for (name, (shape, pods)) in gangs {
            if shape.ranks.hang {
                self.hang(name, &pods, alive);
            }
            let here: Vec<&&Pod> = pods
                .iter()
                .filter(|pod| {
                    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
                    alive.contains(uid)
                        && !self.hung.contains(uid)
                        && pod.metadata.deletion_timestamp.is_none()
                })
                .collect();
            if here.iter().any(|pod| told_count(pod).is_some()) {
                self.meet_as_told(name, here.into_iter().copied());
                continue;
            }
            // The pods of a work queue have no index, and what takes the place of one that failed has another name.
            let is_queue = shape.job().counting == Counting::WorkQueue;
            let done = pods.iter().filter(|pod| {
                has_ended(pod)
                    && (!is_queue || has_succeeded(pod))
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
            if indices.len() == shape.pods {
                self.note_meeting(name, uids(here.iter().map(|pod| **pod)));
            }
        }
    }
}

impl Workload {
    /// Ranks that are told how many of their attempt there are.
    fn meet_as_told<'a>(&mut self, gang: &str, here: impl Iterator<Item = &'a Pod>) {
        let mut attempts: BTreeMap<(String, String), (usize, Vec<&Pod>)> = BTreeMap::new();
        for pod in here {
            if let Some((attempt, count)) = attempt_of(pod).zip(told_count(pod)) {
                let (_, pods) = attempts.entry(attempt).or_insert((count, Vec::new()));
                pods.push(pod);
            }
        }
        for (attempt, (count, pods)) in attempts {
            let here = uids(pods.into_iter());
            let met = self.met_in.entry(attempt).or_default();
            let before = met.difference(&here);
            let before = before.filter(|pod| !self.hung.contains(*pod)).count();
            if before + here.len() >= count {
                met.extend(here.iter().cloned());
                self.note_meeting(gang, here);
            }
        }
    }

    fn note_meeting(&mut self, gang: &str, here: BTreeSet<String>) {
        let meeting = self.meetings.entry(gang.to_owned()).or_default();
        if !here.is_subset(meeting) {
            meeting.clone_from(&here);
        }
        self.met.extend(here);
    }
}

fn uids<'a>(pods: impl Iterator<Item = &'a Pod>) -> BTreeSet<String> {
    pods.filter_map(|pod| pod.metadata.uid.clone()).collect()
}

fn has_succeeded(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    status.and_then(|status| status.phase.as_deref()) == Some("Succeeded")
}

fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a String> {
    pod.metadata.annotations.as_ref()?.get(key)
}

/// How many pods its attempt has, as it is told.
fn told_count(pod: &Pod) -> Option<usize> {
    annotation(pod, keys::ADMITTED_COUNT)?.parse().ok()
}

/// Its owner and the attempt.
fn attempt_of(pod: &Pod) -> Option<(String, String)> {
    let owner = pod.metadata.owner_references.as_ref()?.first()?;
    Some((owner.uid.clone(), annotation(pod, keys::ATTEMPT)?.clone()))
}

/// What is owed by a pod that was told when it is to give way, and may do so once it wrote a checkpoint.
fn checkpoint(api: &ApiServer, pod: &str) -> Option<Step> {
    let pod = api.pod_by_uid(pod)?;
    let is_told = annotation(pod, keys::PREEMPT_AT).is_some();
    let owes = waits_for_checkpoints(pod) && is_told && annotation(pod, SAVED).is_none();
    let metadata = &pod.metadata;
    owes.then(|| {
        let namespace = metadata.namespace.clone().unwrap_or_default();
        Step::Checkpoint(namespace, metadata.name.clone().unwrap_or_default())
    })
}

/// Whether the tier of a pod has its gang go once it wrote a checkpoint.
fn waits_for_checkpoints(pod: &Pod) -> bool {
    let labels = pod.metadata.labels.as_ref();
    let Some(tier) = labels.and_then(|labels| labels.get(keys::TIER)) else {
        return false;
    };
    let mut tiers = TIERS.iter();
    tiers
        .any(|(name, _, preemption)| *preemption == TierPreemption::AfterCheckpoint && tier == name)
}

/// A rank writes a checkpoint, and says so by the clock of its machine.
pub(crate) fn save(pod: &mut Pod, time_of_day: Timestamp) {
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(keys::CHECKPOINTED_AT.to_owned(), time_of_day.to_string());
    annotations.insert(SAVED.to_owned(), "true".to_owned());
}

/// A rank begins. Whose tier waits for checkpoints tells of the one that it goes on from, unless it was told to go by then: that it is to answer by another
/// one.
pub(crate) fn begin(pod: &mut Pod, time_of_day: Timestamp) {
    if waits_for_checkpoints(pod) && annotation(pod, keys::PREEMPT_AT).is_none() {
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(keys::CHECKPOINTED_AT.to_owned(), time_of_day.to_string());
    }
}

/// How long a rank works, if it is known of which gang it is.
fn work_milliseconds(shape: Option<&GangShape>) -> u64 {
    let seconds = shape.and_then(|shape| shape.ranks.work_seconds);
    seconds.map_or(WORK_MILLISECONDS, |seconds| seconds * 1_000)
}
