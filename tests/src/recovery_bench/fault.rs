//! GPUs of gangs break: one after another, or as many at a time as there are gangs side by side.
//!
//! What is side by side goes step by step: all gangs run before the first of their GPUs breaks, all are back, or known not to be, before the
//! first is ended, and all GPUs are mended before the next gangs start. So no gang waits for the room of one that is measured otherwise.
//!
//! A run that fails is told of and counted, and the others go on: a gang that was not back in time is one that took longer than any
//! ([`FaultReport::unfinished_runs`]), and where nothing can be said there are no times ([`FaultReport::unmeasured_runs`]). Only what cannot
//! be put in order again ends the measurement.

use std::{
    collections::BTreeSet,
    fmt,
    time::{Duration, Instant},
};

use anyhow::{Context, Error, Result, anyhow};
use futures::future::join_all;

use super::{
    Bench, Options, RUN_LIMIT, XID,
    aftermath::{self, Aftermath},
    cases::Case,
    gang::{self, NAMESPACE, RANKS, Running},
    in_vain::InVain,
    report::FaultReport,
    restarts::Before,
    times::{Counts, FaultTimes},
};
use crate::{
    failure_report,
    faults::{Fault, TargetGpu},
    gangs,
    kubernetes::{Progress, eventually},
};

/// How long nothing is done after a case, so that a restart that was about to happen is seen.
const AFTERMATH: Duration = Duration::from_secs(5);

/// A fault that is to be injected.
#[derive(Debug)]
struct Planned {
    case: Case,
    /// Which run it is, from 0.
    run: u32,
    /// How many there are.
    of: u32,
    job: String,
}

/// A gang that runs, and the GPU of it that is to break.
#[derive(Debug)]
struct Ready {
    gang: Running,
    before: Before,
    gpu: TargetGpu,
}

/// What came of a fault.
#[derive(Debug)]
struct Broken {
    /// The gangs that held the GPU.
    holders: BTreeSet<String>,
    injected_at: Instant,
    times: FaultTimes,
    /// The attempt in which the gang was whole again, and since when.
    again: Option<(i64, Instant)>,
    /// Why the wait for all of it ended, if that was not because all of it was seen.
    in_vain: Option<Error>,
    /// Ranks that ended by themselves.
    died: u32,
}

/// What a case has shown so far.
#[derive(Debug, Default)]
struct SoFar {
    times: Vec<FaultTimes>,
    counts: Counts,
}

impl SoFar {
    /// How many gangs came back.
    fn back(&self) -> usize {
        let back = self.times.iter().filter(|times| times.running.is_some());
        back.count()
    }
}

impl<Say: Fn(&str)> Bench<'_, Say> {
    /// Injects as many faults as the options say. `keep` gets what was measured after each run, with what was found in this case.
    pub(super) async fn measure_faults(
        &mut self,
        case: Case,
        options: &Options,
        keep: impl Fn(FaultReport, &[String]) -> Result<()>,
    ) -> Result<FaultReport> {
        self.say(&format!(
            "case {case}: ranks take {} s of grace, {} of {RANKS} die with their GPU",
            case.grace_seconds(),
            case.ranks_died
        ));
        let (began, gaps) = (Instant::now(), self.gaps());
        let mut so_far = SoFar::default();
        let (mut next, mut in_vain) = (0, InVain::default());
        while next < options.runs {
            let end = next.saturating_add(options.side_by_side.max(1));
            let end = end.min(options.runs);
            let mut planned = Vec::new();
            for run in next..end {
                planned.push(Planned {
                    case,
                    run,
                    of: options.runs,
                    job: self.new_job("fault"),
                });
            }
            next = end;
            let before = so_far.back();
            let ended = self.run_side_by_side(&planned, &mut so_far).await;
            self.note_observed();
            let mut findings = self.wrong_since(began);
            let counts = so_far.counts.with_wrong(findings.len());
            findings.extend_from_slice(&self.findings);
            keep(FaultReport::of(case, &so_far.times, counts), &findings)?;
            ended?;
            let last = self.findings.last().map_or("", String::as_str);
            in_vain.note(so_far.back() > before, &format!("case {case}"), last)?;
        }
        tokio::time::sleep(AFTERMATH).await;
        self.note_gaps(gaps);
        let wrong = self.wrong_since(began);
        let counts = so_far.counts.with_wrong(wrong.len());
        self.findings.extend(wrong);
        Ok(FaultReport::of(case, &so_far.times, counts))
    }

    /// These faults, at one time. An error: what they have left cannot be put in order.
    async fn run_side_by_side(&mut self, planned: &[Planned], so_far: &mut SoFar) -> Result<()> {
        let gaps = self.gaps();
        let bench = &*self;
        let ready = join_all(planned.iter().map(|one| bench.get_ready(one))).await;
        let pairs = planned.iter().zip(&ready);
        let broken = join_all(pairs.map(|(one, ready)| bench.break_gpu(one, ready))).await;
        let has_gap = self.gaps() != gaps;
        let mut returned = Vec::new();
        for ((one, ready), broken) in planned.iter().zip(&ready).zip(broken) {
            returned.push(self.note(one, ready, broken, has_gap, so_far));
        }

        let bench = &*self;
        let ends = planned.iter().zip(&ready).zip(&returned);
        let ends = ends.map(|((one, ready), returned)| {
            bench.clean_up(&one.job, ready.as_ref().ok(), returned.is_some())
        });
        let ends = join_all(ends).await;
        let mut first_error = None;
        for ((one, end), returned) in planned.iter().zip(ends).zip(returned) {
            match end {
                Ok(None) => {}
                Ok(Some(trouble)) => self.findings.push(format!("END: {one}: {trouble}")),
                Err(error) => {
                    let error = error.context(format!("{one}: clearing up"));
                    first_error.get_or_insert(error);
                }
            }
            let Some((gang, attempt)) = returned else {
                continue;
            };
            if self
                .watched
                .ask(|seen| seen.restarted_after(&gang, attempt))
            {
                so_far.counts.wrong += 1;
                self.findings.push(format!(
                    "WRONG: gang {gang} was restarted once more after attempt {attempt} ran, without another fault"
                ));
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Starts a gang, and finds the GPU of it that is to break.
    async fn get_ready(&self, planned: &Planned) -> Result<Ready> {
        let behaviour = planned.case.behaviour();
        let (gang, before) = self.start_gang(&planned.job, behaviour).await?;
        let gpu = self.gpu_of(&gang, planned.faulty_rank()).await?;
        Ok(Ready { gang, before, gpu })
    }

    /// Breaks the GPU and waits for what comes of it; nothing without a gang that runs. What the cluster looks like when that fails is written down, by the
    /// name of the Job.
    async fn break_gpu(&self, planned: &Planned, ready: &Result<Ready>) -> Option<Result<Broken>> {
        let Ok(ready) = ready else {
            failure_report::write(self.cluster, &planned.job).await;
            return None;
        };
        let broken = self.break_gpu_of(planned, ready).await;
        if !matches!(&broken, Ok(broken) if broken.in_vain.is_none()) {
            failure_report::write(self.cluster, &planned.job).await;
        }
        Some(broken)
    }

    async fn break_gpu_of(&self, planned: &Planned, ready: &Ready) -> Result<Broken> {
        let Ready { gang, before, gpu } = ready;
        let holders = self.holders(gpu).await?;
        let began = gpu.inject(Fault::Xid(XID))?;
        let told = planned.case.told_to_die(planned.faulty_rank());
        for rank in &told {
            gang.ranks.fail(*rank)?;
        }
        let look = || {
            self.watched
                .ask(|seen| Aftermath::of(seen, before, gpu, began))
        };
        let what = format!("gang {} runs whole in another attempt", before.gang);
        let waited = eventually(&what, RUN_LIMIT, async || {
            let seen = look();
            if seen.intent.is_some() {
                // Who lives still was not fast enough; it must not be the next attempt that dies of it.
                for rank in &told {
                    gang.ranks.take_back_to_fail(*rank);
                }
            }
            if seen.is_late(planned.case, Instant::now()) {
                return Ok(Progress::Never(anyhow!(
                    "it runs for {} s, and not all that comes before was seen: {seen:?}",
                    aftermath::LATE.as_secs()
                )));
            }
            Ok(Progress::when(seen.is_complete(planned.case), || {
                format!("{seen:?}")
            }))
        })
        .await;
        let seen = look();
        Ok(Broken {
            holders,
            injected_at: began,
            times: seen.times(before, began),
            again: seen.running,
            in_vain: waited.err(),
            // What those of the attempt that runs now report comes later.
            died: gang.died(),
        })
    }

    /// Notes what came of a fault. The gang and the attempt in which it runs again, if it does.
    fn note(
        &mut self,
        planned: &Planned,
        ready: &Result<Ready>,
        broken: Option<Result<Broken>>,
        has_gap: bool,
        so_far: &mut SoFar,
    ) -> Option<(String, i64)> {
        let came = match (ready, broken) {
            (Ok(ready), Some(Ok(broken))) => Ok((&ready.before, broken)),
            (Ok(_), Some(Err(error))) => Err(format!("its GPU did not break: {error:#}")),
            (Ok(_), None) => Err("its GPU was not broken".to_owned()),
            (Err(error), _) => Err(format!("it did not start: {error:#}")),
        };
        let (before, broken) = match came {
            Ok(came) => came,
            Err(why) => {
                if ready.is_err() {
                    let now = Instant::now();
                    for gang in self.gangs_of(planned) {
                        self.note_evicted_before(&gang, now, so_far);
                    }
                }
                self.note_unmeasured(planned, &why, so_far);
                return None;
            }
        };
        self.note_evicted_before(&before.gang, broken.injected_at, so_far);
        self.meant.extend(broken.holders);
        let returned = broken
            .again
            .map(|(attempt, _)| (before.gang.clone(), attempt));
        if has_gap {
            let why = "a watch had to list anew and may have missed something";
            self.note_unmeasured(planned, why, so_far);
            return returned;
        }
        let (died, dying) = (broken.died, planned.case.dying());
        if died != dying {
            so_far.counts.died_otherwise += 1;
            self.findings.push(format!(
                "DIED: {died} ranks of gang {} died, and {dying} were to",
                before.gang
            ));
        }
        if let Some(error) = broken.in_vain {
            self.note_for_later(format!(
                "UNFINISHED: {planned}, Job {}: {error:#}",
                planned.job
            ));
        }
        if let Some(again) = broken.again {
            let mixed = self.watched.ask(|seen| seen.mixed(before, again, None));
            so_far.counts.partial += usize::from(self.note_mixed(&before.gang, mixed));
        }
        self.say(&format!("{planned}: {}", broken.times));
        so_far.times.push(broken.times);
        returned
    }

    fn note_unmeasured(&mut self, planned: &Planned, why: &str, so_far: &mut SoFar) {
        so_far.counts.unmeasured += 1;
        let finding = format!("UNMEASURED: {planned}, Job {}: {why}", planned.job);
        self.note_for_later(finding);
        // What is cleared away is no restart.
        let gangs = self.gangs_of(planned);
        self.meant.extend(gangs);
    }

    /// Notes if the gang was evicted while none of its GPUs was broken: from then on it may be, so nothing else tells.
    fn note_evicted_before(&mut self, gang: &str, fault_at: Instant, so_far: &mut SoFar) {
        if self.watched.ask(|seen| seen.evicted_before(gang, fault_at)) {
            so_far.counts.wrong += 1;
            self.findings.push(format!(
                "WRONG: gang {gang} was evicted before its GPU broke"
            ));
        }
    }

    fn gangs_of(&self, planned: &Planned) -> BTreeSet<String> {
        let job = format!("{NAMESPACE}/{}", planned.job);
        self.watched.ask(|seen| seen.gangs_of_job(&job))
    }

    /// Nothing is left of the gang, which ends well if it runs, and its GPU is in order. What went otherwise and could be helped, in words.
    async fn clean_up(
        &self,
        job: &str,
        ready: Option<&Ready>,
        runs_again: bool,
    ) -> Result<Option<String>> {
        let finished = match ready.filter(|_| runs_again) {
            Some(ready) => ready.gang.finish(&self.client).await,
            None => gang::delete(&self.client, NAMESPACE, job).await,
        };
        let mut trouble: Vec<String> = Vec::new();
        if let Err(error) = finished {
            trouble.push(format!("{error:#}"));
            gang::delete(&self.client, NAMESPACE, job).await?;
        }
        if let Some(ready) = ready
            && let Err(error) = ready.gpu.clear(self.cluster).await
        {
            // Once more: that a busy machine took longer this time is no reason to lose all runs that are left. To say it twice changes nothing.
            let error = format!("{error:#}");
            let again = ready.gpu.clear(self.cluster).await;
            again.with_context(|| format!("mending the GPU again, after: {error}"))?;
            trouble.push(format!("the GPU was mended at the second try: {error}"));
        }
        Ok((!trouble.is_empty()).then(|| trouble.join("; ")))
    }

    /// A GPU that a rank of the gang has.
    async fn gpu_of(&self, gang: &Running, rank: u32) -> Result<TargetGpu> {
        let held = TargetGpu::held_by(self.cluster, &gang.gang).await?;
        let gpus = held.into_iter().find(|(of, _)| *of == rank);
        let gpu = gpus.and_then(|(_, gpus)| gpus.into_iter().next());
        gpu.with_context(|| format!("rank {rank} of {} has no GPU", gang.job))
    }

    /// Whoever holds the GPU is meant by its fault: by the claims of the pods that are there, and nobody else's word.
    async fn holders(&self, gpu: &TargetGpu) -> Result<BTreeSet<String>> {
        let granted = gangs::granted(&self.client, NAMESPACE).await?;
        let device = (gpu.node.clone(), gpu.device.clone());
        Ok(self.watched.ask(|seen| {
            let pods = seen.pods.values().filter(|pod| pod.runs());
            let holding = pods.filter(|pod| {
                let devices = granted.get(&pod.name);
                devices.is_some_and(|devices| devices.contains(&device))
            });
            holding.filter_map(|pod| pod.gang.clone()).collect()
        }))
    }
}

impl Planned {
    /// Another rank in each run.
    fn faulty_rank(&self) -> u32 {
        self.run % RANKS
    }
}

impl fmt::Display for Planned {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (case, run, of) = (self.case, self.run + 1, self.of);
        write!(formatter, "case {case}, run {run} of {of}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gang_that_was_measured_and_did_not_come_back_is_none_that_did() {
        let away = FaultTimes {
            taint: Some(0.5),
            ..FaultTimes::default()
        };
        let back = FaultTimes {
            running: Some(40.0),
            ..away
        };
        for (times, expected) in [(vec![], 0), (vec![away], 0), (vec![away, back], 1)] {
            let so_far = SoFar {
                times,
                ..SoFar::default()
            };
            assert_eq!(so_far.back(), expected);
        }
    }
}
