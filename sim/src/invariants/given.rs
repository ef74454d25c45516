//! S3 of a container: what it is given is what its claims are allocated.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::ResourceClaim;
use muster_dra_driver::prepare::Unit;

use super::Violation;
use crate::{
    api_server::ApiServer,
    gpu_node::{Container, GpuNode},
    scheduler,
};

/// Containers that were there after the last step, by UID of their pod and when they began.
#[derive(Debug, Default)]
pub(super) struct Given {
    seen: BTreeSet<(String, u64)>,
}

impl Given {
    /// Judges the containers that began in the last step.
    pub(super) fn check(
        &mut self,
        api: &ApiServer,
        nodes: &BTreeMap<String, GpuNode>,
    ) -> Result<(), Violation> {
        let mut now = BTreeSet::new();
        for node in nodes.values() {
            for (pod, container) in &node.containers {
                let began = (pod.clone(), container.started_at);
                if !self.seen.contains(&began) {
                    check_container(api, node, pod, container)?;
                }
                now.insert(began);
            }
        }
        self.seen = now;
        Ok(())
    }
}

/// A claim that is not reserved for the pod any more says nothing: its pod was deleted by force, and it may be allocated
/// to another.
pub(crate) fn check_container(
    api: &ApiServer,
    node: &GpuNode,
    pod: &str,
    container: &Container,
) -> Result<(), Violation> {
    let inventory = node.inventory();
    let reserved = api.list::<ResourceClaim>();
    let reserved = reserved.filter(|claim| scheduler::is_reserved_for_uid(claim, pod));
    for claim in reserved {
        let uid = claim.metadata.uid.as_deref().unwrap_or_default();
        let allocated: BTreeSet<&Unit> = scheduler::allocated_devices(claim)
            .filter(|(pool, _)| *pool == node.shape.name)
            .filter_map(|(_, device)| inventory.get(device))
            .map(|facts| &facts.unit)
            .collect();
        let given = container.units.iter().filter(|(of, _)| of == uid);
        let given: BTreeSet<&Unit> = given.map(|(_, unit)| unit).collect();
        if given != allocated {
            let what = format!(
                "the container of pod {pod} on {} is given {given:?} for claim {uid}, which is allocated {allocated:?}",
                node.shape.name
            );
            return Err(Violation::new("S3", what));
        }
    }
    Ok(())
}
