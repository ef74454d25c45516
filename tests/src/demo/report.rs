//! What was observed, as a table for people and as JSON for programs.

use std::{collections::BTreeMap, fmt};

use serde::Serialize;

use crate::observer::{Expected, Verdict};

/// What the demonstration observed.
#[derive(Clone, Debug, Serialize)]
pub struct DemoReport {
    /// Every gang.
    pub gangs: Vec<GangReport>,
    /// What became of the gang of which a GPU broke.
    pub fault: FaultReport,
    /// Version of the API server.
    pub kubernetes: String,
    /// Duration of the story, builds and start of the cluster not included.
    pub seconds: f64,
    /// What the observer of the invariants says.
    pub observer: ObserverReport,
}

/// The verdict of the observer, which watches etcd and the container runtimes all the time.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObserverReport {
    /// Whether every invariant was checked and none was violated.
    pub all_well: bool,
    /// What was wrong, each with its invariant; what could not be seen, too.
    pub wrong: Vec<String>,
    /// Gangs that it saw admitted.
    pub gangs: u64,
    /// Pods with claims that it saw.
    pub pods: u64,
    /// Containers that it saw getting GPUs.
    pub containers: u64,
    /// Single checks, by invariant.
    pub checks: BTreeMap<String, u64>,
}

impl From<Verdict> for ObserverReport {
    fn from(verdict: Verdict) -> Self {
        let wrong = verdict.wrong(Expected::Gangs);
        let seen = verdict.seen;
        let checks = seen.checks.iter();
        Self {
            all_well: wrong.is_empty(),
            wrong,
            gangs: seen.gangs,
            pods: seen.pods,
            containers: seen.containers,
            checks: checks
                .map(|(invariant, count)| (invariant.to_string(), *count))
                .collect(),
        }
    }
}

impl fmt::Display for ObserverReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let checks = self.checks.iter();
        let checks: Vec<String> = checks
            .map(|(invariant, count)| format!("{invariant} {count}"))
            .collect();
        writeln!(
            formatter,
            "invariants {}; checks: {}",
            if self.all_well {
                "held"
            } else {
                "DID NOT HOLD"
            },
            checks.join(", ")
        )?;
        self.wrong
            .iter()
            .try_for_each(|wrong| writeln!(formatter, "  {wrong}"))
    }
}

/// What was observed of the gang of which a GPU broke.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FaultReport {
    /// `namespace/name` of the gang.
    pub gang: String,
    /// The node of the GPU.
    pub node: String,
    /// The GPU, as its node publishes it.
    pub device: String,
    /// Its UUID.
    pub gpu: String,
    /// The taint that it got, as `key=value`.
    pub taint: String,
    /// From the fault to the first sight of its taint.
    pub taint_seconds: f64,
    /// From the fault to the first sight of its gang's eviction.
    pub eviction_seconds: f64,
    /// From the fault to the first sight of its gang running again.
    pub running_seconds: f64,
    /// Nodes that the gang ran on before.
    pub nodes_before: Vec<String>,
    /// Nodes that it runs on now.
    pub nodes_now: Vec<String>,
    /// Whether it queued with the age that it had before.
    pub has_kept_its_place: bool,
    /// `namespace/name` of the gang that was started on the same node meanwhile.
    pub beside: String,
    /// UUIDs of the GPUs that it got there.
    pub gpus_beside: Vec<String>,
}

impl fmt::Display for FaultReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "{} of {} broke under {}: {} after {:.1} s, evicted after {:.1} s, running again after {:.1} s",
            self.device,
            self.node,
            self.gang,
            self.taint,
            self.taint_seconds,
            self.eviction_seconds,
            self.running_seconds
        )?;
        writeln!(
            formatter,
            "  it was on {} and is on {}, its place in the queue was {}; {} has {} GPUs of {}",
            self.nodes_before.join(","),
            self.nodes_now.join(","),
            if self.has_kept_its_place {
                "kept"
            } else {
                "LOST"
            },
            self.beside,
            self.gpus_beside.len(),
            self.node
        )
    }
}

/// What was observed of a gang.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GangReport {
    /// `namespace/name`.
    pub name: String,
    /// The Team that is charged.
    pub team: String,
    /// Phase at the end.
    pub phase: String,
    /// Nodes that its pods ran on.
    pub nodes: Vec<String>,
    /// Leaf switches of these nodes.
    pub leaves: Vec<String>,
    /// UUIDs of the GPUs that its claims were allocated.
    pub gpus: Vec<String>,
    /// From its last pod created until all its pods ran; absent if they never did.
    pub wait_seconds: Option<f64>,
    /// How often it was planned and started: 1 if it never had to give way.
    pub attempts: usize,
    /// From the first sight of its notice to that of its eviction; absent if it was never told.
    pub notice_seconds: Option<f64>,
    /// Why it was evicted, each time.
    pub evictions: Vec<String>,
}

impl fmt::Display for DemoReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "{:<16} {:<10} {:<9} {:<16} {:<8} {:>7} {:>8}  GPUS",
            "GANG", "TEAM", "PHASE", "NODES", "LEAF", "WAIT", "ATTEMPTS"
        )?;
        for gang in &self.gangs {
            let wait = gang
                .wait_seconds
                .map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.1} s"));
            writeln!(
                formatter,
                "{:<16} {:<10} {:<9} {:<16} {:<8} {wait:>7} {:>8}  {}",
                gang.name,
                gang.team,
                gang.phase,
                gang.nodes.join(","),
                gang.leaves.join(","),
                gang.attempts,
                gang.gpus.first().map_or("-", String::as_str),
            )?;
            for gpu in gang.gpus.iter().skip(1) {
                writeln!(formatter, "{:<81}  {gpu}", "")?;
            }
        }
        write!(formatter, "\n{}\n{}", self.fault, self.observer)
    }
}
