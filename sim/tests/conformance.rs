//! The runner over the shared file of cases: no case fails of a suite whose rules are all built.

#![allow(clippy::expect_used, clippy::print_stdout, reason = "tests")]

#[path = "../../engine/tests/common/kueue_cases.rs"]
mod kueue_cases;

use muster_sim::conformance::{self, Counts};

/// The suites that the runner knows. Of their cases none deviates.
const SUITES: [&str; 7] = [
    "classical_preemption",
    "dominant_resource_share",
    "fair_sharing_preemption",
    KEEPS_BUILDER_NAMES,
    "flavor_is_preferred",
    "hierarchical_preemption",
    "quota_available",
];

/// The one whose cases are skipped where they keep names of Go's builders.
const KEEPS_BUILDER_NAMES: &str = "flavor_assignment";

/// Whole rounds. What Kueue does in them and Muster does not yet: capacity held for a head that nobody may give way to,
/// preemption that is preferred to borrowing, partial admission, Flavors by taints and labels, fair shares. Two cases more are about
/// what is no quota: limits of containers, and a write that fails.
const ROUNDS: [(&str, usize); 2] = [("schedule_cycle", 20), ("schedule_cycle_recompute", 0)];

#[test]
fn every_case_of_a_known_suite_passes() {
    let Some(text) = kueue_cases::text() else {
        return;
    };
    let report = conformance::run(&text).expect("it can be read");
    let mut known = 0;
    for suite in SUITES {
        let counts = report.counts(Some(suite));
        let Counts {
            passed, skipped, ..
        } = counts;
        let may_skip = suite == KEEPS_BUILDER_NAMES;
        let expected = Counts {
            passed,
            skipped: if may_skip { skipped } else { 0 },
            ..Counts::default()
        };
        assert_eq!(counts, expected, "{suite}: {report}");
        assert!(passed > 0, "the file has no case of {suite}");
        known += passed;
    }
    let mut failed = 0;
    for (suite, least) in ROUNDS {
        let counts = report.counts(Some(suite));
        assert!(counts.passed >= least, "{suite}: {report}");
        known += counts.passed;
        failed += counts.failed;
    }
    let all = report.counts(None);
    let expected = Counts {
        passed: known,
        failed,
        skipped: all.skipped,
        ..Counts::default()
    };
    assert_eq!(all, expected, "what is not known is skipped: {report}");
}

#[test]
fn what_is_not_known_is_skipped_and_what_differs_fails() {
    let of = |suite: &str, case: &str| {
        let text = format!(r#"{{"_about": 1, "{suite}": {{"_source": "here", "case": {case}}}}}"#);
        let report = conformance::run(&text).expect("it can be read");
        report.to_string()
    };
    let preferred = |wanted: bool| {
        format!(
            r#"{{"a": {{"preemptionMode": "fit"}}, "b": {{"preemptionMode": "reclaim"}}, "wantPreferred": {wanted}}}"#
        )
    };
    for (report, last) in [
        (
            of("flavor_is_preferred", &preferred(true)),
            "passed 1, deviated 0, failed 0, skipped 0",
        ),
        (
            of("flavor_is_preferred", &preferred(false)),
            "passed 0, deviated 0, failed 1, skipped 0",
        ),
        (
            of("flavor_is_preferred", "{}"),
            "passed 0, deviated 0, failed 1, skipped 0",
        ),
        (
            of("flavor_assignment", r#"{"wlPods": [{"go": "MakePodSet"}]}"#),
            "passed 0, deviated 0, failed 0, skipped 1",
        ),
        (
            of("another_suite", "{}"),
            "passed 0, deviated 0, failed 0, skipped 1",
        ),
    ] {
        assert_eq!(report.lines().last(), Some(last), "{report}");
    }
    for broken in ["", "[]", r#"{"suite": []}"#] {
        assert!(conformance::run(broken).is_err(), "{broken:?}");
    }
}
