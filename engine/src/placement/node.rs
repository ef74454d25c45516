//! One node as placement sees it: what never changes while its update stands, and what is free on it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    allocator::allocate,
    coallocation::{Allocator, PendingAllocation, may_share_a_node},
    demand::ClaimShape,
    device_set::DeviceSet,
};
use crate::{
    amount::{Amount, Overflow},
    model::{Hold, Node, PodResources},
    names::{AttributeName, ClaimUid, DeviceName, FlavorName, SelectorId},
};

/// The devices of a node that match one selector.
#[derive(Clone, Debug)]
pub(crate) struct Candidates {
    /// All of them, whether free or not.
    pub(crate) devices: DeviceSet,
    /// Whether they are charged alike and belong to the same Flavors: then it does not matter
    /// which of them a claim gets.
    pub(crate) uniform: bool,
}

/// What is free on a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Occupancy {
    /// Devices that a new claim may get.
    pub(crate) free: DeviceSet,
    /// Thousandths of cores, bytes of memory and pods that are left; negative where more is used than there is.
    pub(crate) left: (i64, i64, i64),
    /// Claims that are held or planned here and not allocated yet. Their devices are out of `free`.
    pub(crate) pending: Vec<PendingAllocation>,
    /// Whether somebody holds devices here that cannot be told: then nothing new can be promised.
    pub(crate) undetermined: bool,
}

/// Claims that count as gone, with their devices as far as they are known.
pub(crate) type Released<'a> = BTreeMap<&'a ClaimUid, &'a [DeviceName]>;

/// A node.
#[derive(Clone, Debug)]
pub(crate) struct NodeRecord {
    pub(crate) node: Node,
    candidates: BTreeMap<SelectorId, Candidates>,
    device_at: BTreeMap<DeviceName, usize>,
    /// Devices that are charged as GPUs.
    gpus: DeviceSet,
    /// NVLink groups of two devices and more.
    groups: Vec<DeviceSet>,
    /// As it is.
    pub(crate) now: Occupancy,
    /// As if nothing ran there and nothing was tainted.
    pub(crate) empty: Occupancy,
}

impl NodeRecord {
    pub(crate) fn new(node: Node) -> Self {
        let count = node.devices.len();
        let mut matching: BTreeMap<SelectorId, Vec<usize>> = BTreeMap::new();
        let mut groups: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (at, device) in node.devices.iter().enumerate() {
            for selector in &device.selectors {
                matching.entry(*selector).or_default().push(at);
            }
            if let Some(group) = &device.nvlink_group {
                groups.entry(group).or_default().push(at);
            }
        }
        let alike = |members: &[usize]| {
            let mut kinds = members
                .iter()
                .map(|at| &node.devices[*at])
                .map(|device| (&device.flavors, device.gpus, device.vram));
            let first = kinds.next();
            kinds.all(|kind| Some(kind) == first)
        };
        let candidates = matching
            .into_iter()
            .map(|(selector, members)| {
                let uniform = alike(&members);
                let devices = DeviceSet::of(count, members);
                (selector, Candidates { devices, uniform })
            })
            .collect();
        let groups = groups
            .into_values()
            .filter(|members| members.len() > 1)
            .map(|members| DeviceSet::of(count, members))
            .collect();
        let gpus = (0..count).filter(|at| node.devices[*at].gpus.0 > 0);
        let gpus = DeviceSet::of(count, gpus);
        let names = node.devices.iter().enumerate();
        let device_at = names
            .map(|(at, device)| (device.name.clone(), at))
            .collect();
        let allocatable = &node.allocatable;
        let empty = Occupancy {
            free: DeviceSet::of(count, 0..count),
            left: (
                allocatable.cpu_milli,
                allocatable.memory_bytes,
                allocatable.pods,
            ),
            pending: Vec::new(),
            undetermined: false,
        };
        Self {
            node,
            candidates,
            device_at,
            gpus,
            groups,
            now: empty.clone(),
            empty,
        }
    }

    pub(crate) fn candidates(&self, selector: SelectorId) -> Option<&Candidates> {
        self.candidates.get(&selector)
    }

    pub(crate) fn attribute(&self, device: usize, name: &AttributeName) -> Option<&str> {
        let device = self.node.devices.get(device)?;
        device.attributes.get(name).map(String::as_str)
    }

    pub(crate) fn device_named(&self, name: &DeviceName) -> Option<usize> {
        self.device_at.get(name).copied()
    }

    /// Whether a device may be charged to a Flavor. What is charged as no GPU and belongs to no
    /// Flavor (a network card) may go along with any.
    pub(crate) fn belongs_to(&self, device: usize, flavor: &FlavorName) -> bool {
        self.node.devices.get(device).is_some_and(|device| {
            device.flavors.contains(flavor) || (device.flavors.is_empty() && device.gpus.0 == 0)
        })
    }

    /// What these devices are charged as together: GPUs and bytes.
    pub(crate) fn charged_as(&self, devices: &[usize]) -> Result<(Amount, Amount), Overflow> {
        let mut sum = (Amount::ZERO, Amount::ZERO);
        for device in devices.iter().filter_map(|at| self.node.devices.get(*at)) {
            sum = (sum.0.add(device.gpus)?, sum.1.add(device.vram)?);
        }
        Ok(sum)
    }

    /// How many GPUs are among these.
    pub(crate) fn gpus_in(&self, devices: &DeviceSet) -> usize {
        self.gpus.common(devices)
    }

    /// How many NVLink groups are whole before and would be only partly free afterwards.
    pub(crate) fn groups_broken(&self, before: &DeviceSet, after: &DeviceSet) -> usize {
        self.groups
            .iter()
            .filter(|group| {
                let left = group.common(after);
                group.common(before) == group.len() && left > 0 && left < group.len()
            })
            .count()
    }

    /// Whether the other has the same devices in the same order, as far as one claim can tell.
    pub(crate) fn looks_like(&self, other: &Self) -> bool {
        self.groups == other.groups
            && self.candidates.len() == other.candidates.len()
            && self
                .candidates
                .iter()
                .zip(&other.candidates)
                .all(|(one, other)| one.0 == other.0 && one.1.devices == other.1.devices)
    }

    /// What is free if just these holds stand. A device is taken if a claim has it, by the API server's
    /// word or a hold's. What is `released` counts as gone; a device that is known to be among it counts as usable:
    /// its driver taints it for as long as it is held.
    pub(crate) fn occupancy<'a>(
        &'a self,
        holds: impl Iterator<Item = &'a Arc<Hold>> + Clone,
        released: &Released<'a>,
    ) -> Occupancy {
        let mut occupancy = self.empty.clone();
        let mut allocated: BTreeSet<&ClaimUid> = BTreeSet::new();
        let given_back: BTreeSet<&DeviceName> = released.values().copied().flatten().collect();
        for (at, device) in self.node.devices.iter().enumerate() {
            let taken = device
                .allocated_to
                .as_ref()
                .filter(|uid| !released.contains_key(uid));
            allocated.extend(taken);
            let usable = device.usable || given_back.contains(&device.name);
            if taken.is_some() || !usable {
                occupancy.free.remove(at);
            }
        }
        occupancy.take(&self.node.used);
        for hold in holds.clone() {
            occupancy.take(&hold.resources);
            for claim in &hold.claims {
                let by_request = claim
                    .request
                    .as_ref()
                    .and_then(|claim| claim.allocated.as_ref());
                let by_request = by_request.map(|(_, devices)| devices);
                let devices = claim.devices.as_ref().or(by_request);
                let Some(devices) = devices else { continue };
                allocated.insert(&claim.uid);
                for device in devices.iter().filter_map(|name| self.device_named(name)) {
                    occupancy.free.remove(device);
                }
            }
        }
        self.reserve_for_pending(&mut occupancy, holds, allocated);
        occupancy
    }

    /// Sets devices aside for claims that are held but not allocated yet, as the allocator would.
    fn reserve_for_pending<'a>(
        &'a self,
        occupancy: &mut Occupancy,
        holds: impl Iterator<Item = &'a Arc<Hold>>,
        allocated: BTreeSet<&'a ClaimUid>,
    ) {
        let mut settled = allocated;
        for (tag, hold) in holds.enumerate() {
            let mut shapes = Vec::new();
            for claim in &hold.claims {
                if !settled.insert(&claim.uid) {
                    continue;
                }
                match &claim.request {
                    Some(request) => shapes.push(ClaimShape::new(request)),
                    None => occupancy.undetermined = true,
                }
            }
            let shapes: Vec<&ClaimShape> = shapes.iter().collect();
            if shapes.is_empty() {
                continue;
            }
            let pending = shapes
                .iter()
                .map(|shape| PendingAllocation::new(self, shape, Allocator::Held(tag)));
            occupancy.pending.extend(pending);
            match allocate(self, &occupancy.free, &shapes) {
                Some(granted) => {
                    for device in granted.into_iter().flatten() {
                        occupancy.free.remove(device);
                    }
                }
                None => occupancy.undetermined = true,
            }
        }
    }
}

impl Occupancy {
    pub(crate) fn take(&mut self, resources: &PodResources) {
        self.left.0 = self.left.0.saturating_sub(resources.cpu_milli);
        self.left.1 = self.left.1.saturating_sub(resources.memory_bytes);
        self.left.2 = self.left.2.saturating_sub(resources.pods);
    }

    /// Whether a further claim may wait here beside those that wait already.
    pub(crate) fn admits(&self, allocation: &PendingAllocation) -> bool {
        self.pending
            .iter()
            .all(|other| may_share_a_node(other, allocation))
    }
}
