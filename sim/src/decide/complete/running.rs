//! The pods and claims of Gangs that run, where only the Gang is given.
//!
//! A Gang's status says which pods it was admitted with, on which nodes they run, and what each claim costs: enough
//! to make them up again. What a claim asked for besides its number of GPUs is not known any more; that its Flavor
//! has them is.

use std::collections::BTreeSet;

use k8s_openapi::api::{
    core::v1::{Container, Pod, PodResourceClaim, PodSpec, PodStatus},
    resource::v1::{
        CELDeviceSelector, DeviceClaim, DeviceRequest, DeviceSelector, ExactDeviceRequest,
        ResourceClaim, ResourceClaimSpec,
    },
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use muster_api::{ClaimsCharge, Flavor, Gang, gang::AdmittedPod, keys};

use super::Completed;

const INDEX: &str = "batch.kubernetes.io/job-completion-index";
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
            let pod = pod(&gang, rank, member);
            for (number, uid) in member.claims.iter().enumerate() {
                let group = admission
                    .charge
                    .claims
                    .iter()
                    .find(|group| group.uids.contains(uid));
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

fn pod(gang: &Gang, rank: usize, member: &AdmittedPod) -> Pod {
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
    let claims = (0..member.claims.len()).map(|number| PodResourceClaim {
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
    let flavor = group.and_then(|group| completed.get::<Flavor>("", &group.flavor));
    let selector = flavor
        .and_then(|flavor| flavor.spec.devices.as_ref())
        .and_then(|devices| devices.selector.clone())
        .map(|expression| DeviceSelector {
            cel: Some(CELDeviceSelector { expression }),
        });
    let request = DeviceRequest {
        name: "gpus".to_owned(),
        exactly: Some(ExactDeviceRequest {
            device_class_name: keys::DEVICE_CLASS_GPU.to_owned(),
            allocation_mode: Some("ExactCount".to_owned()),
            count: Some(gpus),
            selectors: selector.map(|selector| vec![selector]),
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
