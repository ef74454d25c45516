//! MIG as the hardware has it: which slices a GPU can be cut into, and what becomes of it when it is.
//!
//! Nothing in this module knows the C functions or the file: it is what tests may compare Muster with.

mod mode;
mod packing;
mod tables;

pub use self::{
    mode::{Activation, Reset, set_mode},
    packing::{
        Refusal, create_compute_instance, create_gpu_instance, destroy_compute_instance,
        destroy_gpu_instance, free_compute_placements, free_placements, remaining,
        remaining_compute,
    },
    tables::TABLES,
};

use crate::state::Placement;

/// Most GPU instances that a GPU numbers: ids 0 to 14.
pub const MOST_GPU_INSTANCES: u32 = 15;
/// Most compute instances that a GPU instance numbers: ids 0 to 7.
pub const MOST_COMPUTE_INSTANCES: u32 = 8;

/// What GPUs of one product can be cut into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// Name, which boards refer to.
    pub name: &'static str,
    /// Positions on the axis of memory slices.
    pub memory_slices: u32,
    /// Compute slices.
    pub compute_slices: u32,
    /// Multiprocessors that slices may have together.
    pub multiprocessors: u32,
    /// Engines that slices may have together.
    pub engines: Engines,
    /// The profiles of GPU instances, in the order in which `nvidia-smi` lists them.
    pub profiles: &'static [Profile],
}

/// A kind of GPU instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// `1g.10gb+me`, without the word `MIG` that NVML puts before it.
    pub name: &'static str,
    /// `NVML_GPU_INSTANCE_PROFILE_*`: what one asks for it by.
    pub enumerator: u32,
    /// Its own number: what one makes an instance of it by.
    pub id: u32,
    /// Compute slices, which is also the number of GPU slices.
    pub compute_slices: u32,
    /// Memory slices.
    pub memory_slices: u32,
    /// First memory slices that it may have.
    pub starts: &'static [u32],
    /// Most instances of it at one time.
    pub max_instances: u32,
    /// Memory, in MiB.
    pub memory_mib: u64,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Engines.
    pub engines: Engines,
}

/// Engines beside the multiprocessors. No GPU that can be cut has encoders, but for those with displays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Engines {
    /// Copy engines.
    pub copy: u32,
    /// Video decoders.
    pub decoders: u32,
    /// JPEG decoders.
    pub jpeg: u32,
    /// Optical flow accelerators.
    pub optical_flow: u32,
}

/// A kind of compute instance. Its own number is its enumerator, as in the output of `nvidia-smi mig -lcip`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputeProfile {
    /// `NVML_COMPUTE_INSTANCE_PROFILE_*`, and `id`.
    pub id: u32,
    /// Compute slices.
    pub slices: u32,
}

/// The kinds of compute instances; those with as many slices as the GPU instance, or fewer, exist in it. `1_SLICE_REV1` is not among
/// them: which GPU instances have it is not known.
const COMPUTE_PROFILES: [ComputeProfile; 5] = [
    ComputeProfile { id: 0, slices: 1 },
    ComputeProfile { id: 1, slices: 2 },
    ComputeProfile { id: 2, slices: 3 },
    ComputeProfile { id: 3, slices: 4 },
    ComputeProfile { id: 4, slices: 7 },
];

impl Table {
    /// The table of that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        TABLES.iter().find(|table| table.name == name)
    }

    /// The profile with this number.
    pub fn profile(&self, id: u32) -> Option<&'static Profile> {
        self.profiles.iter().find(|profile| profile.id == id)
    }

    /// The profile with this enumerator.
    pub fn enumerated(&self, enumerator: u32) -> Option<&'static Profile> {
        let mut profiles = self.profiles.iter();
        profiles.find(|profile| profile.enumerator == enumerator)
    }

    /// Most MIG devices at one time: one per compute slice.
    pub fn most_devices(&self) -> u32 {
        self.compute_slices
    }

    /// Id of a GPU instance with these memory slices. Hardware numbers the places and not the instances: the whole GPU is 0, its
    /// halves 1 and 2, its quarters 3 to 6, its eighths 7 to 14. So an id comes back as soon as its place is taken again, also by
    /// another profile of the same size. (Seen in published outputs of `nvidia-smi mig -lgi`: on A100 `3g.20gb` at 4:4 is 2,
    /// `2g.10gb` at 4:2 is 5, `1g.5gb` at 6:1 is 13; on A30 `1g.6gb` at 0:1 is 3, `2g.12gb` at 2:2 is 2.)
    pub fn gpu_instance_id(&self, placement: Placement) -> u32 {
        let size = placement.size.max(1);
        (self.memory_slices / size).saturating_sub(1) + placement.start / size
    }
}

impl Profile {
    /// Where it may be.
    pub fn placements(&self) -> impl Iterator<Item = Placement> + use<> {
        let size = self.memory_slices;
        self.starts.iter().map(move |start| Placement {
            start: *start,
            size,
        })
    }

    /// Memory, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_mib << 20
    }

    /// The kinds of compute instances that it may have.
    pub fn compute_profiles(&self) -> impl Iterator<Item = ComputeProfile> + use<> {
        let slices = self.compute_slices;
        // A slice of four has no part of three: `4g.20gb` lists 1c, 2c and 4c.
        let exists = move |profile: &ComputeProfile| {
            profile.slices <= slices && (slices != 4 || profile.slices != 3)
        };
        COMPUTE_PROFILES.into_iter().filter(exists)
    }

    /// The kind of compute instance with this number.
    pub fn compute_profile(&self, id: u32) -> Option<ComputeProfile> {
        self.compute_profiles().find(|profile| profile.id == id)
    }

    /// Multiprocessors of a compute instance of so many slices: all that the GPU instance has for all of its slices.
    pub fn multiprocessors_of(&self, slices: u32) -> u32 {
        if slices == self.compute_slices {
            self.multiprocessors
        } else {
            self.multiprocessors / self.compute_slices.max(1) * slices
        }
    }

    /// NVML's name of it.
    pub fn nvml_name(&self) -> String {
        format!("MIG {}", self.name)
    }

    /// NVML's name of a compute instance of so many slices.
    pub fn nvml_compute_name(&self, slices: u32) -> String {
        if slices == self.compute_slices {
            self.nvml_name()
        } else {
            format!("MIG {slices}c.{}", self.name)
        }
    }
}

impl ComputeProfile {
    /// Where it may be in a GPU instance of so many slices: at multiples of the power of two that is not smaller than it.
    pub fn placements(self, slices: u32) -> Vec<Placement> {
        let size = self.slices;
        let step = usize::try_from(size.next_power_of_two()).unwrap_or(usize::MAX);
        (0..slices)
            .step_by(step)
            .map(|start| Placement { start, size })
            .filter(|placement| placement.end() <= slices)
            .collect()
    }
}

/// Minor number of a capability under `nvidia-caps`: of the GPU instance, or of a compute instance in it. As in published lists
/// (`gpu0/gi0/access 3`, `gpu31/gi14/ci7/access 4322`); `gpu` is the minor number of the GPU.
pub fn capability_minor(gpu: u32, gpu_instance: u32, compute_instance: Option<u32>) -> u32 {
    let per_instance = 1 + MOST_COMPUTE_INSTANCES;
    let before = (gpu * MOST_GPU_INSTANCES + gpu_instance) * per_instance;
    3 + before + compute_instance.map_or(0, |instance| 1 + instance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_gpu_instances_are_those_of_published_outputs() {
        let a100 = Table::named("a100-40gb").unwrap();
        let a30 = Table::named("a30").unwrap();
        for (table, start, size, id) in [
            (a100, 0, 8, 0),
            (a100, 0, 4, 1),
            (a100, 4, 4, 2),
            (a100, 4, 2, 5),
            (a100, 6, 2, 6),
            (a100, 0, 1, 7),
            (a100, 6, 1, 13),
            (a30, 0, 4, 0),
            (a30, 2, 2, 2),
            (a30, 0, 1, 3),
            (a30, 3, 1, 6),
        ] {
            let placement = Placement { start, size };
            assert_eq!(table.gpu_instance_id(placement), id, "{placement:?}");
        }
    }

    #[test]
    fn capability_minors_are_those_of_published_lists() {
        for (gpu, gpu_instance, compute_instance, minor) in [
            (0, 0, None, 3),
            (0, 0, Some(0), 4),
            (0, 0, Some(2), 6),
            (31, 14, Some(6), 4321),
            (31, 14, Some(7), 4322),
        ] {
            assert_eq!(capability_minor(gpu, gpu_instance, compute_instance), minor);
        }
    }

    #[test]
    fn compute_instances_lie_within_their_gpu_instance() {
        let starts = |id: usize, slices: u32| -> Vec<u32> {
            let places = COMPUTE_PROFILES[id].placements(slices);
            places.iter().map(|place| place.start).collect()
        };
        assert_eq!(starts(0, 3), [0, 1, 2]);
        assert_eq!(starts(1, 3), [0]);
        assert_eq!(starts(1, 7), [0, 2, 4]);
        assert_eq!(starts(2, 7), [0, 4]);
        assert_eq!(starts(4, 7), [0]);
    }

    #[test]
    fn a_gpu_instance_of_four_has_no_part_of_three() {
        let table = Table::named("h100-80gb").unwrap();
        let parts = |id: u32| -> Vec<u32> {
            let profile = table.profile(id).unwrap();
            profile.compute_profiles().map(|part| part.slices).collect()
        };
        assert_eq!(parts(5), [1, 2, 4]);
        assert_eq!(parts(9), [1, 2, 3]);
        assert_eq!(parts(0), [1, 2, 3, 4, 7]);
    }
}
