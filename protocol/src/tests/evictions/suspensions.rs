//! Whose a suspension is: Muster's ends with the eviction, everybody else's is theirs to end.

use super::*;

/// Who has set `spec.suspend` as it is, as the API server tells it.
fn set_by(bench: &mut Bench, managers: &[&str]) {
    let entries = managers.iter().map(|manager| {
        json!({"manager": manager, "operation": "Update", "fieldsV1": {"f:spec": {"f:suspend": {}}}})
    });
    let entries = Value::Array(entries.collect());
    change_job(bench, |job| {
        job.metadata.managed_fields = serde_json::from_value(entries).unwrap();
    });
}

/// A Job that Muster suspended to evict its pods, which still end.
fn suspended() -> Bench {
    let mut bench = running_job(|_| {});
    stop(&mut bench, "HoldAndDrain");
    assert!(is_suspended(&bench));
    bench
}

fn end_pods(bench: &mut Bench) {
    for pod in ["fit-0", "fit-1"] {
        bench.server.remove(&pod_key(pod));
    }
    bench.run();
}

#[test]
fn a_suspension_that_somebody_else_wants_as_well_stands_when_musters_ends() {
    const MUSTER: &str = keys::FIELD_MANAGER_CONTROLLER;
    for (managers, is_theirs) in [
        (&[][..], false),
        (&[MUSTER], false),
        // The API server sums up the oldest of many, Muster's perhaps.
        (&["ancient-changes"], false),
        // Applied server-side: both own it.
        (&[MUSTER, "argocd"], true),
        // Resumed and suspended by a user before Muster saw any of it.
        (&["kubectl-patch"], true),
    ] {
        let mut bench = suspended();
        set_by(&mut bench, managers);
        bench.run();
        end_pods(&mut bench);
        assert_eq!(is_suspended(&bench), is_theirs, "{managers:?}");
        assert_eq!(
            annotation(&bench, keys::SUSPENDED_FOR),
            None,
            "{managers:?}"
        );
        let noted = annotation(&bench, keys::RESUMED_BY_OTHERS);
        assert_eq!(noted.is_some(), is_theirs, "{managers:?}");
    }
}

#[test]
fn whoever_takes_musters_mark_away_makes_the_suspension_theirs() {
    let mut bench = suspended();
    change_job(&mut bench, |job| {
        let annotations = job.metadata.annotations.as_mut().unwrap();
        annotations.remove(keys::SUSPENDED_FOR).unwrap();
    });
    bench.run();
    bench.take_over();
    end_pods(&mut bench);
    assert!(is_suspended(&bench));
}

#[test]
fn a_job_that_its_user_resumes_in_the_end_starts_again() {
    let mut bench = suspended();
    set_by(&mut bench, &["kubectl-patch"]);
    bench.run();
    end_pods(&mut bench);
    stop(&mut bench, "None");
    assert!(is_suspended(&bench));
    change_job(&mut bench, |job| {
        job.spec.as_mut().unwrap().suspend = Some(false);
    });
    make_again(&mut bench, 0..2);
    assert_eq!(bench.gang_status().phase, GangPhase::Running);
}

/// What limits a Job's time stands while it is suspended, and runs while its pods wait.
#[test]
fn a_job_with_a_deadline_stays_suspended_while_its_pods_would_wait_for_sure() {
    for deadline in [None, Some(3_600)] {
        let mut bench = running_job(|job| {
            job.spec.as_mut().unwrap().active_deadline_seconds = deadline;
        });
        stop(&mut bench, "HoldAndDrain");
        end_pods(&mut bench);
        assert_eq!(is_suspended(&bench), deadline.is_some(), "{deadline:?}");
        bench.take_over();
        bench.run();
        assert_eq!(is_suspended(&bench), deadline.is_some(), "{deadline:?}");
        let queue = bench.gang_status().queue.unwrap();
        let says = queue.details.contains("Job fit stays suspended");
        assert_eq!(says, deadline.is_some(), "{}", queue.details);
        assert_eq!(queue.reason == Reason::TeamStopped, deadline.is_some());
        stop(&mut bench, "None");
        assert!(!is_suspended(&bench), "{deadline:?}");
        make_again(&mut bench, 0..2);
        assert_eq!(bench.gang_status().phase, GangPhase::Running);
    }
}

#[test]
fn a_job_with_a_deadline_stays_suspended_while_its_gang_pauses_or_is_suspended_itself() {
    let mut bench = running_job(|job| {
        job.spec.as_mut().unwrap().active_deadline_seconds = Some(3_600);
    });
    bench.change_pod("fit-1", |pod| set_phase(pod, "Pending"));
    bench.run();
    bench.seconds += 600;
    bench.run();
    assert_eq!(evictions(&bench), [(1, Reason::StartTimeout)]);
    end_pods(&mut bench);
    assert!(is_suspended(&bench));
    let queue = bench.gang_status().queue.unwrap();
    assert_eq!(queue.reason, Reason::BackingOff, "{}", queue.details);
    for suspend in [true, false] {
        let Some(Object::Gang(mut gang)) = bench.server.list(Kind::Gang).pop() else {
            panic!("a Gang")
        };
        Arc::make_mut(&mut gang).spec.suspend = suspend;
        bench.server.put(Object::Gang(gang));
        bench.seconds += 30;
        bench.run();
        assert_eq!(is_suspended(&bench), suspend);
    }
}
