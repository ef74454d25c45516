//! Pools of ResourceSlices: which devices of a node can be allocated, in the order in which
//! kube-scheduler's allocator tries them, and what they draw from.
//!
//! A pool counts at its highest generation alone, and only if it is complete and valid: if all its slices are
//! there, no name of a device or of a counter set is used twice, every counter that a device draws from exists,
//! all amounts can be counted with, and nothing exceeds the limits of Kubernetes.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
};

use muster_engine::{Amount, Consumption, CounterSet};

pub use crate::devices::PublishedDevice;
use crate::{
    counters::{self, Drawn, Layouts},
    devices::SliceView,
};

/// Most devices of one node, in all its pools. No node has so many, and whoever publishes more would have every event of it cost as much.
const MAX_DEVICES_PER_NODE: usize = 4_096;
/// Most counters of one node, in all its pools: what is left of each is kept for everything that is known of the node. Sixteen GPUs have
/// about two hundred.
const MAX_COUNTERS_PER_NODE: usize = 2_048;

/// Which pool.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PoolKey {
    /// The driver that publishes it.
    pub driver: String,
    /// Its name.
    pub name: String,
}

/// Name of a device on its node.
pub fn device_name(driver: &str, pool: &str, device: &str) -> String {
    format!("{driver}/{pool}/{device}")
}

/// The slices of the cluster, by node and pool.
///
/// Each node has pools of its own: a slice that names node A never counts for a pool of node B, whatever pool and
/// generation it names. Otherwise the credentials of one node could make the devices of another disappear.
#[derive(Debug, Default)]
pub struct Pools {
    of_node: BTreeMap<String, BTreeMap<PoolKey, SlicesByName>>,
    nodes_of: BTreeMap<PoolKey, BTreeSet<String>>,
    layouts: Layouts,
}

/// The slices of one pool of one node, by name.
type SlicesByName = BTreeMap<String, Arc<SliceView>>;

impl Pools {
    /// Takes in a slice, in place of `old`. Returns the nodes that it touches.
    pub fn replace(
        &mut self,
        old: Option<&SliceView>,
        new: Option<Arc<SliceView>>,
    ) -> BTreeSet<String> {
        let touched = old
            .into_iter()
            .chain(new.as_deref())
            .filter_map(|slice| slice.node.clone())
            .collect();
        if let Some(old) = old {
            self.remove(old);
        }
        if let Some(new) = new
            && let Some(node) = new.node.clone()
        {
            let key = new.pool.clone();
            let name = new.name.clone();
            let pools = self.of_node.entry(node.clone()).or_default();
            pools.entry(key.clone()).or_default().insert(name, new);
            self.nodes_of.entry(key).or_default().insert(node);
        }
        touched
    }

    fn remove(&mut self, slice: &SliceView) {
        let key = slice.pool.clone();
        let Some(node) = slice.node.as_deref() else {
            return;
        };
        let Some(pools) = self.of_node.get_mut(node) else {
            return;
        };
        if let Some(slices) = pools.get_mut(&key) {
            slices.remove(&slice.name);
            if !slices.is_empty() {
                return;
            }
            pools.remove(&key);
        }
        if pools.is_empty() {
            self.of_node.remove(node);
        }
        if let Some(nodes) = self.nodes_of.get_mut(&key) {
            nodes.remove(node);
            if nodes.is_empty() {
                self.nodes_of.remove(&key);
            }
        }
    }

    /// Pools with slices for the node.
    pub fn of_node(&self, node: &str) -> impl Iterator<Item = &PoolKey> {
        self.of_node.get(node).into_iter().flat_map(BTreeMap::keys)
    }

    /// The node of a pool: the one of the same name, which is how drivers of nodes name their pools, if it publishes
    /// the pool; otherwise the only one that does.
    pub fn node_of(&self, key: &PoolKey) -> Option<&str> {
        let nodes = self.nodes_of.get(key)?;
        let same_name = nodes.get(&key.name);
        let only = || nodes.first().filter(|_| nodes.len() == 1);
        same_name.or_else(only).map(String::as_str)
    }

    /// The nodes that publish pools of that driver and name; `None` stands for every one.
    pub(crate) fn nodes_with(&self, driver: Option<&str>, pool: Option<&str>) -> BTreeSet<String> {
        let mut nodes = BTreeSet::new();
        let mut next = PoolKey {
            driver: driver.unwrap_or_default().to_owned(),
            name: pool.unwrap_or_default().to_owned(),
        };
        if driver.is_none() && pool.is_none() {
            return self.of_node.keys().cloned().collect();
        }
        loop {
            let mut pools = self
                .nodes_of
                .range::<PoolKey, _>((Bound::Included(&next), Bound::Unbounded));
            let Some((key, on)) = pools.next() else {
                return nodes;
            };
            if driver.is_some_and(|driver| driver != key.driver) {
                return nodes;
            }
            // Pools are in the order of their drivers, then of their names: of each driver at most one more is looked at than is meant.
            next = match pool {
                Some(pool) if *key.name > *pool => PoolKey {
                    driver: format!("{}\0", key.driver),
                    name: pool.to_owned(),
                },
                Some(pool) if *key.name < *pool => PoolKey {
                    driver: key.driver.clone(),
                    name: pool.to_owned(),
                },
                _ => {
                    nodes.extend(on.iter().cloned());
                    PoolKey {
                        driver: key.driver.clone(),
                        name: format!("{}\0", key.name),
                    }
                }
            };
        }
    }

    /// The slice of the node that publishes a device, if its pool is complete.
    pub(crate) fn slice_with(&self, node: &str, device: &str) -> Option<&SliceView> {
        let pools = self.of_node.get(node)?.values();
        let mut slices = pools.filter_map(complete).flatten();
        let publishes = |slice: &&Arc<SliceView>| {
            let mut devices = slice.devices.iter();
            devices.any(|published| *published.name == *device)
        };
        slices.find(publishes).map(AsRef::as_ref)
    }

    /// What the node's slices offer.
    pub fn on_node(&mut self, node: &str) -> OnNode {
        let mut usable = Vec::new();
        let mut faults = Vec::new();
        let mut all_complete = true;
        let mut room = Room {
            devices: MAX_DEVICES_PER_NODE,
            counters: MAX_COUNTERS_PER_NODE,
        };
        for (key, slices) in self.of_node.get(node).into_iter().flatten() {
            let Some(slices) = complete(slices) else {
                all_complete = false;
                continue;
            };
            match offer(&slices, &mut self.layouts, &mut room) {
                Ok(offer) => usable.push((key, offer)),
                Err(fault) => {
                    all_complete = false;
                    faults.push(format!("pool {}/{}: {fault}", key.driver, key.name));
                }
            }
        }
        // Driver and pool name are the order of the set; a stable sort keeps it.
        usable.sort_by_key(|(_, offer)| offer.binds_conditionally);
        let pools = usable.iter().map(|(key, _)| (*key).clone()).collect();
        let mut devices = Vec::new();
        let mut counter_sets: Arc<[CounterSet]> = Arc::default();
        for (number, (_, offer)) in usable.into_iter().enumerate() {
            let before = u32::try_from(counter_sets.len()).unwrap_or(u32::MAX);
            counter_sets = add_sets(counter_sets, &offer.counter_sets, number);
            devices.extend(offer.devices.into_iter().map(|mut device| {
                device.consumes = counters::after(&device.consumes, before);
                device
            }));
        }
        OnNode {
            offered: Offered {
                devices,
                counter_sets,
            },
            pools,
            all_complete,
            faults,
        }
    }
}

/// A device that can be allocated on its node, or could if it were free.
#[derive(Clone, Debug)]
pub struct OfferedDevice {
    /// As it is published.
    pub published: PublishedDevice,
    /// What it takes of the counter sets of the node while it is allocated.
    pub consumes: Arc<[Consumption]>,
    /// Thousandths of a GPU that it is, should it be one.
    pub gpus: Amount,
}

/// Devices of a node, and what they draw from.
#[derive(Clone, Debug, Default)]
pub struct Offered {
    /// Devices of its usable pools, in allocation order (Kubernetes 1.36 and later): pools by
    /// driver, then name, those with binding conditions last; slices by name; devices as they stand.
    pub devices: Vec<OfferedDevice>,
    /// The counter sets of these pools.
    pub counter_sets: Arc<[CounterSet]>,
}

/// What the slices of a node offer.
#[derive(Clone, Debug, Default)]
pub struct OnNode {
    /// The devices.
    pub offered: Offered,
    /// Its complete and valid pools.
    pub pools: BTreeSet<PoolKey>,
    /// Whether every pool with slices for the node is complete and valid.
    pub all_complete: bool,
    /// Of complete pools that are not valid, why.
    pub faults: Vec<String>,
}

/// How many devices and counters a node may have besides those of the pools that were looked at before.
#[derive(Clone, Copy, Debug)]
struct Room {
    devices: usize,
    counters: usize,
}

impl Room {
    /// Takes some; an error if those are too many.
    fn take(&mut self, devices: usize, counters: usize) -> Result<(), String> {
        let too_many = |what: &str, count: usize, left: usize, most: usize| {
            let others = most - left;
            format!(
                "{count} {what} beside {others} of other pools; at most {most} of a node are planned"
            )
        };
        let left = Self {
            devices: self
                .devices
                .checked_sub(devices)
                .ok_or_else(|| too_many("devices", devices, self.devices, MAX_DEVICES_PER_NODE))?,
            counters: self.counters.checked_sub(counters).ok_or_else(|| {
                too_many("counters", counters, self.counters, MAX_COUNTERS_PER_NODE)
            })?,
        };
        *self = left;
        Ok(())
    }
}

/// What one pool offers.
struct PoolOffer {
    binds_conditionally: bool,
    devices: Vec<OfferedDevice>,
    counter_sets: Arc<[CounterSet]>,
}

/// The slices of the highest generation, by name, if they are all there; else kube-scheduler allocates nothing of the pool.
fn complete(slices: &SlicesByName) -> Option<Vec<&Arc<SliceView>>> {
    let generation = slices.values().map(|slice| slice.generation).max()?;
    let current: Vec<_> = slices
        .values()
        .filter(|slice| slice.generation == generation)
        .collect();
    let count = i64::try_from(current.len()).ok()?;
    let is_complete = current.iter().all(|slice| slice.slice_count == count);
    is_complete.then_some(current)
}

/// What a complete pool offers. An error: it is not valid, and kube-scheduler allocates nothing of it, or would fail.
fn offer(
    slices: &[&Arc<SliceView>],
    layouts: &mut Layouts,
    room: &mut Room,
) -> Result<PoolOffer, String> {
    if let Some(fault) = slices.iter().find_map(|slice| slice.fault.as_deref()) {
        return Err(fault.to_owned());
    }
    let count: usize = slices.iter().map(|slice| slice.devices.len()).sum();
    let sets: Vec<_> = slices
        .iter()
        .filter_map(|slice| slice.counter_sets.as_deref())
        .collect();
    let counters: usize = sets.iter().map(|sets| sets.counters()).sum();
    room.take(count, counters)?;
    let mut layout = layouts.of(&sets);
    if let Some(fault) = layout.fault() {
        return Err(fault.to_owned());
    }
    let mut names = BTreeSet::new();
    let mut devices = Vec::with_capacity(count);
    for device in slices.iter().flat_map(|slice| &slice.devices) {
        if !names.insert(&device.name) {
            return Err(format!("device {}: stands there twice", device.name));
        }
        let drawn = match &device.draws {
            Some(draws) => layout
                .draw(draws)
                .map_err(|fault| format!("device {}: {fault}", device.name))?,
            None => Drawn::default(),
        };
        devices.push(OfferedDevice {
            published: device.clone(),
            consumes: drawn.consumes,
            gpus: drawn.gpus.unwrap_or(device.kind.gpus),
        });
    }
    Ok(PoolOffer {
        binds_conditionally: slices.iter().any(|slice| slice.binds_conditionally),
        counter_sets: Arc::clone(layout.sets()),
        devices,
    })
}

/// The sets of the pools so far, and those of the next one. Nearly always only one has any, and then they are shared with other nodes.
fn add_sets(
    so_far: Arc<[CounterSet]>,
    next: &Arc<[CounterSet]>,
    number: usize,
) -> Arc<[CounterSet]> {
    if next.is_empty() {
        return so_far;
    }
    if so_far.is_empty() {
        return Arc::clone(next);
    }
    let pool = u32::try_from(number).unwrap_or(u32::MAX);
    let next = next.iter().map(|set| CounterSet {
        pool,
        counters: set.counters.clone(),
    });
    so_far.iter().cloned().chain(next).collect()
}
