//! Pods at their creation: what is refused, and what is written into them.
//!
//! Nothing here is refused for lack of quota or place, and a set of pods that does not match its declared
//! size is not refused either: that queues, with its reason.

use std::collections::BTreeSet;

use json_patch::Patch;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use muster_api::{Reason, keys};
use muster_cluster::managed::ManagedPods;

use crate::{
    cache::Cache, declared::Declared, device_plugin, finding::Findings, min_count, patch,
    shorthand, vram,
};

/// What is written into managed pods.
#[derive(Clone, Debug)]
pub struct PodRules {
    /// Which pods are managed.
    pub managed: ManagedPods,
    /// Whether kube-scheduler has our extender: then pods get the marker by which it asks.
    pub extender: bool,
    /// Whether containers for which no GPU was asked get none of what their image names.
    pub void_devices: bool,
    /// Namespaces in which they may.
    pub excepted_namespaces: BTreeSet<String>,
    /// The scheduler for pods that name none; the cluster's default without it.
    pub scheduler_name: Option<String>,
}

impl PodRules {
    /// What a pod in `namespace` lacks. Empty for a pod that has it all: applying the patch of a patched pod changes
    /// nothing, so it does not matter how often the API server calls.
    ///
    /// A pod that names a node is left alone: gate and node together are refused by the API server with a
    /// message that helps nobody, while [`PodRules::check`] and policy (a) say why.
    pub fn patch(&self, pod: &Pod, namespace: &str, facts: &Cache) -> Patch {
        let Some(spec) = &pod.spec else {
            return Patch::default();
        };
        if !self.managed.is_managed(pod) || names_node(spec) {
            return Patch::default();
        }
        let declared = Declared::at("metadata", &pod.metadata);
        let said = vram::with_default(&declared, namespace, facts);
        let claim = said
            .as_ref()
            .and_then(|said| shorthand::claim(&said.shorthand, spec));
        let scheduler = self.scheduler_name.as_deref();
        let mut operations = Vec::new();
        operations.extend(patch::gate(spec));
        // Only with its claim: an annotation that says more than the claim would be refused later.
        let memory = said.as_ref().and_then(|said| said.default_memory);
        let memory = memory.filter(|_| claim.is_some());
        operations.extend(memory.map(patch::memory));
        operations.extend(claim.as_ref().and_then(|claim| patch::claim(spec, claim)));
        operations.extend(patch::resources(spec, self.extender, claim.as_ref()));
        operations.extend(scheduler.and_then(|wanted| patch::scheduler(spec, wanted)));
        if self.void_devices && !self.excepted_namespaces.contains(namespace) {
            operations.extend(patch::void(spec, &self.managed));
        }
        Patch(operations)
    }

    /// Checks a pod that is being created in `namespace`.
    pub fn check(&self, pod: &Pod, namespace: &str, facts: &Cache) -> Findings {
        let mut findings = Findings::default();
        if !self.managed.is_managed(pod) {
            return findings;
        }
        let declared = Declared::at("metadata", &pod.metadata);
        declared.check(namespace, facts, &mut findings);
        let spec = pod.spec.as_ref();
        shorthand::check(&declared, spec, "spec", &facts.gpus, &mut findings);
        device_plugin::check(pod, &declared, &self.managed, &mut findings);
        let asking = vram::Asking {
            declared: &declared,
            spec,
            spec_path: "spec",
            namespace,
        };
        let resources = device_plugin::resources(pod, &self.managed);
        vram::check(&asking, &resources, facts, &mut findings);
        check_node_name(pod, &mut findings);
        check_membership(pod, &declared, &mut findings);
        findings
    }
}

fn names_node(spec: &PodSpec) -> bool {
    spec.node_name
        .as_deref()
        .is_some_and(|node| !node.is_empty())
}

fn check_node_name(pod: &Pod, findings: &mut Findings) {
    if pod.spec.as_ref().is_some_and(names_node) {
        findings.error(
            Reason::NotPermitted,
            "spec.nodeName",
            "a pod that may hold devices is placed by Muster and kube-scheduler: use spec.nodeSelector or node affinity",
        );
    }
}

/// A bare pod says itself how large its gang is; for a pod of a Job the Job may say it.
fn check_membership(pod: &Pod, declared: &Declared<'_>, findings: &mut Findings) {
    let of_job = pod.metadata.owner_references.iter().flatten().any(|owner| {
        owner.controller == Some(true)
            && owner.kind == "Job"
            && owner.api_version.starts_with("batch/")
    });
    min_count::check_of_pod(declared, of_job, findings);
    if of_job {
        return;
    }
    let labelled = declared.label(keys::GANG).is_some();
    let sized = declared.annotation(keys::GANG_SIZE).is_some();
    if labelled && !sized {
        findings.error(
            Reason::InvalidValue,
            declared.annotation_path(keys::GANG_SIZE),
            format!(
                "is required with the label {}: the number of pods of the gang, 1 to {}",
                keys::GANG,
                keys::MAX_GANG_SIZE
            ),
        );
    }
    if sized && !labelled && declared.gang_size() != Some(1) {
        findings.warn(format!(
            "{} has no effect without the label {}: the pod is a gang of one",
            declared.annotation_path(keys::GANG_SIZE),
            keys::GANG
        ));
    }
}

#[cfg(test)]
mod tests;
