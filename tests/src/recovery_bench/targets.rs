//! What the measurement is judged by: the budgets for recovery that the design promises.

use std::fmt;

use anyhow::{Result, ensure};
use serde::Serialize;

use super::{
    cases::{Case, RanksDied},
    report::{FaultReport, RecoveryReport},
    times::text,
};

/// Longest p99 from a fault to its taint.
const TAINT_SECONDS: f64 = 2.0;
/// Longest p50 from a fault to the whole gang running again, where ranks take 30 s of grace and none dies ([`Case::MAIN`]).
const RUNNING_SECONDS: f64 = 45.0;
/// Longest p99 from a fault to the whole gang running again, whatever grace ranks take, where none or one dies. With more of them the Job controller
/// alone may take longer: it doubles its delay with each pod that failed.
const LONGEST_RUNNING_SECONDS: f64 = 60.0;

/// Of so many runs, one may be unmeasured, and of fewer none. With more of them the times would be those of a selection: a gang that does not start has none.
const RUNS_OF_UNMEASURED: usize = 10;

/// A number, and the most that it may be.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// The field of the report that is judged, with its unit, and of which cases.
    pub name: &'static str,
    /// What was measured, in the unit of the name; absent if nobody asked for the case. In JSON it is `null` as well where the time never came, or where
    /// no run of the case could be measured; then `met` is `false`.
    pub value: Option<f64>,
    /// The most that it may be.
    pub limit: f64,
    /// Whether it is no more than that; absent if nobody asked for the case.
    pub met: Option<bool>,
    /// What else has to be known of the limit, where it is not met; mostly nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
    /// Decimals in the table.
    #[serde(skip)]
    decimals: usize,
}

impl Target {
    fn seconds(name: &'static str, value: Option<f64>, limit: f64) -> Self {
        Self {
            name,
            value,
            limit,
            met: value.map(|value| value <= limit),
            remark: None,
            decimals: 3,
        }
    }

    /// It must not happen at all.
    fn never(name: &'static str, count: Option<usize>) -> Self {
        Self::at_most(name, count, 0)
    }

    /// It may happen so often.
    fn at_most(name: &'static str, count: Option<usize>, limit: usize) -> Self {
        let number = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
        Self {
            decimals: 0,
            ..Self::seconds(name, count.map(number), number(limit))
        }
    }

    /// Runs of which nothing can be said, if anything was measured: of `all` runs.
    fn unmeasured(count: Option<usize>, all: usize) -> Self {
        let limit = all / RUNS_OF_UNMEASURED;
        let target = Self::at_most("unmeasuredRuns, all cases", count, limit);
        let is_missed = target.met == Some(false);
        let remark = (is_missed && limit == 0).then(|| {
            format!(
                "a tenth of {all} runs, rounded down; the measurement failed, and not a recovery: of {RUNS_OF_UNMEASURED} runs one may be unmeasured"
            )
        });
        Self { remark, ..target }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, limit, .. } = self;
        let remark = self.remark.as_deref();
        let remark = remark.map_or_else(String::new, |remark| format!(": {remark}"));
        let value = match self.value {
            None => return write!(formatter, "{name}: not measured (at most {limit})"),
            Some(value) if value.is_nan() => "no run could be measured".to_owned(),
            Some(value) => text(value, self.decimals),
        };
        let verdict = if self.met == Some(true) {
            "met"
        } else {
            "NOT MET"
        };
        write!(
            formatter,
            "{name}: {value}, {verdict} (at most {limit}{remark})"
        )
    }
}

impl RecoveryReport {
    /// Fails if a target is not met. That no run is unfinished is one of them. What was not measured as nobody asked for it does not fail.
    pub fn judge(&self) -> Result<()> {
        let missed = self.targets.iter().filter(|it| it.met == Some(false));
        let missed: Vec<String> = missed.map(ToString::to_string).collect();
        ensure!(
            missed.is_empty(),
            "{} of {} targets not met: {}",
            missed.len(),
            self.targets.len(),
            missed.join("; ")
        );
        Ok(())
    }
}

/// The targets, with what the report says so far.
pub(super) fn of(report: &RecoveryReport) -> Vec<Target> {
    let taint = report.cases.iter().map(|it| it.fault_to_taint_seconds.p99);
    let main = report.cases.iter().filter(|case| is_main(case));
    let running = main.map(|it| it.fault_to_running_seconds.p50);
    let quick = report.cases.iter().filter(|case| is_quick(case));
    let longest = quick.map(|it| it.fault_to_running_seconds.p99);
    let is_measured = !report.cases.is_empty() || !report.node_losses.is_empty();
    let count = |count: usize| is_measured.then_some(count);
    vec![
        Target::seconds(
            "faultToTaintSeconds p99, worst case",
            worst(taint),
            TAINT_SECONDS,
        ),
        Target::seconds(
            "faultToRunningSeconds p50, case 30:0",
            worst(running),
            RUNNING_SECONDS,
        ),
        Target::seconds(
            "faultToRunningSeconds p99, worst case with 0 or 1 dead",
            worst(longest),
            LONGEST_RUNNING_SECONDS,
        ),
        Target::never("wrongRestarts, all cases", count(report.wrong_restarts)),
        Target::never("partialRestarts, all cases", count(report.partial_restarts)),
        Target::never("unfinishedRuns, all cases", count(report.unfinished_runs)),
        Target::unmeasured(count(report.unmeasured_runs), report.all_runs()),
    ]
}

fn is_main(case: &FaultReport) -> bool {
    case.ranks_died == Case::MAIN.ranks_died && case.grace_seconds == Case::MAIN.grace_seconds()
}

/// Whether no rank died with its GPU, or that of the GPU alone.
fn is_quick(case: &FaultReport) -> bool {
    matches!(case.ranks_died, RanksDied::Count(0 | 1))
}

/// The longest of these times; one that is not a number, as no run of its case could be measured, is worse than any. Nothing if there are none.
fn worst(times: impl Iterator<Item = f64>) -> Option<f64> {
    times.reduce(|worst, next| {
        if worst <= next || next.is_nan() {
            next
        } else {
            worst
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::{
        Timing,
        report::{
            NodeLossReport,
            tests::{report, times},
        },
        times::{Counts, FaultTimes, NodeLossTimes},
    };
    use super::*;

    /// One run of each case, with its time to the taint and to all pods running.
    fn report_of(cases: &[(&str, Option<f64>, Option<f64>)]) -> RecoveryReport {
        let mut report = report(Timing::AS_SHIPPED);
        for (case, taint, running) in cases {
            let run = FaultTimes {
                taint: *taint,
                running: *running,
                ..times(40.0, 1)
            };
            let case: Case = case.parse().unwrap();
            report.add_case(FaultReport::of(case, &[run], Counts::default()));
        }
        report
    }

    fn met(report: &RecoveryReport) -> Vec<Option<bool>> {
        report.targets.iter().map(|target| target.met).collect()
    }

    #[test]
    fn times_at_their_limit_are_within_it_and_longer_ones_and_those_that_never_came_are_not() {
        for (taint, running, is_tainted, runs, is_short, is_finished) in [
            (Some(2.0), Some(45.0), true, true, true, true),
            (Some(2.001), Some(45.0), false, true, true, true),
            (Some(2.0), Some(45.001), true, false, true, true),
            (Some(2.0), Some(60.0), true, false, true, true),
            (Some(2.0), Some(60.001), true, false, false, true),
            (None, Some(45.0), false, true, true, true),
            (Some(2.0), None, true, false, false, false),
        ] {
            let report = report_of(&[("30:0", taint, running)]);
            let expected = [is_tainted, runs, is_short, true, true, is_finished, true].map(Some);
            assert_eq!(met(&report), expected, "{report}");
            let is_good = is_tainted && runs && is_short && is_finished;
            assert_eq!(report.judge().is_ok(), is_good, "{report}");
        }
    }

    #[test]
    fn the_longest_time_to_running_is_judged_where_none_or_one_died_and_in_no_other_case() {
        for (case, running, is_short) in [
            ("30:0", Some(60.001), Some(false)),
            ("30:1", Some(60.0), Some(true)),
            ("30:1", Some(60.001), Some(false)),
            ("0:0", Some(60.001), Some(false)),
            ("0:1", Some(60.001), Some(false)),
            ("0:1", None, Some(false)),
            ("30:3", Some(400.0), None),
            ("0:all", Some(400.0), None),
        ] {
            let report = report_of(&[(case, Some(0.5), running)]);
            assert_eq!(met(&report)[2], is_short, "{report}");
        }
        // It is the longest of all runs of all of these cases, and not that which most of them took.
        let mut report = report_of(&[("30:0", Some(0.5), Some(40.0))]);
        let mut runs = vec![times(9.0, 1); 49];
        runs.push(times(61.0, 1));
        let case: Case = "0:1".parse().unwrap();
        report.add_case(FaultReport::of(case, &runs, Counts::default()));
        let error = report.judge().unwrap_err().to_string();
        assert_eq!(
            error,
            "1 of 7 targets not met: faultToRunningSeconds p99, worst case with 0 or 1 dead: 61.000, NOT MET (at most 60)"
        );
    }

    #[test]
    fn the_taint_is_judged_in_every_case_and_the_start_in_the_main_one_wherever_it_stands() {
        let report = report_of(&[
            ("30:all", Some(2.5), Some(400.0)),
            ("30:0", Some(0.5), Some(40.0)),
            ("0:0", Some(1.0), Some(9.0)),
        ]);
        let values: Vec<Option<f64>> = report.targets.iter().map(|it| it.value).collect();
        assert_eq!(
            values,
            [
                Some(2.5),
                Some(40.0),
                Some(40.0),
                Some(0.0),
                Some(0.0),
                Some(0.0),
                Some(0.0)
            ]
        );
        let error = report.judge().unwrap_err().to_string();
        assert_eq!(
            error,
            "1 of 7 targets not met: faultToTaintSeconds p99, worst case: 2.500, NOT MET (at most 2)"
        );
        let named = report.targets.iter().map(|it| it.name);
        let main = format!("case {}", Case::MAIN);
        assert_eq!(named.filter(|name| name.contains(&main)).count(), 1);
    }

    #[test]
    fn a_case_that_nobody_asked_for_is_not_measured_and_does_not_fail() {
        let report = report_of(&[("30:1", Some(0.5), Some(55.0))]);
        assert_eq!(
            met(&report),
            [
                Some(true),
                None,
                Some(true),
                Some(true),
                Some(true),
                Some(true),
                Some(true)
            ]
        );
        report.judge().unwrap();
    }

    #[test]
    fn a_case_that_was_asked_for_and_of_which_no_run_could_be_measured_fails() {
        for order in [["30:0", "0:0"], ["0:0", "30:0"]] {
            let mut report = report(Timing::AS_SHIPPED);
            for case in order {
                let case: Case = case.parse().unwrap();
                let runs = [times(9.0, 1)];
                let measured: &[FaultTimes] = if case == Case::MAIN { &[] } else { &runs };
                report.add_case(FaultReport::of(case, measured, Counts::default()));
            }
            let expected = [false, false, false, true, true, true, true].map(Some);
            assert_eq!(met(&report), expected, "{report}");
            let error = report.judge().unwrap_err().to_string();
            assert!(error.contains("no run could be measured"), "{error}");
        }
    }

    #[test]
    fn one_restart_that_is_wrong_or_partial_or_one_run_that_never_came_back_fails() {
        let wrong = Counts {
            wrong: 1,
            ..Counts::default()
        };
        let partial = Counts {
            partial: 1,
            ..Counts::default()
        };
        let back = NodeLossTimes {
            intent: Some(300.0),
            running: Some(340.0),
        };
        let never = NodeLossTimes::default();
        for (counts, run, missed) in [
            (wrong, back, "wrongRestarts, all cases: 1, NOT MET"),
            (partial, back, "partialRestarts, all cases: 1, NOT MET"),
            (Counts::default(), never, "unfinishedRuns, all cases: 1"),
        ] {
            let mut report = report_of(&[("30:0", Some(0.5), Some(40.0))]);
            report.judge().unwrap();
            report.add_node_loss(NodeLossReport::of("hang", &[run], counts));
            let error = report.judge().unwrap_err().to_string();
            assert!(error.starts_with("1 of 7 targets"), "{error}");
            assert!(error.contains(missed), "{error}");
        }
    }

    #[test]
    fn of_ten_runs_one_may_be_unmeasured_and_one_more_fails() {
        for (measured, unmeasured, is_met) in [
            (8, 0, true),
            (8, 1, false),
            (9, 1, true),
            (18, 2, true),
            (17, 3, false),
        ] {
            let counts = Counts {
                unmeasured,
                ..Counts::default()
            };
            let runs = vec![times(40.0, 1); measured];
            let mut report = report(Timing::AS_SHIPPED);
            report.add_case(FaultReport::of(Case::MAIN, &runs, counts));
            assert_eq!(report.judge().is_ok(), is_met, "{report}");
        }
    }

    #[test]
    fn where_too_few_runs_were_wanted_for_one_to_be_unmeasured_the_failure_says_so() {
        for (measured, unmeasured, remark) in [
            (
                1,
                1,
                Some("(at most 0: a tenth of 2 runs, rounded down; the measurement failed"),
            ),
            (
                8,
                1,
                Some("(at most 0: a tenth of 9 runs, rounded down; the measurement failed"),
            ),
            (8, 2, None),
            (9, 0, None),
        ] {
            let counts = Counts {
                unmeasured,
                ..Counts::default()
            };
            let runs = vec![times(40.0, 1); measured];
            let mut report = report(Timing::AS_SHIPPED);
            report.add_case(FaultReport::of(Case::MAIN, &runs, counts));
            let last = report.targets.last().unwrap();
            assert_eq!(last.remark.is_some(), remark.is_some(), "{report}");
            if let Some(remark) = remark {
                let error = report.judge().unwrap_err().to_string();
                assert!(error.contains(remark), "{error}");
            }
        }
    }
}
