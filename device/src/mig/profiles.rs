//! Profiles: what NVML tells of them, as far as that can be.
//!
//! What is told is not believed before it adds up: a name, a size or a place that cannot be would be published, promised and
//! paid for. A profile that does not add up is left out, and said.

use std::collections::BTreeSet;

use nvml_wrapper_sys::bindings as raw;

use super::{Media, MigProfile, Placement, names};
use crate::gpu::profile_label;

/// Most slices, of either kind, that are believed of a GPU. All that there are have 8 at most.
const MOST_SLICES: u32 = 32;
/// Most multiprocessors, or engines of a kind, that are believed of a GPU. All that there are have less than 200.
const MOST_UNITS: u32 = 4_096;

/// What NVML tells of a profile.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    /// What it was asked for by: `NVML_GPU_INSTANCE_PROFILE_*`.
    pub(crate) enumerator: u32,
    /// What instances are made by.
    pub(crate) id: u32,
    /// Its name, from drivers that tell.
    pub(crate) name: Option<String>,
    pub(crate) compute_slices: u32,
    pub(crate) instances: u32,
    pub(crate) multiprocessors: u32,
    pub(crate) media: Media,
    pub(crate) memory_mebibytes: u64,
    pub(crate) placements: Vec<Placement>,
}

/// The profiles that can be, ascending by their numbers, and what cannot be about the others. `gpu_bytes` is the GPU's memory.
pub(crate) fn believed(told: Vec<Told>, gpu_bytes: Option<u64>) -> (Vec<MigProfile>, Vec<String>) {
    let mut implausible = Vec::new();
    let mut candidates: Vec<Told> = Vec::new();
    for mut profile in told {
        profile.placements.sort_unstable();
        let is_twice = candidates.iter().any(|other| other.id == profile.id);
        let wrong = wrong_by_itself(&profile)
            .or_else(|| is_twice.then(|| "another profile has its number".to_owned()));
        match wrong {
            Some(wrong) => implausible.push(sentence(&profile, &wrong)),
            None => candidates.push(profile),
        }
    }
    let gpu = Whole::of(&candidates, gpu_bytes);
    let mut labels = BTreeSet::new();
    let mut profiles = Vec::new();
    for profile in candidates {
        match gpu.wrong(&profile) {
            Some(wrong) => implausible.push(sentence(&profile, &wrong)),
            None => profiles.extend(named(profile, gpu_bytes, &mut labels)),
        }
    }
    profiles.sort_by_key(|profile| profile.gpu_instance_profile);
    (profiles, implausible)
}

fn sentence(profile: &Told, wrong: &str) -> String {
    format!(
        "GPU instance profile {} (enumerator {}): {wrong}",
        profile.id, profile.enumerator
    )
}

/// What cannot be, whatever the GPU.
fn wrong_by_itself(profile: &Told) -> Option<String> {
    let Media {
        copy_engines,
        decoders,
        encoders,
        jpeg_engines,
        ofa_engines,
    } = profile.media;
    let engines = [
        copy_engines,
        decoders,
        encoders,
        jpeg_engines,
        ofa_engines,
        profile.multiprocessors,
    ];
    let (slices, instances) = (profile.compute_slices, profile.instances);
    let Some(first) = profile.placements.first() else {
        return Some("it may lie nowhere".to_owned());
    };
    let same_size = |placement: &Placement| placement.size == first.size;
    let is_twice = |pair: &[Placement]| pair.first() == pair.last();
    let wrong = if profile.id == raw::INVALID_GPU_INSTANCE_PROFILE_ID {
        "it has no number".to_owned()
    } else if compute_instance_profile(slices).is_none() {
        format!("{slices} compute slices, of which no compute instance can have all")
    } else if profile.multiprocessors == 0 || profile.memory_mebibytes == 0 {
        let (units, memory) = (profile.multiprocessors, profile.memory_mebibytes);
        format!("{units} multiprocessors and {memory} MiB")
    } else if engines.iter().any(|count| *count > MOST_UNITS) {
        format!("more than {MOST_UNITS} of its multiprocessors, or engines of a kind")
    } else if instances == 0 || instances > MOST_SLICES {
        format!("{instances} instances at most")
    } else if first.size == 0 || !profile.placements.iter().all(same_size) {
        format!(
            "placements of no size, or of several sizes: {:?}",
            profile.placements
        )
    } else if profile.placements.windows(2).any(is_twice) {
        format!("a placement is told twice: {:?}", profile.placements)
    } else if profile
        .placements
        .iter()
        .any(|placement| placement.end() > MOST_SLICES)
    {
        format!(
            "it ends beyond memory slice {MOST_SLICES}: {:?}",
            profile.placements
        )
    } else {
        return None;
    };
    Some(wrong)
}

/// The GPU, as its largest profile and its own memory show it.
struct Whole {
    compute_slices: u32,
    memory_slices: u32,
    mebibytes: Option<u64>,
}

impl Whole {
    fn of(profiles: &[Told], gpu_bytes: Option<u64>) -> Self {
        let end = |profile: &Told| profile.placements.last().map_or(0, |last| last.end());
        let largest = profiles
            .iter()
            .map(|profile| (profile.compute_slices, end(profile)))
            .max();
        let (compute_slices, memory_slices) = largest.unwrap_or_default();
        Self {
            compute_slices,
            memory_slices,
            mebibytes: gpu_bytes.map(|bytes| bytes >> 20),
        }
    }

    /// What does not go into it.
    fn wrong(&self, profile: &Told) -> Option<String> {
        let instances = profile.instances;
        let size = profile.placements.first().map_or(0, |first| first.size);
        let end = profile.placements.last().map_or(0, |last| last.end());
        let (compute, memory) = (instances * profile.compute_slices, instances * size);
        if end > self.memory_slices {
            let whole = self.memory_slices;
            return Some(format!(
                "it ends at memory slice {end}, and the GPU has {whole}"
            ));
        }
        if compute > self.compute_slices || memory > self.memory_slices {
            return Some(format!(
                "{instances} instances take {compute} compute slices and {memory} memory slices, and the GPU has {} and {}",
                self.compute_slices, self.memory_slices
            ));
        }
        // An eighth more is believed: the driver keeps memory for itself, and more or less of it by the mode.
        let together = profile
            .memory_mebibytes
            .saturating_mul(u64::from(instances));
        let whole = self.mebibytes?;
        (together > whole.saturating_add(whole / 8)).then(|| {
            let each = profile.memory_mebibytes;
            format!("{instances} instances of {each} MiB, and the GPU has {whole} MiB")
        })
    }
}

/// A profile with its name, which no other has: nor does any, as part of a device's name.
fn named(
    profile: Told,
    gpu_bytes: Option<u64>,
    labels: &mut BTreeSet<String>,
) -> Option<MigProfile> {
    let told = profile.name.as_deref().and_then(names::told);
    let mut name = told.unwrap_or_else(|| {
        names::made(
            profile.enumerator,
            profile.compute_slices,
            profile.memory_mebibytes,
            gpu_bytes,
        )
    });
    while !labels.insert(profile_label(&name)) {
        name = format!("{name}+id{}", profile.id);
    }
    Some(MigProfile {
        name,
        gpu_instance_profile: profile.id,
        compute_instance_profile: compute_instance_profile(profile.compute_slices)?,
        memory_bytes: profile.memory_mebibytes.saturating_mul(1 << 20),
        multiprocessors: profile.multiprocessors,
        compute_slices: profile.compute_slices,
        memory_slices: profile.placements.first()?.size,
        media: profile.media,
        max_instances: profile.instances,
        placements: profile.placements,
    })
}

/// `NVML_COMPUTE_INSTANCE_PROFILE_*` with so many slices: the numbers are those of `nvml.h`, the same for all GPUs.
fn compute_instance_profile(compute_slices: u32) -> Option<u32> {
    Some(match compute_slices {
        1 => raw::NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE,
        2 => raw::NVML_COMPUTE_INSTANCE_PROFILE_2_SLICE,
        3 => raw::NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE,
        4 => raw::NVML_COMPUTE_INSTANCE_PROFILE_4_SLICE,
        6 => raw::NVML_COMPUTE_INSTANCE_PROFILE_6_SLICE,
        7 => raw::NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE,
        8 => raw::NVML_COMPUTE_INSTANCE_PROFILE_8_SLICE,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU_BYTES: u64 = 81_559 << 20;

    /// `numbers`: enumerator, number, compute slices, memory slices, most instances, multiprocessors.
    fn told(numbers: [u32; 6], starts: &[u32], memory_mebibytes: u64) -> Told {
        let [
            enumerator,
            id,
            compute_slices,
            size,
            instances,
            multiprocessors,
        ] = numbers;
        let placement = |start: &u32| Placement {
            start: *start,
            size,
        };
        Told {
            enumerator,
            id,
            name: None,
            compute_slices,
            instances,
            multiprocessors,
            media: Media::default(),
            memory_mebibytes,
            placements: starts.iter().map(placement).collect(),
        }
    }

    /// An H100 of 80 GB, as it tells.
    fn h100() -> Vec<Told> {
        let all: &[u32] = &[0, 1, 2, 3, 4, 5, 6];
        vec![
            told([0, 19, 1, 1, 7, 16], all, 9_984),
            told([1, 14, 2, 2, 3, 32], &[0, 2, 4], 20_096),
            told([2, 9, 3, 4, 2, 60], &[0, 4], 40_448),
            told([3, 5, 4, 4, 1, 64], &[0], 40_448),
            told([4, 0, 7, 8, 1, 132], &[0], 81_152),
            told([7, 20, 1, 1, 1, 16], all, 9_984),
            told([9, 15, 1, 2, 4, 26], &[0, 2, 4, 6], 20_096),
        ]
    }

    #[test]
    fn what_adds_up_is_believed_ascending_and_with_a_name_each() {
        let (profiles, implausible) = believed(h100(), Some(GPU_BYTES));
        assert_eq!(implausible, Vec::<String>::new());
        let shown: Vec<_> = profiles
            .iter()
            .map(|profile| (profile.gpu_instance_profile, profile.name.as_str()))
            .collect();
        assert_eq!(
            shown,
            [
                (0, "7g.80gb"),
                (5, "4g.40gb"),
                (9, "3g.40gb"),
                (14, "2g.20gb"),
                (15, "1g.20gb"),
                (19, "1g.10gb"),
                (20, "1g.10gb+me"),
            ]
        );
        let by_name = |name| {
            profiles
                .iter()
                .find(|profile| profile.name == name)
                .unwrap()
        };
        assert_eq!(by_name("3g.40gb").compute_instance_profile, 2);
        assert_eq!(by_name("3g.40gb").memory_slices, 4);
        assert_eq!(by_name("3g.40gb").memory_bytes, 40_448 << 20);
        // Without the GPU's memory they are the same.
        assert_eq!(believed(h100(), None).0.len(), 7);
    }

    /// What spoils one profile, and what is said of it.
    type Spoil = (fn(&mut Told), &'static str);

    #[test]
    fn a_profile_that_cannot_be_is_left_out_and_said_and_the_others_stay() {
        let spoils: [Spoil; 17] = [
            (|told| told.id = u32::MAX, "no number"),
            (|told| told.id = 9, "another profile has its number"),
            (|told| told.compute_slices = 0, "0 compute slices"),
            (|told| told.compute_slices = 5, "5 compute slices"),
            (
                |told| told.compute_slices = u32::MAX,
                "4294967295 compute slices",
            ),
            (|told| told.multiprocessors = 0, "0 multiprocessors"),
            (|told| told.multiprocessors = u32::MAX, "more than 4096"),
            (|told| told.media.decoders = u32::MAX, "more than 4096"),
            (|told| told.memory_mebibytes = 0, "0 MiB"),
            (
                |told| told.memory_mebibytes = u64::MAX,
                "18446744073709551615 MiB",
            ),
            (|told| told.instances = 0, "0 instances"),
            (|told| told.instances = u32::MAX, "4294967295 instances"),
            (
                |told| told.instances = 8,
                "8 instances take 8 compute slices",
            ),
            (|told| told.placements.clear(), "nowhere"),
            (
                |told| told.placements.push(Placement { start: 6, size: 1 }),
                "told twice",
            ),
            (
                |told| told.placements.push(Placement { start: 8, size: 1 }),
                "it ends at memory slice 9, and the GPU has 8",
            ),
            (
                |told| {
                    told.placements.push(Placement {
                        start: u32::MAX,
                        size: 1,
                    });
                },
                "beyond memory slice 32",
            ),
        ];
        for (spoil, says) in spoils {
            let mut told = h100();
            // Last, so that what it repeats was there before.
            let mut changed = told.remove(0);
            spoil(&mut changed);
            told.push(changed);
            let (profiles, implausible) = believed(told, Some(GPU_BYTES));
            assert_eq!(profiles.len(), 6, "{says}");
            assert!(profiles.iter().all(|profile| profile.name != "1g.10gb"));
            let [said] = implausible.as_slice() else {
                panic!("{says}: {implausible:?}")
            };
            assert!(said.contains(says), "{said}");
        }
    }

    #[test]
    fn placements_have_one_size_and_some() {
        for size in [0, 2] {
            let mut told = h100();
            told[0].placements[3].size = size;
            let (_, implausible) = believed(told, None);
            assert!(implausible[0].contains("several sizes"), "{implausible:?}");
        }
    }

    #[test]
    fn nothing_told_is_nothing_believed() {
        assert_eq!(believed(Vec::new(), None), (Vec::new(), Vec::new()));
    }

    #[test]
    fn no_two_profiles_have_one_name_whatever_is_told() {
        let mut told = h100();
        for profile in &mut told {
            profile.name = Some("MIG 1g.10gb".to_owned());
        }
        // Another name, and the same as part of a device's.
        told[1].name = Some("1g1.0gb".to_owned());
        let (profiles, _) = believed(told, Some(GPU_BYTES));
        assert_eq!(profiles.len(), 7);
        let labels: BTreeSet<_> = profiles
            .iter()
            .map(|profile| profile_label(&profile.name))
            .collect();
        assert_eq!(labels.len(), 7, "{labels:?}");
        let first = profiles.iter().find(|profile| profile.name == "1g.10gb");
        assert_eq!(first.unwrap().gpu_instance_profile, 19);
    }
}
