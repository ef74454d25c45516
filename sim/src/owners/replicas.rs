//! Controllers that keep a number of equal pods running, and replace them one by one when their template changes.
//!
//! * A StatefulSet (`podManagementPolicy: Parallel`) makes a pod for every ordinal. It updates from the highest ordinal down:
//!   it deletes a pod of the old revision, makes it anew, and waits until that one runs before it deletes the next. A pod that
//!   ended it deletes and makes anew.
//! * A Deployment (`maxSurge: 1`, `maxUnavailable: 0`) makes one pod of the new revision besides, waits until it runs, and
//!   only then deletes an old one; old ones that do not run go first.
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
const REVISION: &str = "controller-revision-hash";

/// What such a controller, and its user, remember.
#[derive(Debug, Default)]
pub(super) struct Keeper {
    /// UID of the StatefulSet, or of the Deployment's ReplicaSets; empty before it was submitted.
    pub(super) uid: String,
    made: u64,
    /// Whether the template was changed.
    is_rolling: bool,
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
    /// Its user is done with it, and deletes it.
    Finish,
}

impl Keeper {
    /// Looks whether all run: to be called before steps are asked for.
    pub(super) fn look(&mut self, now: u64, shape: &GangShape, pods: &[&Pod]) {
        let runs = |pod: &&&Pod| is_running(pod) && (is_new(pod) == self.is_rolling);
        let all = pods.len() == shape.pods && pods.iter().filter(runs).count() == shape.pods;
        self.running_since = all.then(|| self.running_since.unwrap_or(now));
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
        if shape.owner == OwnerKind::StatefulSet {
            self.steps_of_set(shape, pods)
        } else {
            self.steps_of_deployment(shape, pods)
        }
    }

    pub(super) fn wakes_at(&self) -> Option<u64> {
        self.running_since.map(|since| since + SERVED_MILLISECONDS)
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
                let revision = if *new { "new" } else { "old" };
                let labels = pod.metadata.labels.get_or_insert_default();
                labels.insert(REVISION.to_owned(), revision.to_owned());
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
            }
            Step::Finish => api.forget(&self.uid),
        }
        *step == Step::Finish
    }
}

/// Whether the pod was made from the template that its owner rolls out.
pub(crate) fn is_new(pod: &Pod) -> bool {
    let labels = pod.metadata.labels.as_ref();
    labels
        .and_then(|labels| labels.get(REVISION))
        .map(String::as_str)
        == Some("new")
}

fn is_running(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    !is_deleted(pod) && status.and_then(|status| status.phase.as_deref()) == Some("Running")
}

fn is_deleted(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}
