//! The pods and claims of Gangs that run, where only the Gang is given.
//!
//! A Gang's status says which pods it was admitted with, on which nodes they run, and what each claim costs: enough
//! to make them up again. What a claim asked for besides its number of GPUs, or the memory of its slice, is not known
//! any more; that its Flavor has them is.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{
    core::v1::{Container, Pod, PodResourceClaim, PodSpec, PodStatus, ResourceRequirements},
    resource::v1::{
        CELDeviceSelector, DeviceClaim, DeviceClass, DeviceRequest, DeviceSelector,
        ExactDeviceRequest, ResourceClaim, ResourceClaimSpec,
    },
};
use k8s_openapi::apimachinery::pkg::{
    api::resource::Quantity,
    apis::meta::v1::{ObjectMeta, OwnerReference},
};
use muster_api::{Charge, ClaimByName, ClaimsCharge, Flavor, Gang, gang::AdmittedPod, keys};

use super::Completed;

const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// The DeviceClass that slices are of, too, where there is one.
const GPU_OR_SLICE: &str = "gpu-or-slice.muster.dev";
const JOB_NAME: &str = "batch.kubernetes.io/job-name";

/// Adds the members of admitted Gangs that are not given.
pub(super) fn add_members(completed: &mut Completed<'_>) {
    let uids = |objects: Vec<Option<String>>| objects.into_iter().flatten().collect();
    let pods: BTreeSet<String> = uids(
        completed
            .list::<Pod>()
            .into_iter()
            .map(|pod| pod.metadata.uid)
            .collect(),
    );
    let claims: BTreeSet<String> = uids(
        completed
            .list::<ResourceClaim>()
            .into_iter()
            .map(|claim| claim.metadata.uid)
            .collect(),
    );
    for gang in completed.list::<Gang>() {
        let Some(admission) = gang
            .status
            .as_ref()
            .filter(|status| status.finished_at.is_none())
            .and_then(|status| status.admission.as_ref())
        else {
            continue;
        };
        for (rank, member) in admission.pods.iter().enumerate() {
            if pods.contains(&member.uid) {
                continue;
            }
            let pod = pod(&gang, rank, member, &admission.charge);
            for (number, uid) in objects_of(member) {
                let group = group_of(&admission.charge, uid);
                if !claims.contains(uid) {
                    let claim = claim(completed, &pod, number, uid, group);
                    completed.put(claim);
                }
            }
            completed.put(pod);
        }
    }
}

fn claim_name(pod: &str, number: usize) -> String {
    format!("{pod}-claim-{number}")
}

/// The ResourceClaims of a member, each with its number.
fn objects_of(member: &AdmittedPod) -> impl Iterator<Item = (usize, &String)> {
    let claims = member.claims.iter().enumerate();
    claims.filter(|(_, uid)| ClaimByName::parse(uid).is_none())
}

/// What claims cost, one of which is this.
fn group_of<'a>(charge: &'a Charge, uid: &String) -> Option<&'a ClaimsCharge> {
    let mut groups = charge.claims.iter();
    groups.find(|group| group.uids.contains(uid))
}

/// What a member asked for of device plugins.
fn limits_of(member: &AdmittedPod, charge: &Charge) -> BTreeMap<String, Quantity> {
    let by_name = member.claims.iter().filter_map(|uid| {
        let units = group_of(charge, uid)?.gpus_milli / 1_000;
        let resource = ClaimByName::parse(uid)?.resource.to_owned();
        Some((resource, Quantity(units.to_string())))
    });
    by_name.collect()
}

fn pod(gang: &Gang, rank: usize, member: &AdmittedPod, charge: &Charge) -> Pod {
    let gang_name = gang.metadata.name.clone().unwrap_or_default();
    let name = format!("{gang_name}-{rank}");
    let status = gang.status.clone().unwrap_or_default();
    let node = status
        .placement
        .as_ref()
        .and_then(|placement| placement.node_of(rank))
        .map(|run| run.node.clone());
    let mut annotations = std::collections::BTreeMap::from([
        (keys::GANG_NAME.to_owned(), gang_name.clone()),
        (keys::ATTEMPT.to_owned(), status.attempt.to_string()),
        (keys::RANK.to_owned(), rank.to_string()),
        (
            keys::PLACEMENT.to_owned(),
            keys::PLACEMENT_PINNED.to_owned(),
        ),
    ]);
    let mut labels = gang.metadata.labels.clone().unwrap_or_default();
    let job = gang
        .metadata
        .owner_references
        .iter()
        .flatten()
        .find(|owner| owner.kind == "Job");
    if let Some(job) = job {
        labels.insert(JOB_NAME.to_owned(), job.name.clone());
        labels.insert(INDEX.to_owned(), rank.to_string());
        annotations.insert(INDEX.to_owned(), rank.to_string());
    } else {
        labels
            .entry(keys::GANG.to_owned())
            .or_insert_with(|| gang_name.clone());
        annotations.insert(keys::GANG_SIZE.to_owned(), gang.spec.size.to_string());
    }
    let claims = objects_of(member).map(|(number, _)| PodResourceClaim {
        name: format!("claim-{number}"),
        resource_claim_name: Some(claim_name(&name, number)),
        ..PodResourceClaim::default()
    });
    Pod {
        metadata: ObjectMeta {
            namespace: gang.metadata.namespace.clone(),
            uid: Some(member.uid.clone()),
            labels: Some(labels),
            annotations: Some(annotations),
            creation_timestamp: gang.metadata.creation_timestamp.clone(),
            owner_references: job.map(|job| {
                vec![OwnerReference {
                    controller: Some(true),
                    ..job.clone()
                }]
            }),
            name: Some(name.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            node_name: node,
            containers: vec![Container {
                name: "rank".to_owned(),
                resources: Some(ResourceRequirements {
                    limits: Some(limits_of(member, charge)),
                    ..ResourceRequirements::default()
                }),
                ..Container::default()
            }],
            resource_claims: Some(claims.collect()),
            ..PodSpec::default()
        }),
        status: Some(PodStatus {
            phase: Some("Running".to_owned()),
            ..PodStatus::default()
        }),
    }
}

fn claim(
    completed: &Completed<'_>,
    pod: &Pod,
    number: usize,
    uid: &str,
    group: Option<&ClaimsCharge>,
) -> ResourceClaim {
    let gpus = group.map_or(1, |group| group.gpus_milli / 1_000).max(1);
    let slice = group.filter(|group| group.gpus_milli % 1_000 != 0);
    let flavor = group.and_then(|group| completed.get::<Flavor>("", &group.flavor));
    let of_flavor = flavor
        .and_then(|flavor| flavor.spec.devices.as_ref())
        .and_then(|devices| devices.selector.clone());
    // A slice is known again by its memory, if its Team's quota counts that.
    let of_slice = slice.map(|group| match (keys::DRIVER, group.vram_bytes) {
        (driver, 0) => format!("device.attributes['{driver}'].type == 'mig'"),
        (driver, bytes) => {
            format!("device.capacity['{driver}'].memory.compareTo(quantity('{bytes}')) == 0")
        }
    });
    let selectors: Vec<DeviceSelector> = of_flavor
        .into_iter()
        .chain(of_slice)
        .map(|expression| DeviceSelector {
            cel: Some(CELDeviceSelector { expression }),
        })
        .collect();
    let is_there = |class: &&str| completed.has::<DeviceClass>("", class);
    let class = Some(GPU_OR_SLICE).filter(is_there);
    let class = class.filter(|_| slice.is_some());
    let request = DeviceRequest {
        name: "gpus".to_owned(),
        exactly: Some(ExactDeviceRequest {
            device_class_name: class.unwrap_or(keys::DEVICE_CLASS_GPU).to_owned(),
            allocation_mode: Some("ExactCount".to_owned()),
            count: Some(if slice.is_some() { 1 } else { gpus }),
            selectors: (!selectors.is_empty()).then_some(selectors),
            ..ExactDeviceRequest::default()
        }),
        ..DeviceRequest::default()
    };
    ResourceClaim {
        metadata: ObjectMeta {
            namespace: pod.metadata.namespace.clone(),
            name: Some(claim_name(
                pod.metadata.name.as_deref().unwrap_or_default(),
                number,
            )),
            uid: Some(uid.to_owned()),
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
