//! Where the slices of a layout lie on a GPU.

use std::collections::BTreeMap;

use muster_device::{MigFacts, MigInstance, MigProfile, Placement};

use crate::{mig::settings::Cut, slices::board::placements_in_order};

/// A slice by NVML's number of its profile, and where it lies.
pub type Part = (u32, Placement);

/// Where the slices of a layout lie: what exists of it, and then what claims wait for, stays as far as the rest finds a place beside it.
pub(super) fn target<'a>(
    mig: &'a MigFacts,
    live: &[MigInstance],
    cut: &Cut,
    awaited: &[Part],
) -> Result<Vec<(&'a MigProfile, Placement)>, String> {
    let mut wanted: Vec<&MigProfile> = Vec::new();
    for (name, &count) in cut {
        let Some(profile) = mig.profile(name) else {
            let known: Vec<&str> = mig.profiles.iter().map(|it| it.name.as_str()).collect();
            let known = muster_cluster::text::listed(known);
            return Err(format!("it has no profile {name}, but {known}"));
        };
        if count > profile.max_instances {
            return Err(format!(
                "it can have {} slices {name} at most, and the layout has {count}",
                profile.max_instances
            ));
        }
        wanted.extend((0..count).map(|_| profile));
    }
    let compute: u32 = wanted.iter().map(|profile| profile.compute_slices).sum();
    if compute > mig.compute_slices() {
        return Err(format!(
            "the layout takes {compute} compute slices, and it has {}",
            mig.compute_slices()
        ));
    }
    wanted.sort_by_key(|profile| {
        std::cmp::Reverse((
            profile.memory_slices,
            profile.compute_slices,
            profile.gpu_instance_profile,
        ))
    });
    let candidates: BTreeMap<u32, Vec<Placement>> = wanted
        .iter()
        .map(|profile| {
            let number = profile.gpu_instance_profile;
            let there = live.iter().filter(|instance| instance.profile == number);
            let mut places: Vec<Placement> = there.map(|instance| instance.placement).collect();
            for placement in placements_in_order(mig, profile) {
                if !places.contains(&placement) {
                    places.push(placement);
                }
            }
            (number, places)
        })
        .collect();
    let with = |(mut fixed, rest): (Vec<(&'a MigProfile, Placement)>, Vec<&'a MigProfile>)| {
        let mut chosen = Vec::with_capacity(rest.len());
        place(&rest, &candidates, &fixed, &mut chosen).then(|| {
            fixed.append(&mut chosen);
            fixed
        })
    };
    with(fixed(&wanted, live, awaited))
        .or_else(|| with((Vec::new(), wanted)))
        .ok_or_else(|| "no way to lay the slices of the layout side by side".to_owned())
}

/// Of a layout what is there and what claims wait for, as far as it does not overlap; and the rest of it.
fn fixed<'a>(
    wanted: &[&'a MigProfile],
    live: &[MigInstance],
    awaited: &[Part],
) -> (Vec<(&'a MigProfile, Placement)>, Vec<&'a MigProfile>) {
    let mut rest = wanted.to_vec();
    let mut fixed: Vec<(&MigProfile, Placement)> = Vec::new();
    let there = live.iter().filter(|instance| !instance.is_divided);
    let there = there.map(|instance| (instance.profile, instance.placement));
    for (number, placement) in there.chain(awaited.iter().copied()) {
        let mut left = rest.iter();
        let found = left.position(|profile| {
            profile.gpu_instance_profile == number && profile.placements.contains(&placement)
        });
        let is_free = !fixed.iter().any(|(_, other)| other.overlaps(placement));
        if let Some(position) = found.filter(|_| is_free) {
            fixed.push((rest.remove(position), placement));
        }
    }
    (fixed, rest)
}

/// Finds a place for each: slices of one profile in the order of their candidates, so that no set of places is tried twice.
fn place<'a>(
    wanted: &[&'a MigProfile],
    candidates: &BTreeMap<u32, Vec<Placement>>,
    fixed: &[(&'a MigProfile, Placement)],
    chosen: &mut Vec<(&'a MigProfile, Placement)>,
) -> bool {
    let Some((profile, rest)) = wanted.split_first() else {
        return true;
    };
    let number = profile.gpu_instance_profile;
    let places = candidates.get(&number).map(Vec::as_slice);
    let places = places.unwrap_or_default();
    let before = chosen
        .last()
        .filter(|(it, _)| it.gpu_instance_profile == number);
    let first = before.and_then(|(_, last)| places.iter().position(|place| place == last));
    let first = first.map_or(0, |position| position + 1);
    for &placement in places.iter().skip(first) {
        let mut taken = fixed.iter().chain(chosen.iter());
        if taken.any(|(_, other)| other.overlaps(placement)) {
            continue;
        }
        chosen.push((profile, placement));
        if place(rest, candidates, fixed, chosen) {
            return true;
        }
        chosen.pop();
    }
    false
}
