//! How many units of a gang fit on one node, and if none, why.

use std::{fmt, sync::Arc};

use super::{
    DeviceCharge,
    allocator::{MAX_DEVICES_PER_CLAIM, Tally},
    coallocation::{Allocator, Choice, PendingAllocation, settled},
    demand::{ClaimShape, UnitShape},
    device_set::DeviceSet,
    kind::{Candidates, NodeKind},
    node::{NodeRecord, Occupancy},
    room::{NO_LIMIT, exclude_each_other},
};
use crate::{
    model::{NodeBlock, PodResources},
    names::{FlavorName, ResourceName},
};

/// Why a node was left out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    Block(NodeBlock),
    OutsideTopology,
    Filter,
    ClaimElsewhere,
    /// The gang does not get the node ([`crate::TopologyRequest::closed`]).
    Closed,
    ClaimTooLarge,
    NoSuchDevices,
    OtherFlavor,
    HeldDevicesUnknown,
    NotAllocatedYet,
    TooManyWays,
    DevicesInUse,
    /// It asks for whole GPUs, and slices of them are in use.
    CutGpus,
    /// Too little is left of any GPU of which something is left.
    SlicesInUse,
    Cpu,
    Memory,
    Pods,
    Resource(ResourceName),
    HostPort,
    AntiAffinity,
    Uncountable,
}

impl Cause {
    /// How much a pod on a node has of what lacks there; 1 of one that stands in the way by being there.
    pub(crate) fn share_of(&self, held: &PodResources, asked: &PodResources) -> i64 {
        match self {
            Self::Cpu => held.cpu_milli,
            Self::Memory => held.memory_bytes,
            Self::Pods => held.pods,
            Self::Resource(name) => held.others.get(name).copied().unwrap_or(0),
            Self::HostPort | Self::AntiAffinity => i64::from(exclude_each_other(held, asked)),
            _ => 0,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Block(NodeBlock::NotReady) => "not Ready",
            Self::Block(NodeBlock::Cordoned) => "cordoned",
            Self::Block(NodeBlock::Drained) => "drained by hand",
            Self::Block(NodeBlock::Lost) => "lost",
            Self::Block(NodeBlock::SlicesMissing) => "ResourceSlices missing",
            Self::Block(NodeBlock::DriverSilent) => "driver has not answered yet",
            Self::OutsideTopology => "not part of the Topology",
            Self::Filter => "node selector, affinity or taints",
            Self::ClaimElsewhere => "claim is allocated on another node",
            Self::Closed => "claim still prepared there for pods that were there before",
            Self::ClaimTooLarge => "claim asks for more than 32 devices",
            Self::NoSuchDevices => "too few devices that match",
            Self::OtherFlavor => "devices of another Flavor",
            Self::HeldDevicesUnknown => "held devices unknown",
            Self::NotAllocatedYet => "devices of another gang not allocated yet",
            Self::TooManyWays => "too many ways to allocate its devices",
            Self::DevicesInUse => "devices in use or tainted",
            Self::CutGpus => "whole GPUs wait for slices to end",
            Self::SlicesInUse => "enough memory on no GPU: slices in use",
            Self::Cpu => "too little cpu",
            Self::Memory => "too little memory",
            Self::Pods => "too many pods",
            Self::Resource(name) => return write!(formatter, "too little {name}"),
            Self::HostPort => "host port in use",
            Self::AntiAffinity => "pod anti-affinity",
            Self::Uncountable => "requests exceed what can be counted",
        })
    }
}

/// What may run where. Part of the key under which capacities are remembered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rules {
    /// The Flavor that devices must belong to, if anything is charged.
    pub(crate) flavor: Option<FlavorName>,
    /// The most that a granted device may be charged as.
    pub(crate) most_per_device: Option<DeviceCharge>,
}

/// What it costs to put one more unit on a node, where it goes by this: the least is the best fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FitCost {
    /// GPUs of which nothing is in use that it takes, or of which it takes a slice.
    pub(crate) opened: u64,
    /// What its devices are charged as, in thousandths of a GPU.
    pub(crate) gpus: i64,
    /// The same, in bytes of memory.
    pub(crate) vram: i64,
}

impl FitCost {
    /// Of so many devices that share nothing, of which this is one.
    fn of_alike(kind: &NodeKind, device: usize, count: usize) -> Self {
        let charge = kind.charge_of(device).unwrap_or_default();
        let times = i64::try_from(count).unwrap_or(i64::MAX);
        Self {
            opened: if kind.is_whole(device) {
                count as u64
            } else {
                0
            },
            gpus: charge.gpus.0.saturating_mul(times),
            vram: charge.vram.0.saturating_mul(times),
        }
    }
}

/// How many units a node holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capacity {
    /// At least one.
    pub(crate) units: usize,
    /// Whether it may hold more: after these the allocation was given up.
    pub(crate) is_partial: bool,
    /// What the first of them costs.
    pub(crate) cost: FitCost,
}

impl Capacity {
    fn exactly(units: usize, cost: FitCost) -> Self {
        Self {
            units,
            is_partial: false,
            cost,
        }
    }

    /// The same where something else allows no more than so many units.
    pub(super) fn within(self, most: usize) -> Self {
        Self {
            units: self.units.min(most),
            is_partial: self.is_partial && self.units < most,
            cost: self.cost,
        }
    }
}

/// Most looks at devices that it takes to count the units of one node, but for the last allocation. Sixty-four devices
/// that are allocated one by one take about 2,000.
pub(super) const MOST_LOOKS_TO_COUNT: usize = 5_000;

/// Looks at what shares counters with a device that is taken, which cost as much as one look of an allocation.
const LOOKS_FOR_ONE: u64 = 4;

/// Devices granted to each claim of a unit.
pub(crate) type Grants = Vec<Vec<usize>>;

impl Rules {
    /// How many units of a shape fit on a node.
    pub(crate) fn capacity(
        &self,
        record: &NodeRecord,
        occupancy: &Occupancy,
        shape: &UnitShape,
        resources: &PodResources,
    ) -> Result<Capacity, Cause> {
        Self::may_run(record, occupancy, shape)?;
        let most = occupancy.room.times(resources)?;
        Ok(self.by_devices(record, occupancy, shape)?.within(most))
    }

    /// How many units of a shape fit on a node as far as devices go.
    pub(crate) fn device_capacity(
        &self,
        record: &NodeRecord,
        occupancy: &Occupancy,
        shape: &UnitShape,
    ) -> Result<Capacity, Cause> {
        Self::may_run(record, occupancy, shape)?;
        self.by_devices(record, occupancy, shape)
    }

    /// Whether a node takes units of a shape at all, whatever is free.
    pub(crate) fn may_run(
        record: &NodeRecord,
        occupancy: &Occupancy,
        shape: &UnitShape,
    ) -> Result<(), Cause> {
        if let Some(block) = occupancy.block {
            return Err(Cause::Block(block));
        }
        let mut filters = shape.filters().iter();
        if !filters.all(|filter| record.node.filters.contains(filter)) {
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
        if !occupancy.is_as_if_empty && shape.is_closed_on(&record.node.name) {
            return Err(Cause::Closed);
        }
        if shape.pods.len() > 1 && !shape.is_coherent() {
            return Err(Cause::AntiAffinity);
        }
        // Without claims a pod takes part in no order of allocation.
        if occupancy.undetermined && !shape.claims.is_empty() {
            return Err(Cause::HeldDevicesUnknown);
        }
        Ok(())
    }

    /// Whether a device may be granted.
    fn allows(&self, kind: &NodeKind, device: usize) -> bool {
        let belongs = |flavor| kind.belongs_to(device, flavor);
        self.flavor.as_ref().is_none_or(belongs)
            && self
                .most_per_device
                .is_none_or(|most| kind.charge_of(device).is_some_and(|of| of.is_within(most)))
    }

    fn by_devices(
        &self,
        record: &NodeRecord,
        occupancy: &Occupancy,
        shape: &UnitShape,
    ) -> Result<Capacity, Cause> {
        if !shape.needs_devices() {
            return Ok(Capacity::exactly(NO_LIMIT, FitCost::default()));
        }
        if let Some((units, cost)) = self.by_plain_count(&record.kind, occupancy, shape) {
            return match units {
                0 => Err(Cause::DevicesInUse),
                units => Ok(Capacity::exactly(units, cost)),
            };
        }
        let mut claims = shape.open_claims();
        let first = claims
            .next()
            .map(|claim| {
                let allocation = self.allocation(record, claim);
                allocation.map(|allocation| (claim, allocation))
            })
            .transpose()?;
        let Some((first_claim, first)) = first else {
            return Ok(Capacity::exactly(NO_LIMIT, FitCost::default()));
        };
        let mut count = first.count;
        let mut simple = first.uniform && first.choice == Choice::Any && first.from.is_some();
        for claim in claims {
            let allocation = self.allocation(record, claim)?;
            count += allocation.count;
            simple &= allocation.choice == Choice::Any && allocation.from == first.from;
        }
        simple &= occupancy.admits_as_alike(&first) || !record.kind.has_counters();
        if simple && let Some((of, _)) = settled(&record.kind, first_claim, &record.tainted) {
            return self.by_count(record, occupancy, shape, (of, count), &first);
        }
        let mut trial = occupancy.clone();
        let (mut units, mut cost) = (0, FitCost::default());
        let mut tally = Tally::default();
        while units < NO_LIMIT
            && let Some(grants) = self.grant(record, &mut trial, shape, &mut tally)
        {
            if units == 0 {
                cost = Self::cost(&record.kind, occupancy, shape, &grants);
            }
            units += 1;
            if tally.looks >= MOST_LOOKS_TO_COUNT as u64 {
                tally.gave_up = true;
                break;
            }
        }
        match units {
            0 if tally.gave_up => Err(Cause::TooManyWays),
            0 if !occupancy.admits(&record.kind, std::slice::from_ref(&first)) => {
                Err(Cause::NotAllocatedYet)
            }
            0 => Err(Self::in_use(record, occupancy, shape)),
            units => Ok(Capacity {
                units,
                is_partial: tally.gave_up,
                cost,
            }),
        }
    }

    /// How many units fit that ask for so many each of any of some candidates, among which it makes no difference which of them are
    /// taken.
    fn by_count(
        &self,
        record: &NodeRecord,
        occupancy: &Occupancy,
        shape: &UnitShape,
        (of, count): (&Candidates, usize),
        pending: &PendingAllocation,
    ) -> Result<Capacity, Cause> {
        let kind = &record.kind;
        let Some(any) = of.devices.iter().next().filter(|at| self.allows(kind, *at)) else {
            return Err(Cause::OtherFlavor);
        };
        if !occupancy.admits_as_alike(pending) {
            return Err(Cause::NotAllocatedYet);
        }
        let together = of
            .together
            .count(&of.devices, &occupancy.free, &occupancy.left);
        let units = together.unwrap_or(0) / count.max(1);
        if units == 0 {
            return Err(Self::in_use(record, occupancy, shape));
        }
        let mut cost = FitCost::of_alike(kind, any, count);
        if kind.has_counters() {
            let mut trial = occupancy.clone();
            if let Some(grants) = self.grant(record, &mut trial, shape, &mut Tally::default()) {
                cost = Self::cost(kind, occupancy, shape, &grants);
            }
        }
        Ok(Capacity::exactly(units, cost))
    }

    /// What devices cost that are granted to one unit.
    fn cost(
        kind: &NodeKind,
        occupancy: &Occupancy,
        shape: &UnitShape,
        grants: &[Vec<usize>],
    ) -> FitCost {
        let mut cost = FitCost::default();
        let mut left = occupancy.left.clone();
        let claims = shape.claims.iter().zip(grants);
        let open = claims.filter(|(claim, _)| claim.allocated.is_none());
        for device in open.flat_map(|(_, devices)| devices) {
            let counters = &kind.counters;
            if kind.is_whole(*device) || counters.is_pristine(&left, *device) {
                cost.opened += 1;
            }
            counters.take(&mut left, *device);
            let charge = kind.charge_of(*device).unwrap_or_default();
            cost.gpus = cost.gpus.saturating_add(charge.gpus.0);
            cost.vram = cost.vram.saturating_add(charge.vram.0);
        }
        cost
    }

    /// Why the devices are not to be had that a unit asks for.
    fn in_use(record: &NodeRecord, occupancy: &Occupancy, shape: &UnitShape) -> Cause {
        let kind = &record.kind;
        if !kind.has_counters() {
            return Cause::DevicesInUse;
        }
        let mut asked = DeviceSet::none(kind.devices());
        for claim in shape.open_claims() {
            asked.extend(&record.pending(claim, Allocator::Any).candidates);
        }
        let cut = |device: &usize| kind.counters.is_cut(&occupancy.left, *device);
        if !asked.and(&occupancy.short).iter().any(|at| cut(&at)) {
            Cause::DevicesInUse
        } else if asked.iter().all(|device| kind.is_whole(device)) {
            Cause::CutGpus
        } else {
            Cause::SlicesInUse
        }
    }

    /// The common case, without an allocation: one claim with one request, of one choice, for any of devices that are alike and
    /// share nothing, on a node where nobody waits for devices. `None` if it is not that case, or the node does not have such
    /// devices: then the long way finds out why.
    fn by_plain_count(
        &self,
        kind: &NodeKind,
        occupancy: &Occupancy,
        shape: &UnitShape,
    ) -> Option<(usize, FitCost)> {
        let [claim] = shape.claims.as_slice() else {
            return None;
        };
        let [request] = claim.shape.requests.as_slice() else {
            return None;
        };
        let [(selector, count)] = request.choices.as_slice() else {
            return None;
        };
        if kind.has_counters() {
            return None;
        }
        let plain = claim.allocated.is_none() && claim.shape.constraints.is_empty();
        if !plain || *count > MAX_DEVICES_PER_CLAIM || !occupancy.pending.is_empty() {
            return None;
        }
        let candidates = kind.candidates(*selector)?;
        let first = candidates.devices.iter().next()?;
        let allowed = candidates.uniform && self.allows(kind, first);
        if !allowed || candidates.devices.len() < *count {
            return None;
        }
        let cost = FitCost::of_alike(kind, first, *count);
        let units = candidates.devices.common(&occupancy.free) / (*count).max(1);
        Some((units, cost))
    }

    /// What a claim would wait for, if the node has such devices at all.
    fn allocation(
        &self,
        record: &NodeRecord,
        claim: &ClaimShape,
    ) -> Result<PendingAllocation, Cause> {
        let kind = &record.kind;
        if claim.devices() > MAX_DEVICES_PER_CLAIM {
            return Err(Cause::ClaimTooLarge);
        }
        let allocation = record.pending(claim, Allocator::Any);
        for request in &claim.requests {
            let mut choices = request.choices.iter();
            let is_possible = choices.any(|(selector, count)| {
                let matching = kind.candidates(*selector);
                *count <= matching.map_or(0, |matching| matching.devices.len())
            });
            if !is_possible {
                return Err(Cause::NoSuchDevices);
            }
        }
        if allocation.candidates.len() < claim.devices() {
            return Err(Cause::NoSuchDevices);
        }
        let allowed = |device| self.allows(kind, device);
        if allocation.count > 0 && !allocation.candidates.iter().any(allowed) {
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
        resources: &PodResources,
        tally: &mut Tally,
    ) -> Option<Grants> {
        occupancy.room.times(resources).ok()?;
        Arc::make_mut(&mut occupancy.room).take(resources);
        self.grant(record, occupancy, shape, tally)
    }

    /// Takes the devices that the allocator would grant to one unit.
    pub(crate) fn grant(
        &self,
        record: &NodeRecord,
        occupancy: &mut Occupancy,
        shape: &UnitShape,
        tally: &mut Tally,
    ) -> Option<Grants> {
        let kind = &record.kind;
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
            let this_pod = Allocator::Planned(occupancy.pending.len());
            let pending: Vec<PendingAllocation> = asked
                .iter()
                .map(|claim| {
                    let claim = &shape.claims[*claim];
                    let allocator = if claim.shared {
                        Allocator::Any
                    } else {
                        this_pod
                    };
                    record.pending(&claim.shape, allocator)
                })
                .collect();
            if !occupancy.admits(kind, &pending) {
                return None;
            }
            occupancy.set_waiting(pending);
            let shapes: Vec<&ClaimShape> = asked
                .iter()
                .map(|claim| &shape.claims[*claim].shape)
                .collect();
            let granted = occupancy.allocate(kind, &shapes, tally)?;
            for (claim, devices) in asked.into_iter().zip(granted) {
                for device in &devices {
                    // All that share something with it are looked at.
                    tally.looks += kind.freed_with(*device) as u64 / LOOKS_FOR_ONE;
                    occupancy.take(kind, *device);
                    if !self.allows(kind, *device) {
                        return None;
                    }
                }
                grants[claim] = Some(devices);
            }
        }
        grants.into_iter().collect()
    }
}
