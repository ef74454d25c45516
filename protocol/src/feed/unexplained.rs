//! Gangs that may wait for another reason than was noted, each of which gets its turn.
//!
//! They are explained in batches, one in a second: what the first of a batch asks the engine (who is to have what is being released, say)
//! costs as much as a decision, and is asked again after each change; the others are told what it was told. A reason is told to people
//! seconds later anyway.

use std::collections::BTreeSet;

use muster_engine::GangUid;

/// Gangs to be explained. However often the reasons of some change, the others come in between.
#[derive(Debug, Default)]
pub(crate) struct Unexplained {
    /// Those of the next batch.
    gangs: BTreeSet<GangUid>,
    /// What is left of this one.
    batch: BTreeSet<GangUid>,
    /// In which second it began.
    began_at: Option<u64>,
}

impl Unexplained {
    pub(crate) fn extend(&mut self, gangs: impl IntoIterator<Item = GangUid>) {
        self.gangs.extend(gangs);
    }

    pub(crate) fn remove(&mut self, gang: &GangUid) {
        self.gangs.remove(gang);
        self.batch.remove(gang);
    }

    /// Whether a batch is not done yet.
    pub(crate) fn is_in_batch(&self) -> bool {
        !self.batch.is_empty()
    }

    /// The second in which the next batch may begin.
    pub(crate) fn next_due(&self) -> Option<u64> {
        let next = || self.began_at.map_or(0, |at| at + 1);
        (!self.gangs.is_empty()).then(next)
    }

    /// The next gang, which is taken out.
    pub(crate) fn take(&mut self, second: u64) -> Option<GangUid> {
        if self.batch.is_empty() && !self.gangs.is_empty() && self.began_at != Some(second) {
            self.batch = std::mem::take(&mut self.gangs);
            self.began_at = Some(second);
        }
        let gang = self.batch.pop_first()?;
        // What is told of it now is as things are now.
        self.gangs.remove(&gang);
        Some(gang)
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
        for second in [7, 7, 8, 9] {
            taken.push(unexplained.take(second).unwrap().to_string());
            unexplained.extend(["a".into()]);
        }
        assert_eq!(taken, ["a", "b", "c", "a"]);
    }

    #[test]
    fn there_is_one_batch_in_a_second_and_each_gang_has_one_turn_in_it() {
        let mut unexplained = Unexplained::default();
        assert_eq!(unexplained.take(7), None);
        unexplained.extend(["b", "a", "b"].map(GangUid::from));
        assert_eq!(unexplained.next_due(), Some(0), "at once");
        unexplained.remove(&"a".into());
        assert_eq!(unexplained.take(7), Some("b".into()));
        assert_eq!(unexplained.take(7), None);
        assert_eq!(unexplained.next_due(), None);
        unexplained.extend(["c".into()]);
        assert_eq!(unexplained.take(7), None, "it has begun");
        assert_eq!(unexplained.next_due(), Some(8));
        assert_eq!(unexplained.take(8), Some("c".into()));
        assert!(!unexplained.is_in_batch());
    }

    #[test]
    fn a_gang_that_has_its_turn_still_before_it_has_none_more_for_what_changed_until_then() {
        let mut unexplained = Unexplained::default();
        unexplained.extend(["a", "b"].map(GangUid::from));
        assert_eq!(unexplained.take(7), Some("a".into()));
        unexplained.extend(["b".into()]);
        assert_eq!(unexplained.take(7), Some("b".into()));
        assert_eq!(unexplained.next_due(), None);
    }
}
