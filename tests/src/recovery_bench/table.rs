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
