//! Kueue's performance scenarios: `generator.yaml` as its runner reads it.
//!
//! Every set of every queue is created by itself, and the runner waits the interval before each creation: the first gang of a set
//! comes after one interval. One flavor, one resource; a gang is one pod.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use muster_engine::quota::{
    BorrowWithinCohort, PreemptionPolicy, ReclaimWithinCohort, Weight, WithinTeam,
};
use serde::Deserialize;

use crate::{
    replay::{Job, engine::TeamLimits},
    traces,
};

const SOURCE: &str =
    "github.com/kubernetes-sigs/kueue @ff69552e : test/performance/scheduler/configs (Apache-2.0)";

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Generator {
    cohorts: Vec<CohortClass>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CohortClass {
    class_name: String,
    count: usize,
    queues_sets: Vec<QueueClass>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct QueueClass {
    class_name: String,
    count: usize,
    nominal_quota: Quantity,
    borrowing_limit: Quantity,
    reclaim_within_cohort: String,
    within_cluster_queue: String,
    workloads_sets: Vec<WorkloadSet>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WorkloadSet {
    count: usize,
    creation_interval_ms: u64,
    workloads: Vec<Template>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Template {
    class_name: String,
    runtime_ms: u64,
    priority: i32,
    request: Quantity,
    #[serde(default = "one")]
    pod_count: u64,
}

fn one() -> u64 {
    1
}

/// Cores: a number, or a Kubernetes quantity in quotes.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Quantity {
    Whole(u64),
    Text(String),
}

impl Quantity {
    /// Thousandths.
    fn milli(&self) -> Result<u64> {
        let (number, factor) = match self {
            Self::Whole(number) => (*number, 1_000),
            Self::Text(text) => match text.strip_suffix('m') {
                Some(milli) => (milli.parse()?, 1),
                None => (text.parse()?, 1_000),
            },
        };
        number.checked_mul(factor).context("too many cores")
    }
}

/// Limits of `rangespec.yaml`, by which Kueue's own run passes.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RangeSpec {
    cmd: Command,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Command {
    max_wall_ms: serde_json::Value,
}

/// Which scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Name {
    Baseline,
    LargeScale,
}

impl Name {
    /// Its directory among Kueue's.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::LargeScale => "large-scale",
        }
    }
}

/// A scenario, ready to be replayed. Ticks are milliseconds, sizes thousandths of a core.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) jobs: Vec<Job>,
    /// Names of the kinds of gangs, in the order of the file.
    pub(crate) classes: Vec<String>,
    pub(crate) teams: Vec<TeamLimits>,
    /// Names of the kinds of Teams, and of which kind each Team is.
    pub(crate) team_classes: Vec<String>,
    pub(crate) team_class: Vec<usize>,
    pub(crate) cohorts: usize,
    /// The longest that Kueue's own run may take, in milliseconds.
    pub(crate) published_limit_ms: u64,
    /// File and SHA-256.
    pub(crate) checksums: Vec<(String, String)>,
}

impl Scenario {
    pub(crate) fn read(name: Name) -> Result<Self> {
        let directory = format!("kueue-perf/{}", name.as_str());
        let file = |file: &str| {
            let path = format!("{directory}/{file}");
            traces::read(&path, SOURCE).map(|read| (path, read))
        };
        let (generator_path, generator) = file("generator.yaml")?;
        let (range_path, range) = file("rangespec.yaml")?;
        let mut scenario = Self::parse(&generator.text).context(generator_path.clone())?;
        scenario.published_limit_ms = limit(&range.text).context(range_path.clone())?;
        scenario.checksums = vec![
            (generator_path, generator.sha256),
            (range_path, range.sha256),
        ];
        Ok(scenario)
    }

    fn parse(text: &str) -> Result<Self> {
        let generator: Generator = serde_saphyr::from_str(text)?;
        let mut scenario = Self {
            jobs: Vec::new(),
            classes: Vec::new(),
            teams: Vec::new(),
            team_classes: Vec::new(),
            team_class: Vec::new(),
            cohorts: 0,
            published_limit_ms: 0,
            checksums: Vec::new(),
        };
        for cohort in &generator.cohorts {
            for number in 0..cohort.count {
                scenario.cohorts += 1;
                let name = format!("{}-{number}", cohort.class_name);
                for queue in &cohort.queues_sets {
                    for number in 0..queue.count {
                        scenario.add_team(&name, number, queue)?;
                    }
                }
            }
        }
        ensure!(!scenario.jobs.is_empty(), "it creates nothing");
        // Stable: what comes at once stays in the order of cohorts, queues and sets.
        scenario.jobs.sort_by_key(|job| job.arrives_at);
        Ok(scenario)
    }

    fn add_team(&mut self, cohort: &str, number: usize, queue: &QueueClass) -> Result<()> {
        let team = self.teams.len();
        self.teams.push(TeamLimits {
            name: format!("{cohort}-{}-{number}", queue.class_name),
            cohort: Some(cohort.to_owned()),
            nominal: queue.nominal_quota.milli()?,
            borrowing_limit: Some(queue.borrowing_limit.milli()?),
            weight: Weight::ONE,
            preemption: queue.policy()?,
        });
        self.team_class
            .push(position(&mut self.team_classes, &queue.class_name));
        for set in &queue.workloads_sets {
            let created = (0..set.count).flat_map(|_| &set.workloads);
            for (template, number) in created.zip(1..) {
                let class = position(&mut self.classes, &template.class_name);
                let size = template.request.milli()?.checked_mul(template.pod_count);
                self.jobs.push(Job {
                    arrives_at: set.creation_interval_ms * number,
                    team,
                    class,
                    priority: template.priority,
                    size: size.context("too many cores")?,
                    runs_for: template.runtime_ms,
                });
            }
        }
        Ok(())
    }

    /// Only the first so many Cohorts, with their Teams and gangs.
    #[cfg(feature = "cluster")]
    pub(crate) fn keep_cohorts(&mut self, count: usize) {
        let mut names: Vec<&str> = Vec::new();
        let mut kept = 0;
        for team in &self.teams {
            let name = team.cohort.as_deref().unwrap_or(&team.name);
            if !names.contains(&name) {
                names.push(name);
            }
            if names.len() > count {
                break;
            }
            kept += 1;
        }
        self.cohorts = names.len().min(count);
        self.teams.truncate(kept);
        self.team_class.truncate(kept);
        self.jobs.retain(|job| job.team < kept);
    }

    /// What all Teams together are guaranteed.
    pub(crate) fn capacity(&self) -> u64 {
        self.teams.iter().map(|team| team.nominal).sum()
    }

    /// The least makespan by work alone: of each cohort the work over the quota, of each gang its arrival and its run.
    pub(crate) fn least_makespan(&self) -> u64 {
        // A Team without a Cohort stands for itself.
        let cohort_of = |team: usize| match self.teams[team].cohort.as_deref() {
            Some(cohort) => (Some(cohort), 0),
            None => (None, team),
        };
        let mut cohorts: BTreeMap<(Option<&str>, usize), (u64, u64)> = BTreeMap::new();
        for (team, limits) in self.teams.iter().enumerate() {
            cohorts.entry(cohort_of(team)).or_default().1 += limits.nominal;
        }
        for job in &self.jobs {
            cohorts.entry(cohort_of(job.team)).or_default().0 += job.size * job.runs_for;
        }
        let by_work = cohorts.values().map(|(work, quota)| work.div_ceil(*quota));
        let by_run = self.jobs.iter().map(|job| job.arrives_at + job.runs_for);
        by_work.chain(by_run).max().unwrap_or_default()
    }
}

/// Where a name stands, which is added if it is new.
fn position(names: &mut Vec<String>, name: &str) -> usize {
    let known = names.iter().position(|known| known == name);
    known.unwrap_or_else(|| {
        names.push(name.to_owned());
        names.len() - 1
    })
}

impl QueueClass {
    fn policy(&self) -> Result<PreemptionPolicy> {
        Ok(PreemptionPolicy {
            within_team: match self.within_cluster_queue.as_str() {
                "Never" => WithinTeam::Never,
                "LowerPriority" => WithinTeam::LowerPriority,
                "LowerOrNewerEqualPriority" => WithinTeam::LowerOrNewerEqualPriority,
                other => bail!("withinClusterQueue {other:?} is not known"),
            },
            reclaim_within_cohort: match self.reclaim_within_cohort.as_str() {
                "Never" => ReclaimWithinCohort::Never,
                "LowerPriority" => ReclaimWithinCohort::LowerPriority,
                "Any" => ReclaimWithinCohort::Any,
                other => bail!("reclaimWithinCohort {other:?} is not known"),
            },
            borrow_within_cohort: BorrowWithinCohort::Never,
        })
    }
}

/// `maxWallMs`, written as `425_000`, which is a text for some readers of YAML and a number for others.
fn limit(text: &str) -> Result<u64> {
    let range: RangeSpec = serde_saphyr::from_str(text)?;
    let limit = match range.cmd.max_wall_ms {
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    };
    limit
        .replace('_', "")
        .parse()
        .with_context(|| format!("maxWallMs {limit:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
cohorts:
- className: cohort
  count: 2
  queuesSets:
  - className: cq
    count: 2
    nominalQuota: 20
    borrowingLimit: "100"
    reclaimWithinCohort: Any
    withinClusterQueue: LowerPriority
    workloadsSets:
    - count: 2
      creationIntervalMs: 100
      workloads:
      - className: small
        runtimeMs: 200
        priority: 50
        request: 500m
        podCount: 3
    - count: 1
      creationIntervalMs: 150
      workloads:
      - {className: large, runtimeMs: 1000, priority: 200, request: 20}
      - {className: small, runtimeMs: 7, priority: 50, request: 1}
"#;

    #[test]
    fn every_set_of_every_queue_creates_one_gang_after_each_interval() -> Result<()> {
        let scenario = Scenario::parse(TEXT)?;
        assert_eq!((scenario.teams.len(), scenario.cohorts), (4, 2));
        assert_eq!(scenario.classes, ["small", "large"]);
        let mut of_last = scenario.jobs.iter().filter(|job| job.team == 3);
        let job = |arrives_at, class, priority, size, runs_for| Job {
            arrives_at,
            team: 3,
            class,
            priority,
            size,
            runs_for,
        };
        for wanted in [
            job(100, 0, 50, 1_500, 200),
            job(150, 1, 200, 20_000, 1_000),
            job(200, 0, 50, 1_500, 200),
            job(300, 0, 50, 1_000, 7),
        ] {
            assert_eq!(of_last.next(), Some(&wanted));
        }
        assert_eq!(of_last.next(), None);
        let team = &scenario.teams[3];
        assert_eq!(team.cohort.as_deref(), Some("cohort-1"));
        assert_eq!(
            (team.nominal, team.borrowing_limit),
            (20_000, Some(100_000))
        );
        assert_eq!(team.preemption.within_team, WithinTeam::LowerPriority);
        assert_eq!(scenario.capacity(), 80_000);
        Ok(())
    }

    #[test]
    #[cfg(feature = "cluster")]
    fn of_some_cohorts_all_teams_and_their_gangs_are_kept() -> Result<()> {
        let whole = Scenario::parse(TEXT)?;
        for (count, teams) in [(1, 2), (2, 4), (9, 4)] {
            let mut part = Scenario::parse(TEXT)?;
            part.keep_cohorts(count);
            assert_eq!((part.teams.len(), part.cohorts), (teams, count.min(2)));
            assert_eq!(part.team_class.len(), teams);
            let jobs = whole.jobs.iter().filter(|job| job.team < teams);
            assert!(part.jobs.iter().eq(jobs), "{count}");
        }
        Ok(())
    }

    #[test]
    fn the_least_makespan_is_that_of_the_work_or_of_who_comes_last() -> Result<()> {
        // 600 + 20,000 + 7 core-milliseconds on 20 cores are 1,031 ms; the large one ends at 1,150.
        assert_eq!(Scenario::parse(TEXT)?.least_makespan(), 1_150);
        let text = TEXT.replace("runtimeMs: 200", "runtimeMs: 20000");
        assert_eq!(Scenario::parse(&text)?.least_makespan(), 20_200);
        let text = text.replace("count: 2\n      creation", "count: 20\n      creation");
        // 20 x 1.5 x 20,000 + 20,007 core-milliseconds.
        assert_eq!(Scenario::parse(&text)?.least_makespan(), 31_001);
        Ok(())
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for (from, to, wanted) in [
            ("Any", "Some", "reclaimWithinCohort"),
            ("LowerPriority", "Lower", "withinClusterQueue"),
            ("500m", "a few", "invalid digit"),
            ("podCount", "tasLevel", "tasLevel"),
        ] {
            let Err(error) = Scenario::parse(&TEXT.replace(from, to)) else {
                unreachable!("{to} was read");
            };
            assert!(format!("{error:#}").contains(wanted), "{error:#}");
        }
    }

    #[test]
    fn limits_are_read_with_their_separators() -> Result<()> {
        for text in ["425_000", "425000", "\"425_000\""] {
            assert_eq!(
                limit(&format!("cmd:\n  maxWallMs: {text} # ms\n"))?,
                425_000,
                "{text}"
            );
        }
        assert!(limit("cmd:\n  maxWallMs: soon\n").is_err());
        Ok(())
    }
}
