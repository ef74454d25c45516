//! PriorityTier: order within a Team, and how a gang may be preempted.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
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
    status = "PriorityTierStatus",
    doc = "Order of gangs within a Team, and how a gang may be preempted.",
    printcolumn(name = "Value", json_path = ".spec.value", type_ = "integer"),
    printcolumn(name = "Preemption", json_path = ".spec.preemption", type_ = "string"),
    printcolumn(
        name = "Default",
        json_path = ".status.conditions[?(@.type==\"Default\")].status",
        type_ = "string",
        description = "Whether gangs get it that name no tier"
    ),
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
    /// How long before its end a gang that is to give way is told so, in seconds; 60 without it. With `AfterCheckpoint`, the
    /// longest time that it is waited for a checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 3600))]
    pub notice_seconds: Option<i64>,
    /// For how long a gang runs, or has been admitted without running yet, before it may be preempted, in seconds; the Team's
    /// counts if that is longer. 0 without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 604_800))]
    pub min_runtime_seconds: Option<i64>,
    /// Whether gangs that name no tier get this one. Of several the highest value wins, then the first name.
    #[serde(default)]
    pub default: bool,
}

impl PriorityTierSpec {
    /// The notice of a tier that does not say, in seconds.
    pub const DEFAULT_NOTICE_SECONDS: i64 = 60;
    /// The longest notice, in seconds: time for a checkpoint of those that are written seldom. What is freed by a preemption is kept until
    /// ten minutes after the longest notice of those who go, so this bounds for how long.
    pub const MOST_NOTICE_SECONDS: i64 = 3600;
}

/// What a tier is; written by the controller alone. Nothing is decided by it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PriorityTierStatus {
    /// Standard condition: `Default`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// How gangs of a tier may be preempted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TierPreemption {
    /// Never.
    #[default]
    Never,
    /// Once the gang has written a checkpoint after the notice (pod annotation `muster.dev/checkpointed-at`), at the latest when
    /// the notice ends.
    AfterCheckpoint,
    /// When the notice ends.
    Immediate,
}
