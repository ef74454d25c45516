//! Kubernetes objects as they are observed, and changes of them.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Namespace, Node, Pod},
    resource::v1::{DeviceClass, ResourceClaim, ResourceSlice},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use muster_api::{Cohort, Flavor, Gang, Ledger, NodeDevices, PriorityTier, Queue, Team, Topology};

/// A kind that the controller watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// muster.dev Cohort.
    Cohort,
    /// resource.k8s.io DeviceClass.
    DeviceClass,
    /// muster.dev Flavor.
    Flavor,
    /// muster.dev Gang.
    Gang,
    /// batch Job.
    Job,
    /// muster.dev Ledger.
    Ledger,
    /// Namespace.
    Namespace,
    /// Node.
    Node,
    /// muster.dev NodeDevices.
    NodeDevices,
    /// Pod.
    Pod,
    /// muster.dev PriorityTier.
    PriorityTier,
    /// muster.dev Queue.
    Queue,
    /// resource.k8s.io ResourceClaim.
    ResourceClaim,
    /// resource.k8s.io ResourceSlice.
    ResourceSlice,
    /// muster.dev Team.
    Team,
    /// muster.dev Topology.
    Topology,
}

impl Kind {
    /// Every kind: what a leader reads anew is exactly what is watched.
    pub const ALL: [Self; 16] = [
        Self::Cohort,
        Self::DeviceClass,
        Self::Flavor,
        Self::Gang,
        Self::Job,
        Self::Ledger,
        Self::Namespace,
        Self::Node,
        Self::NodeDevices,
        Self::Pod,
        Self::PriorityTier,
        Self::Queue,
        Self::ResourceClaim,
        Self::ResourceSlice,
        Self::Team,
        Self::Topology,
    ];
}

/// Which object: unique among those that exist at one time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace; empty for cluster-scoped kinds.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// An observed object. Shared, because the index and a watch cache may both hold it.
#[derive(Clone, Debug)]
pub enum Object {
    /// muster.dev Cohort.
    Cohort(Arc<Cohort>),
    /// resource.k8s.io DeviceClass.
    DeviceClass(Arc<DeviceClass>),
    /// muster.dev Flavor.
    Flavor(Arc<Flavor>),
    /// muster.dev Gang.
    Gang(Arc<Gang>),
    /// batch Job.
    Job(Arc<Job>),
    /// muster.dev Ledger.
    Ledger(Arc<Ledger>),
    /// Namespace.
    Namespace(Arc<Namespace>),
    /// Node.
    Node(Arc<Node>),
    /// muster.dev NodeDevices.
    NodeDevices(Arc<NodeDevices>),
    /// Pod.
    Pod(Arc<Pod>),
    /// muster.dev PriorityTier.
    PriorityTier(Arc<PriorityTier>),
    /// muster.dev Queue.
    Queue(Arc<Queue>),
    /// resource.k8s.io ResourceClaim.
    ResourceClaim(Arc<ResourceClaim>),
    /// resource.k8s.io ResourceSlice.
    ResourceSlice(Arc<ResourceSlice>),
    /// muster.dev Team.
    Team(Arc<Team>),
    /// muster.dev Topology.
    Topology(Arc<Topology>),
}

/// A change of what is observed. Level-triggered: it may be told twice, late, or out of order with
/// changes of other objects (S10); of one object the newest resourceVersion told last wins.
#[derive(Clone, Debug)]
pub enum Change {
    /// The object is as given.
    Applied(Object),
    /// The object is gone.
    Deleted(ObjectKey),
    /// The whole list of a kind, after a (re-)list: what is not in it is gone.
    Listed(Kind, Vec<Object>),
    /// A list whose objects were told one by one is complete: what of the kind is not named is gone.
    ListedKeys(Kind, BTreeSet<ObjectKey>),
}

impl Object {
    /// Its metadata.
    pub fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::Cohort(object) => &object.metadata,
            Self::DeviceClass(object) => &object.metadata,
            Self::Flavor(object) => &object.metadata,
            Self::Gang(object) => &object.metadata,
            Self::Job(object) => &object.metadata,
            Self::Ledger(object) => &object.metadata,
            Self::Namespace(object) => &object.metadata,
            Self::Node(object) => &object.metadata,
            Self::NodeDevices(object) => &object.metadata,
            Self::Pod(object) => &object.metadata,
            Self::PriorityTier(object) => &object.metadata,
            Self::Queue(object) => &object.metadata,
            Self::ResourceClaim(object) => &object.metadata,
            Self::ResourceSlice(object) => &object.metadata,
            Self::Team(object) => &object.metadata,
            Self::Topology(object) => &object.metadata,
        }
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Cohort(_) => Kind::Cohort,
            Self::DeviceClass(_) => Kind::DeviceClass,
            Self::Flavor(_) => Kind::Flavor,
            Self::Gang(_) => Kind::Gang,
            Self::Job(_) => Kind::Job,
            Self::Ledger(_) => Kind::Ledger,
            Self::Namespace(_) => Kind::Namespace,
            Self::Node(_) => Kind::Node,
            Self::NodeDevices(_) => Kind::NodeDevices,
            Self::Pod(_) => Kind::Pod,
            Self::PriorityTier(_) => Kind::PriorityTier,
            Self::Queue(_) => Kind::Queue,
            Self::ResourceClaim(_) => Kind::ResourceClaim,
            Self::ResourceSlice(_) => Kind::ResourceSlice,
            Self::Team(_) => Kind::Team,
            Self::Topology(_) => Kind::Topology,
        }
    }

    /// Which object it is.
    pub fn key(&self) -> ObjectKey {
        let metadata = self.metadata();
        ObjectKey {
            kind: self.kind(),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
        }
    }
}
