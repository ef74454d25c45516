//! One gang that is submitted: its pods, what is missing of it, and what its Job says.

use std::collections::BTreeSet;

use k8s_openapi::api::{
    batch::v1::{Job, JobCondition, JobStatus},
    core::v1::Pod,
    resource::v1::ResourceClaim,
};

use super::{Step, is_gated};
use crate::{
    api_server::{ApiServer, has_ended},
    fixtures,
    scenario::{GangShape, OwnerKind},
};

/// A gang that is submitted, or will be.
#[derive(Debug)]
pub(super) struct Submission {
    pub(super) shape: GangShape,
    pub(super) state: State,
    /// Indices that a user has made a pod for.
    pub(super) made: BTreeSet<usize>,
    /// Whether a pod of it was ever let go.
    pub(super) released: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Planned,
    Submitted,
    /// Given up, or deleted by its user: nothing more is made.
    Cancelled,
}

impl Submission {
    pub(super) fn note_released(&mut self, api: &ApiServer) {
        let released = self.pods(api).any(|pod| !is_gated(pod) || has_ended(pod));
        self.released |= released;
    }

    pub(super) fn pods<'a>(&'a self, api: &'a ApiServer) -> impl Iterator<Item = &'a Pod> {
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

    pub(super) fn is_complete(&self, api: &ApiServer) -> bool {
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

    pub(super) fn steps(&self, api: &ApiServer, steps: &mut Vec<Step>) {
        let name = self.shape.name.clone();
        if let Some(shared) = &self.shape.shared
            && !self.is_complete(api)
            && api
                .get::<ResourceClaim>(&self.shape.team, &shared.name)
                .is_none()
        {
            steps.push(Step::MakeClaim(name.clone()));
        }
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
                if job.spec.as_ref().and_then(|spec| spec.suspend) == Some(true) {
                    let active = self
                        .pods(api)
                        .filter(|pod| !has_ended(pod) && pod.metadata.deletion_timestamp.is_none());
                    let names = active.filter_map(|pod| pod.metadata.name.clone());
                    steps.extend(names.map(|pod| Step::EndSuspended(name.clone(), pod)));
                } else {
                    let missing = (0..self.shape.pods)
                        .filter(|index| !done.contains(index) && !active.contains(index));
                    steps.extend(missing.map(|index| Step::MakePod(name.clone(), index)));
                }
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
            .filter_map(fixtures::index_of)
            .collect()
    }

    pub(super) fn job_status(&self, api: &ApiServer) -> JobStatus {
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
pub(super) fn intervals(indices: &BTreeSet<usize>) -> String {
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

fn succeeded(pod: &Pod) -> bool {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        == Some("Succeeded")
}
