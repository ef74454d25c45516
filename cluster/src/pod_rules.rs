//! Rules of a pod that the planner does not model.
//!
//! Those by which kube-scheduler would refuse a planned node for certain pods are not understood, so
//! that a gang never starts half; those that only may matter are named to people and let pass.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use muster_api::keys;

use crate::{
    managed::ManagedPods, quantity, shorthand::Shorthand, unsupported_field::UnsupportedField,
};

/// The first rule by which the planner could plan a node that kube-scheduler then refuses, if there
/// is one: host ports, required affinity between pods, spreading that must hold, devices of a device
/// plugin, a shorthand that was not turned into a claim.
pub fn unsupported(pod: &Pod, managed: &ManagedPods) -> Option<UnsupportedField> {
    let spec = pod.spec.as_ref()?;
    host_port(spec)
        .or_else(|| pod_affinity(spec))
        .or_else(|| must_spread(spec))
        .or_else(|| device_plugin(spec, managed))
        .or_else(|| shorthand(pod, spec))
}

/// Fields that may matter to kube-scheduler and that the planner does not look at.
pub fn unmodelled(pod: &Pod, managed: &ManagedPods) -> Vec<String> {
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
    for (path, container) in containers(spec) {
        for name in resource_names(container) {
            let modelled = matches!(name.as_str(), "cpu" | "memory" | keys::MARKER_RESOURCE)
                || managed.stands_for_devices(name);
            if !modelled {
                fields.push(format!(
                    "{path}.resources ({name}): how much of it is free on a node is not looked at"
                ));
            }
        }
    }
    fields.dedup();
    fields
}

fn host_port(spec: &PodSpec) -> Option<UnsupportedField> {
    containers(spec).find_map(|(path, container)| {
        let ports = container.ports.as_deref().unwrap_or_default();
        let position = ports
            .iter()
            .position(|port| port.host_port.unwrap_or(0) != 0)?;
        Some(UnsupportedField::new(
            format!("{path}.ports[{position}].hostPort"),
            "ports of the node are not planned; use the pod's own address",
        ))
    })
}

fn pod_affinity(spec: &PodSpec) -> Option<UnsupportedField> {
    let affinity = spec.affinity.as_ref()?;
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let is_some = |terms: Option<usize>| terms.is_some_and(|count| count > 0);
    let attracts = affinity.pod_affinity.as_ref().map(|a| {
        a.required_during_scheduling_ignored_during_execution
            .as_ref()
            .map_or(0, Vec::len)
    });
    let repels = affinity.pod_anti_affinity.as_ref().map(|a| {
        a.required_during_scheduling_ignored_during_execution
            .as_ref()
            .map_or(0, Vec::len)
    });
    let field = if is_some(attracts) {
        "podAffinity"
    } else if is_some(repels) {
        "podAntiAffinity"
    } else {
        return None;
    };
    Some(UnsupportedField::new(
        format!("spec.affinity.{field}.{required}"),
        "what must stand beside which pod is not planned; the gang itself is placed by its topology, so leave this out or make it preferred",
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

fn device_plugin(spec: &PodSpec, managed: &ManagedPods) -> Option<UnsupportedField> {
    containers(spec).find_map(|(path, container)| {
        let resources = container.resources.as_ref()?;
        let lists = [("limits", &resources.limits), ("requests", &resources.requests)];
        lists.into_iter().find_map(|(list, amounts)| {
            let (name, _) = amounts.iter().flatten().find(|(name, amount)| {
                managed.stands_for_devices(name)
                    && quantity::units(&amount.0, "").map_or(true, |asked| asked > 0)
            })?;
            Some(UnsupportedField::new(
                format!("{path}.resources.{list}[{name}]"),
                "devices are planned and charged by ResourceClaims only; ask for them by spec.resourceClaims",
            ))
        })
    })
}

/// The webhook turns the shorthand into a claim; a pod that came past it has none.
fn shorthand(pod: &Pod, spec: &PodSpec) -> Option<UnsupportedField> {
    let shorthand = match Shorthand::of_pod(pod) {
        Ok(shorthand) => shorthand?,
        Err(error) => return Some(error),
    };
    let mut claims = spec.resource_claims.iter().flatten();
    if claims.any(|claim| *claim == shorthand.reference()) {
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

fn containers(spec: &PodSpec) -> impl Iterator<Item = (String, &Container)> {
    let init = spec.init_containers.iter().flatten().enumerate();
    spec.containers
        .iter()
        .enumerate()
        .map(|(index, container)| (format!("spec.containers[{index}]"), container))
        .chain(init.map(|(index, container)| (format!("spec.initContainers[{index}]"), container)))
}

fn resource_names(container: &Container) -> impl Iterator<Item = &String> {
    container.resources.iter().flat_map(|resources| {
        let requests = resources.requests.iter().flatten();
        // A limit without a request is the request; with one, the request counts.
        let limits = resources.limits.iter().flatten().filter(|(name, _)| {
            resources
                .requests
                .as_ref()
                .is_none_or(|requests| !requests.contains_key(*name))
        });
        requests.chain(limits).map(|(name, _)| name)
    })
}
