//! The devices of pods that run, where their claims do not say: kube-scheduler allocates them before it binds a pod, so
//! a pod that is bound holds what it asks for.

use k8s_openapi::api::{core::v1::Pod, resource::v1::ResourceClaim};
use muster_cluster::pod::{bound_to, is_active};

use super::Completed;
use crate::{
    api_server::Stored,
    decide::devices::{self, Nodes, ReadObjects, Receivers, allocation_of},
};

impl ReadObjects for Completed<'_> {
    fn all<T: Stored>(&self) -> Vec<&T> {
        let objects = self.objects.values();
        let objects = objects.filter_map(|object| T::of(object));
        objects.map(AsRef::as_ref).collect()
    }

    fn find<T: Stored>(&self, namespace: &str, name: &str) -> Option<&T> {
        self.get(namespace, name)
    }
}

/// Allocates what the claims of bound pods ask for: the first free devices of their nodes that match.
pub(super) fn add(completed: &mut Completed<'_>) {
    let mut given = Vec::new();
    for pod in completed.all::<Pod>() {
        let Some(node) = bound_to(pod).filter(|_| is_active(pod)) else {
            continue;
        };
        for name in devices::claims_of(pod).into_iter().flatten() {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            let claim = completed.get::<ResourceClaim>(namespace, &name);
            if claim.is_some_and(|claim| allocation_of(claim).is_none()) {
                given.push((name, pod.clone(), node.to_owned()));
            }
        }
    }
    if given.is_empty() {
        return;
    }
    let mut nodes = Nodes::new(completed, Receivers::Running);
    for (name, pod, node) in given {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let Some(claim) = completed.get::<ResourceClaim>(namespace, &name) else {
            continue;
        };
        let mut claim = claim.clone();
        // Another pod may have been here that shares it.
        if allocation_of(&claim).is_none() {
            let allocations = nodes.allocate(completed, &[&claim], &node);
            let Some(allocation) = allocations.into_iter().flatten().next() else {
                completed.warnings.push(format!(
                    "pod {namespace}/{} runs on node {node}, which has no free devices as its ResourceClaim {name} asks for: \
                     what it holds is not counted; give the claim with its status.allocation",
                    pod.metadata.name.unwrap_or_default()
                ));
                continue;
            };
            devices::give(&mut claim, allocation);
        }
        devices::reserve(&mut claim, &pod);
        completed.put(claim);
    }
}
