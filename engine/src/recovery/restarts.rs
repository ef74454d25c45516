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

    /// How many failures are no reason yet to give up, if so many pods run at once.
    ///
    /// An attempt costs at most each of its pods, whatever ended it. So many attempts there were, this one included; and so many times it may
    /// still be started anew.
    pub fn failures_covered(self, pods: u32) -> u32 {
        let left = self.most.saturating_sub(self.failed_attempts);
        failures_until(self.attempt.saturating_add(left), pods)
    }
}

/// How many failures so many attempts may have cost whoever makes the pods, if so many pods run at once: each attempt at most all of its pods,
/// whatever ended it.
pub fn failures_until(attempts: u32, pods: u32) -> u32 {
    pods.saturating_mul(attempts)
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
            assert_eq!(restarts(most, 0, 1).failures_covered(pods), covered);
        }
        assert_eq!(
            restarts(u32::MAX, 0, u32::MAX).failures_covered(2),
            u32::MAX
        );
    }

    #[test]
    fn an_attempt_that_ended_by_a_fault_costs_none_of_the_restarts_and_is_covered_as_well() {
        // Of five attempts one failed by itself; the others broke, and left failed pods perhaps.
        assert_eq!(restarts(3, 1, 6).failures_covered(8), 8 * (6 + 2));
        // Whatever ends them, what is covered never shrinks.
        let mut before = 0;
        for attempt in 1..20 {
            for failed in 0..=3_u32.min(attempt - 1) {
                let covered = restarts(3, failed, attempt).failures_covered(8);
                let next = [
                    restarts(3, failed, attempt + 1),
                    restarts(3, failed + 1, attempt + 1),
                ];
                for next in next {
                    assert!(next.failures_covered(8) >= covered, "{next:?}");
                }
                before = before.max(covered);
            }
        }
        assert!(before > 8 * 20);
    }
}
