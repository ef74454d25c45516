//! Those who make pods: the Job controller, and users who make them one by one.
//!
//! An Indexed Job makes a pod for every index that has neither succeeded nor an active pod, and ends all while it is suspended.
//! A user's gang is made
//! once; a pod that vanishes before any of them was let go is made again, later ones are not, and a gang of which some
//! pods ended before others began is cleaned up. What never gets
//! anywhere for ten minutes its user deletes: eviction is not built yet, and a real user would not wait for ever.

mod obstacle;
mod submission;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use muster_api::Gang;
use muster_cluster::object::Kind;

use crate::{
    api_server::{ApiServer, Precondition, has_ended, key},
    fixtures,
    scenario::{GangShape, OwnerKind, Scenario},
};
use submission::{State, Submission};

/// After which time without getting anywhere a pod is deleted by its user.
const PATIENCE_MILLISECONDS: u64 = 600_000;

/// All gangs that are submitted, and how far they are.
#[derive(Debug)]
pub struct Owners {
    gangs: BTreeMap<String, Submission>,
    /// Since when a pod has been let go or admitted and does not run, by its UID.
    stuck: BTreeMap<String, Stuck>,
    made: u64,
    healed: bool,
    given_up: BTreeMap<String, u64>,
    /// A pod that was given up although nothing goes wrong any more, and what kept it.
    stranded: Option<String>,
}

/// A pod that gets nowhere.
#[derive(Clone, Copy, Debug)]
struct Stuck {
    /// Since when.
    since: u64,
    /// Whether its node had, at any time since then, a pod of an attempt that is over.
    beside_over: bool,
}

/// A step of an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Submits a gang.
    Submit(String),
    /// Makes the claim that pods of a gang share.
    MakeClaim(String),
    /// Makes the pod of an index.
    MakePod(String, usize),
    /// Ends a pod of a Job that is suspended.
    EndSuspended(String, String),
    /// Writes the Job's status.
    TellStatus(String),
    /// Deletes a pod that gets nowhere, by namespace and name.
    GiveUp(String, String),
    /// Deletes what is left of a user's gang that lost a pod.
    CleanUp(String),
}

impl Owners {
    /// The owners of a scenario; nothing is submitted yet.
    pub fn new(scenario: &Scenario) -> Self {
        let gangs = scenario.gangs.iter().map(|shape| {
            let submission = Submission {
                shape: shape.clone(),
                state: State::Planned,
                made: BTreeSet::new(),
                released: false,
            };
            (shape.name.clone(), submission)
        });
        Self {
            gangs: gangs.collect(),
            stuck: BTreeMap::new(),
            made: 0,
            healed: false,
            given_up: BTreeMap::new(),
            stranded: None,
        }
    }

    /// Names of gangs that are submitted and not given up.
    pub fn wanted(&self) -> impl Iterator<Item = &GangShape> {
        self.gangs
            .values()
            .filter(|gang| gang.state != State::Cancelled)
            .map(|gang| &gang.shape)
    }

    /// Looks at which gangs had a pod let go: to be called after every step, since a pod may vanish soon after.
    pub fn look(&mut self, api: &ApiServer) {
        for gang in self.gangs.values_mut().filter(|gang| !gang.released) {
            gang.note_released(api);
        }
    }

    /// All that may happen next.
    pub fn steps(&mut self, now: u64, api: &ApiServer) -> Vec<Step> {
        self.note_stuck(now, api);
        let mut steps = Vec::new();
        for (name, gang) in &self.gangs {
            match gang.state {
                State::Cancelled => {}
                State::Planned => {
                    if gang.shape.submitted_at <= now {
                        steps.push(Step::Submit(name.clone()));
                    }
                }
                State::Submitted => gang.steps(api, &mut steps),
            }
        }
        for pod in api.list::<Pod>() {
            let since = pod
                .metadata
                .uid
                .as_ref()
                .and_then(|uid| self.stuck.get(uid));
            if since.is_some_and(|stuck| stuck.since + PATIENCE_MILLISECONDS <= now) {
                let namespace = pod.metadata.namespace.clone().unwrap_or_default();
                let name = pod.metadata.name.clone().unwrap_or_default();
                steps.push(Step::GiveUp(namespace, name));
            }
        }
        steps
    }

    /// From now on nobody should have to give up.
    pub fn heal(&mut self) {
        self.healed = true;
        self.stuck.clear();
    }

    /// How many pods were given up, by what kept them.
    pub fn given_up(&self) -> &BTreeMap<String, u64> {
        &self.given_up
    }

    /// A pod that was given up although nothing goes wrong any more.
    pub fn stranded(&self) -> Option<&str> {
        self.stranded.as_deref()
    }

    fn note_given_up(&mut self, namespace: &str, name: &str, api: &ApiServer) {
        let Some(pod) = api.get::<Pod>(namespace, name) else {
            return;
        };
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let beside_over = self.stuck.get(uid).is_some_and(|stuck| stuck.beside_over);
        let kept_by = obstacle::of(api, pod, beside_over);
        if self.healed && !obstacle::is_expected(&kept_by) {
            self.stranded = Some(format!("{name}: {kept_by}"));
        }
        let when = if self.healed { "healed" } else { "troubled" };
        *self
            .given_up
            .entry(format!("{when}: {kept_by}"))
            .or_default() += 1;
    }

    fn note_stuck(&mut self, now: u64, api: &ApiServer) {
        let before = std::mem::take(&mut self.stuck);
        let admitted: BTreeSet<&str> = api
            .list::<Gang>()
            .filter_map(|gang| gang.status.as_ref()?.admission.as_ref())
            .flat_map(|admission| &admission.pods)
            .map(|pod| pod.uid.as_str())
            .collect();
        for pod in api.list::<Pod>().filter(|pod| is_stuck(pod, &admitted)) {
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            let mut stuck = before.get(&uid).copied().unwrap_or(Stuck {
                since: now,
                beside_over: false,
            });
            stuck.beside_over |= obstacle::is_beside_over(api, pod);
            self.stuck.insert(uid, stuck);
        }
    }

    /// When time alone will make a step possible.
    pub fn wakes_at(&self) -> Option<u64> {
        let planned = self
            .gangs
            .values()
            .filter(|gang| gang.state == State::Planned)
            .map(|gang| gang.shape.submitted_at);
        let stuck = self
            .stuck
            .values()
            .map(|stuck| stuck.since + PATIENCE_MILLISECONDS);
        planned.chain(stuck).min()
    }

    /// Takes a step.
    pub fn perform(&mut self, step: &Step, api: &mut ApiServer) {
        match step {
            Step::Submit(name) => self.submit(name, api),
            Step::MakeClaim(name) => {
                let gang = self.gangs.get(name);
                if let Some(claim) = gang.and_then(|gang| fixtures::shared_claim(&gang.shape)) {
                    let _ = api.create(claim);
                }
            }
            Step::MakePod(name, index) => self.make_pod(name, *index, api),
            Step::EndSuspended(name, pod) => {
                if let Some(gang) = self.gangs.get(name) {
                    let pod = key(Kind::Pod, &gang.shape.team, pod);
                    let _ = api.delete(&pod, Precondition::default());
                }
            }
            Step::TellStatus(name) => {
                if let Some(gang) = self.gangs.get(name) {
                    let status = gang.job_status(api);
                    let (namespace, job) = (&gang.shape.team, &gang.shape.name);
                    let any = Precondition::default();
                    let _ = api.update::<Job>(namespace, job, any, |job| job.status = Some(status));
                }
            }
            Step::GiveUp(namespace, pod) => {
                self.note_given_up(namespace, pod, api);
                let _ = api.delete(&key(Kind::Pod, namespace, pod), Precondition::default());
            }
            Step::CleanUp(name) => self.cancel(name, api),
        }
    }

    /// The user deletes a gang.
    pub fn cancel(&mut self, name: &str, api: &mut ApiServer) {
        let Some(gang) = self.gangs.get_mut(name) else {
            return;
        };
        gang.state = State::Cancelled;
        let any = Precondition::default();
        match gang.shape.owner {
            OwnerKind::Job => {
                let _ = api.delete(&key(Kind::Job, &gang.shape.team, name), any);
            }
            OwnerKind::User => {
                let pods: Vec<String> = gang
                    .pods(api)
                    .filter(|pod| !has_ended(pod))
                    .filter_map(|pod| pod.metadata.name.clone())
                    .collect();
                for pod in pods {
                    let _ = api.delete(&key(Kind::Pod, &gang.shape.team, &pod), any);
                }
            }
        }
    }

    /// Gangs that a user might delete: submitted, and not complete.
    pub fn cancellable(&self, api: &ApiServer) -> Vec<String> {
        self.gangs
            .iter()
            .filter(|(_, gang)| gang.state == State::Submitted && !gang.is_complete(api))
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// The gang that a pod was made for.
    pub fn shape_of(&self, pod: &Pod) -> Option<&GangShape> {
        let labels = pod.metadata.labels.as_ref()?;
        let name = labels
            .get("batch.kubernetes.io/job-name")
            .or_else(|| labels.get(muster_api::keys::GANG))?;
        self.gangs.get(name).map(|gang| &gang.shape)
    }

    /// Whether the gang is done: its Job is complete, or all its user's pods ended.
    pub fn is_complete(&self, name: &str, api: &ApiServer) -> bool {
        self.gangs
            .get(name)
            .is_some_and(|gang| gang.is_complete(api))
    }

    fn submit(&mut self, name: &str, api: &mut ApiServer) {
        let Some(gang) = self.gangs.get_mut(name) else {
            return;
        };
        gang.state = State::Submitted;
        if gang.shape.owner == OwnerKind::Job {
            let _ = api.create(fixtures::job(&gang.shape));
        }
    }

    fn make_pod(&mut self, name: &str, index: usize, api: &mut ApiServer) {
        let Some(gang) = self.gangs.get_mut(name) else {
            return;
        };
        self.made += 1;
        gang.made.insert(index);
        let job = api.get::<Job>(&gang.shape.team, name);
        let uid = job.and_then(|job| job.metadata.uid.clone());
        let pod_name = match gang.shape.owner {
            OwnerKind::Job => format!("{name}-{index}-{:03}", self.made),
            OwnerKind::User => format!("{name}-{index}"),
        };
        let _ = api.create(fixtures::pod(&gang.shape, &pod_name, index, uid.as_deref()));
    }
}

/// Let go or admitted, and not running.
fn is_stuck(pod: &Pod, admitted: &BTreeSet<&str>) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    (!is_gated(pod) || admitted.contains(uid))
        && pod.metadata.deletion_timestamp.is_none()
        && phase == Some("Pending")
}

/// Whether the pod has a scheduling gate.
pub fn is_gated(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| {
        spec.scheduling_gates
            .as_ref()
            .is_some_and(|gates| !gates.is_empty())
    })
}
