//! How often one device request fits on every node and in every domain, ordered by how tight they are.
//!
//! An index follows the cluster: brought up to date, it costs the nodes that changed since it was last used. It
//! knows nothing of cores, memory and what else pods ask for, so that all gangs that ask for the same devices
//! share it; those amounts are checked exactly, on the few nodes that come into question.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use super::{
    by_room::{ByRoom, Member},
    capacity::{Cause, FitCost, Rules},
    cluster::Cluster,
    demand::UnitShape,
    most_left::{MostLeft, Part},
    node::{NodeRecord, Occupancy},
    remembered::Remembered,
    room::{Largest, Room},
    tree::{DomainId, Label, ROOT, Tree, Width},
    version::Version,
};
use crate::{
    model::PodResources,
    names::{NodeName, TopologyName},
};

/// Nodes that a decision pays with one step for each index that it uses, kept or not, since what it finds must not depend on
/// what is kept. To make one takes longer, about a millisecond for ten thousand nodes: the price only bounds how many a decision
/// may need, and leaves enough for the search to a gang of sixteen kinds of pods of a Team with sixteen Flavors.
pub(super) const NODES_PER_STEP: usize = 128;

/// What an index is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct IndexKey {
    pub(crate) rules: Rules,
    pub(crate) topology: Option<TopologyName>,
    /// Whether nodes count as they are, or as if nothing ran on them.
    pub(crate) as_they_are: bool,
    /// The unit, with empty resources.
    pub(crate) shape: UnitShape,
}

/// What an index knows of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    units: u64,
    /// What the first of them costs.
    cost: FitCost,
    /// Whether it may hold more units.
    is_partial: bool,
    /// In thousandths.
    gpus: u64,
    label: Label,
    domain: DomainId,
    /// Of a node that holds no unit: why, as a place in [`CapacityIndex::excluded`].
    cause: usize,
}

/// Sums of a domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    units: u64,
    /// Those of nodes on which the first of them goes to GPUs of which something is in use.
    tucked: u64,
    gpus: u64,
}

impl Sums {
    fn add(&mut self, entry: &Entry) {
        self.units += entry.units;
        self.tucked += entry.tucked();
        self.gpus += entry.gpus;
    }

    fn subtract(&mut self, entry: &Entry) {
        self.units -= entry.units;
        self.tucked -= entry.tucked();
        self.gpus -= entry.gpus;
    }
}

impl Entry {
    /// Its units, if the first of them goes to GPUs of which something is in use.
    fn tucked(&self) -> u64 {
        if self.cost.opened == 0 { self.units } else { 0 }
    }
}

/// An area in the order in which areas are tried: the tightest first, among equals by place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    /// For a unit with devices what it costs there, units and free GPUs: it goes where it fits best, and of such places where the
    /// fewest are left. Of a domain it is only told whether there is a node on which no GPU is opened for it. For one without devices
    /// GPUs and units: it stays clear of GPUs.
    pub(crate) tightness: (FitCost, u64, u64),
    pub(crate) label: Label,
    /// The slot of a node, the number of a domain.
    pub(crate) id: usize,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct CapacityIndex {
    pub(crate) key: IndexKey,
    /// Whether the unit needs devices.
    by_devices: bool,
    /// When the tree that was read had been numbered.
    numbered: Version,
    /// Up to when changes of nodes are taken in.
    seen: Version,
    entries: Vec<Option<Entry>>,
    sums: Vec<Sums>,
    /// The rank under which each domain is listed.
    ranks: Vec<Option<Rank>>,
    /// Nodes that hold a unit.
    nodes: BTreeSet<Rank>,
    /// Domains that hold a unit, by depth.
    domains: Vec<BTreeSet<Rank>>,
    /// Nodes that hold a unit, by place.
    places: BTreeMap<Label, usize>,
    /// Why nodes hold no unit, and how many of them.
    excluded: Vec<(Cause, usize)>,
    /// How many nodes may hold more units than are counted.
    partial: usize,
    remembered: Remembered,
    /// Of the nodes that hold a unit, once somebody asked.
    most_left: RefCell<MostLeft>,
    /// The nodes that hold a unit by what else is left on them, once somebody asked.
    by_room: Option<ByRoom>,
}

/// What an [overlay](CapacityIndex::lay_over) replaced.
#[derive(Debug, Default)]
pub(crate) struct Replaced(Vec<(usize, Option<Entry>)>);

impl CapacityIndex {
    /// The steps for one index of the nodes of a tree.
    pub(super) fn price(tree: &Tree) -> u64 {
        (tree.nodes() / NODES_PER_STEP) as u64
    }

    /// An index of all nodes of a tree.
    pub(crate) fn new(key: IndexKey, cluster: &Cluster, tree: &Tree) -> Self {
        let mut index = Self {
            by_devices: key.shape.needs_devices(),
            key,
            numbered: Version::default(),
            seen: Version::default(),
            entries: Vec::new(),
            sums: Vec::new(),
            ranks: Vec::new(),
            nodes: BTreeSet::new(),
            domains: Vec::new(),
            places: BTreeMap::new(),
            excluded: Vec::new(),
            partial: 0,
            remembered: Remembered::default(),
            most_left: RefCell::default(),
            by_room: None,
        };
        index.build(cluster, tree);
        index
    }

    fn build(&mut self, cluster: &Cluster, tree: &Tree) {
        self.numbered = tree.numbered();
        self.seen = cluster.version();
        self.entries = vec![None; cluster.slots()];
        self.sums = vec![Sums::default(); tree.domains()];
        self.ranks = vec![None; tree.domains()];
        let mut most_left = MostLeft::default();
        most_left.resize(tree.domains(), cluster.slots());
        *self.most_left.get_mut() = most_left;
        self.domains = vec![BTreeSet::new(); tree.levels.len() + 1];
        self.excluded.clear();
        self.partial = 0;
        self.by_room = None;
        let mut nodes = Vec::new();
        let mut places = Vec::new();
        let only = self.only_node().map(|name| cluster.slot_of(name));
        for slot in tree.slots() {
            if only.is_some_and(|only| only != Some(slot)) {
                continue;
            }
            let Some(entry) = self.entry(cluster, tree, slot) else {
                continue;
            };
            self.entries[slot] = Some(entry);
            self.partial += usize::from(entry.is_partial);
            for domain in tree.upwards(entry.domain) {
                self.sums[domain].add(&entry);
            }
            if entry.units > 0 {
                nodes.push(self.rank_of_node(&entry, slot));
                places.push((entry.label, slot));
            } else if let Some((_, nodes)) = self.excluded.get_mut(entry.cause) {
                *nodes += 1;
            }
        }
        self.nodes = nodes.into_iter().collect();
        self.places = places.into_iter().collect();
        for domain in 0..self.sums.len() {
            self.list(tree, domain);
        }
    }

    /// The node to which a claim ties the unit. Other nodes are not worth a look.
    fn only_node(&self) -> Option<&NodeName> {
        let mut claims = self.key.shape.claims.iter();
        claims.find_map(|claim| Some(&claim.allocated.as_ref()?.0))
    }

    /// Takes in what changed since the last time.
    pub(crate) fn catch_up(&mut self, cluster: &Cluster, tree: &Tree) {
        if self.numbered != tree.numbered() {
            self.build(cluster, tree);
            return;
        }
        let changed: Vec<usize> = cluster
            .changes(self.key.as_they_are)
            .since(self.seen)
            .collect();
        self.seen = cluster.version();
        self.entries.resize(cluster.slots(), None);
        self.sums.resize(tree.domains(), Sums::default());
        self.ranks.resize(tree.domains(), None);
        self.most_left
            .get_mut()
            .resize(tree.domains(), cluster.slots());
        let mut stale = BTreeSet::new();
        let mut news = Vec::new();
        for slot in changed.iter().copied() {
            let entry = self.entry(cluster, tree, slot);
            self.forget_most_left(tree, slot);
            if entry != self.entries[slot] {
                // A node may have come to the place that another one left: all leave first.
                self.replace(tree, slot, None, &mut stale);
                news.push((slot, entry));
            }
        }
        for (slot, entry) in news {
            self.replace(tree, slot, entry, &mut stale);
        }
        for domain in stale {
            self.list(tree, domain);
        }
        if let Some(mut by_room) = self.by_room.take() {
            for slot in changed {
                by_room.set(slot, self.member(cluster, slot));
            }
            self.by_room = Some(by_room);
        }
    }

    /// Lists the nodes that hold a unit by what else is left on them, from now on.
    pub(super) fn list_by_room(&mut self, cluster: &Cluster) {
        if self.by_room.is_some() {
            return;
        }
        cluster.note_visits(self.places.len() as u64);
        let mut by_room = ByRoom::default();
        for slot in self.places.values() {
            by_room.set(*slot, self.member(cluster, *slot));
        }
        self.by_room = Some(by_room);
    }

    /// The nodes that hold a unit by what else is left on them, if they are [listed](Self::list_by_room) so. An overlay
    /// does not count.
    pub(super) fn by_room(&self) -> Option<&ByRoom> {
        self.by_room.as_ref()
    }

    fn member<'a>(&self, cluster: &'a Cluster, slot: usize) -> Option<Member<'a>> {
        let entry = self.entries.get(slot)?.as_ref()?;
        let record = cluster.record(slot)?;
        let occupancy = if self.key.as_they_are {
            &record.now
        } else {
            &record.empty
        };
        (entry.units > 0).then_some(Member {
            units: entry.units,
            label: entry.label,
            outside: entry.domain == ROOT,
            room: &occupancy.room,
        })
    }

    /// Puts other occupancies in the place of those that nodes have. [`CapacityIndex::take_off`] undoes it.
    pub(crate) fn lay_over(
        &mut self,
        cluster: &Cluster,
        tree: &Tree,
        overlay: &BTreeMap<usize, Occupancy>,
    ) -> Replaced {
        let mut stale = BTreeSet::new();
        let mut replaced = Replaced::default();
        for (slot, occupancy) in overlay {
            let record = cluster.record(*slot);
            let entry = record.and_then(|record| self.entry_of(tree, *slot, record, occupancy));
            replaced
                .0
                .push((*slot, self.replace(tree, *slot, entry, &mut stale)));
        }
        for domain in stale {
            self.list(tree, domain);
        }
        replaced
    }

    /// Undoes an overlay.
    pub(crate) fn take_off(&mut self, tree: &Tree, replaced: Replaced) {
        let mut stale = BTreeSet::new();
        for (slot, entry) in replaced.0 {
            self.replace(tree, slot, entry, &mut stale);
        }
        for domain in stale {
            self.list(tree, domain);
        }
    }

    fn entry(&mut self, cluster: &Cluster, tree: &Tree, slot: usize) -> Option<Entry> {
        cluster.note_visits(1);
        let record = cluster.record(slot)?;
        let occupancy = if self.key.as_they_are {
            &record.now
        } else {
            &record.empty
        };
        self.entry_of(tree, slot, record, occupancy)
    }

    fn entry_of(
        &mut self,
        tree: &Tree,
        slot: usize,
        record: &NodeRecord,
        occupancy: &Occupancy,
    ) -> Option<Entry> {
        let place = tree.place(slot)?;
        let counted = if self.by_devices {
            occupancy
        } else {
            &record.empty
        };
        let IndexKey { rules, shape, .. } = &self.key;
        let capacity = self
            .remembered
            .device_capacity(rules, record, occupancy, shape);
        let (units, is_partial, cost, cause) = match capacity {
            Ok(of) => (of.units as u64, of.is_partial, of.cost, 0),
            Err(cause) => (0, false, FitCost::default(), self.place_of(cause)),
        };
        Some(Entry {
            units,
            cost,
            is_partial,
            cause,
            gpus: record.kind.gpus_in(&counted.free, &counted.left),
            label: place.label,
            domain: place.domain,
        })
    }

    /// Where nodes are counted that are left out for a cause.
    fn place_of(&mut self, cause: Cause) -> usize {
        let known = self.excluded.iter().position(|(known, _)| *known == cause);
        known.unwrap_or_else(|| {
            self.excluded.push((cause, 0));
            self.excluded.len() - 1
        })
    }

    /// Changes what is known of a node; the domains whose place in the order this changes are added to `stale`.
    fn replace(
        &mut self,
        tree: &Tree,
        slot: usize,
        entry: Option<Entry>,
        stale: &mut BTreeSet<DomainId>,
    ) -> Option<Entry> {
        self.forget_most_left(tree, slot);
        let before = std::mem::replace(&mut self.entries[slot], entry);
        self.forget_most_left(tree, slot);
        if before == entry {
            return before;
        }
        if let Some(before) = before {
            self.partial -= usize::from(before.is_partial);
            for domain in tree.upwards(before.domain) {
                self.sums[domain].subtract(&before);
                stale.insert(domain);
            }
            if before.units > 0 {
                let rank = self.rank_of_node(&before, slot);
                self.nodes.remove(&rank);
                self.places.remove(&before.label);
            } else if let Some((_, nodes)) = self.excluded.get_mut(before.cause) {
                *nodes -= 1;
            }
        }
        if let Some(entry) = entry {
            self.partial += usize::from(entry.is_partial);
            for domain in tree.upwards(entry.domain) {
                self.sums[domain].add(&entry);
                stale.insert(domain);
            }
            if entry.units > 0 {
                let rank = self.rank_of_node(&entry, slot);
                self.nodes.insert(rank);
                self.places.insert(entry.label, slot);
            } else if let Some((_, nodes)) = self.excluded.get_mut(entry.cause) {
                *nodes += 1;
            }
        }
        before
    }

    /// Forgets what is left at most where a node is.
    fn forget_most_left(&mut self, tree: &Tree, slot: usize) {
        if let Some(Some(entry)) = self.entries.get(slot) {
            self.most_left.get_mut().forget(tree, slot, entry.domain);
        }
    }

    /// Whether some node of a part that holds a unit may have what is asked for besides; `false` is certain. The answer is kept
    /// until one of these nodes changes.
    pub(super) fn may_hold<'a>(
        &self,
        tree: &Tree,
        part: Part,
        asked: &PodResources,
        room: &impl Fn(usize) -> Option<&'a Room>,
    ) -> bool {
        self.find_most_left(tree, part, room);
        let known = self.most_left.borrow();
        known.get(part).is_none_or(|most| most.may_hold(asked))
    }

    /// The smallest part with a node.
    pub(super) fn part_around(&self, slot: usize) -> Option<Part> {
        let entry = self.entries.get(slot)?.as_ref()?;
        Some(match entry.domain {
            ROOT => Part::stretch_of(slot),
            domain => Part::Domain(domain),
        })
    }

    /// Finds what is left at most in a part, from what is known of its own parts.
    fn find_most_left<'a>(
        &self,
        tree: &Tree,
        part: Part,
        room: &impl Fn(usize) -> Option<&'a Room>,
    ) {
        if self.most_left.borrow().get(part).is_some() {
            return;
        }
        let mut most = Largest::default();
        let mut raise = |slot| {
            if let Some(room) = room(slot) {
                most.raise(room);
            }
        };
        let parts: Vec<Part> = match part {
            Part::Domain(ROOT) => {
                let children = tree.children(ROOT);
                let inside = children.filter(|child| self.units_in(*child) > 0);
                let outside = self.most_left.borrow().stretches();
                let parts = inside.map(Part::Domain);
                parts.chain(outside.map(Part::Stretch)).collect()
            }
            Part::Domain(domain) if tree.depth(domain) == tree.levels.len() => {
                self.members(tree, domain).for_each(|(_, slot)| raise(slot));
                Vec::new()
            }
            Part::Domain(domain) => {
                let children = tree.children(domain);
                let children = children.filter(|child| self.units_in(*child) > 0);
                children.map(Part::Domain).collect()
            }
            Part::Stretch(first) => {
                let slots = MostLeft::slots(first);
                slots
                    .filter(|slot| self.units_on(*slot) > 0 && self.is_outside(*slot))
                    .for_each(raise);
                Vec::new()
            }
        };
        for part in parts {
            self.find_most_left(tree, part, room);
            if let Some(part) = self.most_left.borrow().get(part) {
                most.merge(part);
            }
        }
        self.most_left.borrow_mut().keep(part, most);
    }

    /// Whether a node lies in no domain.
    fn is_outside(&self, slot: usize) -> bool {
        let entry = self.entries.get(slot).and_then(Option::as_ref);
        entry.is_some_and(|entry| entry.domain == ROOT)
    }

    /// Lists a domain by its sums.
    fn list(&mut self, tree: &Tree, domain: DomainId) {
        let depth = tree.depth(domain);
        let sums = self.sums[domain];
        let first = tree.stretch(domain).filter(|_| sums.units > 0);
        let cost = FitCost {
            opened: u64::from(sums.tucked == 0),
            ..FitCost::default()
        };
        let rank = first.map(|(first, _)| Rank {
            tightness: self.tightness(cost, sums.units, sums.gpus),
            label: first,
            id: domain,
        });
        let before = std::mem::replace(&mut self.ranks[domain], rank);
        if before == rank {
            return;
        }
        if let Some(before) = before {
            self.domains[depth].remove(&before);
        }
        if let Some(rank) = rank {
            self.domains[depth].insert(rank);
        }
    }

    fn tightness(&self, cost: FitCost, units: u64, gpus: u64) -> (FitCost, u64, u64) {
        if self.by_devices {
            (cost, units, gpus)
        } else {
            (FitCost::default(), gpus, units)
        }
    }

    fn rank_of_node(&self, entry: &Entry, slot: usize) -> Rank {
        Rank {
            tightness: self.tightness(entry.cost, entry.units, entry.gpus),
            label: entry.label,
            id: slot,
        }
    }

    /// Why nodes hold no unit as far as devices go, and how many of them. Of a unit that a claim ties to one node,
    /// only that node is counted.
    pub(crate) fn excluded(&self) -> impl Iterator<Item = (&Cause, usize)> {
        let counted = self.excluded.iter().filter(|(_, nodes)| *nodes > 0);
        counted.map(|(cause, nodes)| (cause, *nodes))
    }

    /// Whether on some node nobody knows how many units it holds: there are too many ways to allocate the devices.
    pub(crate) fn gave_up(&self) -> bool {
        let mut excluded = self.excluded();
        self.partial > 0 || excluded.any(|(cause, _)| *cause == Cause::TooManyWays)
    }

    /// Whether it serves other gangs, too: one that is tied to a single node by a claim does not.
    pub(crate) fn is_shared(&self) -> bool {
        self.only_node().is_none()
    }

    /// How many answers are remembered by kind and free devices.
    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.remembered.len()
    }

    /// The nodes or domains of a width in the order of their ranks, without those that cannot hold so many units.
    pub(crate) fn tightest<'a>(
        &'a self,
        width: Width,
        units: u64,
    ) -> impl Iterator<Item = Rank> + use<'a> {
        let listed = match width {
            Width::Node => Some(&self.nodes),
            Width::Depth(depth) => self.domains.get(depth),
        };
        let least = if self.by_devices { units } else { 0 };
        let from = move |listed: &'a BTreeSet<Rank>, cost: FitCost| {
            let first = Rank {
                tightness: (cost, least, 0),
                label: 0,
                id: 0,
            };
            listed.range((Bound::Included(first), Bound::Unbounded))
        };
        let mut ranks = listed.map(|listed| from(listed, FitCost::default()));
        std::iter::from_fn(move || {
            loop {
                let rank = *ranks.as_mut()?.next()?;
                let (cost, held, _) = rank.tightness;
                if held >= least {
                    return Some(rank);
                }
                // The first at this cost hold too little: on to those that hold enough.
                ranks = listed.map(|listed| from(listed, cost));
            }
        })
    }

    /// The rank of one node or domain, if it holds so many units as far as devices go.
    pub(crate) fn rank(&self, width: Width, id: usize, units: u64) -> Option<Rank> {
        let rank = match width {
            Width::Node => {
                let entry = self.entries.get(id)?.as_ref()?;
                self.rank_of_node(entry, id)
            }
            Width::Depth(_) => (*self.ranks.get(id)?)?,
        };
        let held = match width {
            Width::Node => self.units_on(id),
            Width::Depth(_) => self.units_in(id),
        };
        (held >= units).then_some(rank)
    }

    /// How many units fit on a node as far as devices go.
    pub(crate) fn units_on(&self, slot: usize) -> u64 {
        let entry = self.entries.get(slot).and_then(Option::as_ref);
        entry.map_or(0, |entry| entry.units)
    }

    /// What the first unit costs on a node.
    pub(crate) fn cost_on(&self, slot: usize) -> FitCost {
        let entry = self.entries.get(slot).and_then(Option::as_ref);
        entry.map_or_else(FitCost::default, |entry| entry.cost)
    }

    /// The nodes that hold no unit for a cause, if there are any.
    pub(crate) fn left_out_for(&self, cause: &Cause) -> impl Iterator<Item = usize> + '_ {
        let mut counted = self.excluded.iter();
        let at = counted.position(|(known, nodes)| known == cause && *nodes > 0);
        at.into_iter().flat_map(move |at| {
            let entries = self.entries.iter().enumerate();
            let left_out = entries.filter(move |(_, entry)| {
                let entry = entry.as_ref();
                entry.is_some_and(|entry| entry.units == 0 && entry.cause == at)
            });
            left_out.map(|(slot, _)| slot)
        })
    }

    /// How many GPUs count for a node, in thousandths.
    pub(crate) fn gpus_on(&self, slot: usize) -> u64 {
        let entry = self.entries.get(slot).and_then(Option::as_ref);
        entry.map_or(0, |entry| entry.gpus)
    }

    /// How many units fit in a domain as far as devices go.
    pub(crate) fn units_in(&self, domain: DomainId) -> u64 {
        self.sums.get(domain).map_or(0, |sums| sums.units)
    }

    /// How many GPUs count for a domain, in thousandths.
    pub(crate) fn gpus_in(&self, domain: DomainId) -> u64 {
        self.sums.get(domain).map_or(0, |sums| sums.gpus)
    }

    /// The nodes of a domain that hold a unit as far as devices go, by place.
    pub(crate) fn members(
        &self,
        tree: &Tree,
        domain: DomainId,
    ) -> impl Iterator<Item = (Label, usize)> + '_ {
        let stretch = tree.stretch(domain).into_iter();
        let listed = stretch.flat_map(|(first, last)| self.places.range(first..=last));
        listed.map(|(label, slot)| (*label, *slot))
    }

    /// The nodes that lie outside the Topology and hold a unit, by place.
    pub(crate) fn outside(&self, tree: &Tree) -> impl Iterator<Item = usize> + '_ {
        // They come last, after the last domain.
        let inside = tree.children(ROOT).last();
        let last = inside.and_then(|domain| Some(tree.stretch(domain)?.1));
        let after = last.map_or(Bound::Unbounded, Bound::Excluded);
        let listed = self.places.range((after, Bound::Unbounded));
        listed.map(|(_, slot)| *slot)
    }
}
