//! What would have a waiting gang admitted.

use crate::{
    amount::ResourceCharge,
    model::NodeBlock,
    names::{DeviceName, GangUid, NodeName, TeamName},
};

/// Events that would have a gang admitted as things are, each of them alone ([`crate::State::remedies`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remedies {
    /// The events, at most one of each kind.
    pub each: Vec<Remedy>,
    /// Whether the search met its bound: there may be others, or one that asks for less.
    pub gave_up: bool,
}

/// An event that would have a gang admitted, and whose turn it is then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedy {
    /// What has to happen.
    pub event: RemedyEvent,
    /// Who is admitted first once it did.
    pub order: Order,
}

/// What would make room for a gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemedyEvent {
    /// These gangs end, and their release is proved. With any of them left out it does not suffice, unless the search met its
    /// bound. Whoever holds most is named first.
    GangsEnd(Vec<Holder>),
    /// The nominal quota of the gang's Team is raised by so much; by less it does not suffice.
    QuotaRaised(Vec<ResourceCharge>),
    /// These nodes, and these devices of theirs, are all right. With any of them left out it does not suffice, unless the search met
    /// its bound.
    Repaired(Vec<NodeRepair>),
}

/// What is wrong with a node and would be no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRepair {
    /// The node.
    pub node: NodeName,
    /// Why nothing new may be planned there, if that has to end: the node is schedulable then, whatever else kept it from it.
    pub block: Option<NodeBlock>,
    /// Devices that are healthy then; of a GPU that may be cut the one that is charged most, for all its slices.
    pub devices: Vec<DeviceName>,
}

/// Who goes first once there is room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// The gang itself.
    Itself,
    /// Another gang fits by then, too, and goes before it: `namespace/name`.
    After(String),
    /// Others may go before it: who does depends on more than was worked out.
    Open,
}

/// A gang that holds something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The gang.
    pub gang: GangUid,
    /// `namespace/name`.
    pub name: String,
    /// The Team that is charged.
    pub team: TeamName,
    /// What it holds of what is asked for; `None` if only its place is in the way.
    pub holds: Option<ResourceCharge>,
}
