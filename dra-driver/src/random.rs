//! Random numbers for tests.

/// Small, and the same for a seed everywhere.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // Numerical Recipes' generator; its upper half is what is good.
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    /// A place in something of this length, which is not 0.
    pub(crate) fn place(&mut self, length: usize) -> usize {
        let place = self.below(u64::try_from(length).unwrap());
        usize::try_from(place).unwrap()
    }
}
