//! The runner over the shared file of cases: no case fails of a suite whose rules are all built.

#![allow(clippy::expect_used, clippy::print_stdout, reason = "tests")]

#[path = "../../engine/tests/common/kueue_cases.rs"]
mod kueue_cases;

use std::path::PathBuf;

use kueue_cases::Missing;
use muster_sim::conformance::{self, Counts, Deviation};

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

/// Whole rounds, of whose cases some deviate.
const ROUNDS: [&str; 3] = [
    "schedule_cycle",
    "schedule_cycle_fair_sharing",
    "schedule_cycle_recompute",
];

/// Where users read of deviations.
const DEVIATIONS: &str = include_str!("../../docs/kueue.md");

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
    let mut deviated = 0;
    for suite in ROUNDS {
        let counts = report.counts(Some(suite));
        assert_eq!(counts.failed, 0, "{suite}: {report}");
        assert!(counts.passed + counts.deviated > 0, "{suite}: {report}");
        known += counts.passed;
        deviated += counts.deviated;
    }
    let all = report.counts(None);
    let expected = Counts {
        passed: known,
        deviated,
        failed: 0,
        skipped: all.skipped,
    };
    assert_eq!(all, expected, "what is not known is skipped: {report}");
    for (suite, case, deviation) in report.deviated() {
        let row = format!("| {suite} | {case} | {deviation} |");
        assert!(DEVIATIONS.contains(&row), "docs/kueue.md lacks {row}");
    }
}

#[test]
fn what_is_not_known_is_skipped_and_what_differs_deviates_or_fails() {
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
    // One of A's two GPUs is used: its own gang wants two, B's wants one. Nobody can give way.
    let round = |left: &str, assigned: &str| {
        let queue = |name: &str, nominal: &str| {
            format!(
                r#"{{"name": "{name}", "cohort": "root", "resourceGroups": [[{{"flavor": "spot", "resources": {{"gpu": {{"nominal": "{nominal}"}}}}}}]]}}"#
            )
        };
        let local = |name: &str| {
            format!(r#"{{"name": "{name}", "namespace": "n", "clusterQueue": "{name}"}}"#)
        };
        let waits = |queue: &str, gpus: &str| {
            format!(
                r#"{{"name": "{queue}", "namespace": "n", "queue": "{queue}", "requests": {{"gpu": "{gpus}"}}}}"#
            )
        };
        let gets = |queue: &str| {
            format!(
                r#""n/{queue}": {{"clusterQueue": "{queue}", "podSets": [{{"flavors": {{"gpu": ["spot", "1"]}}}}]}}"#
            )
        };
        let runs = r#"{"name": "runs", "namespace": "n", "queue": "A", "requests": {"gpu": "1"}, "reserved": {"clusterQueue": "A", "flavor": "spot"}}"#;
        let running = r#""n/runs": {"clusterQueue": "A", "flavor": "spot"}"#;
        let assigned: Vec<String> = assigned.split_whitespace().map(gets).collect();
        let assigned = [vec![running.to_owned()], assigned].concat().join(",");
        let left = left.split_whitespace().map(|name| format!(r#""n/{name}""#));
        let left: Vec<String> = left.collect();
        format!(
            r#"{{"extraClusterQueues": [{}, {}], "extraLocalQueues": [{}, {}], "workloads": [{runs}, {}, {}],
                "wantAssignments": {{{assigned}}}, "wantLeft": {{"any": [{}]}}}}"#,
            queue("A", "2"),
            queue("B", "0"),
            local("A"),
            local("B"),
            waits("A", "2"),
            waits("B", "1"),
            left.join(",")
        )
    };
    for (report, last) in [
        (
            of("schedule_cycle", &round("A", "B")),
            "passed 1, deviated 0, failed 0, skipped 0",
        ),
        // Kueue holds the other GPU for A until the end of the cycle.
        (
            of("schedule_cycle", &round("A B", "")),
            "passed 0, deviated 1, failed 0, skipped 0",
        ),
        (
            of("schedule_cycle", &round("B", "A")),
            "passed 0, deviated 0, failed 1, skipped 0",
        ),
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
            of(
                "schedule_cycle",
                r#"{"workloads": [{"$": "MakeWorkload"}]}"#,
            ),
            "passed 0, deviated 0, failed 0, skipped 1",
        ),
        (
            of("another_suite", "{}"),
            "passed 0, deviated 0, failed 0, skipped 1",
        ),
        // What stands beside the cases is read only where it is known what it means.
        (
            of("another_suite", r#"1, "_fixture": {"cohorts": {}}"#),
            "passed 0, deviated 0, failed 0, skipped 1",
        ),
        (
            of("schedule_cycle", r#"{}, "_fixture": {"cohorts": {}}"#),
            "passed 0, deviated 0, failed 1, skipped 0",
        ),
    ] {
        assert_eq!(report.lines().last(), Some(last), "{report}");
    }
    for broken in ["", "[]", r#"{"suite": []}"#] {
        assert!(conformance::run(broken).is_err(), "{broken:?}");
    }
}

#[test]
fn each_deviation_that_can_be_reported_is_explained_in_the_table() {
    for deviation in Deviation::ALL {
        let row = format!("\n| {deviation} |");
        assert!(DEVIATIONS.contains(&row), "docs/kueue.md lacks {row:?}");
    }
}

#[test]
fn many_heads_explain_what_differs_only_where_several_gangs_wait_that_start_whole() {
    // Queues of 2 GPUs each, which nobody uses.
    let of = |workloads: &[&str], assigned: &[&str], left: &[&str]| {
        let queue = |name: &str| {
            format!(
                r#"{{"name": "{name}", "resourceGroups": [[{{"flavor": "spot", "resources": {{"gpu": {{"nominal": "2"}}}}}}]]}}"#
            )
        };
        let local = |name: &str| {
            format!(r#"{{"name": "{name}", "namespace": "n", "clusterQueue": "{name}"}}"#)
        };
        let gets = |name: &&str| {
            let queue = &name[..1];
            format!(
                r#""n/{name}": {{"clusterQueue": "{queue}", "podSets": [{{"flavors": {{"gpu": ["spot", "1"]}}}}]}}"#
            )
        };
        let assigned: Vec<String> = assigned.iter().map(gets).collect();
        let left: Vec<String> = left.iter().map(|name| format!(r#""n/{name}""#)).collect();
        let text = format!(
            r#"{{"schedule_cycle": {{"case": {{
                "extraClusterQueues": [{}, {}], "extraLocalQueues": [{}, {}], "workloads": [{}],
                "wantAssignments": {{{}}}, "wantInadmissibleLeft": {{"any": [{}]}}}}}}}}"#,
            queue("A"),
            queue("B"),
            local("A"),
            local("B"),
            workloads.join(","),
            assigned.join(","),
            left.join(",")
        );
        let report = conformance::run(&text).expect("it can be read");
        let counts = report.counts(None);
        (counts.passed, counts.deviated, counts.failed)
    };
    let whole = |name: &str| {
        let queue = &name[..1];
        format!(
            r#"{{"name": "{name}", "namespace": "n", "queue": "{queue}", "requests": {{"gpu": "1"}}}}"#
        )
    };
    // A gang of three that starts with two.
    let fewer = r#"{"name": "A1", "namespace": "n", "queue": "A", "podSets": [{"name": "main", "count": 3, "minCount": 2, "requests": {"gpu": "1"}}]}"#;
    let (first, second, other) = (whole("A1"), whole("A2"), whole("B1"));
    let (a1, a2, b1) = (first.as_str(), second.as_str(), other.as_str());
    for (what, found, expected) in [
        (
            "one gang waits, and is said to start with all pods or none",
            of(&[fewer], &[], &["A1"]),
            (0, 0, 1),
        ),
        (
            "the same beside another gang",
            of(&[fewer, b1], &["B1"], &["A1"]),
            (0, 0, 1),
        ),
        (
            "a cycle looks at one gang of a queue, and both have room",
            of(&[a1, a2], &["A1"], &["A2"]),
            (0, 1, 0),
        ),
        (
            "it looks at the first, and not at the second",
            of(&[a1, a2], &["A2"], &["A1"]),
            (0, 0, 1),
        ),
        (
            "gangs of two queues are looked at in one cycle",
            of(&[a1, b1], &["A1", "B1"], &[]),
            (1, 0, 0),
        ),
    ] {
        assert_eq!(found, expected, "{what}");
    }
}

#[test]
fn a_gang_that_its_own_guarantee_holds_is_left_only_by_a_write_that_fails() {
    // Alone with one queue of 2 GPUs in a Cohort of 4 that nobody uses.
    let case = |gpus: &str, expected: &str| {
        let queue = |name: &str| {
            format!(
                r#"{{"name": "{name}", "cohort": "root", "resourceGroups": [[{{"flavor": "spot", "resources": {{"gpu": {{"nominal": "2"}}}}}}]]}}"#
            )
        };
        let text = format!(
            r#"{{"schedule_cycle": {{"case": {{
                "extraClusterQueues": [{}, {}],
                "extraLocalQueues": [{{"name": "A", "namespace": "n", "clusterQueue": "A"}}],
                "workloads": [{{"name": "w", "namespace": "n", "queue": "A", "requests": {{"gpu": "{gpus}"}}}}],
                "{expected}": {{"A": ["n/w"]}}}}}}}}"#,
            queue("A"),
            queue("B")
        );
        let counts = conformance::run(&text)
            .expect("it can be read")
            .counts(None);
        (counts.passed, counts.failed)
    };
    let cases = [
        ("its guarantee holds it", "2", "wantLeft", (1, 0)),
        (
            "it is said to be parked, which no failed write does",
            "2",
            "wantInadmissibleLeft",
            (0, 1),
        ),
        (
            "it borrows, so some rule of borrowing may be meant",
            "3",
            "wantLeft",
            (0, 1),
        ),
        (
            "it is too large, and not admitted anyway",
            "5",
            "wantLeft",
            (1, 0),
        ),
    ];
    for (what, gpus, expected, counts) in cases {
        assert_eq!(case(gpus, expected), counts, "{what}");
    }
}

#[test]
fn cases_that_are_missing_are_skipped_but_fail_the_test_in_ci_and_where_they_are_named() {
    let name = format!("muster-kueue-cases-{}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    let file = directory.join("quota_cases.json");
    // By itself, as its directory, or by default.
    let ways = [
        (Some(&file), &file),
        (Some(&directory), &directory),
        (None, &file),
    ];
    for (named, missing) in ways {
        for is_ci in [false, true] {
            let read = kueue_cases::read(named.map(PathBuf::as_path), &directory, is_ci);
            let Missing { why, is_failure } = read.expect_err("there is no such file");
            assert_eq!(is_failure, is_ci || named.is_some(), "{why}");
            let missing = missing.display().to_string();
            for wanted in [missing.as_str(), "MUSTER_CONFORMANCE"] {
                assert!(why.contains(wanted), "{why}");
            }
            assert_eq!(why.contains("CI=true"), is_ci, "{why}");
        }
    }
    std::fs::create_dir(&directory).expect("a directory of the test's own");
    std::fs::write(&file, "{}").expect("the directory can be written to");
    let found = ways.map(|(named, _)| {
        let read = kueue_cases::read(named.map(PathBuf::as_path), &directory, true);
        read.expect("the file is there")
    });
    std::fs::remove_dir_all(&directory).expect("the test made it");
    assert_eq!(found, ["{}"; 3]);
}
