//! PriorityTier: order within a Team, and how a gang may be preempted.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A tier of priority. Three ship with the chart: critical, standard, best-effort.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomResource, KubeSchema,
)]
#[kube(
    group = "muster.dev",
    version = "v1alpha1",
    kind = "PriorityTier",
    plural = "prioritytiers",
    shortname = "tier",
    category = "muster",
    doc = "Order of gangs within a Team, and how a gang may be preempted.",
    printcolumn(name = "Value", json_path = ".spec.value", type_ = "integer"),
    printcolumn(name = "Preemption", json_path = ".spec.preemption", type_ = "string"),
    printcolumn(name = "Default", json_path = ".spec.default", type_ = "boolean"),
    printcolumn(
        name = "Age",
        json_path = ".metadata.creationTimestamp",
        type_ = "date"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct PriorityTierSpec {
    /// Higher goes first.
    pub value: i32,
    /// How gangs of this tier may be preempted.
    #[serde(default)]
    pub preemption: TierPreemption,
    /// Whether gangs that name no tier get this one. Of several the highest value wins, then the first name.
    #[serde(default)]
    pub default: bool,
}

/// How gangs of a tier may be preempted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TierPreemption {
    /// Never.
    #[default]
    Never,
    /// Once the gang has written a checkpoint after the notice.
    AfterCheckpoint,
    /// At once, after the notice.
    Immediate,
}
