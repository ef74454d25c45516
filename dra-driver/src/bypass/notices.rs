//! Who is told by Events, and when.
//!
//! One notice for all processes of one origin, and another once they are on a further GPU; not more often than every five
//! minutes, whatever comes and goes. The metrics and the log say the rest.

use std::collections::{BTreeMap, BTreeSet};

use super::origin::Origin;
use crate::prepare::Milliseconds;

/// Shortest time between two notices of one origin.
const AGAIN_MILLISECONDS: u64 = 300_000;
/// When a notice is given that could not be given.
const RETRY_MILLISECONDS: u64 = 60_000;
/// Most notices of one look; the next one gives the others.
const AT_ONCE: usize = 8;

/// Bypasses that stand: UUIDs of GPUs by origin.
pub type Standing = BTreeMap<Origin, BTreeSet<String>>;

/// What was told. In memory only: what a driver remembers when it starts was told by the one before.
#[derive(Debug, Default)]
pub struct Notices {
    told: BTreeMap<Origin, Told>,
}

#[derive(Debug)]
struct Told {
    gpus: BTreeSet<String>,
    /// Not before then.
    next: Milliseconds,
}

impl Notices {
    /// All of this was told before.
    pub fn of_remembered(standing: &Standing, now: Milliseconds) -> Self {
        let mut notices = Self::default();
        for (origin, gpus) in standing {
            notices.given(now, origin, gpus, true);
        }
        notices
    }

    /// Of whom a notice is due.
    pub fn due(&mut self, now: Milliseconds, standing: &Standing) -> Vec<Origin> {
        self.told
            .retain(|origin, told| standing.contains_key(origin) || now < told.next);
        let is_due = |origin: &Origin, gpus: &BTreeSet<String>| match self.told.get(origin) {
            Some(told) => now >= told.next && !gpus.is_subset(&told.gpus),
            None => true,
        };
        let due = standing
            .iter()
            .filter(|(origin, gpus)| is_due(origin, gpus));
        let due = due.map(|(origin, _)| origin.clone());
        due.take(AT_ONCE).collect()
    }

    /// A notice was given, or could not be.
    pub fn given(
        &mut self,
        now: Milliseconds,
        origin: &Origin,
        gpus: &BTreeSet<String>,
        is_done: bool,
    ) {
        let told = self.told.entry(origin.clone()).or_insert_with(|| Told {
            gpus: BTreeSet::new(),
            next: now,
        });
        if is_done {
            told.gpus.clone_from(gpus);
        }
        let pause = if is_done {
            AGAIN_MILLISECONDS
        } else {
            RETRY_MILLISECONDS
        };
        told.next = Milliseconds(now.0.saturating_add(pause));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin() -> Origin {
        Origin::Pod("side".to_owned())
    }

    fn gpus(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn standing(names: &[&str]) -> Standing {
        let all = (!names.is_empty()).then(|| (origin(), gpus(names)));
        all.into_iter().collect()
    }

    #[test]
    fn a_notice_is_given_once_and_again_for_another_gpu_but_not_soon() {
        let mut notices = Notices::default();
        for (second, names, is_due) in [
            (0, vec!["GPU-0"], true),
            (5, vec!["GPU-0"], false),
            (10, vec!["GPU-0", "GPU-1"], false),
            (300, vec!["GPU-0", "GPU-1"], true),
            (700, vec!["GPU-0", "GPU-1"], false),
            (705, vec!["GPU-0"], false),
            // It comes and goes.
            (710, vec![], false),
            (715, vec!["GPU-0"], true),
            (720, vec![], false),
            (800, vec!["GPU-0"], false),
            (805, vec![], false),
            (1_100, vec![], false),
            (1_105, vec!["GPU-0"], true),
        ] {
            let now = Milliseconds(second * 1_000);
            let due = notices.due(now, &standing(&names));
            assert_eq!(!due.is_empty(), is_due, "at {second} s");
            for origin in due {
                notices.given(now, &origin, &gpus(&names), true);
            }
        }
    }

    #[test]
    fn what_could_not_be_told_is_told_a_minute_later() {
        let mut notices = Notices::default();
        for (second, is_due) in [(0, true), (5, false), (60, true), (65, false)] {
            let now = Milliseconds(second * 1_000);
            let due = notices.due(now, &standing(&["GPU-0"]));
            assert_eq!(!due.is_empty(), is_due, "at {second} s");
            for origin in due {
                notices.given(now, &origin, &gpus(&["GPU-0"]), second > 0);
            }
        }
    }

    #[test]
    fn what_is_remembered_was_told() {
        let now = Milliseconds(1);
        let mut notices = Notices::of_remembered(&standing(&["GPU-0"]), now);
        assert!(notices.due(now, &standing(&["GPU-0"])).is_empty());
    }

    #[test]
    fn many_at_once_are_told_in_turns() {
        let mut notices = Notices::default();
        let all: Standing = (0..20)
            .map(|number| (Origin::Pod(format!("pod-{number}")), gpus(&["GPU-0"])))
            .collect();
        let mut told = 0;
        for second in 0..3 {
            let now = Milliseconds(second * 1_000);
            let due = notices.due(now, &all);
            assert!(due.len() <= AT_ONCE);
            told += due.len();
            for origin in due {
                notices.given(now, &origin, &gpus(&["GPU-0"]), true);
            }
        }
        assert_eq!(told, 20);
    }
}
