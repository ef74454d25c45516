//! Small nodes for the tests of this module.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    amount::Amount,
    model::{Device, Node, PodResources},
    names::{DeviceName, NodeFilterId, SelectorId},
};

/// A GPU that matches selector 0 and belongs to the Flavor `h100`.
pub(super) fn device(at: usize) -> Device {
    Device {
        name: DeviceName::from(format!("d{at}")),
        flavors: BTreeSet::from(["h100".into()]),
        gpus: Amount::ONE_GPU,
        vram: Amount::ZERO,
        selectors: BTreeSet::from([SelectorId(0)]),
        attributes: BTreeMap::new(),
        nvlink_group: None,
        usable: true,
        allocated_to: None,
    }
}

/// A node outside every Topology with 64 cores, 512 GiB and 110 pods, which filter 0 passes.
pub(super) fn node(name: &str, devices: usize) -> Node {
    Node {
        name: name.into(),
        uid: format!("uid-{name}"),
        block: None,
        allocatable: PodResources {
            cpu_milli: 64_000,
            memory_bytes: 512 << 30,
            pods: 110,
            ..PodResources::default()
        },
        used: PodResources::default(),
        fabric: BTreeMap::new(),
        accelerator: BTreeMap::new(),
        filters: BTreeSet::from([NodeFilterId(0)]),
        devices: (0..devices).map(device).collect(),
    }
}
