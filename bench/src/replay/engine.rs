//! The engine that ships as the scheduler of a replay, told what the protocol would tell it.
//!
//! No nodes are modelled: there are more of them than are ever full or kept for somebody, each with more than all gangs ask for, so
//! that quota alone decides. Only the engine's own work is timed; the objects that it is told are made before the watch runs.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, Result};
use muster_engine::{
    Admission, Amount, Budget, Cohort, CohortName, Decisions, Flavor, Gang, GangUid, Hold, Node,
    NodeFilterId, Pod, PodResources, Queueing, QuotaLimit, Resource, Running, Shrink, State, Stop,
    Team, Timestamp, TopologyRequest, Update,
    quota::{FlavorFungibility, PreemptionPolicy, Sharing, Weight},
};

use super::{Job, Scheduler, Step};
use crate::{report::micros, stopwatch::Stopwatch};

const FLAVOR: &str = "default";
const RESOURCE: &str = "example.com/unit";
const ANY_NODE: NodeFilterId = NodeFilterId(0);
/// More than all gangs together ask for, and far from any bound.
const ENOUGH: i64 = i64::MAX / 4;

/// Kubernetes' default for the pods of a node: what the engine does for a node may grow with its pods.
const PODS_PER_NODE: i64 = 110;

/// A Team as a scenario has it.
#[derive(Clone, Debug)]
pub(crate) struct TeamLimits {
    pub(crate) name: String,
    pub(crate) cohort: Option<String>,
    pub(crate) nominal: u64,
    /// `None`: as much as there is.
    pub(crate) borrowing_limit: Option<u64>,
    /// Where shares are fair, by how much more it may borrow than a Team of weight one.
    pub(crate) weight: Weight,
    pub(crate) preemption: PreemptionPolicy,
}

/// What the engine is to know besides gangs.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) teams: Vec<TeamLimits>,
    /// Cohorts with a pool of their own.
    pub(crate) pools: Vec<(String, u64)>,
    /// How the Teams below those share.
    pub(crate) sharing: Sharing<'static>,
    /// The most preemptions that are under way at once: each keeps a node.
    pub(crate) preemptions: usize,
    /// For how long after its admission nobody may preempt a gang, in ticks.
    pub(crate) min_runtime: u64,
    /// For how long a gang may run on once it is to give way, in ticks.
    pub(crate) notice: u64,
}

impl Setting {
    /// As many as all quota together fills with the smallest gangs, one for each preemption, and one more.
    fn nodes(&self, jobs: &[Job]) -> usize {
        let teams: u64 = self.teams.iter().map(|team| team.nominal).sum();
        let pools: u64 = self.pools.iter().map(|(_, pool)| pool).sum();
        let smallest = jobs.iter().map(|job| job.size).min().unwrap_or(1).max(1);
        let full = ((teams + pools) / smallest).div_ceil(PODS_PER_NODE.unsigned_abs());
        usize::try_from(full).unwrap_or(usize::MAX) + self.preemptions + 1
    }
}

/// What the engine took.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spent {
    /// Time on the processor for all that it was told and asked.
    pub(crate) processor: Duration,
    /// Of that, in decisions.
    pub(crate) deciding: Duration,
    pub(crate) admissions: u64,
    pub(crate) preemptions: u64,
    /// Microseconds of each call that decides, in the order of the calls.
    pub(crate) calls: Vec<f64>,
    /// Calls that decided nothing.
    pub(crate) calls_in_vain: u64,
}

pub(crate) struct Engine<'a> {
    jobs: &'a [Job],
    setting: &'a Setting,
    state: State,
    attempts: Vec<i64>,
    admitted_at: Vec<i64>,
    spent: Spent,
}

impl<'a> Engine<'a> {
    pub(crate) fn new(jobs: &'a [Job], setting: &'a Setting) -> Result<Self> {
        let mut state = State::new();
        state.apply(Update::Flavor(Flavor {
            name: FLAVOR.into(),
            topology: None,
            excluded: BTreeSet::new(),
        }));
        for (name, pool) in &setting.pools {
            state.apply(Update::Cohort(Cohort {
                name: name.as_str().into(),
                parent: None,
                quota: quota(*pool, None)?,
                weight: Weight::ONE,
                sharing: setting.sharing,
            }));
        }
        for limits in &setting.teams {
            state.apply(Update::Team(team(limits)?));
        }
        for number in 0..setting.nodes(jobs) {
            state.apply(Update::Node(node(&format!("node-{number:05}"))));
        }
        Ok(Self {
            jobs,
            setting,
            state,
            attempts: vec![0; jobs.len()],
            admitted_at: vec![0; jobs.len()],
            spent: Spent::default(),
        })
    }

    pub(crate) fn into_spent(self) -> Spent {
        self.spent
    }

    fn tell(&mut self, updates: impl IntoIterator<Item = Update>) {
        let updates: Vec<Update> = updates.into_iter().collect();
        let watch = Stopwatch::start();
        for update in updates {
            self.state.apply(update);
        }
        self.spent.processor += watch.elapsed();
    }

    fn gang(&self, job: usize) -> Gang {
        let Job {
            arrives_at,
            team,
            priority,
            size,
            ..
        } = self.jobs[job];
        let team = &self.setting.teams[team].name;
        let uid = uid(job);
        Gang {
            name: format!("{team}/{uid}"),
            attempt: self.attempts[job],
            team: team.as_str().into(),
            priority,
            queued_at: Timestamp(signed(arrives_at)),
            may_borrow: true,
            topology: TopologyRequest::default(),
            run_time: muster_engine::RunTime::default(),
            lacks_place_since: None,
            min_count: None,
            pods: vec![Pod {
                uid: format!("{uid}-{}", self.attempts[job]).into(),
                resources: PodResources {
                    pods: 1,
                    others: BTreeMap::from([(RESOURCE.into(), signed(size))]),
                    ..PodResources::default()
                },
                filter: ANY_NODE,
                claims: Vec::new(),
            }],
            uid,
        }
    }

    fn running(&self, job: usize, ending_since: Option<u64>) -> Running {
        let Job {
            arrives_at,
            team,
            priority,
            ..
        } = self.jobs[job];
        let admitted_at = self.admitted_at[job];
        let protected = signed(self.setting.min_runtime);
        Running {
            uid: uid(job),
            team: self.setting.teams[team].name.as_str().into(),
            priority,
            queued_at: Timestamp(signed(arrives_at)),
            admitted_at: Timestamp(admitted_at),
            protected_until: (protected > 0).then_some(Timestamp(admitted_at + protected)),
            checkpointed_at: None,
            is_made_again: true,
            ending_since: ending_since.map(|since| Timestamp(signed(since))),
            notice_seconds: signed(self.setting.notice),
            may_be_preempted: true,
            is_told_over_quota: false,
        }
    }

    /// What the protocol tells after an admission.
    fn note_admission(&mut self, admission: &Admission, now: u64) -> Result<usize> {
        let job = job_of(&admission.gang)?;
        let gang = self.gang(job);
        self.admitted_at[job] = signed(now);
        let mut updates: Vec<Update> = holds(&gang, admission).map(Update::Hold).collect();
        updates.push(Update::NotWaiting(gang.uid));
        updates.push(Update::Running(self.running(job, None)));
        self.tell(updates);
        Ok(job)
    }
}

impl Scheduler for Engine<'_> {
    fn wait(&mut self, job: usize) {
        self.attempts[job] += 1;
        let gang = self.gang(job);
        self.tell([Update::Waiting(gang)]);
    }

    fn will_end(&mut self, job: usize, now: u64) {
        let running = self.running(job, Some(now));
        self.tell([Update::Running(running)]);
    }

    fn release(&mut self, job: usize) {
        let pods = self.gang(job).pods.into_iter();
        let updates: Vec<Update> = std::iter::once(Update::NotRunning(uid(job)))
            .chain(pods.map(|pod| Update::HoldGone(pod.uid)))
            .collect();
        self.tell(updates);
    }

    fn decide(&mut self, now: u64) -> Result<Step> {
        let watch = Stopwatch::start();
        let decisions = self
            .state
            .decide(Timestamp(signed(now)), &Budget::UNLIMITED);
        let took = watch.elapsed();
        self.spent.processor += took;
        self.spent.deciding += took;
        let Decisions {
            admissions,
            preemptions,
            spared,
            look_again_at,
            ..
        } = decisions;
        if admissions.is_empty() && preemptions.is_empty() {
            self.spent.calls_in_vain += 1;
        }
        self.spent.calls.push(micros(took));
        self.spent.admissions += admissions.len() as u64;
        self.spent.preemptions += preemptions.len() as u64;
        let admitted: Result<Vec<usize>> = admissions
            .iter()
            .map(|admission| self.note_admission(admission, now))
            .collect();
        let victims: BTreeSet<GangUid> = preemptions
            .into_iter()
            .flat_map(|preemption| preemption.victims)
            .map(|victim| victim.gang)
            .filter(|victim| !spared.contains(victim))
            .collect();
        let evicted: Result<Vec<usize>> = victims.iter().map(job_of).collect();
        Ok(Step {
            admitted: admitted?,
            evicted: evicted?,
            ask_again_at: look_again_at.and_then(|at| u64::try_from(at.0).ok()),
        })
    }
}

/// Names sort as the jobs do.
fn uid(job: usize) -> GangUid {
    format!("gang-{job:07}").into()
}

fn job_of(gang: &GangUid) -> Result<usize> {
    let number = gang.as_str().strip_prefix("gang-");
    let number = number.with_context(|| format!("nobody told the engine of {gang}"))?;
    Ok(number.parse()?)
}

/// Sizes and ticks of a scenario are far below the bound.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(ENOUGH)
}

fn quota(nominal: u64, borrowing_limit: Option<u64>) -> Result<muster_engine::model::Quota> {
    let amount = |number: u64| -> Result<Amount> { Ok(Amount(i64::try_from(number)?)) };
    let limit = QuotaLimit {
        nominal: amount(nominal)?,
        borrowing_limit: borrowing_limit.map(amount).transpose()?,
        lending_limit: None,
        automatic: false,
    };
    let resource = Resource::Extended(RESOURCE.into());
    Ok(vec![(FLAVOR.into(), BTreeMap::from([(resource, limit)]))])
}

fn team(limits: &TeamLimits) -> Result<Team> {
    Ok(Team {
        name: limits.name.as_str().into(),
        generation: 1,
        cohort: limits.cohort.as_deref().map(CohortName::from),
        quota: quota(limits.nominal, limits.borrowing_limit)?,
        queueing: Queueing::BestEffort,
        stop: Stop::None,
        shrink: Shrink::Keep,
        fungibility: FlavorFungibility::default(),
        preemption: limits.preemption,
        weight: limits.weight,
        fairness: None,
    })
}

fn node(name: &str) -> Node {
    Node {
        name: name.into(),
        uid: name.to_owned(),
        block: None,
        allocatable: PodResources {
            pods: PODS_PER_NODE,
            others: BTreeMap::from([(RESOURCE.into(), ENOUGH)]),
            ..PodResources::default()
        },
        used: PodResources::default(),
        fabric: BTreeMap::new(),
        accelerator: BTreeMap::new(),
        filters: BTreeSet::from([ANY_NODE]).into(),
        devices: Vec::new(),
        counter_sets: std::sync::Arc::default(),
    }
}

fn holds<'a>(gang: &'a Gang, admission: &'a Admission) -> impl Iterator<Item = Hold> + 'a {
    let pods = gang.pods.iter().zip(&admission.pods);
    pods.map(|(pod, admitted)| Hold {
        pod: pod.uid.clone(),
        gang: gang.uid.clone(),
        gang_name: gang.name.clone(),
        team: gang.team.clone(),
        node: admitted.node.clone(),
        charged_to_node: false,
        resources: pod.resources.clone(),
        charged: admitted.charged.clone(),
        claims: Vec::new(),
        releasing: false,
    })
}

#[cfg(test)]
mod tests {
    use muster_engine::quota::{ReclaimWithinCohort, WithinTeam};

    use super::*;
    use crate::replay::{Interruption, Rules, replay};

    const RECLAIMS: PreemptionPolicy = PreemptionPolicy {
        within_team: WithinTeam::LowerPriority,
        reclaim_within_cohort: ReclaimWithinCohort::Any,
        ..PreemptionPolicy::NEVER
    };

    fn job(arrives_at: u64, team: usize, size: u64) -> Job {
        Job {
            arrives_at,
            team,
            class: 0,
            priority: 0,
            size,
            runs_for: 1_000,
        }
    }

    fn setting(min_runtime: u64, notice: u64) -> Setting {
        let team = |name: &str| TeamLimits {
            name: name.to_owned(),
            cohort: Some("all".to_owned()),
            nominal: 4,
            borrowing_limit: None,
            weight: Weight::ONE,
            preemption: RECLAIMS,
        };
        Setting {
            teams: vec![team("lender"), team("borrower")],
            pools: vec![("all".to_owned(), 2)],
            sharing: Sharing::ByPriority,
            preemptions: 8,
            min_runtime,
            notice,
        }
    }

    fn rules(notice: u64) -> Rules {
        Rules {
            capacity: 10,
            horizon: None,
            interruption: Interruption::LosesEverything,
            notice,
        }
    }

    #[test]
    fn who_borrows_gives_way_at_once_after_its_notice_or_after_its_minimum_run_time() -> Result<()>
    {
        // The borrower has the pool of the cohort and what the lender leaves; the lender comes at 100.
        let jobs = [job(0, 1, 5), job(10, 1, 5), job(100, 0, 4)];
        for (min_runtime, notice, started_at) in [(0, 0, 100), (0, 30, 130), (150, 0, 150)] {
            let setting = setting(min_runtime, notice);
            let mut engine = Engine::new(&jobs, &setting)?;
            let outcome = replay(&jobs, 2, rules(notice), &mut engine, |_| {})?;
            let what = format!("{min_runtime} {notice}");
            assert_eq!(
                outcome.records[2].first_admitted_at,
                Some(started_at),
                "{what}"
            );
            let evictions: Vec<u32> = outcome.records.iter().map(|it| it.evictions).collect();
            let victim = usize::from(min_runtime == 0);
            let mut wanted = vec![0, 0, 0];
            wanted[victim] = 1;
            assert_eq!(evictions, wanted, "{what}");
            let spent = engine.into_spent();
            assert_eq!((spent.admissions, spent.preemptions), (4, 1), "{what}");
            assert!(spent.processor >= spent.deciding && spent.deciding > Duration::ZERO);
        }
        Ok(())
    }
}
