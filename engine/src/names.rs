//! Names and identifiers. Each is a type of its own, so that a pod's UID cannot be taken for a claim's.

use std::{fmt, sync::Arc};

macro_rules! name {
    ($(#[$documentation:meta] $name:ident),* $(,)?) => {$(
        #[$documentation]
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The text of the name.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(&self.0)
            }
        }
    )*};
}

name! {
    /// Name of a Team.
    TeamName,
    /// Name of a namespace.
    NamespaceName,
    /// Name of a Cohort.
    CohortName,
    /// Name of a Flavor.
    FlavorName,
    /// Name of a Topology.
    TopologyName,
    /// Name of a level of a Topology; the innermost is always `node`.
    LevelName,
    /// Name of a node.
    NodeName,
    /// UID of a Gang.
    GangUid,
    /// UID of a pod.
    PodUid,
    /// UID of a ResourceClaim.
    ClaimUid,
    /// Name of a device, unique on its node: `driver/pool/device`.
    DeviceName,
    /// Qualified name of a device attribute, as `matchAttribute` gives it.
    AttributeName,
    /// Name of a resource that a node's `allocatable` lists, as Kubernetes spells it.
    ResourceName,
}

/// A device selector (the CEL expressions of a class and a request together), interned at the edge.
/// Which devices match is told with the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SelectorId(pub u32);

/// What a pod says about nodes (selector, required affinity, tolerations), interned at the edge.
/// Which nodes match is told with the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeFilterId(pub u32);

/// A selector of pods (label selector and namespaces of a pod anti-affinity term), interned at the edge. Which
/// pods match is told with the pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodSelectorId(pub u32);

/// A point in time, in seconds since an epoch that only the caller knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);
