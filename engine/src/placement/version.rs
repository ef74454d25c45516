//! When something changed: a clock of changes, and which nodes changed after a moment of it.

use std::collections::BTreeMap;

/// A moment in the life of a [`Cluster`](super::Cluster). It moves with every change of what is known about nodes,
/// holds and Topologies, and never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(u64);

impl Version {
    /// Moves on to the next moment.
    pub(crate) fn advance(&mut self) -> Self {
        self.0 += 1;
        *self
    }
}

/// When each slot changed last. It is bounded by the number of slots: of several changes of one slot only
/// the last is kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChangeLog {
    last: Vec<Option<Version>>,
    by_version: BTreeMap<Version, usize>,
}

impl ChangeLog {
    /// Notes that a slot changed. No two changes have the same version.
    pub(crate) fn note(&mut self, slot: usize, version: Version) {
        if self.last.len() <= slot {
            self.last.resize(slot + 1, None);
        }
        if let Some(before) = self.last[slot].replace(version) {
            self.by_version.remove(&before);
        }
        self.by_version.insert(version, slot);
    }

    /// When a slot changed last.
    pub(crate) fn last(&self, slot: usize) -> Option<Version> {
        *self.last.get(slot)?
    }

    /// The slots that changed after a version, each once, the one that changed first first.
    pub(crate) fn since(&self, version: Version) -> impl Iterator<Item = usize> + '_ {
        let after = std::ops::Bound::Excluded(version);
        self.by_version
            .range((after, std::ops::Bound::Unbounded))
            .map(|(_, slot)| *slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_listed_once_at_its_last_change() {
        let mut now = Version::default();
        let mut log = ChangeLog::default();
        for slot in [3, 1, 3] {
            log.note(slot, now.advance());
        }
        let all: Vec<usize> = log.since(Version::default()).collect();
        assert_eq!(all, [1, 3]);
        assert_eq!(log.since(Version(2)).collect::<Vec<_>>(), [3]);
        assert_eq!(log.since(now).count(), 0);
    }

    #[test]
    fn the_log_stays_as_small_as_the_cluster() {
        let mut now = Version::default();
        let mut log = ChangeLog::default();
        for change in 0..10_000 {
            log.note(change % 7, now.advance());
        }
        assert_eq!((log.by_version.len(), log.last.len()), (7, 7));
    }
}
