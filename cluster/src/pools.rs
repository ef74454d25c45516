//! Pools of ResourceSlices: which devices of a node can be allocated, in the order in which
//! kube-scheduler's allocator tries them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::resource::v1::{Device, ResourceSlice};

/// Driver and name of a pool.
pub type PoolKey = (String, String);

/// A device and the slice that it stands in.
#[derive(Clone, Debug)]
pub struct PublishedDevice {
    slice: Arc<ResourceSlice>,
    position: usize,
}

impl PublishedDevice {
    /// The device; `None` never happens, since slices are not changed.
    pub fn device(&self) -> Option<&Device> {
        self.slice.spec.devices.as_ref()?.get(self.position)
    }

    /// Its driver.
    pub fn driver(&self) -> &str {
        &self.slice.spec.driver
    }

    /// Its pool.
    pub fn pool(&self) -> PoolKey {
        (
            self.slice.spec.driver.clone(),
            self.slice.spec.pool.name.clone(),
        )
    }

    /// Name of the device on its node: `driver/pool/device`.
    pub fn name(&self) -> String {
        let device = self.device().map_or("", |device| device.name.as_str());
        device_name(self.driver(), &self.slice.spec.pool.name, device)
    }
}

/// Name of a device on its node.
pub fn device_name(driver: &str, pool: &str, device: &str) -> String {
    format!("{driver}/{pool}/{device}")
}

/// The slices of the cluster, by pool.
#[derive(Debug, Default)]
pub struct Pools {
    slices: BTreeMap<PoolKey, BTreeMap<String, Arc<ResourceSlice>>>,
    of_node: BTreeMap<String, BTreeSet<PoolKey>>,
}

impl Pools {
    /// Takes in a slice, in place of `old`. Returns the nodes that it touches.
    pub fn replace(
        &mut self,
        old: Option<&ResourceSlice>,
        new: Option<Arc<ResourceSlice>>,
    ) -> BTreeSet<String> {
        let keys: BTreeSet<PoolKey> = old.into_iter().chain(new.as_deref()).map(pool_of).collect();
        let before: Vec<_> = keys.iter().map(|key| self.nodes_of(key)).collect();
        if let Some(old) = old
            && let Some(slices) = self.slices.get_mut(&pool_of(old))
        {
            slices.remove(old.metadata.name.as_deref().unwrap_or_default());
        }
        if let Some(new) = new {
            let name = new.metadata.name.clone().unwrap_or_default();
            self.slices
                .entry(pool_of(&new))
                .or_default()
                .insert(name, new);
        }
        let mut touched = BTreeSet::new();
        for (key, before) in keys.into_iter().zip(before) {
            let now = self.nodes_of(&key);
            for node in before.difference(&now) {
                self.leave(node, &key);
            }
            for node in &now {
                self.of_node
                    .entry(node.clone())
                    .or_default()
                    .insert(key.clone());
            }
            if self.slices.get(&key).is_some_and(BTreeMap::is_empty) {
                self.slices.remove(&key);
            }
            touched.extend(before);
            touched.extend(now);
        }
        touched
    }

    /// The nodes that slices of the pool name.
    fn nodes_of(&self, key: &PoolKey) -> BTreeSet<String> {
        self.slices
            .get(key)
            .into_iter()
            .flat_map(BTreeMap::values)
            .filter_map(|slice| slice.spec.node_name.clone())
            .collect()
    }

    fn leave(&mut self, node: &str, key: &PoolKey) {
        if let Some(pools) = self.of_node.get_mut(node) {
            pools.remove(key);
            if pools.is_empty() {
                self.of_node.remove(node);
            }
        }
    }

    /// Pools with slices for the node.
    pub fn of_node(&self, node: &str) -> impl Iterator<Item = &PoolKey> {
        self.of_node.get(node).into_iter().flatten()
    }

    /// The node of a pool, if all its slices name the same one.
    pub fn node_of(&self, key: &PoolKey) -> Option<&str> {
        let mut nodes = self
            .slices
            .get(key)?
            .values()
            .map(|slice| slice.spec.node_name.as_deref());
        let first = nodes.next()??;
        nodes.all(|node| node == Some(first)).then_some(first)
    }

    /// What the node's slices offer.
    pub fn on_node(&self, node: &str) -> OnNode {
        let mut usable = Vec::new();
        let mut all_complete = true;
        for key in self.of_node(node) {
            match self.slices.get(key).and_then(complete) {
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
            .filter(|slice| slice.spec.node_name.as_deref() == Some(node))
            .flat_map(|slice| {
                let count = slice.spec.devices.as_ref().map_or(0, Vec::len);
                (0..count).map(move |position| PublishedDevice {
                    slice: Arc::clone(&slice),
                    position,
                })
            })
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
fn complete(slices: &BTreeMap<String, Arc<ResourceSlice>>) -> Option<Vec<Arc<ResourceSlice>>> {
    let generation = slices
        .values()
        .map(|slice| slice.spec.pool.generation)
        .max()?;
    let current: Vec<_> = slices
        .values()
        .filter(|slice| slice.spec.pool.generation == generation)
        .cloned()
        .collect();
    let count = i64::try_from(current.len()).ok()?;
    let mut names = BTreeSet::new();
    let is_complete = current
        .iter()
        .all(|slice| slice.spec.pool.resource_slice_count == count);
    let are_unique = current
        .iter()
        .flat_map(|slice| slice.spec.devices.iter().flatten())
        .all(|device| names.insert(device.name.as_str()));
    (is_complete && are_unique).then_some(current)
}

fn binds_conditionally(slices: &[Arc<ResourceSlice>]) -> bool {
    slices
        .iter()
        .flat_map(|slice| slice.spec.devices.iter().flatten())
        .any(|device| {
            device
                .binding_conditions
                .as_ref()
                .is_some_and(|list| !list.is_empty())
        })
}

fn pool_of(slice: &ResourceSlice) -> PoolKey {
    (slice.spec.driver.clone(), slice.spec.pool.name.clone())
}
