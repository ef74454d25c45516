//! Pools of ResourceSlices: which devices of a node can be allocated, in the order in which
//! kube-scheduler's allocator tries them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

pub use crate::devices::PublishedDevice;
use crate::devices::SliceView;

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

    /// What the node's slices offer.
    pub fn on_node(&self, node: &str) -> OnNode {
        let mut usable = Vec::new();
        let mut all_complete = true;
        for (key, slices) in self.of_node.get(node).into_iter().flatten() {
            match complete(slices) {
                Some(slices) => usable.push((binds_conditionally(&slices), key, slices)),
                None => all_complete = false,
            }
        }
        // Driver and pool name are the order of the set; a stable sort keeps it.
        usable.sort_by_key(|(conditional, ..)| *conditional);
        let pools = usable.iter().map(|(_, key, _)| (*key).clone()).collect();
        let devices = usable
            .into_iter()
            .flat_map(|(_, _, slices)| slices)
            .flat_map(|slice| slice.devices.clone())
            .collect();
        OnNode {
            devices,
            pools,
            all_complete,
        }
    }
}

/// What the slices of a node offer.
#[derive(Clone, Debug, Default)]
pub struct OnNode {
    /// Devices of its complete pools, in allocation order (Kubernetes 1.36 and later): pools by
    /// driver, then name, those with binding conditions last; slices by name; devices as they stand.
    pub devices: Vec<PublishedDevice>,
    /// Its complete pools.
    pub pools: BTreeSet<PoolKey>,
    /// Whether every pool with slices for the node is complete and valid.
    pub all_complete: bool,
}

/// The slices of the highest generation, by name, if they are all there and no device name is used
/// twice; else kube-scheduler allocates nothing of the pool.
fn complete(slices: &SlicesByName) -> Option<Vec<Arc<SliceView>>> {
    let generation = slices.values().map(|slice| slice.generation).max()?;
    let current: Vec<_> = slices
        .values()
        .filter(|slice| slice.generation == generation)
        .cloned()
        .collect();
    let count = i64::try_from(current.len()).ok()?;
    let mut names = BTreeSet::new();
    let is_complete = current.iter().all(|slice| slice.slice_count == count);
    let are_unique = current
        .iter()
        .flat_map(|slice| &slice.devices)
        .all(|device| names.insert(&device.name));
    (is_complete && are_unique).then_some(current)
}

fn binds_conditionally(slices: &[Arc<SliceView>]) -> bool {
    slices.iter().any(|slice| slice.binds_conditionally)
}
