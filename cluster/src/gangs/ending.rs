//! Whether a gang has ended: as its Job says, else as all its pods say.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::Job;

use super::{
    Group, age_order, controlling_job, forming::Forming, is_job, is_terminal, name, phase,
};
use crate::{formed::Ended, pod::ObservedPod};

impl Forming<'_, '_> {
    pub(super) fn ended(&self, job: Option<&Job>) -> Option<Ended> {
        let is_single = matches!(self.group, Some(Group::Single { .. }));
        let all_of_jobs = !is_single
            && (self.pods.iter().all(|pod| controlling_job(pod).is_some()))
            && (!self.pods.is_empty() || self.gang_owner().is_some_and(is_job));
        if all_of_jobs {
            return self.ended_by_jobs(job);
        }
        let counts = |pod: &&ObservedPod| self.places.is_none() || self.place(pod).is_some();
        let considered: Vec<&ObservedPod> =
            self.pods.iter().map(AsRef::as_ref).filter(counts).collect();
        if considered.is_empty() && (is_single || self.owner().is_none()) {
            return Some(Ended::Failed("all its pods are gone".to_owned()));
        }
        pods_ended(&considered)
    }

    /// Why a Job failed, and what the pod says that failed last: the Job says only that it gave up.
    fn with_last_failure(&self, why: String) -> String {
        let failed = self.pods.iter().filter(|pod| phase(pod) == "Failed");
        let last = failed.max_by(|a, b| age_order(a).cmp(&age_order(b)));
        match last.filter(|pod| pod.failure().is_some()) {
            Some(pod) => format!("{why}; {}", why_failed(pod)),
            None => why,
        }
    }

    /// The gang ends with the Jobs that make its pods: while one of them runs, it may make more.
    fn ended_by_jobs(&self, job: Option<&Job>) -> Option<Ended> {
        let jobs = self.jobs;
        let mut found: BTreeMap<&str, Option<&Job>> = self
            .pods
            .iter()
            .filter_map(|pod| controlling_job(pod))
            .map(|owner| {
                (
                    owner.uid.as_str(),
                    jobs(&self.key.namespace, &owner.name, &owner.uid),
                )
            })
            .collect();
        if found.is_empty() {
            found.insert("", job);
        }
        if found.values().any(Option::is_none) {
            let all_gone = self.pods.iter().all(is_terminal);
            return all_gone.then(|| self.ended_without_job());
        }
        let ends: Vec<Ended> = found
            .values()
            .flatten()
            .map(|job| job_ended(job))
            .collect::<Option<_>>()?;
        let failed = ends.into_iter().find_map(|end| match end {
            Ended::Failed(why) => Some(why),
            Ended::Finished => None,
        });
        Some(failed.map_or(Ended::Finished, |why| {
            Ended::Failed(self.with_last_failure(why))
        }))
    }
}

impl Forming<'_, '_> {
    /// All pods are terminal, and a Job of theirs is gone. One that is deleted as soon as it is complete (`ttlSecondsAfterFinished: 0`) may
    /// never be seen complete: then its pods tell how it went, if all of the gang are there.
    fn ended_without_job(&self) -> Ended {
        let size = self.gang.map_or(1, |gang| gang.spec.size);
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let succeeded = self.pods.iter().filter(|pod| phase(pod) == "Succeeded");
        if succeeded.count() >= size {
            return Ended::Finished;
        }
        Ended::Failed(self.with_last_failure("its Job is gone".to_owned()))
    }
}

/// How the Job ended, if it has.
fn job_ended(job: &Job) -> Option<Ended> {
    let conditions = job
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    for condition in conditions.filter(|condition| condition.status == "True") {
        match condition.type_.as_str() {
            "Complete" => return Some(Ended::Finished),
            "Failed" => {
                let reason = condition.reason.as_deref().unwrap_or("Failed");
                let message = condition.message.as_deref().unwrap_or_default();
                return Some(Ended::Failed(format!(
                    "its Job failed: {reason}: {message}"
                )));
            }
            _ => {}
        }
    }
    None
}

/// How the pods ended, if there are any and all have.
fn pods_ended(pods: &[&ObservedPod]) -> Option<Ended> {
    if pods.is_empty() || !pods.iter().all(is_terminal) {
        return None;
    }
    let failed = pods.iter().find(|pod| phase(pod) == "Failed");
    Some(failed.map_or(Ended::Finished, |pod| Ended::Failed(why_failed(pod))))
}

/// What the pod says about its failure: its reason and message, else the exit code of a container.
fn why_failed(pod: &ObservedPod) -> String {
    let name = name(pod);
    match pod.failure() {
        Some(why) => format!("pod {name} failed: {why}"),
        None => format!("pod {name} failed"),
    }
}
