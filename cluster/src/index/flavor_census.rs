//! How many nodes and devices count as of each Flavor, kept node by node.
//!
//! Devices are counted by the set of Flavors that they belong to: few sets ever occur, so a node costs no more than its devices, and
//! how much two Flavors overlap is a sum over some sets.

use std::collections::{BTreeMap, BTreeSet};

use muster_engine::{FlavorName, Node};

/// What counts as of a Flavor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlavorCount {
    /// Nodes with such devices.
    pub nodes: usize,
    /// Of those, nodes on which something new may be planned.
    pub ready_nodes: usize,
    /// Devices, used or not. What draws from one counter set is one device, whatever parts of it are published.
    pub devices: usize,
    /// Of those, devices without a fault on such nodes.
    pub healthy_devices: usize,
    /// How many of the devices other Flavors count as well.
    pub shared_with: BTreeMap<FlavorName, usize>,
}

/// How many there are, and how many of them can be used now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    all: usize,
    usable: usize,
}

/// All that is counted.
#[derive(Debug, Default)]
pub(super) struct FlavorCensus {
    devices: BTreeMap<BTreeSet<FlavorName>, Count>,
    nodes: BTreeMap<FlavorName, Count>,
}

impl Count {
    fn one(is_usable: bool) -> Self {
        Self {
            all: 1,
            usable: usize::from(is_usable),
        }
    }

    fn add(&mut self, other: Self) {
        self.all += other.all;
        self.usable += other.usable;
    }

    /// Takes out what was counted in before.
    fn take(&mut self, other: Self) {
        self.all = self.all.saturating_sub(other.all);
        self.usable = self.usable.saturating_sub(other.usable);
    }
}

impl FlavorCensus {
    /// Takes in a node in place of what it was. Returns the Flavors of which another number is counted now.
    pub(super) fn replace(
        &mut self,
        old: Option<&Node>,
        new: Option<&Node>,
    ) -> BTreeSet<FlavorName> {
        let (before, after) = (devices_of(old), devices_of(new));
        let (before, after) = (by_reference(&before), by_reference(&after));
        let sets = replace(&mut self.devices, &before, &after);
        let (before, after) = (nodes_of(old, &before), nodes_of(new, &after));
        let flavors = replace(&mut self.nodes, &before, &after);
        sets.into_iter().flatten().chain(flavors).cloned().collect()
    }

    /// What counts as of a Flavor.
    pub(super) fn of(&self, flavor: &FlavorName) -> FlavorCount {
        let nodes = self.nodes.get(flavor).copied().unwrap_or_default();
        let mut count = FlavorCount {
            nodes: nodes.all,
            ready_nodes: nodes.usable,
            ..FlavorCount::default()
        };
        let sets = self.devices.iter().filter(|(set, _)| set.contains(flavor));
        for (set, devices) in sets {
            count.devices += devices.all;
            count.healthy_devices += devices.usable;
            for other in set.iter().filter(|other| *other != flavor) {
                *count.shared_with.entry(other.clone()).or_default() += devices.all;
            }
        }
        count
    }
}

/// The devices of a node by their Flavors; those of none are not counted. A GPU that can be partitioned, and all its partitions, draw
/// from one counter set and are one device: of the Flavors that count any of them.
fn devices_of(node: Option<&Node>) -> BTreeMap<BTreeSet<FlavorName>, Count> {
    let is_ready = node.is_some_and(|node| node.block.is_none());
    let counted = node.into_iter().flat_map(|node| &node.devices);
    // Of each set, the Flavors of what draws from it, and whether anything of it is healthy.
    let mut by_set: BTreeMap<u32, (BTreeSet<&BTreeSet<FlavorName>>, bool)> = BTreeMap::new();
    let mut whole: BTreeMap<&BTreeSet<FlavorName>, Count> = BTreeMap::new();
    for device in counted.filter(|device| !device.flavors.is_empty()) {
        if let Some(of) = device.consumes.first() {
            let (flavors, is_healthy) = by_set.entry(of.set).or_default();
            flavors.insert(&device.flavors);
            *is_healthy |= device.healthy;
        } else {
            let count = whole.entry(&device.flavors).or_default();
            count.add(Count::one(is_ready && device.healthy));
        }
    }
    let whole = whole.into_iter();
    let mut devices: BTreeMap<BTreeSet<FlavorName>, Count> = whole
        .map(|(flavors, count)| (flavors.clone(), count))
        .collect();
    for (flavors, is_healthy) in by_set.into_values() {
        let all: BTreeSet<FlavorName> = flavors.into_iter().flatten().cloned().collect();
        let count = devices.entry(all).or_default();
        count.add(Count::one(is_ready && is_healthy));
    }
    devices
}

fn by_reference<K: Ord>(counts: &BTreeMap<K, Count>) -> BTreeMap<&K, Count> {
    counts.iter().map(|(key, count)| (key, *count)).collect()
}

/// A node for each Flavor that counts some of its devices.
fn nodes_of<'a>(
    node: Option<&Node>,
    devices: &BTreeMap<&'a BTreeSet<FlavorName>, Count>,
) -> BTreeMap<&'a FlavorName, Count> {
    let is_ready = node.is_some_and(|node| node.block.is_none());
    let flavors = devices.keys().copied().flatten();
    flavors
        .map(|flavor| (flavor, Count::one(is_ready)))
        .collect()
}

/// Counts what is in place of what was. Returns of what there is another number now.
fn replace<'a, K: Ord + Clone>(
    counts: &mut BTreeMap<K, Count>,
    before: &BTreeMap<&'a K, Count>,
    after: &BTreeMap<&'a K, Count>,
) -> Vec<&'a K> {
    let keys: BTreeSet<&K> = before.keys().chain(after.keys()).copied().collect();
    let mut changed = Vec::new();
    for key in keys {
        let of = |counts: &BTreeMap<&K, Count>| counts.get(key).copied().unwrap_or_default();
        let (old, new) = (of(before), of(after));
        if old == new {
            continue;
        }
        let count = counts.entry(key.clone()).or_default();
        count.take(old);
        count.add(new);
        if *count == Count::default() {
            counts.remove(key);
        }
        changed.push(key);
    }
    changed
}
