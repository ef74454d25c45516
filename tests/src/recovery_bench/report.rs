//! What was measured, as a table for people and as JSON for programs.

use std::fmt;

use serde::Serialize;

use super::{
    Timing,
    cases::{Case, RanksDied},
    gang::{GPUS, GRACE_SECONDS, RANKS},
};
use crate::scale::Percentiles;

/// What was measured. The fields up to `partial_restarts` are what is promised: times are those of the first case, which is the main one unless others were
/// chosen; restarts are of all cases.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RecoveryReport {
    /// Faults that were injected in each case.
    pub runs: u32,
    /// From the injection of a fault to its taint in the ResourceSlice, as a watch brought it.
    pub fault_to_taint_seconds: Percentiles,
    /// To the Evict in the Ledger.
    pub fault_to_intent_seconds: Percentiles,
    /// To the last pod of the attempt being gone from the API server, or, where it failed by itself and its Job keeps it, having ended.
    pub fault_to_deleted_seconds: Percentiles,
    /// To all pods of another attempt being in phase Running.
    pub fault_to_running_seconds: Percentiles,
    /// From the end of a node's kubelet, runtime and driver to all pods of another attempt being in phase Running, where the ranks elsewhere hang;
    /// absent if it was not measured.
    pub node_loss_to_running_seconds: Option<Percentiles>,
    /// From the same to replacements of all lost pods of a plain Job being in phase Running, with what Kubernetes does by itself; measured
    /// once, absent if it was not.
    pub kubernetes_node_loss_seconds: Option<f64>,
    /// How many ranks died with their GPU in the first case.
    pub ranks_died: RanksDied,
    /// Gangs that were restarted though they held neither a faulty device nor anything of a lost node.
    pub wrong_restarts: usize,
    /// Restarts in which old and new pods were mixed.
    pub partial_restarts: usize,
    /// Seconds of grace that ranks took in the first case.
    pub grace_seconds: u32,
    /// With what it was measured.
    pub settings: Settings,
    /// All cases of faults.
    pub cases: Vec<FaultReport>,
    /// All cases of lost nodes.
    pub node_losses: Vec<NodeLossReport>,
    /// Every restart that was wrong or not whole, and where other ranks died than were to, in words.
    pub findings: Vec<String>,
}

/// With what it was measured.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// Version of the API server.
    pub kubernetes: String,
    /// Nodes, with eight mock GPUs each.
    pub nodes: usize,
    /// Pods of the gang.
    pub ranks: u32,
    /// GPUs of each pod.
    pub gpus_of_rank: u32,
    /// `terminationGracePeriodSeconds` of its pods.
    pub termination_grace_period_seconds: u32,
    /// The XID that is injected.
    pub xid: u32,
    /// Whether the times of lost nodes are shorter than what ships.
    pub is_quick: bool,
    /// What decides about lost nodes.
    pub timing: Timing,
}

/// One case of a fault.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FaultReport {
    /// Faults that were injected.
    pub runs: usize,
    /// Seconds of grace that ranks took that were told to end.
    pub grace_seconds: u32,
    /// How many ranks died with their GPU.
    pub ranks_died: RanksDied,
    /// See [`RecoveryReport::fault_to_taint_seconds`].
    pub fault_to_taint_seconds: Percentiles,
    /// See [`RecoveryReport::fault_to_intent_seconds`].
    pub fault_to_intent_seconds: Percentiles,
    /// See [`RecoveryReport::fault_to_deleted_seconds`].
    pub fault_to_deleted_seconds: Percentiles,
    /// See [`RecoveryReport::fault_to_running_seconds`].
    pub fault_to_running_seconds: Percentiles,
    /// Restarts for which nobody was evicted, as all ranks had ended before: they have no time to the intent, and are not in it.
    pub without_eviction: usize,
    /// Faults with which fewer ranks died than `ranks_died` says, or more.
    pub died_otherwise: usize,
    /// Restarts that took more than one further attempt until all pods ran.
    pub repeated_attempts: usize,
    /// See [`RecoveryReport::wrong_restarts`].
    pub wrong_restarts: usize,
    /// See [`RecoveryReport::partial_restarts`].
    pub partial_restarts: usize,
}

/// One case of a lost node.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeLossReport {
    /// Nodes that were lost.
    pub runs: usize,
    /// What the ranks on other nodes do once they have lost their peers: `hang` or `fail`.
    pub ranks_elsewhere: &'static str,
    /// From the loss to the Evict in the Ledger.
    pub node_loss_to_intent_seconds: Percentiles,
    /// From the loss to all pods of another attempt being in phase Running.
    pub node_loss_to_running_seconds: Percentiles,
    /// See [`RecoveryReport::wrong_restarts`].
    pub wrong_restarts: usize,
    /// See [`RecoveryReport::partial_restarts`].
    pub partial_restarts: usize,
}

/// Quantiles of nothing: `null` in JSON.
const NONE: Percentiles = Percentiles {
    p50: f64::NAN,
    p99: f64::NAN,
};

/// Times of one fault, in seconds since it was injected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FaultTimes {
    pub(super) taint: f64,
    /// `None`: nobody was evicted, as all ranks had ended.
    pub(super) intent: Option<f64>,
    pub(super) deleted: f64,
    pub(super) running: f64,
    /// Attempts that it took, at least one.
    pub(super) attempts: i64,
}

/// What was counted in a case.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) wrong: usize,
    pub(super) partial: usize,
    pub(super) died_otherwise: usize,
}

impl RecoveryReport {
    /// Nothing was measured yet.
    pub(super) fn new(runs: u32, first: Case, kubernetes: String, timing: Timing) -> Self {
        let none = Percentiles::default();
        Self {
            runs,
            fault_to_taint_seconds: none,
            fault_to_intent_seconds: none,
            fault_to_deleted_seconds: none,
            fault_to_running_seconds: none,
            node_loss_to_running_seconds: None,
            kubernetes_node_loss_seconds: None,
            ranks_died: first.ranks_died,
            wrong_restarts: 0,
            partial_restarts: 0,
            grace_seconds: first.grace_seconds(),
            settings: Settings {
                kubernetes,
                nodes: super::NODES.len(),
                ranks: RANKS,
                gpus_of_rank: GPUS,
                termination_grace_period_seconds: GRACE_SECONDS,
                xid: super::XID,
                is_quick: timing != Timing::AS_SHIPPED,
                timing,
            },
            cases: Vec::new(),
            node_losses: Vec::new(),
            findings: Vec::new(),
        }
    }

    pub(super) fn add_case(&mut self, case: FaultReport) {
        if self.cases.is_empty() {
            self.fault_to_taint_seconds = case.fault_to_taint_seconds;
            self.fault_to_intent_seconds = case.fault_to_intent_seconds;
            self.fault_to_deleted_seconds = case.fault_to_deleted_seconds;
            self.fault_to_running_seconds = case.fault_to_running_seconds;
        }
        self.wrong_restarts += case.wrong_restarts;
        self.partial_restarts += case.partial_restarts;
        self.cases.push(case);
    }

    pub(super) fn add_node_loss(&mut self, case: NodeLossReport) {
        self.node_loss_to_running_seconds
            .get_or_insert(case.node_loss_to_running_seconds);
        self.wrong_restarts += case.wrong_restarts;
        self.partial_restarts += case.partial_restarts;
        self.node_losses.push(case);
    }
}

impl FaultReport {
    pub(super) fn of(case: Case, times: &[FaultTimes], counts: Counts) -> Self {
        let of = |time: fn(&FaultTimes) -> f64| Percentiles::of(times.iter().map(time).collect());
        let intents: Vec<f64> = times.iter().filter_map(|times| times.intent).collect();
        let without_eviction = times.len() - intents.len();
        Self {
            runs: times.len(),
            grace_seconds: case.grace_seconds(),
            ranks_died: case.ranks_died,
            fault_to_taint_seconds: of(|times| times.taint),
            fault_to_intent_seconds: if intents.is_empty() {
                NONE
            } else {
                Percentiles::of(intents)
            },
            fault_to_deleted_seconds: of(|times| times.deleted),
            fault_to_running_seconds: of(|times| times.running),
            without_eviction,
            died_otherwise: counts.died_otherwise,
            repeated_attempts: times.iter().filter(|times| times.attempts > 1).count(),
            wrong_restarts: counts.wrong,
            partial_restarts: counts.partial,
        }
    }
}

/// Two quantiles in seconds, in one column.
fn pair(times: Percentiles) -> String {
    format!("{:.1}; {:.1}", times.p50, times.p99)
}

impl fmt::Display for RecoveryReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "Seconds from the fault of a GPU, p50; p99. {} pods of {} GPUs on {} nodes, XID {}, Kubernetes {}.",
            self.settings.ranks,
            self.settings.gpus_of_rank,
            self.settings.nodes,
            self.settings.xid,
            self.settings.kubernetes
        )?;
        writeln!(
            formatter,
            "{:>5} {:>5} {:>5} {:>12} {:>12} {:>14} {:>14} {:>6} {:>8}",
            "GRACE",
            "DIED",
            "RUNS",
            "TAINT",
            "INTENT",
            "ALL DELETED",
            "ALL RUNNING",
            "WRONG",
            "PARTIAL"
        )?;
        for case in &self.cases {
            writeln!(
                formatter,
                "{:>5} {:>5} {:>5} {:>12} {:>12} {:>14} {:>14} {:>6} {:>8}",
                case.grace_seconds,
                case.ranks_died.to_string(),
                case.runs,
                pair(case.fault_to_taint_seconds),
                pair(case.fault_to_intent_seconds),
                pair(case.fault_to_deleted_seconds),
                pair(case.fault_to_running_seconds),
                case.wrong_restarts,
                case.partial_restarts
            )?;
        }
        let quick = if self.settings.is_quick {
            "; times are SHORTENED"
        } else {
            ""
        };
        let timing = self.settings.timing;
        writeln!(
            formatter,
            "\nSeconds from the loss of a node, p50; p99. NotReady after {} s, gangs are evicted {} s later, pods tolerate it for {} s{quick}.",
            timing.node_monitor_grace_seconds,
            timing.node_evict_after_seconds,
            timing.toleration_seconds
        )?;
        for case in &self.node_losses {
            writeln!(
                formatter,
                "gang whose ranks elsewhere {}: intent {}, all running {} ({} runs, {} wrong, {} partial)",
                case.ranks_elsewhere,
                pair(case.node_loss_to_intent_seconds),
                pair(case.node_loss_to_running_seconds),
                case.runs,
                case.wrong_restarts,
                case.partial_restarts
            )?;
        }
        if let Some(seconds) = self.kubernetes_node_loss_seconds {
            writeln!(
                formatter,
                "plain Job, Kubernetes alone: lost pods run elsewhere after {seconds:.1} (once)"
            )?;
        }
        self.findings
            .iter()
            .try_for_each(|finding| writeln!(formatter, "  {finding}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(running: f64, attempts: i64) -> FaultTimes {
        FaultTimes {
            taint: 0.5,
            intent: Some(1.0),
            deleted: running - 5.0,
            running,
            attempts,
        }
    }

    #[test]
    fn the_first_case_is_what_the_report_says_first_and_restarts_are_summed() {
        let version = "v1.37.0".to_owned();
        let mut report = RecoveryReport::new(2, Case::MAIN, version, Timing::AS_SHIPPED);
        let first = [times(40.0, 1), times(44.0, 2)];
        let counts = Counts {
            partial: 1,
            ..Counts::default()
        };
        report.add_case(FaultReport::of(Case::MAIN, &first, counts));
        let other = Case {
            takes_grace: false,
            ranks_died: RanksDied::All,
        };
        let not_evicted = FaultTimes {
            intent: None,
            ..times(9.0, 1)
        };
        let counts = Counts {
            wrong: 2,
            died_otherwise: 1,
            ..Counts::default()
        };
        let evicted = [times(9.0, 1), not_evicted];
        report.add_case(FaultReport::of(other, &evicted, counts));
        report.add_case(FaultReport::of(other, &evicted[1..], Counts::default()));
        let json = serde_json::to_value(&report).unwrap();
        for (field, expected) in [
            ("/runs", serde_json::json!(2)),
            ("/faultToTaintSeconds/p50", serde_json::json!(0.5)),
            ("/faultToIntentSeconds/p99", serde_json::json!(1.0)),
            ("/faultToDeletedSeconds/p50", serde_json::json!(35.0)),
            ("/faultToRunningSeconds/p99", serde_json::json!(44.0)),
            ("/nodeLossToRunningSeconds", serde_json::Value::Null),
            ("/kubernetesNodeLossSeconds", serde_json::Value::Null),
            ("/ranksDied", serde_json::json!(0)),
            ("/wrongRestarts", serde_json::json!(2)),
            ("/partialRestarts", serde_json::json!(1)),
            ("/settings/isQuick", serde_json::json!(false)),
            ("/cases/0/repeatedAttempts", serde_json::json!(1)),
            ("/cases/1/ranksDied", serde_json::json!("all")),
            ("/cases/1/diedOtherwise", serde_json::json!(1)),
            ("/cases/1/withoutEviction", serde_json::json!(1)),
            ("/cases/1/faultToIntentSeconds/p99", serde_json::json!(1.0)),
            ("/cases/2/faultToIntentSeconds/p50", serde_json::Value::Null),
        ] {
            assert_eq!(json.pointer(field), Some(&expected), "{field}");
        }
        assert!(report.to_string().contains("40.0; 44.0"), "{report}");
    }

    #[test]
    fn times_of_lost_nodes_that_are_shortened_are_said_to_be() {
        let report = RecoveryReport::new(1, Case::MAIN, String::new(), Timing::QUICK);
        assert!(report.settings.is_quick);
        assert!(report.to_string().contains("SHORTENED"), "{report}");
    }
}
