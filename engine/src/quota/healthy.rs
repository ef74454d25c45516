//! What is healthy of a node's devices, in the amounts in which they are charged.
//!
//! A GPU that can be cut is published as itself and as each slice that it could be cut into. They cannot all be had at once, so they do not
//! all count: of devices that draw from counters as many count as could be allocated together, those first that are charged most. A GPU
//! counts once by that, and as the same whether it is cut or not; where only slices of it are published those count that fill it.

use std::{cmp::Reverse, collections::BTreeMap};

use crate::{
    amount::{FlavorResource, Resource},
    model::{Consumption, Device, Node, NodeBlock},
    names::FlavorName,
};

/// What is healthy of a node's devices: none of a lost node, whose charges are nobody's either; of one that is cordoned or drained, and
/// of devices that have a fault, what is in use still. Until it is free it is charged: taken out at once, it would be missed twice. A
/// node that is not Ready for the moment, or whose driver restarts, keeps its devices: a guarantee does not come and go with that. A
/// device in several Flavors counts in each.
pub(crate) fn healthy_of(node: &Node) -> BTreeMap<FlavorResource, i128> {
    let mut healthy = BTreeMap::new();
    if node.block == Some(NodeBlock::Lost) {
        return healthy;
    }
    let is_drained = node.block.is_some_and(NodeBlock::is_by_hand);
    let counts =
        |device: &&Device| device.allocated_to.is_some() || (device.healthy && !is_drained);
    let mut sharing: BTreeMap<&FlavorName, Vec<&Device>> = BTreeMap::new();
    for device in node.devices.iter().filter(counts) {
        for flavor in &device.flavors {
            if device.consumes.is_empty() {
                add_device(&mut healthy, flavor, device);
            } else {
                sharing.entry(flavor).or_default().push(device);
            }
        }
    }
    for (flavor, mut devices) in sharing {
        devices.sort_by_key(|device| Reverse((device.gpus, device.vram)));
        let sets = node.counter_sets.iter();
        let mut left: Vec<Vec<i64>> = sets.map(|set| set.counters.clone()).collect();
        for device in devices {
            if draw(&mut left, &device.consumes) {
                add_device(&mut healthy, flavor, device);
            }
        }
    }
    healthy
}

fn add_device(healthy: &mut BTreeMap<FlavorResource, i128>, flavor: &FlavorName, device: &Device) {
    for (resource, amount) in [(Resource::Gpus, device.gpus), (Resource::Vram, device.vram)] {
        let flavor = flavor.clone();
        super::automatic::add(
            healthy,
            &FlavorResource { flavor, resource },
            i128::from(amount.0),
        );
    }
}

/// Takes what a device draws of what is left; `false`, and nothing is taken, if that is too little, or not there at all.
fn draw(left: &mut [Vec<i64>], consumes: &[Consumption]) -> bool {
    let amounts = || {
        consumes.iter().flat_map(|consumption| {
            let amounts = consumption.amounts.iter();
            amounts.map(|(counter, amount)| (consumption.set as usize, *counter as usize, *amount))
        })
    };
    let is_enough = amounts().all(|(set, counter, amount)| {
        let left = left.get(set).and_then(|set| set.get(counter));
        left.is_some_and(|left| (0..=*left).contains(&amount))
    });
    if is_enough {
        for (set, counter, amount) in amounts() {
            if let Some(left) = left.get_mut(set).and_then(|set| set.get_mut(counter)) {
                *left = left.saturating_sub(amount);
            }
        }
    }
    is_enough
}
