//! What admission and the claim controller add to pods: gates, the claims of shorthands, claims of templates.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{
    core::v1::{
        Container, Pod, PodResourceClaimStatus, PodSchedulingGate, PodStatus,
        ResourceClaim as ContainerClaim, ResourceRequirements,
    },
    resource::v1::ResourceClaim,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use muster_api::keys;
use muster_cluster::{
    pod::{bound_to, is_active},
    shorthand::{CLAIM_NAME, Shorthand},
};

use super::Completed;
use crate::decide::settle;

/// Completes every pod.
pub(super) fn complete(completed: &mut Completed<'_>) {
    let config = settle::index_config();
    // Claims of template that exist already, by UID of their pod and name in it.
    let mut made: BTreeMap<(String, String), String> = BTreeMap::new();
    for claim in completed.list::<ResourceClaim>() {
        let annotations = claim.metadata.annotations.unwrap_or_default();
        let Some(name) = annotations.get(keys::POD_CLAIM_NAME) else {
            continue;
        };
        for owner in claim.metadata.owner_references.into_iter().flatten() {
            made.insert(
                (owner.uid, name.clone()),
                claim.metadata.name.clone().unwrap_or_default(),
            );
        }
    }
    let mut missing = BTreeSet::new();
    for mut pod in completed.list::<Pod>() {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let status = pod.status.get_or_insert_with(PodStatus::default);
        let bound = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.node_name.as_ref())
            .is_some();
        let phase = if bound { "Running" } else { "Pending" };
        status.phase.get_or_insert_with(|| phase.to_owned());
        let ours = config.managed.is_managed(&pod)
            && !config.excluded_namespaces.contains(&namespace)
            && is_active(&pod);
        if ours {
            admit(&mut pod);
        }
        if is_active(&pod) {
            make_claims(completed, &mut pod, &made, &mut missing);
        }
        completed.put(pod);
    }
    completed.warnings.extend(missing);
}

/// What the webhook does, or did. A pod that is bound, or was let go by a controller, stays so.
fn admit(pod: &mut Pod) {
    let annotations = pod.metadata.annotations.clone().unwrap_or_default();
    let shorthand = Shorthand::read(Some(&annotations)).ok().flatten();
    let is_bound = bound_to(pod).is_some();
    let Some(spec) = &mut pod.spec else { return };
    if let Some(shorthand) = shorthand {
        let reference = shorthand.reference();
        let claims = spec.resource_claims.get_or_insert_default();
        if !claims.iter().any(|claim| claim.name == CLAIM_NAME) {
            claims.push(reference);
            let named = shorthand.container();
            let mut containers = spec
                .containers
                .iter_mut()
                .chain(spec.init_containers.iter_mut().flatten());
            if let Some(container) =
                containers.find(|container| named.is_none_or(|name| container.name == name))
            {
                give_claim(container);
            }
        }
    }
    if is_bound {
        return;
    }
    let gates = spec.scheduling_gates.get_or_insert_default();
    let is_gated = gates.iter().any(|gate| gate.name == keys::ADMISSION_GATE);
    if !is_gated && !annotations.contains_key(keys::ATTEMPT) {
        gates.push(PodSchedulingGate {
            name: keys::ADMISSION_GATE.to_owned(),
        });
    }
}

fn give_claim(container: &mut Container) {
    let resources = container
        .resources
        .get_or_insert_with(ResourceRequirements::default);
    resources
        .claims
        .get_or_insert_default()
        .push(ContainerClaim {
            name: CLAIM_NAME.to_owned(),
            request: None,
        });
}

/// What the claim controller does: a claim for each template that the pod names.
fn make_claims(
    completed: &mut Completed<'_>,
    pod: &mut Pod,
    made: &BTreeMap<(String, String), String>,
    missing: &mut BTreeSet<String>,
) {
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let pod_name = pod.metadata.name.clone().unwrap_or_default();
    let pod_uid = pod.metadata.uid.clone().unwrap_or_else(|| {
        super::identity::uid(&crate::api_server::key(
            muster_cluster::object::Kind::Pod,
            &namespace,
            &pod_name,
        ))
    });
    pod.metadata.uid = Some(pod_uid.clone());
    let own = Shorthand::read(pod.metadata.annotations.as_ref())
        .ok()
        .flatten()
        .map(|shorthand| shorthand.template(&namespace));
    let named: Vec<(String, String)> = pod
        .spec
        .iter()
        .flat_map(|spec| spec.resource_claims.iter().flatten())
        .filter_map(|claim| {
            let template = claim.resource_claim_template_name.clone()?;
            Some((claim.name.clone(), template))
        })
        .collect();
    for (claim_name, template_name) in named {
        let statuses = pod
            .status
            .get_or_insert_with(PodStatus::default)
            .resource_claim_statuses
            .get_or_insert_default();
        if statuses.iter().any(|status| status.name == claim_name) {
            continue;
        }
        let object = if let Some(object) = made.get(&(pod_uid.clone(), claim_name.clone())) {
            object.clone()
        } else {
            let given = completed
                .templates
                .get(&(namespace.clone(), template_name.clone()));
            let by_shorthand = own
                .as_ref()
                .filter(|own| own.metadata.name.as_ref() == Some(&template_name));
            let Some(template) = given.or(by_shorthand) else {
                missing.insert(format!(
                    "ResourceClaimTemplate {namespace}/{template_name} is not given: its pods wait for their claims"
                ));
                continue;
            };
            let spec = template.spec.clone().unwrap_or_default();
            let mut metadata = spec.metadata.unwrap_or_default();
            let mut name = format!("{pod_name}-{claim_name}");
            while completed.has::<ResourceClaim>(&namespace, &name) {
                name += "-x";
            }
            metadata = ObjectMeta {
                namespace: Some(namespace.clone()),
                name: Some(name.clone()),
                owner_references: Some(vec![OwnerReference {
                    api_version: "v1".to_owned(),
                    kind: "Pod".to_owned(),
                    name: pod_name.clone(),
                    uid: pod_uid.clone(),
                    controller: Some(true),
                    block_owner_deletion: Some(true),
                }]),
                ..metadata
            };
            completed.put(ResourceClaim {
                metadata,
                spec: spec.spec.unwrap_or_default().into(),
                status: None,
            });
            name
        };
        statuses.push(PodResourceClaimStatus {
            name: claim_name,
            resource_claim_name: Some(object),
        });
    }
}
