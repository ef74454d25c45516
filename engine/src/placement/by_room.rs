//! The nodes that hold a unit, by what is left on them besides devices.
//!
//! Nodes on which much the same is left lie in one *cell*. What the least and the most of a cell answer alike, all its
//! nodes answer: an answer is the worse the less is left. Only in cells through which the amount runs that is asked
//! for is it worked out for each room that occurs. So a count costs the different rooms that there are and not the nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{capacity::Cause, room::Room, tree::Label};
use crate::model::PodResources;

/// A node that holds a unit as far as devices go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member<'a> {
    pub(super) units: u64,
    pub(super) label: Label,
    /// Whether it lies outside the Topology.
    pub(super) outside: bool,
    pub(super) room: &'a Arc<Room>,
}

/// What the nodes of a cell have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CellKey {
    outside: bool,
    units: u64,
    least: Room,
}

/// Nodes on which much the same is left: no more than `most`.
#[derive(Clone, Debug)]
struct Cell {
    most: Room,
    nodes: usize,
    rooms: BTreeMap<Arc<Room>, BTreeSet<(Label, usize)>>,
}

/// Where a node is listed.
#[derive(Clone, Debug)]
struct Spot {
    outside: bool,
    units: u64,
    label: Label,
    room: Arc<Room>,
}

/// See the module. It is as large as the nodes are many; what is left on them it shares with them.
#[derive(Clone, Debug, Default)]
pub(super) struct ByRoom {
    cells: BTreeMap<CellKey, Cell>,
    /// By slot.
    spots: Vec<Option<Spot>>,
}

/// What is asked of a node that holds a unit as far as devices go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub(super) resources: &'a PodResources,
    /// Whether nodes outside the Topology do not count.
    pub(super) inside_only: bool,
}

/// Nodes that answer alike.
#[derive(Clone, Debug)]
pub(super) struct Part<'a> {
    /// How many units each of them holds, or what lacks.
    pub(super) capacity: Result<u64, Cause>,
    cell: &'a Cell,
    /// Those with one room; else the whole cell.
    room: Option<&'a BTreeSet<(Label, usize)>>,
}

impl<'a> Part<'a> {
    pub(super) fn nodes(&self) -> usize {
        self.room.map_or(self.cell.nodes, BTreeSet::len)
    }

    /// The slots of the nodes, by room and place.
    pub(super) fn slots(&self) -> impl Iterator<Item = (Label, usize)> + use<'a> {
        let of_cell = self.room.is_none().then_some(self.cell).into_iter();
        let of_cell = of_cell.flat_map(|cell| cell.rooms.values());
        self.room.into_iter().chain(of_cell).flatten().copied()
    }
}

/// How many units the nodes hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// On all of them.
    pub(super) units: u64,
    /// On the node that holds most.
    pub(super) most: u64,
    /// Nodes that hold any.
    pub(super) nodes: usize,
    /// Of the others, how many lack what.
    pub(super) lacking: BTreeMap<Cause, usize>,
    /// How many cells and rooms were looked at.
    pub(super) looks: u64,
}

impl CellKey {
    fn capacity(&self, room: &Room, asked: Asked<'_>) -> Result<u64, Cause> {
        if self.outside && asked.inside_only {
            return Err(Cause::OutsideTopology);
        }
        let times = room.times(asked.resources)?;
        Ok(self.units.min(times as u64))
    }
}

impl ByRoom {
    /// Lists a node anew, or no longer.
    pub(super) fn set(&mut self, slot: usize, member: Option<Member<'_>>) {
        if self.spots.len() <= slot {
            self.spots.resize(slot + 1, None);
        }
        if let Some(before) = self.spots[slot].take() {
            self.take_out(slot, &before);
        }
        let Some(member) = member else { return };
        let (least, most) = member.room.cell();
        let key = CellKey {
            outside: member.outside,
            units: member.units,
            least,
        };
        let cell = self.cells.entry(key).or_insert_with(|| Cell {
            most,
            nodes: 0,
            rooms: BTreeMap::new(),
        });
        cell.nodes += 1;
        let known = cell.rooms.get_key_value(member.room);
        let room = Arc::clone(known.map_or(member.room, |(room, _)| room));
        let slots = cell.rooms.entry(Arc::clone(&room)).or_default();
        slots.insert((member.label, slot));
        self.spots[slot] = Some(Spot {
            outside: member.outside,
            units: member.units,
            label: member.label,
            room,
        });
    }

    fn take_out(&mut self, slot: usize, spot: &Spot) {
        let key = CellKey {
            outside: spot.outside,
            units: spot.units,
            least: spot.room.cell().0,
        };
        let Some(cell) = self.cells.get_mut(&key) else {
            return;
        };
        cell.nodes -= 1;
        if let Some(slots) = cell.rooms.get_mut(&spot.room) {
            slots.remove(&(spot.label, slot));
            if slots.is_empty() {
                cell.rooms.remove(&spot.room);
            }
        }
        if cell.nodes == 0 {
            self.cells.remove(&key);
        }
    }

    /// All nodes, in parts that answer alike.
    pub(super) fn parts<'a>(&'a self, asked: Asked<'a>) -> impl Iterator<Item = Part<'a>> {
        self.cells.iter().flat_map(move |(key, cell)| {
            let least = key.capacity(&key.least, asked);
            let whole = (least == key.capacity(&cell.most, asked)).then_some(Part {
                capacity: least,
                cell,
                room: None,
            });
            let rooms = whole.is_none().then_some(&cell.rooms).into_iter().flatten();
            let apart = rooms.map(move |(room, slots)| Part {
                capacity: key.capacity(room, asked),
                cell,
                room: Some(slots),
            });
            whole.into_iter().chain(apart)
        })
    }

    /// How many units the nodes hold, and what the others lack.
    pub(super) fn held(&self, asked: Asked<'_>) -> Held {
        let mut held = Held::default();
        for part in self.parts(asked) {
            held.looks += 1;
            match part.capacity {
                Ok(units) => {
                    let nodes = part.nodes();
                    held.units = held
                        .units
                        .saturating_add(units.saturating_mul(nodes as u64));
                    held.most = held.most.max(units);
                    held.nodes += nodes;
                }
                Err(ref cause) => {
                    *held.lacking.entry(cause.clone()).or_default() += part.nodes();
                }
            }
        }
        held
    }

    /// How many nodes, rooms and cells there are.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 3] {
        let rooms = || self.cells.values().flat_map(|cell| &cell.rooms);
        let nodes = self.spots.iter().flatten().count();
        assert_eq!(nodes, rooms().map(|(_, slots)| slots.len()).sum::<usize>());
        [nodes, rooms().count(), self.cells.len()]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::names::PodSelectorId;

    fn resources(cpu_milli: i64, memory_bytes: i64, others: i64, repels: bool) -> PodResources {
        PodResources {
            cpu_milli,
            memory_bytes,
            pods: 1,
            others: (others > 0)
                .then(|| ("vpc.amazonaws.com/efa".into(), others))
                .into_iter()
                .collect(),
            matched_by: repels.then_some(PodSelectorId(1)).into_iter().collect(),
            ..PodResources::default()
        }
    }

    fn room(cpu: i64, memory: i64, others: i64, repels: bool) -> Arc<Room> {
        let mut room = Room::of(&PodResources {
            pods: 110,
            ..resources(cpu, memory, others, false)
        });
        room.take(&PodResources {
            repels: repels.then_some(PodSelectorId(1)).into_iter().collect(),
            pods: 1,
            ..PodResources::default()
        });
        Arc::new(room)
    }

    fn by_one(nodes: &[(u64, bool, Arc<Room>)], asked: Asked<'_>) -> Held {
        let mut held = Held::default();
        for (units, outside, room) in nodes {
            let key = CellKey {
                outside: *outside,
                units: *units,
                least: Room::default(),
            };
            match key.capacity(room, asked) {
                Ok(units) => {
                    held.units += units;
                    held.most = held.most.max(units);
                    held.nodes += 1;
                }
                Err(cause) => *held.lacking.entry(cause).or_default() += 1,
            }
        }
        held
    }

    type Described = (u64, bool, i64, i64, i64, bool);

    fn described() -> impl Strategy<Value = Described> {
        let units = 1_u64..4;
        (
            units,
            any::<bool>(),
            -5_i64..300,
            0_i64..300,
            0_i64..20,
            any::<bool>(),
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        /// Nodes come, change and go; then a pod asks.
        #[test]
        fn nodes_counted_by_room_are_the_nodes_counted_one_by_one(
            before in proptest::collection::vec(described(), 0..40),
            after in proptest::collection::vec(proptest::option::of(described()), 40),
            asked in (0_i64..150, 0_i64..150, 0_i64..10, any::<bool>()),
            inside_only in any::<bool>(),
        ) {
            let mut by_room = ByRoom::default();
            let mut set = |slot: usize, node: Option<&(u64, bool, Arc<Room>)>| {
                by_room.set(slot, node.map(|(units, outside, room)| Member {
                    units: *units,
                    label: 1000 - slot as u64,
                    outside: *outside,
                    room,
                }));
            };
            let node = |(units, outside, cpu, memory, others, repels): Described| {
                (units, outside, room(cpu, memory, others, repels))
            };
            for (slot, described) in before.into_iter().enumerate() {
                set(slot, Some(&node(described)));
            }
            let mut nodes = Vec::new();
            for (slot, described) in after.into_iter().enumerate() {
                let described = described.map(node);
                set(slot, described.as_ref());
                nodes.extend(described);
            }
            let resources = resources(asked.0, asked.1, asked.2, asked.3);
            let asked = Asked { resources: &resources, inside_only };
            let counted = by_room.held(asked);
            prop_assert_eq!(Held { looks: 0, ..counted }, by_one(&nodes, asked));
            for part in by_room.parts(asked) {
                prop_assert_eq!(part.slots().count(), part.nodes());
            }
            prop_assert_eq!(by_room.sizes()[0], nodes.len());
            for slot in 0..40 {
                by_room.set(slot, None);
            }
            prop_assert_eq!(by_room.sizes(), [0, 0, 0]);
        }
    }

    #[test]
    fn nodes_that_all_differ_are_counted_in_less_than_a_quarter_of_the_looks() {
        let gib = 1_i64 << 30;
        let mut by_room = ByRoom::default();
        for slot in 0..10_000_usize {
            let own = i64::try_from(slot).unwrap_or(0);
            let room = room(192_000, 64 * gib + own * 97 * (gib >> 10), 0, false);
            let member = Member {
                units: 8,
                label: slot as u64,
                outside: false,
                room: &room,
            };
            by_room.set(slot, Some(member));
        }
        assert_eq!(by_room.sizes()[..2], [10_000, 10_000]);
        for memory in [gib, 100 * gib + 1, 500 * gib + 7, 2000 * gib] {
            let resources = resources(8_000, memory, 0, false);
            let asked = Asked {
                resources: &resources,
                inside_only: false,
            };
            let looks = by_room.held(asked).looks;
            assert!(looks < 10_000 / 4, "{memory}: {looks}");
        }
    }
}
