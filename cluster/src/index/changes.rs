//! What a refresh changed.

use std::collections::BTreeSet;

use muster_engine::FlavorName;

use super::NamespacedName;
use crate::formed::GangKey;

/// What may differ from what the last refresh left. Everything else is as it was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Gangs whose [`crate::formed::FormedGang`], Gang object or pods changed, appeared or went.
    pub gangs: BTreeSet<GangKey>,
    /// UIDs of pods that Muster admits and of which something that is read changed, or that appeared or went.
    pub pods: BTreeSet<String>,
    /// Nodes whose Node, NodeDevices, slices, allocations or use by bound pods changed.
    pub nodes: BTreeSet<String>,
    /// Nodes of whose devices other ones have faults now, or others than before.
    pub faulted: BTreeSet<String>,
    /// Nodes of whose devices a DeviceTaintRule selects other ones now, or says something else of them.
    pub ruled: BTreeSet<String>,
    /// Teams whose object changed, or to which namespaces came or from which they went.
    pub teams: BTreeSet<String>,
    /// Queue objects that changed.
    pub queues: BTreeSet<NamespacedName>,
    /// Flavors of which other nodes or devices count now, or another rule holds.
    pub flavors: BTreeSet<FlavorName>,
    /// Whether the Ledger changed.
    pub ledger: bool,
    /// Whether there is more to derive: rules that are new are told to a bounded number of nodes per refresh.
    pub more: bool,
}

impl Changes {
    /// Whether nothing changed and nothing is left to derive.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
