//! All ways to cut a GPU, by the rules of the hardware.
//!
//! They come from the mock library's rules, which know nothing of the driver's counters: what the optimum may do, and what was allocated, is
//! judged by what a card makes.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use anyhow::{Result, anyhow, ensure};
use nvidia_ml_mock::{
    Card as Hardware, Placement,
    mig::{Table, create_gpu_instance},
};

use super::{
    card::Card,
    first_fit::Left,
    fleet::{FleetNode, Part},
};

/// What of a GPU may be given out: a slice of the profile with this number, or the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Slice(u32),
    Whole,
}

impl Kind {
    /// What a device is.
    pub(super) fn of(part: Part) -> Self {
        part.slice
            .map_or(Self::Whole, |(profile, _)| Self::Slice(profile))
    }
}

/// How many of each kind are there at a time.
pub(super) type Packing = BTreeMap<Kind, u32>;

/// The ways to cut each card, each worked out once.
#[derive(Debug, Default)]
pub(super) struct Cuts(BTreeMap<Card, BTreeSet<Packing>>);

impl Cuts {
    /// Every way to cut a card to which nothing can be added.
    pub(super) fn of(&mut self, card: Card) -> Result<&BTreeSet<Packing>> {
        let found: &BTreeSet<Packing> = match self.0.entry(card) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(packings(card)?),
        };
        Ok(found)
    }
}

/// Those that differ in places only are one.
fn packings(card: Card) -> Result<BTreeSet<Packing>> {
    let table = card.table()?;
    let places: Vec<(u32, Placement)> = table
        .profiles
        .iter()
        .flat_map(|profile| profile.placements().map(move |place| (profile.id, place)))
        .collect();
    let mut found = BTreeSet::new();
    // What is cut already, and from which place on it is added to, so that no set of places comes twice.
    let mut open = vec![(Hardware::default(), 0)];
    while let Some((hardware, next)) = open.pop() {
        let mut is_full = true;
        for (at, (profile, place)) in places.iter().enumerate() {
            let mut larger = hardware.clone();
            if create_gpu_instance(table, &mut larger, *profile, Some(*place)).is_err() {
                continue;
            }
            is_full = false;
            if at >= next {
                open.push((larger, at + 1));
            }
        }
        if is_full {
            let mut packing = Packing::new();
            for instance in &hardware.gpu_instances {
                *packing.entry(Kind::Slice(instance.profile)).or_default() += 1;
            }
            found.insert(packing);
        }
    }
    if card.is_offered_whole() {
        found.insert(Packing::from([(Kind::Whole, 1)]));
    }
    Ok(found)
}

/// Whether the card makes what is allocated on a node, and on how many of its GPUs anything is.
pub(super) fn opened(left: &Left<'_>) -> Result<usize> {
    let FleetNode {
        card, node, parts, ..
    } = left.of;
    let table = card.table()?;
    let mut cards: BTreeMap<usize, (Hardware, bool)> = BTreeMap::new();
    for at in left.taken() {
        let part = parts[at];
        let (hardware, is_whole) = cards.entry(part.gpu).or_default();
        let name = &node.devices[at].name;
        ensure!(!*is_whole, "{name}: the GPU is given out whole");
        match part.slice {
            None => {
                let is_cut = !hardware.gpu_instances.is_empty();
                ensure!(!is_cut, "{name}: is given out whole, and cut");
                *is_whole = true;
            }
            Some((profile, placement)) => {
                make(table, hardware, profile, placement)
                    .map_err(|why| anyhow!("{name}: the card does not make it: {why}"))?;
            }
        }
    }
    Ok(cards.len())
}

fn make(
    table: &Table,
    hardware: &mut Hardware,
    profile: u32,
    placement: muster_device::Placement,
) -> Result<(), String> {
    let place = Placement {
        start: placement.start,
        size: placement.size,
    };
    let made = create_gpu_instance(table, hardware, profile, Some(place));
    made.map(|_| ()).map_err(|refusal| format!("{refusal:?}"))
}

#[cfg(test)]
mod tests {
    use super::super::card::{A30, A100, H100, H200};
    use super::*;

    fn without_media(card: Card) -> BTreeSet<Vec<(String, u32)>> {
        let table = card.table().unwrap();
        let cut = packings(card).unwrap().into_iter();
        let named = cut.filter_map(|packing| {
            let counts = packing.into_iter().map(|(kind, count)| match kind {
                Kind::Slice(id) => Some((table.profile(id)?.name.to_owned(), count)),
                Kind::Whole => None,
            });
            let counts: Option<Vec<(String, u32)>> = counts.collect();
            counts.filter(|counts| counts.iter().all(|(name, _)| !name.ends_with("+me")))
        });
        named.collect()
    }

    #[test]
    fn a_card_is_cut_in_all_ways_that_its_guide_lists() {
        let a30: BTreeSet<Vec<(String, u32)>> = [
            vec![("1g.6gb", 4)],
            vec![("1g.6gb", 2), ("2g.12gb", 1)],
            vec![("2g.12gb", 2)],
            vec![("4g.24gb", 1)],
        ]
        .into_iter()
        .map(|counts| {
            let mut counts: Vec<(String, u32)> = counts
                .into_iter()
                .map(|(name, count)| (name.to_owned(), count))
                .collect();
            // By the number of the profile, as they stand in a packing.
            counts.sort_by_key(|(name, _)| name.starts_with('1'));
            counts
        })
        .collect();
        assert_eq!(without_media(A30), a30);
        for card in [A100, H100, H200] {
            let found = without_media(card);
            let has = |wanted: &[(&str, u32)]| {
                found.iter().any(|counts| {
                    counts.len() == wanted.len()
                        && wanted.iter().all(|(prefix, count)| {
                            let mut counts = counts.iter();
                            counts.any(|(name, of)| name.starts_with(prefix) && of == count)
                        })
                })
            };
            for full in [
                &[("7g.", 1)][..],
                &[("4g.", 1), ("3g.", 1)],
                &[("3g.", 2)],
                &[("2g.", 3), ("1g.", 1)],
            ] {
                assert!(has(full), "{}: {full:?}", card.name);
            }
            // Eight memory slices, and a second 4g has no place.
            assert!(!has(&[("4g.", 2)]));
            let is_whole = packings(card)
                .unwrap()
                .contains(&Packing::from([(Kind::Whole, 1)]));
            assert_eq!(is_whole, card.is_offered_whole());
        }
    }
}
