//! What must end within a bound of time, and since when it has been so.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// States that may not last longer than a bound.
#[derive(Debug)]
pub(super) struct Overdue {
    bound_millis: u64,
    since: BTreeMap<String, u64>,
}

impl Overdue {
    /// Nothing of what is noted may last longer than this.
    pub(super) fn after(bound: Duration) -> Self {
        Self {
            bound_millis: u64::try_from(bound.as_millis()).unwrap_or(u64::MAX),
            since: BTreeMap::new(),
        }
    }

    /// All that is so now; what was noted before and is not in it has ended. Returns what has lasted too long.
    pub(super) fn note(&mut self, now: BTreeSet<String>, now_millis: u64) -> Vec<String> {
        self.note_longer(now, &BTreeSet::new(), Duration::ZERO, now_millis)
    }

    /// The same where some of it may last longer by so much. It counts from the same time on as for all others.
    pub(super) fn note_longer(
        &mut self,
        now: BTreeSet<String>,
        longer: &BTreeSet<String>,
        by: Duration,
        now_millis: u64,
    ) -> Vec<String> {
        self.since.retain(|what, _| now.contains(what));
        for what in now {
            self.since.entry(what).or_insert(now_millis);
        }
        let by_millis = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        let late = self.since.iter().filter(|(what, since)| {
            let more_millis = if longer.contains(*what) { by_millis } else { 0 };
            now_millis > **since + self.bound_millis + more_millis
        });
        late.map(|(what, _)| what.clone()).collect()
    }

    /// What is still so of these counts from now on.
    pub(super) fn begin_anew(&mut self, of: &BTreeSet<String>, now_millis: u64) {
        for (what, since) in &mut self.since {
            if of.contains(what) {
                *since = now_millis;
            }
        }
    }

    /// Time passed that does not count.
    pub(super) fn shift(&mut self, by_millis: u64) {
        for since in self.since.values_mut() {
            *since += by_millis;
        }
    }
}
