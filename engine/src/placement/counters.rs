//! What devices of a node share: counters from which each of them draws while it is allocated.
//!
//! As kube-scheduler's allocator has it (`checkAvailableCounters`, 1.37.1): what is left of a counter is what there is of it
//! less what all devices draw that are allocated, by whomever; a device may be allocated if that leaves no counter of its
//! pool below zero, whichever it draws from. A search draws only what is left, so a counter is overdrawn from the beginning or never:
//! it suffices to leave out once the devices of a pool that is, and to compare a device with the counters that it draws from.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
};

use super::device_set::DeviceSet;
use crate::model::{Consumption, CounterSet};

/// What is left of each counter of a node, set by set; nothing where no device shares anything. Negative where more is drawn than
/// there is.
pub(crate) type Left = Vec<i64>;

/// Among how many devices that draw from the same counters it is found out which lie inside others: each is compared with each. There are a
/// few dozen ways to cut a GPU. Where there are more devices none counts as inside another.
pub(super) const MOST_COMPARED: usize = 256;

/// What one device draws.
#[derive(Clone, Debug)]
struct Draws {
    /// How much of which counter.
    amounts: Vec<(usize, i64)>,
    /// All counters of the sets from which it draws.
    sets: Vec<Range<usize>>,
    /// The pools of these sets.
    pools: BTreeSet<u32>,
    /// The devices that draw from a counter from which it draws, and itself.
    beside: DeviceSet,
    /// The devices of which each is to be had wherever this one is: those that draw no more of anything and cannot be allocated
    /// beside it, and itself.
    inside: DeviceSet,
}

/// The counters of a kind of node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    /// What there is of each.
    total: Left,
    /// The pool of each.
    pools: Vec<u32>,
    /// By device; `None` for a device that draws from none. Empty where that is so of all.
    draws: Vec<Option<Draws>>,
    /// Devices that draw from what is not there: they are never allocated.
    pub(crate) broken: Vec<usize>,
}

impl Counters {
    /// Of devices, by what each consumes.
    pub(crate) fn new(sets: &[CounterSet], consumes: &[Arc<[Consumption]>]) -> Self {
        if consumes.iter().all(|of_device| of_device.is_empty()) {
            return Self::default();
        }
        let mut counters = Self::default();
        let mut ranges: Vec<Range<usize>> = Vec::with_capacity(sets.len());
        for set in sets {
            let first = counters.total.len();
            counters.total.extend(&set.counters);
            counters.pools.resize(counters.total.len(), set.pool);
            ranges.push(first..counters.total.len());
        }
        for (device, of_device) in consumes.iter().enumerate() {
            let draws = draws_of(of_device, sets, &ranges, consumes.len());
            if draws.is_none() {
                counters.broken.push(device);
            }
            counters.draws.push(draws.filter(|_| !of_device.is_empty()));
        }
        counters.relate(consumes.len());
        counters
    }

    /// Finds out which devices draw from the same counters, and which lie inside others.
    fn relate(&mut self, devices: usize) {
        let mut drawing: BTreeMap<usize, DeviceSet> = BTreeMap::new();
        for (device, draws) in self.draws.iter().enumerate() {
            let amounts = draws.iter().flat_map(|draws| &draws.amounts);
            for (counter, _) in amounts {
                let known = drawing.entry(*counter);
                let all = known.or_insert_with(|| DeviceSet::none(devices));
                all.insert(device);
            }
        }
        for device in 0..devices {
            let Some(draws) = self.draws.get(device).and_then(Option::as_ref) else {
                continue;
            };
            let mut beside = DeviceSet::of(devices, [device]);
            for near in draws.amounts.iter().filter_map(|(it, _)| drawing.get(it)) {
                beside.extend(near);
            }
            let mut inside = DeviceSet::of(devices, [device]);
            if beside.len() <= MOST_COMPARED {
                for other in beside.iter().filter(|it| self.lies_inside(*it, device)) {
                    inside.insert(other);
                }
            }
            if let Some(Some(draws)) = self.draws.get_mut(device) {
                (draws.beside, draws.inside) = (beside, inside);
            }
        }
    }

    /// Whether a device draws no more of anything than the other, from no other pool, and there is too little for both.
    fn lies_inside(&self, device: usize, other: usize) -> bool {
        let (Some(own), Some(others)) = (self.of(device), self.of(other)) else {
            return false;
        };
        if !own.pools.is_subset(&others.pools) {
            return false;
        }
        let (own, others) = (&own.amounts, &others.amounts);
        let of_other = |counter: usize| {
            let at = others.binary_search_by_key(&counter, |(it, _)| *it).ok()?;
            Some(others[at].1)
        };
        let no_more = own
            .iter()
            .all(|(counter, amount)| of_other(*counter).is_some_and(|other| *amount <= other));
        no_more
            && own.iter().any(|(counter, amount)| {
                let both = of_other(*counter).map(|other| amount.saturating_add(other));
                both.is_some_and(|both| both > self.total[*counter])
            })
    }

    /// Whether no device shares anything.
    pub(crate) fn is_empty(&self) -> bool {
        self.draws.is_empty()
    }

    /// What is left if nothing is allocated.
    pub(crate) fn total(&self) -> &Left {
        &self.total
    }

    fn of(&self, device: usize) -> Option<&Draws> {
        self.draws.get(device)?.as_ref()
    }

    /// How much of which counter a device draws, by counter.
    pub(crate) fn amounts(&self, device: usize) -> &[(usize, i64)] {
        self.of(device)
            .map_or(&[][..], |draws| draws.amounts.as_slice())
    }

    /// The devices that draw from a counter from which this one draws, itself among them; `None` of one that draws from none.
    pub(crate) fn beside(&self, device: usize) -> Option<&DeviceSet> {
        Some(&self.of(device)?.beside)
    }

    /// Whether wherever a device is to be had one of some others is, or the device is one of them.
    pub(crate) fn has_inside(&self, device: usize, others: &DeviceSet) -> bool {
        match self.of(device) {
            Some(draws) => !draws.inside.is_disjoint(others),
            None => others.contains(device),
        }
    }

    /// Whether one of some others stands before a device in the order and is to be had wherever the device is.
    pub(crate) fn has_before(&self, device: usize, others: &DeviceSet) -> bool {
        self.of(device).is_some_and(|draws| {
            let mut before = draws.inside.iter().take_while(|at| *at < device);
            before.any(|at| others.contains(at))
        })
    }

    /// Of some devices those that first fit may come to: none of the others stands before them and is to be had wherever they are.
    pub(super) fn first_among(&self, devices: &DeviceSet) -> DeviceSet {
        let mut first = devices.clone();
        for device in devices.iter().filter(|at| self.has_before(*at, devices)) {
            first.remove(device);
        }
        first
    }

    /// Whether a device may be allocated, of a pool of which nothing is overdrawn.
    pub(crate) fn admit(&self, left: &[i64], device: usize) -> bool {
        self.amounts(device)
            .iter()
            .all(|(counter, amount)| left.get(*counter).is_some_and(|left| amount <= left))
    }

    /// Allocates a device.
    pub(crate) fn take(&self, left: &mut [i64], device: usize) {
        for (counter, amount) in self.amounts(device) {
            if let Some(left) = left.get_mut(*counter) {
                *left = left.saturating_sub(*amount);
            }
        }
    }

    /// Undoes what [`Counters::admit`] allowed to be taken.
    pub(crate) fn give_back(&self, left: &mut [i64], device: usize) {
        for (counter, amount) in self.amounts(device) {
            if let Some(left) = left.get_mut(*counter) {
                *left = left.saturating_add(*amount);
            }
        }
    }

    /// The pools of which some counter is overdrawn.
    pub(crate) fn overdrawn(&self, left: &[i64]) -> BTreeSet<u32> {
        let counters = left.iter().zip(&self.pools);
        let overdrawn = counters.filter(|(left, _)| **left < 0);
        overdrawn.map(|(_, pool)| *pool).collect()
    }

    /// Whether a device draws from one of these pools.
    pub(crate) fn draws_from(&self, device: usize, pools: &BTreeSet<u32>) -> bool {
        !pools.is_empty()
            && self
                .of(device)
                .is_some_and(|draws| !draws.pools.is_disjoint(pools))
    }

    /// Whether nothing is taken of any set from which a device draws: its GPU is whole. Not of a device that draws from none.
    pub(crate) fn is_pristine(&self, left: &[i64], device: usize) -> bool {
        self.of(device).is_some_and(|draws| {
            let mut sets = draws.sets.iter().cloned();
            sets.all(|set| left.get(set.clone()) == self.total.get(set))
        })
    }

    /// Whether of a set from which a device draws something is taken and something is left: its GPU is cut.
    pub(crate) fn is_cut(&self, left: &[i64], device: usize) -> bool {
        self.of(device).is_some_and(|draws| {
            let mut sets = draws.sets.iter().cloned();
            sets.any(|set| {
                let counters = left.get(set.clone()).unwrap_or_default();
                let whole = self.total.get(set).unwrap_or_default();
                counters != whole && counters.iter().any(|left| *left > 0)
            })
        })
    }
}

/// What a device draws, summed by counter; `None` if it draws from what is not there.
fn draws_of(
    consumes: &[Consumption],
    sets: &[CounterSet],
    ranges: &[Range<usize>],
    devices: usize,
) -> Option<Draws> {
    let mut amounts: BTreeMap<usize, i64> = BTreeMap::new();
    let (mut of_sets, mut pools) = (BTreeSet::new(), BTreeSet::new());
    for consumption in consumes {
        let set = usize::try_from(consumption.set).ok()?;
        let range = ranges.get(set)?;
        of_sets.insert(set);
        pools.insert(sets.get(set)?.pool);
        for (counter, amount) in consumption.amounts.iter() {
            let counter = range.start.checked_add(usize::try_from(*counter).ok()?)?;
            if *amount < 0 || !range.contains(&counter) {
                return None;
            }
            let sum = amounts.entry(counter).or_default();
            *sum = sum.saturating_add(*amount);
        }
    }
    let sets = of_sets.into_iter().filter_map(|set| ranges.get(set));
    Some(Draws {
        amounts: amounts.into_iter().collect(),
        sets: sets.cloned().collect(),
        pools,
        beside: DeviceSet::none(devices),
        inside: DeviceSet::none(devices),
    })
}

/// How many of some devices can be allocated together, where it does not matter which of them are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Together {
    /// All that are free: they share nothing.
    All,
    /// In each group all that are free, up to what is left of what they share.
    Groups(Vec<Group>),
    /// It depends on which are taken first.
    Entangled,
}

/// Devices that draw from common counters: each has its own, of which nobody else in the group draws, and of each common one all
/// draw equally much. So whichever of them is allocated, one less is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) devices: DeviceSet,
    /// How much each of them draws of which common counter.
    common: Vec<(usize, i64)>,
    /// The device that has a counter of its own, by counter.
    own: BTreeMap<usize, usize>,
}

impl Together {
    /// Of some devices.
    pub(crate) fn of(counters: &Counters, devices: &DeviceSet, count: usize) -> Self {
        if counters.is_empty() {
            return Self::All;
        }
        let mut groups = Vec::new();
        let mut rest = devices.clone();
        while let Some(first) = { rest.iter().next() } {
            // All that draw from the counters of the first one: in a group of whom each shares the same, these are the whole group.
            let mut members = DeviceSet::of(count, [first]);
            if let Some(beside) = counters.beside(first) {
                members.extend(&beside.and(devices));
            }
            match Group::of(counters, members, devices) {
                Some(group) => {
                    rest = rest.without(&group.devices);
                    groups.push(group);
                }
                None => return Self::Entangled,
            }
        }
        let shares = |group: &Group| group.devices.len() > 1;
        if groups.iter().any(shares) {
            Self::Groups(groups)
        } else {
            Self::All
        }
    }

    /// How many of the devices that are free, each by itself, can be allocated together.
    pub(crate) fn count(
        &self,
        devices: &DeviceSet,
        free: &DeviceSet,
        left: &[i64],
    ) -> Option<usize> {
        match self {
            Self::All => Some(devices.common(free)),
            Self::Groups(groups) => Some(groups.iter().map(|group| group.count(free, left)).sum()),
            Self::Entangled => None,
        }
    }

    /// How many fewer can be allocated at most once some device is, whether or not it is one of these, and whatever is allocated
    /// besides. `None` where it depends on which are taken first.
    pub(crate) fn lost_to(
        &self,
        counters: &Counters,
        devices: &DeviceSet,
        taken: usize,
    ) -> Option<usize> {
        match self {
            Self::All => Some(match counters.beside(taken) {
                Some(beside) => beside.common(devices),
                None => usize::from(devices.contains(taken)),
            }),
            Self::Groups(groups) => {
                let lost = groups.iter().map(|group| group.lost_to(counters, taken));
                Some(lost.sum())
            }
            Self::Entangled => None,
        }
    }

    /// Whether the order of allocations makes no difference.
    pub(crate) fn is_countable(&self) -> bool {
        !matches!(self, Self::Entangled)
    }

    /// The groups of more than one device.
    pub(crate) fn groups(&self) -> &[Group] {
        match self {
            Self::Groups(groups) => groups,
            Self::All | Self::Entangled => &[],
        }
    }
}

impl Group {
    /// `None` if the members draw differently from what they share, or share something with others of the devices.
    fn of(counters: &Counters, members: DeviceSet, devices: &DeviceSet) -> Option<Self> {
        // By counter how much each draws, how many do, and the first that does.
        let mut drawn: BTreeMap<usize, (i64, usize, usize)> = BTreeMap::new();
        let size = members.len();
        for device in members.iter() {
            let is_inside = counters
                .beside(device)
                .is_none_or(|beside| beside.and(devices).is_subset(&members));
            if !is_inside {
                return None;
            }
            for (counter, amount) in counters.amounts(device) {
                let known = drawn.entry(*counter);
                let (known, by, _) = known.or_insert((*amount, 0, device));
                *by += 1;
                if *known != *amount {
                    return None;
                }
            }
        }
        if !drawn.values().all(|(_, by, _)| *by == 1 || *by == size) {
            return None;
        }
        let mut group = Self {
            devices: members,
            common: Vec::new(),
            own: BTreeMap::new(),
        };
        for (counter, (amount, by, device)) in drawn {
            if amount == 0 {
                continue;
            }
            if by == size {
                group.common.push((counter, amount));
            } else {
                group.own.insert(counter, device);
            }
        }
        Some(group)
    }

    /// What there are is the lesser of two numbers: of devices of which nobody has what is their own, and of times that what is common
    /// suffices. It falls by no more than the one that falls most, and by no more than all.
    fn lost_to(&self, counters: &Counters, taken: usize) -> usize {
        let drawn = counters.amounts(taken);
        let of_own = drawn.iter().filter(|(_, amount)| *amount > 0);
        let of_own = of_own.filter_map(|(counter, _)| self.own.get(counter).copied());
        let mut hit: BTreeSet<usize> = of_own.collect();
        if self.devices.contains(taken) {
            hit.insert(taken);
        }
        let times = |(counter, each): &(usize, i64)| {
            let at = drawn.binary_search_by_key(counter, |(it, _)| *it).ok()?;
            let (_, amount) = drawn.get(at)?;
            let times = amount / each + i64::from(amount % each != 0);
            usize::try_from(times).ok()
        };
        let of_common = self.common.iter().filter_map(times).max();
        let lost = hit.len().max(of_common.unwrap_or(0));
        lost.min(self.devices.len())
    }

    fn count(&self, free: &DeviceSet, left: &[i64]) -> usize {
        let open = self.devices.common(free);
        let enough_for = |(counter, amount): &(usize, i64)| {
            let left = left.get(*counter).copied().unwrap_or(0);
            usize::try_from(left / amount).unwrap_or(0)
        };
        let least = self.common.iter().map(enough_for).min();
        least.map_or(open, |least| open.min(least))
    }
}
