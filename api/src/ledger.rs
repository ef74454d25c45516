//! Ledger: the one small object through which every change of what gangs hold is committed.
//!
//! A lease elects, it does not fence: two controllers may both believe that they lead. What makes
//! that harmless is that every admission and every eviction is first one compare-and-swap
//! (resourceVersion) of this object, and that each write carries the `leaderEpoch`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    charge::Charge,
    gang::{EvictionFault, NodeRanks},
    reason::Reason,
};

/// Intents that are not yet carried out. Internal: one object, named `cluster`.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomResource, KubeSchema,
)]
#[kube(
    group = "muster.dev",
    version = "v1alpha1",
    kind = "Ledger",
    plural = "ledgers",
    category = "muster",
    doc = "Internal to Muster: the changes of what gangs hold, committed before they are carried out.",
    printcolumn(name = "Epoch", json_path = ".spec.leaderEpoch", type_ = "integer"),
    printcolumn(name = "Sequence", json_path = ".spec.sequence", type_ = "integer")
)]
#[serde(rename_all = "camelCase")]
pub struct LedgerSpec {
    /// Raised by each controller that takes over; 0 while nobody has. The first one is above the resourceVersion under which
    /// the object was made, so that no epoch comes twice where an earlier Ledger was lost. Nobody writes over a higher one.
    pub leader_epoch: i64,
    /// Raised by one by each write that adds intents; 0: nothing was committed to this object yet.
    pub sequence: i64,
    /// What is committed and not yet fully carried out, in the order of commitment. There are no totals.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub intents: Vec<Intent>,
    /// For which nodes gangs were evicted lately though nothing was proved, which were given leave to reset GPUs, and whether that was too
    /// much. It is written by the same write that commits the evictions, and before any leave.
    #[serde(default, skip_serializing_if = "Breaker::is_untouched")]
    pub breaker: Breaker,
}

/// The circuit breaker: more nodes at once than it allows are rather a false alarm than so many broken machines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Breaker {
    /// Nodes for which gangs were evicted, or that were given leave to reset GPUs, as far as they may count still;
    /// ascending by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drained: Vec<EvacuatedNode>,
    /// Nodes of first ranks of gangs that were evicted for making no progress.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stalled: Vec<EvacuatedNode>,
    /// Since when it is open: nothing is evicted for faults, silent nodes or a lack of progress until a person closes it
    /// (`muster-controller reset-breaker`). Absent while it is closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened_at: Option<Time>,
    /// Why it is open, with numbers, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl Breaker {
    /// Whether it says nothing.
    pub fn is_untouched(&self) -> bool {
        *self == Self::default()
    }
}

/// A node that was evacuated, or was given leave to reset GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EvacuatedNode {
    /// Its name.
    pub node: String,
    /// When that was committed last.
    pub at: Time,
}

/// One change of what a gang holds. An Admit stays until every pod is ungated and every permit is
/// seen; an Evict until the Gang carries it and every permit of its plan is withdrawn.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Intent {
    /// Sequence of the write that added it.
    pub sequence: i64,
    /// Epoch of the leader that added it.
    pub leader_epoch: i64,
    /// Admit or Evict.
    pub kind: IntentKind,
    /// Namespace of the Gang.
    pub namespace: String,
    /// Name of the Gang.
    pub name: String,
    /// UID of the Gang.
    pub gang_uid: String,
    /// Attempt that is admitted or evicted.
    pub attempt: i64,
    /// Why the attempt is evicted; absent on Admit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Reason>,
    /// With the cause `DeviceFault`: which fault it is, as it was confirmed. The Gang records it: what held the device may be gone
    /// before the Gang says that it is evicted, whoever leads by then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<EvictionFault>,
    /// The Team that is charged.
    pub team: String,
    /// Generation of the Team whose limits the decision was judged by.
    pub team_generation: i64,
    /// Digest of the proposal that the Gang carries, if that says what is committed. Then `charge`, `pods`, `plan`, `level`
    /// and `domain` are empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// With a digest: the nodes of the plan, ascending. They are named here too, so that the attempt can be taken back
    /// though its Gang is gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// What is charged until the intent leaves the Ledger.
    pub charge: Charge,
    /// The pods that are admitted, rank by rank.
    pub pods: Vec<IntentPod>,
    /// How many pods the gang has, where fewer are admitted; absent where all are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4096))]
    pub gang_size: Option<i32>,
    /// How many indexes of its Job were done before, where an Indexed Job owns it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub done_before: Option<i32>,
    /// Name of the PriorityTier that the gang is admitted by, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub tier: Option<String>,
    /// The plan, run-length by node in rank order.
    pub plan: Vec<NodeRanks>,
    /// The narrowest level whose one domain holds the plan; absent if none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// Path of label values of that domain, outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub domain: Vec<String>,
}

/// One pod of an intent; its rank is its place in the list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IntentPod {
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
    /// UIDs of its claims, ascending; `POD_UID/RESOURCE` for what a device plugin hands out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<String>,
}

/// What an intent is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum IntentKind {
    /// The gang gets its charge and its plan.
    #[default]
    Admit,
    /// The attempt ends and gives back what it holds.
    Evict,
}
