//! Controllers that keep a number of equal pods running, and replace them one by one when their template changes.
//!
//! * A StatefulSet (`podManagementPolicy: Parallel`) makes a pod for every ordinal. It updates from the highest ordinal down:
//!   it deletes a pod of the old revision, makes it anew, and waits until that one runs before it deletes the next. A pod that
//!   ended it deletes and makes anew.
//! * A Deployment (`maxSurge: 1`, `maxUnavailable: 0`) makes one pod of the new revision besides, waits until it runs, and
//!   only then deletes an old one; old ones that do not run go first. Where its pods are one gang, that pod is one too many and
//!   waits for the old ones, and they for it. Once the Deployment has made no progress for as long as its deadline says, its user
//!   reads why, and does what it says: with the strategy `Recreate` all old ones are ended, and are gone, before the new ones are made
//!   (kube-controller-manager 1.37, `pkg/controller/deployment/recreate.go`).
//!
//! Their ranks serve for ever. Once all are of the new revision and have run for a while, their user deletes the whole.

use k8s_openapi::api::core::v1::Pod;
use muster_cluster::object::Kind;

use crate::{
    api_server::{ApiServer, Precondition, has_ended, key},
    fixtures,
    scenario::{GangShape, OwnerKind},
};

/// How long all pods run before they are replaced, and before their user is done with them.
const SERVED_MILLISECONDS: u64 = 5_000;
/// `progressDeadlineSeconds` of a Deployment that says nothing about it.
const PROGRESS_MILLISECONDS: u64 = 600_000;
/// By which the pods of a StatefulSet tell their template.
const REVISION: &str = "controller-revision-hash";
/// The same of a Deployment, whose ReplicaSets are named after it and that.
const TEMPLATE_HASH: &str = "pod-template-hash";
/// The template at first.
const OLD: &str = "5d9c7b6f4";
/// The template that is rolled out.
const NEW: &str = "6c8b5d4f7";

/// What such a controller, and its user, remember.
#[derive(Debug, Default)]
pub(super) struct Keeper {
    /// UID of the StatefulSet, or of the Deployment's first ReplicaSet; empty before it was submitted.
    pub(super) uid: String,
    made: u64,
    /// Whether the template was changed.
    is_rolling: bool,
    /// Whether the user of the Deployment has changed its strategy to `Recreate`.
    recreates: bool,
    /// How many pods of the new revision run, and how many of the old one are left, and since when that has been so.
    progress: (usize, usize),
    progressed_at: u64,
    /// Ordinals whose old pod was deleted for the new revision.
    replaced: Vec<usize>,
    /// Since when all pods that are wanted run, and no other is there.
    running_since: Option<u64>,
}

/// A step of such a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Makes a pod of an ordinal, of the new revision or the old one.
    Make(usize, bool),
    /// Deletes a pod.
    Delete(String),
    /// Deletes a pod, to replace it by one of the new revision.
    Replace(String),
    /// Its user changes the template.
    Roll,
    /// Its user changes its strategy to `Recreate`.
    Recreate,
    /// Its user is done with it, and deletes it.
    Finish,
}

impl Keeper {
    /// Looks whether all run: to be called before steps are asked for.
    pub(super) fn look(&mut self, now: u64, shape: &GangShape, pods: &[&Pod]) {
        let runs = |pod: &&&Pod| is_running(pod) && (is_new(pod) == self.is_rolling);
        let all = pods.len() == shape.pods && pods.iter().filter(runs).count() == shape.pods;
        self.running_since = all.then(|| self.running_since.unwrap_or(now));
        let (new, old): (Vec<&Pod>, Vec<&Pod>) = pods.iter().copied().partition(|pod| is_new(pod));
        let running = new.into_iter().filter(|pod| is_running(pod)).count();
        let progress = (running, old.len());
        if !self.is_rolling || progress != self.progress {
            self.progress = progress;
            self.progressed_at = now;
        }
    }

    /// When the Deployment will have made no progress for too long, if it may still surge.
    fn gives_up_at(&self, shape: &GangShape) -> Option<u64> {
        let may_surge = shape.owner == OwnerKind::Deployment && self.is_rolling && !self.recreates;
        may_surge.then_some(self.progressed_at + PROGRESS_MILLISECONDS)
    }

    pub(super) fn steps(&self, now: u64, shape: &GangShape, pods: &[&Pod]) -> Vec<Step> {
        let has_served = self
            .running_since
            .is_some_and(|since| since + SERVED_MILLISECONDS <= now);
        if has_served {
            return vec![if self.is_rolling {
                Step::Finish
            } else {
                Step::Roll
            }];
        }
        if self.gives_up_at(shape).is_some_and(|at| at <= now) {
            return vec![Step::Recreate];
        }
        if shape.owner == OwnerKind::StatefulSet {
            self.steps_of_set(shape, pods)
        } else {
            self.steps_of_deployment(shape, pods)
        }
    }

    pub(super) fn wakes_at(&self, shape: &GangShape) -> Option<u64> {
        let served = self.running_since.map(|since| since + SERVED_MILLISECONDS);
        served.or_else(|| self.gives_up_at(shape))
    }

    /// Its user deletes it: what it made is garbage.
    pub(super) fn forget(&self, api: &mut ApiServer) {
        api.forget(&self.uid);
        api.forget(&self.uid_of_new());
    }

    /// UID of the Deployment's second ReplicaSet.
    fn uid_of_new(&self) -> String {
        format!("{}-new", self.uid)
    }

    fn steps_of_set(&self, shape: &GangShape, pods: &[&Pod]) -> Vec<Step> {
        let of = |ordinal: usize| {
            let mut pods = pods.iter().copied();
            pods.find(|pod| fixtures::index_of(pod) == Some(ordinal))
        };
        let mut steps: Vec<Step> = pods
            .iter()
            .filter(|pod| has_ended(pod) && !is_deleted(pod))
            .filter_map(|pod| pod.metadata.name.clone().map(Step::Delete))
            .collect();
        steps.extend(
            (0..shape.pods)
                .filter(|ordinal| of(*ordinal).is_none())
                .map(|ordinal| Step::Make(ordinal, self.replaced.contains(&ordinal))),
        );
        if self.is_rolling {
            // What is not there yet, or does not run yet, is waited for.
            let next = (0..shape.pods)
                .rev()
                .find(|ordinal| of(*ordinal).is_none_or(|pod| !is_new(pod) || !is_running(pod)));
            let old = next
                .and_then(of)
                .filter(|pod| !is_new(pod) && !is_deleted(pod) && !has_ended(pod));
            steps.extend(old.and_then(|pod| pod.metadata.name.clone().map(Step::Replace)));
        }
        steps
    }

    fn steps_of_deployment(&self, shape: &GangShape, pods: &[&Pod]) -> Vec<Step> {
        let ended = pods.iter().filter(|pod| has_ended(pod) && !is_deleted(pod));
        let mut steps: Vec<Step> = ended
            .filter_map(|pod| pod.metadata.name.clone().map(Step::Delete))
            .collect();
        let active: Vec<&&Pod> = pods
            .iter()
            .filter(|pod| !has_ended(pod) && !is_deleted(pod))
            .collect();
        let (new, old): (Vec<&&Pod>, Vec<&&Pod>) =
            active.iter().copied().partition(|pod| is_new(pod));
        if self.recreates {
            let names = old.iter().filter_map(|pod| pod.metadata.name.clone());
            steps.extend(names.map(Step::Replace));
            let is_any_left = pods.iter().any(|pod| !is_new(pod) && !has_ended(pod));
            if !is_any_left && new.len() < shape.pods {
                steps.push(Step::Make(0, true));
            }
            return steps;
        }
        let (wanted, most) = if self.is_rolling {
            (&new, shape.pods + 1)
        } else {
            (&old, shape.pods)
        };
        if wanted.len() < shape.pods && active.len() < most {
            steps.push(Step::Make(0, self.is_rolling));
        }
        if self.is_rolling {
            let running = active.iter().filter(|pod| is_running(pod)).count();
            let unhealthy = old.iter().find(|pod| !is_running(pod));
            // As many as it may lose: more than are wanted must run.
            let spare = old.first().filter(|_| running > shape.pods);
            let old = unhealthy.or(spare);
            steps.extend(old.and_then(|pod| pod.metadata.name.clone().map(Step::Replace)));
        }
        steps
    }

    /// Takes a step; whether the user is done.
    pub(super) fn perform(&mut self, shape: &GangShape, step: &Step, api: &mut ApiServer) -> bool {
        let any = Precondition::default();
        match step {
            Step::Make(ordinal, new) => {
                self.made += 1;
                let number = if shape.owner == OwnerKind::StatefulSet {
                    *ordinal
                } else {
                    usize::try_from(self.made).unwrap_or_default()
                };
                let name = format!("{}-{number}", shape.name);
                let mut pod = fixtures::pod(shape, &name, *ordinal, Some(&self.uid));
                let template = if *new { NEW } else { OLD };
                let is_of_set = shape.owner == OwnerKind::StatefulSet;
                let label = if is_of_set { REVISION } else { TEMPLATE_HASH };
                let labels = pod.metadata.labels.get_or_insert_default();
                labels.insert(label.to_owned(), template.to_owned());
                let owners = pod.metadata.owner_references.iter_mut().flatten();
                for replica_set in owners.filter(|_| !is_of_set) {
                    replica_set.name = format!("{}-{template}", shape.name);
                    if *new {
                        replica_set.uid = self.uid_of_new();
                    }
                }
                let _ = api.create(pod);
            }
            Step::Delete(pod) | Step::Replace(pod) => {
                if let Some(ordinal) = api
                    .get::<Pod>(&shape.namespace, pod)
                    .filter(|_| matches!(step, Step::Replace(_)))
                    .and_then(fixtures::index_of)
                {
                    self.replaced.push(ordinal);
                }
                let _ = api.delete(&key(Kind::Pod, &shape.namespace, pod), any);
            }
            Step::Roll => {
                self.is_rolling = true;
                self.running_since = None;
                api.know(&self.uid_of_new());
            }
            Step::Recreate => self.recreates = true,
            Step::Finish => self.forget(api),
        }
        *step == Step::Finish
    }
}

/// Whether the pod was made from the template that its owner rolls out.
pub(crate) fn is_new(pod: &Pod) -> bool {
    let labels = pod.metadata.labels.as_ref();
    let template = labels.and_then(|it| it.get(REVISION).or_else(|| it.get(TEMPLATE_HASH)));
    template.map(String::as_str) == Some(NEW)
}

fn is_running(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    !is_deleted(pod) && status.and_then(|status| status.phase.as_deref()) == Some("Running")
}

fn is_deleted(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}
