//! Gangs of which fewer pods than all are admitted.

use muster_api::{Reason, conditions};

use super::*;
use crate::{objects::is_gated, tests::ranks::pod_of_job};

/// The Job `fit` that may start with so many of its pods, of which those have succeeded.
fn job(completions: usize, least: &str, completed: &str) -> Object {
    let Object::Job(job) = ranks::job(completions, 0) else {
        panic!("it is a Job");
    };
    let mut job = Arc::unwrap_or_clone(job);
    job.metadata.annotations = Some([(keys::MIN_COUNT.to_owned(), least.to_owned())].into());
    job.status.as_mut().unwrap().completed_indexes = Some(completed.to_owned());
    Object::Job(Arc::new(job))
}

/// Six pods where four fit, which may start with two.
fn four_of_six() -> Bench {
    let mut bench = Bench::new();
    bench.server.put(job(6, "2", ""));
    for index in 0..6 {
        pod_of_job(&mut bench, index);
    }
    bench.run();
    bench
}

fn set_phase(bench: &mut Bench, index: usize, phase: &str) {
    bench.change_pod(&format!("fit-{index}"), |pod| {
        pod.status.as_mut().unwrap().phase = Some(phase.to_owned());
    });
}

fn count_told(bench: &Bench, index: usize) -> Option<String> {
    let pod = bench.server.pod(&format!("fit-{index}")).unwrap();
    pod.metadata.annotations?.get(keys::ADMITTED_COUNT).cloned()
}

fn let_go(bench: &Bench) -> Vec<usize> {
    let pod = |index: &usize| bench.server.pod(&format!("fit-{index}"));
    (0..6)
        .filter(|index| pod(index).is_some_and(|pod| !is_gated(&pod)))
        .collect()
}

#[test]
fn the_first_ranks_start_and_the_others_are_the_next_attempt() {
    let mut bench = four_of_six();
    let status = bench.gang_status();
    let admission = status.admission.unwrap();
    assert_eq!((admission.pods.len(), admission.gang_size), (4, Some(6)));
    assert_eq!(let_go(&bench), [0, 1, 2, 3]);
    for index in 0..4 {
        assert_eq!(count_told(&bench, index).as_deref(), Some("4"), "{index}");
    }
    assert_eq!(count_told(&bench, 4), None);
    let mut told = status.conditions.iter();
    let told = told.find(|it| it.type_ == conditions::ADMITTED).unwrap();
    assert_eq!(
        told.message,
        "the first 4 of 6 ranks on 2 nodes; the others wait for the next attempt"
    );
    // All of the attempt are done: the Job is not.
    bench.server.put(job(6, "2", "0-3"));
    for index in 0..4 {
        set_phase(&mut bench, index, "Succeeded");
    }
    bench.run();
    let status = bench.gang_status();
    assert_eq!((status.attempt, status.evictions.len()), (2, 0));
    let admission = status.admission.unwrap();
    assert_eq!((admission.pods.len(), admission.gang_size), (2, None));
    assert_eq!(let_go(&bench), [0, 1, 2, 3, 4, 5]);
    assert_eq!(count_told(&bench, 5).as_deref(), Some("2"));
}

#[test]
fn a_rank_that_is_done_may_go_and_one_that_is_lost_costs_the_attempt() {
    for (completed, expected) in [("0", 1), ("", 2)] {
        let mut bench = four_of_six();
        for index in 0..4 {
            set_phase(&mut bench, index, "Running");
        }
        bench.run();
        bench.server.put(job(6, "2", completed));
        bench.server.remove(&pod_key("fit-0"));
        bench.seconds += 5;
        bench.run();
        bench.seconds += 60;
        bench.run();
        let attempt = bench.gang_status().attempt;
        assert_eq!(attempt, expected, "done: {completed:?}");
    }
}

#[test]
fn whoever_counts_nothing_that_is_done_starts_with_all_pods_only() {
    let mut bench = Bench::new();
    bench.gang("train", 6);
    for rank in 0..6 {
        bench.change_pod(&format!("train-{rank}"), |pod| {
            let annotations = pod.metadata.annotations.as_mut().unwrap();
            annotations.insert(keys::MIN_COUNT.to_owned(), "2".to_owned());
        });
    }
    bench.run();
    let waits = bench.gang_status().queue.unwrap();
    assert_eq!(waits.reason, Reason::RequestNotUnderstood);
    assert!(
        waits.details.contains("one Job with completions"),
        "{}",
        waits.details
    );
}
