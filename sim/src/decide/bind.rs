//! kube-scheduler, of which decisions depend on little: it binds each pod that was let go to the node that it is pinned to, after it
//! has allocated the pod's claims there. Nobody else writes meanwhile: it sees what is stored.
//!
//! A pod whose claims find no devices stays unbound, and is tried again when a claim loses some.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use k8s_openapi::api::{
    core::v1::{Pod, PodStatus},
    resource::v1::{AllocationResult, ResourceClaim},
};
use muster_cluster::object::ObjectKey;

use super::devices::{self, Nodes, Receivers, allocation_of};
use crate::{
    api_server::{ApiServer, Precondition, has_ended, is_bound},
    owners::is_gated,
    scheduler::pinned_node,
};

/// What it knows of the cluster.
#[derive(Default)]
pub(super) struct Scheduler {
    /// Read at the first pod with claims.
    nodes: Option<Nodes>,
    /// Pods that could not be bound, and why.
    waiting: BTreeMap<ObjectKey, String>,
    /// Whether something was released since those were tried.
    may_help: bool,
}

impl Scheduler {
    /// A claim changed, or is gone.
    pub(super) fn note(&mut self, key: &ObjectKey, claim: Option<&ResourceClaim>) {
        if let Some(nodes) = &mut self.nodes {
            self.may_help |= nodes.note(key, claim);
        }
    }

    /// Binds pods that wait for it, in this order, and those that waited longer first. Others are left alone.
    pub(super) fn bind(&mut self, api: &mut ApiServer, pods: Vec<ObjectKey>) {
        if std::mem::take(&mut self.may_help) {
            for pod in std::mem::take(&mut self.waiting).into_keys() {
                self.bind_one(api, pod);
            }
        }
        for pod in pods {
            self.bind_one(api, pod);
        }
    }

    fn bind_one(&mut self, api: &mut ApiServer, key: ObjectKey) {
        self.waiting.remove(&key);
        let pod = api.get::<Pod>(&key.namespace, &key.name);
        let Some(pod) = pod.filter(|pod| is_to_bind(pod)).cloned() else {
            return;
        };
        let Some(node) = pinned_node(&pod) else {
            return;
        };
        if let Err(cause) = self.allocate(api, &pod, node) {
            self.waiting.insert(key, cause);
            return;
        }
        let any = Precondition::default();
        let _ = api.update::<Pod>(&key.namespace, &key.name, any, |pod| {
            if let Some(spec) = &mut pod.spec {
                spec.node_name = Some(node.to_owned());
            }
            let status = pod.status.get_or_insert_with(PodStatus::default);
            status.phase = Some("Running".to_owned());
        });
    }

    /// Allocates the pod's claims on the node, and reserves them. An error: why it cannot be; then no claim was written.
    fn allocate(&mut self, api: &mut ApiServer, pod: &Pod, node: &str) -> Result<(), String> {
        let names = devices::claims_of(pod);
        if names.is_empty() {
            return Ok(());
        }
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let nodes = self
            .nodes
            .get_or_insert_with(|| Nodes::new(&*api, Receivers::New));
        let mut claims = Vec::with_capacity(names.len());
        for name in names {
            let name = name.map_err(|entry| {
                format!("no ResourceClaim was made for its spec.resourceClaims[{entry}]")
            })?;
            let claim = api.get::<ResourceClaim>(namespace, &name);
            let claim = claim.ok_or_else(|| format!("there is no ResourceClaim {name}"))?;
            if claim.metadata.deletion_timestamp.is_some() {
                return Err(format!("its ResourceClaim {name} is being deleted"));
            }
            if allocation_of(claim).is_some_and(|allocation| !nodes.reaches(node, allocation)) {
                return Err(format!(
                    "its ResourceClaim {name} has devices of another node"
                ));
            }
            claims.push((name, claim));
        }
        let without: Vec<&ResourceClaim> = claims
            .iter()
            .map(|(_, claim)| *claim)
            .filter(|claim| allocation_of(claim).is_none())
            .collect();
        let Some(allocations) = nodes.allocate(&*api, &without, node) else {
            let asking: Vec<&str> = without
                .iter()
                .filter_map(|claim| claim.metadata.name.as_deref())
                .collect();
            return Err(format!(
                "the node has no free devices as its ResourceClaims {} ask for together; compare them with the node's \
                 ResourceSlices and with what other ResourceClaims are allocated there",
                asking.join(", ")
            ));
        };
        let mut allocations = allocations.into_iter();
        let claims: Vec<(String, Option<AllocationResult>)> = claims
            .into_iter()
            .map(|(name, claim)| {
                let is_without = allocation_of(claim).is_none();
                (name, is_without.then(|| allocations.next()).flatten())
            })
            .collect();
        for (name, allocation) in claims {
            let any = Precondition::default();
            let _ = api.update::<ResourceClaim>(namespace, &name, any, |claim| {
                if let Some(allocation) = allocation {
                    devices::give(claim, allocation);
                }
                devices::reserve(claim, pod);
            });
        }
        Ok(())
    }

    /// What is to be told of the pods that were let go and still have no node.
    pub(super) fn warnings(&self, api: &ApiServer) -> Vec<String> {
        let waiting = self.waiting.iter();
        let waiting = waiting.filter_map(|(key, cause)| {
            let pod = api.get::<Pod>(&key.namespace, &key.name);
            let node = pinned_node(pod.filter(|pod| is_to_bind(pod))?)?;
            let (namespace, name) = (&key.namespace, &key.name);
            Some(format!(
                "pod {namespace}/{name} is let go to node {node} and stays unbound: {cause}"
            ))
        });
        waiting.collect()
    }
}

/// Whether kube-scheduler is to bind the pod.
pub(super) fn is_to_bind(pod: &Pod) -> bool {
    let waits = !is_gated(pod) && !is_bound(pod) && !has_ended(pod);
    waits && pod.metadata.deletion_timestamp.is_none() && pinned_node(pod).is_some()
}
