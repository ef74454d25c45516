//! Which nodes of an area take how many units of a class: as few domains of each level as possible, level by level.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use super::{
    capacity::{Capacity, Cause, FitCost},
    counters::Left,
    device_set::DeviceSet,
    kind::KindId,
    pack::Trials,
    search::{Area, Search},
    tree::{ROOT, Tree},
};

/// A node of an area that holds a unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) slot: usize,
    pub(super) units: u64,
}

/// A part of an area that may take some of the units: a stretch of its members.
#[derive(Clone, Debug)]
struct Part {
    members: Range<usize>,
    units: u64,
    /// What the first of them costs, where that is told of the part as a whole.
    cost: FitCost,
    /// In thousandths.
    free_gpus: u64,
    groups_broken: usize,
}

impl Search<'_> {
    /// The nodes of an area that hold a unit of a class, by place, with what is left beside those that were put
    /// there before.
    pub(super) fn members(&self, class: usize, area: Area, trials: &Trials) -> Vec<Member> {
        let units = |slot: usize| match trials.get(&slot) {
            None => self.capacity(class, slot),
            Some(trial) => {
                let node = self.node(slot).zip(self.classes.get(class));
                let capacity = node.map(|((record, _), class)| {
                    let (shape, resources) = (class.shape, &class.resources);
                    self.rules.capacity(record, trial, shape, resources)
                });
                let wanted = self.classes.get(class).map_or(0, |class| class.units);
                self.counted(capacity, wanted)
            }
        };
        let member = |slot| Member {
            slot,
            units: units(slot),
        };
        let mut members: Vec<Member> = match area {
            Area::Node(slot) => vec![member(slot)],
            Area::Domain(domain) => {
                let index = self.index(class).into_iter();
                let slots = index.flat_map(|index| index.members(self.tree, domain));
                slots.map(|(_, slot)| member(slot)).collect()
            }
        };
        members.retain(|member| member.units > 0);
        members
    }

    /// How many units a node holds to which something of the gang was added. That more may fit, the search remembers: what it
    /// does not find then proves nothing.
    fn counted(&self, capacity: Option<Result<Capacity, Cause>>, wanted: usize) -> u64 {
        let (units, is_partial) = match capacity {
            Some(Ok(capacity)) => (capacity.units, capacity.is_partial),
            Some(Err(cause)) => (0, cause == Cause::TooManyWays),
            None => (0, false),
        };
        if is_partial && units < wanted {
            self.undercounted.set(true);
        }
        units as u64
    }

    /// The tightest accelerator domain that holds so many units.
    pub(super) fn accelerator_of(&self, members: &[Member], units: u64) -> Option<&str> {
        let mut held: BTreeMap<&str, u64> = BTreeMap::new();
        for member in members {
            let place = self.tree.place(member.slot);
            if let Some(domain) = place.and_then(|place| place.accelerator.as_deref()) {
                *held.entry(domain).or_default() += member.units;
            }
        }
        held.into_iter()
            .filter(|(_, held)| *held >= units)
            .min_by_key(|(domain, held)| (*held, *domain))
            .map(|(domain, _)| domain)
    }

    /// How many NVLink groups a number of units of a class would break on each of these nodes.
    pub(super) fn groups_broken(&self, class: usize, units: usize, slots: &[usize]) -> Vec<usize> {
        let Some(class) = self.classes.get(class) else {
            return vec![0; slots.len()];
        };
        if !class.shape.needs_devices() {
            return vec![0; slots.len()];
        }
        let mut known: BTreeMap<(KindId, &DeviceSet, &Left), usize> = BTreeMap::new();
        let broken = |slot: &usize| {
            let (record, occupancy) = self.node(*slot)?;
            let alike = (record.kind.id, &occupancy.free, &occupancy.left);
            if let Some(broken) = known.get(&alike) {
                return Some(*broken);
            }
            let mut trial = occupancy.clone();
            let mut tally = self.tally.take();
            for _ in 0..units {
                self.rules
                    .grant(record, &mut trial, class.shape, &mut tally);
            }
            self.tally.set(tally);
            let broken = record.kind.groups_broken(&occupancy.free, &trial.free);
            if occupancy.pending.is_empty() {
                known.insert(alike, broken);
            }
            Some(broken)
        };
        let broken = slots.iter().map(broken);
        broken.map(Option::unwrap_or_default).collect()
    }

    /// How many units of a class with devices go to which node of an area: on as few domains of each level as
    /// possible, level by level, and in one accelerator domain if one holds them.
    pub(super) fn spread(
        &self,
        class: usize,
        area: Area,
        trials: &Trials,
        units: u64,
    ) -> Option<Vec<Member>> {
        let mut members = self.members(class, area, trials);
        if let Area::Node(_) = area {
            members.retain(|member| member.units >= units);
            let member = members.first()?;
            return Some(vec![Member { units, ..*member }]);
        }
        if self.tree.has_accelerators()
            && let Some(domain) = self.accelerator_of(&members, units)
        {
            let inside = |member: &Member| {
                let place = self.tree.place(member.slot);
                place.is_some_and(|place| place.accelerator.as_deref() == Some(domain))
            };
            let chosen: Vec<Member> = members.iter().copied().filter(inside).collect();
            members = chosen;
        }
        let depth = match area {
            Area::Node(_) => self.tree.levels.len(),
            Area::Domain(domain) => self.tree.depth(domain),
        };
        let whole = 0..members.len();
        let mut areas = Vec::from([whole]);
        for depth in depth + 1..=self.tree.levels.len() {
            let parts = areas
                .into_iter()
                .flat_map(|area| parts(self.tree, &members, area, depth))
                .map(|stretch| self.part(class, &members, stretch, depth))
                .collect();
            let chosen = cover(parts, units)?;
            areas = chosen.into_iter().map(|(part, _)| part.members).collect();
        }
        let mut places: Vec<usize> = areas.into_iter().flatten().collect();
        places.sort_unstable();
        let slots: Vec<usize> = places.iter().map(|at| members[*at].slot).collect();
        let broken = self.groups_broken(class, 1, &slots);
        let index = self.index(class)?;
        let nodes = places.iter().zip(broken).map(|(at, groups_broken)| Part {
            members: *at..*at + 1,
            units: members[*at].units,
            cost: index.cost_on(members[*at].slot),
            free_gpus: index.gpus_on(members[*at].slot),
            groups_broken,
        });
        let chosen = cover(nodes.collect(), units)?;
        let mut chosen: Vec<(usize, u64)> = chosen
            .into_iter()
            .map(|(part, units)| (part.members.start, units))
            .collect();
        chosen.sort_unstable();
        let member = |(at, units): (usize, u64)| Member {
            slot: members[at].slot,
            units,
        };
        Some(chosen.into_iter().map(member).collect())
    }

    fn part(&self, class: usize, members: &[Member], stretch: Range<usize>, depth: usize) -> Part {
        let units = members[stretch.clone()].iter();
        let gpus = members.get(stretch.start).zip(self.index(class));
        let gpus = gpus.map_or(0, |(member, index)| {
            match self.tree.domain_at(member.slot, depth) {
                Some(domain) => index.gpus_in(domain),
                None => index.gpus_on(member.slot),
            }
        });
        Part {
            units: units.map(|member| member.units).sum(),
            cost: FitCost::default(),
            free_gpus: gpus,
            groups_broken: 0,
            members: stretch,
        }
    }

    /// Nodes for units without devices: those that the gang uses anyway, then those with the fewest GPUs.
    pub(super) fn tuck_in(
        &self,
        class: usize,
        area: Area,
        trials: &Trials,
        units: u64,
    ) -> Option<Vec<Member>> {
        let index = self.index(class)?;
        let mut rest = units;
        let mut chosen = Vec::new();
        let take = |member: Member| {
            let units = member.units.min(rest);
            rest -= units;
            if units > 0 {
                chosen.push(Member { units, ..member });
            }
            rest == 0
        };
        let everywhere = area == Area::Domain(ROOT) && trials.is_empty();
        let done = if everywhere {
            // The index has them in this very order.
            let ranks = index.tightest(super::tree::Width::Node, 0);
            let mut members = ranks.map(|rank| Member {
                slot: rank.id,
                units: self.capacity(class, rank.id),
            });
            members.any(take)
        } else {
            let needs_devices = self.classes.iter().any(|class| class.shape.needs_devices());
            let used: BTreeSet<usize> = trials.keys().copied().collect();
            let mut members = self.members(class, area, trials);
            members.sort_by_cached_key(|member| {
                let gpus = self.node(member.slot).map_or(0, |(record, occupancy)| {
                    let counted = if needs_devices {
                        occupancy
                    } else {
                        &record.empty
                    };
                    record.kind.gpus_in(&counted.free, &counted.left)
                });
                let label = self.tree.place(member.slot).map(|place| place.label);
                (Reverse(used.contains(&member.slot)), gpus, label)
            });
            members.into_iter().any(take)
        };
        chosen.sort_by_key(|member| self.tree.place(member.slot).map(|place| place.label));
        done.then_some(chosen)
    }
}

/// The parts of a stretch of members that are domains of a depth; a node outside the Topology is one by itself.
fn parts(tree: &Tree, members: &[Member], area: Range<usize>, depth: usize) -> Vec<Range<usize>> {
    let mut parts: Vec<Range<usize>> = Vec::new();
    let mut last = None;
    for at in area {
        let domain = tree.domain_at(members[at].slot, depth);
        match parts.last_mut() {
            Some(part) if domain.is_some() && domain == last => part.end = at + 1,
            _ => parts.push(at..at + 1),
        }
        last = domain;
    }
    parts
}

/// The fewest parts that hold the units, largest first, the last one that of those that suffice where the unit fits best, and of these the
/// tightest; each with how many it takes.
fn cover(mut parts: Vec<Part>, units: u64) -> Option<Vec<(Part, u64)>> {
    parts.sort_by_key(|part| {
        (
            Reverse(part.units),
            part.cost,
            part.free_gpus,
            part.groups_broken,
            part.members.start,
        )
    });
    let mut chosen = Vec::new();
    let mut rest = units;
    for (at, part) in parts.iter().enumerate() {
        if rest == 0 {
            break;
        }
        if part.units < rest {
            rest -= part.units;
            chosen.push((part.clone(), part.units));
            continue;
        }
        let enough = parts[at..].iter().take_while(|part| part.units >= rest);
        let best = enough.map(|part| (part.cost, part.units)).min()?;
        let part = parts[at..]
            .iter()
            .find(|part| (part.cost, part.units) == best)?;
        chosen.push((part.clone(), rest));
        rest = 0;
    }
    (rest == 0).then_some(chosen)
}
