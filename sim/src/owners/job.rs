//! The Job controller, as far as gangs see it (kube-controller-manager 1.37, `pkg/controller/job`):
//!
//! * Its pods have a finalizer until they are counted. A pod that failed counts as a failure; so does one that is deleted,
//!   at once, unless only failed pods are replaced. Replacements wait 10 s after a failure, doubling, to 10 min.
//! * More failures than `backoffLimit`, a deadline that is over, or indexes that failed for good, and the Job has failed: its
//!   pods are deleted, and when all have ended it says so.
//! * Of a suspended Job active pods lose the finalizer and are deleted: they count as nothing, and its clock begins anew when
//!   it is resumed. A Job without `completions` of which a pod has succeeded is complete as soon as no pod is active.
//! * What controls the Job may make it anew.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::{
        batch::v1::{Job, JobCondition, JobSpec, JobStatus},
        core::v1::Pod,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use muster_cluster::object::Kind;

use super::{
    NotTheirOwn,
    submission::{intervals, succeeded},
};
use crate::{
    api_server::{ApiServer, Precondition, has_ended, key},
    fixtures::{self, TRACKING},
    scenario::{Counting, GangShape, JobShape, Parent},
};

const LEAST_BACKOFF_MILLISECONDS: u64 = 10_000;
const MOST_BACKOFF_MILLISECONDS: u64 = 600_000;
/// How often a `JobSet` makes its Job anew.
const RESTARTS: u32 = 2;

/// What the Job controller, and what controls the Job, remember of it.
#[derive(Debug, Default)]
pub(super) struct Keeper {
    made: u64,
    failures_in_a_row: u32,
    failed_at: u64,
    started_at: Option<u64>,
    failures_of_index: BTreeMap<usize, i32>,
    /// Counted failures that are pods which Muster had deleted.
    evicted: i32,
    /// Others of them that died of faults.
    excused: i32,
    /// Failures that were counted when it was found to have failed.
    ended_by: Option<Failures>,
    restarts: u32,
}

/// Failed pods that a Job counted.
#[derive(Clone, Copy, Debug)]
struct Failures {
    all: i32,
    /// Those that Muster deleted.
    evicted: i32,
    /// Others that died of faults.
    excused: i32,
}

/// A step about one Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Makes a pod, of an index where it counts by them.
    Make(usize),
    /// Deletes an active pod that it shall not have, and counts it as nothing.
    Withdraw(String),
    /// Deletes an active pod because the Job has failed.
    Delete(String),
    /// Lets go of a pod whose Job is over or gone.
    Release(String),
    /// Counts, and writes the Job's status.
    TellStatus,
    /// What controls the Job deletes it because it failed, or makes it again.
    Restart,
    /// What controls the Job resumes it: it never asked for a suspension.
    Resume,
}

impl Keeper {
    pub(super) fn steps(&self, now: u64, shape: &GangShape, api: &ApiServer) -> Vec<Step> {
        let Some(job) = api.get::<Job>(&shape.namespace, &shape.name) else {
            let mut steps = released(shape, api, None);
            if self.restarts > 0 {
                steps.push(Step::Restart);
            }
            return steps;
        };
        let mut steps = released(shape, api, job.metadata.uid.as_deref());
        if job.metadata.deletion_timestamp.is_some() || has_finished(job) {
            if self.may_restart(shape, job) {
                steps.push(Step::Restart);
            }
            return steps;
        }
        let spec = job.spec.clone().unwrap_or_default();
        let view = View::of(job, api);
        let names = |pods: &[&Pod], make: fn(String) -> Step| -> Vec<Step> {
            let names = pods.iter().filter_map(|pod| pod.metadata.name.clone());
            names.map(make).collect()
        };
        let next = self.next(now, shape, &spec, &view, job, api);
        if !next.counted.is_empty() || job.status.as_ref() != Some(&next.status) {
            steps.push(Step::TellStatus);
        }
        if has(job, "FailureTarget") {
            steps.extend(names(&view.active, Step::Delete));
        } else if is_suspended(&spec) {
            steps.extend(names(&view.active, Step::Withdraw));
            if shape.job().parent == Some(Parent::JobSet) {
                steps.push(Step::Resume);
            }
        } else {
            let (missing, surplus) = self.wanted(shape, &spec, &view);
            steps.extend(names(&surplus, Step::Withdraw));
            // What failed is counted before anything is made: the limit may be exceeded, and it backs off.
            let missing = Some(missing).filter(|_| next.counted.is_empty());
            let fresh = missing.into_iter().flatten();
            let fresh = fresh.filter(|index| self.may_make_at(shape.job(), *index) <= now);
            steps.extend(fresh.map(Step::Make));
        }
        steps
    }

    /// When time alone will make a step possible.
    pub(super) fn wakes_at(&self, shape: &GangShape, api: &ApiServer) -> Option<u64> {
        let job = api.get::<Job>(&shape.namespace, &shape.name)?;
        let spec = job.spec.as_ref().filter(|_| !has_finished(job))?;
        if is_suspended(spec) {
            return None;
        }
        let view = View::of(job, api);
        let (missing, _) = self.wanted(shape, spec, &view);
        let making = missing
            .into_iter()
            .map(|index| self.may_make_at(shape.job(), index));
        making.chain(self.deadline(spec)).min()
    }

    pub(super) fn perform(
        &mut self,
        now: u64,
        shape: &GangShape,
        step: &Step,
        api: &mut ApiServer,
        not_their_own: &NotTheirOwn,
    ) {
        let any = Precondition::default();
        let (namespace, name) = (shape.namespace.as_str(), shape.name.as_str());
        match step {
            Step::Make(index) => {
                self.made += 1;
                let job = api.get::<Job>(namespace, name);
                let uid = job.and_then(|job| job.metadata.uid.clone());
                let pod = match shape.job().counting {
                    Counting::Indexed => format!("{name}-{index}-{:03}", self.made),
                    Counting::WorkQueue => format!("{name}-{}", self.made),
                };
                let _ = api.create(fixtures::pod(shape, &pod, *index, uid.as_deref()));
            }
            Step::Withdraw(pod) => {
                release(api, namespace, pod);
                let _ = api.delete(&key(Kind::Pod, namespace, pod), any);
            }
            Step::Delete(pod) => {
                let _ = api.delete(&key(Kind::Pod, namespace, pod), any);
            }
            Step::Release(pod) => release(api, namespace, pod),
            Step::TellStatus => self.tell(now, shape, api, not_their_own),
            Step::Resume => {
                let _ = api.update::<Job>(namespace, name, any, |job| {
                    job.spec.get_or_insert_default().suspend = Some(false);
                });
            }
            Step::Restart => {
                if api.get::<Job>(namespace, name).is_some() {
                    self.restarts += 1;
                    let _ = api.delete(&key(Kind::Job, namespace, name), any);
                } else {
                    let (made, restarts) = (self.made, self.restarts);
                    *self = Self {
                        made,
                        restarts,
                        ..Self::default()
                    };
                    let _ = api.create(fixtures::job(shape));
                }
            }
        }
    }

    /// Whether the Job is over, and nobody will make it anew.
    pub(super) fn is_complete(&self, shape: &GangShape, api: &ApiServer) -> bool {
        let job = api.get::<Job>(&shape.namespace, &shape.name);
        job.is_some_and(|job| has_finished(job) && !self.may_restart(shape, job))
    }

    /// Why the Job should not have failed, if so: without the pods that Muster deleted its limit would not be exceeded; nor without those that died of
    /// faults, where Muster answers for them: it raises no limit of 0, and none of a Job that is controlled.
    pub(super) fn wronged(&self, shape: &GangShape, api: &ApiServer) -> Option<String> {
        let job = api.get::<Job>(&shape.namespace, &shape.name)?;
        let conditions = job.status.as_ref()?.conditions.as_ref()?;
        let is_exceeded = conditions
            .iter()
            .any(|condition| condition.reason.as_deref() == Some(BACKOFF_LIMIT_EXCEEDED));
        let Failures {
            all,
            evicted,
            excused,
        } = self.ended_by?;
        let limit = shape.job().backoff_limit;
        let bears_with_faults = limit > 0 && shape.job().parent != Some(Parent::JobSet);
        let excused = if bears_with_faults { excused } else { 0 };
        (is_exceeded && all - evicted - excused <= limit).then(|| {
            format!(
                "{}: {all} failures end it, {evicted} of them by Muster and {excused} by faults, of {limit}",
                shape.name
            )
        })
    }

    fn may_restart(&self, shape: &GangShape, job: &Job) -> bool {
        shape.job().parent == Some(Parent::JobSet) && has(job, "Failed") && self.restarts < RESTARTS
    }

    /// Indexes that lack a pod, and active pods that are too many.
    fn wanted<'a>(
        &self,
        shape: &GangShape,
        spec: &JobSpec,
        view: &View<'a>,
    ) -> (Vec<usize>, Vec<&'a Pod>) {
        let kept: &[&Pod] = if shape.job().replaces_failed_only {
            &view.terminating
        } else {
            &[]
        };
        if shape.job().counting == Counting::WorkQueue {
            let wanted = if view.succeeded_pods > 0 {
                0
            } else {
                shape.pods
            };
            let there = view.active.len() + kept.len();
            return ((there..wanted).collect(), Vec::new());
        }
        let failed_for_good = spec.backoff_limit_per_index;
        let is_over = |index: &usize| {
            let failures = self
                .failures_of_index
                .get(index)
                .copied()
                .unwrap_or_default();
            view.succeeded.contains(index) || failed_for_good.is_some_and(|most| failures > most)
        };
        let mut taken = BTreeSet::new();
        let mut surplus = Vec::new();
        for &pod in &view.active {
            match fixtures::index_of(pod) {
                Some(index) if !is_over(&index) && taken.insert(index) => {}
                _ => surplus.push(pod),
            }
        }
        taken.extend(kept.iter().copied().filter_map(fixtures::index_of));
        let missing = (0..shape.pods).filter(|index| !is_over(index) && !taken.contains(index));
        (missing.collect(), surplus)
    }

    fn may_make_at(&self, shape: &JobShape, index: usize) -> u64 {
        let failures = if shape.backoff_limit_per_index.is_some() {
            let failures = self.failures_of_index.get(&index).copied();
            u32::try_from(failures.unwrap_or_default()).unwrap_or_default()
        } else {
            self.failures_in_a_row
        };
        if failures == 0 {
            return 0;
        }
        let doubled = LEAST_BACKOFF_MILLISECONDS << (failures - 1).min(16);
        self.failed_at + doubled.min(MOST_BACKOFF_MILLISECONDS)
    }

    fn deadline(&self, spec: &JobSpec) -> Option<u64> {
        let seconds = u64::try_from(spec.active_deadline_seconds?).ok()?;
        Some(self.started_at? + seconds * 1_000)
    }

    /// What the status is to say, and which pods are counted by that.
    fn next(
        &self,
        now: u64,
        shape: &GangShape,
        spec: &JobSpec,
        view: &View<'_>,
        job: &Job,
        api: &ApiServer,
    ) -> Next {
        let before = job.status.clone().unwrap_or_default();
        let mut next = Next::default();
        let tracked = view.all.iter().filter(|pod| is_tracked(pod));
        for pod in tracked {
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            let is_deleted = pod.metadata.deletion_timestamp.is_some();
            if succeeded(pod) {
                next.counted.push((uid, pod.metadata.name.clone(), None));
            } else if has_ended(pod) || (is_deleted && !shape.job().replaces_failed_only) {
                next.counted.push((
                    uid,
                    pod.metadata.name.clone(),
                    fixtures::index_of(pod).or(Some(0)),
                ));
            }
        }
        let failures = next
            .counted
            .iter()
            .filter(|(_, _, failed)| failed.is_some());
        let mut failures_of_index = self.failures_of_index.clone();
        for index in failures.clone().filter_map(|(_, _, index)| *index) {
            *failures_of_index.entry(index).or_default() += 1;
        }
        let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
        let failed = before.failed.unwrap_or_default() + count(failures.count());
        let is_indexed = shape.job().counting == Counting::Indexed;
        let succeeded = if is_indexed {
            count(view.succeeded.len())
        } else {
            let counted = next
                .counted
                .iter()
                .filter(|(_, _, failed)| failed.is_none());
            before.succeeded.unwrap_or_default() + count(counted.count())
        };
        let lost: BTreeSet<usize> = failures_of_index
            .iter()
            .filter(|(_, times)| {
                spec.backoff_limit_per_index
                    .is_some_and(|most| **times > most)
            })
            .map(|(index, _)| *index)
            .collect();
        let is_suspended = is_suspended(spec);
        let past_deadline = self.deadline(spec).is_some_and(|at| at <= now) && !is_suspended;
        let pending = condition(&before, "FailureTarget").and_then(|it| it.reason.clone());
        let cause = pending.or_else(|| {
            let cause = if failed > spec.backoff_limit.unwrap_or(6) {
                BACKOFF_LIMIT_EXCEEDED
            } else if past_deadline {
                "DeadlineExceeded"
            } else if !lost.is_empty() && lost.len() + view.succeeded.len() >= shape.pods {
                "FailedIndexes"
            } else {
                return None;
            };
            Some(cause.to_owned())
        });
        let nothing_ends = view.active.is_empty() && view.terminating.is_empty();
        let is_done = view.active.is_empty()
            && if is_indexed {
                succeeded >= count(shape.pods)
            } else {
                succeeded > 0
            };
        let mut conditions = before.conditions.clone().unwrap_or_default();
        let mut say = |type_: &str, status: bool, reason: &str| {
            let status = if status { "True" } else { "False" };
            conditions.retain(|condition| condition.type_ != type_);
            conditions.push(JobCondition {
                type_: type_.to_owned(),
                status: status.to_owned(),
                reason: Some(reason.to_owned()),
                ..JobCondition::default()
            });
        };
        let was_suspended = condition(&before, "Suspended").is_some_and(|it| it.status == "True");
        next.started = before.start_time.is_some();
        if let Some(cause) = &cause {
            say("FailureTarget", true, cause);
            if nothing_ends {
                say("Failed", true, cause);
            }
        } else if is_done {
            say("SuccessCriteriaMet", true, "CompletionsReached");
            if nothing_ends {
                say("Complete", true, "CompletionsReached");
            }
        } else if is_suspended && !was_suspended {
            say("Suspended", true, "JobSuspended");
            next.started = false;
        } else if !is_suspended && was_suspended {
            say("Suspended", false, "JobResumed");
            next.restarts_clock = true;
        }
        if !is_suspended && !next.started {
            next.restarts_clock = true;
        }
        let some = |number: i32| Some(number).filter(|number| *number > 0);
        let is_over = cause.is_some() || is_done;
        next.status = JobStatus {
            active: some(if is_suspended || is_over {
                0
            } else {
                count(view.active.len())
            }),
            terminating: some(count(view.terminating.len())),
            succeeded: some(succeeded),
            failed: some(failed),
            completed_indexes: is_indexed.then(|| intervals(&view.succeeded)),
            failed_indexes: spec.backoff_limit_per_index.map(|_| intervals(&lost)),
            conditions: Some(conditions).filter(|it| !it.is_empty()),
            start_time: if next.restarts_clock {
                Some(Time(api.time()))
            } else {
                before.start_time.filter(|_| next.started)
            },
            ..JobStatus::default()
        };
        next
    }

    fn tell(
        &mut self,
        now: u64,
        shape: &GangShape,
        api: &mut ApiServer,
        not_their_own: &NotTheirOwn,
    ) {
        let Some(job) = api.get::<Job>(&shape.namespace, &shape.name) else {
            return;
        };
        let spec = job.spec.clone().unwrap_or_default();
        let next = self.next(now, shape, &spec, &View::of(job, api), job, api);
        if next.restarts_clock {
            self.started_at = Some(now);
        } else if !next.started {
            self.started_at = None;
        }
        if next.counted.iter().any(|(_, _, failed)| failed.is_none()) {
            self.failures_in_a_row = 0;
        }
        let failures = next.counted.iter();
        for (uid, index) in failures.filter_map(|(uid, _, index)| Some((uid, (*index)?))) {
            self.failures_in_a_row += 1;
            self.failed_at = now;
            *self.failures_of_index.entry(index).or_default() += 1;
            let is_evicted = not_their_own.evicted.contains(uid);
            self.evicted += i32::from(is_evicted);
            self.excused += i32::from(!is_evicted && not_their_own.excused.contains(uid));
        }
        let is_ending = condition(&next.status, "FailureTarget").is_some();
        if is_ending && self.ended_by.is_none() {
            self.ended_by = Some(Failures {
                all: next.status.failed.unwrap_or_default(),
                evicted: self.evicted,
                excused: self.excused,
            });
        }
        let any = Precondition::default();
        let _ = api.update::<Job>(&shape.namespace, &shape.name, any, |job| {
            job.status = Some(next.status);
        });
        for pod in next.counted.iter().filter_map(|(_, name, _)| name.as_ref()) {
            release(api, &shape.namespace, pod);
        }
    }
}

const BACKOFF_LIMIT_EXCEEDED: &str = "BackoffLimitExceeded";

/// What a status is to say.
#[derive(Default)]
struct Next {
    status: JobStatus,
    /// UIDs and names of the pods that are counted by it; of one that failed, the index.
    counted: Vec<(String, Option<String>, Option<usize>)>,
    /// Whether the clock of its deadline runs, and whether it begins anew.
    started: bool,
    restarts_clock: bool,
}

/// The pods of a Job.
struct View<'a> {
    all: Vec<&'a Pod>,
    active: Vec<&'a Pod>,
    terminating: Vec<&'a Pod>,
    /// Indexes that succeeded, counted or not.
    succeeded: BTreeSet<usize>,
    succeeded_pods: i32,
}

impl<'a> View<'a> {
    fn of(job: &Job, api: &'a ApiServer) -> Self {
        let uid = job.metadata.uid.as_deref().unwrap_or_default();
        let all: Vec<&Pod> = api
            .list::<Pod>()
            .filter(|pod| owner_of(pod) == Some(uid))
            .collect();
        let lives = all.iter().copied().filter(|pod| !has_ended(pod));
        let is_deleted = |pod: &&Pod| pod.metadata.deletion_timestamp.is_some();
        let (terminating, active) = lives.partition(is_deleted);
        let done = all
            .iter()
            .copied()
            .filter(|pod| succeeded(pod) && is_tracked(pod));
        let status = job.status.as_ref();
        let counted = status.and_then(|status| status.completed_indexes.as_deref());
        let before = status
            .and_then(|status| status.succeeded)
            .unwrap_or_default();
        let uncounted = done.clone().count();
        Self {
            active,
            terminating,
            succeeded: done
                .filter_map(fixtures::index_of)
                .chain(read_intervals(counted.unwrap_or_default()))
                .collect(),
            succeeded_pods: before + i32::try_from(uncounted).unwrap_or_default(),
            all,
        }
    }
}

/// Reads what [`intervals`] writes.
pub(super) fn read_intervals(text: &str) -> Vec<usize> {
    let parts = text.split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
    });
    parts.flatten().collect()
}

/// Pods with a finalizer whose Job is over or gone.
fn released(shape: &GangShape, api: &ApiServer, job: Option<&str>) -> Vec<Step> {
    let over = api
        .get::<Job>(&shape.namespace, &shape.name)
        .is_none_or(|job| has_finished(job) || job.metadata.deletion_timestamp.is_some());
    let tracked = api.list::<Pod>().filter(|pod| is_tracked(pod));
    let of_it = tracked.filter(|pod| fixtures::job_of(pod) == Some(shape.name.as_str()));
    let orphans = of_it.filter(|pod| over || owner_of(pod) != job);
    let names = orphans.filter_map(|pod| pod.metadata.name.clone());
    names.map(Step::Release).collect()
}

fn release(api: &mut ApiServer, namespace: &str, pod: &str) {
    let _ = api.update::<Pod>(namespace, pod, Precondition::default(), |pod| {
        let finalizers = pod.metadata.finalizers.take().unwrap_or_default();
        let left: Vec<String> = finalizers.into_iter().filter(|it| it != TRACKING).collect();
        pod.metadata.finalizers = Some(left).filter(|left| !left.is_empty());
    });
}

fn is_tracked(pod: &Pod) -> bool {
    let finalizers = pod.metadata.finalizers.as_ref();
    finalizers.is_some_and(|finalizers| finalizers.iter().any(|it| it == TRACKING))
}

fn owner_of(pod: &Pod) -> Option<&str> {
    let owners = pod.metadata.owner_references.as_ref()?;
    owners.first().map(|owner| owner.uid.as_str())
}

fn is_suspended(spec: &JobSpec) -> bool {
    spec.suspend == Some(true)
}

fn condition<'a>(status: &'a JobStatus, type_: &str) -> Option<&'a JobCondition> {
    let mut conditions = status.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == type_)
}

fn has(job: &Job, type_: &str) -> bool {
    let status = job.status.as_ref();
    status
        .and_then(|status| condition(status, type_))
        .is_some_and(|condition| condition.status == "True")
}

/// Whether it is complete, or has failed.
pub(crate) fn has_finished(job: &Job) -> bool {
    has(job, "Complete") || has(job, "Failed")
}
