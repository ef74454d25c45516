//! The engine and the scheduler that is written apart admit the same gangs at the same times in small random scenarios
//! without preemption. (With it they differ where several gangs preempt at one moment: the engine waits for the release, and the other
//! one has the victims compete at once.)

use anyhow::Result;
use muster_engine::quota::{PreemptionPolicy, Sharing, Weight};

use super::zero_latency::ZeroLatency;
use crate::replay::{
    Interruption, Job, Record, Rules, Scheduler,
    engine::{Engine, Setting, TeamLimits},
    replay,
};

/// A small generator of numbers that are the same everywhere (Knuth's MMIX constants).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn scenario(seed: u64) -> (Vec<TeamLimits>, Vec<Job>) {
    let mut numbers = Numbers(seed);
    let teams: Vec<TeamLimits> = (0..2 + numbers.below(4))
        .map(|team| TeamLimits {
            name: format!("team-{team}"),
            cohort: Some(format!("cohort-{}", numbers.below(2))),
            nominal: 4 + numbers.below(5),
            borrowing_limit: [None, Some(numbers.below(9))][choice(&mut numbers)],
            weight: Weight::ONE,
            preemption: PreemptionPolicy::NEVER,
        })
        .collect();
    let mut jobs: Vec<Job> = (0..60)
        .map(|_| {
            let team = usize::try_from(numbers.below(teams.len() as u64)).unwrap_or(0);
            Job {
                arrives_at: numbers.below(120),
                team,
                class: 0,
                priority: i32::try_from(numbers.below(3)).unwrap_or(0),
                size: 1 + numbers.below(teams[team].nominal),
                runs_for: 5 + numbers.below(30),
            }
        })
        .collect();
    jobs.sort_by_key(|job| job.arrives_at);
    (teams, jobs)
}

fn choice(numbers: &mut Numbers) -> usize {
    usize::from(numbers.below(2) == 1)
}

fn records(teams: &[TeamLimits], jobs: &[Job], by: &mut impl Scheduler) -> Result<Vec<Record>> {
    let rules = Rules {
        capacity: teams.iter().map(|team| team.nominal).sum(),
        horizon: None,
        interruption: Interruption::Free,
        notice: 0,
    };
    Ok(replay(jobs, teams.len(), rules, by, |_| {})?.records)
}

#[test]
fn engine_and_zero_latency_scheduler_admit_the_same_gangs_at_the_same_times() -> Result<()> {
    let mut waited = 0;
    for seed in 0..30 {
        let (teams, jobs) = scenario(seed);
        let apart = records(&teams, &jobs, &mut ZeroLatency::new(&jobs, &teams))?;
        let setting = Setting {
            teams: teams.clone(),
            pools: Vec::new(),
            sharing: Sharing::ByPriority,
            preemptions: jobs.len(),
            min_runtime: 0,
            notice: 0,
        };
        let engine = records(&teams, &jobs, &mut Engine::new(&jobs, &setting)?)?;
        let differs = (0..jobs.len()).find(|job| apart[*job] != engine[*job]);
        assert_eq!(
            differs.map(|job| (job, apart[job], engine[job])),
            None,
            "seed {seed}: {teams:?} {jobs:?}"
        );
        let waits = jobs.iter().zip(&apart);
        waited += waits
            .filter(|(job, it)| it.first_admitted_at > Some(job.arrives_at))
            .count();
    }
    assert!(waited > 300, "{waited} had to wait");
    Ok(())
}
