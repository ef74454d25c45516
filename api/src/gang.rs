//! Gang: pods that start together or not at all.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{charge::Charge, reason::Reason};

/// Pods that start together or not at all. Made and kept by the controller; a user may change only
/// `suspend` and `tier`.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomResource, KubeSchema,
)]
#[kube(
    group = "muster.dev",
    version = "v1alpha1",
    kind = "Gang",
    plural = "gangs",
    namespaced,
    category = "muster",
    status = "GangStatus",
    doc = "Pods that start together or not at all.",
    printcolumn(name = "Team", json_path = ".status.team", type_ = "string"),
    printcolumn(name = "Tier", json_path = ".status.tier", type_ = "string"),
    printcolumn(name = "Size", json_path = ".spec.size", type_ = "integer"),
    printcolumn(name = "Phase", json_path = ".status.phase", type_ = "string"),
    printcolumn(name = "Reason", json_path = ".status.queue.reason", type_ = "string"),
    printcolumn(
        name = "Attempt",
        json_path = ".status.attempt",
        type_ = "integer",
        priority = 1
    ),
    printcolumn(
        name = "Suspended",
        json_path = ".spec.suspend",
        type_ = "boolean",
        priority = 1
    ),
    printcolumn(
        name = "Details",
        json_path = ".status.queue.details",
        type_ = "string",
        priority = 1
    ),
    printcolumn(
        name = "Age",
        json_path = ".metadata.creationTimestamp",
        type_ = "date"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct GangSpec {
    /// Pods that the gang has when it is complete, 1 to 4,096.
    #[schemars(range(min = 1, max = 4096))]
    pub size: i32,
    /// With how many of its pods it may start at the least, the first by rank; with all of them only without it. The others
    /// wait for its next attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4096))]
    pub min_count: Option<i32>,
    /// Value of the label `muster.dev/gang` by which its pods were declared; absent for the gang of a Job and for a single
    /// pod. By it the Gang is found again once the pods that gave it its name are gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Pods that ask for the same thing, in rank order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pod_sets: Vec<PodSet>,
    /// Name of the PriorityTier; the Team's or the cluster's default without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub tier: Option<String>,
    /// Where the gang must or should be placed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<TopologyRequest>,
    /// Longest time without progress of a start, in seconds.
    #[serde(default = "default_start_timeout_seconds")]
    #[schemars(range(min = 1))]
    pub start_timeout_seconds: i64,
    /// For how long an attempt runs at most, counted from its admission, in seconds; no limit without it. Then it is evicted,
    /// and the gang is not started again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_runtime_seconds: Option<i64>,
    /// Limits of restarts.
    #[serde(default)]
    pub restart: RestartPolicy,
    /// Whether a user holds the gang back.
    #[serde(default)]
    pub suspend: bool,
    /// Number of its first attempt: above whatever pods and permits of its name carried when it was made.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub first_attempt: i64,
}

/// Images are large: ten minutes until the first container runs is no failure yet.
fn default_start_timeout_seconds() -> i64 {
    600
}

/// Pods of a gang that ask for the same thing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodSet {
    /// Name, unique in the gang.
    pub name: String,
    /// Number of pods.
    pub count: i32,
}

/// Where a gang must or should be placed: the name of a level of its Topology.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologyRequest {
    /// The level whose one domain must hold the whole gang.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required: Option<String>,
    /// The level whose one domain should hold the whole gang.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred: Option<String>,
}

/// Limits of restarts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestartPolicy {
    /// How long a rank may have failed while others of its attempt go on, in seconds; then the attempt is evicted. 60
    /// without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub failure_grace_seconds: Option<i64>,
    /// How often the gang is started anew at most after attempts of which pods failed by themselves; no limit without it. What faults,
    /// nodes, administrators and other gangs end does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub max_restarts: Option<i32>,
    /// For how long an attempt that tells of its progress may tell none, in seconds; then it is evicted. No limit without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub progress_deadline_seconds: Option<i64>,
}

/// Where a gang is in its life.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum GangPhase {
    /// Not all its pods exist yet.
    #[default]
    Assembling,
    /// Complete, waits for quota or place.
    Pending,
    /// Holds quota and a placement; its pods are being started.
    Admitted,
    /// All its pods run.
    Running,
    /// Its attempt ended by a fault; quota is kept while its pods are made anew.
    Recovering,
    /// Its attempt is being ended.
    Evicting,
    /// All its pods ended, none failed; or its Job is complete.
    Finished,
    /// Ended with a reason.
    Failed,
}

/// State of a gang; written by the controller alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GangStatus {
    /// Epoch of the leader that wrote this status last. Nobody writes over a higher one.
    #[serde(default)]
    pub leader_epoch: i64,
    /// Where the gang is in its life.
    #[serde(default)]
    pub phase: GangPhase,
    /// Number of the current attempt, from 1. Everything done for the gang carries it.
    #[serde(default)]
    pub attempt: i64,
    /// The Team of its namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
    /// Name of the PriorityTier that counts: the one in `spec`, else the Team's default, else the cluster's. Absent if
    /// there is none, or the Team may not use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
    /// What it holds; absent while it holds nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<Admission>,
    /// Where its pods are to run; absent while it holds nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<GangPlacement>,
    /// An admission that is too large for the Ledger, which commits it by its digest. By itself it has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proposal: Option<Proposal>,
    /// Why it waits; absent while it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<WaitReason>,
    /// Standard conditions: `Admitted`, `Running`, `Finished`, `Degraded`, `Evicted`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Generation of `spec` that this status speaks about.
    #[serde(default)]
    pub observed_generation: i64,
    /// Since when the gang queues: when it was complete for the first time. It keeps its place though its pods are made
    /// again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_at: Option<Time>,
    /// When it may be admitted again after an eviction, if not at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requeue_at: Option<Time>,
    /// The last evictions of its attempts, at most 8, the latest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evictions: Vec<Eviction>,
    /// How many of its attempts ended since pods of them failed by themselves.
    #[serde(default, skip_serializing_if = "is_none_yet")]
    pub failed_attempts: i32,
    /// How many pods failed by themselves in these attempts. More of them than the `backoffLimit` of its Job says as its user wrote it, and the
    /// Job fails, unless the gang says how often it may be started anew.
    #[serde(default, skip_serializing_if = "is_none_yet")]
    pub failed_pods: i32,
    /// How many pods its earlier attempts had together. So many of them failed at most, whatever ended the attempts: the `backoffLimit` of its Job is
    /// raised to cover them as well, though the Job is told to make fewer pods by now.
    #[serde(default, skip_serializing_if = "is_none_yet")]
    pub pods_of_past_attempts: i32,
    /// That its attempt is to give way to another gang, or was evicted for it and holds something still, or that it is to go since its Team uses
    /// more than it may; absent while it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption: Option<PreemptionNotice>,
    /// That others give way to it: what they free is kept for it. Absent while nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<Reservation>,
    /// That what its last attempt held is kept for it, as far as nobody has a right to it: that attempt ended by a fault, a lost node, or
    /// for want of progress, or pods of it failed and it may be started anew. Absent while nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<GangRecovery>,
    /// When the gang ended; it is removed an hour later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_none_yet(number: &i32) -> bool {
    *number == 0
}

/// An attempt that was taken back after pods of it were let go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Eviction {
    /// The attempt.
    pub attempt: i64,
    /// Why.
    pub reason: Reason,
    /// The same with numbers, for people.
    pub message: String,
    /// When.
    pub at: Time,
    /// The node where it failed, if it is the node's doing perhaps. New plans of the gang avoid it for six hours, where there is
    /// room elsewhere, or until an attempt runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// What its pods were made from, if that is known: the revision of a StatefulSet, else the UID of whoever controls them. Pods
    /// that are made from anything else end the pause after a failed start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// With `DeviceFault`: which fault it was. The gang is not evicted for that one again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<EvictionFault>,
}

/// A fault of a device that an attempt was evicted for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EvictionFault {
    /// The device, as `driver/pool/device`.
    pub device: String,
    /// What was wrong with it: a fault class, `Links/` and a class, or `Gone`.
    pub kind: String,
    /// Since when that was published.
    pub since: Time,
}

/// For how long what an attempt held is kept for its gang. What that was stands in `proposal` meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GangRecovery {
    /// The attempt that ended.
    pub attempt: i64,
    /// Why.
    pub reason: Reason,
    /// Since when.
    pub since: Time,
    /// Until when at the latest.
    pub until: Time,
}

/// The notice that an attempt is to give way to another gang, or to go since its Team uses more than it may (`shrink: Evict`). It is taken
/// back if that gang can do without, or is gone; or once others have given back enough, or may use more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PreemptionNotice {
    /// The attempt.
    pub attempt: i64,
    /// `namespace/name` of the gang that it gives way to; absent with `QuotaShrunk`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub preemptor: String,
    /// UID of that Gang.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub preemptor_uid: String,
    /// By what right.
    #[serde(default)]
    pub right: PreemptionRight,
    /// The same for people.
    pub message: String,
    /// Since when.
    pub noticed_at: Time,
    /// When it is evicted at the latest, unless the controller is away. Its pods carry the same in `muster.dev/preempt-at`.
    pub preempt_at: Time,
}

/// By what right a gang preempts another one, or that none does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PreemptionRight {
    /// It goes first in its Team.
    #[default]
    InTeam,
    /// Its Team has quota back that the Team of the other one borrows.
    Reclaimed,
    /// Its Team has a smaller share.
    FairShare,
    /// It has the higher tier, and both Teams borrow.
    ReclaimedWhileBorrowing,
    /// No gang asks for it: its own Team uses more than it may.
    QuotaShrunk,
}

/// What is kept for a gang to which others give way. A new leader goes on keeping it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reservation {
    /// The Flavor on which the gang is to be admitted.
    pub flavor: String,
    /// How many gangs give way to it. Each says so itself, in its `preemption`.
    pub victim_count: i32,
    /// The first of them by UID, at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub victims: Vec<ReservationVictim>,
    /// Since when.
    pub since: Time,
    /// Until when at the latest.
    pub until: Time,
}

impl Reservation {
    /// Most gangs that one names.
    pub const VICTIMS_NAMED: usize = 16;
}

/// A gang that gives way to another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReservationVictim {
    /// `namespace/name` of the Gang.
    pub gang: String,
    /// Its UID.
    pub uid: String,
    /// The attempt that gives way.
    pub attempt: i64,
    /// By what right.
    pub right: PreemptionRight,
}

/// What a gang is to hold and where, written before the Ledger names it. It counts only while an intent of the Ledger names
/// this Gang, this attempt and this digest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Proposal {
    /// The attempt that is to be admitted.
    pub attempt: i64,
    /// SHA-256, in hexadecimal, of what is proposed, the Gang's UID and the attempt included.
    pub digest: String,
    /// What the gang is to hold; its `ledgerSequence` is 0.
    pub admission: Admission,
    /// Where its pods are to run.
    pub placement: GangPlacement,
}

/// What an admitted gang holds. Members, ranks and charge are fixed by it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Admission {
    /// The Team that is charged.
    pub team: String,
    /// Generation of the Team whose limits the decision was judged by (invariant S1).
    pub team_generation: i64,
    /// Sequence of the Ledger write that committed it.
    pub ledger_sequence: i64,
    /// What is charged.
    pub charge: Charge,
    /// Its pods, rank by rank.
    pub pods: Vec<AdmittedPod>,
    /// How many pods the gang had, where fewer were admitted; absent where all were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4096))]
    pub gang_size: Option<i32>,
    /// How many indexes of its Job were done before, where an Indexed Job owns it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub done_before: Option<i32>,
    /// Name of the PriorityTier it was admitted by, if there was one. Whoever may have borrowed by that gives it back by that, though
    /// its tier is another by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub tier: Option<String>,
    /// Whether the gang was found running without an admission and charged as it is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adopted: bool,
}

/// One pod of an admitted gang; its rank is its place in the list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdmittedPod {
    /// UID of the pod.
    pub uid: String,
    /// UIDs of its claims, ascending; `POD_UID/RESOURCE` for what a device plugin hands out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<String>,
}

/// Where a gang is to run: run-length by node, in rank order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GangPlacement {
    /// Nodes in rank order: the first entry holds the first `ranks` ranks, and so on.
    pub nodes: Vec<NodeRanks>,
    /// The narrowest level whose one domain holds the gang; absent if none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// Path of label values of that domain, outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub domain: Vec<String>,
}

/// Consecutive ranks on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeRanks {
    /// Name of the node.
    pub node: String,
    /// UID of the node when the plan was made.
    pub node_uid: String,
    /// Number of consecutive ranks.
    pub ranks: i32,
}

/// Why a gang waits. Its place among the waiting gangs of its Team is listed in the Queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitReason {
    /// The stable reason.
    pub reason: Reason,
    /// The same with numbers, for people.
    pub details: String,
    /// Since when that is the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

impl GangPlacement {
    /// The node of a rank, if the placement covers it.
    pub fn node_of(&self, rank: usize) -> Option<&NodeRanks> {
        let mut first = 0_usize;
        self.nodes.iter().find(|run| {
            first += usize::try_from(run.ranks).unwrap_or(0);
            rank < first
        })
    }
}
