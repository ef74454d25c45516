//! How long it takes from a fault to the whole gang running again: `cargo xtask bench recovery`.
//!
//! etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubelets are real, and so is Muster with its drivers; GPUs are the mock
//! NVML library's, containers are processes. A gang of [`gang::RANKS`] pods runs on two of four nodes; beside it runs a gang of one pod on every node, to which
//! nothing must happen. One of the gang's GPUs breaks, or one of its nodes is no more, and a watch of pods, ResourceSlices and the Ledger shows
//! what becomes of it ([`watched`]). Each run has a gang of its own; the fault is mended before the next.
//!
//! The observer, which knows nothing of all this, watches as in tests; what it says is among the findings.
//!
//! Which restarts are wrong, and which are not whole, is judged by the same watch ([`restarts`]), over all of a case and not only while a run is
//! measured. The budgets that all this is judged by are in [`targets`].

mod aftermath;
mod cases;
mod fault;
mod gang;
mod in_vain;
mod node_loss;
mod plain_job;
mod report;
mod restarts;
mod table;
mod targets;
mod times;
mod watched;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use kube::Client;
use serde::Serialize;

pub use cases::{Case, RanksDied};
pub use report::{FaultReport, NodeLossReport, RecoveryReport, Settings};
pub use targets::Target;

use crate::{
    cluster::{Cluster, ClusterOptions},
    gpu_board::Board,
    install::MusterOptions,
    kubernetes::{LIMIT, Progress, eventually},
    node::NodeOptions,
    progress::ProgressCallback,
};
use gang::{Behaviour, RANKS, Running};
use node_loss::RanksElsewhere;
use restarts::Before;
use watched::Watched;

/// The nodes: a gang that runs on two of them finds room on the others.
pub const NODES: [&str; 4] = ["node-0", "node-1", "node-2", "node-3"];
/// What breaks: the GPU's system processor does not answer, and the GPU has to be reset. Of the XIDs of that class this one may come again and again
/// to one GPU; others would be taken for a GPU that is to be exchanged after the fifth within a week.
pub const XID: u32 = 119;
/// Gangs of [`gang::RANKS`] pods that the nodes have room for, each on two nodes of its own, beside those to which nothing must happen.
pub const MOST_SIDE_BY_SIDE: u32 = 2;
/// Longest time of one run. The Job controller alone may wait for ten minutes, where many ranks have failed.
const RUN_LIMIT: Duration = Duration::from_mins(15);

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// Faults of each case.
    pub runs: u32,
    /// Gangs that are measured at one time when GPUs break, up to [`MOST_SIDE_BY_SIDE`].
    pub side_by_side: u32,
    /// The cases of faults.
    pub cases: Vec<Case>,
    /// Nodes that are lost, for each of what ranks elsewhere do; with none Kubernetes' own way is not measured either.
    pub node_loss_runs: u32,
    /// What decides about lost nodes.
    pub timing: Timing,
}

/// What decides about lost nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Timing {
    /// A node whose kubelet is silent for so long is NotReady (`--node-monitor-grace-period` of kube-controller-manager).
    pub node_monitor_grace_seconds: u64,
    /// A node that is NotReady for so long is lost (`--node-lost-after-seconds` of the controller).
    pub node_lost_after_seconds: u32,
    /// Gangs on a node that is NotReady for so long are evicted (`recovery.nodeLossSeconds` of the chart).
    pub node_evict_after_seconds: u32,
    /// Pods of a plain Job tolerate a node that is NotReady for so long.
    pub toleration_seconds: i64,
}

impl Timing {
    /// What Kubernetes and Muster ship.
    pub const AS_SHIPPED: Self = Self {
        node_monitor_grace_seconds: 50,
        node_lost_after_seconds: 60,
        node_evict_after_seconds: 240,
        toleration_seconds: 300,
    };
    /// A tenth or so of that, to see that the measurement works.
    pub const QUICK: Self = Self {
        node_monitor_grace_seconds: 8,
        node_lost_after_seconds: 10,
        node_evict_after_seconds: 20,
        toleration_seconds: 30,
    };
}

/// The cluster that it is measured on.
pub fn cluster_options(timing: Timing, progress: ProgressCallback) -> ClusterOptions {
    let node = |name: &str| NodeOptions {
        name: name.to_owned(),
        board: Some(Board::H100Nvswitch8),
        ..NodeOptions::default()
    };
    let Timing {
        node_lost_after_seconds: lost,
        node_evict_after_seconds: evict,
        ..
    } = timing;
    ClusterOptions {
        nodes: NODES.map(node).into(),
        muster: Some(MusterOptions {
            values: vec![
                "recovery.mode=Enforce".to_owned(),
                // One fault a minute on four nodes is what the breaker is there to stop.
                "recovery.breaker.sharePercent=100".to_owned(),
                format!("recovery.nodeLossSeconds={evict}"),
                format!("controller.extraArgs={{--node-lost-after-seconds={lost}}}"),
            ],
            ..MusterOptions::default()
        }),
        node_monitor_grace_seconds: Some(timing.node_monitor_grace_seconds),
        progress,
        ..ClusterOptions::default()
    }
}

/// Measures on a cluster of [`cluster_options`]. `say` is told of progress; `keep` gets the report after each run, so that what was measured is there
/// even if something fails later, or somebody ends it.
pub async fn measure(
    cluster: &mut Cluster,
    options: &Options,
    say: impl Fn(&str),
    keep: impl Fn(&RecoveryReport) -> Result<()>,
) -> Result<RecoveryReport> {
    ensure!(
        options.runs > 0 && !options.cases.is_empty(),
        "nothing is to be measured: {options:?}"
    );
    ensure!(
        (1..=MOST_SIDE_BY_SIDE).contains(&options.side_by_side),
        "there is room for 1 to {MOST_SIDE_BY_SIDE} gangs side by side, not for {}",
        options.side_by_side
    );
    let client = cluster.client();
    let version = client.apiserver_version().await?.git_version;
    let mut report = RecoveryReport::new(options, version);
    // If it cannot be kept anywhere, better now.
    keep(&report)?;
    say("starting a gang of one pod on each node, to which nothing must happen");
    let mut bench = Bench::prepare(cluster, say).await?;
    for case in &options.cases {
        let before = report.clone();
        let keep_run = |measured: FaultReport, findings: &[String]| {
            let mut so_far = before.clone();
            so_far.add_case(measured);
            so_far.findings.extend_from_slice(findings);
            keep(&so_far)
        };
        let measured = bench.measure_faults(*case, options, keep_run).await?;
        report.add_case(measured);
        report.findings.append(&mut bench.findings);
        keep(&report)?;
    }
    if options.node_loss_runs > 0 {
        for elsewhere in [RanksElsewhere::Hang, RanksElsewhere::Fail] {
            let before = report.clone();
            let keep_run = |measured: NodeLossReport, findings: &[String]| {
                let mut so_far = before.clone();
                so_far.add_node_loss(measured);
                so_far.findings.extend_from_slice(findings);
                keep(&so_far)
            };
            let runs = options.node_loss_runs;
            let measured = bench.measure_node_losses(elsewhere, runs, keep_run).await?;
            report.add_node_loss(measured);
            report.findings.append(&mut bench.findings);
            keep(&report)?;
        }
        let (seconds, wrong) = bench.measure_plain_job(options.timing).await?;
        report.add_kubernetes_node_loss(seconds, wrong);
        report.findings.append(&mut bench.findings);
        keep(&report)?;
    }
    Ok(report)
}

/// The measurement under way.
struct Bench<'a, Say> {
    cluster: &'a mut Cluster,
    client: Client,
    watched: Watched,
    /// The Jobs of the gangs to which nothing must happen, by node.
    bystanders: BTreeMap<String, String>,
    /// Gangs that may be restarted: each held a faulty device, or had a pod on a node that was lost.
    meant: BTreeSet<String>,
    /// Restarts that were wrong or not whole, in words, since they were last taken.
    findings: Vec<String>,
    /// Number of the next Job.
    next_job: u32,
    say: Say,
}

impl<'a, Say: Fn(&str)> Bench<'a, Say> {
    async fn prepare(cluster: &'a mut Cluster, say: Say) -> Result<Self> {
        let client = cluster.client();
        gang::prepare(&client).await?;
        let mut bench = Self {
            watched: Watched::start(&client),
            client,
            cluster,
            bystanders: BTreeMap::new(),
            meant: BTreeSet::new(),
            findings: Vec::new(),
            next_job: 0,
            say,
        };
        for node in NODES {
            bench.start_bystander(node).await?;
        }
        Ok(bench)
    }

    fn say(&self, text: &str) {
        (self.say)(text);
    }

    /// A name that no Job had before.
    fn new_job(&mut self, kind: &str) -> String {
        self.next_job += 1;
        format!("{kind}-{}", self.next_job)
    }

    /// Starts a gang of this Job that behaves so, and waits until the watch has shown that it runs.
    async fn start_gang(&self, job: &str, behaviour: Behaviour) -> Result<(Running, Before)> {
        let running = gang::start(self.cluster, job, behaviour).await?;
        let before = running.before()?;
        let what = format!("the watch shows that gang {} runs", before.gang);
        eventually(&what, LIMIT, async || {
            let (size, earlier) = (RANKS as usize, before.attempt - 1);
            let whole = self
                .watched
                .ask(|seen| seen.whole_after(&before.gang, earlier, size));
            Ok(Progress::when(whole.is_some(), || {
                "not all of its pods".to_owned()
            }))
        })
        .await?;
        Ok((running, before))
    }

    /// Notes where a gang was not restarted whole; whether there was anything.
    fn note_mixed(&mut self, gang: &str, mixed: Vec<String>) -> bool {
        let is_mixed = !mixed.is_empty();
        let findings = mixed.into_iter();
        self.findings
            .extend(findings.map(|what| format!("PARTIAL: gang {gang}: {what}")));
        is_mixed
    }

    /// Tells what went wrong at once, too, and has the cluster's directory kept: somebody will want to see why.
    fn note_for_later(&mut self, finding: String) {
        let kept = self.cluster.keep_directory();
        self.say(&format!("{finding}; see {}", kept.display()));
        self.findings.push(finding);
    }

    /// Notes what the observer saw since it was last asked that must not be. It keeps what it judges by until then, so it is asked after each run.
    fn note_observed(&mut self) {
        let Some(observer) = self.cluster.observer() else {
            return;
        };
        for violation in observer.take_verdict().violations {
            self.note_for_later(format!("OBSERVED: {violation}"));
        }
    }

    /// While a node is away nobody gives back what it has on its disk: the observer's bounds of time stand still.
    fn suspend_observer(&self, is_suspended: bool) {
        if let Some(observer) = self.cluster.observer() {
            observer.suspend_bounds(is_suspended);
        }
    }

    async fn start_bystander(&mut self, node: &str) -> Result<()> {
        let job = self.new_job("bystander");
        gang::start_bystander(self.cluster, &job, node).await?;
        self.bystanders.insert(node.to_owned(), job);
        Ok(())
    }

    /// The gangs that were restarted since then and should not have been, in words.
    fn wrong_since(&self, since: Instant) -> Vec<String> {
        let restarted = self.watched.ask(|seen| seen.restarted_since(since));
        let wrong = restarted
            .into_iter()
            .filter(|(gang, _)| !self.meant.contains(gang));
        wrong
            .map(|(gang, how)| format!("WRONG: gang {gang} was restarted: {how}"))
            .collect()
    }

    /// How often a watch had to list anew so far: each time it may have missed something.
    fn gaps(&self) -> u32 {
        self.watched.ask(|seen| seen.gaps)
    }

    /// Notes if there were more of them since then.
    fn note_gaps(&mut self, before: u32) {
        let more = self.gaps() - before;
        if more > 0 {
            self.findings.push(format!(
                "GAP: a watch had to list anew {more} times; a restart in between that was wrong may not have been seen"
            ));
        }
    }
}

/// Seconds from one moment to another.
fn seconds(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64()
}
