//! The nodes of a cluster, as Muster's driver offers their GPUs and as the engine reads that.
//!
//! Nothing is written down here that ships: the driver's own slices are published, and read as the controller reads them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::resource::v1::ResourceSlice;
use muster_api::keys;
use muster_cluster::{
    devices::DeviceKinds,
    pools::{OfferedDevice, OnNode, Pools, device_name},
    selectors::Selectors,
};
use muster_device::{Listed, ListedGpu, Placement};
use muster_dra_driver::{
    inventory::KnownGpus,
    mig::{Mode, Policy, Toggle},
    slices::{
        desired::{Tainted, desired},
        plan::{Pool, plan},
    },
};
use muster_engine::{
    Device, DeviceName, DeviceRequest, Node, NodeFilterId, PodResources, SelectorId,
};

use super::{ask::Ask, card::Card};

/// The Flavor of all devices.
pub(super) const FLAVOR: &str = "gpus";
/// Every node passes.
pub(super) const ANY_NODE: NodeFilterId = NodeFilterId(0);
/// Kubernetes' default for the pods of a node.
const PODS_PER_NODE: i64 = 110;

/// A cluster and what is asked for there.
#[derive(Debug)]
pub(super) struct Fleet {
    /// By name.
    pub(super) nodes: Vec<FleetNode>,
    /// What each [`Ask`] asks for, in their order.
    pub(super) requests: Vec<DeviceRequest>,
}

/// A node.
#[derive(Debug)]
pub(super) struct FleetNode {
    pub(super) card: Card,
    pub(super) gpus: usize,
    /// As the engine knows it, nothing allocated.
    pub(super) node: Node,
    /// What each of its devices is.
    pub(super) parts: Vec<Part>,
}

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Number of its GPU on the node.
    pub(super) gpu: usize,
    /// Number of its profile, and where it lies; `None`: the whole GPU.
    pub(super) slice: Option<(u32, Placement)>,
}

/// Slices are made for whoever gets them, and whole GPUs are offered where that can be.
fn policy() -> Policy {
    Policy {
        mode: Mode::Dynamic,
        toggle: Toggle::WhenIdle,
        ..Policy::default()
    }
}

impl Fleet {
    /// A cluster of such nodes, each with so many GPUs of a product.
    pub(super) fn new(nodes: &[(Card, usize)], asks: &[Ask]) -> Result<Self> {
        let mut kinds = DeviceKinds::default();
        let mut pools = Pools::default();
        let mut made = Vec::with_capacity(nodes.len());
        for (number, (card, gpus)) in nodes.iter().enumerate() {
            let name = format!("node-{number:02}");
            let known = known(*card, &name, *gpus)?;
            for slice in published(&name, &known)? {
                let view = Arc::new(kinds.slice(Arc::new(slice), None));
                kinds.replace(None, Some(&view));
                pools.replace(None, Some(view));
            }
            made.push((name, known));
        }
        let mut selectors = Selectors::default();
        let requests = asks.iter().map(|ask| ask.request(&mut selectors));
        let requests = requests.collect::<Result<Vec<_>>>()?;
        judge(&requests, &mut selectors, &kinds)?;
        let nodes = made.into_iter().zip(nodes);
        let nodes = nodes.map(|((name, known), (card, gpus))| {
            let (node, parts) = node(&name, &known, &mut pools, &mut selectors)?;
            Ok(FleetNode {
                card: *card,
                gpus: *gpus,
                node,
                parts,
            })
        });
        Ok(Self {
            nodes: nodes.collect::<Result<_>>()?,
            requests,
        })
    }

    /// How many GPUs there are.
    pub(super) fn gpus(&self) -> usize {
        self.nodes.iter().map(|node| node.gpus).sum()
    }

    /// What the cheapest device is charged as that satisfies a request, in thousandths of a GPU. `None`: there is none.
    pub(super) fn least_charge(&self, request: &DeviceRequest) -> Option<i64> {
        let devices = self.nodes.iter().flat_map(|node| &node.node.devices);
        let matching = devices.filter(|device| satisfies(device, request));
        matching.map(|device| device.gpus.0).min()
    }
}

/// Whether a device is one of those that a request may get.
pub(super) fn satisfies(device: &Device, request: &DeviceRequest) -> bool {
    let mut choices = request.choices.iter();
    choices.any(|choice| device.selectors.contains(&choice.selector))
}

/// What the driver knows of its GPUs.
fn known(card: Card, node: &str, gpus: usize) -> Result<KnownGpus> {
    let gpus = u32::try_from(gpus)?;
    let gpus = (0..gpus).map(|index| {
        Ok(ListedGpu {
            gpu: card.gpu(node, index)?,
            silent: None,
        })
    });
    let listed = Listed {
        gpus: gpus.collect::<Result<_>>()?,
        unidentified: Vec::new(),
    };
    Ok(KnownGpus::default().after("boot", &listed))
}

/// The slices that it publishes, as the API server stores them.
fn published(node: &str, known: &KnownGpus) -> Result<Vec<ResourceSlice>> {
    let desired = desired(known, &policy(), &[], &Tainted::default());
    let left_out = desired.left_out;
    ensure!(left_out.is_empty(), "{node}: left out: {left_out:?}");
    let pool = Pool {
        driver: keys::DRIVER.to_owned(),
        node: node.to_owned(),
        node_uid: format!("uid-of-{node}"),
    };
    let mut slices = plan(&pool, &desired.contents, &[]).create;
    for slice in &mut slices {
        let prefix = slice.metadata.generate_name.take();
        slice.metadata.name = prefix.map(|prefix| format!("{prefix}stored"));
    }
    Ok(slices)
}

/// Has all that the requests select judged, for every device that there is.
fn judge(requests: &[DeviceRequest], selectors: &mut Selectors, kinds: &DeviceKinds) -> Result<()> {
    let choices = requests.iter().flat_map(|request| &request.choices);
    let all: BTreeSet<SelectorId> = choices.map(|choice| choice.selector).collect();
    for id in all {
        while let Some(work) = selectors.request(id, kinds) {
            // No limit: nobody waits for the answer.
            let given = selectors.give(work.judge(&|| Duration::ZERO), kinds);
            ensure!(!given.is_refused, "a selector of ours is refused: {work:?}");
        }
    }
    Ok(())
}

/// The engine's node, and what its devices are.
fn node(
    name: &str,
    known: &KnownGpus,
    pools: &mut Pools,
    selectors: &mut Selectors,
) -> Result<(Node, Vec<Part>)> {
    let OnNode {
        offered,
        all_complete,
        faults,
        ..
    } = pools.on_node(name);
    ensure!(all_complete, "{name}: its slices do not count: {faults:?}");
    let known = parts(name, known);
    let mut devices = Vec::with_capacity(offered.devices.len());
    let mut parts = Vec::with_capacity(offered.devices.len());
    for offered in &offered.devices {
        let device = device(offered, selectors)?;
        let part = known.get(&device.name);
        parts.push(*part.with_context(|| format!("nothing is known of {}", device.name))?);
        devices.push(device);
    }
    let node = Node {
        name: name.into(),
        uid: format!("uid-of-{name}"),
        block: None,
        allocatable: PodResources {
            pods: PODS_PER_NODE,
            ..PodResources::default()
        },
        used: PodResources::default(),
        fabric: BTreeMap::new(),
        accelerator: BTreeMap::new(),
        filters: BTreeSet::from([ANY_NODE]).into(),
        devices,
        counter_sets: offered.counter_sets,
    };
    Ok((node, parts))
}

/// All that the GPUs of a node may be, by the name of the device.
fn parts(node: &str, known: &KnownGpus) -> BTreeMap<DeviceName, Part> {
    let gpus = known.gpus.iter().enumerate();
    let parts = gpus.flat_map(|(gpu, known)| {
        known.parts().map(move |part| {
            let name = device_name(keys::DRIVER, node, &part.name);
            let slice = part.slice;
            let slice = slice.map(|slice| (slice.profile.gpu_instance_profile, slice.placement));
            (DeviceName::from(name), Part { gpu, slice })
        })
    });
    parts.collect()
}

fn device(offered: &OfferedDevice, selectors: &mut Selectors) -> Result<Device> {
    let published = &offered.published;
    let verdicts = selectors.verdicts(published);
    let name = &published.name;
    let fails = verdicts.fails;
    ensure!(fails.is_empty(), "{name}: a selector fails: {fails:?}");
    ensure!(published.kind.is_planned, "{name}: is never planned");
    Ok(Device {
        name: name.as_ref().into(),
        flavors: BTreeSet::from([FLAVOR.into()]),
        gpus: offered.gpus,
        vram: published.kind.memory,
        selectors: verdicts.matching,
        attributes: Arc::clone(&published.kind.attributes),
        own_attributes: Arc::clone(&published.own_attributes),
        nvlink_group: published.kind.nvlink_group.clone(),
        usable: published.kind.usable,
        healthy: published.kind.healthy,
        allocated_to: None,
        consumes: Arc::clone(&offered.consumes),
    })
}

#[cfg(test)]
mod tests {
    use super::super::card::{A30, H100};
    use super::*;

    #[test]
    fn a_request_may_get_what_it_says_and_what_can_be_had_whole_is() {
        let asks = [
            Ask::Profile("1g.10gb"),
            Ask::Memory(12),
            Ask::Memory(40),
            Ask::Whole,
        ];
        let fleet = Fleet::new(&[(A30, 4), (H100, 8)], &asks).unwrap();
        assert_eq!(fleet.gpus(), 12);
        let devices: Vec<usize> = fleet.nodes.iter().map(|it| it.parts.len()).collect();
        // 13 slices of an A30, which stays in MIG mode; 25 of an H100, and itself.
        assert_eq!(devices, [4 * 13, 8 * 26]);
        let charges: Vec<Option<i64>> = fleet
            .requests
            .iter()
            .map(|request| fleet.least_charge(request))
            .collect();
        // 12 GiB are a `1g.20gb`, which is a quarter of its memory.
        assert_eq!(charges, [Some(142), Some(250), Some(500), Some(1000)]);
        let whole = &fleet.requests[3];
        for node in &fleet.nodes {
            for (device, part) in node.node.devices.iter().zip(&node.parts) {
                let expected = part.slice.is_none();
                assert_eq!(satisfies(device, whole), expected, "{}", device.name);
            }
        }
    }
}
