//! Kubernetes objects as they are observed, and changes of them.
//!
//! [`for_each_kind!`](crate::for_each_kind) is the one table of the kinds that are watched. Enums, stores, watches and
//! reads are made from it, so a kind is added or removed in one row.

mod job_facts;
mod strip;
pub mod unread;

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub use job_facts::JobFacts;
pub(crate) use strip::Strip;
pub use strip::restarts_in_place;
pub use unread::Receive;

/// The type of every kind, under the name of its kind.
pub mod types {
    pub use k8s_openapi::api::{
        batch::v1::Job,
        core::v1::{Namespace, Node, Pod},
        resource::v1::{DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice},
    };
    pub use muster_api::{
        Cohort, Flavor, Gang, Ledger, NodeDevices, PriorityTier, Queue, Team, Topology,
    };
}

/// Calls a macro with the table of the kinds that are watched, one row each:
/// `Kind: scope collection status;`, where `scope` is `cluster` or `namespaced`, `collection` the plural that names a
/// store of them, and `status` says whether the kind has a `status` (`with_status` or `without_status`).
///
/// ```
/// macro_rules! names {
///     ($($kind:ident: $scope:ident $collection:ident $status:ident;)*) => { [$(stringify!($kind)),*] };
/// }
/// assert!(muster_cluster::for_each_kind!(names).contains(&"Gang"));
/// ```
#[macro_export]
macro_rules! for_each_kind {
    ($callback:ident) => {
        $callback! {
            Cohort: cluster cohorts with_status;
            DeviceClass: cluster device_classes without_status;
            DeviceTaintRule: cluster device_taint_rules with_status;
            Flavor: cluster flavors with_status;
            Gang: namespaced gangs with_status;
            Job: namespaced jobs with_status;
            Ledger: cluster ledgers without_status;
            Namespace: cluster namespaces with_status;
            Node: cluster nodes with_status;
            NodeDevices: cluster node_devices with_status;
            Pod: namespaced pods with_status;
            PriorityTier: cluster priority_tiers with_status;
            Queue: namespaced queues with_status;
            ResourceClaim: namespaced resource_claims with_status;
            ResourceSlice: cluster resource_slices without_status;
            Team: cluster teams with_status;
            Topology: cluster topologies without_status;
        }
    };
}

macro_rules! kinds {
    ($($kind:ident: $scope:ident $collection:ident $status:ident;)*) => {
        /// A kind that the controller watches.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind {
            $(#[doc = concat!("The kind ", stringify!($kind), ".")] $kind,)*
        }

        impl Kind {
            /// Every kind. A new leader reads exactly the kinds that are watched.
            pub const ALL: [Self; [$(stringify!($kind)),*].len()] = [$(Self::$kind),*];

            /// Whether an API server may do without the kind: where it is not served there are no objects of it.
            pub fn is_optional(self) -> bool {
                // Of Kubernetes 1.37.
                self == Self::DeviceTaintRule
            }
        }

        /// An observed object. Shared, because the index and a watch cache may both hold it.
        #[derive(Clone, Debug)]
        pub enum Object {
            $(#[doc = concat!("An object of kind ", stringify!($kind), ".")] $kind(Arc<types::$kind>),)*
        }

        impl Object {
            /// Its metadata.
            pub fn metadata(&self) -> &ObjectMeta {
                match self {
                    $(Self::$kind(object) => &object.metadata,)*
                }
            }

            /// Its kind.
            pub fn kind(&self) -> Kind {
                match self {
                    $(Self::$kind(_) => Kind::$kind,)*
                }
            }
        }
    };
}
for_each_kind!(kinds);

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

/// A change of what is observed. Level-triggered: it may arrive twice, late, or out of order with changes of
/// other objects (S10); of one object the newest resourceVersion wins.
#[derive(Clone, Debug)]
pub enum Change {
    /// The object is as given.
    Applied(Object),
    /// The object is gone.
    Deleted(ObjectKey),
    /// The whole list of a kind, after a (re-)list: what is not in it is gone.
    Listed(Kind, Vec<Object>),
    /// The keys of the whole list of a kind, whose objects came as [`Change::Applied`] while it was received: what is
    /// not among them is gone.
    ListedKeys(Kind, BTreeSet<ObjectKey>),
}

impl Object {
    /// Which object it is.
    pub fn key(&self) -> ObjectKey {
        ObjectKey::of(self.kind(), self.metadata())
    }
}

impl ObjectKey {
    /// The object of that kind that metadata names.
    pub fn of(kind: Kind, metadata: &ObjectMeta) -> Self {
        Self {
            kind,
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
        }
    }
}
