//! What is left of something after a time, without a float.

/// A part of a whole, in units of 2^-64: nothing to all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Part(u128);

/// How many binary digits of an exponent count. What the others are worth is less than one part in 2^47.
const EXPONENT_BITS: u32 = 48;

impl Part {
    /// All of it.
    pub(crate) const ALL: Self = Self(1 << 64);

    /// What is left after so many seconds of which half is left after `half_life_seconds`: `2^-(seconds / half_life_seconds)`. All of it
    /// where there is no half-life: then nothing is ever forgotten.
    ///
    /// Whole half-lives are halvings, and so exact. The rest of the exponent is taken bit by bit, each worth the square root of the one
    /// before. Every step rounds down by less than 2^-64, so the result differs from the exact one by less than 2^-46.
    pub(crate) fn left_after(seconds: u64, half_life_seconds: u64) -> Self {
        if half_life_seconds == 0 {
            return Self::ALL;
        }
        let halvings = seconds / half_life_seconds;
        let half_life = u128::from(half_life_seconds);
        let mut rest = u128::from(seconds) % half_life;
        let mut left = Self::ALL.0;
        // 2^-1, then 2^-(1/2), 2^-(1/4), …
        let mut root: u128 = 1 << 63;
        for _ in 0..EXPONENT_BITS {
            root = (root << 64).isqrt();
            rest *= 2;
            if rest >= half_life {
                rest -= half_life;
                left = (left * root) >> 64;
            }
        }
        let halvings = u32::try_from(halvings).unwrap_or(u32::MAX);
        Self(left.checked_shr(halvings).unwrap_or(0))
    }

    /// What this leaves of the whole.
    pub(crate) fn rest(self) -> Self {
        Self(Self::ALL.0 - self.0)
    }

    /// So much of an amount, rounded down.
    pub(crate) fn of(self, amount: u128) -> u128 {
        let (high, low) = (amount >> 64, amount & (Self::ALL.0 - 1));
        // Neither product exceeds 128 bits, and their sum does not exceed the amount.
        high * self.0 + ((low * self.0) >> 64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part in units of 2^-40, rounded down.
    fn short(part: Part) -> u128 {
        part.0 >> 24
    }

    #[test]
    fn whole_half_lives_are_exact() {
        for half_life in [1, 7, 300, 86_400, u64::MAX / 80] {
            for halvings in 0..=64 {
                let left = Part::left_after(half_life * halvings, half_life);
                assert_eq!(left.0, (1 << 64) >> halvings, "{halvings} of {half_life}");
            }
            assert_eq!(
                Part::left_after(half_life.saturating_mul(65), half_life).0,
                0
            );
        }
        assert_eq!(Part::left_after(u64::MAX, 1).0, 0);
        assert_eq!(Part::left_after(0, u64::MAX), Part::ALL);
    }

    #[test]
    fn without_a_half_life_nothing_is_forgotten() {
        for seconds in [0, 1, u64::MAX] {
            assert_eq!(Part::left_after(seconds, 0), Part::ALL);
        }
        assert_eq!(Part::ALL.rest().of(u128::MAX), 0);
    }

    /// `x = 2^-(n/d)` exactly if `x^d * 2^n = 1`: so the result lies within two units of 2^-40 of it if its neighbours lie on
    /// either side.
    #[test]
    fn parts_of_a_half_life_are_exact_to_forty_bits() {
        for (n, d) in [(1, 2), (3, 2), (1, 3), (2, 3), (4, 3), (7, 3)] {
            for unit in [1, 100, 86_400] {
                let part = short(Part::left_after(n * unit, d * unit));
                let d = u32::try_from(d).unwrap();
                let one = |bits: u64| 1_u128 << bits;
                let exact = one(40 * u64::from(d) - n);
                assert!((part - 1).pow(d) < exact, "{n}/{d}");
                assert!((part + 2).pow(d) > exact, "{n}/{d}");
            }
        }
    }

    #[test]
    fn time_that_passes_in_pieces_leaves_as_much_as_in_one() {
        for half_life in [600, 3_600, 604_800] {
            let mut left = u128::from(u64::MAX);
            for _ in 0..96 {
                left = Part::left_after(300, half_life).of(left);
            }
            let at_once = Part::left_after(96 * 300, half_life).of(u128::from(u64::MAX));
            assert!(left.abs_diff(at_once) < 1 << 25, "{left} {at_once}");
        }
    }

    #[test]
    fn a_part_of_an_amount_never_exceeds_it() {
        let part = Part::left_after(1, 3);
        for amount in [0, 1, 2, (1 << 64) - 1, 1 << 64, (1 << 64) + 1, u128::MAX] {
            let (kept, lost) = (part.of(amount), part.rest().of(amount));
            assert!(kept <= amount && lost <= amount);
            assert!(amount - (kept + lost) <= 1, "{amount}");
        }
    }
}
