//! What was measured, as JSON for programs.

use serde::Serialize;

use super::{
    Options, Timing,
    cases::{Case, RanksDied},
    gang::{GPUS, GRACE_SECONDS, RANKS},
    targets::{self, Target},
    times::{Counts, FaultTimes, NONE, NodeLossTimes, quantiles},
};
use crate::scale::Percentiles;

/// What was measured. The fields up to `partial_restarts` are what is promised: times are those of the first case, which is the main one unless others were
/// chosen; restarts are of all cases. A time that never came, as the gang was not back within the limit of a run, counts as longer than any: a quantile that
/// falls on it is `null`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RecoveryReport {
    /// Faults that were measured in the first case.
    pub runs: usize,
    /// From the injection of a fault to its taint in the ResourceSlice, as a watch brought it.
    pub fault_to_taint_seconds: Percentiles,
    /// To the Evict in the Ledger.
    pub fault_to_intent_seconds: Percentiles,
    /// To the last pod of the attempt being gone from the API server, or, where it failed by itself and its Job keeps it, having ended.
    pub fault_to_deleted_seconds: Percentiles,
    /// To all pods of another attempt being in phase Running at one time.
    pub fault_to_running_seconds: Percentiles,
    /// From the end of a node's kubelet, runtime and driver to all pods of another attempt being in phase Running, where the ranks elsewhere hang;
    /// absent if it was not measured.
    pub node_loss_to_running_seconds: Option<Percentiles>,
    /// From the same to replacements of all lost pods of a plain Job being in phase Running, with what Kubernetes does by itself; absent if it
    /// was not measured. It is measured once, so both quantiles are that one time.
    pub kubernetes_node_loss_seconds: Option<Percentiles>,
    /// How many ranks died with their GPU in the first case.
    pub ranks_died: RanksDied,
    /// Gangs that were restarted though they held neither a faulty device nor anything of a lost node, as did none whose GPU broke only later.
    pub wrong_restarts: usize,
    /// Restarts in which old and new pods were mixed.
    pub partial_restarts: usize,
    /// Faults and lost nodes after which the gang was not whole again within the limit of a run, in all cases.
    pub unfinished_runs: usize,
    /// Runs of which nothing can be said, in all cases: no fault was injected, or what followed may have been missed. They are in no other number.
    pub unmeasured_runs: usize,
    /// What all this is judged by.
    pub targets: Vec<Target>,
    /// Seconds of grace that ranks took in the first case.
    pub grace_seconds: u32,
    /// With what it was measured.
    pub settings: Settings,
    /// All cases of faults.
    pub cases: Vec<FaultReport>,
    /// All cases of lost nodes.
    pub node_losses: Vec<NodeLossReport>,
    /// Every restart that was wrong or not whole, where other ranks died than were to, and what could not be measured, in words.
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
    /// Gangs that run, and lose a GPU, at one time.
    pub side_by_side: u32,
    /// Whether the times of lost nodes are shorter than what ships.
    pub is_quick: bool,
    /// What decides about lost nodes.
    pub timing: Timing,
}

/// One case of a fault.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FaultReport {
    /// Faults that were measured.
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
    /// See [`RecoveryReport::unfinished_runs`]; they are among the runs.
    pub unfinished_runs: usize,
    /// See [`RecoveryReport::unmeasured_runs`]; they are not among the runs.
    pub unmeasured_runs: usize,
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
    /// See [`RecoveryReport::unfinished_runs`]; they are among the runs.
    pub unfinished_runs: usize,
    /// See [`RecoveryReport::unmeasured_runs`]; they are not among the runs.
    pub unmeasured_runs: usize,
}

impl RecoveryReport {
    /// Nothing was measured yet.
    pub(super) fn new(options: &Options, kubernetes: String) -> Self {
        let first = options.cases.first().copied().unwrap_or(Case::MAIN);
        let timing = options.timing;
        let mut report = Self {
            runs: 0,
            fault_to_taint_seconds: NONE,
            fault_to_intent_seconds: NONE,
            fault_to_deleted_seconds: NONE,
            fault_to_running_seconds: NONE,
            node_loss_to_running_seconds: None,
            kubernetes_node_loss_seconds: None,
            ranks_died: first.ranks_died,
            wrong_restarts: 0,
            partial_restarts: 0,
            unfinished_runs: 0,
            unmeasured_runs: 0,
            targets: Vec::new(),
            grace_seconds: first.grace_seconds(),
            settings: Settings {
                kubernetes,
                nodes: super::NODES.len(),
                ranks: RANKS,
                gpus_of_rank: GPUS,
                termination_grace_period_seconds: GRACE_SECONDS,
                xid: super::XID,
                side_by_side: options.side_by_side,
                is_quick: timing != Timing::AS_SHIPPED,
                timing,
            },
            cases: Vec::new(),
            node_losses: Vec::new(),
            findings: Vec::new(),
        };
        report.targets = targets::of(&report);
        report
    }

    pub(super) fn add_case(&mut self, case: FaultReport) {
        if self.cases.is_empty() {
            self.runs = case.runs;
            self.fault_to_taint_seconds = case.fault_to_taint_seconds;
            self.fault_to_intent_seconds = case.fault_to_intent_seconds;
            self.fault_to_deleted_seconds = case.fault_to_deleted_seconds;
            self.fault_to_running_seconds = case.fault_to_running_seconds;
        }
        self.wrong_restarts += case.wrong_restarts;
        self.partial_restarts += case.partial_restarts;
        self.unfinished_runs += case.unfinished_runs;
        self.unmeasured_runs += case.unmeasured_runs;
        self.cases.push(case);
        self.targets = targets::of(self);
    }

    pub(super) fn add_node_loss(&mut self, case: NodeLossReport) {
        self.node_loss_to_running_seconds
            .get_or_insert(case.node_loss_to_running_seconds);
        self.wrong_restarts += case.wrong_restarts;
        self.partial_restarts += case.partial_restarts;
        self.unfinished_runs += case.unfinished_runs;
        self.unmeasured_runs += case.unmeasured_runs;
        self.node_losses.push(case);
        self.targets = targets::of(self);
    }

    /// What Kubernetes alone took, the one time that it is measured, and the gangs that were restarted meanwhile and should not have been.
    pub(super) fn add_kubernetes_node_loss(&mut self, seconds: f64, wrong: usize) {
        let once = quantiles(std::iter::once(Some(seconds)));
        self.kubernetes_node_loss_seconds = Some(once);
        self.wrong_restarts += wrong;
        self.targets = targets::of(self);
    }

    /// Runs that there were, of all cases.
    pub(super) fn all_runs(&self) -> usize {
        let faults = self.cases.iter().map(|case| case.runs);
        let losses = self.node_losses.iter().map(|case| case.runs);
        faults.chain(losses).sum::<usize>() + self.unmeasured_runs
    }
}

impl FaultReport {
    pub(super) fn of(case: Case, times: &[FaultTimes], counts: Counts) -> Self {
        let of = |time: fn(&FaultTimes) -> Option<f64>| quantiles(times.iter().map(time));
        let evicted = times.iter().filter(|times| !times.is_without_eviction());
        let count = |is_so: fn(&FaultTimes) -> bool| times.iter().filter(|it| is_so(it)).count();
        Self {
            runs: times.len(),
            grace_seconds: case.grace_seconds(),
            ranks_died: case.ranks_died,
            fault_to_taint_seconds: of(|times| times.taint),
            fault_to_intent_seconds: quantiles(evicted.map(|times| times.intent)),
            fault_to_deleted_seconds: of(|times| times.deleted),
            fault_to_running_seconds: of(|times| times.running),
            without_eviction: count(FaultTimes::is_without_eviction),
            died_otherwise: counts.died_otherwise,
            repeated_attempts: count(|times| times.attempts.is_some_and(|took| took > 1)),
            wrong_restarts: counts.wrong,
            partial_restarts: counts.partial,
            unfinished_runs: count(|times| times.running.is_none()),
            unmeasured_runs: counts.unmeasured,
        }
    }
}

impl NodeLossReport {
    pub(super) fn of(
        ranks_elsewhere: &'static str,
        times: &[NodeLossTimes],
        counts: Counts,
    ) -> Self {
        Self {
            runs: times.len(),
            ranks_elsewhere,
            node_loss_to_intent_seconds: quantiles(times.iter().map(|times| times.intent)),
            node_loss_to_running_seconds: quantiles(times.iter().map(|times| times.running)),
            wrong_restarts: counts.wrong,
            partial_restarts: counts.partial,
            unfinished_runs: times.iter().filter(|it| it.running.is_none()).count(),
            unmeasured_runs: counts.unmeasured,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A run that went well, in which all pods ran again after so many seconds.
    pub(in crate::recovery_bench) fn times(running: f64, attempts: i64) -> FaultTimes {
        FaultTimes {
            taint: Some(0.5),
            intent: Some(1.0),
            deleted: Some(running - 5.0),
            running: Some(running),
            attempts: Some(attempts),
        }
    }

    /// Nothing was measured yet.
    pub(in crate::recovery_bench) fn report(timing: Timing) -> RecoveryReport {
        let options = Options {
            runs: 2,
            side_by_side: 1,
            cases: vec![Case::MAIN],
            node_loss_runs: 0,
            timing,
        };
        RecoveryReport::new(&options, "v1.37.0".to_owned())
    }

    #[test]
    fn the_first_case_is_what_the_report_says_first_and_restarts_are_summed() {
        let mut report = report(Timing::AS_SHIPPED);
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
            ("/targets/0/value", serde_json::json!(0.5)),
            ("/targets/0/limit", serde_json::json!(2.0)),
            ("/targets/0/met", serde_json::json!(true)),
            ("/targets/1/value", serde_json::json!(40.0)),
            ("/targets/1/met", serde_json::json!(true)),
            ("/targets/2/value", serde_json::json!(44.0)),
            ("/targets/2/limit", serde_json::json!(60.0)),
            ("/targets/2/met", serde_json::json!(true)),
            (
                "/targets/3/name",
                serde_json::json!("wrongRestarts, all cases"),
            ),
            ("/targets/3/value", serde_json::json!(2.0)),
            ("/targets/3/limit", serde_json::json!(0.0)),
            ("/targets/3/met", serde_json::json!(false)),
            ("/targets/4/met", serde_json::json!(false)),
            ("/targets/5/met", serde_json::json!(true)),
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
    fn before_anything_was_measured_there_are_no_times() {
        let json = serde_json::to_value(report(Timing::AS_SHIPPED)).unwrap();
        assert_eq!(json["runs"], 0);
        for field in ["Taint", "Intent", "Deleted", "Running"] {
            let quantiles = &json[format!("faultTo{field}Seconds")];
            let nothing = serde_json::json!({"p50": null, "p99": null});
            assert_eq!(*quantiles, nothing, "{field}");
        }
        let targets = json["targets"].as_array().unwrap();
        assert_eq!(targets.len(), 7);
        for target in targets {
            assert!(target["limit"].is_number(), "{target}");
            assert!(target["value"].is_null(), "{target}");
            assert!(target["met"].is_null(), "{target}");
        }
    }

    #[test]
    fn the_loss_with_kubernetes_alone_has_the_shape_of_that_with_muster() {
        let mut report = report(Timing::AS_SHIPPED);
        report.add_kubernetes_node_loss(351.5, 1);
        let json = serde_json::to_value(&report).unwrap();
        let once = serde_json::json!({"p50": 351.5, "p99": 351.5});
        assert_eq!(json["kubernetesNodeLossSeconds"], once);
        assert_eq!(json["wrongRestarts"], 1);
    }

    #[test]
    fn a_gang_that_was_not_back_in_time_took_longer_than_any_and_is_not_left_out() {
        let mut lost = times(0.0, 1);
        (lost.deleted, lost.running, lost.attempts) = (None, None, None);
        let mut all = vec![times(40.0, 1); 49];
        all.push(lost);
        let counts = Counts {
            unmeasured: 1,
            ..Counts::default()
        };
        let mut report = report(Timing::AS_SHIPPED);
        report.add_case(FaultReport::of(Case::MAIN, &all, counts));
        let never = [NodeLossTimes::default()];
        report.add_node_loss(NodeLossReport::of("hang", &never, Counts::default()));
        let json = serde_json::to_value(&report).unwrap();
        for (field, expected) in [
            ("/runs", serde_json::json!(50)),
            ("/faultToTaintSeconds/p99", serde_json::json!(0.5)),
            ("/faultToIntentSeconds/p99", serde_json::json!(1.0)),
            ("/faultToRunningSeconds/p50", serde_json::json!(40.0)),
            ("/faultToRunningSeconds/p99", serde_json::Value::Null),
            ("/nodeLossToRunningSeconds/p50", serde_json::Value::Null),
            ("/unfinishedRuns", serde_json::json!(2)),
            ("/unmeasuredRuns", serde_json::json!(1)),
            ("/targets/5/value", serde_json::json!(2.0)),
            ("/targets/5/met", serde_json::json!(false)),
            ("/targets/6/value", serde_json::json!(1.0)),
            // A tenth of 52.
            ("/targets/6/limit", serde_json::json!(5.0)),
            ("/targets/6/met", serde_json::json!(true)),
            ("/cases/0/unfinishedRuns", serde_json::json!(1)),
            ("/cases/0/withoutEviction", serde_json::json!(0)),
            ("/nodeLosses/0/unfinishedRuns", serde_json::json!(1)),
        ] {
            assert_eq!(json.pointer(field), Some(&expected), "{field}");
        }
        assert!(report.to_string().contains("40.0; never"), "{report}");
    }

    #[test]
    fn times_of_lost_nodes_that_are_shortened_are_said_to_be() {
        let report = report(Timing::QUICK);
        assert!(report.settings.is_quick);
        assert!(report.to_string().contains("SHORTENED"), "{report}");
    }
}
