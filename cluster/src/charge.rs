//! What a device is charged as, in thousandths of a GPU.
//!
//! **Invariant: one function says it**, before the device is allocated and afterwards, of a gang that waits and of one that is adopted:
//! a device carries its charge ([`muster_engine::Device::gpus`]), and whoever charges adds up what the devices carry.

use k8s_openapi::api::resource::v1::Device;
use muster_api::keys;
use muster_engine::Amount;

use crate::devices::attribute;

/// Slices of the GPUs that NVIDIA partitions into seven parts (A100, H100, H200, B200 and their kin).
const OF_SEVENTHS: Slices = Slices {
    compute: 7,
    memory: 8,
};

/// Parts of a GPU that can be partitioned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slices {
    /// Compute slices.
    pub(crate) compute: i64,
    /// Memory slices.
    pub(crate) memory: i64,
}

impl Slices {
    /// Which part of a whole they are: the larger of the shares of compute slices and of memory slices, rounded down, so that seven
    /// sevenths are one GPU. What the whole has none of does not count; `None`: they are no part at all, or of nothing.
    pub(crate) fn share_of(self, whole: Self) -> Option<Amount> {
        let share = |part: i64, of: i64| {
            let thousandths = part.checked_mul(Amount::ONE_GPU.0)?.checked_div(of)?;
            (thousandths > 0).then_some(Amount(thousandths))
        };
        let compute = share(self.compute, whole.compute);
        compute.max(share(self.memory, whole.memory))
    }
}

/// What a device is charged as that draws from no counters, or whose counters do not say: a whole GPU, but for a slice of our driver that
/// is there for good (made by an administrator). It says of how many slices it consists, and of how many its GPU, which is seven and eight
/// where it does not say.
pub(crate) fn by_attributes(driver: &str, device: &Device) -> Amount {
    let number = |name: &str| attribute(driver, device, name)?.int;
    let kind = attribute(driver, device, "type").and_then(|kind| kind.string.as_deref());
    if driver != keys::DRIVER || kind != Some("mig") {
        return Amount::ONE_GPU;
    }
    let slices = |compute: &str, memory: &str| Slices {
        compute: number(compute).unwrap_or_default(),
        memory: number(memory).unwrap_or_default(),
    };
    let own = slices("computeSlices", "memorySlices");
    let mut whole = slices("parentComputeSlices", "parentMemorySlices");
    if whole.compute <= 0 || whole.memory <= 0 {
        whole = OF_SEVENTHS;
    }
    own.share_of(whole)
        .map_or(Amount::ONE_GPU, |share| share.min(Amount::ONE_GPU))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_slice_is_charged_the_larger_of_its_shares_rounded_down() {
        let seven = Slices {
            compute: 7,
            memory: 8,
        };
        let four = Slices {
            compute: 4,
            memory: 4,
        };
        for (profile, whole, compute, memory, charged) in [
            ("1g.10gb", seven, 1, 1, Some(142)),
            ("1g.20gb", seven, 1, 2, Some(250)),
            ("2g.20gb", seven, 2, 2, Some(285)),
            ("3g.40gb", seven, 3, 4, Some(500)),
            ("4g.40gb", seven, 4, 4, Some(571)),
            ("7g.80gb", seven, 7, 8, Some(1000)),
            ("the whole", seven, 7, 8, Some(1000)),
            ("1g.6gb", four, 1, 1, Some(250)),
            ("4g.24gb", four, 4, 4, Some(1000)),
            (
                "by memory alone",
                Slices {
                    compute: 0,
                    ..seven
                },
                1,
                1,
                Some(125),
            ),
            ("nothing", seven, 0, 0, None),
            ("of nothing", Slices::default(), 1, 1, None),
            ("more than can be counted", seven, i64::MAX, 0, None),
        ] {
            let share = Slices { compute, memory }.share_of(whole);
            assert_eq!(share, charged.map(Amount), "{profile}");
        }
    }

    /// A profile: compute slices, memory slices, and the memory slices at which it may begin.
    type Profile = (i64, i64, &'static [i64]);

    /// The charges of all ways to cut a GPU into slices of these profiles, with the numbers of the profiles.
    fn cuts(whole: Slices, profiles: &[Profile]) -> Vec<(Vec<usize>, i64)> {
        let mut found = Vec::new();
        let mut begun: Vec<(Vec<usize>, Vec<i64>, i64, i64)> = vec![(vec![], vec![], 0, 0)];
        while let Some((chosen, taken, compute, charge)) = begun.pop() {
            for (at, (own, memory, starts)) in profiles.iter().enumerate() {
                // In order, so that few ways come up twice.
                if chosen.last().is_some_and(|last| at < *last) || compute + own > whole.compute {
                    continue;
                }
                for start in *starts {
                    let lies: Vec<i64> = (*start..start + memory).collect();
                    if lies.iter().any(|slice| taken.contains(slice)) {
                        continue;
                    }
                    let slices = Slices {
                        compute: *own,
                        memory: *memory,
                    };
                    let share = slices.share_of(whole).unwrap();
                    let chosen = [chosen.clone(), vec![at]].concat();
                    let taken = [taken.clone(), lies].concat();
                    begun.push((chosen, taken, compute + own, charge + share.0));
                }
            }
            found.push((chosen, charge));
        }
        found
    }

    #[test]
    fn slices_of_one_size_are_never_more_than_their_gpu_and_of_several_sizes_a_tenth_at_most() {
        let h100: [Profile; 6] = [
            (1, 1, &[0, 1, 2, 3, 4, 5, 6]),
            (1, 2, &[0, 2, 4, 6]),
            (2, 2, &[0, 2, 4]),
            (3, 4, &[0, 4]),
            (4, 4, &[0]),
            (7, 8, &[0]),
        ];
        let a30: [Profile; 3] = [(1, 1, &[0, 1, 2, 3]), (2, 2, &[0, 2]), (4, 4, &[0])];
        let in_four = Slices {
            compute: 4,
            memory: 4,
        };
        for (what, whole, profiles, most) in [
            ("H100", OF_SEVENTHS, &h100[..], 1106),
            ("A30", in_four, &a30[..], 1000),
        ] {
            let cuts = cuts(whole, profiles);
            let largest = cuts.iter().map(|(_, charge)| *charge).max();
            assert_eq!(largest, Some(most), "{what}");
            for (chosen, charge) in cuts {
                let is_even = chosen.iter().all(|at| Some(at) == chosen.first());
                assert!(!is_even || charge <= 1000, "{what} {chosen:?}: {charge}");
            }
        }
    }

    #[test]
    fn what_draws_from_no_counters_is_a_whole_gpu_unless_our_driver_says_that_it_is_a_slice() {
        let slice = |compute: i64, memory: i64| json!({"type": {"string": "mig"}, "computeSlices": {"int": compute}, "memorySlices": {"int": memory}});
        let mut of_a30 = slice(1, 1);
        of_a30["parentComputeSlices"] = json!({"int": 4});
        of_a30["parentMemorySlices"] = json!({"int": 4});
        for (what, driver, attributes, charged) in [
            (
                "a GPU",
                keys::DRIVER,
                json!({"type": {"string": "gpu"}}),
                1000,
            ),
            ("a GPU that says nothing", keys::DRIVER, json!({}), 1000),
            ("a slice", keys::DRIVER, slice(1, 1), 142),
            ("a slice of a GPU in four", keys::DRIVER, of_a30, 250),
            (
                "a slice that says nothing",
                keys::DRIVER,
                json!({"type": {"string": "mig"}}),
                1000,
            ),
            ("an odd slice", keys::DRIVER, slice(-1, -1), 1000),
            (
                "a slice larger than a GPU",
                keys::DRIVER,
                slice(70, 80),
                1000,
            ),
            (
                "a slice of another driver",
                "gpu.example.com",
                slice(1, 1),
                1000,
            ),
        ] {
            let device: Device =
                serde_json::from_value(json!({"name": "d", "attributes": attributes})).unwrap();
            assert_eq!(by_attributes(driver, &device), Amount(charged), "{what}");
        }
    }
}
