//! The spec of the Gang object.

use std::sync::Arc;

use muster_api::{GangSpec, PodSet, RestartPolicy, keys};
use muster_engine as engine;

use super::{
    annotation,
    declaration::Limits,
    forming::{Forming, Size},
};
use crate::pod::ObservedPod;

impl Forming<'_, '_> {
    pub(super) fn spec(
        &self,
        members: &[&Arc<ObservedPod>],
        size: &Size,
        declared_tier: Option<String>,
        topology: Option<muster_api::TopologyRequest>,
        limits: Limits,
        min_count: Option<u32>,
    ) -> GangSpec {
        let base = self.gang.map_or_else(
            || GangSpec {
                group: self.declared_label().cloned(),
                start_timeout_seconds: self.start_timeout_seconds,
                tier: declared_tier,
                ..GangSpec::default()
            },
            |gang| gang.spec.clone(),
        );
        let start_timeout_seconds = limits.start_timeout_seconds.map(i64::from);
        let max_runtime_seconds = Self::max_runtime_seconds(members, limits, &base);
        let failure_grace_seconds = limits.failure_grace_seconds.map(i64::from);
        let progress_deadline_seconds = limits.progress_deadline_seconds.map(i64::from);
        let max_restarts = limits
            .max_restarts
            .and_then(|most| i32::try_from(most).ok());
        GangSpec {
            size: i32::try_from(size.pods).unwrap_or(i32::MAX),
            // What is left may be less.
            min_count: min_count
                .map(|least| i32::try_from(least.min(size.pods)).unwrap_or(i32::MAX))
                .or(base.min_count),
            pod_sets: self.pod_sets(members),
            topology,
            start_timeout_seconds: start_timeout_seconds.unwrap_or(base.start_timeout_seconds),
            max_runtime_seconds,
            restart: RestartPolicy {
                failure_grace_seconds: failure_grace_seconds.or(base.restart.failure_grace_seconds),
                max_restarts: max_restarts.or(base.restart.max_restarts),
                progress_deadline_seconds: progress_deadline_seconds
                    .or(base.restart.progress_deadline_seconds),
            },
            ..base
        }
    }

    /// For how long an attempt runs at most. What pods say of that is fixed with them. What their Job says is so once its Gang exists:
    /// somebody else may be promised the place by then, so it may be lowered, and not be raised.
    fn max_runtime_seconds(
        members: &[&Arc<ObservedPod>],
        limits: Limits,
        base: &GangSpec,
    ) -> Option<i64> {
        let said = limits.max_runtime_seconds.map(i64::from);
        let say = |pod: &&Arc<ObservedPod>| annotation(pod, keys::MAX_RUNTIME_SECONDS).is_some();
        if said.is_some() && members.iter().any(say) {
            return said;
        }
        said.into_iter().chain(base.max_runtime_seconds).min()
    }

    /// Pods that ask for the same thing, in the order of their first rank; none while not all is understood.
    fn pod_sets(&self, members: &[&Arc<ObservedPod>]) -> Vec<PodSet> {
        let mut sets: Vec<(Shape, i32)> = Vec::new();
        for pod in members {
            let Some(Ok(request)) = self.request(pod) else {
                return Vec::new();
            };
            let shape = Shape::of(&request.pod);
            match sets.iter_mut().find(|(known, _)| *known == shape) {
                Some((_, count)) => *count += 1,
                None => sets.push((shape, 1)),
            }
        }
        let is_one = sets.len() == 1;
        // From a borrowed list: an owned one would be collected in place, with all of its room.
        sets.iter()
            .enumerate()
            .map(|(index, (_, count))| PodSet {
                name: if is_one {
                    "main".to_owned()
                } else {
                    format!("set-{index}")
                },
                count: *count,
            })
            .collect()
    }
}

/// What a pod asks for, whoever it is.
#[derive(PartialEq, Eq)]
struct Shape {
    resources: engine::PodResources,
    filter: engine::NodeFilterId,
    claims: Vec<(Vec<engine::DeviceRequest>, Vec<engine::Constraint>)>,
}

impl Shape {
    fn of(pod: &engine::Pod) -> Self {
        let claims = pod.claims.iter();
        Self {
            resources: pod.resources.clone(),
            filter: pod.filter,
            claims: claims
                .map(|claim| (claim.requests.clone(), claim.constraints.clone()))
                .collect(),
        }
    }
}
