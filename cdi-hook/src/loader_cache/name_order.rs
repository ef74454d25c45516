//! The order of names in the cache. The loader finds a name by halving, so it must be glibc's (`_dl_cache_libcmp`):
//! bytes, but for numbers, which count as such and stand after all other bytes. The cache begins with the greatest name.

use std::cmp::Ordering;

/// Compares two names as glibc does. Digits that do not fit glibc's `int` wrap there; nobody names a library so, and here
/// they saturate.
pub(super) fn compare(one: &[u8], other: &[u8]) -> Ordering {
    let (mut one, mut other) = (one, other);
    loop {
        match (one, other) {
            ([], []) => return Ordering::Equal,
            ([], _) => return Ordering::Less,
            (_, []) => return Ordering::Greater,
            ([a, ..], [b, ..]) if a.is_ascii_digit() && b.is_ascii_digit() => {
                match number(&mut one).cmp(&number(&mut other)) {
                    Ordering::Equal => {}
                    unequal => return unequal,
                }
            }
            ([a, ..], _) if a.is_ascii_digit() => return Ordering::Greater,
            (_, [b, ..]) if b.is_ascii_digit() => return Ordering::Less,
            ([a, one_rest @ ..], [b, other_rest @ ..]) => {
                if a != b {
                    // As `char`, which is signed on x86 and unsigned on Arm: equal for ASCII.
                    return a.cmp(b);
                }
                (one, other) = (one_rest, other_rest);
            }
        }
    }
}

/// Takes the digits at the beginning.
fn number(text: &mut &[u8]) -> u32 {
    let mut value = 0_u32;
    while let [digit @ b'0'..=b'9', rest @ ..] = *text {
        value = value
            .saturating_mul(10)
            .saturating_add(u32::from(digit - b'0'));
        *text = rest;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_count_as_numbers_and_stand_after_letters() {
        for (less, greater) in [
            ("libc.so.6", "libc.so.10"),
            ("libcuda.so", "libcuda.so.1"),
            ("libz.so.1", "libz1.so"),
            ("liba.so", "libb.so"),
            ("lib.so.9", "lib10.so"),
            ("", "a"),
        ] {
            let compared = compare(less.as_bytes(), greater.as_bytes());
            assert_eq!(compared, Ordering::Less, "{less} {greater}");
            assert_eq!(
                compare(greater.as_bytes(), less.as_bytes()),
                Ordering::Greater
            );
        }
        assert_eq!(compare(b"lib01.so", b"lib1.so"), Ordering::Equal);
    }
}
