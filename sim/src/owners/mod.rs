//! Those who make pods: controllers of Jobs, StatefulSets and Deployments, and users who make them one by one.
//!
//! A user's gang is made once; a pod that vanishes before any of them was let go is made again, later ones are not, and a
//! gang of which some pods ended before others began is cleaned up. What never gets anywhere for ten minutes its user
//! deletes, unless users are [patient](Hardship::PatientUsers): then what is stuck has to be evicted. Once nothing goes wrong any
//! more nobody should have to: whoever waits for longer than any attempt may take to start was forgotten (L-6).

mod job;
mod obstacle;
mod replicas;
mod submission;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use muster_api::Gang;
use muster_cluster::object::Kind;
use muster_protocol::REFUSED_AT_MOST;

use crate::{
    api_server::{ApiServer, Precondition, has_ended, is_bound, key},
    fixtures,
    scenario::{GangShape, Hardship, OwnerKind, Parent, Scenario},
};
pub(crate) use job::has_finished;
pub(crate) use replicas::is_new as is_of_new_revision;
use submission::{State, Submission};

/// After which time without getting anywhere a pod is deleted by its user.
const PATIENCE_MILLISECONDS: u64 = 600_000;
/// The same once nothing goes wrong any more: an attempt is evicted ten minutes after the last of its ranks made progress, and init
/// containers run for up to 25 minutes before that.
const PATIENCE_HEALED_MILLISECONDS: u64 = 2_400_000;

/// All gangs that are submitted, and how far they are.
#[derive(Debug)]
pub struct Owners {
    gangs: BTreeMap<String, Submission>,
    /// Since when a pod has been let go or admitted and does not run, by its UID.
    stuck: BTreeMap<String, Stuck>,
    healed: bool,
    /// Whether users delete nothing that gets nowhere.
    are_patient: bool,
    not_their_own: NotTheirOwn,
    /// How often in a row the API server refused to have the limit of a Job raised, by its name.
    refused_raises: BTreeMap<String, u32>,
    /// Jobs that their users want to be suspended.
    suspended: BTreeSet<String>,
    given_up: BTreeMap<String, u64>,
    /// A pod that was given up although nothing goes wrong any more, and what kept it.
    stranded: Option<String>,
}

/// Pods whose end was not their own doing, by UID.
#[derive(Debug, Default)]
struct NotTheirOwn {
    /// Muster deleted them.
    evicted: BTreeSet<String>,
    /// They died of faults.
    excused: BTreeSet<String>,
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
    /// A step about the Job of a gang.
    Job(String, job::Step),
    /// A step of the StatefulSet or Deployment of a gang.
    Replicas(String, replicas::Step),
    /// A pod that was never bound, and that its deletion finds held by a finalizer, has failed: the pod garbage collector
    /// says so.
    CollectPod(String, String),
    /// Deletes a pod that gets nowhere, by namespace and name.
    GiveUp(String, String),
    /// Deletes what is left of a user's gang that lost a pod.
    CleanUp(String),
}

impl Owners {
    /// The owners of a scenario; nothing is submitted yet.
    pub fn new(scenario: &Scenario) -> Self {
        let gangs = scenario
            .gangs
            .iter()
            .map(|shape| (shape.name.clone(), Submission::new(shape.clone())));
        Self {
            gangs: gangs.collect(),
            stuck: BTreeMap::new(),
            healed: false,
            are_patient: scenario.hardships.have(Hardship::PatientUsers),
            not_their_own: NotTheirOwn::default(),
            refused_raises: BTreeMap::new(),
            suspended: BTreeSet::new(),
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
        for (name, gang) in &mut self.gangs {
            match gang.state {
                // What its controllers still hold of it they let go.
                State::Cancelled if gang.shape.owner == OwnerKind::User => {}
                State::Cancelled | State::Served => gang.leave(now, api, &mut steps),
                State::Planned => {
                    if gang.shape.submitted_at <= now {
                        steps.push(Step::Submit(name.clone()));
                    }
                }
                State::Submitted => gang.steps(now, api, &mut steps),
            }
        }
        for pod in api.list::<Pod>() {
            let since = pod
                .metadata
                .uid
                .as_ref()
                .and_then(|uid| self.stuck.get(uid));
            if since.is_some_and(|stuck| stuck.since + self.patience_milliseconds() <= now) {
                let namespace = pod.metadata.namespace.clone().unwrap_or_default();
                let name = pod.metadata.name.clone().unwrap_or_default();
                steps.push(Step::GiveUp(namespace, name));
            }
            let is_held = pod.metadata.deletion_timestamp.is_some() && !is_bound(pod);
            if is_held && !has_ended(pod) {
                let namespace = pod.metadata.namespace.clone().unwrap_or_default();
                let name = pod.metadata.name.clone().unwrap_or_default();
                steps.push(Step::CollectPod(namespace, name));
            }
        }
        steps
    }

    /// Muster deleted a pod.
    pub fn note_evicted(&mut self, uid: &str) {
        self.not_their_own.evicted.insert(uid.to_owned());
    }

    /// A pod dies of a fault, its own or that of another rank.
    pub fn note_excused(&mut self, uid: &str) {
        self.not_their_own.excused.insert(uid.to_owned());
    }

    /// The API server refuses to have the limit of a Job raised, whoever asks. A leader that was refused that more often in a row than is counted
    /// here ends pods for which another one has raised it. Leaders go by a last word for a while, and what they told pods stands after that: so it
    /// stays.
    pub fn note_refused_raise(&mut self, job: &str) {
        let times = self.refused_raises.entry(job.to_owned()).or_default();
        *times = times.saturating_add(1);
    }

    /// The limit of a Job is raised.
    pub fn note_raised(&mut self, job: &str) {
        if !self.may_not_be_raised(job) {
            self.refused_raises.remove(job);
        }
    }

    /// Whether the API server said its last word that the limit of a Job may not be raised. That stops no eviction (ADR 17), and nobody waits for
    /// it before a fault comes: the Job fails then by its own limit.
    fn may_not_be_raised(&self, job: &str) -> bool {
        let times = self.refused_raises.get(job);
        times.is_some_and(|times| *times >= REFUSED_AT_MOST)
    }

    /// What was done to a Job that nobody may do to it (S5).
    pub fn wronged(&self, api: &ApiServer) -> Option<String> {
        let jobs = self
            .gangs
            .values()
            .filter(|gang| gang.state == State::Submitted);
        let mut jobs = jobs.filter(|gang| matches!(gang.shape.owner, OwnerKind::Job(_)));
        jobs.find_map(|gang| {
            let job = api.get::<Job>(&gang.shape.namespace, &gang.shape.name)?;
            let is_suspended = job
                .spec
                .as_ref()
                .is_some_and(|spec| spec.suspend == Some(true));
            let name = &gang.shape.name;
            if self.suspended.contains(name) && !is_suspended {
                return Some(format!("{name} is resumed, and its user suspended it"));
            }
            if self.may_not_be_raised(name) {
                return None;
            }
            gang.job.wronged(&gang.shape, api)
        })
    }

    /// Jobs that run and that a user might suspend, or that somebody suspended and a user might resume.
    pub fn suspendable(&self, api: &ApiServer, suspended: bool) -> Vec<String> {
        let gangs = self.gangs.values().filter(|gang| {
            let parent = gang.shape.job().parent;
            gang.state == State::Submitted
                && matches!(gang.shape.owner, OwnerKind::Job(_))
                && parent != Some(Parent::JobSet)
                && !self.suspended.contains(&gang.shape.name)
        });
        let jobs = gangs.filter_map(|gang| api.get::<Job>(&gang.shape.namespace, &gang.shape.name));
        let jobs = jobs.filter(|job| {
            let is_suspended = job
                .spec
                .as_ref()
                .is_some_and(|spec| spec.suspend == Some(true));
            is_suspended == suspended && !job::has_finished(job)
        });
        jobs.filter_map(|job| job.metadata.name.clone()).collect()
    }

    /// A user suspends a Job, or ends a suspension, whoever's it is.
    pub fn suspend(&mut self, name: &str, suspend: bool, api: &mut ApiServer) {
        let Some(gang) = self.gangs.get(name) else {
            return;
        };
        let any = Precondition::default();
        let _ = api.update::<Job>(&gang.shape.namespace, name, any, |job| {
            job.spec.get_or_insert_default().suspend = Some(suspend);
        });
        if suspend {
            self.suspended.insert(name.to_owned());
        } else {
            self.suspended.remove(name);
        }
    }

    /// For how long a user looks at a pod that gets nowhere.
    fn patience_milliseconds(&self) -> u64 {
        if self.healed {
            PATIENCE_HEALED_MILLISECONDS
        } else {
            PATIENCE_MILLISECONDS
        }
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
        if self.healed {
            self.stranded = Some(format!("{name}: {kept_by}"));
        }
        let when = if self.healed { "healed" } else { "troubled" };
        *self
            .given_up
            .entry(format!("{when}: {kept_by}"))
            .or_default() += 1;
    }

    fn note_stuck(&mut self, now: u64, api: &ApiServer) {
        if self.are_patient {
            return;
        }
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
    pub fn wakes_at(&self, now: u64, api: &ApiServer) -> Option<u64> {
        let gangs = self.gangs.values().filter_map(|gang| gang.wakes_at(api));
        let stuck = self
            .stuck
            .values()
            .map(|stuck| stuck.since + self.patience_milliseconds());
        gangs.chain(stuck).filter(|at| *at > now).min()
    }

    /// Takes a step.
    pub fn perform(&mut self, now: u64, step: &Step, api: &mut ApiServer) {
        match step {
            Step::Submit(name) => self.submit(name, api),
            Step::MakeClaim(name) => {
                let gang = self.gangs.get(name);
                if let Some(claim) = gang.and_then(|gang| fixtures::shared_claim(&gang.shape)) {
                    let _ = api.create(claim);
                }
            }
            Step::MakePod(name, index) => self.make_pod(name, *index, api),
            Step::Job(name, step) => {
                if let Some(gang) = self.gangs.get_mut(name) {
                    let not_their_own = &self.not_their_own;
                    gang.job.perform(now, &gang.shape, step, api, not_their_own);
                }
            }
            Step::Replicas(name, step) => {
                if let Some(gang) = self.gangs.get_mut(name)
                    && gang.replicas.perform(&gang.shape, step, api)
                {
                    gang.state = State::Served;
                }
            }
            Step::CollectPod(namespace, pod) => {
                let any = Precondition::default();
                let _ = api.update::<Pod>(namespace, pod, any, |pod| {
                    pod.status.get_or_insert_default().phase = Some("Failed".to_owned());
                });
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
            OwnerKind::Job(_) => {
                let _ = api.delete(&key(Kind::Job, &gang.shape.namespace, name), any);
            }
            OwnerKind::StatefulSet | OwnerKind::Deployment => gang.replicas.forget(api),
            OwnerKind::User => {
                let pods: Vec<String> = gang
                    .pods(api)
                    .filter(|pod| !has_ended(pod))
                    .filter_map(|pod| pod.metadata.name.clone())
                    .collect();
                for pod in pods {
                    let _ = api.delete(&key(Kind::Pod, &gang.shape.namespace, &pod), any);
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
            .get(fixtures::JOB_NAME)
            .or_else(|| labels.get(muster_api::keys::GANG))?;
        self.gangs.get(name).map(|gang| &gang.shape)
    }

    /// Indexes of a gang that its Job counts as done, whether or not their pods are still there.
    pub fn completed_indexes(&self, name: &str, api: &ApiServer) -> Vec<usize> {
        let shape = self.gangs.get(name).map(|gang| &gang.shape);
        let job = shape.and_then(|shape| api.get::<Job>(&shape.namespace, &shape.name));
        let status = job.and_then(|job| job.status.as_ref());
        let completed = status.and_then(|status| status.completed_indexes.as_deref());
        job::read_intervals(completed.unwrap_or_default())
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
        match gang.shape.owner {
            OwnerKind::Job(_) => {
                api.know(&fixtures::parent_uid(&gang.shape));
                let _ = api.create(fixtures::job(&gang.shape));
            }
            OwnerKind::User => {}
            OwnerKind::StatefulSet | OwnerKind::Deployment => {
                gang.replicas.uid = format!("set-{name}");
                api.know(&gang.replicas.uid);
            }
        }
    }

    fn make_pod(&mut self, name: &str, index: usize, api: &mut ApiServer) {
        let Some(gang) = self.gangs.get_mut(name) else {
            return;
        };
        gang.made.insert(index);
        let pod = format!("{name}-{index}");
        let _ = api.create(fixtures::pod(&gang.shape, &pod, index, None));
    }
}

/// Let go or admitted, and not running, nor is its init container.
fn is_stuck(pod: &Pod, admitted: &BTreeSet<&str>) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    (!is_gated(pod) || admitted.contains(uid))
        && pod.metadata.deletion_timestamp.is_none()
        && phase == Some("Pending")
        && !initializes(pod)
}

fn initializes(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let inits = status.and_then(|status| status.init_container_statuses.as_ref());
    inits.is_some_and(|inits| {
        let mut states = inits.iter().filter_map(|init| init.state.as_ref());
        states.any(|state| state.running.is_some())
    })
}

/// Whether the pod has a scheduling gate.
pub fn is_gated(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| {
        spec.scheduling_gates
            .as_ref()
            .is_some_and(|gates| !gates.is_empty())
    })
}
