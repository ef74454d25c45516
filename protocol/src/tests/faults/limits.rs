//! Jobs whose pods die of faults: their `backoffLimit` is what their user wrote for what fails by itself, and nothing else.

use k8s_openapi::api::core::v1::PodCondition;

use super::{
    super::{
        evictions::{change_job, start, the_job},
        ranks::{job, pod_of_job},
    },
    *,
};

/// A gang of four pods on four GPUs of two nodes runs, whose Job bears with three failures.
fn running_job() -> Bench {
    running_job_by(0)
}

/// The same, led by somebody whose time of day is ahead of the API server's by so many seconds.
fn running_job_by(ahead_seconds: i64) -> Bench {
    let mut bench = Bench::new();
    bench.wall_set_by_seconds = ahead_seconds;
    bench.server.put(job(4, 0));
    change_job(&mut bench, |job| {
        job.spec.as_mut().unwrap().backoff_limit = Some(3);
    });
    for index in 0..4 {
        pod_of_job(&mut bench, index);
    }
    bench.run();
    start(&mut bench, &["fit-0", "fit-1", "fit-2", "fit-3"]);
    bench
}

fn fail_all(bench: &mut Bench) {
    for index in 0..4 {
        bench.change_pod(&format!("fit-{index}"), |pod| {
            pod.status.as_mut().unwrap().phase = Some("Failed".to_owned());
        });
    }
}

/// From what to what its limit was raised.
fn limits(bench: &Bench) -> (i32, String) {
    let job = the_job(bench);
    let annotations = job.metadata.annotations.unwrap_or_default();
    let covers = annotations.get(keys::BACKOFF_COVERS).cloned();
    let limit = job.spec.unwrap().backoff_limit;
    (limit.unwrap(), covers.unwrap_or_default())
}

/// The attempt, how many attempts failed by themselves, and how many pods.
fn counted(bench: &Bench) -> (i64, i32, i32) {
    let status = bench.gang_status();
    (status.attempt, status.failed_attempts, status.failed_pods)
}

/// Other ranks hold healthy GPUs and die with it.
#[test]
fn an_attempt_of_which_all_ranks_died_beside_a_fault_costs_its_job_nothing() {
    // Told before the pods are seen to have failed, in time, and at the last moment.
    for after in [None, Some(2), Some(59)] {
        let mut bench = running_job();
        assert_eq!(limits(&bench), (4, "3/4/fit-uid".to_owned()));
        let device = (node_of(&bench, "fit-0"), 0);
        let slice = tainted(&bench, &device, RESET);
        if let Some(seconds) = after {
            fail_all(&mut bench);
            pass(&mut bench, seconds);
            assert_eq!(counted(&bench), (1, 0, 0), "{after:?}: in doubt");
            bench.server.put(slice);
        } else {
            bench.server.put(slice);
            fail_all(&mut bench);
        }
        pass(&mut bench, 1);
        assert_eq!(counted(&bench), (2, 0, 0), "{after:?}");
        assert_eq!(limits(&bench), (8, "3/8/fit-uid".to_owned()), "{after:?}");
    }
}

#[test]
fn an_attempt_of_which_all_ranks_died_without_a_fault_costs_its_job_all_that_it_has() {
    let mut bench = running_job();
    fail_all(&mut bench);
    pass(&mut bench, 59);
    assert_eq!(counted(&bench), (1, 0, 0), "in doubt");
    assert_eq!(limits(&bench).0, 4);
    pass(&mut bench, 1);
    assert_eq!(counted(&bench), (2, 1, 4));
    assert_eq!(limits(&bench), (3, "3/3/fit-uid".to_owned()));
    // What is told later changes nothing.
    let device = (node_of_plan(&bench), 0);
    let slice = tainted(&bench, &device, RESET);
    bench.server.put(slice);
    pass(&mut bench, 60);
    assert_eq!(counted(&bench), (2, 1, 4));
    assert_eq!(limits(&bench), (3, "3/3/fit-uid".to_owned()));
}

/// The name of a node that the gang ran on.
fn node_of_plan(bench: &Bench) -> String {
    let pod = bench.server.pod("fit-0").unwrap();
    pod.spec.as_ref().unwrap().node_name.clone().unwrap()
}

/// Of a fault and of a pod the API server says when they came. By a leader's clock that is ahead each fault would be older than the attempt.
#[test]
fn a_fault_excuses_who_died_of_it_however_wrong_the_clock_of_the_leader_is() {
    for ahead_seconds in [-3_600, 3_600] {
        let mut bench = running_job_by(ahead_seconds);
        let device = (node_of(&bench, "fit-0"), 0);
        let slice = tainted(&bench, &device, RESET);
        bench.server.put(slice);
        fail_all(&mut bench);
        pass(&mut bench, 1);
        assert_eq!(counted(&bench), (2, 0, 0), "{ahead_seconds}");
    }
}

/// Else whoever fails by itself beside a GPU that waits for its repair would be made again for ever.
#[test]
fn a_fault_that_is_older_than_the_pods_excuses_nobody() {
    let mut bench = running_job();
    let device = (node_of(&bench, "fit-0"), 0);
    let Object::ResourceSlice(mut slice) = tainted(&bench, &device, RESET) else {
        panic!("a slice");
    };
    let made = bench.server.pod("fit-0").unwrap().metadata;
    let made_at = made.creation_timestamp.unwrap().0.as_second();
    let devices = Arc::make_mut(&mut slice).spec.devices.as_mut().unwrap();
    for taint in devices
        .iter_mut()
        .flat_map(|it| it.taints.iter_mut().flatten())
    {
        taint.time_added = Some(Time(Timestamp::from_second(made_at - 120).unwrap()));
    }
    bench.server.put(Object::ResourceSlice(slice));
    fail_all(&mut bench);
    pass(&mut bench, 60);
    assert_eq!(counted(&bench), (2, 1, 4));
    assert_eq!(limits(&bench).0, 3);
}

/// It is gone at once, and the others crash of it before its gang is evicted.
#[test]
fn an_attempt_of_which_all_ranks_died_with_one_that_was_preempted_costs_its_job_nothing() {
    let mut bench = running_job();
    bench.change_pod("fit-1", |pod| {
        let conditions = pod
            .status
            .as_mut()
            .unwrap()
            .conditions
            .get_or_insert_default();
        conditions.push(PodCondition {
            type_: "DisruptionTarget".to_owned(),
            status: "True".to_owned(),
            reason: Some("PreemptionByScheduler".to_owned()),
            ..PodCondition::default()
        });
        let now = Time(Timestamp::from_second(1_800_001_000).unwrap());
        pod.metadata.deletion_timestamp = Some(now);
    });
    bench.run_at_once();
    bench.server.remove(&pod_key("fit-1"));
    for name in ["fit-0", "fit-2", "fit-3"] {
        bench.change_pod(name, |pod| {
            pod.status.as_mut().unwrap().phase = Some("Failed".to_owned());
        });
    }
    pass(&mut bench, 4);
    assert_eq!(counted(&bench), (2, 0, 0));
    assert_eq!(limits(&bench), (8, "3/8/fit-uid".to_owned()));
}

/// Some clusters remove what has failed within a minute: a program with an error in it would be started anew for ever.
#[test]
fn pods_that_failed_count_though_they_are_removed_while_it_is_in_doubt() {
    let mut bench = running_job();
    fail_all(&mut bench);
    pass(&mut bench, 10);
    bench.change_pod("fit-0", |pod| {
        let now = Time(Timestamp::from_second(1_800_001_000).unwrap());
        pod.metadata.deletion_timestamp = Some(now);
    });
    for name in ["fit-1", "fit-2", "fit-3"] {
        bench.server.remove(&pod_key(name));
    }
    pass(&mut bench, 49);
    assert_eq!(counted(&bench), (1, 0, 0), "in doubt");
    pass(&mut bench, 2);
    assert_eq!(counted(&bench), (2, 1, 4));
    assert_eq!(limits(&bench), (3, "3/3/fit-uid".to_owned()));
}
