//! What a GPU can be cut into, as its ResourceSlice may show it: which slices, in which order, and what they share.
//!
//! **Order.** kube-scheduler takes the first device that fits. So small slices stand before large ones, and of one profile the placement
//! first that strands no memory and keeps most larger slices possible, given those before it. That is worked out from the placements that NVML
//! tells.
//!
//! **Counters.** Each memory slice is a counter of its own, so slices that overlap exclude each other. Compute slices and engines
//! are counted as well, and the instances of a profile where nothing else keeps them within what NVML allows.
//!
//! **Limits of the API.** A slice has at most 64 devices, a set at most 32 counters. What is beyond them is left out by profile, largest
//! profiles kept first, and named.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::resource::v1::{Counter, CounterSet, DeviceCounterConsumption},
    apimachinery::pkg::api::resource::Quantity,
};
use muster_device::{Gpu, MigFacts, MigProfile, Placement};

/// Most counters of a set, and most of one set that a device draws from.
pub const MAX_COUNTERS: usize = 32;
/// Most memory slices of a GPU, each of which is a counter.
const MOST_MEMORY_SLICES: u32 = 32;
/// Longest name of a device.
const MAX_NAME_BYTES: usize = 63;

/// A GPU as it is cut.
#[derive(Clone, Debug)]
pub struct Board<'a> {
    set: String,
    /// What there is of each counter.
    totals: BTreeMap<String, u64>,
    /// Profiles that have a counter of their own instances.
    counted: BTreeSet<u32>,
    /// Its slices in order.
    slices: Vec<(&'a MigProfile, Placement)>,
    /// What is left out, and why, a sentence for each.
    left_out: Vec<String>,
}

impl<'a> Board<'a> {
    /// What of `mig` fits into a ResourceSlice that has room for so many devices. An error: nothing does, and what is left out, a sentence for each
    /// (none, if nobody knows what it can be cut into).
    pub fn new(gpu: &Gpu, mig: &'a MigFacts, mut room: usize) -> Result<Self, Vec<String>> {
        let set = gpu.device_name();
        if mig.memory_slices() == 0 {
            return Err(Vec::new());
        }
        if mig.memory_slices() > MOST_MEMORY_SLICES {
            return Err(vec![format!(
                "{set}: all slices: it has {} memory slices, each of which is a counter, and a set has at most {MAX_COUNTERS}",
                mig.memory_slices()
            )]);
        }
        let mut board = Self {
            set,
            totals: (0..mig.memory_slices())
                .map(|slice| (memory_slice(slice), 1))
                .collect(),
            counted: BTreeSet::new(),
            slices: Vec::new(),
            left_out: Vec::new(),
        };
        board.count_engines(mig);
        let mut kept: Vec<&MigProfile> = Vec::new();
        let mut names: BTreeSet<String> = BTreeSet::new();
        for profile in by_size(mig).into_iter().rev() {
            if let Err(why) = board.keep(gpu, profile, room, &mut names) {
                board.left_out.push(format!(
                    "{}: {} slices {}: {why}",
                    board.set,
                    profile.placements.len(),
                    profile.name
                ));
                continue;
            }
            room -= profile.placements.len();
            kept.push(profile);
        }
        for profile in kept.into_iter().rev() {
            let placements = placements_in_order(mig, profile).into_iter();
            board
                .slices
                .extend(placements.map(|placement| (profile, placement)));
        }
        if board.slices.is_empty() {
            return Err(board.left_out);
        }
        Ok(board)
    }

    /// Its slices, in the order in which they are to be tried.
    pub fn slices(&self) -> &[(&'a MigProfile, Placement)] {
        &self.slices
    }

    /// What is left out, and why.
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// What its devices share.
    pub fn counter_set(&self) -> CounterSet {
        CounterSet {
            name: self.set.clone(),
            counters: counters(
                self.totals
                    .iter()
                    .map(|(name, &value)| (name.clone(), value)),
            ),
        }
    }

    /// What the whole GPU takes: all.
    pub fn all(&self) -> DeviceCounterConsumption {
        let totals = self.totals.iter();
        self.takes(totals.map(|(name, &value)| (name.clone(), value)))
    }

    /// What a slice takes.
    pub fn of(&self, profile: &MigProfile, placement: Placement) -> DeviceCounterConsumption {
        let memory = (placement.start..placement.end()).map(|slice| (memory_slice(slice), 1));
        let engines = engines(profile).into_iter();
        let engines = engines.filter(|(name, value)| *value > 0 && self.totals.contains_key(*name));
        let engines = engines.map(|(name, value)| (name.to_owned(), u64::from(value)));
        let is_counted = self.counted.contains(&profile.gpu_instance_profile);
        let instance = is_counted.then(|| (instances(profile), 1));
        self.takes(memory.chain(engines).chain(instance))
    }

    fn takes(&self, amounts: impl Iterator<Item = (String, u64)>) -> DeviceCounterConsumption {
        DeviceCounterConsumption {
            counter_set: self.set.clone(),
            counters: counters(amounts),
            ..DeviceCounterConsumption::default()
        }
    }

    /// What a GPU has of an engine nobody tells. It has at least what as many slices of one profile have as there may be; engines that slices
    /// share are never short then.
    fn count_engines(&mut self, mig: &MigFacts) {
        let mut totals: BTreeMap<&str, u64> = BTreeMap::new();
        for profile in &mig.profiles {
            for (name, value) in engines(profile) {
                let all = u64::from(value) * u64::from(profile.max_instances.max(1));
                let total = totals.entry(name).or_default();
                *total = all.max(*total);
            }
        }
        for (name, total) in totals.into_iter().filter(|(_, total)| *total > 0) {
            if self.totals.len() < MAX_COUNTERS {
                self.totals.insert(name.to_owned(), total);
            } else {
                let set = &self.set;
                self.left_out.push(format!(
                    "{set}: {name} is not counted: a set has at most {MAX_COUNTERS} counters"
                ));
            }
        }
    }

    /// Whether a profile can be shown, with all its placements: one of which some are missing would be a profile that is not there.
    fn keep(
        &mut self,
        gpu: &Gpu,
        profile: &MigProfile,
        room: usize,
        names: &mut BTreeSet<String>,
    ) -> Result<(), String> {
        if profile.placements.len() > room {
            return Err(format!(
                "a ResourceSlice has room for {room} devices more, of {}",
                super::desired::MAX_DEVICES_PER_SLICE
            ));
        }
        let own: BTreeSet<String> = profile
            .placements
            .iter()
            .map(|placement| gpu.slice_name(profile, placement.start))
            .collect();
        if own.len() != profile.placements.len() || !own.is_disjoint(names) {
            return Err("another slice has the same name".to_owned());
        }
        if let Some(name) = own.iter().find(|name| !is_label(name)) {
            return Err(format!("{name} is no name of a device"));
        }
        if self.bound(profile) > u64::from(profile.max_instances) {
            if self.totals.len() >= MAX_COUNTERS {
                return Err(format!(
                    "at most {} may exist, and a set has at most {MAX_COUNTERS} counters",
                    profile.max_instances
                ));
            }
            let total = u64::from(profile.max_instances);
            self.totals.insert(instances(profile), total);
            self.counted.insert(profile.gpu_instance_profile);
        }
        names.extend(own);
        Ok(())
    }

    /// How many slices of a profile the counters let exist at a time.
    fn bound(&self, profile: &MigProfile) -> u64 {
        let mut placements = profile.placements.clone();
        placements.sort_by_key(|placement| placement.end());
        let mut disjoint = 0_u64;
        let mut end = 0;
        for placement in placements {
            if placement.start >= end {
                disjoint += 1;
                end = placement.end();
            }
        }
        engines(profile)
            .into_iter()
            .filter(|(_, value)| *value > 0)
            .filter_map(|(name, value)| {
                let total = self.totals.get(name)?;
                Some(total / u64::from(value))
            })
            .fold(disjoint, u64::min)
    }
}

/// What a profile has of each thing that is counted in pieces.
fn engines(profile: &MigProfile) -> [(&'static str, u32); 6] {
    let media = &profile.media;
    [
        ("compute-slices", profile.compute_slices),
        ("copy-engines", media.copy_engines),
        ("decoders", media.decoders),
        ("encoders", media.encoders),
        ("jpeg-engines", media.jpeg_engines),
        ("ofa-engines", media.ofa_engines),
    ]
}

fn memory_slice(slice: u32) -> String {
    format!("memory-slice-{slice}")
}

fn instances(profile: &MigProfile) -> String {
    format!("instances-of-profile-{}", profile.gpu_instance_profile)
}

fn counters(amounts: impl Iterator<Item = (String, u64)>) -> BTreeMap<String, Counter> {
    let counter = |value: u64| Counter {
        value: Quantity(value.to_string()),
    };
    amounts
        .map(|(name, value)| (name, counter(value)))
        .collect()
}

/// As the API server checks it: a part of a DNS name.
fn is_label(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    name.len() <= MAX_NAME_BYTES
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.is_empty()
        && name.bytes().all(is_inner)
}

/// What a slice takes of a GPU, so that of two that fit the one that takes less comes first: memory, compute, then engines.
fn size(profile: &MigProfile) -> (u32, u32, u32, u64, u32) {
    let media = &profile.media;
    let engines = [
        media.copy_engines,
        media.decoders,
        media.encoders,
        media.jpeg_engines,
        media.ofa_engines,
    ];
    (
        profile.memory_slices,
        profile.compute_slices,
        profile.multiprocessors,
        engines.into_iter().map(u64::from).sum(),
        profile.gpu_instance_profile,
    )
}

/// The profiles, smallest first.
pub fn by_size(mig: &MigFacts) -> Vec<&MigProfile> {
    let mut profiles: Vec<&MigProfile> = mig.profiles.iter().collect();
    profiles.sort_by_key(|profile| size(profile));
    profiles
}

/// The placements of a profile in the order in which they are to be tried, each given those before it: first where the least memory is
/// stranded, then where most larger slices stay possible, then the lowest.
///
/// A memory slice is stranded if no slice can have it any more. GPUs with seven compute slices and eight memory slices have one that only
/// slices of two and more reach: the last one. A small slice beside it costs two memory slices, so that place is the last resort.
pub fn placements_in_order(mig: &MigFacts, profile: &MigProfile) -> Vec<Placement> {
    let extent = |profile: &MigProfile| (profile.memory_slices, profile.compute_slices);
    let of = |wanted: &dyn Fn(&MigProfile) -> bool| -> Vec<Placement> {
        let profiles = mig.profiles.iter().filter(|other| wanted(other));
        let placements = profiles.flat_map(|other| other.placements.iter().copied());
        placements.collect()
    };
    let mut larger = of(&|other| extent(other) > extent(profile));
    let mut any = of(&|_| true);
    // What has more is not offered.
    let memory = mig.memory_slices().min(MOST_MEMORY_SLICES);
    let mut remaining = profile.placements.clone();
    remaining.sort_unstable();
    let mut ordered = Vec::with_capacity(remaining.len());
    while !remaining.is_empty() {
        // All placements of a profile are of one size, so where most can be had beside it the least is stranded.
        let to_be_had = |placement: &Placement| {
            let slices = (0..memory).map(|start| Placement { start, size: 1 });
            let reached = slices.filter(|slice| {
                let mut beside = any.iter().filter(|other| !other.overlaps(*placement));
                beside.any(|other| other.overlaps(*slice))
            });
            reached.count()
        };
        let kept = |placement: &Placement| {
            let possible = larger.iter().filter(|larger| !larger.overlaps(*placement));
            possible.count()
        };
        // Of equals the first, which `max_by_key` would not give.
        let best = (0..remaining.len())
            .min_by_key(|&position| {
                let placement = &remaining[position];
                std::cmp::Reverse((to_be_had(placement), kept(placement)))
            })
            .unwrap_or_default();
        let placement = remaining.remove(best);
        larger.retain(|other| !other.overlaps(placement));
        any.retain(|other| !other.overlaps(placement));
        ordered.push(placement);
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::fixtures::{a30, gpu, h100};

    fn names(board: &Board<'_>) -> Vec<String> {
        let slices = board.slices().iter();
        slices
            .map(|(profile, placement)| format!("{}@{}", profile.name, placement.start))
            .collect()
    }

    fn board(mig: &MigFacts, room: usize) -> Board<'_> {
        Board::new(&gpu("GPU-0", 0, "1"), mig, room).unwrap()
    }

    #[test]
    fn small_slices_come_first_and_each_where_it_strands_nothing_and_keeps_most_larger_ones_possible()
     {
        let mig = h100(true);
        assert_eq!(
            names(&board(&mig, 63)),
            [
                "1g.10gb@4",
                "1g.10gb@5",
                "1g.10gb@0",
                "1g.10gb@1",
                "1g.10gb@2",
                "1g.10gb@3",
                "1g.10gb@6",
                "1g.10gb+me@4",
                "1g.10gb+me@5",
                "1g.10gb+me@0",
                "1g.10gb+me@1",
                "1g.10gb+me@2",
                "1g.10gb+me@3",
                "1g.10gb+me@6",
                "1g.20gb@6",
                "1g.20gb@4",
                "1g.20gb@0",
                "1g.20gb@2",
                "2g.20gb@4",
                "2g.20gb@0",
                "2g.20gb@2",
                "3g.40gb@4",
                "3g.40gb@0",
                "4g.40gb@0",
                "7g.80gb@0",
            ]
        );
        let mig = a30(true);
        let names = names(&board(&mig, 63));
        assert_eq!(names.len(), 13);
        assert_eq!(names[..4], ["1g.6gb@0", "1g.6gb@1", "1g.6gb@2", "1g.6gb@3"]);
        assert_eq!(names[12], "4g.24gb@0");
    }

    /// All sets of slices that can exist together, by counters.
    fn fits(board: &Board<'_>, chosen: &[(&MigProfile, Placement)]) -> bool {
        let read = |counter: &Counter| counter.value.0.parse::<u64>().unwrap();
        let mut left: BTreeMap<String, u64> = board
            .counter_set()
            .counters
            .iter()
            .map(|(name, counter)| (name.clone(), read(counter)))
            .collect();
        chosen.iter().all(|(profile, placement)| {
            let takes = board.of(profile, *placement).counters;
            takes.iter().all(|(name, counter)| {
                let left = left.get_mut(name).unwrap();
                let enough = *left >= read(counter);
                *left = left.saturating_sub(read(counter));
                enough
            })
        })
    }

    #[test]
    fn the_counters_let_exist_exactly_what_the_hardware_does() {
        // Without engines: disjoint, at most so many of each profile, and no more compute than there is.
        let may_exist = |mig: &MigFacts, chosen: &[(&MigProfile, Placement)]| {
            let disjoint = chosen
                .iter()
                .enumerate()
                .all(|(at, (_, one))| chosen[..at].iter().all(|(_, other)| !one.overlaps(*other)));
            let within = mig.profiles.iter().all(|profile| {
                let many = chosen.iter().filter(|(it, _)| it.name == profile.name);
                many.count() <= usize::try_from(profile.max_instances).unwrap()
            });
            let compute = chosen.iter().map(|(profile, _)| profile.compute_slices);
            disjoint && within && compute.sum::<u32>() <= mig.compute_slices()
        };
        for mig in [h100(true), a30(true)] {
            let board = board(&mig, 63);
            let all = board.slices().to_vec();
            // Each subset of up to four, and each profile as often as it fits.
            let mut open: Vec<Vec<usize>> = vec![Vec::new()];
            let mut judged = 0;
            while let Some(chosen) = open.pop() {
                let slices: Vec<_> = chosen.iter().map(|&at| all[at]).collect();
                let expected = may_exist(&mig, &slices);
                // Two with media engines of their own are more than one card has; that is the card's, not the placement's.
                let media = slices
                    .iter()
                    .filter(|(profile, _)| profile.media.ofa_engines > 0);
                if media.count() <= 1 {
                    assert_eq!(fits(&board, &slices), expected, "{slices:?}");
                }
                judged += 1;
                if expected && chosen.len() < 4 {
                    let next = chosen.last().map_or(0, |last| last + 1);
                    open.extend((next..all.len()).map(|at| [&chosen[..], &[at]].concat()));
                }
            }
            assert!(judged > 100, "{judged}");
        }
    }

    #[test]
    fn one_slice_where_it_stands_first_strands_nothing_and_keeps_as_many_larger_ones_as_any_such_place()
     {
        for mig in [h100(true), a30(true)] {
            for profile in &mig.profiles {
                let extent = |it: &MigProfile| (it.memory_slices, it.compute_slices);
                let placements = |wanted: &dyn Fn(&MigProfile) -> bool| -> Vec<Placement> {
                    let profiles = mig.profiles.iter().filter(|other| wanted(other));
                    profiles
                        .flat_map(|it| it.placements.iter().copied())
                        .collect()
                };
                let larger = placements(&|other| extent(other) > extent(profile));
                let any = placements(&|_| true);
                let kept = |it: &Placement| larger.iter().filter(|one| !one.overlaps(*it)).count();
                let strands_nothing = |it: &Placement| {
                    let beside: Vec<&Placement> =
                        any.iter().filter(|one| !one.overlaps(*it)).collect();
                    (0..mig.memory_slices()).all(|start| {
                        let slice = Placement { start, size: 1 };
                        it.overlaps(slice) || beside.iter().any(|one| one.overlaps(slice))
                    })
                };
                let ordered = placements_in_order(&mig, profile);
                let first = ordered.first().unwrap();
                assert!(strands_nothing(first), "{}", profile.name);
                let sound = profile
                    .placements
                    .iter()
                    .filter(|it| strands_nothing(it))
                    .map(kept);
                assert_eq!(Some(kept(first)), sound.max(), "{}", profile.name);
                let (mut ours, mut theirs) = (ordered, profile.placements.clone());
                ours.sort_unstable();
                theirs.sort_unstable();
                assert_eq!(ours, theirs, "{}", profile.name);
            }
        }
    }

    /// The planner counts on it (ADR 32): who asks for an amount of memory is then never given the second profile of a size.
    #[test]
    fn of_two_profiles_of_a_size_each_slice_of_the_second_stands_behind_one_that_takes_no_more() {
        for mig in [h100(true), a30(true)] {
            let board = board(&mig, 63);
            let amounts = |(profile, placement): &(&MigProfile, Placement)| {
                let counters = board.of(profile, *placement).counters.into_iter();
                let read = |counter: Counter| counter.value.0.parse::<u64>().unwrap();
                let amounts = counters.map(|(name, counter)| (name, read(counter)));
                amounts.collect::<BTreeMap<String, u64>>()
            };
            let mut first: BTreeMap<u32, &MigProfile> = BTreeMap::new();
            for (at, slice) in board.slices().iter().enumerate() {
                let (profile, placement) = *slice;
                let first = *first.entry(profile.memory_slices).or_insert(profile);
                if first.name == profile.name {
                    continue;
                }
                let takes = amounts(slice);
                let takes_no_more = |other: &(&MigProfile, Placement)| {
                    let mut others = amounts(other).into_iter();
                    others.all(|(counter, amount)| takes.get(&counter) >= Some(&amount))
                };
                let mut before = board.slices()[..at].iter();
                let is_behind_one = before.any(|other| {
                    let is_of_first = other.0.name == first.name;
                    is_of_first && other.1.overlaps(placement) && takes_no_more(other)
                });
                assert!(is_behind_one, "{}@{}", profile.name, placement.start);
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_left_out_by_profile_and_the_largest_are_kept() {
        let mig = h100(true);
        assert!(board(&mig, 25).left_out().is_empty());
        let cut = board(&mig, 24);
        assert_eq!(cut.left_out().len(), 1);
        assert!(cut.left_out()[0].contains("7 slices 1g.10gb:"), "{cut:?}");
        assert_eq!(names(&cut).len(), 18);
        let cut = board(&mig, 4);
        assert_eq!(
            names(&cut),
            ["3g.40gb@4", "3g.40gb@0", "4g.40gb@0", "7g.80gb@0"]
        );
        assert_eq!(cut.left_out().len(), 4);
    }

    #[test]
    fn a_set_has_at_most_32_counters_and_what_cannot_be_counted_is_not_offered() {
        let gpu = gpu("GPU-0", 0, "1");
        let with_memory_slices = |count: u32| {
            let mut mig = h100(true);
            mig.profiles.retain(|profile| profile.name == "1g.10gb");
            let profile = &mut mig.profiles[0];
            profile.placements = (0..count)
                .map(|start| Placement { start, size: 1 })
                .collect();
            // More could be placed than may exist, and no engine bounds them: compute does not, of which nothing is told.
            profile.compute_slices = 0;
            profile.media = muster_device::Media::default();
            profile.max_instances = 2;
            mig
        };
        let mig = with_memory_slices(31);
        let board = Board::new(&gpu, &mig, 63).unwrap();
        let set = board.counter_set();
        assert_eq!(set.counters.len(), 32);
        assert_eq!(set.counters["instances-of-profile-19"].value.0, "2");
        assert_eq!(board.all().counters.len(), 32);
        let mut three = board.slices().to_vec();
        three.truncate(3);
        assert!(fits(&board, &three[..2]) && !fits(&board, &three));
        // One more, and the profile cannot be counted; two more, and not even memory can. It is said.
        for (count, said) in [
            (
                32,
                "gpu-0: 32 slices 1g.10gb: at most 2 may exist, and a set has at most 32 counters",
            ),
            (
                33,
                "gpu-0: all slices: it has 33 memory slices, each of which is a counter, and a set has at most 32",
            ),
        ] {
            let mig = with_memory_slices(count);
            let left_out = Board::new(&gpu, &mig, 63).unwrap_err();
            assert_eq!(left_out, [said]);
        }
        // Nobody knows of anything that could be left out.
        let mut unknown = h100(true);
        unknown.profiles.clear();
        assert!(Board::new(&gpu, &unknown, 63).unwrap_err().is_empty());
    }

    #[test]
    fn two_slices_of_one_name_are_not_both_offered() {
        let mut mig = h100(true);
        let mut twin = mig.profiles[0].clone();
        twin.gpu_instance_profile = 99;
        mig.profiles.push(twin);
        let board = board(&mig, 63);
        assert_eq!(board.left_out().len(), 1, "{board:?}");
        let names = names(&board);
        let unique: BTreeSet<&String> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
    }
}
