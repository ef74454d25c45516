//! Gangs that may wait for another reason than was noted, each of which gets its turn.

use std::{collections::BTreeSet, ops::Bound};

use muster_engine::GangUid;

/// Gangs to be explained, in a circle by UID: however often the reasons of some change, the others come in between.
#[derive(Debug, Default)]
pub(crate) struct Unexplained {
    gangs: BTreeSet<GangUid>,
    /// Whose turn was last.
    last: Option<GangUid>,
}

impl Unexplained {
    pub(crate) fn extend(&mut self, gangs: impl IntoIterator<Item = GangUid>) {
        self.gangs.extend(gangs);
    }

    pub(crate) fn remove(&mut self, gang: &GangUid) {
        self.gangs.remove(gang);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.gangs.is_empty()
    }

    /// The next gang, which is taken out.
    pub(crate) fn take(&mut self) -> Option<GangUid> {
        let after = self.last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.gangs.range((after, Bound::Unbounded)).next();
        let next = next.or_else(|| self.gangs.first()).cloned()?;
        self.gangs.remove(&next);
        self.last = Some(next.clone());
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gang_whose_reason_changes_all_the_time_does_not_keep_others_from_their_turn() {
        let mut unexplained = Unexplained::default();
        unexplained.extend(["a", "b", "c"].map(GangUid::from));
        let mut taken = Vec::new();
        for _ in 0..4 {
            taken.push(unexplained.take().unwrap().to_string());
            unexplained.extend(["a".into()]);
        }
        assert_eq!(taken, ["a", "b", "c", "a"]);
    }

    #[test]
    fn each_gang_has_one_turn() {
        let mut unexplained = Unexplained::default();
        unexplained.extend(["b", "a", "b"].map(GangUid::from));
        unexplained.remove(&"a".into());
        assert_eq!(unexplained.take(), Some("b".into()));
        assert_eq!(unexplained.take(), None);
        assert!(unexplained.is_empty());
    }
}
