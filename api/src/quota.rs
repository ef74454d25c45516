//! The quota fields that Team and Cohort share.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::quantity::Quantity;

/// Quota of one Flavor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct FlavorQuota {
    /// Name of the Flavor.
    pub flavor: String,
    /// Limits per resource; each name at most once.
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[schemars(length(min = 1, max = 32))]
    pub resources: Vec<ResourceQuota>,
}

/// Limits of one resource of one Flavor.
///
/// Amounts are Kubernetes quantities. GPUs may be given in thousandths (`500m`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceQuota {
    /// `gpus`, `vram` (bytes of device memory), `cpu`, `memory`, or an extended resource.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// What is guaranteed to the owner.
    pub nominal: Quantity,
    /// Most that may be borrowed from the cohort above `nominal`; without it there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub borrowing_limit: Option<Quantity>,
    /// Most of `nominal` that may be lent to the cohort; without it all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lending_limit: Option<Quantity>,
}
