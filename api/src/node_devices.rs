//! NodeDevices: what the controller permits on a node, and what that node's driver still holds.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::charge::Charge;

/// Permits of one node; the object's name is the node's. Made by the controller. `spec` is the
/// controller's, `status` that node's driver's.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomResource, KubeSchema,
)]
#[kube(
    group = "muster.dev",
    version = "v1alpha1",
    kind = "NodeDevices",
    plural = "nodedevices",
    shortname = "nd",
    category = "muster",
    status = "NodeDevicesStatus",
    doc = "What the controller permits on a node, and what that node's driver still holds.",
    printcolumn(name = "Enforce", json_path = ".spec.enforce", type_ = "boolean"),
    printcolumn(name = "Lost", json_path = ".spec.lost", type_ = "boolean"),
    printcolumn(
        name = "Generation",
        json_path = ".metadata.generation",
        type_ = "integer",
        description = "What the driver has yet to acknowledge where it is above Acknowledged"
    ),
    printcolumn(
        name = "Acknowledged",
        json_path = ".status.observedGeneration",
        type_ = "integer"
    ),
    printcolumn(
        name = "Permits",
        json_path = ".spec.permits[*].gang",
        type_ = "string",
        priority = 1,
        description = "The gang of the first permit"
    ),
    printcolumn(
        name = "Held",
        json_path = ".status.held[*].name",
        type_ = "string",
        priority = 1,
        description = "The first claim that is held without a permit"
    ),
    printcolumn(
        name = "Age",
        json_path = ".metadata.creationTimestamp",
        type_ = "date"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct NodeDevicesSpec {
    /// UID of the Node that this object is about.
    pub node_uid: String,
    /// Epoch of the leader that wrote this last. Nobody writes over a higher one.
    pub leader_epoch: i64,
    /// Whether the driver prepares only what has a permit.
    #[serde(default)]
    pub enforce: bool,
    /// Whether the node is lost: its permits stay, nothing is planned there, and no Team is charged for what it holds, until
    /// it is Ready and its driver has acknowledged this generation.
    #[serde(default)]
    pub lost: bool,
    /// Whether nothing is planned on the node until its driver has acknowledged this generation: a Node of that name was
    /// made again, or permits went because it was out of service.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub awaits_driver: bool,
    /// Whether the driver may reset GPUs that have a fault and that nothing uses, where it has a command for that. Without it, it may
    /// not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remediation: Option<Remediation>,
    /// Leaves for pods to have their claims prepared here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub permits: Vec<Permit>,
}

/// Whether GPUs may be reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Remediation {
    /// Those that have a fault, and that nothing uses.
    Allowed,
    /// None: what is done about faults is only told, the circuit breaker is open, or other nodes have their turn.
    Withheld,
}

/// Leave for one pod to have its claims prepared on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Permit {
    /// UID of the pod.
    pub pod_uid: String,
    /// UIDs of its claims, ascending; `POD_UID/RESOURCE` for what a device plugin hands out. Without a ResourceClaim the permit only
    /// charges, and its driver has no say about it.
    pub claim_uids: Vec<String>,
    /// `namespace/name` of the Gang.
    pub gang: String,
    /// UID of the Gang.
    pub gang_uid: String,
    /// Attempt of the gang.
    pub attempt: i64,
    /// The Team that is charged.
    pub team: String,
    /// What is charged for this pod.
    pub charge: Charge,
    /// Another driver's devices alone, free once the pod has ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_other_driver: bool,
    /// Withdrawn: nothing is prepared by it any more; it is removed when the driver has
    /// acknowledged that and holds none of its claims.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub withdrawn: bool,
}

/// What the driver of the node says. Written with the object's UID as precondition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeDevicesStatus {
    /// UID of the object that `observed_generation` speaks about.
    #[serde(default)]
    pub uid: String,
    /// Generation up to which the driver has the permits on disk.
    #[serde(default)]
    pub observed_generation: i64,
    /// Boot id of the node.
    #[serde(default)]
    pub boot_id: String,
    /// Claims that the driver holds without a live permit, ascending by claim UID.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<Held>,
    /// What is wrong with the GPUs of the node, the worst first, at most 64 entries; absent while its driver has not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub faults: Option<Vec<GpuFault>>,
}

impl NodeDevicesStatus {
    /// Most entries of `faults`.
    pub const MOST_FAULTS: usize = 64;
}

/// A fault, or an anomaly, of a GPU that the node has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuFault {
    /// Name of the device of the whole GPU.
    pub device: String,
    /// UUID of the GPU.
    pub gpu: String,
    /// Which part of it; all of it without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<FaultyPart>,
    /// Retire, Reboot, Reset, Unknown, Link or Contained, which are faults.
    /// App or Info, which are anomalies.
    pub class: String,
    /// What was seen, at most 16 of them, ascending.
    pub causes: Vec<String>,
    /// When it was first seen.
    pub since: String,
    /// Whether its driver would not reset the GPU for it now, whatever the controller allows: it has no command for that, or somebody
    /// has had the GPU open for a while, say. Without it, it would, as far as anybody knows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reset_hindered: bool,
}

/// Part of a GPU, in memory slices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FaultyPart {
    /// The first memory slice.
    pub start: i64,
    /// How many there are.
    pub size: i64,
}

/// A claim that is prepared, or being prepared or unprepared, without a live permit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Held {
    /// UID of the claim.
    pub claim_uid: String,
    /// Namespace of the claim.
    pub namespace: String,
    /// Name of the claim.
    pub name: String,
    /// UID of the pod that it was prepared for, as far as it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// Names of the devices.
    pub devices: Vec<String>,
}
