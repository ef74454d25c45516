//! What a gang loses when it is stopped and started again.

/// What it costs a gang to be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interruption {
    /// It begins anew.
    LosesEverything,
    /// It goes on where it was, at no cost.
    Free,
    /// It goes on from its last checkpoint, after a restart.
    Checkpoints {
        /// Ticks of work between two of them; more than none.
        every: u64,
        /// Ticks that a start after the first takes.
        restart: u64,
    },
}

/// How far a gang is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    remaining: u64,
    /// Of the run that is under way, what the restart takes.
    restart: u64,
    /// What the next one's takes.
    next_restart: u64,
}

impl Run {
    pub(crate) fn of(ticks: u64) -> Self {
        Self {
            remaining: ticks,
            restart: 0,
            next_restart: 0,
        }
    }

    /// Starts; how long it runs if nobody stops it.
    pub(crate) fn start(&mut self) -> u64 {
        self.restart = self.next_restart;
        self.restart + self.remaining
    }

    /// Ends as it should; how many ticks of this run were of no use.
    pub(crate) fn finish(&mut self) -> u64 {
        self.remaining = 0;
        self.restart
    }

    /// Is stopped; how many ticks of this run were of no use.
    pub(crate) fn interrupt(&mut self, by: Interruption, since: u64, now: u64) -> u64 {
        let ran = now - since;
        let worked = ran.saturating_sub(self.restart);
        let kept = match by {
            Interruption::LosesEverything => 0,
            Interruption::Free => worked,
            Interruption::Checkpoints { every, restart } => {
                self.next_restart = restart;
                worked - worked % every
            }
        };
        self.remaining -= kept;
        ran - kept
    }

    /// When it could be stopped next, from now on, and lose no work.
    pub(crate) fn next_checkpoint(&self, by: Interruption, since: u64, now: u64) -> Option<u64> {
        match by {
            Interruption::LosesEverything => None,
            Interruption::Free => Some(now),
            Interruption::Checkpoints { every, .. } => {
                let works_since = since + self.restart;
                let worked = now.saturating_sub(works_since);
                Some(works_since + worked.div_ceil(every).max(1) * every)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHECKPOINTS: Interruption = Interruption::Checkpoints {
        every: 900,
        restart: 60,
    };

    #[test]
    fn who_is_stopped_goes_on_from_the_last_checkpoint_after_a_restart() {
        let mut run = Run::of(5_000);
        assert_eq!(run.start(), 5_000);
        assert_eq!(run.interrupt(CHECKPOINTS, 100, 2_100), 200);
        assert_eq!(run.start(), 60 + 3_200);
        // Stopped in its restart, it has done nothing.
        assert_eq!(run.interrupt(CHECKPOINTS, 0, 50), 50);
        assert_eq!(run.start(), 60 + 3_200);
        assert_eq!(run.interrupt(CHECKPOINTS, 0, 960), 60);
        assert_eq!(run.start(), 60 + 2_300);
        assert_eq!(run.finish(), 60);
    }

    #[test]
    fn the_next_checkpoint_is_counted_from_when_the_work_began() {
        let mut run = Run::of(5_000);
        run.start();
        for (now, at) in [(100, 1_000), (999, 1_000), (1_000, 1_000), (1_001, 1_900)] {
            assert_eq!(
                run.next_checkpoint(CHECKPOINTS, 100, now),
                Some(at),
                "{now}"
            );
        }
        run.interrupt(CHECKPOINTS, 100, 1_000);
        run.start();
        for (now, at) in [(2_000, 2_960), (2_030, 2_960), (2_961, 3_860)] {
            assert_eq!(
                run.next_checkpoint(CHECKPOINTS, 2_000, now),
                Some(at),
                "{now}"
            );
        }
    }

    #[test]
    fn without_checkpoints_all_or_nothing_is_kept() {
        for (by, lost, remaining) in [
            (Interruption::Free, 0, 70),
            (Interruption::LosesEverything, 30, 100),
        ] {
            let mut run = Run::of(100);
            run.start();
            assert_eq!(run.interrupt(by, 5, 35), lost, "{by:?}");
            assert_eq!(run.start(), remaining, "{by:?}");
        }
    }
}
