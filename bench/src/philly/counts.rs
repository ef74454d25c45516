//! The reference: quotas counted in GPUs, by naive rules whose results on Philly are known. It shares nothing with the engine.
//!
//! Virtual clusters are looked at in their order until a whole pass starts nothing. In each, the first jobs of its queue are tried
//! in the order of submission: within the quota a job starts if enough is free; if not, and reclaim is on, whoever started last
//! in a virtual cluster above its quota is stopped, and the next, until there is enough; above the quota it starts if borrowing is
//! on and enough is free.

use std::collections::BTreeSet;

use anyhow::Result;

use crate::replay::{Job, Scheduler, Step};

/// How many jobs of a queue are tried.
const WINDOW: usize = 64;

/// What is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sharing {
    pub(crate) borrowing: bool,
    pub(crate) reclaim: bool,
}

/// Where a pass is.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    team: usize,
    /// The job that was tried last in this queue, and how many were tried and not started.
    last: Option<usize>,
    tried: usize,
    /// Whether this pass started something.
    started: bool,
}

pub(crate) struct Counts<'a> {
    jobs: &'a [Job],
    quotas: Vec<u64>,
    sharing: Sharing,
    free: u64,
    used: Vec<u64>,
    /// By virtual cluster, in the order of submission.
    pending: Vec<BTreeSet<usize>>,
    /// How often anything started; orders who started when.
    starts: u64,
    started: Vec<u64>,
    running: BTreeSet<(u64, usize)>,
    cursor: Option<Cursor>,
}

impl<'a> Counts<'a> {
    pub(crate) fn new(jobs: &'a [Job], gpus: u64, quotas: Vec<u64>, sharing: Sharing) -> Self {
        Self {
            jobs,
            sharing,
            free: gpus,
            used: vec![0; quotas.len()],
            pending: vec![BTreeSet::new(); quotas.len()],
            quotas,
            starts: 0,
            started: vec![0; jobs.len()],
            running: BTreeSet::new(),
            cursor: None,
        }
    }

    /// Whom a job can be started without, if it can be started.
    fn victims(&self, job: usize) -> Option<Vec<usize>> {
        let Job { team, size, .. } = self.jobs[job];
        let is_within = self.used[team] + size <= self.quotas[team];
        if self.free >= size {
            return (is_within || self.sharing.borrowing).then(Vec::new);
        }
        if !is_within || !self.sharing.reclaim {
            return None;
        }
        let (mut free, mut used) = (self.free, self.used.clone());
        let mut victims = Vec::new();
        for (_, other) in self.running.iter().rev() {
            let of = self.jobs[*other];
            if of.team == team || used[of.team] <= self.quotas[of.team] {
                continue;
            }
            used[of.team] -= of.size;
            free += of.size;
            victims.push(*other);
            if free >= size {
                return Some(victims);
            }
        }
        None
    }

    fn start(&mut self, job: usize, victims: Vec<usize>) -> Step {
        let Job { team, size, .. } = self.jobs[job];
        for victim in &victims {
            self.stop(*victim);
        }
        self.pending[team].remove(&job);
        self.free -= size;
        self.used[team] += size;
        self.starts += 1;
        self.started[job] = self.starts;
        self.running.insert((self.starts, job));
        Step {
            admitted: vec![job],
            evicted: victims,
            ask_again_at: None,
        }
    }

    fn stop(&mut self, job: usize) {
        let Job { team, size, .. } = self.jobs[job];
        if self.running.remove(&(self.started[job], job)) {
            self.free += size;
            self.used[team] -= size;
        }
    }
}

impl Scheduler for Counts<'_> {
    fn wait(&mut self, job: usize) {
        self.pending[self.jobs[job].team].insert(job);
    }

    /// Who is stopped is stopped at once.
    fn will_end(&mut self, _job: usize, _now: u64) {}

    fn release(&mut self, job: usize) {
        self.stop(job);
    }

    fn decide(&mut self, _now: u64) -> Result<Step> {
        let mut cursor = self.cursor.take().unwrap_or_default();
        loop {
            let Some(pending) = self.pending.get(cursor.team) else {
                if !cursor.started {
                    return Ok(Step::default());
                }
                cursor = Cursor::default();
                continue;
            };
            let next = match cursor.last {
                Some(last) => pending.range(last + 1..).next(),
                None => pending.first(),
            };
            let Some(job) = next.copied().filter(|_| cursor.tried < WINDOW) else {
                cursor = Cursor {
                    team: cursor.team + 1,
                    started: cursor.started,
                    ..Cursor::default()
                };
                continue;
            };
            cursor.last = Some(job);
            if let Some(victims) = self.victims(job) {
                cursor.started = true;
                self.cursor = Some(cursor);
                return Ok(self.start(job, victims));
            }
            cursor.tried += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::{Interruption, Outcome, Rules, replay};

    fn job(arrives_at: u64, team: usize, size: u64, runs_for: u64) -> Job {
        Job {
            arrives_at,
            team,
            class: 0,
            priority: 0,
            size,
            runs_for,
        }
    }

    fn run(jobs: &[Job], quotas: &[u64], borrowing: bool, reclaim: bool) -> Result<Outcome> {
        let capacity = quotas.iter().sum();
        let sharing = Sharing { borrowing, reclaim };
        let mut counts = Counts::new(jobs, capacity, quotas.to_vec(), sharing);
        let rules = Rules {
            capacity,
            horizon: None,
            interruption: Interruption::Free,
            notice: 0,
        };
        replay(jobs, quotas.len(), rules, &mut counts, |_| {})
    }

    #[test]
    fn what_is_borrowed_is_reclaimed_from_whoever_started_last() -> Result<()> {
        let jobs = [
            job(0, 0, 4, 100),
            job(1, 0, 2, 100),
            job(2, 0, 2, 100),
            job(10, 1, 2, 10),
        ];
        for (borrowing, reclaim, firsts, evictions) in [
            (false, false, [0, 100, 100, 10], 0),
            (true, false, [0, 1, 2, 100], 0),
            (true, true, [0, 1, 2, 10], 1),
        ] {
            let outcome = run(&jobs, &[4, 4], borrowing, reclaim)?;
            let found = outcome.records.iter();
            let found: Vec<u64> = found.filter_map(|it| it.first_admitted_at).collect();
            assert_eq!(found, firsts, "{borrowing} {reclaim}");
            assert_eq!(outcome.evictions, evictions, "{borrowing} {reclaim}");
            assert_eq!(u64::from(outcome.records[2].evictions), evictions);
        }
        Ok(())
    }

    #[test]
    fn nobody_is_stopped_where_it_would_not_be_enough() -> Result<()> {
        // Two are borrowed; four are asked for, and two more are used by who may.
        let jobs = [
            job(0, 0, 2, 100),
            job(0, 0, 4, 50),
            job(1, 1, 2, 70),
            job(2, 1, 2, 10),
        ];
        let outcome = run(&jobs, &[4, 4], true, true)?;
        let evictions: Vec<u32> = outcome.records.iter().map(|it| it.evictions).collect();
        assert_eq!(evictions, [0, 1, 0, 0]);
        let jobs = [job(0, 0, 6, 100), job(1, 1, 2, 70), job(2, 1, 2, 10)];
        let outcome = run(&jobs, &[4, 4], true, true)?;
        assert_eq!(outcome.evictions, 1);
        let jobs = [job(0, 0, 4, 100), job(0, 1, 4, 100), job(1, 0, 2, 10)];
        let outcome = run(&jobs, &[4, 4], true, true)?;
        assert_eq!(outcome.evictions, 0);
        assert_eq!(outcome.records[2].first_admitted_at, Some(100));
        Ok(())
    }

    #[test]
    fn only_the_first_of_a_queue_are_tried() -> Result<()> {
        let large = (0..WINDOW as u64).map(|at| job(at + 1, 0, 4, 1));
        let small = job(100, 0, 1, 1);
        for (waiting, small_at) in [(WINDOW - 1, 100), (WINDOW, 1_000)] {
            let jobs: Vec<Job> = std::iter::once(job(0, 0, 3, 1_000))
                .chain(large.clone().take(waiting))
                .chain([small])
                .collect();
            let outcome = run(&jobs, &[4], false, false)?;
            let last = outcome.records.last().and_then(|it| it.first_admitted_at);
            assert!(last.is_some_and(|at| at >= small_at), "{waiting}: {last:?}");
            assert_eq!(last == Some(100), waiting < WINDOW);
        }
        Ok(())
    }
}
