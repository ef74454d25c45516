//! Sets of the devices of one node, by their place in the order in which the allocator tries them.

/// A set of device indexes. All sets of one node are of the same length.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DeviceSet(Vec<u64>);

const BITS: usize = u64::BITS as usize;

impl DeviceSet {
    /// No device of a node with so many.
    pub(crate) fn none(devices: usize) -> Self {
        Self(vec![0; devices.div_ceil(BITS)])
    }

    /// These devices of a node with so many.
    pub(crate) fn of(devices: usize, members: impl IntoIterator<Item = usize>) -> Self {
        let mut set = Self::none(devices);
        for member in members {
            set.insert(member);
        }
        set
    }

    pub(crate) fn insert(&mut self, device: usize) {
        if let Some(word) = self.0.get_mut(device / BITS) {
            *word |= 1 << (device % BITS);
        }
    }

    pub(crate) fn remove(&mut self, device: usize) {
        if let Some(word) = self.0.get_mut(device / BITS) {
            *word &= !(1 << (device % BITS));
        }
    }

    pub(crate) fn contains(&self, device: usize) -> bool {
        self.0
            .get(device / BITS)
            .is_some_and(|word| word & (1 << (device % BITS)) != 0)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// How many devices are in both.
    pub(crate) fn common(&self, other: &Self) -> usize {
        self.0
            .iter()
            .zip(&other.0)
            .map(|(one, other)| (one & other).count_ones() as usize)
            .sum()
    }

    pub(crate) fn is_disjoint(&self, other: &Self) -> bool {
        self.0
            .iter()
            .zip(&other.0)
            .all(|(one, other)| one & other == 0)
    }

    pub(crate) fn is_subset(&self, other: &Self) -> bool {
        self.0
            .iter()
            .zip(&other.0)
            .all(|(one, other)| one & !other == 0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Adds all devices of the other.
    pub(crate) fn extend(&mut self, other: &Self) {
        for (one, other) in self.0.iter_mut().zip(&other.0) {
            *one |= other;
        }
    }

    /// The devices, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(at, word)| {
            let mut rest = *word;
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
