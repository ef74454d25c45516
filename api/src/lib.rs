//! The custom resources of Muster (group `muster.dev`, version `v1alpha1`), and every label,
//! annotation, gate and reason that its programs share.
//!
//! This crate has no client and no logic: a name is defined here once, and the webhook, the
//! policies, the controller, the extender and the driver cannot disagree about it. What the values
//! *mean* is decided in `muster-engine`; how they are read from Kubernetes objects in `muster-cluster`.
//!
//! Amounts of GPUs are thousandths (`…Milli`), memory is bytes (`…Bytes`), durations are whole
//! seconds (`…Seconds`), so no unit has to be guessed from a number.

// The derive of kube writes each spec struct a second time inside a function, where `pub` reaches nobody.
#![expect(
    unreachable_pub,
    reason = "false positive in code that KubeSchema generates"
)]

pub mod charge;
pub mod cohort;
pub mod conditions;
pub mod crds;
pub mod device_class;
pub mod device_config;
pub mod fairness;
pub mod fault_policy;
pub mod flavor;
pub mod gang;
pub mod keys;
pub mod ledger;
pub mod node_devices;
pub mod priority_tier;
pub mod quantity;
pub mod queue;
pub mod quota;
pub mod reason;
pub mod team;
pub mod topology;

pub use charge::{Charge, ClaimByName, ClaimsCharge, ResourceCharge};
pub use cohort::{Cohort, CohortLimit, CohortSpec, CohortStatus, Sharing};
pub use fairness::{
    AdmissionFairness, NamespaceUse, NamespaceWeight, ResourceWeight, UsedResource,
};
pub use fault_policy::{FaultPolicy, FaultPolicySpec, FaultRepeat, FaultRule};
pub use flavor::{DeviceSource, Flavor, FlavorOverlap, FlavorSpec, FlavorStatus};
pub use gang::{
    Admission, Gang, GangPhase, GangPlacement, GangSpec, GangStatus, NodeRanks, PodSet, Proposal,
    RestartPolicy, TopologyRequest, WaitReason,
};
pub use ledger::{Breaker, EvacuatedNode, Intent, IntentKind, IntentPod, Ledger, LedgerSpec};
pub use node_devices::{
    FaultyPart, GpuFault, Held, NodeDevices, NodeDevicesSpec, NodeDevicesStatus, Permit,
    Remediation,
};
pub use priority_tier::{PriorityTier, PriorityTierSpec, PriorityTierStatus, TierPreemption};
pub use quantity::Quantity;
pub use queue::{PendingGang, Queue, QueueLimit, QueueSpec, QueueStatus};
pub use quota::{FlavorQuota, ResourceQuota};
pub use reason::Reason;
pub use team::{Team, TeamSpec, TeamStatus, VramPolicy};
pub use topology::{Topology, TopologyLevel, TopologySpec};

/// API group of all custom resources.
pub const GROUP: &str = "muster.dev";
/// API version of all custom resources.
pub const VERSION: &str = "v1alpha1";
