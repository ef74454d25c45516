//! MIG: a GPU cut into slices, each with compute and memory of its own.
//!
//! A slice is a GPU instance, which has memory, with a compute instance that has all of its compute. What can be cut comes from
//! NVML, never from a table. Who a slice is is where it lies: (UUID of the GPU, placement). The driver gives
//! the number of a GPU instance away again as soon as that is destroyed, so a number says nothing without the placement.

mod names;
mod profiles;

use serde::{Deserialize, Serialize};

pub(crate) use self::profiles::{Told, believed};

/// What a GPU can be cut into, and whether it is being cut.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MigFacts {
    /// Whether the mode is on: the GPU is usable by slices only.
    pub current: bool,
    /// Whether it will be on after the next reset of the GPU. Another than `current`: a reset is due.
    pub pending: bool,
    /// What it can be cut into, by [`MigProfile::gpu_instance_profile`]. Empty where the driver tells only while the mode is on.
    pub profiles: Vec<MigProfile>,
    /// What NVML said of profiles that cannot be, a sentence for each. They are not among `profiles`.
    pub implausible: Vec<String>,
}

/// A kind of slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MigProfile {
    /// NVIDIA's name, e.g. `1g.10gb` or `1g.10gb+me`; no other profile of the GPU has it.
    pub name: String,
    /// NVML's number for it: what instances are created and listed by (`id` of the profile's info, e.g. 19).
    pub gpu_instance_profile: u32,
    /// `NVML_COMPUTE_INSTANCE_PROFILE_*` of the compute instance that has all of it.
    pub compute_instance_profile: u32,
    /// Memory of such a slice.
    pub memory_bytes: u64,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Compute slices of the GPU that it takes.
    pub compute_slices: u32,
    /// Memory slices of the GPU that it takes: the size of each placement.
    pub memory_slices: u32,
    /// Engines for video and copies.
    pub media: Media,
    /// Most of them at a time.
    pub max_instances: u32,
    /// Where one may lie, ascending; never empty.
    pub placements: Vec<Placement>,
}

/// Engines beside the multiprocessors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Media {
    /// Copy engines.
    pub copy_engines: u32,
    /// Video decoders.
    pub decoders: u32,
    /// Video encoders.
    pub encoders: u32,
    /// JPEG engines.
    pub jpeg_engines: u32,
    /// Optical flow accelerators.
    pub ofa_engines: u32,
}

/// Memory slices of a GPU, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Placement {
    /// The first one.
    pub start: u32,
    /// How many.
    pub size: u32,
}

/// A slice that exists: a GPU instance with its compute instance.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MigInstance {
    /// Where it lies: with the UUID of the GPU, who it is.
    pub placement: Placement,
    /// Number of the GPU instance. Given away again once it is destroyed.
    pub gpu_instance: u32,
    /// Number of its compute instance; the lowest, if somebody made several.
    pub compute_instance: Option<u32>,
    /// Whether somebody made several compute instances in it, or one that has not all of it. It is not one slice then.
    pub is_divided: bool,
    /// Number of the profile of its GPU instance ([`MigProfile::gpu_instance_profile`]).
    pub profile: u32,
    /// UUID of the slice (`MIG-…`), where it has a compute instance and NVML tells.
    pub uuid: Option<String>,
}

/// What became of a change of the mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigModeAfter {
    /// Whether the mode is on.
    pub current: bool,
    /// Whether it will be on after the next reset of the GPU.
    pub pending: bool,
}

impl Placement {
    /// The first memory slice after it.
    pub fn end(self) -> u32 {
        self.start.saturating_add(self.size)
    }

    /// Whether both take a memory slice.
    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.end() && other.start < self.end()
    }
}

impl MigFacts {
    /// Memory slices of the GPU: where the placement ends that reaches farthest. 0 if no profile is known.
    pub fn memory_slices(&self) -> u32 {
        let placements = self.profiles.iter().flat_map(|profile| &profile.placements);
        placements
            .map(|placement| placement.end())
            .max()
            .unwrap_or(0)
    }

    /// Compute slices of the GPU: those of the profile with most. 0 if no profile is known.
    pub fn compute_slices(&self) -> u32 {
        let counts = self.profiles.iter().map(|profile| profile.compute_slices);
        counts.max().unwrap_or(0)
    }

    /// The profile of this name.
    pub fn profile(&self, name: &str) -> Option<&MigProfile> {
        self.profiles.iter().find(|profile| profile.name == name)
    }
}
