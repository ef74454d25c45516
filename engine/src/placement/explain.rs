//! Why a gang has no place, in numbers for people: no part of a decision.

use std::{cmp::Reverse, collections::BTreeMap};

use super::{
    Occupants, Request, Unfit, View,
    allocator::Tally,
    by_room::{Asked, Held},
    capacity::{Cause, Rules},
    cluster::Cluster,
    demand::Class,
    effort::Effort,
    index::{CapacityIndex, IndexKey},
    most_left::Part,
    node::{NodeRecord, Occupancy},
    pack::STEPS_PER_UNIT,
    search::Area,
    tree::{Label, NODE_LEVEL, ROOT, Tree, Width},
};
use crate::{
    model::PodResources,
    names::{DeviceName, LevelName},
};

/// Most nodes, and most units, among which the largest part of a gang is searched exhaustively.
pub(super) const EXHAUSTIVE: usize = 16;

/// Most nodes of which it is worked out who has what lacks there.
pub(super) const MOST_OCCUPIED: usize = 64;

/// Most nodes that hold a unit that are brought in order; of more, most nodes with devices do, and they are in order.
pub(super) const MOST_SORTED: usize = 256;

/// A class with what the nodes hold of it.
struct Fit<'a> {
    class: &'a Class,
    resources: Option<PodResources>,
    /// Its index, as a place in [`Explanation::indexes`].
    index: Option<usize>,
    held: Held,
    /// Why nodes hold none, and how many.
    excluded: BTreeMap<Cause, usize>,
}

impl Fit<'_> {
    /// How many pods so many units have, and no more than there are.
    fn pods(&self, units: u64) -> usize {
        let units = usize::try_from(units).unwrap_or(usize::MAX);
        let units = units.min(self.class.units.len());
        units * self.class.units.first().map_or(0, Vec::len)
    }
}

struct Explanation<'a> {
    cluster: &'a Cluster,
    view: &'a View,
    tree: &'a Tree,
    required: Option<&'a LevelName>,
    rules: Rules,
    indexes: Vec<CapacityIndex>,
    fits: Vec<Fit<'a>>,
}

/// Why a gang that has no placement has none, as things are or, in [`View::Empty`], as if nothing ran.
///
/// Nodes are counted by what is left on them, not one by one. Only where classes compete, or a level is required, nodes
/// are looked at on which devices of the right kind are free.
pub(crate) fn explain(
    cluster: &Cluster,
    view: &View,
    request: &Request<'_>,
    effort: &mut Effort,
) -> Unfit {
    let Some(tree) = cluster.tree(request.topology) else {
        return Unfit::default();
    };
    let nodes = tree.nodes();
    let required = request.wish.required.as_ref();
    let Some(widths) = tree.widths(required) else {
        let level = required.map_or("", LevelName::as_str);
        let what = match &tree.topology {
            Some(topology) => format!("Topology {topology} has no level {level}"),
            None => format!("no Topology, so no level {level}"),
        };
        return Unfit {
            nodes,
            excluded: vec![(what, nodes)],
            ..Unfit::default()
        };
    };
    let mut explanation = Explanation::of(cluster, view, tree, request);
    let mut counting = effort.fresh();
    for class in &request.demand.classes {
        let fit = explanation.fit(class, nodes, &mut counting);
        explanation.fits.push(fit);
    }
    let widest = widths.last().copied().unwrap_or(Width::Depth(0));
    // The gang as a whole does not fit, whatever a search that is not exhaustive finds.
    let most = request.demand.pods.saturating_sub(1);
    let fit = explanation.most_pods(widest, &mut counting).min(most);
    let unfit = Unfit {
        fit,
        is_fit_partial: fit < most && (counting.gave_up() || explanation.gave_up()),
        nodes,
        excluded: explanation.excluded(),
        occupants: explanation.occupants(),
    };
    explanation.end();
    effort.settle(counting);
    unfit
}

/// Whether a gang of equal pods that may be anywhere, or is to be on one node, has a place: by how many units the nodes
/// hold. `None` of other gangs, and of views of which nothing is kept.
pub(crate) fn equal_pods_fit(
    cluster: &Cluster,
    view: &View,
    request: &Request<'_>,
) -> Option<bool> {
    let [class] = request.demand.classes.as_slice() else {
        return None;
    };
    if matches!(view, View::Without(_)) || !class.shape.is_coherent() {
        return None;
    }
    let tree = cluster.tree(request.topology)?;
    let required = request.wish.required.as_ref();
    let width = tree.widths(required)?.last().copied()?;
    if !matches!(width, Width::Node | Width::Depth(0)) {
        return None;
    }
    let mut explanation = Explanation::of(cluster, view, tree, request);
    let fit = explanation.fit(class, tree.nodes(), &mut Effort::default());
    let gave_up = explanation.gave_up();
    explanation.end();
    let held = match width {
        Width::Node => fit.held.most,
        Width::Depth(_) => fit.held.units,
    };
    let fits = held >= class.units.len() as u64;
    // Where nobody knows how much some nodes hold, too little proves nothing.
    (fits || !gave_up).then_some(fits)
}

impl<'a> Explanation<'a> {
    /// Of a request in a tree; nothing is worked out yet.
    fn of(cluster: &'a Cluster, view: &'a View, tree: &'a Tree, request: &Request<'a>) -> Self {
        Self {
            cluster,
            view,
            tree,
            required: request.wish.required.as_ref(),
            rules: Rules::of(request),
            indexes: Vec::new(),
            fits: Vec::new(),
        }
    }

    /// Keeps what was worked out, for whoever asks next.
    fn end(self) {
        for index in self.indexes {
            self.cluster.keep(index);
        }
    }

    fn fit(&mut self, class: &'a Class, nodes: usize, effort: &mut Effort) -> Fit<'a> {
        let mut fit = Fit {
            class,
            resources: class.shape.resources(),
            index: None,
            held: Held::default(),
            excluded: BTreeMap::new(),
        };
        let Some(resources) = &fit.resources else {
            fit.excluded.insert(Cause::Uncountable, nodes);
            return fit;
        };
        let Some(at) = self.index_of(class, effort) else {
            return fit;
        };
        fit.index = Some(at);
        let index = &self.indexes[at];
        let mut counted = 0;
        for (cause, nodes) in index.excluded() {
            counted += nodes;
            fit.excluded.insert(cause.clone(), nodes);
        }
        if let Some(by_room) = index.by_room() {
            fit.held = by_room.held(self.asked(resources));
        }
        self.cluster.note_visits(fit.held.looks);
        counted += fit.held.nodes;
        for (cause, nodes) in &fit.held.lacking {
            counted += nodes;
            *fit.excluded.entry(cause.clone()).or_default() += nodes;
        }
        if !index.is_shared() && nodes > counted {
            fit.excluded.insert(Cause::ClaimElsewhere, nodes - counted);
        }
        effort.spend(fit.held.looks);
        fit
    }

    /// The index of a class, if it can be paid. Classes with one device request share it.
    fn index_of(&mut self, class: &Class, effort: &mut Effort) -> Option<usize> {
        let key = IndexKey {
            rules: self.rules.clone(),
            topology: self.tree.topology.clone(),
            as_they_are: !matches!(self.view, View::Empty),
            shape: class.shape.without_resources(),
        };
        let mut known = self.indexes.iter();
        if let Some(at) = known.position(|index| index.key == key) {
            return (!effort.is_spent()).then_some(at);
        }
        if !effort.spend(CapacityIndex::price(self.tree)) {
            return None;
        }
        let mut index = self.cluster.index(key, self.tree);
        index.list_by_room(self.cluster);
        self.indexes.push(index);
        Some(self.indexes.len() - 1)
    }

    /// Whether nobody knows how much some nodes hold.
    fn gave_up(&self) -> bool {
        self.indexes.iter().any(CapacityIndex::gave_up)
    }

    fn asked<'b>(&self, resources: &'b PodResources) -> Asked<'b> {
        let level = self.required.map(LevelName::as_str);
        Asked {
            resources,
            inside_only: level.is_some_and(|level| level != NODE_LEVEL),
        }
    }

    fn index<'b>(&'b self, fit: &Fit<'_>) -> Option<&'b CapacityIndex> {
        self.indexes.get(fit.index?)
    }

    /// How many units of a class a node holds.
    fn capacity(&self, fit: &Fit<'_>, slot: usize) -> u64 {
        let place = self.tree.place(slot);
        let eligible = place.is_some_and(|place| place.is_eligible(self.required));
        let units = self.index(fit).map_or(0, |index| index.units_on(slot));
        if !eligible || units == 0 {
            return 0;
        }
        self.cluster.note_visits(1);
        let node = self.cluster.record(slot).zip(fit.resources.as_ref());
        let times = node.map_or(0, |(record, resources)| {
            let room = &self.view.occupancy(slot, record).room;
            room.times(resources).unwrap_or(0)
        });
        units.min(times as u64)
    }

    /// The nodes of an area that may hold units of a class, by place.
    fn slots<'b>(&'b self, fit: &'b Fit<'_>, area: Area) -> Box<dyn Iterator<Item = usize> + 'b> {
        if fit.held.nodes == 0 {
            return Box::new(std::iter::empty());
        }
        let index = self.index(fit);
        let domain = match area {
            Area::Node(slot) => return Box::new(std::iter::once(slot)),
            Area::Domain(domain) => domain,
        };
        let by_room = index.and_then(CapacityIndex::by_room);
        if let Some((by_room, resources)) = by_room.zip(fit.resources.as_ref())
            && fit.held.nodes <= MOST_SORTED
        {
            let parts = by_room.parts(self.asked(resources));
            let holding = parts.filter(|part| part.capacity.is_ok());
            let mut slots: Vec<(Label, usize)> = holding.flat_map(|part| part.slots()).collect();
            slots.sort_unstable();
            let stretch = self.tree.stretch(domain);
            let inside = slots.into_iter().filter(move |(label, _)| {
                stretch.is_some_and(|(first, last)| (first..=last).contains(label))
            });
            return Box::new(inside.map(|(_, slot)| slot));
        }
        let members = index.into_iter();
        let members = members.flat_map(move |index| index.members(self.tree, domain));
        Box::new(members.map(|(_, slot)| slot))
    }

    /// How many units of a class the nodes of an area hold, as far as the effort allows.
    fn units_in(&self, fit: &Fit<'_>, area: Area, effort: &mut Effort) -> u64 {
        if let (Area::Domain(domain), Some(resources)) = (area, &fit.resources) {
            let room = |slot: usize| {
                self.cluster.note_visits(1);
                let record = self.cluster.record(slot)?;
                Some(&*self.view.occupancy(slot, record).room)
            };
            let index = self.index(fit);
            if !index.is_some_and(|index| {
                index.may_hold(self.tree, Part::Domain(domain), resources, &room)
            }) {
                return 0;
            }
        }
        let slots = self.slots(fit, area);
        let looked_at = slots.take_while(|_| effort.spend(1));
        looked_at.map(|slot| self.capacity(fit, slot)).sum()
    }

    /// How many pods fit in one area of a width at best: exact for equal pods and for small gangs, else as many as
    /// a greedy search finds room for, which is noted as something overlooked.
    fn most_pods(&self, width: Width, effort: &mut Effort) -> usize {
        let everywhere = |fit: &Fit<'_>| fit.pods(fit.held.units);
        match (width, self.fits.as_slice()) {
            (Width::Depth(0), fits) => {
                let bound = fits.iter().map(everywhere).sum();
                self.most_pods_on(Area::Domain(ROOT), bound, effort)
            }
            (Width::Node, [fit]) => fit.pods(fit.held.most),
            _ => self.most_pods_in_areas(width, effort),
        }
    }

    fn most_pods_in_areas(&self, width: Width, effort: &mut Effort) -> usize {
        // How many pods fit if classes did not compete.
        let mut bounds: BTreeMap<Label, (Area, usize)> = BTreeMap::new();
        for fit in self.fits.iter().filter(|fit| fit.held.nodes > 0) {
            let listed = self.index(fit).into_iter();
            for rank in listed.flat_map(|index| index.tightest(width, 1)) {
                if !effort.spend(1) {
                    break;
                }
                let area = match width {
                    Width::Node => Area::Node(rank.id),
                    Width::Depth(_) => Area::Domain(rank.id),
                };
                let pods = fit.pods(self.units_in(fit, area, effort));
                if pods > 0 {
                    bounds.entry(rank.label).or_insert((area, 0)).1 += pods;
                }
            }
        }
        let mut bounds: Vec<(Area, usize)> = bounds.into_values().collect();
        bounds.sort_by_key(|(_, bound)| Reverse(*bound));
        let mut most = 0;
        for (area, bound) in bounds {
            if bound <= most {
                break;
            }
            most = most.max(self.most_pods_on(area, bound, effort));
        }
        most
    }

    fn most_pods_on(&self, area: Area, bound: usize, effort: &mut Effort) -> usize {
        if self.fits.len() < 2 {
            return bound;
        }
        let largest_first: Vec<usize> = (0..self.fits.len()).collect();
        let smallest_first: Vec<usize> = largest_first.iter().rev().copied().collect();
        let mut most = self.greedily(area, &largest_first, effort);
        most = most.max(self.greedily(area, &smallest_first, effort));
        let units: usize = self.fits.iter().map(|fit| fit.class.units.len()).sum();
        if most >= bound {
            return most;
        }
        let few = (units <= EXHAUSTIVE).then(|| self.few_slots(area, effort));
        if let Some(slots) = few.flatten() {
            let units: Vec<usize> = smallest_first
                .into_iter()
                .flat_map(|fit| vec![fit; self.fits[fit].class.units.len()])
                .collect();
            let mut occupancies: Vec<Occupancy> = slots
                .iter()
                .filter_map(|slot| {
                    let record = self.cluster.record(*slot)?;
                    Some(self.view.occupancy(*slot, record).clone())
                })
                .collect();
            self.exhaustively(&slots, &units, 0, &mut occupancies, &mut most, effort);
        } else {
            effort.overlook();
        }
        most
    }

    /// The nodes of an area that hold a unit of some class, by place, if they are few enough to try everything.
    fn few_slots(&self, area: Area, effort: &mut Effort) -> Option<Vec<usize>> {
        let mut few: BTreeMap<Label, usize> = BTreeMap::new();
        for fit in &self.fits {
            for slot in self.slots(fit, area) {
                if !effort.spend(1) {
                    return None;
                }
                if self.capacity(fit, slot) > 0
                    && let Some(place) = self.tree.place(slot)
                {
                    few.insert(place.label, slot);
                }
                if few.len() > EXHAUSTIVE {
                    return None;
                }
            }
        }
        Some(few.into_values().collect())
    }

    /// Puts units where the first node takes them, class by class.
    fn greedily(&self, area: Area, order: &[usize], effort: &mut Effort) -> usize {
        let mut occupancies: BTreeMap<usize, Occupancy> = BTreeMap::new();
        let mut pods = 0;
        for fit in order.iter().map(|fit| &self.fits[*fit]) {
            let mut units = fit.class.units.iter();
            let Some(mut unit) = units.next() else {
                continue;
            };
            'nodes: for slot in self.slots(fit, area) {
                let Some(record) = self.cluster.record(slot) else {
                    continue;
                };
                if !effort.spend(1) {
                    return pods;
                }
                for _ in 0..self.capacity(fit, slot) {
                    if !effort.spend(STEPS_PER_UNIT) {
                        return pods;
                    }
                    let occupancy = occupancies
                        .entry(slot)
                        .or_insert_with(|| self.view.occupancy(slot, record).clone());
                    let mut trial = occupancy.clone();
                    let resources = fit.resources.as_ref();
                    let placed = resources.and_then(|resources| {
                        self.place(fit, record, &mut trial, resources, effort)
                    });
                    if placed.is_none() {
                        break;
                    }
                    *occupancy = trial;
                    pods += unit.len();
                    match units.next() {
                        Some(next) => unit = next,
                        None => break 'nodes,
                    }
                }
            }
        }
        pods
    }

    /// Puts a unit on a node, for the effort that this takes; whether it fits. An allocation that was given up is not begun
    /// again.
    fn place(
        &self,
        fit: &Fit<'_>,
        record: &NodeRecord,
        trial: &mut Occupancy,
        resources: &PodResources,
        effort: &mut Effort,
    ) -> Option<()> {
        let mut tally = Tally::default();
        let shape = &fit.class.shape;
        let placed = self
            .rules
            .place(record, trial, shape, resources, &mut tally);
        self.cluster.note_visits(STEPS_PER_UNIT + tally.steps());
        effort.spend(tally.steps());
        if tally.gave_up {
            effort.stop();
        }
        placed.map(|_| ())
    }

    /// Tries every way to put some of the units on nodes; `units` are numbers of classes.
    fn exhaustively(
        &self,
        slots: &[usize],
        units: &[usize],
        pods: usize,
        occupancies: &mut [Occupancy],
        most: &mut usize,
        effort: &mut Effort,
    ) {
        *most = pods.max(*most);
        let Some((class, rest)) = units.split_first() else {
            return;
        };
        let fit = &self.fits[*class];
        let size = |class: &usize| {
            let units = &self.fits[*class].class.units;
            units.first().map_or(0, Vec::len)
        };
        if pods + units.iter().map(size).sum::<usize>() <= *most {
            return;
        }
        for (at, slot) in slots.iter().enumerate() {
            let Some(record) = self.cluster.record(*slot) else {
                continue;
            };
            if self.capacity(fit, *slot) == 0 {
                continue;
            }
            if !effort.spend(STEPS_PER_UNIT) {
                return;
            }
            let mut trial = occupancies[at].clone();
            let resources = fit.resources.as_ref();
            let placed = resources
                .and_then(|resources| self.place(fit, record, &mut trial, resources, effort));
            if placed.is_some() {
                let before = std::mem::replace(&mut occupancies[at], trial);
                let pods = pods + size(class);
                self.exhaustively(slots, rest, pods, occupancies, most, effort);
                occupancies[at] = before;
            }
        }
        // Without this unit; its likes are then left out too.
        let others = units.iter().position(|other| other != class);
        let others = others.map_or(&[][..], |at| &units[at..]);
        self.exhaustively(slots, others, pods, occupancies, most, effort);
    }

    /// The class that is the first not to fit.
    fn lacking(&self) -> Option<&Fit<'a>> {
        let lacks = |fit: &&Fit<'_>| fit.held.units < fit.class.units.len() as u64;
        self.fits.iter().find(lacks).or_else(|| self.fits.first())
    }

    /// Who has what lacks on most of the nodes that have the devices.
    fn occupants(&self) -> Option<Occupants> {
        let fit = self.lacking()?;
        if let Some(holders) = self.holders_of_slices(fit) {
            return Some(holders);
        }
        let asked = fit.resources.as_ref()?;
        let causes = fit.held.lacking.iter().rev();
        let (cause, nodes) = causes.max_by_key(|(_, nodes)| **nodes)?;
        let of_devices = [
            Cause::DevicesInUse,
            Cause::CutGpus,
            Cause::SlicesInUse,
            Cause::NotAllocatedYet,
            Cause::HeldDevicesUnknown,
        ];
        let of_devices = of_devices
            .iter()
            .filter_map(|cause| fit.excluded.get(cause));
        if of_devices.max().is_some_and(|devices| devices > nodes) {
            return None;
        }
        let parts = self.index(fit)?.by_room()?.parts(self.asked(asked));
        let lacking = parts.filter(|part| part.capacity.as_ref().err() == Some(cause));
        let slots = lacking.flat_map(|part| part.slots());
        let mut gangs: BTreeMap<&str, i128> = BTreeMap::new();
        for (_, slot) in slots.take(MOST_OCCUPIED) {
            self.cluster.note_visits(1);
            for hold in self.cluster.holds_in(slot) {
                self.cluster.note_visits(1);
                let has = cause.share_of(&hold.resources, asked);
                if has > 0 {
                    *gangs.entry(&hold.gang_name).or_default() += i128::from(has);
                }
            }
        }
        let gangs = gangs.into_iter().map(|(name, has)| (name.to_owned(), has));
        Some(Occupants {
            gangs: gangs.collect(),
            is_partial: *nodes > MOST_OCCUPIED,
        })
    }

    /// Who has slices of GPUs, where these are what lacks on most nodes: what helps is that they end.
    fn holders_of_slices(&self, fit: &Fit<'_>) -> Option<Occupants> {
        let causes = fit.excluded.iter().rev();
        let (cause, nodes) = causes.max_by_key(|(_, nodes)| **nodes)?;
        if !matches!(cause, Cause::CutGpus | Cause::SlicesInUse) {
            return None;
        }
        let mut gangs: BTreeMap<&str, i128> = BTreeMap::new();
        for slot in self.index(fit)?.left_out_for(cause).take(MOST_OCCUPIED) {
            self.cluster.note_visits(1);
            let record = self.cluster.record(slot)?;
            let is_slice = |name: &DeviceName| {
                let at = record.device_named(name);
                at.is_some_and(|at| !record.kind.is_whole(at))
            };
            for hold in self.cluster.holds_in(slot) {
                self.cluster.note_visits(1);
                let of_slices = hold.claims.iter().filter(|claim| {
                    let devices = claim.devices.as_ref();
                    devices.is_none_or(|devices| devices.iter().any(is_slice))
                });
                let has: i128 = of_slices.map(|claim| i128::from(claim.gpus.0)).sum();
                if has > 0 {
                    *gangs.entry(&hold.gang_name).or_default() += has;
                }
            }
        }
        let gangs = gangs.into_iter().map(|(name, has)| (name.to_owned(), has));
        Some(Occupants {
            gangs: gangs.collect(),
            is_partial: *nodes > MOST_OCCUPIED,
        })
    }

    /// Why nodes hold none of the class that is the first not to fit.
    fn excluded(&self) -> Vec<(String, usize)> {
        let counts = self.lacking().into_iter().flat_map(|fit| &fit.excluded);
        let mut excluded: Vec<(&Cause, &usize)> = counts.collect();
        excluded.sort_by_key(|(cause, count)| (Reverse(**count), *cause));
        excluded
            .into_iter()
            .map(|(cause, count)| (cause.to_string(), *count))
            .collect()
    }
}
