//! Ranks that kube-scheduler, the eviction API, a taint or a kubelet takes.

use k8s_openapi::api::core::v1::PodCondition;

use super::*;

fn pair() -> Bench {
    let mut bench = Bench::new();
    bench.gang("pair", 2);
    bench.run();
    for pod in ["pair-0", "pair-1"] {
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
        let mut bench = pair();
        take(&mut bench, "pair-1", reason);
        // The other one crashes because of it.
        bench.run_at_once();
        pass(&mut bench, 4);
        assert!(
            evictions(&bench, "pair").is_empty(),
            "{reason}: others may follow"
        );
        pass(&mut bench, 2);
        assert_eq!(evictions(&bench, "pair"), [expected], "{reason}");
        assert_eq!(status_of(&bench, "pair").failed_attempts, 0, "{reason}");
        bench.run();
        assert_eq!(evictions(&bench, "pair"), [expected], "{reason}: once");
    }
}

#[test]
fn a_rank_that_is_gone_at_once_is_remembered_though_another_crashes_because_of_it() {
    let mut bench = pair();
    take(&mut bench, "pair-1", "PreemptionByScheduler");
    bench.run_at_once();
    bench.server.remove(&pod_key("pair-1"));
    bench.run_at_once();
    // The first rank tries once more, and does not run while it does.
    pass(&mut bench, 6);
    let eviction = status_of(&bench, "pair").evictions.remove(0);
    assert_eq!(eviction.reason, Reason::PodDisrupted);
    assert!(
        eviction.message.contains("preempted by kube-scheduler"),
        "{}",
        eviction.message
    );
    assert_eq!(status_of(&bench, "pair").failed_attempts, 0);
}

#[test]
fn a_pod_that_is_said_to_be_ended_and_goes_on_costs_nothing() {
    let mut bench = pair();
    bench.change_pod("pair-1", |pod| {
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
    assert!(evictions(&bench, "pair").is_empty());
}
