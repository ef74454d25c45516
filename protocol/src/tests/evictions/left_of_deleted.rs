//! What is left of the attempt of a Gang that was deleted, as its Job tells of the others.

use super::*;

/// That the Job says so of itself.
fn say(job: &mut Job, condition: &str) {
    let said = json!([{"type": condition, "status": "True"}]);
    job.status.as_mut().unwrap().conditions = serde_json::from_value(said).unwrap();
}

#[test]
fn s4_what_is_left_of_a_deleted_gang_goes_on_only_where_its_job_makes_no_others() {
    type Change = fn(&mut Job);
    // Before and after its start, which of three have succeeded, and of which nothing is there any more.
    type Case<'a> = (&'a str, Change, Change, &'a [&'a str], &'a str, bool);
    let cases: [Case<'_>; 4] = [
        (
            "work queue, the pod that succeeded is gone",
            |job| work_queue(job, 3),
            |job| job.status.as_mut().unwrap().succeeded = Some(1),
            &[],
            "fit-0",
            true,
        ),
        (
            "indexed, one succeeded and another one is gone",
            |_| {},
            |_| {},
            &["fit-0"],
            "fit-1",
            false,
        ),
        (
            "indexed, the same, but its Job ends the others",
            |_| {},
            |job| say(job, "SuccessCriteriaMet"),
            &["fit-0"],
            "fit-1",
            true,
        ),
        (
            "indexed, the one that succeeded is gone",
            |_| {},
            |job| job.status.as_mut().unwrap().completed_indexes = Some("0".to_owned()),
            &[],
            "fit-0",
            true,
        ),
    ];
    for (case, before, after, succeeded, gone, goes_on) in cases {
        let mut bench = running_job_of(3, before);
        for pod in succeeded {
            bench.change_pod(pod, |pod| set_phase(pod, "Succeeded"));
        }
        change_job(&mut bench, after);
        bench.server.remove(&pod_key(gone));
        let gang = bench.server.list(Kind::Gang).pop().unwrap().key();
        bench.server.remove(&gang);
        bench.run();
        bench.seconds += 5;
        bench.run();
        let is_adopted = bench.gang_status().admission.is_some_and(|it| it.adopted);
        assert_eq!(is_adopted, goes_on, "{case}");
        assert_eq!(is_suspended(&bench), !goes_on, "{case}: its pods are ended");
        let deletes = |write: &ApiRequest| matches!(write, ApiRequest::DeletePod { .. });
        assert!(!bench.written.iter().any(deletes), "{case}");
    }
}
