//! Names of profiles, as NVIDIA's tools write them.

use nvml_wrapper_sys::bindings as raw;

/// Longest name that is believed: with the rest of a device's name it stays below a DNS label's 63 characters.
const LONGEST: usize = 32;

/// The name that NVML gives a profile, if it is one. NVML may write `MIG` before it, as it does in the names of devices.
pub(super) fn told(name: &str) -> Option<String> {
    let lower = name.trim().to_ascii_lowercase();
    let name = lower.strip_prefix("mig ").unwrap_or(&lower).trim();
    let is_part = |character: char| {
        character.is_ascii_lowercase() || character.is_ascii_digit() || ".+-".contains(character)
    };
    let begins = name.starts_with(|character: char| character.is_ascii_digit());
    let ends = name.ends_with(|character: char| character.is_ascii_alphanumeric());
    let is_name = begins && ends && name.len() <= LONGEST && name.chars().all(is_part);
    is_name.then(|| name.to_owned())
}

/// The name that NVIDIA's tools make where NVML gives none: compute slices, gigabytes, and what its enumerator says of engines.
pub(super) fn made(
    enumerator: u32,
    compute_slices: u32,
    memory_mebibytes: u64,
    gpu_bytes: Option<u64>,
) -> String {
    let gigabytes = gigabytes(memory_mebibytes, gpu_bytes);
    format!("{compute_slices}g.{gigabytes}gb{}", engines(enumerator))
}

/// The GPU's whole gigabytes, rounded up, times the eighths of its memory that the slice has, rounded up: as NVIDIA's go-nvlib
/// does. So the slices of a GPU of 141 GB have 18, 35 and 71 GB though they have 16, 32.5 and 70 GiB.
fn gigabytes(memory_mebibytes: u64, gpu_bytes: Option<u64>) -> u64 {
    let Some(gpu_bytes) = gpu_bytes.filter(|bytes| *bytes > 0) else {
        return memory_mebibytes.div_ceil(1 << 10);
    };
    let (memory, gpu_bytes) = (u128::from(memory_mebibytes) << 20, u128::from(gpu_bytes));
    let eighths = (memory * 8).div_ceil(gpu_bytes);
    let whole = gpu_bytes.div_ceil(1 << 30);
    // Half a gigabyte is one more.
    u64::try_from((eighths * whole * 2 + 8) / 16).unwrap_or(u64::MAX)
}

/// What the enumerators of `nvml.h` mean by their names.
fn engines(enumerator: u32) -> &'static str {
    match enumerator {
        raw::NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1
        | raw::NVML_GPU_INSTANCE_PROFILE_2_SLICE_REV1 => "+me",
        raw::NVML_GPU_INSTANCE_PROFILE_1_SLICE_GFX
        | raw::NVML_GPU_INSTANCE_PROFILE_2_SLICE_GFX
        | raw::NVML_GPU_INSTANCE_PROFILE_4_SLICE_GFX => "+gfx",
        raw::NVML_GPU_INSTANCE_PROFILE_1_SLICE_NO_ME
        | raw::NVML_GPU_INSTANCE_PROFILE_2_SLICE_NO_ME => "-me",
        raw::NVML_GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME
        | raw::NVML_GPU_INSTANCE_PROFILE_2_SLICE_ALL_ME => "+me.all",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_nvml_gives_are_taken_and_what_is_none_is_not() {
        for (name, expected) in [
            ("1g.10gb", Some("1g.10gb")),
            ("MIG 1g.10gb+me", Some("1g.10gb+me")),
            ("1g.24gb+me.all", Some("1g.24gb+me.all")),
            ("1g.24gb-me", Some("1g.24gb-me")),
            ("", None),
            ("MIG ", None),
            ("1g.10gb+", None),
            ("g.10gb", None),
            ("1g 10gb", None),
            ("1g.10gb/../..", None),
            ("1g.111111111111111111111111111111", None),
        ] {
            assert_eq!(told(name).as_deref(), expected, "{name:?}");
        }
    }

    /// Memory of GPUs and slices as in `nvidia-smi`, and the names that it and mig-parted give them.
    #[test]
    fn names_are_made_as_nvidia_makes_them() {
        for (gpu_mebibytes, slices) in [
            (
                24_258_u64,
                vec![
                    (0, 1, 5_836, "1g.6gb"),
                    (7, 1, 5_836, "1g.6gb+me"),
                    (3, 4, 23_344, "4g.24gb"),
                ],
            ),
            (
                40_960,
                vec![
                    (0, 1, 4_864, "1g.5gb"),
                    (9, 1, 9_856, "1g.10gb"),
                    (2, 3, 19_968, "3g.20gb"),
                    (4, 7, 40_192, "7g.40gb"),
                ],
            ),
            (
                81_559,
                vec![
                    (0, 1, 9_984, "1g.10gb"),
                    (9, 1, 20_096, "1g.20gb"),
                    (3, 4, 40_448, "4g.40gb"),
                    (4, 7, 81_152, "7g.80gb"),
                ],
            ),
            (
                95_830,
                vec![
                    (0, 1, 11_008, "1g.12gb"),
                    (1, 2, 22_528, "2g.24gb"),
                    (2, 3, 46_080, "3g.47gb"),
                    (4, 7, 93_184, "7g.94gb"),
                ],
            ),
            (
                143_771,
                vec![
                    (0, 1, 16_384, "1g.18gb"),
                    (1, 2, 33_280, "2g.35gb"),
                    (2, 3, 71_168, "3g.71gb"),
                    (4, 7, 143_360, "7g.141gb"),
                ],
            ),
            (
                97_887,
                vec![
                    (10, 1, 24_192, "1g.24gb+gfx"),
                    (13, 1, 24_192, "1g.24gb-me"),
                    (15, 1, 24_192, "1g.24gb+me.all"),
                ],
            ),
        ] {
            for (enumerator, compute_slices, memory, name) in slices {
                let gpu_bytes = Some(gpu_mebibytes << 20);
                assert_eq!(made(enumerator, compute_slices, memory, gpu_bytes), name);
            }
        }
        assert_eq!(made(0, 1, 9_984, None), "1g.10gb");
        assert_eq!(made(0, 1, u64::MAX, Some(1)), format!("1g.{}gb", u64::MAX));
    }
}
