//! The objects of a simulated cluster, as their real makers would create them.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    batch::v1::{Job, JobSpec},
    core::v1::{
        Container, Namespace, Node, NodeCondition, NodeStatus, Pod, PodResourceClaim,
        PodSchedulingGate, PodSpec, PodStatus, PodTemplateSpec, ResourceRequirements,
    },
    resource::v1::{
        CELDeviceSelector, Device, DeviceAttribute, DeviceCapacity, DeviceClaim, DeviceClass,
        DeviceClassSpec, DeviceRequest, DeviceSelector, ExactDeviceRequest, ResourceClaim,
        ResourceClaimSpec, ResourcePool, ResourceSlice, ResourceSliceSpec,
    },
};
use k8s_openapi::apimachinery::pkg::{
    api::resource::Quantity,
    apis::meta::v1::{ObjectMeta, OwnerReference},
};
use muster_api::{
    AdmissionFairness, Cohort, CohortSpec, DeviceSource, Flavor, FlavorQuota, FlavorSpec,
    PriorityTier, PriorityTierSpec, Team, TeamSpec, TierPreemption, Topology, TopologyLevel,
    TopologySpec, keys,
    quota::ResourceQuota,
    team::{ReclaimWithinCohort, Shrink, TeamPreemption, WithinTeam},
};

use crate::scenario::{
    Counting, GangShape, Hardship, Hardships, NodeShape, OwnerKind, Parent, Product, TeamShape,
};

/// The one Cohort.
pub const COHORT: &str = "all";
/// Names of the claims in a pod that it has for itself, as many as it has.
pub const CLAIMS: [&str; 2] = ["gpus", "more-gpus"];
/// Name in a pod of the claim that it shares.
const SHARED: &str = "shared-gpus";
/// Memory of every GPU, in bytes.
pub const GPU_BYTES: i64 = 80 << 30;

const TOPOLOGY: &str = "fabric";
const LEAF_LABEL: &str = "example.com/leaf";
const PRODUCT_LABEL: &str = "example.com/gpu";
/// Label of a Job's pods.
pub const JOB_NAME: &str = "batch.kubernetes.io/job-name";
/// Finalizer of a Job's pods that are not counted yet.
pub const TRACKING: &str = "batch.kubernetes.io/job-tracking";
const INDEX: &str = "batch.kubernetes.io/job-completion-index";

fn metadata(namespace: Option<&str>, name: &str) -> ObjectMeta {
    ObjectMeta {
        namespace: namespace.map(str::to_owned),
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    }
}

fn texts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

fn quantities(pairs: &[(&str, &str)]) -> BTreeMap<String, Quantity> {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), Quantity((*value).to_owned())))
        .collect()
}

/// A Ready node with room for 16 pods.
pub fn node(shape: &NodeShape) -> Node {
    let mut metadata = metadata(None, &shape.name);
    metadata.labels = Some(texts(&[
        (LEAF_LABEL, &shape.leaf),
        (PRODUCT_LABEL, shape.product.name()),
        ("kubernetes.io/hostname", &shape.name),
    ]));
    let capacity = quantities(&[("cpu", "64"), ("memory", "512Gi"), ("pods", "16")]);
    Node {
        metadata,
        status: Some(NodeStatus {
            allocatable: Some(capacity.clone()),
            capacity: Some(capacity),
            conditions: Some(vec![NodeCondition {
                type_: "Ready".to_owned(),
                status: "True".to_owned(),
                ..NodeCondition::default()
            }]),
            ..NodeStatus::default()
        }),
        ..Node::default()
    }
}

/// Name of a GPU on its node.
pub fn device_name(number: usize) -> String {
    format!("gpu-{number}")
}

/// The hardware's own name of a GPU.
pub fn gpu_uuid(node: &str, number: usize) -> String {
    format!("GPU-{node}-{number}")
}

/// Name of the slice that a node's driver publishes.
pub fn slice_name(node: &str) -> String {
    format!("{node}-{}", keys::DRIVER)
}

/// The slice that a node's driver publishes.
pub fn resource_slice(shape: &NodeShape) -> ResourceSlice {
    let text = |value: String| DeviceAttribute {
        string: Some(value),
        ..DeviceAttribute::default()
    };
    let device = |number| Device {
        name: device_name(number),
        attributes: Some(BTreeMap::from([
            ("uuid".to_owned(), text(gpu_uuid(&shape.name, number))),
            (
                "productName".to_owned(),
                text(shape.product.name().to_owned()),
            ),
            ("nvlinkGroup".to_owned(), text(shape.name.clone())),
        ])),
        capacity: Some(BTreeMap::from([(
            "memory".to_owned(),
            DeviceCapacity {
                value: Quantity("80Gi".to_owned()),
                ..DeviceCapacity::default()
            },
        )])),
        ..Device::default()
    };
    ResourceSlice {
        metadata: metadata(None, &slice_name(&shape.name)),
        spec: ResourceSliceSpec {
            driver: keys::DRIVER.to_owned(),
            node_name: Some(shape.name.clone()),
            pool: ResourcePool {
                name: shape.name.clone(),
                generation: 1,
                resource_slice_count: 1,
            },
            devices: Some((0..shape.gpus).map(device).collect()),
            ..ResourceSliceSpec::default()
        },
    }
}

/// The class of whole GPUs.
pub fn device_class() -> DeviceClass {
    DeviceClass {
        metadata: metadata(None, keys::DEVICE_CLASS_GPU),
        spec: Some(DeviceClassSpec {
            selectors: Some(vec![DeviceSelector {
                cel: Some(CELDeviceSelector {
                    expression: format!("device.driver == '{}'", keys::DRIVER),
                }),
            }]),
            ..DeviceClassSpec::default()
        }),
    }
}

/// The expression that selects the GPUs of a kind.
fn selector(product: Product) -> String {
    format!(
        "device.attributes['{}'].productName == '{}'",
        keys::DRIVER,
        product.name()
    )
}

/// Whether a device is what the selectors of a request ask for, in the words in which they are given here.
pub fn is_selected(selectors: &[DeviceSelector], device: &Device) -> bool {
    let attribute = device.attributes.as_ref();
    let attribute = attribute.and_then(|attributes| attributes.get("productName"));
    let name = attribute.and_then(|attribute| attribute.string.as_deref());
    selectors.iter().all(|wanted| {
        Product::ALL.into_iter().any(|product| {
            let cel = wanted.cel.as_ref();
            cel.is_some_and(|cel| cel.expression == selector(product))
                && name == Some(product.name())
        })
    })
}

/// The Flavor of a kind of GPUs: of the one by what the devices say of themselves, of the other by their nodes.
pub fn flavor(product: Product) -> Flavor {
    let (node_selector, selector) = match product {
        Product::H100 => (BTreeMap::new(), Some(selector(product))),
        Product::A100 => (texts(&[(PRODUCT_LABEL, product.name())]), None),
    };
    Flavor::new(
        product.flavor(),
        FlavorSpec {
            node_selector,
            devices: Some(DeviceSource {
                driver: keys::DRIVER.to_owned(),
                selector,
            }),
            topology: Some(TOPOLOGY.to_owned()),
            ..FlavorSpec::default()
        },
    )
}

/// Leaf switches over nodes.
pub fn topology() -> Topology {
    Topology::new(
        TOPOLOGY,
        TopologySpec {
            fabric: vec![TopologyLevel {
                name: "leaf".to_owned(),
                node_label: LEAF_LABEL.to_owned(),
            }],
            accelerator: None,
        },
    )
}

/// The Cohort of all Teams, without quota of its own.
pub fn cohort() -> Cohort {
    Cohort::new(COHORT, CohortSpec::default())
}

/// How long before its end a gang is told that it is to give way.
const NOTICE_SECONDS: i64 = 10;

/// Name and value of a tier, and how its gangs give way to others.
pub type Tier = (&'static str, i32, TierPreemption);
/// The tiers; gangs that name none are of the first.
pub const TIERS: [Tier; 3] = [
    ("standard", 100, TierPreemption::Immediate),
    ("urgent", 1_000, TierPreemption::Never),
    ("checkpointing", 50, TierPreemption::AfterCheckpoint),
];

/// One of the tiers. Without [`Hardship::Preemptions`] no Team takes anything from anybody; but who could not be preempted would
/// borrow nothing.
pub fn priority_tier(number: usize) -> PriorityTier {
    let (name, value, preemption) = TIERS[number];
    PriorityTier::new(
        name,
        PriorityTierSpec {
            value,
            default: number == 0,
            preemption,
            notice_seconds: Some(NOTICE_SECONDS),
            ..PriorityTierSpec::default()
        },
    )
}

/// What a Team is guaranteed, and may borrow.
pub fn quota(shape: &TeamShape) -> Vec<FlavorQuota> {
    let gpus = |number: usize| muster_api::Quantity(number.to_string());
    let quotas = shape.quotas.iter().map(|quota| FlavorQuota {
        flavor: quota.product.flavor().to_owned(),
        resources: vec![ResourceQuota {
            name: "gpus".to_owned(),
            nominal: Some(gpus(quota.nominal_gpus)),
            borrowing_limit: quota.borrowing_gpus.map(gpus),
            ..ResourceQuota::default()
        }],
    });
    quotas.collect()
}

/// A Team. Without [`Hardship::Preemptions`] it takes nothing from anybody.
pub fn team(shape: &TeamShape, hardships: &Hardships) -> Team {
    Team::new(
        &shape.name,
        TeamSpec {
            cohort: Some(COHORT.to_owned()),
            quota: quota(shape),
            preemption: if hardships.have(Hardship::Preemptions) {
                TeamPreemption::default()
            } else {
                TeamPreemption {
                    within_team: WithinTeam::Never,
                    reclaim_within_cohort: ReclaimWithinCohort::Never,
                    ..TeamPreemption::default()
                }
            },
            // Who is told that it goes may write a checkpoint: that is part of preemption.
            shrink: if shape.evicts() && hardships.have(Hardship::Preemptions) {
                Shrink::Evict
            } else {
                Shrink::Keep
            },
            admission_fairness: shape.fairness.map(|fairness| AdmissionFairness {
                half_life_seconds: fairness.half_life_seconds,
                sampling_interval_seconds: fairness.sampling_interval_seconds,
                ..AdmissionFairness::default()
            }),
            ..TeamSpec::default()
        },
    )
}

/// A namespace of a Team.
pub fn namespace(name: &str, team: &str) -> Namespace {
    let mut metadata = metadata(None, name);
    metadata.labels = Some(texts(&[(keys::TEAM, team)]));
    Namespace {
        metadata,
        ..Namespace::default()
    }
}

/// The Job of a gang. Its pods are made by the simulated Job controller.
pub fn job(shape: &GangShape) -> Job {
    let job = shape.job();
    let count = i32::try_from(shape.pods).ok();
    let is_indexed = job.counting == Counting::Indexed;
    let mut metadata = metadata(Some(&shape.namespace), &shape.name);
    let mut annotations = limits(shape);
    annotations.extend(
        shape
            .min_count
            .map(|least| (keys::MIN_COUNT.to_owned(), least.to_string())),
    );
    metadata.annotations = Some(annotations).filter(|annotations| !annotations.is_empty());
    metadata.owner_references = job.parent.map(|parent| {
        let (api_version, kind) = match parent {
            Parent::JobSet => ("jobset.x-k8s.io/v1alpha2", "JobSet"),
            Parent::CronJob => ("batch/v1", "CronJob"),
        };
        let uid = parent_uid(shape);
        vec![controlled_by(api_version, kind, &shape.name, &uid)]
    });
    Job {
        metadata,
        spec: Some(JobSpec {
            completion_mode: Some(if is_indexed { "Indexed" } else { "NonIndexed" }.to_owned()),
            completions: count.filter(|_| is_indexed),
            parallelism: count,
            backoff_limit: Some(job.backoff_limit),
            backoff_limit_per_index: job.backoff_limit_per_index,
            pod_replacement_policy: job.replaces_failed_only.then(|| "Failed".to_owned()),
            active_deadline_seconds: job.active_deadline_seconds,
            suspend: Some(false),
            template: PodTemplateSpec {
                metadata: None,
                // All pods of a Job are equal.
                spec: Some(pod_spec(shape, 0)),
            },
            ..JobSpec::default()
        }),
        ..Job::default()
    }
}

/// What a gang says of how long it runs, how often, and how long without progress: by its Job, or else by its pods.
fn limits(shape: &GangShape) -> BTreeMap<String, String> {
    let most = shape.max_runtime_seconds.into_iter();
    let annotations = most.map(|most| (keys::MAX_RUNTIME_SECONDS.to_owned(), most.to_string()));
    let restarts = shape.max_restarts.into_iter();
    let restarts = restarts.map(|most| (keys::MAX_RESTARTS.to_owned(), most.to_string()));
    let deadline = shape.ranks.progress.into_iter().map(|progress| {
        let seconds = progress.deadline_seconds.to_string();
        (keys::PROGRESS_DEADLINE_SECONDS.to_owned(), seconds)
    });
    annotations.chain(restarts).chain(deadline).collect()
}

/// UID of what controls a gang's Job.
pub fn parent_uid(shape: &GangShape) -> String {
    format!("parent-of-{}", shape.name)
}

fn controlled_by(api_version: &str, kind: &str, name: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// The Job that made a pod, by its name.
pub fn job_of(pod: &Pod) -> Option<&str> {
    let labels = pod.metadata.labels.as_ref()?;
    labels.get(JOB_NAME).map(String::as_str)
}

/// A pod of a gang as the webhook lets it through: gated and marked. `owner` is the UID of what controls it, if anything
/// does.
pub fn pod(shape: &GangShape, name: &str, index: usize, owner: Option<&str>) -> Pod {
    let mut metadata = metadata(Some(&shape.namespace), name);
    let of_gang = [(keys::GANG, shape.name.as_str())];
    let size = shape.pods.to_string();
    let (mut labels, mut annotations) = match shape.owner {
        OwnerKind::Job(job) => {
            metadata.finalizers = Some(vec![TRACKING.to_owned()]);
            let mut labels = texts(&[(JOB_NAME, &shape.name)]);
            if job.counting == Counting::Indexed {
                let index = index.to_string();
                labels.insert(INDEX.to_owned(), index.clone());
                (labels, texts(&[(INDEX, &index)]))
            } else {
                labels.extend(texts(&of_gang));
                (labels, texts(&[(keys::GANG_SIZE, &size)]))
            }
        }
        _ => (texts(&of_gang), texts(&[(keys::GANG_SIZE, &size)])),
    };
    if shape.tier > 0 {
        labels.insert(keys::TIER.to_owned(), TIERS[shape.tier].0.to_owned());
    }
    if !matches!(shape.owner, OwnerKind::Job(_)) {
        annotations.extend(limits(shape));
    }
    if consents_to_force(shape) {
        let consent = keys::FORCE_DELETION_CONSENTED.to_owned();
        annotations.insert(keys::FORCE_DELETION.to_owned(), consent);
    }
    metadata.labels = Some(labels);
    metadata.annotations = Some(annotations);
    let kind = match shape.owner {
        OwnerKind::Job(_) => Some(("batch/v1", "Job")),
        OwnerKind::StatefulSet => Some(("apps/v1", "StatefulSet")),
        OwnerKind::Deployment => Some(("apps/v1", "ReplicaSet")),
        OwnerKind::User => None,
    };
    metadata.owner_references = kind
        .zip(owner)
        .map(|((api_version, kind), uid)| vec![controlled_by(api_version, kind, &shape.name, uid)]);
    let mut spec = pod_spec(shape, index);
    spec.scheduling_gates = Some(vec![PodSchedulingGate {
        name: keys::ADMISSION_GATE.to_owned(),
    }]);
    Pod {
        metadata,
        spec: Some(spec),
        status: Some(PodStatus {
            phase: Some("Pending".to_owned()),
            ..PodStatus::default()
        }),
    }
}

/// Whether the owner of a gang bears that its pods are deleted by force: of every other one does.
fn consents_to_force(shape: &GangShape) -> bool {
    shape.pods.is_multiple_of(2)
}

/// The rank that a pod of a gang was made for.
pub fn index_of(pod: &Pod) -> Option<usize> {
    let annotations = pod.metadata.annotations.as_ref();
    if let Some(index) = annotations.and_then(|annotations| annotations.get(INDEX)) {
        return index.parse().ok();
    }
    let (_, index) = pod.metadata.name.as_deref()?.rsplit_once('-')?;
    index.parse().ok()
}

fn pod_spec(shape: &GangShape, index: usize) -> PodSpec {
    let names = CLAIMS.into_iter().take(shape.claims_per_pod);
    let claim = |name: &str| PodResourceClaim {
        name: name.to_owned(),
        resource_claim_template_name: Some(template_name(
            shape.gpus_per_pod / shape.claims_per_pod,
            shape.product,
        )),
        ..PodResourceClaim::default()
    };
    let shared = shape.shared.iter().filter(|shared| index < shared.pods);
    let shared = shared.map(|shared| PodResourceClaim {
        name: SHARED.to_owned(),
        resource_claim_name: Some(shared.name.clone()),
        ..PodResourceClaim::default()
    });
    let claims = names.map(claim).chain(shared).collect();
    let marker = (keys::MARKER_RESOURCE, "0");
    // What the simulated kubelet goes by.
    let init = shape.ranks.init_seconds.map(|seconds| Container {
        name: "init".to_owned(),
        args: Some(vec![seconds.to_string()]),
        ..Container::default()
    });
    let trap = shape.ranks.ignore_sigterm.then(|| vec!["trap".to_owned()]);
    PodSpec {
        init_containers: init.map(|init| vec![init]),
        containers: vec![Container {
            name: "rank".to_owned(),
            args: trap,
            resources: Some(ResourceRequirements {
                requests: Some(quantities(&[("cpu", "1"), ("memory", "1Gi"), marker])),
                limits: Some(quantities(&[marker])),
                claims: None,
            }),
            ..Container::default()
        }],
        resource_claims: Some(claims),
        restart_policy: Some("Never".to_owned()),
        ..PodSpec::default()
    }
}

fn template_name(gpus: usize, product: Option<Product>) -> String {
    let flavor = product.map_or("any", Product::flavor);
    format!("{flavor}-{gpus}")
}

/// How long the pod's init container runs, in milliseconds.
pub fn init_milliseconds(pod: &Pod) -> Option<u64> {
    let init = pod.spec.as_ref()?.init_containers.as_ref()?.first()?;
    let seconds: u64 = init.args.as_ref()?.first()?.parse().ok()?;
    Some(seconds * 1_000)
}

/// Whether the pod's container does nothing on SIGTERM.
pub fn ignores_sigterm(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    spec.is_some_and(|spec| spec.containers.iter().any(|it| it.args.is_some()))
}

/// The claim that a template gives to a pod; `None` for a template that nobody made.
pub fn claim_from_template(template: &str, owner: &Pod, name: &str) -> Option<ResourceClaim> {
    let (flavor, count) = template.rsplit_once('-')?;
    let count = count.parse().ok()?;
    let mut products = Product::ALL.into_iter();
    let product = products.find(|product| product.flavor() == flavor);
    let mut metadata = metadata(owner.metadata.namespace.as_deref(), name);
    metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: owner.metadata.name.clone()?,
        uid: owner.metadata.uid.clone()?,
        controller: Some(true),
        block_owner_deletion: Some(true),
    }]);
    Some(claim(metadata, count, product))
}

/// The claim that the pods of a gang share, as their user makes it; `None` if they share none.
pub fn shared_claim(shape: &GangShape) -> Option<ResourceClaim> {
    let shared = shape.shared.as_ref()?;
    let metadata = metadata(Some(&shape.namespace), &shared.name);
    Some(claim(
        metadata,
        i64::try_from(shared.gpus).ok()?,
        shape.product,
    ))
}

fn claim(metadata: ObjectMeta, count: i64, product: Option<Product>) -> ResourceClaim {
    let selectors = product.map(|product| {
        let expression = selector(product);
        vec![DeviceSelector {
            cel: Some(CELDeviceSelector { expression }),
        }]
    });
    let request = DeviceRequest {
        name: "gpu".to_owned(),
        exactly: Some(ExactDeviceRequest {
            device_class_name: keys::DEVICE_CLASS_GPU.to_owned(),
            allocation_mode: Some("ExactCount".to_owned()),
            count: Some(count),
            selectors,
            ..ExactDeviceRequest::default()
        }),
        ..DeviceRequest::default()
    };
    ResourceClaim {
        metadata,
        spec: Some(ResourceClaimSpec {
            devices: Some(DeviceClaim {
                requests: Some(vec![request]),
                ..DeviceClaim::default()
            }),
        }),
        status: None,
    }
}
