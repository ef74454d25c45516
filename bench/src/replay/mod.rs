//! Gangs in virtual time: they arrive, run and end by a clock that only events move, under one scheduler or another.
//!
//! Everything takes effect at once, as if the API server, kubelets and containers took no time: what is admitted runs, what ends
//! is released. A gang that is preempted waits again, with its age. Who is compared runs on the same gangs by the same loop, and
//! is measured by the same gauges.

pub(crate) mod engine;
mod gauges;
mod progress_kept;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
};

use anyhow::{Result, ensure};

use gauges::Gauges;
pub(crate) use gauges::Measured;
#[cfg(feature = "cluster")]
pub(crate) use gauges::TeamUse;
pub(crate) use progress_kept::Interruption;
use progress_kept::Run;

/// A gang as a scenario has it. Times are ticks of the scenario: milliseconds or seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) arrives_at: u64,
    pub(crate) team: usize,
    /// Which kind of gang it is, for the report.
    pub(crate) class: usize,
    pub(crate) priority: i32,
    /// What it is charged, in whatever the quotas count.
    pub(crate) size: u64,
    /// How long it runs if nobody stops it.
    pub(crate) runs_for: u64,
}

/// What a scheduler decided.
#[derive(Debug, Default)]
pub(crate) struct Step {
    /// Gangs that give way, before the admissions.
    pub(crate) evicted: Vec<usize>,
    pub(crate) admitted: Vec<usize>,
    /// When it wants to be asked though nothing happened.
    pub(crate) ask_again_at: Option<u64>,
}

/// Who decides. Gangs are named by their position among the jobs, which is the order of their arrival.
pub(crate) trait Scheduler {
    /// A gang waits, for the first time or again.
    fn wait(&mut self, job: usize);
    /// A gang was asked to give way, and will.
    fn will_end(&mut self, job: usize, now: u64);
    /// What a gang held is free.
    fn release(&mut self, job: usize);
    /// Decides something; is asked until there is nothing more to decide.
    fn decide(&mut self, now: u64) -> Result<Step>;
}

/// What happened to one gang.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) first_admitted_at: Option<u64>,
    pub(crate) last_admitted_at: Option<u64>,
    pub(crate) finished_at: Option<u64>,
    pub(crate) evictions: u32,
}

/// What happened.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) records: Vec<Record>,
    pub(crate) measured: Measured,
    /// When the last gang ended.
    pub(crate) makespan: u64,
    pub(crate) evictions: u64,
    /// Held, but of no use: progress that was lost and what restarts took.
    pub(crate) lost: u128,
}

/// How gangs run and what is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// What all gangs together may be charged.
    pub(crate) capacity: u64,
    /// Up to when use is measured; to the end without it.
    pub(crate) horizon: Option<u64>,
    pub(crate) interruption: Interruption,
    /// For how long a gang that is to give way may run on to its next checkpoint.
    pub(crate) notice: u64,
}

/// How far a replay is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Status {
    pub(crate) now: u64,
    pub(crate) finished: usize,
    pub(crate) waiting: usize,
}

impl std::fmt::Display for Status {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            now,
            finished,
            waiting,
        } = self;
        write!(formatter, "{finished} ended and {waiting} wait at {now}")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    ToCome,
    Waiting,
    Running { since: u64 },
    Ended,
}

/// The world around a scheduler.
struct World<'a, S> {
    jobs: &'a [Job],
    rules: Rules,
    scheduler: &'a mut S,
    states: Vec<State>,
    runs: Vec<Run>,
    records: Vec<Record>,
    gauges: Gauges,
    now: u64,
    /// Ends of runs: when, whose, and of which admission.
    ends: BinaryHeap<Reverse<(u64, usize, u32)>>,
    admissions: Vec<u32>,
    /// Gangs that give way, by when they do.
    leaving: BTreeSet<(u64, usize)>,
    leaves_at: BTreeMap<usize, u64>,
    finished: usize,
    waiting: usize,
    makespan: u64,
    evictions: u64,
    lost: u128,
}

/// Runs all jobs, which come in the order of their arrival, to their end. Fails if some never run, if more is held than there is, or
/// if what was held is not what the gangs needed and what was lost.
pub(crate) fn replay<S: Scheduler>(
    jobs: &[Job],
    teams: usize,
    rules: Rules,
    scheduler: &mut S,
    mut each_instant: impl FnMut(Status),
) -> Result<Outcome> {
    ensure!(
        jobs.is_sorted_by_key(|job| job.arrives_at),
        "the gangs are not in the order of their arrival"
    );
    let mut world = World {
        jobs,
        rules,
        scheduler,
        states: vec![State::ToCome; jobs.len()],
        runs: jobs.iter().map(|job| Run::of(job.runs_for)).collect(),
        records: vec![Record::default(); jobs.len()],
        gauges: Gauges::new(rules, teams),
        now: 0,
        ends: BinaryHeap::new(),
        admissions: vec![0; jobs.len()],
        leaving: BTreeSet::new(),
        leaves_at: BTreeMap::new(),
        finished: 0,
        waiting: 0,
        makespan: 0,
        evictions: 0,
        lost: 0,
    };
    let mut arrived = 0;
    let mut ask_again_at = None;
    loop {
        let arrival = jobs.get(arrived).map(|job| job.arrives_at);
        let Some(next) = world.next_event(arrival, ask_again_at) else {
            break;
        };
        world.advance_to(next)?;
        world.end_what_is_over();
        while let Some(job) = jobs.get(arrived).filter(|job| job.arrives_at <= next) {
            world.arrive(arrived, job);
            arrived += 1;
        }
        ask_again_at = world.decide()?;
        each_instant(Status {
            now: next,
            finished: world.finished,
            waiting: world.waiting,
        });
    }
    world.outcome()
}

impl<S: Scheduler> World<'_, S> {
    fn next_event(&mut self, arrival: Option<u64>, ask_again_at: Option<u64>) -> Option<u64> {
        while let Some(Reverse((_, job, admission))) = self.ends.peek().copied()
            && (self.admissions[job] != admission
                || !matches!(self.states[job], State::Running { .. }))
        {
            self.ends.pop();
        }
        let end = self.ends.peek().map(|Reverse((at, ..))| *at);
        let leave = self.leaving.first().map(|(at, _)| *at);
        // A scheduler that wants to be asked at once was asked until it had nothing to say.
        let again = ask_again_at.map(|at| at.max(self.now + 1));
        [arrival, end, leave, again].into_iter().flatten().min()
    }

    fn advance_to(&mut self, next: u64) -> Result<()> {
        ensure!(
            self.gauges.held() <= self.rules.capacity,
            "{} of {} are held at {}",
            self.gauges.held(),
            self.rules.capacity,
            self.now
        );
        self.gauges.advance(self.now, next);
        self.now = next;
        Ok(())
    }

    fn arrive(&mut self, job: usize, of: &Job) {
        self.gauges.note_event(of.team, self.now);
        self.wait(job);
    }

    fn wait(&mut self, job: usize) {
        self.states[job] = State::Waiting;
        self.waiting += 1;
        self.gauges.waits(self.jobs[job].size);
        self.scheduler.wait(job);
    }

    fn end_what_is_over(&mut self) {
        while let Some(Reverse((at, job, admission))) = self.ends.peek().copied()
            && at <= self.now
        {
            self.ends.pop();
            if self.admissions[job] == admission
                && matches!(self.states[job], State::Running { .. })
            {
                let lost = self.runs[job].finish();
                self.lost += self.lost_by(lost, job);
                self.stop(job);
                self.states[job] = State::Ended;
                self.records[job].finished_at = Some(self.now);
                self.finished += 1;
                self.makespan = self.now;
            }
        }
        while let Some((at, job)) = self.leaving.first().copied()
            && at <= self.now
        {
            self.evict(job);
        }
    }

    fn lost_by(&self, ticks: u64, job: usize) -> u128 {
        u128::from(ticks) * u128::from(self.jobs[job].size)
    }

    fn stop(&mut self, job: usize) {
        if let Some(at) = self.leaves_at.remove(&job) {
            self.leaving.remove(&(at, job));
        }
        let Job { team, size, .. } = self.jobs[job];
        self.gauges.release(team, size, self.now);
        self.scheduler.release(job);
    }

    /// A gang ends early and waits again.
    fn evict(&mut self, job: usize) {
        let State::Running { since } = self.states[job] else {
            return;
        };
        let lost = self.runs[job].interrupt(self.rules.interruption, since, self.now);
        self.lost += self.lost_by(lost, job);
        self.evictions += 1;
        self.records[job].evictions += 1;
        self.stop(job);
        self.wait(job);
    }

    fn ask_to_leave(&mut self, job: usize) -> Result<()> {
        let State::Running { since } = self.states[job] else {
            anyhow::bail!("gang {job} is to give way and does not run");
        };
        if self.leaves_at.contains_key(&job) {
            return Ok(());
        }
        let checkpoint = self.runs[job].next_checkpoint(self.rules.interruption, since, self.now);
        let latest = self.now + self.rules.notice;
        let at = checkpoint.map_or(latest, |checkpoint| checkpoint.min(latest));
        if at == self.now {
            self.evict(job);
        } else {
            self.leaving.insert((at, job));
            self.leaves_at.insert(job, at);
            self.scheduler.will_end(job, self.now);
        }
        Ok(())
    }

    fn decide(&mut self) -> Result<Option<u64>> {
        loop {
            let step = self.scheduler.decide(self.now)?;
            if step.evicted.is_empty() && step.admitted.is_empty() {
                return Ok(step.ask_again_at);
            }
            for job in step.evicted {
                self.ask_to_leave(job)?;
            }
            for job in step.admitted {
                self.start(job)?;
            }
        }
    }

    fn start(&mut self, job: usize) -> Result<()> {
        ensure!(
            self.states[job] == State::Waiting,
            "gang {job} is admitted and does not wait"
        );
        self.states[job] = State::Running { since: self.now };
        self.waiting -= 1;
        self.admissions[job] += 1;
        let Job { team, size, .. } = self.jobs[job];
        self.gauges.starts(team, size, self.now);
        let record = &mut self.records[job];
        record.first_admitted_at.get_or_insert(self.now);
        record.last_admitted_at = Some(self.now);
        let end = self.now + self.runs[job].start();
        self.ends.push(Reverse((end, job, self.admissions[job])));
        Ok(())
    }

    fn outcome(self) -> Result<Outcome> {
        ensure!(
            self.finished == self.jobs.len(),
            "{} of {} gangs never ended, and nothing is to come",
            self.jobs.len() - self.finished,
            self.jobs.len()
        );
        let needed = self.jobs.iter();
        let needed: u128 = needed
            .map(|job| u128::from(job.size) * u128::from(job.runs_for))
            .sum();
        let (held, lost) = (self.gauges.held_in_all(), self.lost);
        ensure!(
            held == needed + lost,
            "{held} were held, of {needed} that were needed and {lost} that were lost"
        );
        Ok(Outcome {
            records: self.records,
            measured: self.gauges.measured(self.now),
            makespan: self.makespan,
            evictions: self.evictions,
            lost,
        })
    }
}

#[cfg(test)]
mod tests;
