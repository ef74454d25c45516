//! One gang that is submitted: who makes its pods, and what is missing of it.

use std::collections::BTreeSet;

use k8s_openapi::api::{core::v1::Pod, resource::v1::ResourceClaim};

use super::{Step, is_gated, job, replicas};
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
    /// What its Job's controllers remember.
    pub(super) job: job::Keeper,
    /// What its StatefulSet's or Deployment's controllers remember.
    pub(super) replicas: replicas::Keeper,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Planned,
    Submitted,
    /// Given up, or deleted by its user: nothing more is made.
    Cancelled,
    /// It served its time, and was deleted by its user.
    Served,
}

impl Submission {
    pub(super) fn new(shape: GangShape) -> Self {
        Self {
            shape,
            state: State::Planned,
            made: BTreeSet::new(),
            released: false,
            job: job::Keeper::default(),
            replicas: replicas::Keeper::default(),
        }
    }

    pub(super) fn note_released(&mut self, api: &ApiServer) {
        let released = self.pods(api).any(|pod| !is_gated(pod) || has_ended(pod));
        self.released |= released;
    }

    pub(super) fn pods<'a>(&'a self, api: &'a ApiServer) -> impl Iterator<Item = &'a Pod> {
        let name = self.shape.name.as_str();
        let label = match self.shape.owner {
            OwnerKind::Job(_) => fixtures::JOB_NAME,
            _ => muster_api::keys::GANG,
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
            OwnerKind::Job(_) => self.job.is_complete(&self.shape, api),
            OwnerKind::User => {
                self.made.len() == self.shape.pods
                    && self.pods(api).filter(|pod| has_ended(pod)).count() == self.shape.pods
            }
            OwnerKind::StatefulSet | OwnerKind::Deployment => self.state == State::Served,
        }
    }

    pub(super) fn steps(&mut self, now: u64, api: &ApiServer, steps: &mut Vec<Step>) {
        let name = self.shape.name.clone();
        if let Some(shared) = &self.shape.shared
            && !self.is_complete(api)
            && api
                .get::<ResourceClaim>(&self.shape.namespace, &shared.name)
                .is_none()
        {
            steps.push(Step::MakeClaim(name.clone()));
        }
        match self.shape.owner {
            OwnerKind::Job(_) => {
                let of_job = self.job.steps(now, &self.shape, api).into_iter();
                steps.extend(of_job.map(|step| Step::Job(name.clone(), step)));
            }
            OwnerKind::User => self.steps_of_user(api, steps),
            OwnerKind::StatefulSet | OwnerKind::Deployment => {
                let shape = self.shape.clone();
                let pods: Vec<Pod> = self.pods(api).cloned().collect();
                let pods: Vec<&Pod> = pods.iter().collect();
                self.replicas.look(now, &shape, &pods);
                let of_set = self.replicas.steps(now, &shape, &pods).into_iter();
                steps.extend(of_set.map(|step| Step::Replicas(name.clone(), step)));
            }
        }
    }

    /// What is left to do for a gang that its user deleted.
    pub(super) fn leave(&self, now: u64, api: &ApiServer, steps: &mut Vec<Step>) {
        if let OwnerKind::Job(_) = self.shape.owner {
            let of_job = self.job.steps(now, &self.shape, api).into_iter();
            let letting_go = of_job.filter(|step| matches!(step, job::Step::Release(_)));
            steps.extend(letting_go.map(|step| Step::Job(self.shape.name.clone(), step)));
        }
    }

    fn steps_of_user(&self, api: &ApiServer, steps: &mut Vec<Step>) {
        let name = &self.shape.name;
        let there: BTreeSet<usize> = self.pods(api).filter_map(fixtures::index_of).collect();
        let missing: Vec<usize> = (0..self.shape.pods)
            .filter(|index| !there.contains(index))
            .collect();
        let lost = missing.iter().any(|index| self.made.contains(index));
        let is_broken = self.pods(api).any(has_ended) && self.pods(api).any(is_gated);
        if (lost && self.released) || is_broken {
            steps.push(Step::CleanUp(name.clone()));
        } else {
            let missing = missing.into_iter();
            steps.extend(missing.map(|index| Step::MakePod(name.clone(), index)));
        }
    }

    pub(super) fn wakes_at(&self, api: &ApiServer) -> Option<u64> {
        match (self.state, self.shape.owner) {
            (State::Planned, _) => Some(self.shape.submitted_at),
            (State::Submitted, OwnerKind::Job(_)) => self.job.wakes_at(&self.shape, api),
            (State::Submitted, _) => self.replicas.wakes_at(&self.shape),
            (State::Cancelled | State::Served, _) => None,
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

pub(super) fn succeeded(pod: &Pod) -> bool {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        == Some("Succeeded")
}
