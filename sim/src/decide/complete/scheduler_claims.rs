//! The claims that kube-scheduler made for bound pods, which ask for GPUs by the name of a resource.

use std::collections::BTreeSet;

use k8s_openapi::{
    api::{
        core::v1::{Pod, PodExtendedResourceClaimStatus, PodStatus},
        resource::v1::{
            DeviceClaim, DeviceClass, DeviceRequest, ExactDeviceRequest, ResourceClaim,
            ResourceClaimSpec,
        },
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use muster_api::{ClaimByName, Flavor, keys};
use muster_cluster::{
    device_plugin::{self, ClassResources, CountedResources},
    pod::{bound_to, is_active},
    pod_resources,
};
use muster_engine::{ResourceName, SelectorId};

use super::Completed;

/// Makes those that are not given.
pub(super) fn add(completed: &mut Completed<'_>) {
    let classes = ClassResources::of(&completed.list::<DeviceClass>());
    let flavors = completed.list::<Flavor>();
    let of_plugins = flavors.into_iter();
    let of_plugins = of_plugins.filter_map(|flavor| flavor.spec.extended_resource);
    // Only that they are counted is asked.
    let of_plugins: CountedResources = of_plugins
        .map(|resource| (resource.into(), SelectorId(0)))
        .collect();
    let given = completed.list::<ResourceClaim>();
    let given = given.iter().filter_map(device_plugin::made_by_scheduler);
    let given: BTreeSet<String> = given.collect();
    let resource: ResourceName = device_plugin::class_resource(keys::DEVICE_CLASS_GPU).into();
    for mut pod in completed.list::<Pod>() {
        if bound_to(&pod).is_none() || !is_active(&pod) {
            continue;
        }
        let Ok(mut resources) = pod_resources::of_pod(&pod) else {
            continue;
        };
        let taken = classes.take_from(&mut resources, &of_plugins);
        let Some(count) = taken.get(&resource).copied() else {
            continue;
        };
        let claim = claim(&pod, count);
        let name = ClaimByName {
            pod_uid: pod.metadata.uid.as_deref().unwrap_or_default(),
            resource: resource.as_str(),
        };
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let claim_name = claim.metadata.name.clone().unwrap_or_default();
        if given.contains(&name.to_string())
            || completed.has::<ResourceClaim>(namespace, &claim_name)
        {
            continue;
        }
        let status = pod.status.get_or_insert_with(PodStatus::default);
        status.extended_resource_claim_status = Some(PodExtendedResourceClaimStatus {
            request_mappings: Vec::new(),
            resource_claim_name: claim_name,
        });
        completed.put(claim);
        completed.put(pod);
    }
}

fn claim(pod: &Pod, count: i64) -> ResourceClaim {
    let name = pod.metadata.name.clone().unwrap_or_default();
    let request = DeviceRequest {
        name: "container-0-request-0".to_owned(),
        exactly: Some(ExactDeviceRequest {
            device_class_name: keys::DEVICE_CLASS_GPU.to_owned(),
            allocation_mode: Some("ExactCount".to_owned()),
            count: Some(count),
            ..ExactDeviceRequest::default()
        }),
        ..DeviceRequest::default()
    };
    let mark = (keys::EXTENDED_RESOURCE_CLAIM.to_owned(), "true".to_owned());
    ResourceClaim {
        metadata: ObjectMeta {
            name: Some(format!("{name}-extended-resources")),
            namespace: pod.metadata.namespace.clone(),
            annotations: Some([mark].into()),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Pod".to_owned(),
                name,
                uid: pod.metadata.uid.clone().unwrap_or_default(),
                controller: Some(true),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        spec: Some(ResourceClaimSpec {
            devices: Some(DeviceClaim {
                requests: Some(vec![request]),
                ..DeviceClaim::default()
            }),
        }),
        status: None,
    }
}
