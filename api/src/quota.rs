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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("has(self.nominal) != (has(self.auto) && self.auto)", "say either nominal or auto: true"),
    validation = ("!has(self.auto) || !self.auto || self.name in ['gpus', 'vram']", "auto follows gpus and vram")
)]
pub struct ResourceQuota {
    /// `gpus`, `vram` (bytes of device memory), `cpu`, `memory`, or an extended resource.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// What is guaranteed to the owner, unless that is `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nominal: Option<Quantity>,
    /// Guaranteed is what is healthy of the Flavor, less all that Teams and Cohorts have as `nominal`: so what is drained takes from
    /// here first. Several that ask for it share it by `fairShareWeight`, in whole GPUs. For `gpus` and `vram`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub auto: bool,
    /// Most that may be borrowed from the cohort above `nominal`; without it there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub borrowing_limit: Option<Quantity>,
    /// Most of `nominal` that may be lent to the cohort; without it all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lending_limit: Option<Quantity>,
}
