//! Condition types: of Gang, of the objects by which quota is said, and of Nodes.

/// True while the gang holds quota and a placement.
pub const ADMITTED: &str = "Admitted";
/// True while all its pods run.
pub const RUNNING: &str = "Running";
/// True once the gang ended without a failed pod.
pub const FINISHED: &str = "Finished";
/// True from the eviction of an attempt until the gang is admitted again: the message says why.
pub const EVICTED: &str = "Evicted";
/// True while an admitted gang cannot start as planned: the message names the rank and the cause.
pub const DEGRADED: &str = "Degraded";

/// Of a Team: true while its gangs may be admitted. Of a Cohort: while its members take part in a tree. Of a Flavor: while it counts
/// devices.
pub const ACTIVE: &str = "Active";
/// Of a PriorityTier: true while gangs get it that name no tier, and whose Team names none. At most one has it.
pub const DEFAULT: &str = "Default";
/// Of a Team, a Cohort and a Flavor: true while all that the object names exists and is understood.
pub const RESOLVED_REFS: &str = "ResolvedRefs";

/// Of a Node: true while a GPU of it has a fault that a restart, a reset or a person has to mend. The reason is the class of the worst, the
/// message names each.
pub const NODE_GPU_FAULT: &str = "muster.dev/GPUFault";
/// Of a Node: true while something is odd about a GPU of it that can be used.
pub const NODE_GPU_ANOMALY: &str = "muster.dev/GPUAnomaly";
/// What is written on Nodes.
pub const OF_NODES: [&str; 2] = [NODE_GPU_FAULT, NODE_GPU_ANOMALY];
