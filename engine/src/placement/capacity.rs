//! How many units of a gang fit on one node, and if none, why.

use std::fmt;

use super::{
    allocator::{MAX_DEVICES_PER_CLAIM, allocate},
    coallocation::{AllocationKind, Allocator, PendingAllocation},
    demand::{ClaimShape, UnitShape},
    node::{NodeRecord, Occupancy},
};
use crate::{
    model::{NodeBlock, PodResources},
    names::FlavorName,
};

/// More units of one gang than any node holds; stands for "no limit".
const NO_LIMIT: usize = 1 << 16;

/// Why a node was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    Block(NodeBlock),
    OutsideTopology,
    Filter,
    ClaimElsewhere,
    ClaimTooLarge,
    NoSuchDevices,
    OtherFlavor,
    HeldDevicesUnknown,
    NotAllocatedYet,
    DevicesInUse,
    Cpu,
    Memory,
    Pods,
}

impl fmt::Display for Cause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Block(NodeBlock::NotReady) => "not Ready",
            Self::Block(NodeBlock::Cordoned) => "cordoned",
            Self::Block(NodeBlock::Lost) => "lost",
            Self::Block(NodeBlock::SlicesMissing) => "ResourceSlices missing",
            Self::Block(NodeBlock::DriverSilent) => "driver has not answered yet",
            Self::OutsideTopology => "not part of the Topology",
            Self::Filter => "node selector, affinity or taints",
            Self::ClaimElsewhere => "claim is allocated on another node",
            Self::ClaimTooLarge => "claim asks for more than 32 devices",
            Self::NoSuchDevices => "too few devices that match",
            Self::OtherFlavor => "devices of another Flavor",
            Self::HeldDevicesUnknown => "held devices unknown",
            Self::NotAllocatedYet => "devices of another gang not allocated yet",
            Self::DevicesInUse => "devices in use or tainted",
            Self::Cpu => "too little cpu",
            Self::Memory => "too little memory",
            Self::Pods => "too many pods",
        })
    }
}

/// What may stand where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules<'a> {
    /// The Flavor that devices must belong to, if anything is charged.
    pub(crate) flavor: Option<&'a FlavorName>,
    /// Whether blocks of nodes count.
    pub(crate) blocks_count: bool,
}

/// Devices granted to each claim of a unit.
pub(crate) type Grants = Vec<Vec<usize>>;

impl Rules<'_> {
    /// How many units of a shape fit on a node; at least one.
    pub(crate) fn capacity(
        &self,
        record: &NodeRecord,
        occupancy: &Occupancy,
        shape: &UnitShape,
        resources: &PodResources,
    ) -> Result<usize, Cause> {
        self.may_stand(record, occupancy, shape)?;
        let most = by_resources(occupancy.left, resources)?;
        if shape.needs_devices() {
            self.by_devices(record, occupancy, shape, most)
        } else {
            Ok(most)
        }
    }

    fn may_stand(
        &self,
        record: &NodeRecord,
        occupancy: &Occupancy,
        shape: &UnitShape,
    ) -> Result<(), Cause> {
        if let Some(block) = record.node.block
            && self.blocks_count
        {
            return Err(Cause::Block(block));
        }
        let passes = |pod: &super::demand::UnitPod| record.node.filters.contains(&pod.filter);
        if !shape.pods.iter().all(passes) {
            return Err(Cause::Filter);
        }
        let elsewhere = shape
            .claims
            .iter()
            .filter_map(|claim| claim.allocated.as_ref())
            .any(|(node, _)| *node != record.node.name);
        if elsewhere {
            return Err(Cause::ClaimElsewhere);
        }
        // Without devices a pod takes part in no order of allocation.
        if occupancy.undetermined && !shape.claims.is_empty() {
            return Err(Cause::HeldDevicesUnknown);
        }
        Ok(())
    }

    fn by_devices(
        &self,
        record: &NodeRecord,
        occupancy: &Occupancy,
        shape: &UnitShape,
        most: usize,
    ) -> Result<usize, Cause> {
        if let Some(units) = self.by_plain_count(record, occupancy, shape) {
            return match units {
                0 => Err(Cause::DevicesInUse),
                units => Ok(units.min(most)),
            };
        }
        let drawing = shape
            .claims
            .iter()
            .filter(|claim| claim.allocated.is_none());
        let mut pending = drawing.map(|claim| &claim.shape);
        let first = pending
            .next()
            .map(|claim| self.allocation(record, claim))
            .transpose()?;
        let Some(first) = first else { return Ok(most) };
        let mut count = first.count;
        let mut simple = first.uniform && first.kind == AllocationKind::Any;
        for claim in pending {
            let allocation = self.allocation(record, claim)?;
            count += allocation.count;
            simple &=
                allocation.kind == AllocationKind::Any && allocation.candidates == first.candidates;
        }
        if simple {
            if !occupancy.admits(&first) {
                return Err(Cause::NotAllocatedYet);
            }
            let units = first.candidates.common(&occupancy.free) / count.max(1);
            return match units {
                0 => Err(Cause::DevicesInUse),
                units => Ok(units.min(most)),
            };
        }
        let mut trial = occupancy.clone();
        let mut units = 0;
        while units < most && self.place(record, &mut trial, shape).is_some() {
            units += 1;
        }
        match units {
            0 if !occupancy.admits(&first) => Err(Cause::NotAllocatedYet),
            0 => Err(Cause::DevicesInUse),
            units => Ok(units),
        }
    }

    /// The common case, without an allocation: one claim with one request for any of devices that are alike,
    /// on a node where nobody waits for devices. `None` if it is not that case, or the node does not have such
    /// devices: then the long way tells why.
    fn by_plain_count(
        &self,
        record: &NodeRecord,
        occupancy: &Occupancy,
        shape: &UnitShape,
    ) -> Option<usize> {
        let [claim] = shape.claims.as_slice() else {
            return None;
        };
        let [(selector, count)] = claim.shape.requests.as_slice() else {
            return None;
        };
        let plain = claim.allocated.is_none() && claim.shape.constraints.is_empty();
        if !plain || *count > MAX_DEVICES_PER_CLAIM || !occupancy.pending.is_empty() {
            return None;
        }
        let candidates = record.candidates(*selector)?;
        let first = candidates.devices.iter().next()?;
        let belongs = self
            .flavor
            .is_none_or(|flavor| record.belongs_to(first, flavor));
        if !candidates.uniform || !belongs || candidates.devices.len() < *count {
            return None;
        }
        Some(candidates.devices.common(&occupancy.free) / (*count).max(1))
    }

    /// A claim's allocation, if the node has such devices at all.
    fn allocation(
        &self,
        record: &NodeRecord,
        claim: &ClaimShape,
    ) -> Result<PendingAllocation, Cause> {
        if claim.devices() > MAX_DEVICES_PER_CLAIM {
            return Err(Cause::ClaimTooLarge);
        }
        let allocation = PendingAllocation::new(record, claim, Allocator::Open);
        for (selector, count) in &claim.requests {
            let matching = record.candidates(*selector);
            if *count > matching.map_or(0, |matching| matching.devices.len()) {
                return Err(Cause::NoSuchDevices);
            }
        }
        if allocation.candidates.len() < allocation.count {
            return Err(Cause::NoSuchDevices);
        }
        let fits = |device| {
            self.flavor
                .is_none_or(|flavor| record.belongs_to(device, flavor))
        };
        if !allocation.candidates.iter().any(fits) {
            return Err(Cause::OtherFlavor);
        }
        Ok(allocation)
    }

    /// Puts one unit on a node: takes its resources and the devices that the allocator would grant. The
    /// node is left in an undefined state if it does not fit.
    pub(crate) fn place(
        &self,
        record: &NodeRecord,
        occupancy: &mut Occupancy,
        shape: &UnitShape,
    ) -> Option<Grants> {
        occupancy.take(&shape.resources()?);
        let (cpu, memory, pods) = occupancy.left;
        if cpu < 0 || memory < 0 || pods < 0 {
            return None;
        }
        let mut grants: Vec<Option<Vec<usize>>> = vec![None; shape.claims.len()];
        for (grant, claim) in grants.iter_mut().zip(&shape.claims) {
            if let Some((_, devices)) = &claim.allocated {
                let named = devices.iter().map(|name| record.device_named(name));
                *grant = Some(named.collect::<Option<_>>()?);
            }
        }
        for pod in &shape.pods {
            let asked: Vec<usize> = pod
                .claims
                .iter()
                .copied()
                .filter(|claim| grants[*claim].is_none())
                .collect();
            if asked.is_empty() {
                continue;
            }
            let tag = occupancy.pending.len();
            let pending: Vec<PendingAllocation> = asked
                .iter()
                .map(|claim| {
                    let claim = &shape.claims[*claim];
                    let tag = if claim.shared {
                        Allocator::Open
                    } else {
                        Allocator::Planned(tag)
                    };
                    PendingAllocation::new(record, &claim.shape, tag)
                })
                .collect();
            if !pending
                .iter()
                .all(|allocation| occupancy.admits(allocation))
            {
                return None;
            }
            occupancy.pending.extend(pending);
            let shapes: Vec<&ClaimShape> = asked
                .iter()
                .map(|claim| &shape.claims[*claim].shape)
                .collect();
            let granted = allocate(record, &occupancy.free, &shapes)?;
            for (claim, devices) in asked.into_iter().zip(granted) {
                for device in &devices {
                    occupancy.free.remove(*device);
                    if self
                        .flavor
                        .is_some_and(|flavor| !record.belongs_to(*device, flavor))
                    {
                        return None;
                    }
                }
                grants[claim] = Some(devices);
            }
        }
        grants.into_iter().collect()
    }
}

/// How many times resources are left.
fn by_resources(left: (i64, i64, i64), asked: &PodResources) -> Result<usize, Cause> {
    let parts = [
        (left.0, asked.cpu_milli, Cause::Cpu),
        (left.1, asked.memory_bytes, Cause::Memory),
        (left.2, asked.pods, Cause::Pods),
    ];
    let mut most = NO_LIMIT;
    for (left, asked, cause) in parts {
        if asked <= 0 {
            continue;
        }
        let times = usize::try_from(left / asked).unwrap_or(0);
        if left <= 0 || times == 0 {
            return Err(cause);
        }
        most = most.min(times);
    }
    Ok(most)
}
