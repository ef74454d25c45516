//! Which domains come into question for a gang, and in which order they are tried.
//!
//! From the narrowest width to the widest; within a width the one first where a unit fits best: where the fewest GPUs are opened
//! for it, then, of nodes, where its devices are charged least. Then the tightest: the one with the fewest devices left
//! for such units, then the fewest GPUs, then the one whose surroundings are tightest, innermost first; among equals
//! one that leaves NVLink groups whole, or holds the gang in a single accelerator domain; then by place.

use std::{cell::Cell, cmp::Ordering, collections::BTreeMap};

use super::{
    Refusal, Request, Verdict, View,
    allocator::Tally,
    capacity::{Grants, Rules},
    cluster::Cluster,
    demand::{Demand, UnitShape},
    effort::Effort,
    index::{CapacityIndex, IndexKey, Rank, Replaced},
    most_left::Part,
    node::{NodeRecord, Occupancy},
    pack::Packed,
    tree::{DomainId, ROOT, Tree, Width},
};
use crate::{
    model::PodResources,
    names::LevelName,
    placement::{PlacedUnit, Plan},
};

/// Most device requests of one gang that are told apart. A gang with more of them is not searched for.
pub(crate) const MOST_SHAPES: usize = 16;

/// Most equally tight areas of which the surroundings are compared at a time.
pub(crate) const MOST_TIES: usize = 64;

/// Most areas of one width into which a gang of unequal pods is packed in vain.
pub(crate) const MOST_PACKINGS: usize = 256;

/// Where a gang may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Area {
    Node(usize),
    Domain(DomainId),
}

/// What a search is to find out.
#[derive(Clone, Copy, Debug)]
pub(super) enum Goal<'a> {
    /// A place.
    Where,
    /// A place in an area that contains one of these slots.
    WhereAmong(&'a [usize]),
    /// Whether a gang of equal pods has a place; the plan is left empty.
    Whether,
}

/// Units that ask for the same.
pub(super) struct SearchedClass<'a> {
    pub(super) shape: &'a UnitShape,
    pub(super) resources: PodResources,
    pub(super) units: usize,
    index: usize,
}

/// What changes while a search goes on.
pub(super) struct Progress {
    pub(super) effort: Effort,
    /// How many units of a class fit in a domain.
    sums: BTreeMap<(usize, DomainId), u64>,
    /// Whether there is no use in going on, once that was asked.
    hopeless: Option<bool>,
}

/// One search for a place.
pub(super) struct Search<'a> {
    pub(super) cluster: &'a Cluster,
    view: &'a View,
    pub(super) tree: &'a Tree,
    demand: &'a Demand,
    required: Option<&'a LevelName>,
    pub(super) rules: Rules,
    pub(super) classes: Vec<SearchedClass<'a>>,
    /// What all units take together; `None` if that cannot be counted.
    total: Option<PodResources>,
    indexes: Vec<CapacityIndex>,
    overlays: Vec<Replaced>,
    goal: Goal<'a>,
    /// What allocations have cost that were not paid for yet.
    pub(super) tally: Cell<Tally>,
    /// Whether some nodes may hold more than was counted on them, so that what was not found may be there.
    pub(super) undercounted: Cell<bool>,
}

impl Rules {
    /// The rules of a request.
    pub(super) fn of(request: &Request<'_>) -> Self {
        Self {
            flavor: request.flavor.cloned(),
            most_per_device: request.most_per_device,
        }
    }
}

/// Searches for a place.
pub(super) fn search(
    cluster: &Cluster,
    view: &View,
    request: &Request<'_>,
    goal: Goal<'_>,
    effort: &mut Effort,
) -> Verdict {
    let refusal = Refusal {
        as_of: cluster.version(),
    };
    let Some(tree) = cluster.tree(request.topology) else {
        return Verdict::NoPlace(refusal);
    };
    let mut shapes: Vec<UnitShape> = Vec::new();
    let mut classes = Vec::new();
    for class in &request.demand.classes {
        let Some(resources) = class.shape.resources() else {
            return Verdict::NoPlace(refusal);
        };
        if !class.shape.is_coherent() {
            return Verdict::NoPlace(refusal);
        }
        let shape = class.shape.without_resources();
        let known = shapes.iter().position(|known| *known == shape);
        classes.push(SearchedClass {
            shape: &class.shape,
            resources,
            units: class.units.len(),
            index: known.unwrap_or(shapes.len()),
        });
        if known.is_none() {
            shapes.push(shape);
        }
    }
    let mut own = effort.fresh();
    if shapes.len() > MOST_SHAPES || !own.spend(shapes.len() as u64 * CapacityIndex::price(tree)) {
        own.stop();
        effort.settle(own);
        return Verdict::GaveUp(refusal);
    }
    let rules = Rules::of(request);
    let keys = shapes.into_iter().map(|shape| IndexKey {
        rules: rules.clone(),
        topology: tree.topology.clone(),
        as_they_are: !matches!(view, View::Empty),
        shape,
    });
    let mut search = Search {
        cluster,
        view,
        tree,
        demand: request.demand,
        required: request.wish.required.as_ref(),
        total: total(&classes),
        classes,
        indexes: keys.map(|key| cluster.index(key, tree)).collect(),
        rules,
        overlays: Vec::new(),
        goal,
        tally: Cell::default(),
        undercounted: Cell::default(),
    };
    search.lay_over();
    let mut progress = Progress {
        effort: own,
        sums: BTreeMap::new(),
        hopeless: None,
    };
    let verdict = match search.run(&mut progress) {
        Some(packed) => Verdict::Placed(search.finish(packed)),
        None if progress.effort.gave_up() || search.indexes.iter().any(CapacityIndex::gave_up) => {
            Verdict::GaveUp(refusal)
        }
        None => Verdict::NoPlace(refusal),
    };
    search.close();
    effort.settle(progress.effort);
    verdict
}

/// What all units take together.
fn total(classes: &[SearchedClass<'_>]) -> Option<PodResources> {
    let mut total = PodResources::default();
    for class in classes {
        let units = i64::try_from(class.units).ok()?;
        let add = |sum: i64, each: i64| sum.checked_add(each.checked_mul(units)?);
        total.cpu_milli = add(total.cpu_milli, class.resources.cpu_milli)?;
        total.memory_bytes = add(total.memory_bytes, class.resources.memory_bytes)?;
        total.pods = add(total.pods, class.resources.pods)?;
        for (name, amount) in &class.resources.others {
            let sum = total.others.entry(name.clone()).or_default();
            *sum = add(*sum, *amount)?;
        }
    }
    Some(total)
}

impl<'a> Search<'a> {
    fn lay_over(&mut self) {
        if let View::Without(overlay) = self.view {
            let (cluster, tree) = (self.cluster, self.tree);
            let indexes = self.indexes.iter_mut();
            self.overlays = indexes
                .map(|index| index.lay_over(cluster, tree, overlay))
                .collect();
        }
    }

    /// Gives the indexes back.
    fn close(self) {
        let mut overlays = self.overlays.into_iter();
        for mut index in self.indexes {
            if let Some(replaced) = overlays.next() {
                index.take_off(self.tree, replaced);
            }
            self.cluster.keep(index);
        }
    }

    pub(super) fn index(&self, class: usize) -> Option<&CapacityIndex> {
        self.indexes.get(self.classes.get(class)?.index)
    }

    /// A node and what is free there.
    pub(super) fn node(&self, slot: usize) -> Option<(&'a NodeRecord, &'a Occupancy)> {
        let record = self.cluster.record(slot)?;
        Some((record, self.view.occupancy(slot, record)))
    }

    /// How many units of a class fit on a node to which nothing of the gang was added.
    pub(super) fn capacity(&self, class: usize, slot: usize) -> u64 {
        let units = self.index(class).map_or(0, |index| index.units_on(slot));
        if units == 0 {
            return 0;
        }
        self.cluster.note_visits(1);
        let node = self.node(slot).zip(self.classes.get(class));
        let times = node.map_or(0, |((_, occupancy), class)| {
            occupancy.room.times(&class.resources).unwrap_or(0)
        });
        units.min(times as u64)
    }

    /// Whether some node of a part may have what is asked for beside devices for a class; `false` is certain.
    fn may_hold(&self, class: usize, part: Part, asked: &PodResources) -> bool {
        let room = |slot: usize| {
            self.cluster.note_visits(1);
            self.node(slot).map(|(_, occupancy)| &*occupancy.room)
        };
        let index = self.index(class);
        index.is_some_and(|index| index.may_hold(self.tree, part, asked, &room))
    }

    /// Whether no node around this one may have what the largest pods ask for beside devices; `true` is certain. `last` is what was
    /// found of the part that was asked about last: mostly the next node lies in it, too.
    fn is_barren(&self, slot: usize, last: &mut Option<(Part, bool)>) -> bool {
        let class = self.index(0).zip(self.classes.first());
        let Some((index, class)) = class else {
            return false;
        };
        let Some(part) = index.part_around(slot) else {
            return false;
        };
        match *last {
            Some((known, barren)) if known == part => barren,
            _ => {
                let barren = !self.may_hold(0, part, &class.resources);
                *last = Some((part, barren));
                barren
            }
        }
    }

    /// How many units of a class fit in a domain, up to those that there are and to what the effort allows.
    fn sum(&self, progress: &mut Progress, class: usize, domain: DomainId) -> u64 {
        if let Some(sum) = progress.sums.get(&(class, domain)) {
            return *sum;
        }
        let Some(index) = self.index(class) else {
            return 0;
        };
        if index.units_in(domain) == 0
            || !progress.effort.spend(1)
            || !self.may_hold(class, Part::Domain(domain), &self.classes[class].resources)
        {
            return 0;
        }
        let enough = self.classes[class].units as u64;
        let is_innermost = self.tree.depth(domain) == self.tree.levels.len();
        let members = is_innermost.then(|| index.members(self.tree, domain));
        let outside = (domain == ROOT && !is_innermost).then(|| index.outside(self.tree));
        let slots = members.into_iter().flatten().map(|(_, slot)| slot);
        let mut sum = 0;
        for slot in slots.chain(outside.into_iter().flatten()) {
            if sum >= enough || !progress.effort.spend(1) {
                break;
            }
            sum += self.capacity(class, slot);
        }
        for child in self.tree.children(domain) {
            if sum >= enough {
                break;
            }
            sum += self.sum(progress, class, child);
        }
        if !progress.effort.is_spent() {
            progress.sums.insert((class, domain), sum);
        }
        sum
    }

    /// Pays for allocations. One that was given up is not begun again: the search is over.
    pub(super) fn pay(&self, progress: &mut Progress) {
        let tally = self.tally.take();
        progress.effort.spend(tally.steps());
        if tally.gave_up {
            progress.effort.stop();
        }
        if self.undercounted.take() {
            progress.effort.overlook();
        }
    }

    /// Whether no node may have what some pod asks for beside devices.
    fn is_hopeless(&self, progress: &mut Progress) -> bool {
        *progress.hopeless.get_or_insert_with(|| {
            let mut classes = self.classes.iter().enumerate();
            classes.any(|(class, of)| !self.may_hold(class, Part::Domain(ROOT), &of.resources))
        })
    }

    /// Whether some node may have all that the gang asks for beside devices; `false` is certain.
    fn may_be_on_one_node(&self) -> bool {
        let total = self.total.as_ref();
        total.is_some_and(|total| self.may_hold(0, Part::Domain(ROOT), total))
    }

    /// Whether every class fits into an area by itself.
    fn holds(&self, progress: &mut Progress, area: Area) -> bool {
        if let Area::Node(slot) = area
            && !(progress.effort.spend(1) && self.holds_total(slot))
        {
            return false;
        }
        (0..self.classes.len()).all(|class| {
            let units = self.classes[class].units as u64;
            match area {
                Area::Node(slot) => progress.effort.spend(1) && self.capacity(class, slot) >= units,
                Area::Domain(domain) if self.classes[class].shape.needs_devices() => {
                    self.sum(progress, class, domain) >= units
                }
                Area::Domain(domain) => self.reaches(progress, class, domain, units),
            }
        })
    }

    /// Whether a node has all that the gang asks for, as if its pods were one.
    fn holds_total(&self, slot: usize) -> bool {
        if self.classes.len() < 2 {
            return true;
        }
        self.cluster.note_visits(1);
        let node = self.node(slot).zip(self.total.as_ref());
        node.is_some_and(|((_, occupancy), total)| {
            let devices: usize = self
                .demand
                .classes
                .iter()
                .map(|class| class.shape.open_devices() * class.units.len())
                .sum();
            devices <= occupancy.free.len() && occupancy.room.times(total).is_ok()
        })
    }

    /// Whether so many units without devices fit in a domain.
    fn reaches(&self, progress: &mut Progress, class: usize, domain: DomainId, units: u64) -> bool {
        let mut found = 0;
        let members = self.index(class).into_iter();
        for (_, slot) in members.flat_map(|index| index.members(self.tree, domain)) {
            if found >= units || !progress.effort.spend(1) {
                break;
            }
            found += self.capacity(class, slot);
        }
        found >= units
    }

    fn run(&self, progress: &mut Progress) -> Option<Packed> {
        let mut widths = self.tree.different_widths(self.required)?;
        if matches!(self.goal, Goal::Whether) {
            // What some domain holds, a wider one holds.
            widths.drain(..widths.len().saturating_sub(1));
        }
        let lacks = |class: usize| {
            let units = self.index(class).map_or(0, |index| index.units_in(ROOT));
            units < self.classes[class].units as u64
        };
        if (0..self.classes.len()).any(lacks) {
            return None;
        }
        let count = widths.len();
        for (at, width) in widths.into_iter().enumerate() {
            let mut effort = progress.effort;
            let packed = effort.share(self.demand.shares(count - at), |share| {
                progress.effort = *share;
                let packed = self.within(progress, width);
                *share = progress.effort;
                packed
            });
            progress.effort = effort;
            if packed.is_some() || progress.hopeless == Some(true) {
                return packed;
            }
        }
        None
    }

    /// Searches the areas of one width.
    fn within(&self, progress: &mut Progress, width: Width) -> Option<Packed> {
        let mut packings = 0;
        let most_ties = if self.is_first_best(width) {
            1
        } else {
            MOST_TIES
        };
        let mut ranks = self.ranks(width).peekable();
        let mut tied: Vec<Rank> = Vec::new();
        let mut failed = false;
        let mut last = None;
        while let Some(rank) = ranks.next() {
            self.cluster.note_visits(1);
            if failed && width == Width::Node && self.is_barren(rank.id, &mut last) {
                // There is nothing to look at: none of these nodes has room.
            } else if self.holds(progress, area(width, rank.id)) {
                if matches!(self.goal, Goal::Whether) {
                    return Some(Packed::new());
                }
                tied.push(rank);
            } else if !failed {
                // Is there any node that is large enough? It is asked only now: mostly the first area holds the gang.
                failed = true;
                if self.is_hopeless(progress)
                    || (width == Width::Node && !self.may_be_on_one_node())
                {
                    return None;
                }
            }
            if progress.effort.is_spent() {
                return None;
            }
            let next = ranks.peek().map(|next| next.tightness);
            if next == Some(rank.tightness) && tied.len() < most_ties {
                continue;
            }
            while !tied.is_empty() {
                if packings == MOST_PACKINGS {
                    progress.effort.stop();
                    return None;
                }
                let best = tied.swap_remove(self.best(progress, &tied, width));
                self.pay(progress);
                if let Some(packed) = self.pack(progress, area(width, best.id)) {
                    return Some(packed);
                }
                packings += 1;
                if progress.effort.is_spent() {
                    return None;
                }
            }
        }
        None
    }

    /// The areas of a width in the order in which they are tried, but for equals.
    fn ranks(&self, width: Width) -> Box<dyn Iterator<Item = Rank> + '_> {
        let main = self.index(0).zip(self.classes.first());
        let Some((index, class)) = main else {
            return Box::new(std::iter::empty());
        };
        let units = class.units as u64;
        let eligible = move |rank: &Rank| {
            let place = self.tree.place(rank.id);
            width != Width::Node || place.is_some_and(|place| place.is_eligible(self.required))
        };
        let Goal::WhereAmong(among) = self.goal else {
            return Box::new(index.tightest(width, units).filter(eligible));
        };
        let around = |slot: usize| match width {
            Width::Node => Some(slot),
            Width::Depth(depth) => self.tree.domain_at(slot, depth),
        };
        let ids = among.iter().filter_map(|slot| around(*slot));
        let mut ranks: Vec<Rank> = ids
            .filter_map(|id| index.rank(width, id, units))
            .filter(eligible)
            .collect();
        ranks.sort_unstable();
        ranks.dedup();
        Box::new(ranks.into_iter())
    }

    /// Whether the first of equally tight areas is the best: there is nothing around them, and no device is taken in them.
    fn is_first_best(&self, width: Width) -> bool {
        let takes_devices = |class: &SearchedClass<'_>| class.shape.needs_devices();
        width == Width::Node
            && self.tree.levels.is_empty()
            && !self.classes.first().is_some_and(takes_devices)
    }

    /// Which of some equally tight areas is tried first.
    fn best(&self, progress: &mut Progress, tied: &[Rank], width: Width) -> usize {
        progress.effort.spend(tied.len() as u64 - 1);
        let mut best: Vec<usize> = Vec::new();
        for at in 0..tied.len() {
            let order = best.first().map_or(Ordering::Less, |first| {
                self.compare_around(tied[at].id, tied[*first].id, width)
            });
            if order.is_lt() {
                best.clear();
            }
            if order.is_le() {
                best.push(at);
            }
        }
        let Some((first, rest)) = best.split_first() else {
            return 0;
        };
        if rest.is_empty() {
            return *first;
        }
        let ids: Vec<usize> = best.iter().map(|at| tied[*at].id).collect();
        let costs = self.costs(progress, &ids, width);
        let order = best.iter().zip(costs);
        let order = order.min_by_key(|(at, cost)| (*cost, tied[**at].label));
        order.map_or(*first, |(at, _)| *at)
    }

    /// By how many units are left in the domains around two areas, innermost first. A node outside the Topology has
    /// nothing around it: the last resort.
    fn compare_around(&self, one: usize, other: usize, width: Width) -> Ordering {
        let around = |id: usize| {
            let from = match width {
                Width::Node => self.tree.place(id).map(|place| place.domain),
                Width::Depth(_) => self.tree.upwards(id).nth(1),
            };
            let domains = from.into_iter().flat_map(|from| self.tree.upwards(from));
            domains.filter(|domain| *domain != ROOT)
        };
        let (mut ones, mut others) = (around(one).peekable(), around(other).peekable());
        match (ones.peek(), others.peek()) {
            (one, other) if one.is_none() != other.is_none() => one.is_none().cmp(&other.is_none()),
            _ => {
                let units = |domain| self.index(0).map_or(0, |index| index.units_in(domain));
                ones.map(units).cmp(others.map(units))
            }
        }
    }

    /// What speaks against each of some areas that are equally tight, surroundings included.
    fn costs(&self, progress: &mut Progress, ids: &[usize], width: Width) -> Vec<usize> {
        let units = self.classes.first().map_or(0, |class| class.units);
        match width {
            Width::Node => self.groups_broken(0, units, ids),
            Width::Depth(_) if !self.tree.has_accelerators() => vec![0; ids.len()],
            Width::Depth(_) => ids
                .iter()
                .map(|id| {
                    let members = self.members(0, Area::Domain(*id), &BTreeMap::new());
                    progress.effort.spend(members.len() as u64);
                    usize::from(self.accelerator_of(&members, units as u64).is_none())
                })
                .collect(),
        }
    }

    fn finish(&self, packed: Packed) -> Plan {
        let slots: Vec<usize> = packed.iter().map(|unit| unit.slot).collect();
        let narrowest = self.tree.narrowest(&slots);
        let mut domain = Vec::new();
        if let Some(((_, depth), slot)) = narrowest.as_ref().zip(slots.first()) {
            let path = self.tree.path(*slot);
            domain.extend(path.iter().take(*depth).cloned());
            if *depth > self.tree.levels.len() {
                let name = self.node(*slot).map(|(record, _)| &record.node.name);
                domain.extend(name.map(ToString::to_string));
            }
        }
        Plan {
            units: packed,
            level: narrowest.map(|(level, _)| level),
            domain,
        }
    }

    /// The parts of a placed unit.
    pub(super) fn placed(class: usize, unit: usize, slot: usize, grants: Grants) -> PlacedUnit {
        PlacedUnit {
            class,
            unit,
            slot,
            grants,
        }
    }
}

fn area(width: Width, id: usize) -> Area {
    match width {
        Width::Node => Area::Node(id),
        Width::Depth(_) => Area::Domain(id),
    }
}
