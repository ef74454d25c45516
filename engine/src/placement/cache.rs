//! The indexes that are kept between questions: those that were used last.

use std::collections::BTreeMap;

use super::index::{CapacityIndex, IndexKey};

/// Most indexes that are kept: one takes one to two megabytes at 10,000 nodes.
pub(crate) const MOST_INDEXES: usize = 64;

/// Indexes by what they are about. What is dropped is built again when it is needed: the cache decides what a
/// question costs, never what the answer is.
#[derive(Clone, Debug, Default)]
pub(crate) struct IndexCache {
    kept: BTreeMap<IndexKey, (u64, CapacityIndex)>,
    used: u64,
}

impl IndexCache {
    /// Takes an index out, to be [put back](Self::put) after use.
    pub(crate) fn take(&mut self, key: &IndexKey) -> Option<CapacityIndex> {
        self.kept.remove(key).map(|(_, index)| index)
    }

    /// Keeps an index; of too many, the one that was not used for the longest time goes.
    pub(crate) fn put(&mut self, index: CapacityIndex) {
        self.used += 1;
        self.kept.insert(index.key.clone(), (self.used, index));
        if self.kept.len() > MOST_INDEXES {
            let oldest = self.kept.iter().min_by_key(|(_, (used, _))| *used);
            let oldest = oldest.map(|(key, _)| key.clone());
            if let Some(oldest) = oldest {
                self.kept.remove(&oldest);
            }
        }
    }

    /// The indexes that are kept.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &CapacityIndex> {
        self.kept.values().map(|(_, index)| index)
    }

    /// How many indexes are kept.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.kept.len()
    }

    /// Forgets everything.
    #[cfg(test)]
    pub(crate) fn clear(&mut self) {
        self.kept.clear();
    }
}
