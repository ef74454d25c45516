//! Runs the scenarios of one suite on one cluster, one after another, and judges each by the observer.
//!
//! A cluster takes seconds to start and a scenario often less, so a suite is one program with its own
//! `main` (`harness = false`) instead of one `#[test]` per scenario. What `cargo test` passes is
//! understood: name filters, `--list`, `--exact`; other flags are ignored.

use std::{
    env,
    pin::Pin,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, bail};

use crate::{
    builders,
    cluster::{Cluster, ClusterOptions},
    failure_report,
    observer::{Expected, Observer},
    preflight,
    progress::ProgressCallback,
};

/// Longest time that one scenario may take, unless it says otherwise: a hang must not eat the time of the others.
pub const SCENARIO_LIMIT: Duration = Duration::from_mins(3);

/// What a scenario does with the cluster.
pub type Run = for<'a> fn(&'a mut Cluster) -> Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// One scenario: a sentence and what proves it.
#[derive(Debug)]
pub struct Scenario {
    /// The sentence, with underscores.
    pub name: &'static str,
    /// What proves it.
    pub run: Run,
    /// What the observer must see in it, lest it was blind.
    pub expected: Expected,
    /// Longest time that it may take.
    pub limit: Duration,
}

/// Scenarios of functions `async fn(&mut Cluster) -> Result<()>`, named after them.
#[macro_export]
macro_rules! scenarios {
    ($($function:ident),* $(,)?) => {
        vec![$($crate::suite::Scenario {
            name: stringify!($function),
            run: |cluster| Box::pin($function(cluster)),
            expected: $crate::observer::Expected::Gangs,
            limit: $crate::suite::SCENARIO_LIMIT,
        }),*]
    };
}

impl Scenario {
    /// No gang is admitted in the scenario.
    #[must_use]
    pub fn without_gangs(mut self) -> Self {
        self.expected = Expected::Nothing;
        self
    }

    /// GPUs are broken in it, and nobody is evicted for that.
    #[must_use]
    pub fn with_faults(mut self) -> Self {
        self.expected = Expected::Faults;
        self
    }

    /// GPUs are broken in it, and gangs are evicted for that.
    #[must_use]
    pub fn with_fault_evictions(mut self) -> Self {
        self.expected = Expected::FaultEvictions;
        self
    }

    /// Gangs run in it while an outage is on, as it tells the observer.
    #[must_use]
    pub fn with_outages(mut self) -> Self {
        self.expected = Expected::Outages;
        self
    }

    /// Its gangs are none, because there is no controller: their containers get GPUs all the same.
    #[must_use]
    pub fn without_controller(mut self) -> Self {
        if self.expected == Expected::Gangs {
            self.expected = Expected::Containers;
        }
        self
    }

    /// It may take so much longer: the long form of a scenario that samples.
    #[must_use]
    pub fn with_more_time(mut self, more: Duration) -> Self {
        self.limit += more;
        self
    }
}

/// Runs a suite: the `main` of its program.
pub fn run(name: &str, options: ClusterOptions, scenarios: Vec<Scenario>) -> ExitCode {
    let chosen = match choose(scenarios, env::args().skip(1)) {
        Chosen::Run(chosen) => chosen,
        Chosen::Listed => return ExitCode::SUCCESS,
    };
    if chosen.is_empty() {
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
    runtime.block_on(async {
        if let Some(reason) = preflight::missing().await {
            return skip(name, &reason);
        }
        match run_on_cluster(name, options, chosen).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("\n{name}: FAILED: {error:#}");
                ExitCode::FAILURE
            }
        }
    })
}

/// Installs the TLS provider and the log of this process, which programs do in their `main`.
pub fn prepare_process() {
    // An error means that it is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,kube_client=off"));
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .try_init();
}

/// Runs what needs the real control plane as the whole of a program: it fails with the reason where that cannot be started.
pub async fn run_program(program: impl Future<Output = Result<()>>) -> ExitCode {
    prepare_process();
    let done = match preflight::missing().await {
        Some(reason) => Err(anyhow!("{reason}")),
        None => program.await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Says loudly that nothing was tested; a failure where `CI=true`.
pub fn skip(name: &str, reason: &str) -> ExitCode {
    eprintln!("\n*** {name}: SKIPPED, nothing was tested: {reason}\n");
    if env::var_os("CI").is_some_and(|value| value == "true") {
        eprintln!("*** CI=true: a skipped suite is a failure");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

async fn run_on_cluster(
    name: &str,
    options: ClusterOptions,
    scenarios: Vec<Scenario>,
) -> Result<()> {
    let began = Instant::now();
    let suite = name.to_owned();
    let mut cluster = Cluster::start(ClusterOptions {
        progress: ProgressCallback::to(move |step| eprintln!("{suite}: {step}")),
        ..options
    })
    .await?;
    let mut failed = Vec::new();
    for scenario in &scenarios {
        let began = Instant::now();
        let result = run_one(scenario, &mut cluster).await;
        let seconds = began.elapsed().as_secs_f64();
        match result {
            Ok(seen) => eprintln!(
                "test {name}::{} ... ok ({seconds:.1} s; {seen})",
                scenario.name
            ),
            Err(error) => {
                eprintln!(
                    "test {name}::{} ... FAILED ({seconds:.1} s)\n{error:#}",
                    scenario.name
                );
                failed.push(scenario.name);
            }
        }
    }
    let passed = scenarios.len() - failed.len();
    let afterwards = judge_the_rest(cluster.observer()).await;
    if !afterwards.is_empty() {
        eprintln!(
            "test {name}: after the last scenario: {}",
            afterwards.join("\n  ")
        );
        failed.push("after_the_last_scenario");
    }
    eprintln!(
        "{name}: {passed} passed, {} failed in {:.1} s",
        failed.len(),
        began.elapsed().as_secs_f64()
    );
    if failed.is_empty() {
        cluster.stop().await;
        return Ok(());
    }
    let kept = cluster.keep_directory();
    cluster.stop().await;
    bail!(
        "{}; everything is kept in {}",
        failed.join(", "),
        kept.display()
    )
}

/// Runs a scenario, clears what it made, and asks the observer. Returns what the observer saw.
async fn run_one(scenario: &Scenario, cluster: &mut Cluster) -> Result<String> {
    let ran = tokio::time::timeout(scenario.limit, (scenario.run)(cluster))
        .await
        .unwrap_or_else(|_| {
            Err(anyhow!(
                "still running after {} s",
                scenario.limit.as_secs()
            ))
        });
    let mut wrong: Vec<String> = ran
        .and_then(|()| cluster.ensure_running())
        .err()
        .map(|error| format!("{error:#}"))
        .into_iter()
        .collect();
    // Before anything is cleared: the report must show what the scenario saw.
    let report = if wrong.is_empty() {
        None
    } else {
        Some(failure_report::write(cluster, scenario.name).await)
    };
    let (seen, observed) = clear_and_judge(scenario, cluster).await;
    wrong.extend(observed);
    if wrong.is_empty() {
        return Ok(seen);
    }
    let report = match report {
        Some(report) => report,
        None => failure_report::write(cluster, scenario.name).await,
    };
    bail!("  {}\n  see {}", wrong.join("\n  "), report.display())
}

/// What the observer saw, and what of it was wrong. Clearing is part of what it watches: everything
/// that was charged must be given back.
async fn clear_and_judge(scenario: &Scenario, cluster: &Cluster) -> (String, Vec<String>) {
    let client = cluster.client();
    let mut wrong = Vec::new();
    let mut note =
        |result: Result<()>| wrong.extend(result.err().map(|error| format!("{error:#}")));
    note(builders::clear_workloads(&client).await);
    let Some(observer) = cluster.observer() else {
        note(builders::clear_owners(&client).await);
        return ("not observed".to_owned(), wrong);
    };
    note(observer.settled().await);
    let verdict = observer.take_verdict();
    note(builders::clear_owners(&client).await);
    wrong.extend(verdict.wrong(scenario.expected));
    (verdict.seen.to_string(), wrong)
}

/// What was wrong after the last scenario had its verdict.
async fn judge_the_rest(observer: Option<&Observer>) -> Vec<String> {
    let Some(observer) = observer else {
        return Vec::new();
    };
    match observer.verdict_so_far().await {
        Ok(verdict) => verdict.wrong(Expected::Nothing),
        Err(error) => vec![format!("{error:#}")],
    }
}

enum Chosen {
    Run(Vec<Scenario>),
    Listed,
}

fn choose(scenarios: Vec<Scenario>, arguments: impl Iterator<Item = String>) -> Chosen {
    let mut filters = Vec::new();
    let mut list = false;
    let mut exact = false;
    for argument in arguments {
        match argument.as_str() {
            "--list" => list = true,
            "--exact" => exact = true,
            flag if flag.starts_with('-') => {}
            filter => filters.push(filter.to_owned()),
        }
    }
    let matches = |name: &str| {
        filters.is_empty()
            || filters
                .iter()
                .any(|filter| name == filter || (!exact && name.contains(filter.as_str())))
    };
    let chosen: Vec<Scenario> = scenarios.into_iter().filter(|s| matches(s.name)).collect();
    if list {
        for scenario in &chosen {
            eprintln!("{}: test", scenario.name);
        }
        return Chosen::Listed;
    }
    Chosen::Run(chosen)
}
