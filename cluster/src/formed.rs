//! Gangs as they are formed from pods: the hand-over from the edge to the protocol.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use muster_api::{Gang, GangPhase, GangSpec, PriorityTierSpec, Reason, TierPreemption, keys};
use muster_engine as engine;

/// `namespace/name` of a Gang. Shared: a dozen tables know a gang by it, and its text is kept once.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct GangKey(Arc<GangName>);

/// What a [`GangKey`] says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GangName {
    /// Namespace.
    pub namespace: String,
    /// Name of the Gang object.
    pub name: String,
}

impl GangKey {
    /// The Gang of that name in that namespace.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self(Arc::new(GangName {
            namespace: namespace.into(),
            name: name.into(),
        }))
    }

    /// Reads `namespace/name`, as it is displayed; `None` of anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let (namespace, name) = text.split_once('/')?;
        Some(Self::new(namespace, name))
    }
}

impl std::ops::Deref for GangKey {
    type Target = GangName;

    fn deref(&self) -> &GangName {
        &self.0
    }
}

impl Ord for GangKey {
    /// By namespace, then by name. A key is most often compared with itself.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        if Arc::ptr_eq(&self.0, &other.0) {
            return std::cmp::Ordering::Equal;
        }
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for GangKey {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl std::fmt::Debug for GangKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(formatter)
    }
}

impl std::fmt::Display for GangKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

/// A gang as its pods (and its Job) declare it, at this moment. The edge forms it anew whenever one
/// of them changes; whether a Gang object exists for it is the protocol's business.
#[derive(Clone, Debug)]
pub struct FormedGang {
    /// Where its Gang object is, or is to be made.
    pub key: GangKey,
    /// The owner that the Gang object refers to, if its pods have one (`blockOwnerDeletion: false`).
    pub owner: Option<OwnerReference>,
    /// The spec that its Gang object is made with. Where the Gang exists, its `tier` and `suspend`
    /// are the Gang's, since users may change them there.
    pub spec: GangSpec,
    /// The Team of its namespace, if the namespace names one that exists.
    pub team: Option<engine::TeamName>,
    /// Name of the PriorityTier that counts: its own, its Team's default, or the cluster's. `None`: there is none, or
    /// the Team may not use it.
    pub tier: Option<String>,
    /// Value of its tier.
    pub priority: i32,
    /// How it may be preempted, as its tier and its Team say; not at all without a tier.
    pub preemptible: Preemptible,
    /// Creation time of its last pod (seconds since the Unix epoch): since when it queues if complete.
    pub last_pod_created_at: i64,
    /// Since when it queues, in seconds since the Unix epoch: the creation of its Gang object, which a pod that is made
    /// again does not change; before that, the creation of its last pod.
    pub queued_since: i64,
    /// Its members: pods that are neither terminal nor being deleted, in rank order, at most `spec.size`.
    pub pods: Vec<FormedPod>,
    /// Pods that are not members: surplus, or outside the admitted set. They stay gated.
    pub excess: Vec<PodIdentity>,
    /// Why it cannot be offered to the engine yet. `None`: complete and understood.
    pub wait: Option<PendingReason>,
    /// Whether it has ended, as its Job or all its pods say.
    pub ended: Option<Ended>,
    /// Whether its claims name only DeviceClasses that the chart excepts: ungated at once,
    /// placement `any`, never charged.
    pub excepted: bool,
    /// Whether nobody declared it: an Indexed Job, and a Job of one pod, is a gang by itself.
    pub implied: bool,
    /// Members that are bound to a node although their gang has no admission: what they hold is to
    /// be adopted, or reported as a bypass.
    pub unadmitted: Vec<PodIdentity>,
    /// Fields of its pods that say something about nodes and that the planner does not look at; a
    /// planned node may refuse the pod because of them. For people; the gang does not wait for it.
    pub unmodelled: Vec<String>,
}

impl FormedGang {
    /// The labels that its Gang object is made with, for people to select by. Nothing is decided by them: whoever may edit
    /// the Gang's metadata may change them.
    pub fn labels(&self) -> BTreeMap<String, String> {
        let label = self.spec.group.iter();
        label
            .map(|label| (keys::GANG.to_owned(), label.clone()))
            .collect()
    }
}

/// How a gang may be preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preemptible {
    /// When its attempt ends, once it is to give way.
    pub when: TierPreemption,
    /// How long before that its pods are told at the least, but for `AfterCheckpoint`: then it is the longest time to wait for
    /// a checkpoint. In seconds.
    pub notice_seconds: i64,
    /// For how long it runs before it may be preempted, in seconds.
    pub min_runtime_seconds: i64,
}

/// Of a gang without a tier, which nobody may preempt: it is told like others if its Team uses more than it may.
impl Default for Preemptible {
    fn default() -> Self {
        Self {
            when: TierPreemption::Never,
            notice_seconds: PriorityTierSpec::DEFAULT_NOTICE_SECONDS,
            min_runtime_seconds: 0,
        }
    }
}

/// One member of a gang.
#[derive(Clone, Debug)]
pub struct FormedPod {
    /// Which pod.
    pub identity: PodIdentity,
    /// Its rank, as its annotation says: the completion index where every pod has one of its own, otherwise the ordinal of
    /// a StatefulSet's pod, otherwise the position in the natural order of the names of the gang's pods, those that ended
    /// included. It stays the same in every attempt.
    pub rank: u32,
    /// Its place in the plan: the index into the admission of an admitted gang, otherwise into [`FormedGang::pods`]. After
    /// the first ranks of an Indexed Job succeeded it differs from `rank`.
    pub place: u32,
    /// What the engine needs to know; `None` while a claim does not exist yet or is not understood.
    pub request: Option<Arc<engine::Pod>>,
}

/// Which pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodIdentity {
    /// UID.
    pub uid: String,
    /// Name.
    pub name: String,
}

/// Longest [`PendingReason::details`] that are told, in bytes. They may quote what users wrote into annotations, which may
/// have 256 KiB, and a Queue lists a hundred of them.
pub const DETAILS_BYTES: usize = 1_024;

/// Why a gang waits, as far as its objects alone show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingReason {
    /// The stable reason.
    pub reason: Reason,
    /// With numbers and what would work instead.
    pub details: String,
}

/// Whether the Gang ended for good.
pub fn has_ended(gang: &Gang) -> bool {
    let phase = gang.status.as_ref().map(|status| status.phase);
    matches!(phase, Some(GangPhase::Finished | GangPhase::Failed))
}

/// How a gang ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All its pods succeeded, or its Job is complete.
    Finished,
    /// A pod failed for good, or its Job did; with what is known about it.
    Failed(String),
}
