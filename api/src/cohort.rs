//! Cohort: Teams and Cohorts that lend each other idle quota.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
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
    status = "CohortStatus",
    doc = "Teams and Cohorts that lend each other idle quota; a tree.",
    printcolumn(name = "Parent", json_path = ".spec.parent", type_ = "string"),
    printcolumn(name = "Sharing", json_path = ".spec.sharing", type_ = "string"),
    printcolumn(name = "Flavor", json_path = ".status.limits[?(@.resource==\"gpus\")].flavor", type_ = "string", description = "The first Flavor of which GPUs are shared here"),
    printcolumn(name = "GPUs", json_path = ".status.limits[?(@.resource==\"gpus\")].subtreeQuota", type_ = "string", description = "GPUs of that Flavor that the Cohort has and its members lend; all resources with -o wide"),
    printcolumn(name = "Used", json_path = ".status.limits[?(@.resource==\"gpus\")].used", type_ = "string", description = "GPUs of that Flavor in use of those"),
    printcolumn(name = "Share", json_path = ".status.weightedShare", type_ = "integer", description = "Thousandths of what could be lent to it that it borrows, for its weight", priority = 1),
    printcolumn(name = "Active", json_path = ".status.conditions[?(@.type==\"Active\")].status", type_ = "string", description = "Whether its members take part in a tree"),
    printcolumn(name = "Reason", json_path = ".status.conditions[?(@.type==\"Active\")].reason", type_ = "string", priority = 1),
    printcolumn(name = "Resolved", json_path = ".status.conditions[?(@.type==\"ResolvedRefs\")].status", type_ = "string", description = "Whether all that it names exists and is understood", priority = 1),
    printcolumn(name = "Use", json_path = ".status.limits", type_ = "string", priority = 1),
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

/// What is shared in a Cohort, and how much of it is used; written by the controller alone, whenever it looks at the Cohort. Nothing
/// is decided by it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CohortStatus {
    /// Quota and use per Flavor and resource.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<CohortLimit>,
    /// How much of what could be lent to it the Cohort borrows, for its weight, in thousandths; the largest number there is for
    /// one that borrows at weight 0. Absent unless its root Cohort shares `Fair`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weighted_share: Option<i64>,
    /// Standard conditions: `Active`, `ResolvedRefs`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Quota and use of one resource of one Flavor, as they count in a Cohort. What a member keeps for itself, by its `lendingLimit`,
/// counts in neither.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CohortLimit {
    /// The Flavor.
    pub flavor: String,
    /// The resource.
    pub resource: String,
    /// The Cohort's own: a pool that belongs to no member.
    pub nominal: Quantity,
    /// `nominal`, and what all members lend.
    pub subtree_quota: Quantity,
    /// In use of that, and of what is borrowed from above.
    pub used: Quantity,
    /// Of `used`, above `subtreeQuota`.
    pub borrowed: Quantity,
    /// What its members could still get now, borrowing from above included.
    pub available: Quantity,
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
