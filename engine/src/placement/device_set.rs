//! Sets of the devices of one node, by their place in the order in which the allocator tries them.

/// A set of device indexes. All sets of one node are of the same length.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DeviceSet {
    /// The first 64 devices, which is all that most nodes have.
    first: u64,
    rest: Vec<u64>,
}

const BITS: usize = u64::BITS as usize;

impl DeviceSet {
    /// No device of a node with so many.
    pub(crate) fn none(devices: usize) -> Self {
        Self {
            first: 0,
            rest: vec![0; devices.div_ceil(BITS).saturating_sub(1)],
        }
    }

    /// These devices of a node with so many.
    pub(crate) fn of(devices: usize, members: impl IntoIterator<Item = usize>) -> Self {
        let mut set = Self::none(devices);
        for member in members {
            set.insert(member);
        }
        set
    }

    fn words(&self) -> impl Iterator<Item = u64> + '_ {
        std::iter::once(self.first).chain(self.rest.iter().copied())
    }

    fn word(&mut self, device: usize) -> Option<&mut u64> {
        match (device / BITS).checked_sub(1) {
            None => Some(&mut self.first),
            Some(at) => self.rest.get_mut(at),
        }
    }

    pub(crate) fn insert(&mut self, device: usize) {
        if let Some(word) = self.word(device) {
            *word |= 1 << (device % BITS);
        }
    }

    pub(crate) fn remove(&mut self, device: usize) {
        if let Some(word) = self.word(device) {
            *word &= !(1 << (device % BITS));
        }
    }

    pub(crate) fn contains(&self, device: usize) -> bool {
        let word = self.words().nth(device / BITS);
        word.is_some_and(|word| word & (1 << (device % BITS)) != 0)
    }

    pub(crate) fn len(&self) -> usize {
        self.words().map(|word| word.count_ones() as usize).sum()
    }

    /// How many devices are in both.
    pub(crate) fn common(&self, other: &Self) -> usize {
        self.words()
            .zip(other.words())
            .map(|(one, other)| (one & other).count_ones() as usize)
            .sum()
    }

    pub(crate) fn is_disjoint(&self, other: &Self) -> bool {
        self.words()
            .zip(other.words())
            .all(|(one, other)| one & other == 0)
    }

    pub(crate) fn is_subset(&self, other: &Self) -> bool {
        self.words()
            .zip(other.words())
            .all(|(one, other)| one & !other == 0)
    }

    /// The devices that are in both.
    pub(crate) fn and(&self, other: &Self) -> Self {
        self.by_word(other, |one, other| one & other)
    }

    /// The devices that are not in the other.
    pub(crate) fn without(&self, other: &Self) -> Self {
        self.by_word(other, |one, other| one & !other)
    }

    fn by_word(&self, other: &Self, make: impl Fn(u64, u64) -> u64) -> Self {
        let rest = self.rest.iter().zip(&other.rest);
        Self {
            first: make(self.first, other.first),
            rest: rest.map(|(one, other)| make(*one, *other)).collect(),
        }
    }

    /// Adds all devices of the other.
    pub(crate) fn extend(&mut self, other: &Self) {
        self.first |= other.first;
        for (one, other) in self.rest.iter_mut().zip(&other.rest) {
            *one |= other;
        }
    }

    /// The devices, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.iter_from(0)
    }

    /// Those from a place on, in order.
    pub(crate) fn iter_from(&self, first: usize) -> impl Iterator<Item = usize> + '_ {
        let (skipped, bits) = (first / BITS, first % BITS);
        let words = self.words().enumerate().skip(skipped);
        words.flat_map(move |(at, word)| {
            let before: u64 = if at == skipped { (1 << bits) - 1 } else { 0 };
            let mut rest = word & !before;
            std::iter::from_fn(move || {
                if rest == 0 {
                    return None;
                }
                let bit = rest.trailing_zeros() as usize;
                rest &= rest - 1;
                Some(at * BITS + bit)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_device_set_is_a_set_also_beyond_64_devices(
            ones in proptest::collection::btree_set(0_usize..200, 0..40),
            others in proptest::collection::btree_set(0_usize..200, 0..40),
            removed in 0_usize..200,
        ) {
            let mut one = DeviceSet::of(200, ones.iter().copied());
            let other = DeviceSet::of(200, others.iter().copied());
            prop_assert_eq!(one.len(), ones.len());
            prop_assert_eq!(one.common(&other), ones.intersection(&others).count());
            prop_assert_eq!(one.is_disjoint(&other), ones.is_disjoint(&others));
            prop_assert_eq!(one.is_subset(&other), ones.is_subset(&others));
            prop_assert_eq!(one.contains(removed), ones.contains(&removed));
            prop_assert!(one.and(&other).iter().eq(ones.intersection(&others).copied()));
            prop_assert!(one.without(&other).iter().eq(ones.difference(&others).copied()));
            prop_assert!(one.iter_from(removed).eq(ones.range(removed..).copied()));
            one.remove(removed);
            one.extend(&other);
            let mut all: BTreeSet<usize> = ones;
            all.remove(&removed);
            all.extend(others);
            prop_assert!(one.iter().eq(all));
        }
    }
}
