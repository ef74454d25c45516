//! Cohort: Teams and Cohorts that lend each other idle quota.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{quantity::Quantity, quota::FlavorQuota};

/// A Cohort is an inner node of the quota tree. Its own quota is a pool that its members share.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomResource, KubeSchema,
)]
#[kube(
    group = "muster.dev",
    version = "v1alpha1",
    kind = "Cohort",
    plural = "cohorts",
    category = "muster",
    doc = "Teams and Cohorts that lend each other idle quota; a tree.",
    printcolumn(name = "Parent", json_path = ".spec.parent", type_ = "string"),
    printcolumn(name = "Sharing", json_path = ".spec.sharing", type_ = "string"),
    printcolumn(name = "Age", json_path = ".metadata.creationTimestamp", type_ = "date"),
    validation = ("!has(self.spec.parent) || self.spec.parent != self.metadata.name", "a cohort cannot be its own parent"),
    validation = ("has(self.spec.parent) || !has(self.spec.quota) || self.spec.quota.all(q, q.resources.all(r, !has(r.borrowingLimit) && !has(r.lendingLimit)))", "borrowingLimit and lendingLimit need a parent")
)]
#[serde(rename_all = "camelCase")]
pub struct CohortSpec {
    /// The Cohort above; this one is a root without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub parent: Option<String>,
    /// Quota that belongs to no member and that all may borrow.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["flavor".into()]))]
    #[schemars(length(max = 16))]
    pub quota: Vec<FlavorQuota>,
    /// How much of what is lent is the fair share of all below this Cohort, beside the weights of its siblings: 1 without
    /// it. It counts where the root Cohort shares `Fair`, and where several quotas are `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fair_share_weight: Option<Quantity>,
    /// Who goes first of all below this Cohort when they wait for what others lend. The root of the tree decides.
    #[serde(default)]
    pub sharing: Sharing,
}

/// In which order the Teams below a root Cohort get what they do not own. Whoever stays within its own quota goes first in
/// either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Sharing {
    /// By priority, then age, of their gangs.
    #[default]
    Classical,
    /// By weighted share: who borrows least of what could be lent, for its weight, goes first.
    Fair,
}
