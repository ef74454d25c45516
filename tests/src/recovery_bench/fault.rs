//! A GPU of the gang breaks.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{
    Bench, RUN_LIMIT, XID,
    cases::Case,
    gang::{NAMESPACE, RANKS, Running},
    report::{Counts, FaultReport, FaultTimes},
    restarts::Before,
    seconds,
    watched::Seen,
};
use crate::{
    faults::{Fault, TargetGpu},
    gangs,
    kubernetes::{Progress, eventually},
};

/// How long nothing is done after a case, so that a restart that was about to happen is seen.
const AFTERMATH: Duration = Duration::from_secs(5);

/// What came of a fault.
#[derive(Clone, Copy, Debug)]
struct Measured {
    times: FaultTimes,
    /// Whether old and new pods were mixed.
    is_mixed: bool,
    /// Whether other than so many ranks died as the case says.
    died_otherwise: bool,
}

/// What was seen after a fault so far.
#[derive(Clone, Copy, Debug)]
struct Aftermath {
    taint: Option<Instant>,
    intent: Option<Instant>,
    deleted: Option<Instant>,
    /// An attempt, and when all of it ran.
    running: Option<(i64, Instant)>,
}

impl<Say: Fn(&str)> Bench<'_, Say> {
    /// Injects so many faults, one after another.
    pub(super) async fn measure_faults(&mut self, case: Case, runs: u32) -> Result<FaultReport> {
        self.say(&format!(
            "case {case}: ranks take {} s of grace, {} of {RANKS} die with their GPU",
            case.grace_seconds(),
            case.ranks_died
        ));
        let began = Instant::now();
        let (mut times, mut counts) = (Vec::new(), Counts::default());
        for run in 0..runs {
            let context = || format!("case {case}, run {} of {runs}", run + 1);
            let measured = self.run_fault(case, run).await.with_context(context)?;
            let one = measured.times;
            let intent = one.intent.map_or_else(
                || "nobody evicted".to_owned(),
                |intent| format!("intent {intent:.2} s"),
            );
            self.say(&format!(
                "{}: taint {:.2} s, {intent}, all deleted {:.1} s, all running {:.1} s",
                context(),
                one.taint,
                one.deleted,
                one.running
            ));
            times.push(one);
            counts.partial += usize::from(measured.is_mixed);
            counts.died_otherwise += usize::from(measured.died_otherwise);
        }
        tokio::time::sleep(AFTERMATH).await;
        self.ensure_all_was_seen()?;
        counts.wrong = self.wrong_since(began);
        Ok(FaultReport::of(case, &times, counts))
    }

    /// One fault.
    async fn run_fault(&mut self, case: Case, run: u32) -> Result<Measured> {
        let (gang, before) = self.start_gang("fault", case.behaviour()).await?;
        let faulty = run % RANKS;
        let gpu = self.gpu_of(&gang, faulty).await?;
        self.note_holders(&gpu).await?;

        let began = gpu.inject(Fault::Xid(XID))?;
        for rank in case.told_to_die(faulty) {
            gang.ranks.fail(rank)?;
        }
        let restarted = self.wait_for_restart(case, &before, &gpu, began);
        let (times, again) = restarted.await?;
        // What those of the attempt that runs now report comes later.
        let (died, dying) = (gang.died(), case.dying());
        if died != dying {
            self.findings.push(format!(
                "DIED: {died} ranks of gang {} died, and {dying} were to",
                before.gang
            ));
        }
        self.ensure_all_was_seen()?;
        let mixed = self.watched.ask(|seen| seen.mixed(&before, again, None));
        let is_mixed = self.note_mixed(&before.gang, mixed);

        gang.finish(&self.client).await?;
        gpu.clear(self.cluster).await?;
        Ok(Measured {
            times,
            is_mixed,
            died_otherwise: died != dying,
        })
    }

    /// A GPU that a rank of the gang has.
    async fn gpu_of(&self, gang: &Running, rank: u32) -> Result<TargetGpu> {
        let held = TargetGpu::held_by(self.cluster, &gang.gang).await?;
        let gpus = held.into_iter().find(|(of, _)| *of == rank);
        let gpu = gpus.and_then(|(_, gpus)| gpus.into_iter().next());
        gpu.with_context(|| format!("rank {rank} of {} has no GPU", gang.job))
    }

    /// Whoever holds the GPU is meant by its fault: by the claims of the pods that are there, and nobody else's word.
    async fn note_holders(&mut self, gpu: &TargetGpu) -> Result<()> {
        let granted = gangs::granted(&self.client, NAMESPACE).await?;
        let device = (gpu.node.clone(), gpu.device.clone());
        let holders = self.watched.ask(|seen| {
            let pods = seen.pods.values().filter(|pod| pod.runs());
            let holding = pods.filter(|pod| {
                let devices = granted.get(&pod.name);
                devices.is_some_and(|devices| devices.contains(&device))
            });
            holding
                .filter_map(|pod| pod.gang.clone())
                .collect::<Vec<_>>()
        });
        self.meant.extend(holders);
        Ok(())
    }

    /// Waits until another attempt runs whole and everything before it was seen.
    async fn wait_for_restart(
        &self,
        case: Case,
        before: &Before,
        gpu: &TargetGpu,
        began: Instant,
    ) -> Result<(FaultTimes, (i64, Instant))> {
        let what = format!("gang {} runs whole in another attempt", before.gang);
        eventually(&what, RUN_LIMIT, async || {
            let seen = self.watched.ask(|seen| Aftermath::of(seen, before, gpu));
            Ok(match seen {
                Aftermath {
                    taint: Some(taint),
                    intent,
                    deleted: Some(deleted),
                    running: Some((attempt, running)),
                } if intent.is_some() || !case.is_always_evicted() => {
                    let times = FaultTimes {
                        taint: seconds(began, taint),
                        intent: intent.map(|intent| seconds(began, intent)),
                        deleted: seconds(began, deleted),
                        running: seconds(began, running),
                        attempts: attempt - before.attempt,
                    };
                    Progress::Done((times, (attempt, running)))
                }
                other => Progress::NotYet(format!("{other:?}")),
            })
        })
        .await
    }
}

impl Aftermath {
    fn of(seen: &Seen, before: &Before, gpu: &TargetGpu) -> Self {
        let device = (gpu.node.clone(), gpu.device.clone());
        let evicted = (before.gang.clone(), before.attempt);
        Self {
            taint: seen.tainted.get(&device).copied(),
            intent: seen.evicted.get(&evicted).copied(),
            deleted: seen.gone_since(&before.pods),
            running: seen.whole_after(&before.gang, before.attempt, RANKS as usize),
        }
    }
}
