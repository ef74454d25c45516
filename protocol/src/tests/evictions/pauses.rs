//! The pause after a start that was late: how long it lasts, and what ends it.

use super::*;

/// A gang of one pod by label, whose start was late, and whose pod is gone. `change`: what its pod says.
fn late(change: impl Fn(&mut Pod)) -> Bench {
    let mut bench = Bench::new();
    bench.gang("train", 1);
    bench.change_pod("train-0", change);
    bench.run();
    bench.seconds += 600;
    bench.run_until(|write| matches!(write, ApiRequest::PatchPodStatus { .. }));
    assert_eq!(evictions(&bench), [(1, Reason::StartTimeout)]);
    bench.server.remove(&pod_key("train-0"));
    bench.take_over();
    bench
}

fn change_gang(bench: &mut Bench, change: impl FnOnce(&mut muster_api::Gang)) {
    let Some(Object::Gang(mut gang)) = bench.server.list(Kind::Gang).pop() else {
        panic!("a Gang")
    };
    change(Arc::make_mut(&mut gang));
    bench.server.put(Object::Gang(gang));
}

/// The pod is made again; whether its gang pauses.
fn pauses(bench: &mut Bench, change: impl Fn(&mut Pod)) -> bool {
    bench.gang("train", 1);
    bench.change_pod("train-0", change);
    bench.run();
    let status = bench.gang_status();
    let pauses = status
        .queue
        .is_some_and(|it| it.reason == Reason::BackingOff);
    assert_eq!(!pauses, status.phase == GangPhase::Admitted);
    pauses
}

/// The clock of whoever wrote the pause may be any.
#[test]
fn a_pause_is_neither_longer_nor_much_shorter_than_it_was_meant_to_be() {
    for (ahead_minutes, is_kept) in [(24 * 60, true), (-10, true), (-24 * 60, false)] {
        let mut bench = late(|_| {});
        change_gang(&mut bench, |gang| {
            let ahead = jiff::SignedDuration::from_mins(ahead_minutes);
            let status = gang.status.as_mut().unwrap();
            status.evictions[0].at.0 += ahead;
            status.requeue_at.as_mut().unwrap().0 += ahead;
        });
        bench.take_over();
        assert_eq!(pauses(&mut bench, |_| {}), is_kept, "{ahead_minutes} min");
        bench.seconds += 30;
        bench.run();
        assert_eq!(bench.gang_status().phase, GangPhase::Admitted);
    }
}

#[test]
fn pods_from_another_template_end_the_pause() {
    let revision = |revision: &'static str| {
        move |pod: &mut Pod| {
            let labels = pod.metadata.labels.get_or_insert_default();
            labels.insert("controller-revision-hash".to_owned(), revision.to_owned());
        }
    };
    for (again, is_over) in [("1", false), ("2", true)] {
        let mut bench = late(revision("1"));
        assert_eq!(pauses(&mut bench, revision(again)), !is_over, "{again}");
    }
}

#[test]
fn a_user_who_suspends_a_gang_and_lets_it_go_on_ends_the_pause() {
    let mut bench = late(|_| {});
    assert!(pauses(&mut bench, |_| {}));
    for suspend in [true, false] {
        change_gang(&mut bench, |gang| {
            gang.spec.suspend = suspend;
            gang.metadata.generation = gang.metadata.generation.map(|it| it + 1);
        });
        bench.run();
    }
    assert_eq!(bench.gang_status().phase, GangPhase::Admitted);
}
