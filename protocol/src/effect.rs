//! What the machine asks to be done, and what came of it.
//!
//! Every write names the object, carries a precondition where two could race, and is safe to repeat:
//! an answer that never came ([`Outcome::Unknown`]) is settled by reading the object again.

use std::sync::Arc;

use muster_api::keys;
use muster_api::{
    CohortStatus, FlavorStatus, Gang, GangStatus, LedgerSpec, NodeDevicesSpec, PriorityTierStatus,
    QueueStatus, Reason, TeamStatus,
};
use serde_json::Value;

use crate::outward::force;
use muster_cluster::object::{Kind, Object, ObjectKey};

/// Number of an effect, unique within one leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EffectId(pub u64);

/// Something to be done.
#[derive(Clone, Debug)]
pub struct Effect {
    /// Its number, by which its outcome is reported.
    pub id: EffectId,
    /// What it writes. At most one write per object is under way at a time. Shared with the table of writes under way,
    /// which repeats it word by word until it is answered.
    pub write: Arc<ApiRequest>,
}

impl Effect {
    /// Something to be done, which nobody else knows of yet.
    pub(crate) fn new(id: EffectId, write: ApiRequest) -> Self {
        let write = Arc::new(write);
        Self { id, write }
    }
}

/// A write to the API server, or a read that must not come from a cache.
///
/// `resource_version` is a precondition everywhere: the write fails with [`Outcome::Conflict`] if the
/// object is no longer what the machine saw.
#[derive(Clone, Debug)]
pub enum ApiRequest {
    /// Reads one object uncached and writes nothing: the outcome is [`Outcome::Done`] with the object,
    /// or [`Outcome::NotFound`].
    ReadObject {
        /// Which object.
        key: ObjectKey,
    },
    /// Lists a kind uncached and watches it from there; writes nothing. The list is begun after this
    /// effect was returned and handed over as [`muster_cluster::object::Change::Listed`] **before**
    /// [`Outcome::Done`] (without an object) is reported. What was observed of that kind before counts
    /// for nothing, and a watch that was open before is closed.
    ReadAll {
        /// Which kind.
        kind: Kind,
    },
    /// Creates the Ledger. `AlreadyExists` counts as a conflict.
    CreateLedger {
        /// Its first content.
        spec: LedgerSpec,
    },
    /// Replaces the content of the Ledger: the commit of every admission and eviction.
    ReplaceLedger {
        /// The content that is replaced.
        resource_version: String,
        /// The new content.
        spec: LedgerSpec,
    },
    /// Creates a Gang. `AlreadyExists` counts as a conflict.
    CreateGang {
        /// The object; its status is written by a write of its own.
        gang: Box<Gang>,
    },
    /// Replaces the status of a Gang.
    ReplaceGangStatus {
        /// Which Gang.
        key: ObjectKey,
        /// Its UID: a Gang made again under the same name is not meant.
        uid: String,
        /// The object that is replaced.
        resource_version: String,
        /// The new status.
        status: Box<GangStatus>,
        /// Whether it changes nothing but what people read: neither the attempt, nor what the Gang holds or is proposed by it,
        /// nor whether it ended.
        tells: bool,
    },
    /// Deletes a Gang that ended an hour ago.
    DeleteGang {
        /// Which Gang.
        key: ObjectKey,
        /// Its UID.
        uid: String,
        /// The object that is deleted: one that was taken up again meanwhile is not meant.
        resource_version: String,
    },
    /// Creates the `NodeDevices` of a node, with its finalizer if it has permits: a machine gives it none, since
    /// whenever it comes, it must permit nothing. `AlreadyExists` counts as a conflict.
    CreateNodeDevices {
        /// The node.
        node: String,
        /// Its first content.
        spec: NodeDevicesSpec,
    },
    /// Replaces the spec of a `NodeDevices`, and sets or takes its finalizer with the permits.
    ReplaceNodeDevices {
        /// The node.
        node: String,
        /// Its UID.
        uid: String,
        /// The object that is replaced.
        resource_version: String,
        /// The new content.
        spec: NodeDevicesSpec,
        /// Whether the object has the finalizer afterwards.
        finalizer: bool,
    },
    /// Removes the `NodeDevices` of a node that is gone, once it has no permit.
    DeleteNodeDevices {
        /// The node.
        node: String,
        /// Its UID.
        uid: String,
        /// The object that is removed: one that was written meanwhile is not meant.
        resource_version: String,
    },
    /// A JSON patch of a pod: rank, attempt, pin and gate in one, or a stamp.
    PatchPod {
        /// Which pod.
        key: ObjectKey,
        /// JSON Patch operations; they test `/metadata/uid` and `/metadata/resourceVersion` first.
        patch: Value,
    },
    /// A JSON patch of a pod's status: the condition that it is about to be evicted.
    PatchPodStatus {
        /// Which pod.
        key: ObjectKey,
        /// JSON Patch operations; they test `/metadata/uid` and `/metadata/resourceVersion` first.
        patch: Value,
    },
    /// Deletes a pod of an attempt that is over, with the grace period of its own.
    DeletePod {
        /// Which pod.
        key: ObjectKey,
        /// Its UID: one made again under the same name is not meant.
        uid: String,
        /// What it is given instead, in seconds. Where its own is 0 that would be a deletion by force.
        grace_period_seconds: Option<u32>,
    },
    /// Deletes a pod of an attempt that is over and that does not die, without any grace period: its kubelet is not waited for.
    ForceDeletePod {
        /// Which pod.
        key: ObjectKey,
        /// Its UID: one made again under the same name is not meant.
        uid: String,
        /// The object that was judged: what its owner, or its kubelet, has written since is to be judged first.
        resource_version: String,
    },
    /// A JSON patch of a Job whose pods are evicted: suspended or resumed, together with the annotation that says so, or
    /// its `backoffLimit` raised.
    PatchJob {
        /// Which Job.
        key: ObjectKey,
        /// What it changes.
        change: JobChange,
        /// JSON Patch operations; they test `/metadata/uid` and `/metadata/resourceVersion` first.
        patch: Value,
    },
    /// Creates a Queue, or replaces its status.
    PublishQueue {
        /// Namespace of the Queue.
        namespace: String,
        /// The Team, and the name of the Queue.
        team: String,
        /// The new status.
        status: Box<QueueStatus>,
    },
    /// Replaces the status of a Team.
    PublishTeam {
        /// The Team.
        team: String,
        /// The new status.
        status: Box<TeamStatus>,
    },
    /// Replaces the status of a Cohort.
    PublishCohort {
        /// The Cohort.
        cohort: String,
        /// The new status.
        status: Box<CohortStatus>,
    },
    /// Replaces the status of a Flavor.
    PublishFlavor {
        /// The Flavor.
        flavor: String,
        /// The new status.
        status: Box<FlavorStatus>,
    },
    /// Replaces the status of a PriorityTier.
    PublishPriorityTier {
        /// The PriorityTier.
        tier: String,
        /// The new status.
        status: Box<PriorityTierStatus>,
    },
    /// Removes a Queue whose namespace no longer belongs to the Team.
    DeleteQueue {
        /// Which Queue.
        key: ObjectKey,
    },
    /// Publishes an Event. Losing one harms nobody; its outcome is not awaited for anything else.
    PublishEvent(EventNote),
}

/// What a write changes of a Job whose pods are evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobChange {
    /// It is suspended.
    Suspend,
    /// It is resumed, or what says that Muster suspended it goes because somebody else resumed it.
    Resume,
    /// Its `backoffLimit` is raised.
    RaiseBackoffLimit,
    /// Its `backoffLimit` is what it was before Muster raised it.
    RestoreBackoffLimit,
}

/// A change that the API server may refuse for good: one of an object may be forbidden, and another not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Refusable {
    /// A pod is changed.
    Pod,
    /// A pod is told that it is about to be deleted.
    PodCondition,
    /// A pod is deleted.
    PodDeletion,
    /// A pod is deleted by force.
    ForcedPodDeletion,
    /// A Job is changed.
    Job(JobChange),
}

impl ApiRequest {
    /// What may be refused for good, if it may.
    pub(crate) fn refusable(&self) -> Option<Refusable> {
        match self {
            Self::PatchPod { .. } => Some(Refusable::Pod),
            Self::PatchPodStatus { .. } => Some(Refusable::PodCondition),
            Self::DeletePod { .. } => Some(Refusable::PodDeletion),
            Self::ForceDeletePod { .. } => Some(Refusable::ForcedPodDeletion),
            Self::PatchJob { change, .. } => Some(Refusable::Job(*change)),
            _ => None,
        }
    }

    /// Whether it is right only as long as what was read for it is new: where it is never answered it is not sent again as it is, but judged
    /// anew.
    pub(crate) fn is_judged_anew(&self) -> bool {
        matches!(self, Self::ForceDeletePod { .. })
    }

    /// How long it may wait for its turn, in seconds: what was read for it is not new any more after that. Whoever is to send it does not
    /// then, and answers [`Outcome::Unknown`]. `None`: as long as it takes.
    pub fn expires_after_seconds(&self) -> Option<u64> {
        self.is_judged_anew().then_some(force::FRESH_SECONDS)
    }

    /// The object that is written; `None` for an Event and for reads.
    pub fn target(&self) -> Option<ObjectKey> {
        let cluster = |kind, name: &str| ObjectKey {
            kind,
            namespace: String::new(),
            name: name.to_owned(),
        };
        Some(match self {
            Self::ReadObject { .. } | Self::ReadAll { .. } | Self::PublishEvent(_) => return None,
            Self::CreateLedger { .. } | Self::ReplaceLedger { .. } => {
                cluster(Kind::Ledger, keys::LEDGER_NAME)
            }
            Self::CreateGang { gang } => ObjectKey {
                kind: Kind::Gang,
                namespace: gang.metadata.namespace.clone().unwrap_or_default(),
                name: gang.metadata.name.clone().unwrap_or_default(),
            },
            Self::ReplaceGangStatus { key, .. }
            | Self::DeleteGang { key, .. }
            | Self::PatchPod { key, .. }
            | Self::PatchPodStatus { key, .. }
            | Self::DeletePod { key, .. }
            | Self::ForceDeletePod { key, .. }
            | Self::PatchJob { key, .. }
            | Self::DeleteQueue { key } => key.clone(),
            Self::CreateNodeDevices { node, .. }
            | Self::ReplaceNodeDevices { node, .. }
            | Self::DeleteNodeDevices { node, .. } => cluster(Kind::NodeDevices, node),
            Self::PublishQueue {
                namespace, team, ..
            } => ObjectKey {
                kind: Kind::Queue,
                namespace: namespace.clone(),
                name: team.clone(),
            },
            Self::PublishTeam { team, .. } => cluster(Kind::Team, team),
            Self::PublishCohort { cohort, .. } => cluster(Kind::Cohort, cohort),
            Self::PublishFlavor { flavor, .. } => cluster(Kind::Flavor, flavor),
            Self::PublishPriorityTier { tier, .. } => cluster(Kind::PriorityTier, tier),
        })
    }
}

/// An Event to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventNote {
    /// The object that it is about: a Gang, its owner, or a pod.
    pub api_version: String,
    /// Kind of that object.
    pub kind: String,
    /// Namespace of that object.
    pub namespace: String,
    /// Name of that object.
    pub name: String,
    /// UID of that object.
    pub uid: String,
    /// Whether it is a warning.
    pub warning: bool,
    /// The stable reason.
    pub reason: Reason,
    /// With numbers, for people; at most 1,024 bytes.
    pub note: String,
}

/// What came of an effect.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Done; the object as it is now, if it has one. Of what was written no more than the version may be told, and of the Ledger its UID
    /// and its epoch: what else the machine goes by it takes from the watches.
    Done(Option<Object>),
    /// The precondition did not hold (409, or a failed test of a patch), or the object exists already.
    Conflict,
    /// The object does not exist (any more).
    NotFound,
    /// Refused for good, with the answer (400, 403, 422).
    Refused(String),
    /// No answer, or one that says nothing about whether it was done: to be settled by reading again.
    Unknown,
}
