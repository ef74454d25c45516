//! What was measured, as a table for people.

use std::fmt;

use super::{report::RecoveryReport, times::text};
use crate::scale::Percentiles;

/// Two quantiles in seconds, in one column.
fn pair(times: Percentiles) -> String {
    format!("{}; {}", text(times.p50, 1), text(times.p99, 1))
}

impl fmt::Display for RecoveryReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "Seconds from the fault of a GPU, p50; p99. {} pods of {} GPUs on {} nodes, {} such gangs at a time, XID {}, Kubernetes {}.",
            self.settings.ranks,
            self.settings.gpus_of_rank,
            self.settings.nodes,
            self.settings.side_by_side,
            self.settings.xid,
            self.settings.kubernetes
        )?;
        writeln!(
            formatter,
            "{:>5} {:>5} {:>5} {:>12} {:>12} {:>14} {:>14} {:>6} {:>8} {:>10} {:>10}",
            "GRACE",
            "DIED",
            "RUNS",
            "TAINT",
            "INTENT",
            "ALL DELETED",
            "ALL RUNNING",
            "WRONG",
            "PARTIAL",
            "UNFINISHED",
            "UNMEASURED"
        )?;
        for case in &self.cases {
            writeln!(
                formatter,
                "{:>5} {:>5} {:>5} {:>12} {:>12} {:>14} {:>14} {:>6} {:>8} {:>10} {:>10}",
                case.grace_seconds,
                case.ranks_died.to_string(),
                case.runs,
                pair(case.fault_to_taint_seconds),
                pair(case.fault_to_intent_seconds),
                pair(case.fault_to_deleted_seconds),
                pair(case.fault_to_running_seconds),
                case.wrong_restarts,
                case.partial_restarts,
                case.unfinished_runs,
                case.unmeasured_runs
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
                "gang whose ranks elsewhere {}: intent {}, all running {} ({} runs, {} wrong, {} partial, {} unfinished, {} unmeasured)",
                case.ranks_elsewhere,
                pair(case.node_loss_to_intent_seconds),
                pair(case.node_loss_to_running_seconds),
                case.runs,
                case.wrong_restarts,
                case.partial_restarts,
                case.unfinished_runs,
                case.unmeasured_runs
            )?;
        }
        if let Some(once) = self.kubernetes_node_loss_seconds {
            writeln!(
                formatter,
                "plain Job, Kubernetes alone: lost pods run elsewhere after {} (measured once)",
                text(once.p50, 1)
            )?;
        }
        writeln!(formatter, "\nTargets.")?;
        for target in &self.targets {
            writeln!(formatter, "{target}")?;
        }
        self.findings
            .iter()
            .try_for_each(|finding| writeln!(formatter, "  {finding}"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        Case, FaultReport, Timing,
        report::tests::{report, times},
        times::Counts,
    };
    use super::*;

    /// The lines below the heading of the targets.
    fn targets(report: &RecoveryReport) -> Vec<String> {
        let table = report.to_string();
        let (_, below) = table.split_once("\nTargets.\n").unwrap();
        below.lines().map(str::to_owned).collect()
    }

    #[test]
    fn each_target_stands_below_the_table_with_its_value_its_limit_and_whether_it_is_met() {
        let mut report = report(Timing::AS_SHIPPED);
        let counts = Counts {
            partial: 1,
            ..Counts::default()
        };
        report.add_case(FaultReport::of(Case::MAIN, &[times(45.25, 1)], counts));
        assert_eq!(
            targets(&report),
            [
                "faultToTaintSeconds p99, worst case: 0.500, met (at most 2)",
                "faultToRunningSeconds p50, case 30:0: 45.250, NOT MET (at most 45)",
                "faultToRunningSeconds p99, worst case with 0 or 1 dead: 45.250, met (at most 60)",
                "wrongRestarts, all cases: 0, met (at most 0)",
                "partialRestarts, all cases: 1, NOT MET (at most 0)",
                "unfinishedRuns, all cases: 0, met (at most 0)",
                "unmeasuredRuns, all cases: 0, met (at most 0)",
            ]
        );
    }

    #[test]
    fn targets_that_were_not_measured_are_said_not_to_be() {
        let lines = targets(&report(Timing::AS_SHIPPED));
        assert_eq!(lines.len(), 7, "{lines:?}");
        for line in lines {
            assert!(line.contains(": not measured (at most "), "{line}");
        }
    }

    #[test]
    fn the_loss_with_kubernetes_alone_is_said_to_be_measured_once() {
        let mut report = report(Timing::AS_SHIPPED);
        assert!(!report.to_string().contains("plain Job"), "{report}");
        report.add_kubernetes_node_loss(351.54, 0);
        let says = "lost pods run elsewhere after 351.5 (measured once)";
        assert!(report.to_string().contains(says), "{report}");
    }
}
