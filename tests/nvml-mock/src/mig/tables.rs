//! The tables, with where each value is from.
//!
//! | table | profiles, ids, counts, placements | memory | multiprocessors | engines |
//! | --- | --- | --- | --- | --- |
//! | `a30` | `nvidia-smi mig -lgip` and `-lgipp` of a card (R535) | the same, and its memory usage | the same | the same |
//! | `a100-40gb` | `-lgip` and `-lgipp` of cards | `-lgip` of cards | the same | the same |
//! | `a100-80gb` | as A100 40 GB; names of mig-parted | the example of KEP-4815; **not seen on a card** | as A100 40 GB | as A100 40 GB |
//! | `h100-80gb` | a card (`recorded/`, driver 580.159.04) | the same | the same | the same |
//! | `h200` | a card (`recorded/`, driver 580.159.04) | the same | the same | the same |
//! | `b200` | names and counts of mig-parted; placements **assumed** as H100 (NVIDIA's guide has the same fractions) | **assumed** as eighths of 178 GiB; what go-nvml's mock has is rounded, and together more than the card has | multiples of go-nvml's 18, **not seen on a card** | copy engines of NVIDIA's guide; its decoders, but 7 for the whole (it prints 1, of which seven slices cannot each have one) |
//!
//! The drivers of one card differ by a few MiB: those who depend on a figure ask NVML.

use super::{Engines, Profile, Table};

/// All tables.
pub static TABLES: [Table; 6] = [A30, A100_40GB, A100_80GB, H100_80GB, H200, B200];

/// Enumerators and ids of the seven profiles that a GPU of seven compute slices has, with the places that they share.
struct Shape {
    enumerator: u32,
    id: u32,
    compute_slices: u32,
    memory_slices: u32,
    starts: &'static [u32],
    max_instances: u32,
}

const ONE: Shape = shape(0, 19, 1, 1, &[0, 1, 2, 3, 4, 5, 6], 7);
const ONE_MEDIA: Shape = shape(7, 20, 1, 1, &[0, 1, 2, 3, 4, 5, 6], 1);
const ONE_DOUBLE: Shape = shape(9, 15, 1, 2, &[0, 2, 4, 6], 4);
const TWO: Shape = shape(1, 14, 2, 2, &[0, 2, 4], 3);
const THREE: Shape = shape(2, 9, 3, 4, &[0, 4], 2);
const FOUR: Shape = shape(3, 5, 4, 4, &[0], 1);
const SEVEN: Shape = shape(4, 0, 7, 8, &[0], 1);

const fn shape(
    enumerator: u32,
    id: u32,
    compute_slices: u32,
    memory_slices: u32,
    starts: &'static [u32],
    max_instances: u32,
) -> Shape {
    Shape {
        enumerator,
        id,
        compute_slices,
        memory_slices,
        starts,
        max_instances,
    }
}

impl Shape {
    const fn of(
        self,
        name: &'static str,
        memory_mib: u64,
        multiprocessors: u32,
        engines: Engines,
    ) -> Profile {
        Profile {
            name,
            enumerator: self.enumerator,
            id: self.id,
            compute_slices: self.compute_slices,
            memory_slices: self.memory_slices,
            starts: self.starts,
            max_instances: self.max_instances,
            memory_mib,
            multiprocessors,
            engines,
        }
    }
}

const fn engines(copy: u32, decoders: u32, jpeg: u32, optical_flow: u32) -> Engines {
    Engines {
        copy,
        decoders,
        jpeg,
        optical_flow,
    }
}

const A30: Table = Table {
    name: "a30",
    memory_slices: 4,
    compute_slices: 4,
    multiprocessors: 56,
    engines: engines(4, 4, 1, 1),
    profiles: &[
        shape(0, 14, 1, 1, &[0, 1, 2, 3], 4).of("1g.6gb", 5_952, 14, engines(1, 1, 0, 0)),
        shape(7, 21, 1, 1, &[0, 1, 2, 3], 1).of("1g.6gb+me", 5_952, 14, engines(1, 1, 1, 1)),
        shape(1, 5, 2, 2, &[0, 2], 2).of("2g.12gb", 11_968, 28, engines(2, 2, 0, 0)),
        shape(8, 6, 2, 2, &[0, 2], 1).of("2g.12gb+me", 11_968, 28, engines(2, 2, 1, 1)),
        shape(3, 0, 4, 4, &[0], 1).of("4g.24gb", 24_000, 56, engines(4, 4, 1, 1)),
    ],
};

const A100_40GB: Table = Table {
    name: "a100-40gb",
    memory_slices: 8,
    compute_slices: 7,
    multiprocessors: 98,
    engines: engines(7, 5, 1, 1),
    profiles: &[
        ONE.of("1g.5gb", 4_864, 14, engines(1, 0, 0, 0)),
        ONE_MEDIA.of("1g.5gb+me", 4_864, 14, engines(1, 1, 1, 1)),
        ONE_DOUBLE.of("1g.10gb", 9_856, 14, engines(1, 1, 0, 0)),
        TWO.of("2g.10gb", 9_856, 28, engines(2, 1, 0, 0)),
        THREE.of("3g.20gb", 19_968, 42, engines(3, 2, 0, 0)),
        FOUR.of("4g.20gb", 19_968, 56, engines(4, 2, 0, 0)),
        SEVEN.of("7g.40gb", 40_192, 98, engines(7, 5, 1, 1)),
    ],
};

const A100_80GB: Table = Table {
    name: "a100-80gb",
    memory_slices: 8,
    compute_slices: 7,
    multiprocessors: 98,
    engines: engines(7, 5, 1, 1),
    profiles: &[
        // Another source lists a decoder for this one, of which seven cannot have one each.
        ONE.of("1g.10gb", 9_856, 14, engines(1, 0, 0, 0)),
        ONE_MEDIA.of("1g.10gb+me", 9_856, 14, engines(1, 1, 1, 1)),
        ONE_DOUBLE.of("1g.20gb", 19_968, 14, engines(1, 1, 0, 0)),
        TWO.of("2g.20gb", 19_968, 28, engines(2, 1, 0, 0)),
        THREE.of("3g.40gb", 40_192, 42, engines(3, 2, 0, 0)),
        FOUR.of("4g.40gb", 40_192, 56, engines(4, 2, 0, 0)),
        SEVEN.of("7g.80gb", 80_384, 98, engines(7, 5, 1, 1)),
    ],
};

const H100_80GB: Table = Table {
    name: "h100-80gb",
    memory_slices: 8,
    compute_slices: 7,
    multiprocessors: 132,
    engines: engines(8, 7, 7, 1),
    profiles: &[
        ONE.of("1g.10gb", 9_984, 16, engines(1, 1, 1, 0)),
        ONE_MEDIA.of("1g.10gb+me", 9_984, 16, engines(1, 1, 1, 1)),
        ONE_DOUBLE.of("1g.20gb", 20_096, 26, engines(1, 1, 1, 0)),
        TWO.of("2g.20gb", 20_096, 32, engines(2, 2, 2, 0)),
        THREE.of("3g.40gb", 40_448, 60, engines(3, 3, 3, 0)),
        FOUR.of("4g.40gb", 40_448, 64, engines(4, 4, 4, 0)),
        SEVEN.of("7g.80gb", 81_152, 132, engines(8, 7, 7, 1)),
    ],
};

const H200: Table = Table {
    name: "h200",
    memory_slices: 8,
    compute_slices: 7,
    multiprocessors: 132,
    engines: engines(8, 7, 7, 1),
    profiles: &[
        ONE.of("1g.18gb", 16_384, 16, engines(1, 1, 1, 0)),
        ONE_MEDIA.of("1g.18gb+me", 16_384, 16, engines(1, 1, 1, 1)),
        ONE_DOUBLE.of("1g.35gb", 33_280, 26, engines(1, 1, 1, 0)),
        TWO.of("2g.35gb", 33_280, 32, engines(2, 2, 2, 0)),
        THREE.of("3g.71gb", 71_424, 60, engines(3, 3, 3, 0)),
        FOUR.of("4g.71gb", 71_424, 64, engines(4, 4, 4, 0)),
        SEVEN.of("7g.141gb", 143_360, 132, engines(8, 7, 7, 1)),
    ],
};

const B200: Table = Table {
    name: "b200",
    memory_slices: 8,
    compute_slices: 7,
    multiprocessors: 126,
    engines: engines(16, 7, 7, 1),
    profiles: &[
        ONE.of("1g.23gb", 22_784, 18, engines(2, 1, 1, 0)),
        ONE_MEDIA.of("1g.23gb+me", 22_784, 18, engines(2, 1, 1, 1)),
        ONE_DOUBLE.of("1g.45gb", 45_568, 18, engines(2, 1, 1, 0)),
        TWO.of("2g.45gb", 45_568, 36, engines(3, 1, 1, 0)),
        THREE.of("3g.90gb", 91_136, 54, engines(6, 1, 1, 0)),
        FOUR.of("4g.90gb", 91_136, 72, engines(8, 1, 1, 0)),
        SEVEN.of("7g.180gb", 182_272, 126, engines(16, 7, 7, 1)),
    ],
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_table_is_sound() {
        for table in &TABLES {
            let ids: BTreeSet<u32> = table.profiles.iter().map(|profile| profile.id).collect();
            let enumerators: BTreeSet<u32> = table.profiles.iter().map(|p| p.enumerator).collect();
            assert_eq!(ids.len(), table.profiles.len(), "{}", table.name);
            assert_eq!(enumerators.len(), table.profiles.len(), "{}", table.name);
            for profile in table.profiles {
                let places = profile.placements().count();
                let most = usize::try_from(profile.max_instances).unwrap();
                assert!(most <= places, "{}", profile.name);
                let last = profile.placements().map(crate::Placement::end).max();
                assert!(last <= Some(table.memory_slices), "{}", profile.name);
                assert!(profile.compute_slices <= table.compute_slices);
                // The whole of a profile fits.
                assert!(profile.multiprocessors * profile.max_instances <= table.multiprocessors);
                assert!(profile.engines.copy * profile.max_instances <= table.engines.copy);
                assert!(profile.engines.decoders * profile.max_instances <= table.engines.decoders);
            }
        }
    }
}
