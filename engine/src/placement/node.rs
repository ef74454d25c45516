//! One node as placement sees it: what never changes while its update stands, and what is free on it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    allocator::{Tally, allocate},
    coallocation::{Allocator, PendingAllocation, may_share_a_node, suffice_in_any_order},
    counters::Left,
    demand::ClaimShape,
    device_set::DeviceSet,
    kind::NodeKind,
    room::Room,
};
use crate::{
    model::{Hold, Node, NodeBlock, PodResources},
    names::{ClaimUid, DeviceName},
};

/// What is free on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Occupancy {
    /// Why nothing new may be planned here, whatever is free.
    pub(crate) block: Option<NodeBlock>,
    /// Devices that a new claim may get, each by itself.
    pub(crate) free: DeviceSet,
    /// Devices with which nothing is wrong and that no claim has, but of what they share with others too little is left.
    pub(crate) short: DeviceSet,
    /// What is left of the counters that devices share.
    pub(crate) left: Left,
    /// What is left besides devices. Every index that lists nodes by it has this one, and no copy.
    pub(crate) room: Arc<Room>,
    /// Claims that are held or planned here and not allocated yet. Their devices are out of `free`, and what they draw is of `left`.
    pub(crate) pending: Vec<PendingAllocation>,
    /// What was free before anything was taken for those; `None` if nobody waits.
    before: Option<Arc<Before>>,
    /// Whether somebody holds devices here and it is not known which: then nothing new can be planned.
    pub(crate) undetermined: bool,
    /// Whether it is as if nothing ran on the node: then it is closed to nobody either.
    pub(crate) is_as_if_empty: bool,
}

/// What is free on a node as far as devices go, and what is left of counters.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Before {
    free: DeviceSet,
    left: Left,
}

/// Claims that count as gone, with their devices as far as they are known.
pub(crate) type Released<'a> = BTreeMap<&'a ClaimUid, &'a [DeviceName]>;

/// A node.
#[derive(Clone, Debug)]
pub(crate) struct NodeRecord {
    pub(crate) node: Node,
    pub(crate) kind: Arc<NodeKind>,
    device_at: BTreeMap<DeviceName, usize>,
    /// Devices that are not usable, as the node says.
    pub(crate) tainted: DeviceSet,
    /// As it is.
    pub(crate) now: Occupancy,
    /// As if nothing ran there, nothing was tainted, and nothing blocked the node or closed it to anybody.
    pub(crate) empty: Occupancy,
}

impl NodeRecord {
    /// A node on which nothing is held.
    pub(crate) fn new(node: Node, kind: Arc<NodeKind>) -> Self {
        let count = node.devices.len();
        let names = node.devices.iter().enumerate();
        let device_at = names
            .map(|(at, device)| (device.name.clone(), at))
            .collect();
        let mut empty = Occupancy {
            block: None,
            free: DeviceSet::of(count, 0..count),
            short: DeviceSet::none(count),
            left: kind.counters.total().clone(),
            room: Arc::new(Room::of(&node.allocatable)),
            pending: Vec::new(),
            before: None,
            undetermined: false,
            is_as_if_empty: true,
        };
        empty.leave_out_short(&kind);
        let tainted = node.devices.iter().enumerate();
        let tainted = tainted.filter(|(_, device)| !device.usable);
        Self {
            tainted: DeviceSet::of(count, tainted.map(|(at, _)| at)),
            node,
            kind,
            device_at,
            now: Occupancy {
                is_as_if_empty: false,
                ..empty.clone()
            },
            empty,
        }
    }

    pub(crate) fn device_named(&self, name: &DeviceName) -> Option<usize> {
        self.device_at.get(name).copied()
    }

    /// The claims that have devices here, by the API server's account.
    pub(crate) fn claims(&self) -> impl Iterator<Item = &ClaimUid> {
        let devices = self.node.devices.iter();
        devices.filter_map(|device| device.allocated_to.as_ref())
    }

    /// Whether a device is allocated to nobody, and all that keeps it from being given out is that its driver taints it as held.
    pub(crate) fn is_any_tied(&self) -> bool {
        let mut devices = self.node.devices.iter();
        devices.any(|device| device.healthy && !device.usable && device.allocated_to.is_none())
    }

    /// What is free if just these holds stand. A device is taken if a claim has it, by the API server's
    /// account or a hold's. What is `released` counts as gone; a device that is known to be among it counts as
    /// usable: its driver taints it for as long as it is held. So it taints all that need some of the same hardware, and these count as
    /// usable, too, if nothing else is wrong with them: what others hold of it is taken by them.
    pub(crate) fn occupancy<'a>(
        &'a self,
        holds: impl Iterator<Item = &'a Arc<Hold>> + Clone,
        released: &Released<'a>,
    ) -> Occupancy {
        self.occupancy_beside(&self.node.used, holds, released, false)
    }

    /// The same if pods without a hold use just so much, and, if `is_untied`, if no driver taints any longer what was given out.
    pub(crate) fn occupancy_beside<'a>(
        &'a self,
        used: &PodResources,
        holds: impl Iterator<Item = &'a Arc<Hold>> + Clone,
        released: &Released<'a>,
        is_untied: bool,
    ) -> Occupancy {
        let count = self.node.devices.len();
        let mut occupancy = Occupancy {
            block: self.node.block,
            free: DeviceSet::of(count, 0..count),
            short: DeviceSet::none(count),
            left: self.kind.counters.total().clone(),
            is_as_if_empty: false,
            ..self.empty.clone()
        };
        // Whatever has it: one that the API server calls allocated draws from counters once, whoever else names it.
        let mut taken = DeviceSet::none(count);
        let mut allocated: BTreeSet<&ClaimUid> = BTreeSet::new();
        let given_back = released.values().copied().flatten();
        let given_back = given_back.filter_map(|name| self.device_named(name));
        let given_back = DeviceSet::of(count, given_back);
        for (at, device) in self.node.devices.iter().enumerate() {
            let holder = device
                .allocated_to
                .as_ref()
                .filter(|uid| !released.contains_key(uid));
            allocated.extend(holder);
            if holder.is_some() {
                taken.insert(at);
            }
            let usable = device.usable
                || given_back.contains(at)
                || (device.healthy && (is_untied || self.shares_with(at, &given_back)));
            if !usable {
                occupancy.free.remove(at);
            }
        }
        let room = Arc::make_mut(&mut occupancy.room);
        room.take(used);
        for hold in holds.clone() {
            room.take(&hold.resources);
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
                    taken.insert(device);
                }
            }
        }
        occupancy.free = occupancy.free.without(&taken);
        if self.kind.has_counters() {
            for device in taken.iter() {
                self.kind.counters.take(&mut occupancy.left, device);
            }
            occupancy.leave_out_short(&self.kind);
        }
        self.reserve_for_pending(&mut occupancy, holds, allocated);
        occupancy
    }

    /// What is free if one hold more stands, or one less, or another in its place, told from what is free now alone. `None` if
    /// more than amounts changes by it, or more than amounts may depend on it: then all holds have to be looked at.
    pub(crate) fn with_hold_replaced(
        &self,
        known: Option<&Hold>,
        hold: Option<&Hold>,
    ) -> Option<Occupancy> {
        let has_claims = |hold: Option<&Hold>| hold.is_some_and(|hold| !hold.claims.is_empty());
        let is_settled = self.now.pending.is_empty() && !self.now.undetermined;
        if !is_settled || has_claims(known) || has_claims(hold) {
            return None;
        }
        let (known, hold) = (known.map(|it| &it.resources), hold.map(|it| &it.resources));
        let room = self.now.room.replaced(&self.empty.room, known, hold)?;
        Some(Occupancy {
            room: Arc::new(room),
            ..self.now.clone()
        })
    }

    /// Sets devices aside for claims that are held but not allocated yet, as the allocator would.
    fn reserve_for_pending<'a>(
        &'a self,
        occupancy: &mut Occupancy,
        holds: impl Iterator<Item = &'a Arc<Hold>>,
        allocated: BTreeSet<&'a ClaimUid>,
    ) {
        let mut settled = allocated;
        for (pod, hold) in holds.enumerate() {
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
            if shapes.is_empty() {
                continue;
            }
            let shapes: Vec<&ClaimShape> = shapes.iter().collect();
            let pending = shapes
                .iter()
                .map(|shape| self.pending(shape, Allocator::Held(pod)));
            occupancy.set_waiting(pending.collect());
            match occupancy.allocate(&self.kind, &shapes, &mut Tally::default()) {
                Some(granted) => {
                    for device in granted.into_iter().flatten() {
                        occupancy.take(&self.kind, device);
                    }
                }
                None => occupancy.undetermined = true,
            }
        }
    }
}

impl NodeRecord {
    /// Whether a device draws from a counter from which one of some others draws.
    fn shares_with(&self, device: usize, others: &DeviceSet) -> bool {
        let beside = self.kind.counters.beside(device);
        beside.is_some_and(|beside| !beside.is_disjoint(others))
    }

    /// A claim that is to be allocated here.
    pub(crate) fn pending(&self, shape: &ClaimShape, allocator: Allocator) -> PendingAllocation {
        PendingAllocation::new(&self.kind, &self.tainted, shape, allocator)
    }
}

impl Occupancy {
    /// What kube-scheduler would allocate to the claims of one pod.
    pub(crate) fn allocate(
        &self,
        kind: &NodeKind,
        claims: &[&ClaimShape],
        tally: &mut Tally,
    ) -> Option<Vec<Vec<usize>>> {
        allocate(kind, &self.free, &self.left, claims, tally)
    }

    /// A device that is free is so no more, nor what too little is left for then.
    pub(crate) fn take(&mut self, kind: &NodeKind, device: usize) {
        self.free.remove(device);
        let Some(beside) = kind.counters.beside(device) else {
            return;
        };
        kind.counters.take(&mut self.left, device);
        for other in beside.and(&self.free).iter() {
            if !kind.counters.admit(&self.left, other) {
                self.free.remove(other);
                self.short.insert(other);
            }
        }
    }

    /// Of what is free, that is free no more of which too little is left.
    fn leave_out_short(&mut self, kind: &NodeKind) {
        if !kind.has_counters() {
            return;
        }
        let overdrawn = kind.counters.overdrawn(&self.left);
        for device in self.free.clone().iter() {
            let counters = &kind.counters;
            if counters.draws_from(device, &overdrawn) || !counters.admit(&self.left, device) {
                self.free.remove(device);
                self.short.insert(device);
            }
        }
    }

    /// Nothing is free on a node.
    pub(crate) fn reserved(node: &Node) -> Self {
        Self {
            block: node.block,
            ..Self::nothing(node.devices.len())
        }
    }

    /// Nothing is free among so many devices.
    pub(crate) fn nothing(devices: usize) -> Self {
        Self {
            block: None,
            free: DeviceSet::none(devices),
            short: DeviceSet::none(devices),
            left: Left::new(),
            room: Arc::new(Room::of(&PodResources::default())),
            pending: Vec::new(),
            before: None,
            undetermined: true,
            is_as_if_empty: false,
        }
    }

    /// Whether further claims of one pod may wait here beside those that wait already.
    pub(crate) fn admits(&self, kind: &NodeKind, further: &[PendingAllocation]) -> bool {
        let mut further_claims = further.iter();
        if further_claims.all(|claim| self.admits_as_alike(claim)) {
            return true;
        }
        let Some(before) = self.before.as_ref().filter(|_| kind.has_counters()) else {
            return false;
        };
        let all: Vec<&PendingAllocation> = self.pending.iter().chain(further).collect();
        suffice_in_any_order(kind, (&before.free, before.left.as_slice()), &all)
    }

    /// Whether a further claim may wait here since each of those that wait already asks for the same, or for something that has nothing
    /// to do with it.
    pub(crate) fn admits_as_alike(&self, further: &PendingAllocation) -> bool {
        let mut pending = self.pending.iter();
        pending.all(|other| may_share_a_node(other, further))
    }

    /// Claims wait here from now on. What they will get is not taken yet.
    pub(crate) fn set_waiting(&mut self, further: Vec<PendingAllocation>) {
        if self.before.is_none() {
            self.before = Some(Arc::new(Before {
                free: self.free.clone(),
                left: self.left.clone(),
            }));
        }
        self.pending.extend(further);
    }

    /// What was free before anything was taken for those who wait.
    fn before(&self) -> (&DeviceSet, &[i64]) {
        match &self.before {
            Some(before) => (&before.free, before.left.as_slice()),
            None => (&self.free, self.left.as_slice()),
        }
    }

    /// Whether nothing that fits here would not fit on the other, which is the same node at another time.
    pub(crate) fn lies_within(&self, other: &Self) -> bool {
        let are_within = |own: &[i64], others: &[i64]| {
            let mut both = own.iter().zip(others);
            both.all(|(own, other)| own <= other)
        };
        let (before, left_before) = self.before();
        let (before_other, left_before_other) = other.before();
        let waits_too = |theirs: &PendingAllocation| {
            let mut ours = self.pending.iter();
            ours.any(|ours| ours.asks_like(theirs))
        };
        (self.block.is_some() || other.block.is_none())
            && self.free.is_subset(&other.free)
            && are_within(&self.left, &other.left)
            && before.is_subset(before_other)
            && are_within(left_before, left_before_other)
            && self.room.lies_within(&other.room)
            && (self.undetermined || !other.undetermined)
            && other.pending.iter().all(waits_too)
    }
}
