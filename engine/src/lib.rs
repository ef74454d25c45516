//! Pure decisions: quota, queue order, placement, and the explanation of each.
//!
//! **Invariant: this crate knows no clock, no network, no thread, no log, no Kubernetes type and no
//! hash order.** It takes the time as an argument and returns decisions. The same input gives the
//! same bytes out, always. Strings of the outside (labels, quantities, CEL expressions) are parsed
//! once, at the edge (`muster-cluster`): here a node selector is a [`NodeFilterId`] that nodes
//! match or do not, a device selector a [`SelectorId`].
//!
//! **Invariant: a decision is made in one place.** Quota and placement are decided together, by
//! [`State::decide`]; nothing is admitted without a placement.
//!
//! The room is laid out as: [`names`] and [`amount`] (vocabulary), [`model`] (what was observed),
//! [`decision`] (what is decided, and why), [`fairness`] (what namespaces used), [`remedy`] (what would help), [`recovery`] (what faults cost), [`quota`] (tree arithmetic), `placement` (nodes and
//! devices), [`state`] (the two joined).

pub mod amount;
pub mod decision;
pub mod fairness;
pub mod model;
pub mod names;
mod placement;
mod queue;
pub mod quota;
pub mod recovery;
pub mod remedy;
pub mod state;
mod text;

pub use amount::{Amount, FlavorResource, Overflow, Resource, ResourceCharge};
pub use decision::{
    Admission, AdmittedClaim, AdmittedPod, Blocker, Budget, CommitRoom, Decisions, Explanation,
    GivesWay, HeadReservation, Kept, KeptForRecovery, OverQuota, Preempted, Preemption,
    ReasonsChanged, TooLarge, Visited, Why,
};
pub use fairness::{AdmissionFairness, NamespaceUse, WeightedUse};
pub use model::{
    Claim, Cohort, Constraint, Consumption, CounterSet, Device, DeviceChoice, DeviceRequest,
    Flavor, Gang, HeldClaim, Hold, HostPort, HostPortProtocol, MOST_AVOIDED_NODES,
    MOST_SECONDS_AFTER_NOTICE, Node, NodeBlock, Pod, PodResources, Queueing, QuotaLimit,
    Recovering, Reserved, RunTime, Running, Shrink, Stop, Team, Topology, TopologyRequest, Update,
};
pub use names::{
    AttributeName, ClaimUid, CohortName, DeviceName, FlavorName, GangUid, LevelName, NamespaceName,
    NodeFilterId, NodeName, PodSelectorId, PodUid, ResourceName, SelectorId, TeamName, Timestamp,
    TopologyName,
};
pub use remedy::{Holder, NodeRepair, Order, Remedies, Remedy, RemedyEvent};
pub use state::{Elsewhere, Nowhere, State, Usage};
