//! Ranks that kube-scheduler, the eviction API, a taint or a kubelet takes.

use k8s_openapi::api::core::v1::PodCondition;

use super::*;

fn trio() -> Bench {
    let mut bench = Bench::new();
    bench.gang("trio", 3);
    bench.run();
    for pod in ["trio-0", "trio-1", "trio-2"] {
        let node = node_of(&bench, pod);
        bench.runs_on(pod, &node);
    }
    bench.run();
    bench
}

/// Somebody says that the pod is about to be ended, and ends it.
fn take(bench: &mut Bench, pod: &str, reason: &str) {
    bench.change_pod(pod, |pod| {
        let status = pod.status.as_mut().unwrap();
        status
            .conditions
            .get_or_insert_default()
            .push(PodCondition {
                type_: "DisruptionTarget".to_owned(),
                status: "True".to_owned(),
                reason: Some(reason.to_owned()),
                ..PodCondition::default()
            });
        if reason == "TerminationByKubelet" {
            status.phase = Some("Failed".to_owned());
            status.reason = Some("Evicted".to_owned());
        } else {
            let now = Time(Timestamp::from_second(1_800_001_000).unwrap());
            pod.metadata.deletion_timestamp = Some(now);
        }
    });
}

#[test]
fn a_rank_that_somebody_takes_costs_the_attempt_once_and_counts_as_no_failure() {
    for (reason, expected) in [
        ("PreemptionByScheduler", Reason::PodDisrupted),
        ("EvictionByEvictionAPI", Reason::PodDisrupted),
        ("DeletionByTaintManager", Reason::PodDisrupted),
        ("DeletionByDeviceTaintManager", Reason::PodDisrupted),
        ("TerminationByKubelet", Reason::PodDisrupted),
        ("DeletionByPodGC", Reason::MembersChanged),
    ] {
        let mut bench = trio();
        take(&mut bench, "trio-1", reason);
        bench.run_at_once();
        pass(&mut bench, 4);
        assert!(
            evictions(&bench, "trio").is_empty(),
            "{reason}: others may follow"
        );
        pass(&mut bench, 2);
        assert_eq!(evictions(&bench, "trio"), [expected], "{reason}");
        assert_eq!(status_of(&bench, "trio").failed_attempts, 0, "{reason}");
        bench.run();
        assert_eq!(evictions(&bench, "trio"), [expected], "{reason}: once");
    }
}

#[test]
fn a_rank_that_is_gone_at_once_is_remembered_though_another_crashes_because_of_it() {
    let mut bench = trio();
    take(&mut bench, "trio-1", "PreemptionByScheduler");
    bench.run_at_once();
    bench.server.remove(&pod_key("trio-1"));
    bench.change_pod("trio-2", |pod| {
        pod.status.as_mut().unwrap().phase = Some("Failed".to_owned());
    });
    pass(&mut bench, 6);
    let eviction = status_of(&bench, "trio").evictions.remove(0);
    assert_eq!(eviction.reason, Reason::PodDisrupted);
    assert!(
        eviction.message.contains("preempted by kube-scheduler"),
        "{}",
        eviction.message
    );
    assert_eq!(status_of(&bench, "trio").failed_attempts, 0);
}

#[test]
fn a_pod_that_is_said_to_be_ended_and_goes_on_costs_nothing() {
    let mut bench = trio();
    bench.change_pod("trio-1", |pod| {
        let status = pod.status.as_mut().unwrap();
        status
            .conditions
            .get_or_insert_default()
            .push(PodCondition {
                type_: "DisruptionTarget".to_owned(),
                status: "True".to_owned(),
                reason: Some("EvictionByEvictionAPI".to_owned()),
                ..PodCondition::default()
            });
    });
    pass(&mut bench, 60);
    assert!(evictions(&bench, "trio").is_empty());
}
