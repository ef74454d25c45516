//! Cohort: Teams and Cohorts that lend each other idle quota.

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::quota::FlavorQuota;

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
}
