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
