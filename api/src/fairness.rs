//! Fairness among the namespaces of a Team.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::quantity::Quantity;

/// Of gangs of one tier those go first whose namespace used least, lately. Use is an average over the past in which half counts after
/// each half-life; an admission adds to it at once, as much as one sampling interval would.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("self.samplingIntervalSeconds <= self.halfLifeSeconds", "samplingIntervalSeconds must not exceed halfLifeSeconds: an admission would count for more than half of what it holds at once")
)]
pub struct AdmissionFairness {
    /// After how many seconds half of what was used counts.
    #[schemars(range(min = 60, max = 31_536_000))]
    pub half_life_seconds: i64,
    /// How often what is held is looked at, in seconds.
    #[serde(default = "AdmissionFairness::five_minutes")]
    #[schemars(range(min = 30, max = 86_400))]
    pub sampling_interval_seconds: i64,
    /// What resources count for; `gpus` alone, at 1, without any. What is not listed does not count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["resource".into()]))]
    #[schemars(length(max = 32))]
    pub resource_weights: Vec<ResourceWeight>,
    /// What namespaces weigh; 1 where they are not listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[schemars(length(max = 1_024))]
    pub namespaces: Vec<NamespaceWeight>,
}

impl AdmissionFairness {
    fn five_minutes() -> i64 {
        300
    }
}

/// What a resource counts for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceWeight {
    /// `gpus`, `vram`, `cpu`, `memory`, or an extended resource that the quota names.
    #[schemars(length(min = 1, max = 253))]
    pub resource: String,
    /// For one GPU, one core, one GiB, or one of anything else.
    pub weight: Quantity,
}

/// What a namespace weighs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceWeight {
    /// Its name.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// At 2 it may use twice as much as at 1; at 0 it is served after all others of its tier.
    pub weight: Quantity,
}

/// What a namespace of a Team used lately. A new leader goes on from here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceUse {
    /// How much of each resource that counts: of one that is held for ever, as much as is held.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub used: Vec<UsedResource>,
    /// When what is held was looked at last. Half of `used` counts a half-life later.
    pub as_of: Time,
}

/// What was used of one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsedResource {
    /// The resource.
    pub resource: String,
    /// How much of it, averaged over the past.
    pub amount: Quantity,
}
