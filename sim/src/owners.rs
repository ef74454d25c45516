//! Those who make pods: the Job controller, and users who make them one by one.
//!
//! An Indexed Job makes a pod for every index that has neither succeeded nor an active pod. A user's gang is made
//! once; a pod that vanishes before any of them was let go is made again, later ones are not, and a gang of which some
//! pods ended before others began is cleaned up. What never gets
//! anywhere for ten minutes its user deletes: eviction is not built yet, and a real user would not wait for ever.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{
    batch::v1::{Job, JobCondition, JobStatus},
    core::v1::Pod,
};
use muster_api::Gang;
use muster_cluster::object::Kind;

use crate::{
    api_server::{ApiServer, Precondition, has_ended, key},
    furniture,
    scenario::{GangShape, OwnerKind, Scenario},
};

/// After which time without getting anywhere a pod is deleted by its user.
const PATIENCE_MILLISECONDS: u64 = 600_000;

/// All gangs that are submitted, and how far they are.
#[derive(Debug)]
pub struct Owners {
    gangs: BTreeMap<String, Submission>,
    /// Since when a pod has been let go or admitted and does not run, by its UID.
    stuck: BTreeMap<String, u64>,
    made: u64,
}

#[derive(Debug)]
struct Submission {
    shape: GangShape,
    state: State,
    /// Indices that a user has made a pod for.
    made: BTreeSet<usize>,
    /// Whether a pod of it was ever let go.
    released: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Planned,
    Submitted,
    /// Given up, or deleted by its user: nothing more is made.
    Cancelled,
}

/// A step of an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Submits a gang.
    Submit(String),
    /// Makes the pod of an index.
    MakePod(String, usize),
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
            if since.is_some_and(|since| since + PATIENCE_MILLISECONDS <= now) {
                let namespace = pod.metadata.namespace.clone().unwrap_or_default();
                let name = pod.metadata.name.clone().unwrap_or_default();
                steps.push(Step::GiveUp(namespace, name));
            }
        }
        steps
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
            let since = before.get(&uid).copied().unwrap_or(now);
            self.stuck.insert(uid, since);
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
            .map(|since| since + PATIENCE_MILLISECONDS);
        planned.chain(stuck).min()
    }

    /// Takes a step.
    pub fn perform(&mut self, step: &Step, api: &mut ApiServer) {
        match step {
            Step::Submit(name) => self.submit(name, api),
            Step::MakePod(name, index) => self.make_pod(name, *index, api),
            Step::TellStatus(name) => {
                if let Some(gang) = self.gangs.get(name) {
                    let status = gang.job_status(api);
                    let (namespace, job) = (&gang.shape.team, &gang.shape.name);
                    let any = Precondition::default();
                    let _ = api.update::<Job>(namespace, job, any, |job| job.status = Some(status));
                }
            }
            Step::GiveUp(namespace, pod) => {
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
            let _ = api.create(furniture::job(&gang.shape));
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
        let _ = api.create(furniture::pod(
            &gang.shape,
            &pod_name,
            index,
            uid.as_deref(),
        ));
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

fn succeeded(pod: &Pod) -> bool {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        == Some("Succeeded")
}

impl Submission {
    fn note_released(&mut self, api: &ApiServer) {
        let released = self.pods(api).any(|pod| !is_gated(pod) || has_ended(pod));
        self.released |= released;
    }

    fn pods<'a>(&'a self, api: &'a ApiServer) -> impl Iterator<Item = &'a Pod> {
        let name = self.shape.name.as_str();
        let label = match self.shape.owner {
            OwnerKind::Job => "batch.kubernetes.io/job-name",
            OwnerKind::User => muster_api::keys::GANG,
        };
        api.list::<Pod>().filter(move |pod| {
            pod.metadata
                .labels
                .as_ref()
                .and_then(|labels| labels.get(label))
                .is_some_and(|value| value == name)
        })
    }

    fn is_complete(&self, api: &ApiServer) -> bool {
        match self.shape.owner {
            OwnerKind::Job => api
                .get::<Job>(&self.shape.team, &self.shape.name)
                .and_then(|job| job.status.as_ref()?.conditions.as_ref())
                .is_some_and(|conditions| {
                    conditions
                        .iter()
                        .any(|condition| condition.type_ == "Complete")
                }),
            OwnerKind::User => {
                self.made.len() == self.shape.pods
                    && self.pods(api).filter(|pod| has_ended(pod)).count() == self.shape.pods
            }
        }
    }

    fn steps(&self, api: &ApiServer, steps: &mut Vec<Step>) {
        let name = self.shape.name.clone();
        match self.shape.owner {
            OwnerKind::Job => {
                let Some(job) = api.get::<Job>(&self.shape.team, &name) else {
                    return;
                };
                if job.metadata.deletion_timestamp.is_some() || self.is_complete(api) {
                    return;
                }
                let done = self.indices(api, succeeded);
                let active = self.indices(api, |pod| {
                    !has_ended(pod) && pod.metadata.deletion_timestamp.is_none()
                });
                let missing = (0..self.shape.pods)
                    .filter(|index| !done.contains(index) && !active.contains(index));
                steps.extend(missing.map(|index| Step::MakePod(name.clone(), index)));
                if job.status.as_ref() != Some(&self.job_status(api)) {
                    steps.push(Step::TellStatus(name));
                }
            }
            OwnerKind::User => {
                let there = self.indices(api, |_| true);
                let missing: Vec<usize> = (0..self.shape.pods)
                    .filter(|index| !there.contains(index))
                    .collect();
                let lost = missing.iter().any(|index| self.made.contains(index));
                let is_broken = self.pods(api).any(has_ended) && self.pods(api).any(is_gated);
                if (lost && self.released) || is_broken {
                    steps.push(Step::CleanUp(name));
                } else {
                    steps.extend(
                        missing
                            .into_iter()
                            .map(|index| Step::MakePod(name.clone(), index)),
                    );
                }
            }
        }
    }

    fn indices(&self, api: &ApiServer, holds: impl Fn(&Pod) -> bool) -> BTreeSet<usize> {
        self.pods(api)
            .filter(|pod| holds(pod))
            .filter_map(furniture::index_of)
            .collect()
    }

    fn job_status(&self, api: &ApiServer) -> JobStatus {
        let done = self.indices(api, succeeded);
        let count = |number: usize| i32::try_from(number).ok().filter(|number| *number > 0);
        let is_complete = done.len() == self.shape.pods;
        let active = self.pods(api).filter(|pod| !has_ended(pod)).count();
        let failed = self
            .pods(api)
            .filter(|pod| has_ended(pod) && !succeeded(pod))
            .count();
        JobStatus {
            active: count(active),
            succeeded: count(done.len()),
            failed: count(failed),
            completed_indexes: Some(intervals(&done)),
            conditions: is_complete.then(|| {
                vec![JobCondition {
                    type_: "Complete".to_owned(),
                    status: "True".to_owned(),
                    ..JobCondition::default()
                }]
            }),
            ..JobStatus::default()
        }
    }
}

/// As a Job writes its completed indices: `0,2-4`.
fn intervals(indices: &BTreeSet<usize>) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &index in indices {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == index => *last = index,
            _ => runs.push((index, index)),
        }
    }
    let texts: Vec<String> = runs
        .iter()
        .map(|(first, last)| match last - first {
            0 => first.to_string(),
            1 => format!("{first},{last}"),
            _ => format!("{first}-{last}"),
        })
        .collect();
    texts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completed_indices_are_written_as_a_job_writes_them() {
        for (indices, text) in [
            (vec![], ""),
            (vec![1], "1"),
            (vec![0, 1], "0,1"),
            (vec![0, 2, 3, 4, 7], "0,2-4,7"),
        ] {
            assert_eq!(intervals(&indices.into_iter().collect()), text);
        }
    }

    fn owners(owner: OwnerKind) -> (Owners, ApiServer) {
        let scenario = Scenario {
            nodes: Vec::new(),
            teams: Vec::new(),
            gangs: vec![GangShape {
                name: "g".into(),
                team: "blue".into(),
                owner,
                pods: 2,
                gpus_per_pod: 1,
                submitted_at: 5,
            }],
        };
        (Owners::new(&scenario), ApiServer::default())
    }

    fn run(owners: &mut Owners, api: &mut ApiServer) {
        while let Some(step) = owners.steps(10, api).first().cloned() {
            owners.perform(&step, api);
        }
    }

    fn end(api: &mut ApiServer, pod: &str, phase: &str) {
        api.update::<Pod>("blue", pod, Precondition::default(), |pod| {
            pod.status.get_or_insert_default().phase = Some(phase.to_owned());
        })
        .unwrap();
    }

    #[test]
    fn a_job_makes_what_failed_anew_and_is_complete_when_every_index_succeeded() {
        let (mut owners, mut api) = owners(OwnerKind::Job);
        assert!(owners.steps(4, &api).is_empty(), "not yet submitted");
        run(&mut owners, &mut api);
        let names: Vec<String> = api
            .list::<Pod>()
            .filter_map(|pod| pod.metadata.name.clone())
            .collect();
        assert_eq!(names, ["g-0-001", "g-1-002"]);
        end(&mut api, "g-0-001", "Failed");
        end(&mut api, "g-1-002", "Succeeded");
        run(&mut owners, &mut api);
        assert!(api.get::<Pod>("blue", "g-0-003").is_some());
        assert!(!owners.is_complete("g", &api));
        end(&mut api, "g-0-003", "Succeeded");
        run(&mut owners, &mut api);
        assert!(owners.is_complete("g", &api));
    }

    #[test]
    fn a_user_makes_a_vanished_pod_again_only_while_none_was_let_go() {
        let (mut owners, mut api) = owners(OwnerKind::User);
        run(&mut owners, &mut api);
        let pod = key(Kind::Pod, "blue", "g-0");
        let any = Precondition::default();
        api.delete(&pod, any).unwrap();
        run(&mut owners, &mut api);
        assert!(api.object(&pod).is_some());
        api.update::<Pod>("blue", "g-1", any, |pod| {
            pod.spec.as_mut().unwrap().scheduling_gates = None;
        })
        .unwrap();
        owners.look(&api);
        api.delete(&pod, any).unwrap();
        run(&mut owners, &mut api);
        assert_eq!(api.list::<Pod>().count(), 0, "given up as a whole");
        assert_eq!(owners.wanted().count(), 0);
    }
}
