//! Team: who owns quota.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    fairness::AdmissionFairness, quantity::Quantity, queue::QueueLimit, quota::FlavorQuota,
};

/// A Team owns quota. A namespace belongs to at most one Team, by its label `muster.dev/team`.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomResource, KubeSchema,
)]
#[kube(
    group = "muster.dev",
    version = "v1alpha1",
    kind = "Team",
    plural = "teams",
    category = "muster",
    status = "TeamStatus",
    doc = "Who owns quota: what is guaranteed, what may be borrowed and lent, and how its gangs queue.",
    printcolumn(name = "Cohort", json_path = ".spec.cohort", type_ = "string"),
    printcolumn(name = "Flavor", json_path = ".status.limits[?(@.resource==\"gpus\")].flavor", type_ = "string", description = "The first Flavor of the quota that limits GPUs"),
    printcolumn(name = "GPUs", json_path = ".status.limits[?(@.resource==\"gpus\")].nominal", type_ = "string", description = "Nominal GPUs of that Flavor; all of the quota with -o wide"),
    printcolumn(name = "Used", json_path = ".status.limits[?(@.resource==\"gpus\")].used", type_ = "string", description = "GPUs of that Flavor in use; all resources with -o wide"),
    printcolumn(name = "Admitted", json_path = ".status.admittedGangs", type_ = "integer", description = "Gangs that hold quota"),
    printcolumn(name = "Pending", json_path = ".status.pendingGangs", type_ = "integer", description = "Gangs that wait"),
    printcolumn(name = "Share", json_path = ".status.weightedShare", type_ = "integer", description = "Thousandths of what could be lent to it that it borrows, for its weight", priority = 1),
    printcolumn(name = "Queueing", json_path = ".spec.queueing", type_ = "string"),
    printcolumn(name = "Stop", json_path = ".spec.stop", type_ = "string"),
    printcolumn(name = "Active", json_path = ".status.conditions[?(@.type==\"Active\")].status", type_ = "string", description = "Whether its gangs may be admitted"),
    printcolumn(name = "Reason", json_path = ".status.conditions[?(@.type==\"Active\")].reason", type_ = "string", priority = 1),
    printcolumn(name = "Resolved", json_path = ".status.conditions[?(@.type==\"ResolvedRefs\")].status", type_ = "string", description = "Whether all that it names exists and is understood", priority = 1),
    printcolumn(name = "Quota", json_path = ".spec.quota", type_ = "string", priority = 1),
    printcolumn(name = "Use", json_path = ".status.limits", type_ = "string", priority = 1),
    printcolumn(name = "Age", json_path = ".metadata.creationTimestamp", type_ = "date"),
    validation = ("has(self.spec.cohort) || !has(self.spec.quota) || self.spec.quota.all(q, q.resources.all(r, !has(r.borrowingLimit) && !has(r.lendingLimit)))", "borrowingLimit and lendingLimit need a cohort"),
    validation = ("has(self.spec.vramDefault) == (has(self.spec.vram) && self.spec.vram == 'Default')", "vramDefault goes with vram: Default: say both or neither")
)]
#[serde(rename_all = "camelCase")]
pub struct TeamSpec {
    /// The Cohort that this Team lends to and borrows from; alone without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub cohort: Option<String>,
    /// Quota per Flavor, in the order in which Flavors are tried.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["flavor".into()]))]
    #[schemars(length(max = 16))]
    pub quota: Vec<FlavorQuota>,
    /// Whether a gang that does not fit holds up those behind it on the Flavors that it could use.
    #[serde(default)]
    pub queueing: Queueing,
    /// How a gang's Flavor is chosen where several come into question.
    #[serde(default)]
    pub flavor_fungibility: FlavorFungibility,
    /// How much of what is lent is this Team's fair share, beside the weights of its siblings: 1 without it. At 0 it is
    /// served after all who have a weight. It counts where the root Cohort shares `Fair`, and where several quotas are `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fair_share_weight: Option<Quantity>,
    /// Fairness among the namespaces of the Team: of gangs of one tier those go first whose namespace used least, lately. Without it
    /// the order within a tier is by age alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission_fairness: Option<AdmissionFairness>,
    /// Whose gangs may be ended so that gangs of this Team can start.
    #[serde(default)]
    pub preemption: TeamPreemption,
    /// For how long a gang of this Team runs, or has been admitted without running yet, before it may be preempted, in seconds;
    /// its tier's counts if that is longer. 0 without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 604_800))]
    pub min_runtime_seconds: Option<i64>,
    /// Tiers that gangs of this Team may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tiers: Option<TeamTiers>,
    /// Whether new gangs are admitted, and whether admitted ones may stay.
    #[serde(default)]
    pub stop: Stop,
    /// What becomes of running gangs where the Team uses more than it may: its quota was lowered, or that of a Cohort from which it
    /// borrows, or `auto` quota followed GPUs that are gone.
    #[serde(default)]
    pub shrink: Shrink,
    /// Whether pods must say how much GPU memory they need.
    #[serde(default)]
    pub vram: VramPolicy,
    /// How much memory a pod of the Team needs that does not say it, where `vram` is `Default`: as in the annotation
    /// `muster.dev/vram`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vram_default: Option<Quantity>,
}

/// What the Team may use and uses; written by the controller alone, whenever it looks at the Team's Queues. Nothing is
/// decided by it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TeamStatus {
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
    /// Standard conditions: `Active`, `ResolvedRefs`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Order discipline of a Team's queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Queueing {
    /// A gang that does not fit is passed over.
    #[default]
    BestEffort,
    /// A gang that does not fit holds up those behind it on the Flavors that it could use.
    StrictFifo,
}

/// Whose gangs may be ended so that gangs of a Team can start. The words are Kueue's. Gangs whose tier says `Never`, or that have
/// no tier, are never ended for others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("!has(self.borrowWithinCohort) || !has(self.borrowWithinCohort.policy) || self.borrowWithinCohort.policy == 'Never' || !has(self.reclaimWithinCohort) || self.reclaimWithinCohort != 'Never'", "borrowWithinCohort says nothing where reclaimWithinCohort is Never"))]
pub struct TeamPreemption {
    /// Gangs of the Team itself.
    #[serde(default = "WithinTeam::lower_priority")]
    pub within_team: WithinTeam,
    /// Gangs of other Teams that borrow, where the Team needs no more than its own nominal quota or that of a Cohort that it is
    /// closer to.
    #[serde(default = "ReclaimWithinCohort::any")]
    pub reclaim_within_cohort: ReclaimWithinCohort,
    /// Gangs of other Teams that borrow, where the Team borrows itself. It says nothing where the root Cohort shares `Fair`.
    #[serde(default)]
    pub borrow_within_cohort: BorrowWithinCohort,
}

impl Default for TeamPreemption {
    fn default() -> Self {
        Self {
            within_team: WithinTeam::lower_priority(),
            reclaim_within_cohort: ReclaimWithinCohort::any(),
            borrow_within_cohort: BorrowWithinCohort::default(),
        }
    }
}

/// Which gangs of its own Team a gang may preempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WithinTeam {
    /// None.
    Never,
    /// Those of lower tiers.
    LowerPriority,
    /// Those of lower tiers, and those of equal ones that were queued later.
    LowerOrNewerEqualPriority,
}

impl WithinTeam {
    fn lower_priority() -> Self {
        Self::LowerPriority
    }
}

/// Which gangs of other Teams, which borrow, a gang may preempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ReclaimWithinCohort {
    /// None.
    Never,
    /// Those of lower tiers.
    LowerPriority,
    /// All of them.
    Any,
}

impl ReclaimWithinCohort {
    fn any() -> Self {
        Self::Any
    }
}

/// Whether a gang that will borrow itself may preempt gangs of other Teams.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("!has(self.maxPriorityThreshold) || self.policy != 'Never'", "maxPriorityThreshold says nothing where policy is Never"))]
pub struct BorrowWithinCohort {
    /// Which gangs.
    #[serde(default)]
    pub policy: BorrowPolicy,
    /// Only those whose tier has at most this value; without it all of lower tiers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_priority_threshold: Option<i32>,
}

/// Which gangs of other Teams a gang may preempt that will borrow itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BorrowPolicy {
    /// None.
    #[default]
    Never,
    /// Those of lower tiers.
    LowerPriority,
}

/// How the gangs of a Team choose between its Flavors. They are tried in the order of the quota; the words are Kueue's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("!has(self.preference) || (self.whenCanBorrow == 'TryNextFlavor' && self.whenCanPreempt == 'TryNextFlavor')", "preference needs whenCanBorrow and whenCanPreempt to be TryNextFlavor: else the first Flavor of a kind ends the search"))]
pub struct FlavorFungibility {
    /// Whether the search ends with a Flavor that is free, but on which the gang would borrow.
    #[serde(default = "FlavorFungibility::may_stop")]
    pub when_can_borrow: AtAPrice,
    /// Whether the search ends with a Flavor that the gang can have if others give way.
    #[serde(default = "FlavorFungibility::try_next")]
    pub when_can_preempt: AtAPrice,
    /// Which Flavor is the better one, of those that were tried; `BorrowingOverPreemption` without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preference: Option<FlavorPreference>,
}

impl FlavorFungibility {
    fn may_stop() -> AtAPrice {
        AtAPrice::MayStopSearch
    }

    fn try_next() -> AtAPrice {
        AtAPrice::TryNextFlavor
    }
}

impl Default for FlavorFungibility {
    fn default() -> Self {
        Self {
            when_can_borrow: Self::may_stop(),
            when_can_preempt: Self::try_next(),
            preference: None,
        }
    }
}

/// What is done about a Flavor that the gang can have at a price.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AtAPrice {
    /// It is taken: the search ends.
    MayStopSearch,
    /// The next Flavors are tried as well, and the best of all is taken.
    TryNextFlavor,
}

/// Which price for a Flavor is the lower one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FlavorPreference {
    /// Rather borrow than have others give way.
    BorrowingOverPreemption,
    /// Rather have others give way than borrow.
    PreemptionOverBorrowing,
}

/// Tiers that a Team may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TeamTiers {
    /// Names of the allowed PriorityTiers; all of them if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed: Vec<String>,
    /// Tier of a gang that names none; the tier marked `default` without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
}

/// Whether a Team is stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Stop {
    /// Gangs are admitted.
    #[default]
    None,
    /// No gang is admitted; admitted ones stay.
    Hold,
    /// No gang is admitted, and admitted ones are evicted.
    HoldAndDrain,
}

/// What becomes of running gangs of a Team that uses more than it may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Shrink {
    /// They stay until they end. Nobody is admitted beyond the limits meanwhile.
    #[default]
    Keep,
    /// So many are evicted that the others are within the limits, once that has been so for a minute, and each with the notice of its
    /// tier. Those of lower tiers go first; neither `preemption: Never` of a tier nor a minimum run time holds it off.
    Evict,
}

/// What becomes of a pod with GPUs that does not say how much GPU memory it needs: neither by `muster.dev/vram`, nor by a claim that
/// asks for a capacity, for devices of a profile, or for devices by their memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VramPolicy {
    /// It is refused, with the list of the GPUs that there are.
    Required,
    /// Where it asks for GPUs by `muster.dev/gpus`, each has `vramDefault` at least. A claim cannot be changed: with one that says
    /// nothing the pod is let through, with a warning.
    Default,
    /// Nothing: it is let through.
    #[default]
    Off,
}
