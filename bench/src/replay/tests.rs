//! The loop under a scheduler that does as it is told.

use super::*;

/// Admits in the order of arrival what fits, and evicts by a script.
struct Script {
    capacity: u64,
    free: u64,
    sizes: Vec<u64>,
    waiting: BTreeSet<usize>,
    /// Whom to evict, and when.
    evictions: Vec<(u64, usize)>,
    told: Vec<String>,
}

impl Script {
    fn of(capacity: u64, jobs: &[Job]) -> Self {
        Self {
            capacity,
            free: capacity,
            sizes: jobs.iter().map(|job| job.size).collect(),
            waiting: BTreeSet::new(),
            evictions: Vec::new(),
            told: Vec::new(),
        }
    }
}

impl Scheduler for Script {
    fn wait(&mut self, job: usize) {
        self.told.push(format!("wait {job}"));
        self.waiting.insert(job);
    }

    fn will_end(&mut self, job: usize, now: u64) {
        self.told.push(format!("will end {job} at {now}"));
    }

    fn release(&mut self, job: usize) {
        self.told.push(format!("release {job}"));
        self.free += self.sizes[job];
        assert!(self.free <= self.capacity);
    }

    fn decide(&mut self, now: u64) -> Result<Step> {
        if let Some(at) = self.evictions.iter().position(|(at, _)| *at <= now) {
            let evicted = vec![self.evictions.remove(at).1];
            return Ok(Step {
                evicted,
                ..Step::default()
            });
        }
        let mut waiting = self.waiting.iter().copied();
        let fits = waiting.find(|job| self.sizes[*job] <= self.free);
        if let Some(job) = fits {
            self.waiting.remove(&job);
            self.free -= self.sizes[job];
        }
        Ok(Step {
            admitted: fits.into_iter().collect(),
            evicted: Vec::new(),
            ask_again_at: self.evictions.iter().map(|(at, _)| *at).min(),
        })
    }
}

fn job(arrives_at: u64, size: u64, runs_for: u64) -> Job {
    Job {
        arrives_at,
        team: 0,
        class: 0,
        priority: 0,
        size,
        runs_for,
    }
}

const RULES: Rules = Rules {
    capacity: 4,
    horizon: None,
    interruption: Interruption::Free,
    notice: 0,
};

#[test]
fn gangs_wait_for_each_other_and_use_is_summed_up_to_the_horizon() -> Result<()> {
    let jobs = [job(10, 3, 100), job(20, 2, 50), job(30, 1, 10)];
    let rules = Rules {
        horizon: Some(130),
        ..RULES
    };
    let mut script = Script::of(4, &jobs);
    let outcome = replay(&jobs, 1, rules, &mut script, |_| {})?;
    let admitted = outcome
        .records
        .iter()
        .map(|record| record.first_admitted_at);
    assert_eq!(
        admitted.collect::<Vec<_>>(),
        [Some(10), Some(110), Some(30)]
    );
    assert_eq!(outcome.makespan, 160);
    let Measured {
        ticks,
        held,
        pending,
        idle_while_pending,
        teams,
    } = outcome.measured;
    assert_eq!((ticks, held), (130, 300 + 10 + 2 * 20));
    // Two are asked for from 20 to 110; one is free but for 30 to 40.
    assert_eq!((pending, idle_while_pending), (2 * 90, 80));
    assert_eq!(teams[0].held, 300 + 10 + 100);
    assert_eq!(
        (teams[0].first_event_at, teams[0].last_event_at),
        (Some(10), Some(160))
    );
    Ok(())
}

#[test]
fn who_is_evicted_waits_again_and_what_it_loses_is_counted() -> Result<()> {
    for (interruption, notice, makespan, lost) in [
        (Interruption::Free, 0, 100, 0),
        (Interruption::LosesEverything, 0, 150, 50),
        (Interruption::LosesEverything, 7, 157, 57),
        (
            Interruption::Checkpoints {
                every: 30,
                restart: 6,
            },
            0,
            126,
            26,
        ),
        // The notice lets it run on to its next checkpoint, but no longer than it says.
        (
            Interruption::Checkpoints {
                every: 30,
                restart: 6,
            },
            20,
            106,
            6,
        ),
        (
            Interruption::Checkpoints {
                every: 30,
                restart: 6,
            },
            5,
            131,
            31,
        ),
    ] {
        let jobs = [job(0, 4, 100)];
        let rules = Rules {
            interruption,
            notice,
            ..RULES
        };
        let mut script = Script {
            evictions: vec![(50, 0)],
            ..Script::of(4, &jobs)
        };
        let outcome = replay(&jobs, 1, rules, &mut script, |_| {})?;
        let found = (outcome.makespan, outcome.lost, outcome.evictions);
        assert_eq!(found, (makespan, 4 * lost, 1), "{interruption:?} {notice}");
        assert_eq!(outcome.records[0].evictions, 1);
    }
    Ok(())
}

#[test]
fn a_gang_that_ends_during_its_notice_is_not_evicted() -> Result<()> {
    let jobs = [job(0, 4, 55)];
    let rules = Rules {
        interruption: Interruption::LosesEverything,
        notice: 10,
        ..RULES
    };
    let mut script = Script {
        evictions: vec![(50, 0)],
        ..Script::of(4, &jobs)
    };
    let outcome = replay(&jobs, 1, rules, &mut script, |_| {})?;
    assert_eq!(
        (outcome.makespan, outcome.evictions, outcome.lost),
        (55, 0, 0)
    );
    assert_eq!(script.told, ["wait 0", "will end 0 at 50", "release 0"]);
    Ok(())
}

#[test]
fn a_gang_that_never_runs_and_a_scheduler_that_gives_too_much_are_failures() {
    let jobs = [job(0, 5, 1)];
    let mut script = Script::of(4, &jobs);
    let failed = replay(&jobs, 1, RULES, &mut script, |_| {});
    assert!(failed.is_err_and(|error| error.to_string().contains("1 of 1 gangs never ended")));
    let mut script = Script::of(8, &jobs);
    let failed = replay(&jobs, 1, RULES, &mut script, |_| {});
    assert!(failed.is_err_and(|error| error.to_string().contains("5 of 4 are held")));
}
