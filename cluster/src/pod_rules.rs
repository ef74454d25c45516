//! Rules of a pod that the planner does not model.
//!
//! Those by which kube-scheduler would refuse a planned node for certain pods are not understood, so
//! that a gang never starts half; those that only may matter are named to people and let pass.

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use muster_api::keys;

use crate::{pod_terms, shorthand::Shorthand, unsupported_field::UnsupportedField};

/// The first rule by which the planner could plan a node that kube-scheduler then refuses, if there
/// is one: required affinity to other pods, spreading that must hold, a shorthand that was not turned into a claim.
pub fn unsupported(pod: &Pod) -> Option<UnsupportedField> {
    let spec = pod.spec.as_ref()?;
    pod_affinity(pod, spec)
        .or_else(|| must_spread(spec))
        .or_else(|| shorthand(pod, spec))
}

/// Fields that may matter to kube-scheduler and that the planner does not look at.
pub fn unmodelled(pod: &Pod) -> Vec<String> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let mut fields = Vec::new();
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        if volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some() {
            fields.push(format!(
                "spec.volumes[{index}] ({}): where its volume can be reached is not looked at",
                volume.name
            ));
        }
    }
    fields.dedup();
    fields
}

/// Whether the pod carries the marker, which only the webhook puts there.
pub fn is_marked(pod: &Pod) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers
        .filter_map(|container| container.resources.as_ref()?.limits.as_ref())
        .any(|limits| limits.contains_key(keys::MARKER_RESOURCE))
}

fn pod_affinity(pod: &Pod, spec: &PodSpec) -> Option<UnsupportedField> {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let why = "which other pods must or must not be near is not planned; the gang itself is placed by its topology, so leave this out or make it preferred";
    let attracts = spec.affinity.as_ref().and_then(|affinity| {
        let required = &affinity
            .pod_affinity
            .as_ref()?
            .required_during_scheduling_ignored_during_execution;
        required.as_ref().filter(|terms| !terms.is_empty())
    });
    if attracts.is_some() {
        let field = format!("spec.affinity.podAffinity.{required}");
        return Some(UnsupportedField::new(field, why));
    }
    let index = pod_terms::required(pod).position(|term| !pod_terms::is_about_itself(pod, term))?;
    Some(UnsupportedField::new(
        format!("spec.affinity.podAntiAffinity.{required}[{index}]"),
        format!(
            "{why} (planned is one rule: pods like this one stay off its node, by topologyKey kubernetes.io/hostname)"
        ),
    ))
}

fn must_spread(spec: &PodSpec) -> Option<UnsupportedField> {
    let constraints = spec.topology_spread_constraints.as_deref()?;
    let position = constraints
        .iter()
        .position(|constraint| constraint.when_unsatisfiable == "DoNotSchedule")?;
    Some(UnsupportedField::new(
        format!("spec.topologySpreadConstraints[{position}].whenUnsatisfiable"),
        "spreading that must hold is not planned; use ScheduleAnyway",
    ))
}

/// The webhook turns the shorthand into a claim; a pod that came past it has none.
fn shorthand(pod: &Pod, spec: &PodSpec) -> Option<UnsupportedField> {
    let shorthand = match Shorthand::of_pod(pod) {
        Ok(shorthand) => shorthand?,
        Err(error) => return Some(error),
    };
    let mut claims = spec.resource_claims.iter().flatten();
    // Whether its template is the one that is meant is judged with what was made of it (`Index::check_shorthand`).
    let reference = shorthand.reference();
    if claims
        .any(|claim| claim.name == reference.name && claim.resource_claim_template_name.is_some())
    {
        return None;
    }
    let annotations = pod.metadata.annotations.as_ref()?;
    let key = keys::SHORTHAND
        .iter()
        .find(|key| annotations.contains_key(**key))?;
    Some(UnsupportedField::new(
        format!("metadata.annotations[{key}]"),
        "no claim was made from it; create the pod anew, or give it spec.resourceClaims instead",
    ))
}
