//! An outage ends nothing that runs.

use super::*;

/// The container of [`a_gang_that_runs`] ends with this exit code.
fn ends(stage: &mut Stage, exit_code: Option<i64>) {
    let mut line = json!({
        "event": "exited", "podNamespace": "ml", "podName": "pod", "podUid": POD, "containerId": "pod",
        "revision": stage.revision
    });
    if let Some(code) = exit_code {
        line["exitCode"] = json!(code);
    }
    stage.reads(&line);
}

#[test]
fn a_container_that_does_not_end_by_itself_and_well_during_an_outage_is_seen_as_s18() {
    // Told to end, killed, failed since a peer went; and one of which nobody knows.
    for code in [Some(143), Some(137), Some(11), None] {
        let mut stage = a_gang_that_runs();
        stage.judge.outage_begins();
        ends(&mut stage, code);
        stage.judge.outage_is_over();
        eprintln!("{code:?}");
        stage.is_seen_as("S18");
    }
}

#[test]
fn what_goes_on_or_has_done_its_work_is_well_and_counted() {
    for ends_meanwhile in [false, true] {
        let mut stage = a_gang_that_runs();
        stage.judge.outage_begins();
        if ends_meanwhile {
            ends(&mut stage, Some(0));
        }
        stage.judge.outage_is_over();
        let verdict = stage.judge.take_verdict();
        assert_eq!(verdict.violations, Vec::<String>::new());
        assert_eq!(verdict.seen.checks.get(&Invariant::S18), Some(&1));
    }
}

#[test]
fn what_ends_before_an_outage_or_after_it_or_was_told_to_before_is_no_business_of_s18() {
    type Happens = fn(&mut Stage);
    let cases: [(&str, Happens); 3] = [
        ("before", |stage| {
            ends(stage, Some(143));
            stage.judge.outage_begins();
            stage.judge.outage_is_over();
        }),
        ("after", |stage| {
            stage.judge.outage_begins();
            stage.judge.outage_is_over();
            ends(stage, Some(143));
        }),
        ("it was told before", |stage| {
            let Object::Pod(mut pod) = ungated_pod(1, "node-0", true, "Running") else {
                panic!("it is a pod");
            };
            pod.metadata.deletion_timestamp = Some(object(&json!("2026-11-27T00:00:00Z")));
            stage.shows(Object::Pod(pod));
            stage.judge.outage_begins();
            ends(stage, Some(143));
            stage.judge.outage_is_over();
        }),
    ];
    for (case, happens) in cases {
        eprintln!("{case}");
        let mut stage = a_gang_that_runs();
        happens(&mut stage);
        stage.is_all_well();
    }
}
