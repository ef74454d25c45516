//! Objects that scenarios and the demo create: namespaces, Teams, claim templates, Jobs and pods whose
//! containers run the `rank` program.
//!
//! Everything carries a label, so that [`clear_workloads`] and [`clear_owners`] find it.

mod clearing;
mod owners;
mod rank_program;

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        batch::v1::Job,
        core::v1::{Container, Pod, PodSpec},
        resource::v1::{ResourceClaim, ResourceClaimTemplate},
    },
    apimachinery::pkg::api::resource::Quantity,
};
use muster_api::keys;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub use self::{
    clearing::{clear_owners, clear_workloads},
    owners::{
        cohort, flavor, flavor_of_resource, flavor_on, gpu_quota, namespace, team, team_of,
        team_of_sixteen, tier, topology,
    },
    rank_program::{RankProgram, RankSource, peers_directory, told_of_its_end},
};

/// Label of everything that a scenario makes.
const MADE_BY: (&str, &str) = ("muster-tests", "scenario");
/// Grace of pods, in seconds: the `rank` program ends at once.
const TERMINATION_GRACE_SECONDS: i64 = 3;

/// A pod's spec with one container; restarts nothing.
pub fn pod_spec(container: &Container) -> Result<PodSpec> {
    typed(json!({
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": TERMINATION_GRACE_SECONDS,
        "automountServiceAccountToken": false,
        "containers": [container],
    }))
}

/// Lets the pod's first container ask for so many units of a device plugin's resource, as most users write it: by limits alone.
#[must_use]
pub fn with_limit(mut spec: PodSpec, resource: &str, units: u32) -> PodSpec {
    if let Some(container) = spec.containers.first_mut() {
        let resources = container.resources.get_or_insert_default();
        let limits = resources.limits.get_or_insert_default();
        limits.insert(resource.to_owned(), Quantity(units.to_string()));
    }
    spec
}

/// Gives the pod a claim named `gpus`: this one, which exists by itself.
#[must_use]
pub fn with_claim(mut spec: PodSpec, claim: &str) -> PodSpec {
    let claim = k8s_openapi::api::core::v1::PodResourceClaim {
        name: "gpus".to_owned(),
        resource_claim_name: Some(claim.to_owned()),
        ..Default::default()
    };
    spec.resource_claims.get_or_insert_default().push(claim);
    spec
}

/// Gives the pod a claim named `gpus`, made from this template.
#[must_use]
pub fn with_claim_template(mut spec: PodSpec, template: &str) -> PodSpec {
    let claim = k8s_openapi::api::core::v1::PodResourceClaim {
        name: "gpus".to_owned(),
        resource_claim_template_name: Some(template.to_owned()),
        ..Default::default()
    };
    spec.resource_claims.get_or_insert_default().push(claim);
    spec
}

/// Lets the pod run on this node only.
#[must_use]
pub fn on_node(mut spec: PodSpec, node: &str) -> PodSpec {
    let selector = BTreeMap::from([("kubernetes.io/hostname".to_owned(), node.to_owned())]);
    spec.node_selector = Some(selector);
    spec
}

/// A pod.
pub fn pod(
    name: &str,
    labels: &[(&str, &str)],
    annotations: &[(&str, &str)],
    spec: &PodSpec,
) -> Result<Pod> {
    typed(json!({
        "metadata": {"name": name, "labels": made(labels), "annotations": map(annotations)},
        "spec": spec,
    }))
}

/// An Indexed Job of `ranks` pods that run side by side and are never retried.
pub fn indexed_job(
    name: &str,
    ranks: u32,
    annotations: &[(&str, &str)],
    spec: &PodSpec,
) -> Result<Job> {
    typed(json!({
        "metadata": {"name": name, "labels": made(&[]), "annotations": map(annotations)},
        "spec": {
            "completionMode": "Indexed",
            "completions": ranks,
            "parallelism": ranks,
            "backoffLimit": 0,
            "template": {"metadata": {"labels": made(&[])}, "spec": spec},
        },
    }))
}

/// The Job in a tier.
#[must_use]
pub fn in_tier(mut job: Job, tier: &str) -> Job {
    let labels = job.metadata.labels.get_or_insert_default();
    labels.insert(keys::TIER.to_owned(), tier.to_owned());
    job
}

/// A StatefulSet whose pods are one gang. They are made side by side: each starts only with all others.
pub fn gang_stateful_set(name: &str, ranks: u32, spec: &PodSpec) -> Result<StatefulSet> {
    let labels = made(&[(keys::GANG, name)]);
    let annotations = map(&[(keys::GANG_SIZE, &ranks.to_string())]);
    // A StatefulSet takes no other policy.
    let spec = PodSpec {
        restart_policy: Some("Always".to_owned()),
        ..spec.clone()
    };
    typed(json!({
        "metadata": {"name": name, "labels": made(&[])},
        "spec": {
            "serviceName": name,
            "replicas": ranks,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {keys::GANG: name}},
            "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec},
        },
    }))
}

/// A template of claims for `gpus` whole GPUs, with a CEL selector if one is given.
pub fn claim_template(
    name: &str,
    gpus: u32,
    selector: Option<&str>,
) -> Result<ResourceClaimTemplate> {
    typed(json!({
        "metadata": {"name": name, "labels": made(&[])},
        "spec": {"spec": claim_spec(gpus, selector)},
    }))
}

/// A template of claims for one slice of a GPU, with this CEL selector.
pub fn slice_template(name: &str, selector: &str) -> Result<ResourceClaimTemplate> {
    let request = json!({
        "name": "gpus",
        "exactly": {
            "deviceClassName": keys::DEVICE_CLASS_MIG,
            "allocationMode": "ExactCount",
            "count": 1,
            "selectors": [{"cel": {"expression": selector}}],
        },
    });
    typed(json!({
        "metadata": {"name": name, "labels": made(&[])},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }))
}

/// A claim for `gpus` whole GPUs that pods name.
pub fn claim(name: &str, gpus: u32) -> Result<ResourceClaim> {
    typed(json!({
        "metadata": {"name": name, "labels": made(&[])},
        "spec": claim_spec(gpus, None),
    }))
}

fn claim_spec(gpus: u32, selector: Option<&str>) -> Value {
    let selectors: Vec<Value> = selector
        .iter()
        .map(|expression| json!({"cel": {"expression": expression}}))
        .collect();
    json!({"devices": {"requests": [{
        "name": "gpus",
        "exactly": {
            "deviceClassName": keys::DEVICE_CLASS_GPU,
            "allocationMode": "ExactCount",
            "count": gpus,
            "selectors": selectors,
        },
    }]}})
}

fn made(labels: &[(&str, &str)]) -> BTreeMap<String, String> {
    let mut all = map(labels);
    all.insert(MADE_BY.0.to_owned(), MADE_BY.1.to_owned());
    all
}

fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    entries.iter().map(owned).collect()
}

fn typed<T: DeserializeOwned>(value: Value) -> Result<T> {
    serde_json::from_value(value).context("an object that a test builds has a wrong shape")
}
