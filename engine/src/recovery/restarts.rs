//! How often a gang is started anew after its own pods failed, and how many failed pods whoever makes them has to bear with until then.

/// How often a gang may be started anew after attempts of which pods failed by themselves, and how often that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restarts {
    /// How often it may be.
    pub most: u32,
    /// How many of its attempts ended so.
    pub failed_attempts: u32,
    /// The number of its attempt, from 1.
    pub attempt: u32,
}

impl Restarts {
    /// Whether it is not started again.
    pub fn is_exhausted(self) -> bool {
        self.failed_attempts > self.most
    }

    /// How many failures are no reason yet to give up, if its attempts have so many pods: what those may cost that there were, this one included, and
    /// those by which it may still be started anew.
    pub fn failures_covered(self, pods: PodsOfAttempts) -> u32 {
        let left = self.most.saturating_sub(self.failed_attempts);
        pods.failures_until(self.attempt, left)
    }
}

/// How many pods the attempts of a gang have, which may be another number for each: whoever makes the pods may be told to make fewer, or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodsOfAttempts {
    /// All attempts before this one had so many together, as far as that is known.
    pub before: u32,
    /// This one has so many at most.
    pub now: u32,
    /// Each one after this has so many, as whoever makes them was told by now.
    pub next: u32,
}

impl PodsOfAttempts {
    /// How many failures the attempt of this number, those before it, and so many after it (`more`) may cost whoever makes the pods: each attempt at most all
    /// of its pods, whatever ended it.
    ///
    /// Of attempts of which it is not known how many pods they had, it is as many as the next one has. Where that is known, it is never less from one attempt
    /// to the next than before, though later ones are smaller.
    pub fn failures_until(self, attempt: u32, more: u32) -> u32 {
        let counted = self.before.saturating_add(self.now);
        let counted = counted.saturating_add(self.next.saturating_mul(more));
        let alike = self.next.saturating_mul(attempt.saturating_add(more));
        counted.max(alike)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restarts(most: u32, failed_attempts: u32, attempt: u32) -> Restarts {
        Restarts {
            most,
            failed_attempts,
            attempt,
        }
    }

    /// So many pods, of which nobody counted those before.
    fn equal(pods: u32) -> PodsOfAttempts {
        PodsOfAttempts {
            before: 0,
            now: pods,
            next: pods,
        }
    }

    #[test]
    fn what_larger_attempts_may_have_cost_is_covered_as_well_once_they_are_smaller() {
        // Eight pods each, and two from the third attempt on.
        let mut before = 0;
        let mut covered = (0, 0);
        for attempt in 1..20 {
            let now = if attempt < 3 { 8 } else { 2 };
            let pods = PodsOfAttempts {
                before,
                now,
                next: now,
            };
            let spent = before + now;
            let found = (
                pods.failures_until(attempt, 0),
                restarts(0, 0, attempt).failures_covered(pods),
            );
            assert!(found.0 >= spent && found.1 >= spent, "{pods:?}: {found:?}");
            assert!(found.0 >= covered.0 && found.1 >= covered.1, "{pods:?}");
            assert!(
                restarts(3, 0, attempt).failures_covered(pods) >= spent + 3 * now,
                "{pods:?}"
            );
            covered = found;
            before = spent;
        }
        assert_eq!(before, 2 * 8 + 17 * 2);
        // One that is told to make more may have been larger before it was counted.
        let grown = PodsOfAttempts {
            before: 2,
            now: 8,
            next: 8,
        };
        assert_eq!(grown.failures_until(2, 0), 16);
        let most = PodsOfAttempts {
            before: u32::MAX,
            now: u32::MAX,
            next: u32::MAX,
        };
        assert_eq!(most.failures_until(u32::MAX, u32::MAX), u32::MAX);
    }

    #[test]
    fn a_gang_is_started_anew_as_often_as_it_may_be_and_not_once_more() {
        for (most, failed, is_exhausted) in [
            (0, 0, false),
            (0, 1, true),
            (3, 3, false),
            (3, 4, true),
            (u32::MAX, u32::MAX, false),
        ] {
            let found = restarts(most, failed, failed + u32::from(failed < u32::MAX));
            assert_eq!(found.is_exhausted(), is_exhausted, "{most} {failed}");
        }
    }

    #[test]
    fn before_its_first_start_all_pods_of_all_attempts_that_it_may_have_are_covered() {
        for (pods, most, covered) in [(8, 0, 8), (8, 3, 32), (4_096, 1_000, 4_100_096)] {
            assert_eq!(restarts(most, 0, 1).failures_covered(equal(pods)), covered);
        }
        assert_eq!(
            restarts(u32::MAX, 0, u32::MAX).failures_covered(equal(2)),
            u32::MAX
        );
    }

    #[test]
    fn an_attempt_that_ended_by_a_fault_costs_none_of_the_restarts_and_is_covered_as_well() {
        // Of five attempts one failed by itself; the others broke, and left failed pods perhaps.
        assert_eq!(restarts(3, 1, 6).failures_covered(equal(8)), 8 * (6 + 2));
        // Whatever ends them, what is covered never shrinks.
        let mut before = 0;
        for attempt in 1..20 {
            for failed in 0..=3_u32.min(attempt - 1) {
                let covered = restarts(3, failed, attempt).failures_covered(equal(8));
                let next = [
                    restarts(3, failed, attempt + 1),
                    restarts(3, failed + 1, attempt + 1),
                ];
                for next in next {
                    assert!(next.failures_covered(equal(8)) >= covered, "{next:?}");
                }
                before = before.max(covered);
            }
        }
        assert!(before > 8 * 20);
    }
}
