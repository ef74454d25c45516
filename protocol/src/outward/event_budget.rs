//! How many Events an owner is told in a row. A Deployment has thousands of pods, each a gang of its own with its own Events; what all
//! of them go through would be thousands about the one object, which nobody reads and etcd keeps.
//!
//! As many as client-go lets through of one source about one object: 25 at once, and one more each five minutes.

use std::collections::{BTreeMap, BTreeSet};

/// How many are told at once.
pub(crate) const BURST: u64 = 25;
/// After how many seconds there is one more.
pub(crate) const ONE_MORE_SECONDS: u64 = 300;

/// What owners have left, by UID. One that has all of it takes no memory.
#[derive(Debug, Default)]
pub(crate) struct EventBudgets {
    /// When an owner has all of it again.
    whole_at: BTreeMap<String, u64>,
    by_time: BTreeSet<(u64, String)>,
}

impl EventBudgets {
    /// Whether an owner is told one more; then it is spent.
    pub(crate) fn take(&mut self, uid: &str, now: u64) -> bool {
        while let Some((at, _)) = self.by_time.first()
            && *at <= now
            && let Some((_, whole)) = self.by_time.pop_first()
        {
            self.whole_at.remove(&whole);
        }
        let before = self.whole_at.get(uid).copied();
        let whole_at = before.unwrap_or(now) + ONE_MORE_SECONDS;
        if whole_at > now + BURST * ONE_MORE_SECONDS {
            return false;
        }
        if let Some(before) = before {
            self.by_time.remove(&(before, uid.to_owned()));
        }
        self.by_time.insert((whole_at, uid.to_owned()));
        self.whole_at.insert(uid.to_owned(), whole_at);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_burst_there_is_one_more_each_five_minutes() {
        let mut budgets = EventBudgets::default();
        let mut told = |uid: &str, now| (0..100).filter(|_| budgets.take(uid, now)).count();
        assert_eq!(told("a", 1_000), 25);
        assert_eq!(told("b", 1_000), 25, "each for itself");
        assert_eq!(told("a", 1_299), 0);
        assert_eq!(told("a", 1_300), 1);
        assert_eq!(told("a", 1_300 + 10 * 300), 10);
        assert_eq!(told("a", 1_000_000), 25, "never more");
        assert_eq!(budgets.whole_at.len(), 1, "who has all of it is forgotten");
        assert_eq!(budgets.by_time.len(), 1);
    }
}
