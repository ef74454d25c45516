//! Queue: a Team as the members of a namespace see it.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{fairness::NamespaceUse, quantity::Quantity, reason::Reason};

/// A Team as its members see it: one per namespace, named after the Team. Written by the controller.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomResource, KubeSchema,
)]
#[kube(
    group = "muster.dev",
    version = "v1alpha1",
    kind = "Queue",
    plural = "queues",
    namespaced,
    category = "muster",
    status = "QueueStatus",
    doc = "A Team as the members of a namespace see it: limits, use, and which gangs wait for what.",
    printcolumn(name = "Team", json_path = ".spec.team", type_ = "string"),
    printcolumn(
        name = "Flavor",
        json_path = ".status.limits[?(@.resource==\"gpus\")].flavor",
        type_ = "string",
        description = "The first Flavor of the quota that limits GPUs"
    ),
    printcolumn(
        name = "Used",
        json_path = ".status.limits[?(@.resource==\"gpus\")].used",
        type_ = "string",
        description = "GPUs of that Flavor in use by the Team; all resources with -o wide"
    ),
    printcolumn(
        name = "Nominal",
        json_path = ".status.limits[?(@.resource==\"gpus\")].nominal",
        type_ = "string"
    ),
    printcolumn(
        name = "Available",
        json_path = ".status.limits[?(@.resource==\"gpus\")].available",
        type_ = "string"
    ),
    printcolumn(
        name = "Admitted",
        json_path = ".status.admittedGangs",
        type_ = "integer"
    ),
    printcolumn(
        name = "Pending",
        json_path = ".status.pendingGangs",
        type_ = "integer"
    ),
    printcolumn(
        name = "Limits",
        json_path = ".status.limits",
        type_ = "string",
        priority = 1
    ),
    printcolumn(
        name = "Age",
        json_path = ".metadata.creationTimestamp",
        type_ = "date"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct QueueSpec {
    /// The Team of the namespace.
    pub team: String,
}

/// What the Team may use, what it uses, and who waits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueStatus {
    /// Limits and use per Flavor and resource.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<QueueLimit>,
    /// Gangs of the Team that hold quota.
    #[serde(default)]
    pub admitted_gangs: i64,
    /// Gangs of the Team that wait.
    #[serde(default)]
    pub pending_gangs: i64,
    /// How much of what could be lent to it the Team borrows, for its weight, in thousandths; the largest number there is for one
    /// that borrows at weight 0. Absent unless its root Cohort shares `Fair`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weighted_share: Option<i64>,
    /// What **this namespace** used lately, where the Team's `admissionFairness` goes by that. Absent while it used nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_use: Option<NamespaceUse>,
    /// The first 100 waiting gangs of **this namespace**, in the order of the queue.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pending: Vec<PendingGang>,
}

/// Limits and use of one resource of one Flavor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueLimit {
    /// The Flavor.
    pub flavor: String,
    /// The resource.
    pub resource: String,
    /// Guaranteed to the Team.
    pub nominal: Quantity,
    /// In use by the Team.
    pub used: Quantity,
    /// Of `used`, above `nominal`.
    pub borrowed: Quantity,
    /// What the Team could still get now, borrowing included.
    pub available: Quantity,
}

/// A gang that waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PendingGang {
    /// Name of the Gang.
    pub name: String,
    /// Place in the Team's queue, from 1.
    pub position: i64,
    /// The stable reason.
    pub reason: Reason,
    /// The same with numbers, for people.
    pub details: String,
}
