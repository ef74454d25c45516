//! Gangs of which fewer pods than all are admitted.

use muster_api::{GangPhase, Reason, conditions};

use super::{
    evictions::{change_job, is_suspended, start},
    *,
};
use crate::{objects::is_gated, outward::events::PODS_TOLD, tests::ranks::pod_of_job};

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
    make_pods(&mut bench, 6);
    bench.run();
    bench
}

fn make_pods(bench: &mut Bench, pods: usize) {
    for index in 0..pods {
        pod_of_job(bench, index);
    }
}

/// The same, and the four run.
fn four_of_six_run() -> Bench {
    let mut bench = four_of_six();
    start(&mut bench, &["fit-0", "fit-1", "fit-2", "fit-3"]);
    bench
}

fn delete_gang(bench: &mut Bench) {
    let gang = bench.server.list(Kind::Gang).pop().unwrap();
    bench.server.remove(&gang.key());
}

/// The four have done their work.
fn finish(bench: &mut Bench) {
    bench.server.put(job(6, "2", "0-3"));
    for index in 0..4 {
        set_phase(bench, index, "Succeeded");
    }
    bench.run();
}

/// How many pods the attempt has, and how many the gang, if these are more.
fn sizes(bench: &Bench) -> (usize, Option<i32>) {
    let admission = bench.gang_status().admission.unwrap();
    (admission.pods.len(), admission.gang_size)
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
    (0..16)
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
    finish(&mut bench);
    let status = bench.gang_status();
    assert_eq!((status.attempt, status.evictions.len()), (2, 0));
    assert_eq!(sizes(&bench), (2, None));
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

#[test]
fn what_comes_free_later_is_for_the_next_attempt_whoever_leads() {
    let mut bench = Bench::new();
    bench.server.put(job(6, "2", ""));
    make_pods(&mut bench, 6);
    let lets_go = |write: &ApiRequest| matches!(write, ApiRequest::PatchPod { .. });
    assert!(bench.run_until(lets_go), "four are about to be let go");
    bench.take_over();
    bench.server.put(team("vision", 8));
    for object in node_with_gpus("n2", 4) {
        bench.server.put(object);
    }
    bench.run();
    assert_eq!(sizes(&bench), (4, Some(6)));
    assert_eq!(let_go(&bench), [0, 1, 2, 3]);
    assert_eq!(count_told(&bench, 3).as_deref(), Some("4"));
    start(&mut bench, &["fit-0", "fit-1", "fit-2", "fit-3"]);
    assert_eq!(bench.gang_status().phase, GangPhase::Running);
    bench.take_over();
    bench.run();
    assert_eq!(let_go(&bench), [0, 1, 2, 3]);
    finish(&mut bench);
    assert_eq!(sizes(&bench), (2, None));
    assert_eq!(let_go(&bench), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn a_gang_that_is_evicted_is_asked_again_with_all_that_is_left_and_may_get_another_number() {
    for (quota, expected) in [(3, (3, Some(6))), (8, (6, None))] {
        let mut bench = four_of_six_run();
        set_phase(&mut bench, 1, "Failed");
        bench.run();
        bench.seconds += 60;
        bench.run();
        let status = bench.gang_status();
        let causes: Vec<Reason> = status.evictions.iter().map(|it| it.reason).collect();
        assert_eq!(causes, [Reason::PodFailed]);
        assert!(is_suspended(&bench));
        // Its controller deletes all of them, those that wait included.
        for index in 0..6 {
            bench.server.remove(&pod_key(&format!("fit-{index}")));
        }
        bench.run();
        assert!(!is_suspended(&bench));
        bench.server.put(team("vision", quota));
        for object in node_with_gpus("n2", 4) {
            bench.server.put(object);
        }
        bench.run();
        make_pods(&mut bench, 6);
        bench.run();
        assert_eq!(bench.gang_status().attempt, 2);
        assert_eq!(sizes(&bench), expected, "quota {quota}");
        let told = expected.0.to_string();
        assert_eq!(count_told(&bench, 0), Some(told), "quota {quota}");
    }
}

#[test]
fn a_job_that_is_done_when_its_first_pods_are_takes_those_that_wait_with_it() {
    let mut bench = four_of_six_run();
    // Its successPolicy is met: Kubernetes ends what is left, and then says that the Job is complete.
    let say = |bench: &mut Bench, type_: &str| {
        change_job(bench, |job| {
            let status = job.status.as_mut().unwrap();
            status.completed_indexes = Some("0".to_owned());
            let conditions = json!([{"type": type_, "status": "True"}]);
            status.conditions = serde_json::from_value(conditions).unwrap();
        });
    };
    set_phase(&mut bench, 0, "Succeeded");
    say(&mut bench, "SuccessCriteriaMet");
    for index in 1..6 {
        bench.server.remove(&pod_key(&format!("fit-{index}")));
        bench.seconds += 30;
        bench.run();
        let status = bench.gang_status();
        assert_eq!((status.attempt, status.evictions.len()), (1, 0), "{index}");
    }
    say(&mut bench, "Complete");
    bench.run();
    let status = bench.gang_status();
    assert_eq!((status.phase, status.attempt), (GangPhase::Finished, 1));
}

#[test]
fn a_gang_whose_object_is_deleted_goes_on_with_as_many_pods_as_it_started_with() {
    let mut bench = four_of_six_run();
    delete_gang(&mut bench);
    bench.run();
    let status = bench.gang_status();
    assert_eq!(status.attempt, 2);
    assert!(status.admission.unwrap().adopted);
    assert_eq!(sizes(&bench), (4, Some(6)));
    assert_eq!(let_go(&bench), [0, 1, 2, 3]);
    bench.seconds += 600;
    bench.run();
    assert_eq!(bench.gang_status().attempt, 2);
    finish(&mut bench);
    let status = bench.gang_status();
    assert_eq!((status.attempt, status.evictions.len()), (3, 0));
    assert_eq!(sizes(&bench), (2, None));
}

/// Only pods are missing that waited for the next attempt: nobody has lost a peer.
#[test]
fn a_gang_whose_object_is_deleted_goes_on_while_the_pods_that_waited_are_made_anew() {
    let mut bench = four_of_six_run();
    for waiting in ["fit-4", "fit-5"] {
        bench.server.remove(&pod_key(waiting));
    }
    delete_gang(&mut bench);
    bench.run();
    bench.seconds += 600;
    bench.run();
    let status = bench.gang_status();
    assert_eq!((status.attempt, status.evictions.len()), (2, 0));
    assert!(status.admission.unwrap().adopted);
    assert_eq!(let_go(&bench), [0, 1, 2, 3]);
    assert!(!is_suspended(&bench));
}

#[test]
fn what_is_left_of_a_start_that_was_broken_off_is_not_taken_for_all_of_it() {
    let mut bench = four_of_six_run();
    bench.server.remove(&pod_key("fit-3"));
    delete_gang(&mut bench);
    bench.run();
    assert_eq!(bench.gang_status().admission, None);
    bench.seconds += 600;
    bench.run();
    let running =
        |bench: &Bench| (0..3).any(|index| bench.server.pod(&format!("fit-{index}")).is_some());
    assert!(is_suspended(&bench) || !running(&bench), "they are ended");
}

#[test]
fn so_many_pods_are_told_that_they_wait_for_the_next_attempt() {
    for (pods, told) in [(4 + PODS_TOLD, PODS_TOLD), (5 + PODS_TOLD, PODS_TOLD)] {
        let mut bench = Bench::new();
        bench.run();
        bench.server.put(job(pods, "2", ""));
        make_pods(&mut bench, pods);
        bench.run();
        assert_eq!(let_go(&bench), [0, 1, 2, 3]);
        let notes = bench.written.iter().filter_map(|write| match write {
            ApiRequest::PublishEvent(note) if note.reason == Reason::ExcessPod => Some(&note.note),
            _ => None,
        });
        let notes: Vec<&String> = notes.collect();
        assert_eq!(notes.len(), told, "{notes:?}");
        let says = format!("with 4 of its {pods} pods; this one waits for its next attempt");
        assert!(notes[0].contains(&says), "{}", notes[0]);
    }
}

#[test]
fn whoever_waits_is_told_with_how_few_pods_it_would_start() {
    let mut bench = Bench::new();
    bench.server.put(team("vision", 1));
    bench.server.put(job(6, "2", ""));
    make_pods(&mut bench, 6);
    bench.run();
    let queue = bench.gang_status().queue.unwrap();
    assert_eq!(queue.reason, Reason::ExceedsMaxQuota);
    let says = "about 2 of its 6 pods: by muster.dev/min-count it starts with as few";
    assert!(queue.details.contains(says), "{}", queue.details);
}

#[test]
fn a_rank_that_is_done_may_go_though_its_job_is_scaled_up_meanwhile() {
    let mut bench = four_of_six_run();
    bench.server.put(job(8, "2", "0"));
    bench.server.remove(&pod_key("fit-0"));
    for _ in 0..4 {
        bench.seconds += 60;
        bench.run();
    }
    let status = bench.gang_status();
    assert_eq!((status.attempt, status.evictions.len()), (1, 0));
}

#[test]
fn a_gang_that_has_another_number_of_pods_once_it_is_proposed_is_decided_again() {
    let mut bench = Bench::with(Config {
        whole_intent_bytes: 0,
        ..config()
    });
    bench.server.put(job(6, "2", ""));
    make_pods(&mut bench, 6);
    let proposes = |write: &ApiRequest| matches!(write, ApiRequest::ReplaceGangStatus { status, .. } if status.proposal.is_some());
    let proposal = bench.withheld(proposes);
    // The first four stay who they are.
    bench.server.put(job(5, "2", ""));
    bench.server.remove(&pod_key("fit-5"));
    bench.perform(&proposal);
    bench.run();
    assert_eq!(sizes(&bench), (4, Some(5)));
    assert_eq!(let_go(&bench), [0, 1, 2, 3]);
}

/// The Job `fit` of eight, which runs four pods at a time as one gang. So many are done.
fn four_at_a_time(completed: &str) -> Object {
    let Object::Job(job) = job(8, "4", completed) else {
        panic!("it is a Job");
    };
    let mut job = Arc::unwrap_or_clone(job);
    job.spec.as_mut().unwrap().parallelism = Some(4);
    let annotations = job.metadata.annotations.as_mut().unwrap();
    annotations.insert(keys::GANG_SIZE.to_owned(), "4".to_owned());
    Object::Job(Arc::new(job))
}

/// Its second four run.
fn the_second_four_run() -> Bench {
    let mut bench = Bench::new();
    bench.server.put(four_at_a_time(""));
    make_pods(&mut bench, 4);
    bench.run();
    start(&mut bench, &["fit-0", "fit-1", "fit-2", "fit-3"]);
    bench.server.put(four_at_a_time("0-3"));
    for index in 0..4 {
        set_phase(&mut bench, index, "Succeeded");
        pod_of_job(&mut bench, 4 + index);
    }
    bench.run();
    start(&mut bench, &["fit-4", "fit-5", "fit-6", "fit-7"]);
    bench
}

#[test]
fn a_job_that_runs_some_of_its_pods_at_a_time_starts_as_many_each_time() {
    let bench = the_second_four_run();
    assert_eq!(bench.gang_status().attempt, 2);
    assert_eq!(sizes(&bench), (4, None));
    assert_eq!(let_go(&bench), [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn what_was_done_before_an_attempt_makes_up_for_no_rank_that_it_loses() {
    for (completed, evictions) in [("0-4", 0), ("0-3", 1)] {
        let mut bench = the_second_four_run();
        bench.server.put(four_at_a_time(completed));
        bench.server.remove(&pod_key("fit-4"));
        bench.run();
        bench.take_over();
        bench.seconds += 5;
        bench.run();
        bench.seconds += 60;
        bench.run();
        let status = bench.gang_status();
        assert_eq!(status.evictions.len(), evictions, "done: {completed}");
    }
}
