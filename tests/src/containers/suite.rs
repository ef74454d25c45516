//! Runs the scenarios of a lab, one after another in the order in which an operator and users would come to them.

use std::{
    env, fs,
    pin::Pin,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};

use super::{Lab, enter, enter::Side, machine::MachineOptions, prepared::Prepared};
use crate::{failure_report, progress::ProgressCallback, suite::prepare_process};

/// Longest time that one scenario may take.
const LIMIT: Duration = Duration::from_mins(4);
/// The same of one that runs in the long form only.
const LONG_LIMIT: Duration = Duration::from_mins(8);
/// Set for the long form of a suite.
const ALL: &str = "MUSTER_ALL";

/// What a scenario does with the lab.
pub type Run = for<'a> fn(&'a mut Lab) -> Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// One scenario: a sentence and what proves it.
#[derive(Debug)]
pub struct Scenario {
    /// The sentence, with underscores.
    pub name: &'static str,
    /// What proves it.
    pub run: Run,
    /// Whether the others make sense after it failed.
    pub rank: Rank,
}

/// When a scenario runs, and what its failure means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// All others build on it.
    Foundation,
    /// By itself.
    Core,
    /// By itself, and only in the long form.
    Long,
}

/// What was found out while scenarios ran.
#[derive(Debug, Default)]
pub struct Notes {
    /// How many examples ran.
    pub examples: u32,
    /// What is worth telling at the end.
    pub lines: Vec<String>,
    /// When Helm was asked to install the chart.
    pub installed: Option<jiff::Timestamp>,
}

/// Scenarios of functions `async fn(&mut Lab) -> Result<()>`, named after them.
#[macro_export]
macro_rules! lab_scenarios {
    ($rank:ident: $($function:path),* $(,)?) => {
        vec![$($crate::containers::suite::Scenario {
            name: stringify!($function),
            run: |lab| Box::pin($function(lab)),
            rank: $crate::containers::suite::Rank::$rank,
        }),*]
    };
}

/// Runs a suite: the `main` of its program. `examples` are further names of the workload's image.
pub fn run(
    name: &str,
    machines: Vec<MachineOptions>,
    examples: &[String],
    scenarios: Vec<Scenario>,
) -> ExitCode {
    if env::args().any(|argument| argument == "--list") {
        for scenario in &scenarios {
            eprintln!("{}: test", scenario.name);
        }
        return ExitCode::SUCCESS;
    }
    prepare_process();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("{name}: cannot start the asynchronous runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let ended = runtime.block_on(async {
        match enter::enter(name, examples).await? {
            Side::Outside(ended) => Ok(ended),
            Side::Inside(prepared) => run_inside(name, *prepared, machines, scenarios).await,
        }
    });
    ended.unwrap_or_else(|error: anyhow::Error| {
        eprintln!("\n{name}: FAILED: {error:#}");
        ExitCode::FAILURE
    })
}

/// Whether scenarios with this word in their names may run, as the program was asked: in the long form, or by name.
pub(super) fn may_run(word: &str) -> bool {
    let names_it = |argument: String| !argument.starts_with('-') && argument.contains(word);
    env::var_os(ALL).is_some() || env::args().skip(1).any(names_it)
}

async fn run_inside(
    name: &str,
    prepared: Prepared,
    machines: Vec<MachineOptions>,
    scenarios: Vec<Scenario>,
) -> Result<ExitCode> {
    let began = Instant::now();
    let told = name.to_owned();
    let progress = ProgressCallback::to(move |step| eprintln!("{told}: {step}"));
    let mut lab = Lab::start(prepared, machines, &progress).await?;
    let is_long = env::var_os(ALL).is_some();
    let filters: Vec<String> = env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let (mut steps, mut failed) = (0_u32, 0_u32);
    for scenario in scenarios {
        let is_named = filters.iter().any(|filter| scenario.name.contains(filter));
        let is_wanted = match scenario.rank {
            Rank::Foundation => true,
            Rank::Core => filters.is_empty() || is_named,
            Rank::Long => is_long && filters.is_empty() || is_named,
        };
        if !is_wanted {
            continue;
        }
        let began = Instant::now();
        let result = run_one(&scenario, &mut lab).await;
        let seconds = began.elapsed().as_secs_f64();
        let sentence = format!("test {name}::{}", scenario.name);
        match result {
            Ok(()) => {
                steps += 1;
                eprintln!("{sentence} ... ok ({seconds:.1} s)");
            }
            Err(error) => {
                failed += 1;
                eprintln!("{sentence} ... FAILED ({seconds:.1} s)\n  {error:#}");
                if scenario.rank == Rank::Foundation {
                    eprintln!("{name}: nothing that comes later makes sense now");
                    break;
                }
            }
        }
    }
    let containers = started_containers(&lab).await.unwrap_or_else(|error| {
        eprintln!("{name}: the containers cannot be counted: {error:#}");
        failed += 1;
        0
    });
    for line in &lab.notes.lines {
        eprintln!("{name}: {line}");
    }
    let seconds = began.elapsed().as_secs_f64();
    eprintln!("{name}: the lab ran for {seconds:.1} s");
    let examples = lab.notes.examples;
    eprintln!("steps {steps}, containers {containers}, examples {examples}, failed {failed}");
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        wait_if_asked().await;
        ExitCode::FAILURE
    })
}

/// With `MUSTER_HOLD` set, a lab in which something failed stays until it is killed, to be looked at.
async fn wait_if_asked() {
    if env::var_os("MUSTER_HOLD").is_some() {
        eprintln!("MUSTER_HOLD is set: the lab stays; `nsenter --all --target` its first process");
        std::future::pending::<()>().await;
    }
}

async fn run_one(scenario: &Scenario, lab: &mut Lab) -> Result<()> {
    let limit = match scenario.rank {
        Rank::Foundation | Rank::Core => LIMIT,
        Rank::Long => LONG_LIMIT,
    };
    let ran = tokio::time::timeout(limit, (scenario.run)(lab)).await;
    let ran = ran.unwrap_or_else(|_| Err(anyhow!("still running after {} s", limit.as_secs())));
    let result = ran.and_then(|()| lab.ensure_running());
    if result.is_err() {
        let directory = lab.directory().join("report").join(scenario.name);
        failure_report::write_for(&lab.client(), &directory).await;
        for (file, words) in [
            ("pods.txt", &["get", "pods", "-A", "-o", "wide"][..]),
            ("describe.txt", &["describe", "pods", "-A"]),
            ("nodes.txt", &["get", "nodes", "-o", "wide"]),
        ] {
            if let Ok(text) = lab.kubectl(words).await {
                let _ = fs::write(directory.join(file), text);
            }
        }
    }
    result
}

/// How many containers the kubelets started, by their own count.
async fn started_containers(lab: &Lab) -> Result<u64> {
    let mut sum = 0;
    for machine in &lab.machines {
        let path = format!("/api/v1/nodes/{}/proxy/metrics", machine.name());
        let metrics = lab.kubectl(&["get", "--raw", &path]).await?;
        let counters = metrics
            .lines()
            .filter(|line| line.starts_with("kubelet_started_containers_total{"));
        let values = counters.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
        sum += values.sum::<u64>();
    }
    Ok(sum)
}
