//! Gangs whose own pods fail: how often they are started anew, and that their Job lets them be.

use super::*;

fn restarts_at_most(job: &mut Job, times: &str) {
    let annotations = job.metadata.annotations.get_or_insert_default();
    annotations.insert(keys::MAX_RESTARTS.to_owned(), times.to_owned());
}

fn limit(bench: &Bench) -> Option<i32> {
    the_job(bench).spec.unwrap().backoff_limit
}

/// Its pods are gone, and made again.
fn start_again(bench: &mut Bench) {
    for pod in ["fit-0", "fit-1"] {
        bench.server.remove(&pod_key(pod));
    }
    bench.run();
    make_again(bench, 0..2);
}

/// One rank fails, and the other goes on for as long as it may.
fn fail(bench: &mut Bench, change: impl Fn(&mut Pod)) {
    bench.change_pod("fit-1", |pod| {
        set_phase(pod, "Failed");
        change(pod);
    });
    bench.run();
    bench.seconds += 60;
    bench.run();
}

#[test]
fn before_the_first_pod_is_let_go_its_job_may_lose_all_pods_of_all_attempts() {
    let mut bench = Bench::new();
    bench.server.put(job(2, 0));
    change_job(&mut bench, |job| restarts_at_most(job, "3"));
    for index in 0..2 {
        pod_of_job(&mut bench, index);
    }
    bench.run();
    assert_eq!(limit(&bench), Some(2 * (3 + 1)));
    let noted = annotation(&bench, keys::BACKOFF_COVERS);
    assert_eq!(noted.as_deref(), Some("6/8/fit-uid"));
    let steps = order(&bench.written);
    let at = |step: &str| steps.iter().position(|it| *it == step).unwrap();
    assert!(at("job") < at("stamp"), "{steps:?}");
    let raised = |write: &&ApiRequest| matches!(write, ApiRequest::PatchJob { .. });
    assert_eq!(bench.written.iter().filter(raised).count(), 1);
}

#[test]
fn a_limit_is_left_alone_that_is_large_enough_or_0_or_not_musters_to_raise() {
    type Change = fn(&mut Job);
    let with_limit =
        |limit: i32| move |job: &mut Job| job.spec.as_mut().unwrap().backoff_limit = Some(limit);
    let of_one = |job: &mut Job| {
        let annotations = job.metadata.annotations.get_or_insert_default();
        annotations.insert(keys::GANG_SIZE.to_owned(), "1".to_owned());
    };
    let cases: [(&str, Change); 4] = [
        ("without a word", |job| job.metadata.annotations = None),
        ("by index", |job| {
            job.spec.as_mut().unwrap().backoff_limit_per_index = Some(1);
        }),
        ("controlled", controlled_by_another),
        ("of one", of_one),
    ];
    for (case, change) in cases {
        let bench = running_job(|job| {
            restarts_at_most(job, "10");
            change(job);
        });
        assert_eq!(limit(&bench), None, "{case}");
    }
    for own in [0, 22, 100] {
        let bench = running_job(|job| {
            restarts_at_most(job, "10");
            with_limit(own)(job);
        });
        assert_eq!(limit(&bench), Some(own));
    }
    let bench = running_job(|job| {
        restarts_at_most(job, "10");
        with_limit(21)(job);
    });
    assert_eq!(limit(&bench), Some(22), "one less is raised");
}

/// What a Job says that was made from the manifest of another one is not meant.
#[test]
fn what_another_job_was_raised_to_says_nothing() {
    let bench = running_job(|job| {
        restarts_at_most(job, "10");
        let annotations = job.metadata.annotations.get_or_insert_default();
        annotations.insert(keys::BACKOFF_COVERS.to_owned(), "6/100/another".to_owned());
    });
    assert_eq!(limit(&bench), Some(22));
}

/// Users may write the annotation: a limit that no Job can have would keep its gang from starting, since it is exceeded from the start.
#[test]
fn a_limit_that_cannot_have_been_written_says_nothing() {
    for forged in ["-1/1/fit-uid", "2/1/fit-uid", "1/99999999999/fit-uid"] {
        let bench = running_job(|job| {
            let annotations = job.metadata.annotations.get_or_insert_default();
            annotations.insert(keys::BACKOFF_COVERS.to_owned(), forged.to_owned());
            job.spec.as_mut().unwrap().backoff_limit = Some(1);
        });
        assert_eq!(limit(&bench), Some(2), "{forged}");
        assert_eq!(covers(&bench).as_deref(), Some("1/2/fit-uid"), "{forged}");
        assert!(bench.gang_status().admission.is_some(), "{forged}");
    }
}

#[test]
fn whoever_lowers_the_limit_again_has_the_last_word() {
    let mut bench = running_job(|job| restarts_at_most(job, "3"));
    change_job(&mut bench, |job| {
        job.spec.as_mut().unwrap().backoff_limit = Some(1);
    });
    bench.run();
    assert_eq!(limit(&bench), Some(1));
}

#[test]
fn a_limit_that_may_not_be_raised_keeps_no_gang_from_starting() {
    let mut bench = Bench::new();
    bench.server.put(job(2, 0));
    change_job(&mut bench, |job| restarts_at_most(job, "3"));
    for index in 0..2 {
        pod_of_job(&mut bench, index);
    }
    run_answering(&mut bench, 30, |write| match write {
        ApiRequest::PatchJob { .. } => Some(forbidden()),
        _ => None,
    });
    assert_eq!(limit(&bench), None);
    assert_eq!(bench.gang_status().phase, GangPhase::Admitted);
}

#[test]
fn a_gang_is_started_anew_as_often_as_it_may_be_and_not_once_more() {
    let mut bench = running_job(|job| restarts_at_most(job, "1"));
    fail(&mut bench, |_| {});
    assert_eq!(evictions(&bench), [(1, Reason::PodFailed)]);
    assert_eq!(bench.gang_status().failed_attempts, 1);
    start_again(&mut bench);
    assert!(bench.gang_status().admission.is_some());
    fail(&mut bench, |_| {});
    assert_eq!(bench.gang_status().failed_attempts, 2);
    start_again_in_vain(&mut bench);
    let status = bench.gang_status();
    assert_eq!((status.phase, status.admission), (GangPhase::Pending, None));
    let queue = status.queue.unwrap();
    assert_eq!(queue.reason, Reason::RestartsExhausted, "{}", queue.details);
    assert!(is_gated(&bench.server.pod("fit-0").unwrap()));
    // Whoever leads counts on.
    bench.take_over();
    bench.seconds += 10_000;
    bench.run();
    assert_eq!(bench.gang_status().phase, GangPhase::Pending);
    // Its user lets it be tried once more.
    change_job(&mut bench, |job| restarts_at_most(job, "2"));
    bench.run();
    assert_eq!(bench.gang_status().phase, GangPhase::Admitted);
}

/// Its pods are gone and made again, and wait.
fn start_again_in_vain(bench: &mut Bench) {
    for pod in ["fit-0", "fit-1"] {
        bench.server.remove(&pod_key(pod));
    }
    bench.run();
    for index in 0..2 {
        pod_of_job(bench, index);
    }
    bench.run();
    bench.seconds += 60;
    bench.run();
}

#[test]
fn an_attempt_of_which_all_pods_fail_at_once_counts_though_nothing_is_left_to_evict() {
    let mut bench = running_job(|job| restarts_at_most(job, "1"));
    for pod in ["fit-0", "fit-1"] {
        bench.change_pod(pod, |pod| set_phase(pod, "Failed"));
    }
    bench.run();
    let status = bench.gang_status();
    assert_eq!((status.attempt, status.failed_attempts), (2, 1));
    assert_eq!(evictions(&bench), []);
}

#[test]
fn what_a_node_or_an_administrator_ends_is_not_counted_and_is_covered_besides() {
    let mut bench = running_job(|job| restarts_at_most(job, "3"));
    fail(&mut bench, |pod| {
        pod.status.as_mut().unwrap().reason = Some("NodeShutdown".to_owned());
    });
    assert_eq!(evictions(&bench), [(1, Reason::PodFailed)]);
    start_again(&mut bench);
    stop(&mut bench, "HoldAndDrain");
    let causes: Vec<Reason> = evictions(&bench).into_iter().map(|it| it.1).collect();
    assert_eq!(causes, [Reason::PodFailed, Reason::TeamStopped]);
    assert_eq!(bench.gang_status().failed_attempts, 0);
    stop(&mut bench, "None");
    start_again(&mut bench);
    assert_eq!(bench.gang_status().attempt, 3);
    assert_eq!(limit(&bench), Some(2 * (3 + 3)));
    let noted = annotation(&bench, keys::BACKOFF_COVERS);
    assert_eq!(noted.as_deref(), Some("6/12/fit-uid"));
}

/// A gang of two pods of a Job with this limit that says nothing of restarts, and runs.
fn running_with(own: i32) -> Bench {
    running_job(|job| job.spec.as_mut().unwrap().backoff_limit = Some(own))
}

fn covers(bench: &Bench) -> Option<String> {
    annotation(bench, keys::BACKOFF_COVERS)
}

#[test]
fn a_job_that_says_nothing_of_restarts_bears_with_what_its_attempts_so_far_may_cost() {
    let mut bench = Bench::new();
    bench.server.put(job(2, 0));
    change_job(&mut bench, |job| {
        job.spec.as_mut().unwrap().backoff_limit = Some(1);
    });
    for index in 0..2 {
        pod_of_job(&mut bench, index);
    }
    bench.run();
    assert_eq!(limit(&bench), Some(2));
    assert_eq!(covers(&bench).as_deref(), Some("1/2/fit-uid"));
    let steps = order(&bench.written);
    let at = |step: &str| steps.iter().position(|it| *it == step).unwrap();
    assert!(at("job") < at("stamp"), "{steps:?}");
    start(&mut bench, &["fit-0", "fit-1"]);
    // Whatever ended the attempt, the next one may cost as much.
    stop(&mut bench, "HoldAndDrain");
    for pod in ["fit-0", "fit-1"] {
        bench.server.remove(&pod_key(pod));
    }
    bench.run();
    stop(&mut bench, "None");
    make_again(&mut bench, 0..2);
    let status = bench.gang_status();
    assert_eq!((status.attempt, status.failed_pods), (2, 0));
    assert_eq!(limit(&bench), Some(4));
    assert_eq!(covers(&bench).as_deref(), Some("1/4/fit-uid"));
}

#[test]
fn who_says_nothing_keeps_a_limit_that_is_large_enough_or_0_or_does_not_count_failed_pods_alone() {
    type Change = fn(&mut Job);
    let ignoring = |rule: serde_json::Value| {
        let policy = serde_json::from_value(json!({"rules": [rule]}));
        Some(policy.unwrap())
    };
    let by_exit_code =
        ignoring(json!({"action": "Ignore", "onExitCodes": {"operator": "In", "values": [42]}}));
    let by_condition = ignoring(
        json!({"action": "Ignore", "onPodConditions": [{"type": "example.com/Odd", "status": "True"}]}),
    );
    let by_disruption = ignoring(
        json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}),
    );
    let failing =
        ignoring(json!({"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}));
    for (case, policy, expected) in [
        ("none", None, 2),
        ("exit code", by_exit_code, 1),
        ("condition", by_condition, 1),
        ("disruption", by_disruption, 2),
        ("the Job fails", failing, 2),
    ] {
        let bench = running_job(|job| {
            let spec = job.spec.as_mut().unwrap();
            spec.backoff_limit = Some(1);
            spec.pod_failure_policy = policy;
        });
        assert_eq!(limit(&bench), Some(expected), "{case}");
    }
    let cases: [(&str, Change); 4] = [
        ("restarted in place", |job| {
            let template = &mut job.spec.as_mut().unwrap().template;
            let pods = template.spec.get_or_insert_default();
            pods.restart_policy = Some("OnFailure".to_owned());
        }),
        ("by index", |job| {
            job.spec.as_mut().unwrap().backoff_limit_per_index = Some(1);
        }),
        ("controlled", controlled_by_another),
        ("of one", |job| {
            let annotations = job.metadata.annotations.get_or_insert_default();
            annotations.insert(keys::GANG_SIZE.to_owned(), "1".to_owned());
        }),
    ];
    for (case, change) in cases {
        let bench = running_job(|job| {
            job.spec.as_mut().unwrap().backoff_limit = Some(1);
            change(job);
        });
        assert_eq!(limit(&bench), Some(1), "{case}");
        assert_eq!(covers(&bench), None, "{case}");
    }
    for own in [0, 2, 6] {
        assert_eq!(limit(&running_with(own)), Some(own));
    }
    // Kubernetes' CronJob leaves its Jobs alone.
    for (api_version, expected) in [("batch/v1", 2), ("example.com/v1", 1)] {
        let bench = running_job(|job| {
            controlled_by_another(job);
            let owners = job.metadata.owner_references.as_mut().unwrap();
            owners[0].api_version = api_version.to_owned();
            owners[0].kind = "CronJob".to_owned();
            job.spec.as_mut().unwrap().backoff_limit = Some(1);
        });
        assert_eq!(limit(&bench), Some(expected), "{api_version}");
    }
}

/// A kubelet that makes room says so by `DisruptionTarget`. Of a pod that wrote more to a disk than it may it does not, and the next one would do the same:
/// not counted, it would be made again for ever.
#[test]
fn a_pod_that_took_more_of_a_disk_than_it_may_failed_by_itself() {
    let mut bench = running_with(1);
    fail(&mut bench, |pod| {
        pod.status.as_mut().unwrap().reason = Some("Evicted".to_owned());
    });
    assert_eq!(evictions(&bench), [(1, Reason::PodFailed)]);
    let status = bench.gang_status();
    assert_eq!((status.failed_attempts, status.failed_pods), (1, 1));
}

#[test]
fn where_recovery_only_observes_no_job_is_changed_for_the_sake_of_faults() {
    let mut bench = Bench::with(Config {
        recovery: crate::Recovery::default(),
        ..config()
    });
    bench.server.put(job(2, 0));
    change_job(&mut bench, |job| {
        job.spec.as_mut().unwrap().backoff_limit = Some(1);
    });
    make_again(&mut bench, 0..2);
    assert_eq!((limit(&bench), covers(&bench)), (Some(1), None));
    let jobs = bench.written.iter();
    let mut jobs = jobs.filter(|write| matches!(write, ApiRequest::PatchJob { .. }));
    assert!(jobs.next().is_none());
}

#[test]
fn what_was_raised_before_is_given_back_also_where_recovery_only_observes() {
    let mut bench = Bench::with(Config {
        recovery: crate::Recovery::default(),
        ..config()
    });
    bench.server.put(job(2, 0));
    change_job(&mut bench, |job| {
        let annotations = job.metadata.annotations.get_or_insert_default();
        annotations.insert(keys::BACKOFF_COVERS.to_owned(), "1/2/fit-uid".to_owned());
        job.spec.as_mut().unwrap().backoff_limit = Some(2);
    });
    make_again(&mut bench, 0..2);
    for pod in ["fit-0", "fit-1"] {
        bench.change_pod(pod, |pod| set_phase(pod, "Failed"));
    }
    bench.run();
    assert_eq!(limit(&bench), Some(2), "in doubt");
    bench.seconds += 60;
    bench.run();
    assert_eq!(limit(&bench), Some(1));
    assert_eq!(covers(&bench).as_deref(), Some("1/1/fit-uid"));
}

/// As many as the user wrote are borne, and not one more, by whomever they are counted.
#[test]
fn pods_that_fail_by_themselves_count_against_what_the_user_wrote() {
    let mut bench = running_with(1);
    fail(&mut bench, |_| {});
    assert_eq!(evictions(&bench), [(1, Reason::PodFailed)]);
    assert_eq!(bench.gang_status().failed_pods, 1);
    start_again(&mut bench);
    let status = bench.gang_status();
    assert!(status.admission.is_some(), "one is borne: {status:?}");
    assert_eq!(limit(&bench), Some(4));
    fail(&mut bench, |_| {});
    let status = bench.gang_status();
    assert_eq!((status.failed_attempts, status.failed_pods), (2, 2));
    assert_eq!(limit(&bench), Some(4), "while its pods are being ended");
    bench.take_over();
    start_again_in_vain(&mut bench);
    assert_eq!(limit(&bench), Some(1), "Kubernetes ends it by that");
    assert_eq!(covers(&bench).as_deref(), Some("1/1/fit-uid"));
    let status = bench.gang_status();
    let queue = status.queue.unwrap();
    assert_eq!(queue.reason, Reason::RestartsExhausted, "{}", queue.details);
    assert!(
        queue.details.contains("2 pods of it failed"),
        "{}",
        queue.details
    );
    assert_eq!(status.admission, None);
    // Its user lets it be tried again before it has failed.
    change_job(&mut bench, |job| {
        job.spec.as_mut().unwrap().backoff_limit = Some(3);
    });
    bench.run();
    assert_eq!(bench.gang_status().phase, GangPhase::Admitted);
    assert_eq!(limit(&bench), Some(6), "and covers three attempts");
    assert_eq!(covers(&bench).as_deref(), Some("3/6/fit-uid"));
}

#[test]
fn a_job_that_may_not_have_its_limit_back_has_its_gang_wait_with_the_reason() {
    let mut bench = running_with(1);
    for pod in ["fit-0", "fit-1"] {
        bench.change_pod(pod, |pod| set_phase(pod, "Failed"));
    }
    bench.run();
    bench.seconds += 60;
    run_answering(&mut bench, 10, |write| match write {
        ApiRequest::PatchJob {
            change: JobChange::RestoreBackoffLimit,
            ..
        } => Some(forbidden()),
        _ => None,
    });
    for pod in ["fit-0", "fit-1"] {
        bench.server.remove(&pod_key(pod));
    }
    for index in 0..2 {
        pod_of_job(&mut bench, index);
    }
    run_answering(&mut bench, 30, |write| match write {
        ApiRequest::PatchJob { .. } => Some(forbidden()),
        _ => None,
    });
    let status = bench.gang_status();
    assert_eq!((status.attempt, status.failed_pods), (2, 2));
    assert_eq!(limit(&bench), Some(2));
    assert_eq!(status.queue.unwrap().reason, Reason::RestartsExhausted);
}

#[test]
fn pods_that_somebody_ends_are_no_failures_though_they_fail_of_it() {
    let mut bench = running_with(1);
    change_job(&mut bench, |job| {
        job.spec.as_mut().unwrap().suspend = Some(true);
    });
    for pod in ["fit-0", "fit-1"] {
        bench.change_pod(pod, |pod| {
            pod.metadata.deletion_timestamp =
                serde_json::from_value(json!("2027-01-01T00:00:09Z")).unwrap();
            set_phase(pod, "Failed");
        });
    }
    bench.run();
    let status = bench.gang_status();
    assert_eq!((status.attempt, status.failed_pods), (2, 0));
}

#[test]
fn what_somebody_else_writes_is_what_the_user_wrote_from_then_on() {
    let mut bench = running_with(1);
    assert_eq!(covers(&bench).as_deref(), Some("1/2/fit-uid"));
    change_job(&mut bench, |job| {
        job.spec.as_mut().unwrap().backoff_limit = Some(3);
    });
    bench.run();
    assert_eq!(limit(&bench), Some(3), "that covers one attempt");
    fail(&mut bench, |_| {});
    start_again(&mut bench);
    assert_eq!(covers(&bench).as_deref(), Some("3/4/fit-uid"));
    // Who resets it each time has it so: it is raised once for each attempt.
    for _ in 0..3 {
        change_job(&mut bench, |job| {
            job.spec.as_mut().unwrap().backoff_limit = Some(1);
        });
        bench.run();
        assert_eq!(limit(&bench), Some(1));
    }
}

/// An administrator ends an attempt of so many pods, and the Job makes so many for the next one.
fn scale(bench: &mut Bench, from: usize, to: usize) {
    stop(bench, "HoldAndDrain");
    for index in 0..from {
        bench.server.remove(&pod_key(&format!("fit-{index}")));
    }
    bench.run();
    change_job(bench, |job| {
        let spec = job.spec.as_mut().unwrap();
        spec.completions = i32::try_from(to).ok();
        spec.parallelism = spec.completions;
    });
    stop(bench, "None");
    make_again(bench, 0..to);
    let status = bench.gang_status();
    assert!(status.admission.is_some(), "{status:?}");
}

/// What it covers, and how many pods its Gang counted of attempts that are over.
fn covered(bench: &Bench) -> (Option<i32>, Option<String>, i32) {
    let pods = bench.gang_status().pods_of_past_attempts;
    (limit(bench), covers(bench), pods)
}

/// Of attempts that were larger pods may have failed, which Kubernetes has counted: by the pods that it makes by now the Job would fail with the next fault.
#[test]
fn a_job_that_is_scaled_down_bears_with_what_its_larger_attempts_may_have_cost() {
    let says = |text: &str| Some(format!("{text}/fit-uid"));
    for is_taken_over in [false, true] {
        let mut bench = running_job_of(4, |job| {
            job.spec.as_mut().unwrap().backoff_limit = Some(1);
        });
        assert_eq!(covered(&bench), (Some(4), says("1/4"), 0));
        for (from, to, expected) in [
            (4, 2, (Some(4 + 2), says("1/6"), 4)),
            (2, 2, (Some(4 + 2 + 2), says("1/8"), 4 + 2)),
        ] {
            scale(&mut bench, from, to);
            if is_taken_over {
                bench.take_over();
                bench.run();
            }
            assert_eq!(covered(&bench), expected, "{is_taken_over}");
        }
        // Two fail by themselves, and one was written.
        for pod in ["fit-0", "fit-1"] {
            bench.change_pod(pod, |pod| set_phase(pod, "Failed"));
        }
        bench.run();
        bench.seconds += 60;
        bench.run();
        assert_eq!(limit(&bench), Some(1), "{is_taken_over}");
    }
}

/// An older version did not count, or an older definition of the Gang dropped it.
#[test]
fn attempts_of_which_nobody_counted_the_pods_are_taken_to_have_been_as_large_as_the_next_that_ends()
{
    let mut bench = running_job_of(4, |job| {
        job.spec.as_mut().unwrap().backoff_limit = Some(1);
    });
    scale(&mut bench, 4, 4);
    let Some(Object::Gang(mut gang)) = bench.server.list(Kind::Gang).pop() else {
        panic!("a Gang");
    };
    let status = Arc::make_mut(&mut gang).status.as_mut();
    status.unwrap().pods_of_past_attempts = 0;
    bench.server.put(Object::Gang(gang));
    bench.run();
    scale(&mut bench, 4, 2);
    let says = Some("1/10/fit-uid".to_owned());
    assert_eq!(covered(&bench), (Some(4 + 4 + 2), says, 4 + 4));
}

#[test]
fn what_a_user_writes_for_a_job_that_is_scaled_down_counts_and_is_raised_once_for_each_attempt() {
    let mut bench = running_job_of(4, |job| {
        job.spec.as_mut().unwrap().backoff_limit = Some(1);
    });
    scale(&mut bench, 4, 2);
    change_job(&mut bench, |job| {
        job.spec.as_mut().unwrap().backoff_limit = Some(3);
    });
    bench.run();
    assert_eq!(limit(&bench), Some(3), "his is the last word");
    scale(&mut bench, 2, 2);
    let says = Some("3/8/fit-uid".to_owned());
    assert_eq!(covered(&bench), (Some(4 + 2 + 2), says, 4 + 2));
}

#[test]
fn a_job_that_may_be_started_anew_so_often_is_covered_for_that_beside_its_larger_attempts() {
    let says = |text: &str| Some(format!("{text}/fit-uid"));
    let mut bench = running_job_of(4, |job| restarts_at_most(job, "1"));
    assert_eq!(covered(&bench), (Some(4 + 4), says("6/8"), 0));
    for (from, to, expected) in [
        (4, 4, (Some(4 + 4 + 4), says("6/12"), 4)),
        (4, 2, (Some(12), says("6/12"), 4 + 4)),
        (2, 2, (Some(4 + 4 + 2 + 2 + 2), says("6/14"), 4 + 4 + 2)),
    ] {
        scale(&mut bench, from, to);
        assert_eq!(covered(&bench), expected, "from {from} to {to}");
    }
}

/// Muster deletes pods where a Job may not be suspended, which counts as failures of it: what the user wrote is still known.
#[test]
fn an_eviction_that_raises_the_limit_as_well_keeps_what_the_user_wrote() {
    let mut bench = running_with(1);
    drain(&mut bench);
    run_answering(&mut bench, 60, |write| match write {
        ApiRequest::PatchJob {
            change: JobChange::Suspend,
            ..
        } => Some(forbidden()),
        _ => None,
    });
    assert_eq!(limit(&bench), Some(2 + 2));
    assert_eq!(covers(&bench).as_deref(), Some("1/4/fit-uid"));
}

/// A pod of a Job that belongs to a gang of three by its label.
fn labelled_pod_of(bench: &mut Bench, job: &str, index: usize) {
    bench.pod(job, index, 3, keys::DEVICE_CLASS_GPU);
    bench.change_pod(&format!("{job}-{index}"), |pod| {
        let labels = pod.metadata.labels.get_or_insert_default();
        labels.insert(keys::GANG.to_owned(), "train".to_owned());
        let owner = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": format!("{job}-uid"), "controller": true}]);
        pod.metadata.owner_references = serde_json::from_value(owner).unwrap();
    });
}

/// Two Jobs, of two pods and of one, whose pods are one gang. `annotate`: what each pod says.
fn make_of_two_jobs(bench: &mut Bench, annotate: impl Fn(&mut Pod)) {
    for (job, index) in [("fit", 0), ("fit", 1), ("aid", 0)] {
        // The Gang is made as soon as it has a pod.
        if job == "aid" {
            bench.run();
        }
        labelled_pod_of(bench, job, index);
        bench.change_pod(&format!("{job}-{index}"), &annotate);
    }
    bench.run();
}

const OF_TWO_JOBS: [&str; 3] = ["fit-0", "fit-1", "aid-0"];

/// The Job of two pods has a `backoffLimit` of 1.
fn bench_of_two_jobs() -> Bench {
    let mut bench = Bench::new();
    bench.server.put(job(2, 0));
    change_job(&mut bench, |job| {
        job.spec.as_mut().unwrap().backoff_limit = Some(1);
    });
    bench.server.put(Object::Job(parse(json!({
        "metadata": {"name": "aid", "namespace": "ml", "uid": "aid-uid"},
        "spec": {"completions": 1, "parallelism": 1, "template": {"spec": {"containers": []}}},
    }))));
    bench
}

/// Its attempt runs, and fails with pods of both Jobs; all of them are gone.
fn fails_in_both_jobs(bench: &mut Bench) {
    bench.change_pod("aid-0", |pod| set_phase(pod, "Failed"));
    fail(bench, |_| {});
    let status = bench.gang_status();
    assert_eq!((status.failed_attempts, status.failed_pods), (1, 2));
    for pod in OF_TWO_JOBS {
        bench.server.remove(&pod_key(pod));
    }
    bench.run();
}

/// Kubernetes counts the pods of each Job by itself: given back, the limit of one would end none, and the gang wait for that for ever.
#[test]
fn a_gang_of_pods_of_several_jobs_speaks_for_none_of_them() {
    let mut bench = bench_of_two_jobs();
    make_of_two_jobs(&mut bench, |_| {});
    start(&mut bench, &OF_TWO_JOBS);
    assert_eq!(limit(&bench), Some(1));
    fails_in_both_jobs(&mut bench);
    assert_eq!(limit(&bench), Some(1));
    make_of_two_jobs(&mut bench, |_| {});
    assert_eq!(bench.gang_status().phase, GangPhase::Admitted);
}

/// The first pods of a gang may all be of one Job that has others make the rest, be it that it makes more of its own later.
#[test]
fn a_job_that_runs_fewer_pods_at_once_than_its_gang_has_is_not_taken_for_the_only_one() {
    for completions in [Some(2), Some(4), None] {
        let mut bench = Bench::new();
        bench.server.put(job(2, 0));
        change_job(&mut bench, |job| {
            let spec = job.spec.as_mut().unwrap();
            spec.backoff_limit = Some(1);
            spec.completions = completions;
            // What completes by nothing has no indexes.
            let mode = spec.completion_mode.take();
            spec.completion_mode = mode.filter(|_| completions.is_some());
        });
        for index in 0..2 {
            labelled_pod_of(&mut bench, "fit", index);
        }
        bench.run();
        let reason = bench.gang_status().queue.map(|queue| queue.reason);
        assert_eq!(reason, Some(Reason::MissingPods), "{completions:?}");
        assert_eq!(limit(&bench), Some(1), "{completions:?}");
    }
}

/// What the Gang counted of its attempts are pods of all of them, and a Job bears with its own.
#[test]
fn a_job_that_makes_some_pods_of_a_gang_is_covered_for_so_many_in_each_attempt() {
    let restarts_once = |pod: &mut Pod| {
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(keys::MAX_RESTARTS.to_owned(), "1".to_owned());
    };
    let mut bench = bench_of_two_jobs();
    make_of_two_jobs(&mut bench, restarts_once);
    start(&mut bench, &OF_TWO_JOBS);
    let says = Some("1/4/fit-uid".to_owned());
    assert_eq!(covered(&bench), (Some(2 * 2), says.clone(), 0));
    fails_in_both_jobs(&mut bench);
    make_of_two_jobs(&mut bench, restarts_once);
    assert_eq!(bench.gang_status().phase, GangPhase::Admitted);
    assert_eq!(covered(&bench), (Some(2 * 2), says, 3));
}
