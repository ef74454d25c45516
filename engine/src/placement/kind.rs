//! What nodes have in common: their devices without names, addresses and states.
//!
//! A large cluster has thousands of nodes and a handful of kinds. What depends on the kind alone is worked out
//! once, and how often a device request fits on a node is remembered by kind and set of free devices.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    DeviceCharge,
    counters::{Counters, Together},
    demand::{ClaimShape, RequestShape},
    device_set::DeviceSet,
};
use crate::{
    amount::{Amount, Overflow},
    model::{Consumption, CounterSet, Device, Node},
    names::{AttributeName, FlavorName, SelectorId},
};

/// Names a kind. A number is never used for a second kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KindId(u64);

/// The devices of a node that match one selector.
#[derive(Clone, Debug)]
pub(crate) struct Candidates {
    /// All of them, whether free or not.
    pub(crate) devices: DeviceSet,
    /// Whether they are charged alike and belong to the same Flavors: then it does not matter
    /// which of them a claim gets.
    pub(crate) uniform: bool,
    /// How many of them can be allocated at once.
    pub(crate) together: Arc<Together>,
    /// Those of them that [first fit may come to](Counters::first_among), where these are interchangeable and all of them are not.
    first: Option<Arc<Self>>,
}

impl Candidates {
    /// Whether it makes no difference which of them are taken first, neither for the charge nor for how many are left.
    fn are_interchangeable(&self) -> bool {
        self.uniform && self.together.is_countable()
    }
}

/// A device without its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct DeviceFacts {
    flavors: BTreeSet<FlavorName>,
    gpus: Amount,
    vram: Amount,
    selectors: Arc<BTreeSet<SelectorId>>,
    consumes: Arc<[Consumption]>,
}

/// What makes two nodes the same kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct KindFacts {
    /// In the order in which the allocator tries them.
    devices: Vec<DeviceFacts>,
    /// For each attribute which devices share a value: equal numbers, equal values. The values themselves
    /// (PCI addresses, UUIDs) differ between nodes of one kind.
    values: BTreeMap<AttributeName, Vec<Option<u32>>>,
    /// NVLink groups of two devices and more, in device order.
    groups: Vec<DeviceSet>,
    /// What they share.
    counter_sets: Arc<[CounterSet]>,
}

/// A kind of node.
#[derive(Clone, Debug)]
pub(crate) struct NodeKind {
    pub(crate) id: KindId,
    facts: Arc<KindFacts>,
    candidates: BTreeMap<SelectorId, Candidates>,
    /// Devices that are charged as GPUs and share nothing with others.
    gpus: DeviceSet,
    /// What its devices share.
    pub(crate) counters: Counters,
    /// Devices that are charged as GPUs, or parts of them, and share something: the largest first.
    parts: Vec<usize>,
}

/// Numbers in the order in which values occur first.
fn numbered<'a>(values: impl Iterator<Item = Option<&'a str>>) -> Vec<Option<u32>> {
    let mut numbers: BTreeMap<&str, u32> = BTreeMap::new();
    values
        .map(|value| {
            let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
            value.map(|value| *numbers.entry(value).or_insert(next))
        })
        .collect()
}

impl KindFacts {
    fn new(node: &Node) -> Self {
        let devices = &node.devices;
        let names: BTreeSet<&AttributeName> = devices
            .iter()
            .flat_map(|device| {
                let own = device.own_attributes.iter().map(|(name, _)| name);
                device.attributes.keys().chain(own)
            })
            .collect();
        let values = names
            .into_iter()
            .map(|name| {
                let of = |device: &'_ Device| device.attribute(name).cloned();
                let values: Vec<Option<String>> = devices.iter().map(of).collect();
                (name.clone(), numbered(values.iter().map(Option::as_deref)))
            })
            .collect();
        let groups = numbered(devices.iter().map(|device| device.nvlink_group.as_deref()));
        let mut members: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (at, group) in groups.into_iter().enumerate() {
            if let Some(group) = group {
                members.entry(group).or_default().push(at);
            }
        }
        Self {
            devices: devices
                .iter()
                .map(|device| DeviceFacts {
                    flavors: device.flavors.clone(),
                    gpus: device.gpus,
                    vram: device.vram,
                    selectors: device.selectors.clone(),
                    consumes: Arc::clone(&device.consumes),
                })
                .collect(),
            counter_sets: Arc::clone(&node.counter_sets),
            values,
            groups: members
                .into_values()
                .filter(|members| members.len() > 1)
                .map(|members| DeviceSet::of(devices.len(), members))
                .collect(),
        }
    }
}

impl NodeKind {
    fn new(id: KindId, facts: Arc<KindFacts>) -> Self {
        let devices = &facts.devices;
        let count = devices.len();
        let consumes: Vec<Arc<[Consumption]>> = devices
            .iter()
            .map(|device| Arc::clone(&device.consumes))
            .collect();
        let counters = Counters::new(&facts.counter_sets, &consumes);
        let mut matching: BTreeMap<SelectorId, Vec<usize>> = BTreeMap::new();
        for (at, device) in devices.iter().enumerate() {
            if counters.broken.contains(&at) {
                continue;
            }
            for selector in device.selectors.iter() {
                matching.entry(*selector).or_default().push(at);
            }
        }
        let alike = |members: &DeviceSet| {
            let mut kinds = members
                .iter()
                .map(|at| &devices[at])
                .map(|device| (&device.flavors, device.gpus, device.vram));
            let first = kinds.next();
            kinds.all(|kind| Some(kind) == first)
        };
        let candidates_of = |devices: DeviceSet| Candidates {
            uniform: alike(&devices),
            together: Arc::new(Together::of(&counters, &devices, count)),
            devices,
            first: None,
        };
        let first_of = |all: &Candidates| {
            if all.are_interchangeable() {
                return None;
            }
            let first = counters.first_among(&all.devices);
            let first = (first != all.devices).then(|| candidates_of(first));
            first.filter(Candidates::are_interchangeable).map(Arc::new)
        };
        // There may be hundreds of selectors, most of which match the same devices as others.
        let mut known: BTreeMap<DeviceSet, Candidates> = BTreeMap::new();
        let candidates = matching
            .into_iter()
            .map(|(selector, members)| {
                let devices = DeviceSet::of(count, members.iter().copied());
                let of_these = known.entry(devices).or_insert_with_key(|devices| {
                    let all = candidates_of(devices.clone());
                    Candidates {
                        first: first_of(&all),
                        ..all
                    }
                });
                (selector, of_these.clone())
            })
            .collect();
        let gpus = (0..count)
            .filter(|at| devices[*at].gpus > Amount::ZERO && !counters.broken.contains(at));
        let (mut parts, gpus): (Vec<usize>, Vec<usize>) =
            gpus.partition(|at| counters.beside(*at).is_some());
        parts.sort_by_key(|at| Reverse(devices[*at].gpus));
        Self {
            id,
            candidates,
            gpus: DeviceSet::of(count, gpus),
            counters,
            parts,
            facts,
        }
    }

    /// Whether some devices share something.
    pub(crate) fn has_counters(&self) -> bool {
        !self.counters.is_empty()
    }

    /// What a request comes to on a node of this kind: the candidates of which it gets so many, whatever is free and whatever comes
    /// free. `None` if that cannot be told, or if it never gets any.
    ///
    /// A choice counts if there are as many candidates for it. It decides if wherever a device of a later one is to be
    /// had one of its own is (it lies inside the other): then kube-scheduler never comes to the later ones. What is `tainted` is
    /// taken for what is never had, and also for what may be had again.
    pub(crate) fn settled(
        &self,
        request: &RequestShape,
        tainted: &DeviceSet,
    ) -> Option<(&Candidates, usize)> {
        let mut possible = request.choices.iter().filter_map(|(selector, count)| {
            let candidates = self.candidates(*selector)?;
            (candidates.devices.len() >= *count).then_some((candidates, *count))
        });
        let (first, count) = possible.next()?;
        let usable = first.devices.without(tainted);
        possible
            .all(|(later, of_later)| {
                count <= of_later
                    && later.devices.iter().all(|device| {
                        self.counters.has_inside(device, &first.devices)
                            && (tainted.contains(device)
                                || self.counters.has_inside(device, &usable))
                    })
            })
            .then_some((first, count))
    }

    /// Those of some candidates of which first fit takes whatever it takes, where a claim asks for nothing but so many of them. Where that
    /// makes nothing simpler, or cannot be told, it is all of them.
    ///
    /// It never comes to a device if another one stands before it and is to be had wherever it is. What is `tainted` is taken for what
    /// is never had.
    pub(crate) fn taken_first<'a>(
        &self,
        candidates: &'a Candidates,
        tainted: &DeviceSet,
    ) -> &'a Candidates {
        let Some(first) = candidates.first.as_deref() else {
            return candidates;
        };
        let usable = first.devices.without(tainted);
        let others = candidates.devices.without(&first.devices).without(tainted);
        let mut others = others.iter();
        let is_so = tainted.is_disjoint(&first.devices)
            || others.all(|device| self.counters.has_before(device, &usable));
        if is_so { first } else { candidates }
    }

    /// Whether devices that draw from common counters agree in what they have of an attribute.
    pub(crate) fn agree_in_groups(&self, candidates: &Candidates, name: &AttributeName) -> bool {
        candidates.together.groups().iter().all(|group| {
            let mut values = group.devices.iter().map(|at| self.value(at, name));
            let first = values.next();
            values.all(|value| Some(value) == first)
        })
    }

    /// Whether a node of this kind never holds more of a claim for having less to give. The claim has a single request at most, and
    /// this has one choice.
    fn is_steady(&self, claim: &ClaimShape) -> bool {
        let choices = claim.requests.iter().flat_map(|it| &it.choices);
        let mut matching = choices.filter_map(|(selector, _)| self.candidates(*selector));
        matching.all(|candidates| {
            let constraints = &claim.constraints;
            let mut named = constraints.iter().map(|it| &it.attribute);
            candidates.together.is_countable()
                && named.all(|name| self.agree_in_groups(candidates, name))
        })
    }

    /// How many devices a node of this kind has.
    pub(crate) fn devices(&self) -> usize {
        self.facts.devices.len()
    }

    pub(crate) fn candidates(&self, selector: SelectorId) -> Option<&Candidates> {
        self.candidates.get(&selector)
    }

    /// A number for the value that a device has of an attribute: on one node, equal numbers are equal values.
    pub(crate) fn value(&self, device: usize, name: &AttributeName) -> Option<u32> {
        *self.facts.values.get(name)?.get(device)?
    }

    /// Whether a device may be charged to a Flavor. What is charged as no GPU and belongs to no
    /// Flavor (a network card) may go along with any.
    pub(crate) fn belongs_to(&self, device: usize, flavor: &FlavorName) -> bool {
        self.facts.devices.get(device).is_some_and(|device| {
            device.flavors.contains(flavor)
                || (device.flavors.is_empty() && device.gpus == Amount::ZERO)
        })
    }

    /// What a device is charged as.
    pub(crate) fn charge_of(&self, device: usize) -> Option<DeviceCharge> {
        let device = self.facts.devices.get(device)?;
        Some(DeviceCharge {
            gpus: device.gpus,
            vram: device.vram,
        })
    }

    /// What these devices are charged as together.
    pub(crate) fn charged_as(&self, devices: &[usize]) -> Result<DeviceCharge, Overflow> {
        let mut charges = devices.iter().filter_map(|at| self.charge_of(*at));
        charges.try_fold(DeviceCharge::default(), DeviceCharge::add)
    }

    /// How many GPUs are left among free devices, in thousandths: of what shares counters as much as can be
    /// allocated if the largest devices go first.
    pub(crate) fn gpus_in(&self, free: &DeviceSet, left: &[i64]) -> u64 {
        let whole = self.gpus.common(free) as u64 * Amount::ONE_GPU.0.unsigned_abs();
        whole.saturating_add(self.parts_in(free, left))
    }

    /// What free devices are charged as, in thousandths of a GPU: of what shares counters as much as can be allocated if the largest
    /// devices go first.
    pub(crate) fn idle_in(&self, free: &DeviceSet, left: &[i64]) -> i128 {
        let alone = free.iter().filter(|at| self.counters.beside(*at).is_none());
        let charges = alone.filter_map(|at| self.charge_of(at));
        let alone: i128 = charges.map(|charge| i128::from(charge.gpus.0)).sum();
        alone + i128::from(self.parts_in(free, left))
    }

    fn parts_in(&self, free: &DeviceSet, left: &[i64]) -> u64 {
        if self.parts.is_empty() {
            return 0;
        }
        let mut left = left.to_vec();
        let mut parts: u64 = 0;
        for at in self.parts.iter().filter(|at| free.contains(**at)) {
            if self.counters.admit(&left, *at) {
                self.counters.take(&mut left, *at);
                let charge = self.facts.devices[*at].gpus;
                parts = parts.saturating_add(charge.0.unsigned_abs());
            }
        }
        parts
    }

    /// How many devices may come free with a device, itself among them: at most those that draw from the same counters.
    pub(crate) fn freed_with(&self, device: usize) -> usize {
        self.counters.beside(device).map_or(1, DeviceSet::len)
    }

    /// The most devices that may come free with one.
    pub(crate) fn most_freed(&self) -> usize {
        let freed = (0..self.devices()).map(|device| self.freed_with(device));
        freed.max().unwrap_or(1)
    }

    /// Whether a device is a GPU as a whole, or more than one.
    pub(crate) fn is_whole(&self, device: usize) -> bool {
        let device = self.facts.devices.get(device);
        device.is_some_and(|device| device.gpus >= Amount::ONE_GPU)
    }

    /// How many NVLink groups are whole before and would be only partly free afterwards.
    pub(crate) fn groups_broken(&self, before: &DeviceSet, after: &DeviceSet) -> usize {
        self.facts
            .groups
            .iter()
            .filter(|group| {
                let left = group.common(after);
                group.common(before) == group.len() && left > 0 && left < group.len()
            })
            .count()
    }
}

/// A kind and how many nodes are of it.
#[derive(Clone, Debug)]
struct Known {
    kind: Arc<NodeKind>,
    nodes: usize,
}

/// The kinds of the nodes that there are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kinds {
    known: BTreeMap<Arc<KindFacts>, Known>,
    /// Those whose devices share something.
    sharing: BTreeMap<KindId, Arc<NodeKind>>,
    created: u64,
}

impl Kinds {
    /// The kind of a node, which counts from then on until it is [left](Self::leave).
    pub(crate) fn enter(&mut self, node: &Node) -> Arc<NodeKind> {
        let facts = KindFacts::new(node);
        if let Some(known) = self.known.get_mut(&facts) {
            known.nodes += 1;
            return Arc::clone(&known.kind);
        }
        self.created += 1;
        let facts = Arc::new(facts);
        let kind = Arc::new(NodeKind::new(KindId(self.created), Arc::clone(&facts)));
        if kind.has_counters() {
            self.sharing.insert(kind.id, Arc::clone(&kind));
        }
        let known = Known {
            kind: Arc::clone(&kind),
            nodes: 1,
        };
        self.known.insert(facts, known);
        kind
    }

    /// A node is no longer of this kind. A kind without nodes is forgotten.
    pub(crate) fn leave(&mut self, kind: &NodeKind) {
        if let Some(known) = self.known.get_mut(&kind.facts) {
            known.nodes -= 1;
            if known.nodes == 0 {
                self.known.remove(&kind.facts);
                self.sharing.remove(&kind.id);
            }
        }
    }

    /// Whether no node holds more of a claim of one choice for having less to give. It looks at the kinds whose devices share something.
    pub(crate) fn are_steady(&self, claim: &ClaimShape) -> bool {
        self.sharing.values().all(|kind| kind.is_steady(claim))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::fixtures;

    #[test]
    fn nodes_that_differ_in_names_and_addresses_are_of_one_kind() {
        let mut kinds = Kinds::default();
        let mut one = fixtures::node("a", 4);
        let mut other = fixtures::node("b", 4);
        for (at, device) in one.devices.iter_mut().enumerate() {
            Arc::make_mut(&mut device.attributes).insert("uuid".into(), format!("a-{at}"));
        }
        for (at, device) in other.devices.iter_mut().enumerate() {
            Arc::make_mut(&mut device.attributes).insert("uuid".into(), format!("b-{at}"));
            device.usable = false;
        }
        let (one, other) = (kinds.enter(&one), kinds.enter(&other));
        assert_eq!(one.id, other.id);
        kinds.leave(&one);
        kinds.leave(&other);
        assert!(kinds.known.is_empty());
    }

    #[test]
    fn which_devices_share_a_value_makes_a_kind() {
        let mut kinds = Kinds::default();
        let mut nodes = [fixtures::node("a", 4), fixtures::node("b", 4)];
        for (node, size) in nodes.iter_mut().zip([2, 4]) {
            for (at, device) in node.devices.iter_mut().enumerate() {
                let value = format!("root-{}", at / size);
                Arc::make_mut(&mut device.attributes).insert("pcieRoot".into(), value);
            }
        }
        let [one, other] = nodes.map(|node| kinds.enter(&node));
        assert_ne!(one.id, other.id);
        let name = "pcieRoot".into();
        assert_eq!(one.value(0, &name), one.value(1, &name));
        assert_ne!(one.value(1, &name), one.value(2, &name));
    }
}
