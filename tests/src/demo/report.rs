//! What was observed, as a table for people and as JSON for programs.

use std::{collections::BTreeMap, fmt};

use serde::Serialize;

use crate::observer::{Expected, Verdict};

/// GPUs of a node beside the one that breaks.
const OTHERS: usize = 7;

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
        let wrong = verdict.wrong(Expected::FaultEvictions);
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
    /// The XID by which NVIDIA's driver told that the GPU broke.
    pub xid: u32,
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

impl FaultReport {
    /// What was seen otherwise than the act promises, for people; nothing if all is well.
    pub fn wrong(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        if !self.has_kept_its_place {
            wrong.push(format!("{} lost its place in the queue", self.gang));
        }
        if self.nodes_now.is_empty() || self.nodes_now.contains(&self.node) {
            wrong.push(format!(
                "{} does not run elsewhere than on {}, but on {}",
                self.gang,
                self.node,
                self.nodes_now.join(",")
            ));
        }
        if self.gpus_beside.len() != OTHERS || self.gpus_beside.contains(&self.gpu) {
            wrong.push(format!(
                "{} has not the {OTHERS} other GPUs of {}, but {}",
                self.beside,
                self.node,
                self.gpus_beside.join(",")
            ));
        }
        wrong
    }
}

impl fmt::Display for FaultReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "XID {} broke {} of {} under {}: {} after {:.1} s, evicted after {:.1} s, running again after {:.1} s",
            self.xid,
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
            "  it was on {} and is on {}, its place in the queue was {}; {} has {} other GPUs of {} meanwhile",
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

#[cfg(test)]
mod tests {
    use super::*;

    fn as_promised() -> FaultReport {
        FaultReport {
            xid: 48,
            gang: "product/sweep".to_owned(),
            node: "node-1".to_owned(),
            device: "gpu-0".to_owned(),
            gpu: "GPU-broken".to_owned(),
            taint: "gpu.muster.dev/fault=Reset".to_owned(),
            taint_seconds: 0.4,
            eviction_seconds: 0.9,
            running_seconds: 12.0,
            nodes_before: ["node-1", "node-3"].map(str::to_owned).into(),
            nodes_now: ["node-2", "node-3"].map(str::to_owned).into(),
            has_kept_its_place: true,
            beside: "research/seven".to_owned(),
            gpus_beside: (0..OTHERS).map(|number| format!("GPU-{number}")).collect(),
        }
    }

    #[test]
    fn a_fault_is_shown_as_promised_or_it_is_said_what_was_otherwise() {
        type Change = fn(&mut FaultReport);
        assert_eq!(as_promised().wrong(), Vec::<String>::new());
        assert!(as_promised().to_string().starts_with("XID 48 broke gpu-0"));
        let cases: [(Change, &str); 5] = [
            (
                |report| report.has_kept_its_place = false,
                "lost its place in the queue",
            ),
            (
                |report| report.nodes_now = vec!["node-1".to_owned()],
                "elsewhere than on node-1",
            ),
            (
                |report| report.nodes_now.clear(),
                "elsewhere than on node-1",
            ),
            (
                |report| report.gpus_beside.truncate(OTHERS - 1),
                "the 7 other GPUs",
            ),
            (
                |report| report.gpus_beside[0] = "GPU-broken".to_owned(),
                "the 7 other GPUs",
            ),
        ];
        for (change, expected) in cases {
            let mut report = as_promised();
            change(&mut report);
            let wrong = report.wrong();
            assert!(wrong.len() == 1 && wrong[0].contains(expected), "{wrong:?}");
        }
    }
}
