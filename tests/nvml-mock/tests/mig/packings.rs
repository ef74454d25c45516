//! Every packing that the tables allow can be reached, and no other.

use std::collections::BTreeSet;

use nvidia_ml_mock::{
    Card, Placement,
    mig::{TABLES, Table, create_gpu_instance, free_placements, remaining},
};

use crate::card::{INSUFFICIENT_RESOURCES, Machine};

/// GPU instances by profile and first memory slice, in order.
type Packing = BTreeSet<(u32, u32)>;

/// What may be beside each other, said as simply as it can be: no memory slice is in two, no profile is there more often than it may
/// be, and the media engines that only `+me` has are there once.
fn legal(table: &Table, with_media: bool) -> BTreeSet<Packing> {
    let all: Vec<(u32, Placement)> = table
        .profiles
        .iter()
        .filter(|profile| with_media || !profile.name.ends_with("+me"))
        .flat_map(|profile| profile.placements().map(|place| (profile.id, place)))
        .collect();
    let mut found = BTreeSet::new();
    grow(table, &all, &mut Vec::new(), &mut found);
    found
}

fn grow(
    table: &Table,
    rest: &[(u32, Placement)],
    chosen: &mut Vec<(u32, Placement)>,
    found: &mut BTreeSet<Packing>,
) {
    let Some(((profile, place), rest)) = rest.split_first() else {
        found.insert(
            chosen
                .iter()
                .map(|(id, place)| (*id, place.start))
                .collect(),
        );
        return;
    };
    grow(table, rest, chosen, found);
    let of = |id: u32| table.profile(id).unwrap();
    let is_media = |id: u32| of(id).name.ends_with("+me");
    let slices = |place: Placement| place.start..place.start + place.size;
    let is_beside = |(other, taken): &(u32, Placement)| {
        slices(*taken).all(|slice| !slices(*place).contains(&slice))
            && !(is_media(*profile) && is_media(*other))
    };
    let same = chosen.iter().filter(|(other, _)| other == profile).count();
    let has_room = u32::try_from(same).unwrap() < of(*profile).max_instances;
    if has_room && chosen.iter().all(is_beside) {
        chosen.push((*profile, *place));
        grow(table, rest, chosen, found);
        chosen.pop();
    }
}

fn is_below(one: &Packing, other: &Packing) -> bool {
    other.len() > one.len() && other.is_superset(one)
}

fn packing(card: &Card) -> Packing {
    let instances = card.gpu_instances.iter();
    instances
        .map(|one| (one.profile, one.placement.start))
        .collect()
}

/// What can be reached from an empty card by one instance after the other, at every place that can be asked for.
fn reachable(table: &Table, with_media: bool) -> BTreeSet<Packing> {
    let mut found = BTreeSet::from([Packing::new()]);
    let mut open = vec![Card::default()];
    while let Some(card) = open.pop() {
        for profile in table.profiles {
            if !with_media && profile.name.ends_with("+me") {
                continue;
            }
            let free = free_placements(table, &card, profile);
            for start in 0..table.memory_slices {
                let size = profile.memory_slices;
                let place = Placement { start, size };
                let mut next = card.clone();
                let made = create_gpu_instance(table, &mut next, profile.id, Some(place));
                assert_eq!(made.is_ok(), free.contains(&place), "{place:?} {card:?}");
                if made.is_ok() && found.insert(packing(&next)) {
                    open.push(next);
                }
            }
            assert!(free.is_empty() || remaining(table, &card, profile) > 0);
        }
    }
    found
}

#[test]
fn every_legal_packing_of_every_table_is_reachable_and_no_other() {
    for table in &TABLES {
        for with_media in [false, true] {
            let legal = legal(table, with_media);
            assert!(reachable(table, with_media) == legal, "{}", table.name);
        }
    }
}

#[test]
fn a_gpu_of_seven_slices_has_723_packings_of_which_78_are_maximal() {
    for table in TABLES.iter().filter(|table| table.compute_slices == 7) {
        let plain = legal(table, false);
        let is_maximal = |one: &&Packing| !plain.iter().any(|other| is_below(one, other));
        let maximal = plain.iter().filter(is_maximal).count();
        assert_eq!((plain.len(), maximal), (723, 78), "{}", table.name);
        assert_eq!(legal(table, true).len(), 2_319, "{}", table.name);
    }
}

#[test]
fn no_two_instances_beside_each_other_have_the_same_id() {
    for table in &TABLES {
        for packing in legal(table, true) {
            let ids: BTreeSet<u32> = packing
                .iter()
                .map(|(profile, start)| {
                    let size = table.profile(*profile).unwrap().memory_slices;
                    table.gpu_instance_id(Placement {
                        start: *start,
                        size,
                    })
                })
                .collect();
            assert_eq!(ids.len(), packing.len(), "{} {packing:?}", table.name);
        }
    }
}

/// Beside a packing, each further instance can be made by the library exactly if the packing with it is legal.
fn compare(machine: &Machine, table: &Table, legal: &BTreeSet<Packing>, packing: &Packing) {
    let device = machine.gpu(0);
    let uuid = machine.uuid(device);
    machine.change(|state| state.card(&uuid).gpu_instances.clear());
    let place = |profile: u32, start: u32| Placement {
        start,
        size: table.profile(profile).unwrap().memory_slices,
    };
    for (profile, start) in packing {
        let made = machine.create(device, *profile, place(*profile, *start));
        assert!(made.is_ok(), "{packing:?}: {profile} at {start}: {made:?}");
    }
    for profile in table.profiles {
        for further in profile.placements() {
            let mut with = packing.clone();
            let is_new = with.insert((profile.id, further.start));
            match machine.create(device, profile.id, further) {
                Ok(instance) => {
                    assert!(is_new && legal.contains(&with), "{with:?}");
                    machine.destroy(instance).unwrap();
                }
                Err(code) => {
                    assert_eq!(code, INSUFFICIENT_RESOURCES);
                    assert!(!is_new || !legal.contains(&with), "{with:?}");
                }
            }
        }
    }
}

#[test]
fn the_library_makes_what_is_legal_and_refuses_what_is_not() {
    // Tables of seven compute slices have one shape: what is left to see of the others is that each is behind its own board.
    let boards = [
        ("a30-4", 1),
        ("h100-nvswitch-8", 61),
        ("a100-40gb-nvswitch-8", 389),
        ("a100-80gb-nvswitch-8", 389),
        ("h200-nvswitch-8", 389),
        ("b200-nvswitch-8", 389),
    ];
    let mut compared = BTreeSet::new();
    for (board, step) in boards {
        let machine = Machine::new(board);
        machine.enable(machine.gpu(0));
        let board = nvidia_ml_mock::Board::named(board).unwrap();
        let table = board.mig_table().unwrap();
        let legal = legal(table, true);
        for packing in legal.iter().step_by(step) {
            compare(&machine, table, &legal, packing);
        }
        compared.insert(table.name);
    }
    let all: BTreeSet<&str> = TABLES.iter().map(|table| table.name).collect();
    assert_eq!(compared, all);
}
