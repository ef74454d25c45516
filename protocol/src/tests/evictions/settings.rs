//! Limits that administrators set where a gang says nothing.

use super::*;
use crate::Recovery;

fn with(recovery: Recovery) -> Config {
    Config {
        recovery,
        ..config()
    }
}

/// Time passes, and whatever is owed is done.
fn pass(bench: &mut Bench, seconds: u64) {
    bench.run_at_once();
    for _ in 0..seconds {
        bench.seconds += 1;
        bench.run_at_once();
    }
}

#[test]
fn a_failed_rank_is_left_alone_as_long_as_the_administrator_says_unless_its_gang_does() {
    for (says, own, after) in [
        (7, None, 7),
        (7, Some("20"), 20),
        (60, None, 60),
        (1, None, 1),
    ] {
        let mut bench = Bench::with(with(Recovery {
            failure_grace_seconds: says,
            ..config().recovery
        }));
        bench.server.put(job(2, 0));
        change_job(&mut bench, |job| {
            let annotations = job.metadata.annotations.get_or_insert_default();
            let own = own.map(|own: &str| (keys::FAILURE_GRACE_SECONDS.to_owned(), own.to_owned()));
            annotations.extend(own);
        });
        make_again(&mut bench, 0..2);
        bench.change_pod("fit-1", |pod| set_phase(pod, "Failed"));
        pass(&mut bench, after - 1);
        assert_eq!(evictions(&bench), [], "{says} {own:?}");
        pass(&mut bench, 1);
        assert_eq!(
            evictions(&bench),
            [(1, Reason::PodFailed)],
            "{says} {own:?}"
        );
    }
}

#[test]
fn a_pause_is_as_long_as_the_administrator_says_and_doubles_up_to_the_longest() {
    let recovery = Recovery {
        retry_pause_seconds: 10,
        most_retry_pause_seconds: 25,
        ..config().recovery
    };
    let mut bench = Bench::with(with(recovery));
    let create = |bench: &mut Bench| {
        bench.pod("train", 0, 1, keys::DEVICE_CLASS_GPU);
        bench.change_pod("train-0", |pod| {
            let owner = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "train", "uid": "s", "controller": true}]);
            pod.metadata.owner_references = serde_json::from_value(owner).unwrap();
        });
    };
    create(&mut bench);
    for (times, pause) in [(1_usize, 10_u64), (2, 20), (3, 25), (4, 25)] {
        bench.run();
        assert_eq!(bench.gang_status().phase, GangPhase::Admitted, "{times}");
        bench.seconds += 600;
        bench.run_at_once();
        let status = bench.gang_status();
        assert_eq!(status.evictions.len(), times, "{status:?}");
        let evicted = status.evictions[times - 1].at.0.as_second();
        let until = status.requeue_at.unwrap().0.as_second();
        assert_eq!(until - evicted, i64::try_from(pause).unwrap());
        create(&mut bench);
        pass(&mut bench, pause - 1);
        let status = bench.gang_status();
        assert_eq!(status.queue.unwrap().reason, Reason::BackingOff, "{times}");
        bench.seconds += 1;
    }
}
