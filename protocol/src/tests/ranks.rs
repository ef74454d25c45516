//! The number that a pod is told as its rank, and its place in the plan.

use super::*;

/// The Job `fit` with so many completions, of which the first have succeeded.
pub(super) fn job(completions: usize, succeeded: usize) -> Object {
    Object::Job(parse(json!({
        "metadata": {"name": "fit", "namespace": "ml", "uid": "fit-uid"},
        "spec": {
            "completionMode": "Indexed", "completions": completions, "parallelism": completions,
            "template": {"spec": {"containers": []}},
        },
        "status": {
            "succeeded": succeeded,
            "completedIndexes": if succeeded > 0 { format!("0-{}", succeeded - 1) } else { String::new() },
        },
    })))
}

pub(super) fn pod_of_job(bench: &mut Bench, index: usize) {
    bench.pod("fit", index, 2, keys::DEVICE_CLASS_GPU);
    bench.change_pod(&format!("fit-{index}"), |pod| {
        let metadata = serde_json::from_value(json!({
            "name": format!("fit-{index}"), "namespace": "ml", "uid": pod.metadata.uid,
            "creationTimestamp": pod.metadata.creation_timestamp,
            "annotations": {"batch.kubernetes.io/job-completion-index": index.to_string()},
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "fit", "uid": "fit-uid", "controller": true}],
        }));
        pod.metadata = metadata.unwrap();
    });
}

#[test]
fn a_rank_is_the_completion_index_and_the_place_counts_what_is_left() {
    let mut bench = Bench::new();
    bench.server.put(job(4, 1));
    for index in 1..4 {
        pod_of_job(&mut bench, index);
    }
    bench.run();
    let status = bench.gang_status();
    let (admission, placement) = (status.admission.unwrap(), status.placement.unwrap());
    assert_eq!(admission.pods.len(), 3);
    for index in 1..4 {
        let pod = bench.server.pod(&format!("fit-{index}")).unwrap();
        let annotations = pod.metadata.annotations.as_ref().unwrap();
        assert_eq!(annotations[keys::RANK], index.to_string());
        let uid = pod.metadata.uid.as_deref().unwrap();
        let place = admission.pods.iter().position(|it| it.uid == uid).unwrap();
        assert_eq!(place, index - 1, "index 0 has no place any more");
        let affinity = serde_json::to_value(&pod.spec.as_ref().unwrap().affinity).unwrap();
        let pin = "/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields/0/values";
        let planned = placement.node_of(place).unwrap();
        assert_eq!(affinity.pointer(pin), Some(&json!([planned.node])));
    }
}
