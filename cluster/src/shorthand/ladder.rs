//! Sizes of memory, and the order in which kube-scheduler is to look for them.
//!
//! kube-scheduler takes the first device that meets a request, however large it is; but it goes through the alternatives of a
//! request (`firstAvailable`) one after the other, each over all devices of the node. So a shorthand for an amount of memory is a
//! **ladder**: each **rung** is a window of memory, and takes what is smaller than all that the next rung takes.
//!
//! **The rungs follow from the amount alone**, never from the devices that there are: a template is named by its content, and cannot be
//! changed ([ADR 8](../../../docs/adr/0008-a-shorthand-is-a-template-named-by-its-content.md)). So they are multiples of the amount. Of the
//! slices that a GPU can be cut into, each size has at least twice the memory of the next smaller one (memory comes in whole memory slices, 1,
//! 2, 4 or 8 of them, and each instance loses some to itself), and no window is as wide as that: two sizes of one GPU never stand on
//! one rung, but for the last.

/// From which part of what is asked for a device counts as having it, in hundredths. Memory is meant as it is sold: of "40 GB" a
/// `3g.40gb` slice of an H100 leaves 39.5 GiB to programs, of "10 GB" a `1g.10gb` of an A100 96 %, of "80 GB" an H100 has 79.6 GiB.
pub const NOMINAL_PERCENT: i64 = 93;

/// Where rungs end, in hundredths of the least memory. Close steps first, for whole GPUs of many sizes; none is wider than 1.9 to 1.
const RUNG_ENDS_PERCENT: [i64; 7] = [125, 175, 300, 550, 1_000, 1_900, 3_600];

/// A rung that would end beyond this has no end, and is the last. No device has so much (the largest of 2026 have 288 GiB), so what
/// follows would tell nothing apart.
const LARGEST_END_BYTES: i64 = 512 << 30;

/// Memory of a device: from `least_bytes`, and below `end_bytes` if there is an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rung {
    pub(super) least_bytes: i64,
    pub(super) end_bytes: Option<i64>,
}

/// What a device must have at the least to count as one of `bytes`, in bytes, rounded up.
pub(super) fn least_bytes(bytes: i64) -> i64 {
    percent_of(bytes, NOMINAL_PERCENT)
}

/// The ladder for devices of at least so much: ascending, each rung beginning where the one before ends, the last without an end. At
/// most eight, which is what Kubernetes takes (`FirstAvailableDeviceRequestMaxSize`).
pub(super) fn rungs(least_bytes: i64) -> Vec<Rung> {
    let mut rungs = Vec::with_capacity(RUNG_ENDS_PERCENT.len() + 1);
    let mut begin = least_bytes;
    for percent in RUNG_ENDS_PERCENT {
        let end = percent_of(least_bytes, percent);
        if end > LARGEST_END_BYTES {
            break;
        }
        rungs.push(Rung {
            least_bytes: begin,
            end_bytes: Some(end),
        });
        begin = end;
    }
    rungs.push(Rung {
        least_bytes: begin,
        end_bytes: None,
    });
    rungs
}

/// Rounded up; what cannot be counted is all that can.
fn percent_of(bytes: i64, percent: i64) -> i64 {
    let hundredths = i128::from(bytes) * i128::from(percent);
    // Of amounts that are not negative, rounded up.
    let whole = (hundredths + 99) / 100;
    i64::try_from(whole).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: i64 = 1 << 20;
    const GIB: i64 = 1 << 30;

    /// What NVML says of GPUs and their slices: the sizes of one GPU in MiB, ascending, each with the amount in GiB under which it is
    /// sold; a slice of all memory and the whole GPU stand as one. `docs` of NVIDIA, and `nvidia-smi mig -lgip`.
    const SIZES: [(&str, &[(i64, i64)]); 6] = [
        ("A30", &[(5_836, 6), (11_672, 12), (23_344, 24)]),
        (
            "A100-40",
            &[(4_864, 5), (9_856, 10), (19_968, 20), (40_192, 40)],
        ),
        (
            "A100-80",
            &[(9_856, 10), (19_968, 20), (40_192, 40), (80_384, 80)],
        ),
        (
            "H100-80",
            &[(9_984, 10), (20_090, 20), (40_448, 40), (81_152, 80)],
        ),
        (
            "H200",
            &[(16_384, 16), (33_280, 33), (71_680, 71), (143_360, 141)],
        ),
        (
            "B200",
            &[(23_552, 23), (46_080, 45), (92_160, 90), (184_320, 180)],
        ),
    ];

    fn rung_of(rungs: &[Rung], bytes: i64) -> Option<usize> {
        rungs.iter().position(|rung| {
            bytes >= rung.least_bytes && rung.end_bytes.is_none_or(|end| bytes < end)
        })
    }

    #[test]
    fn the_size_under_which_a_device_is_sold_is_met_by_it() {
        for (product, sizes) in SIZES {
            for (mebibytes, sold_as) in sizes {
                let least = least_bytes(sold_as * GIB);
                assert!(mebibytes * MIB >= least, "{product}: {sold_as}Gi");
            }
        }
    }

    #[test]
    fn the_smallest_slice_that_fits_stands_alone_on_the_first_rung_that_has_any() {
        for (product, sizes) in SIZES {
            for asked in 1..=180 {
                let rungs = rungs(least_bytes(asked * GIB));
                let taken: Vec<Option<usize>> = sizes
                    .iter()
                    .map(|(mebibytes, _)| rung_of(&rungs, mebibytes * MIB))
                    .collect();
                let fitting: Vec<usize> = taken.iter().copied().flatten().collect();
                // What does not fit is smaller than what does, and a larger device never stands lower.
                assert!(fitting.is_sorted(), "{product}, {asked}Gi: {taken:?}");
                assert_eq!(
                    taken
                        .iter()
                        .rposition(Option::is_none)
                        .map_or(0, |last| last + 1),
                    sizes.len() - fitting.len()
                );
                // From 5Gi on all sizes of a GPU are told apart; below, those that are 36 times as large as what is asked for are not.
                let ladder: Vec<usize> = fitting
                    .iter()
                    .copied()
                    .filter(|at| at + 1 < rungs.len() || asked >= 5)
                    .collect();
                let mut distinct = ladder.clone();
                distinct.dedup();
                assert_eq!(distinct, ladder, "{product}, {asked}Gi");
            }
        }
    }

    #[test]
    fn a_ladder_ends_where_no_device_reaches() {
        for (asked, expected) in [
            (1, 8),
            (10, 8),
            (16, 7),
            (40, 6),
            (80, 5),
            (180, 4),
            (700, 1),
        ] {
            let found = rungs(least_bytes(asked * GIB)).len();
            assert_eq!(found, expected, "{asked}Gi");
        }
    }

    proptest! {
        /// Whatever is asked for: no more rungs than Kubernetes takes, without a gap, each with something in it, and none so wide that
        /// two sizes of one GPU stand on it, but for the last.
        #[test]
        fn rungs_follow_each_other_and_are_narrow(asked in (1_i64 << 20)..=i64::MAX) {
            let least = least_bytes(asked);
            prop_assert!(least <= asked && least > 0);
            let rungs = rungs(least);
            prop_assert!((1..=8).contains(&rungs.len()));
            prop_assert_eq!(rungs[0].least_bytes, least);
            prop_assert_eq!(rungs.iter().filter(|rung| rung.end_bytes.is_none()).count(), 1);
            for pair in rungs.windows(2) {
                let end = pair[0].end_bytes.unwrap();
                prop_assert_eq!(end, pair[1].least_bytes);
                prop_assert!(end > pair[0].least_bytes);
                prop_assert!(i128::from(end) * 100 <= i128::from(pair[0].least_bytes) * 191, "{:?}", pair[0]);
            }
        }
    }
}
