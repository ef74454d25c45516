//! Jobs whose failures count by index, and whose pods are gangs of one each: a pod that is deleted may cost its index for good.

use super::*;
use crate::tests::evictions;

/// A Job of four indexes, of which two run at a time, each for itself.
fn job(name: &str, backoff_limit_per_index: Option<i32>) -> Object {
    Object::Job(parse(json!({
        "metadata": {"name": name, "namespace": "ml", "uid": format!("{name}-uid")},
        "spec": {
            "completionMode": "Indexed", "completions": 4, "parallelism": 2,
            "backoffLimitPerIndex": backoff_limit_per_index, "template": {"spec": {"containers": []}},
        },
        "status": {},
    })))
}

fn pod_of(bench: &mut Bench, job: &str, index: usize) {
    bench.pod(job, index, 1, keys::DEVICE_CLASS_GPU);
    bench.change_pod(&format!("{job}-{index}"), |pod| {
        let metadata = serde_json::from_value(json!({
            "name": pod.metadata.name, "namespace": "ml", "uid": pod.metadata.uid,
            "creationTimestamp": pod.metadata.creation_timestamp, "labels": {keys::TIER: "low"},
            "annotations": {"batch.kubernetes.io/job-completion-index": index.to_string()},
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": format!("{job}-uid"), "controller": true}],
        }));
        pod.metadata = metadata.unwrap();
    });
}

/// The Jobs whose pods are told to go.
fn told_to_go(bench: &Bench) -> Vec<String> {
    let gangs = bench.server.list(Kind::Gang).into_iter();
    let told = gangs.filter_map(|gang| match gang {
        Object::Gang(gang) => {
            gang.status.as_ref()?.preemption.as_ref()?;
            Some(
                gang.metadata
                    .owner_references
                    .as_ref()?
                    .first()?
                    .name
                    .clone(),
            )
        }
        _ => None,
    });
    told.collect()
}

#[test]
fn of_equals_those_go_last_whose_deletion_may_cost_an_index_of_their_job() {
    for (first, by_index, goes) in [("a", "b", "a"), ("b", "a", "b")] {
        let mut bench = Bench::new();
        bench.server.put(tier("low", 1, "Immediate", &json!({})));
        bench.server.put(tier("high", 10, "Never", &json!({})));
        bench.server.put(job(first, None));
        bench.server.put(job(by_index, Some(0)));
        for (name, index) in [("a", 0), ("a", 1), ("b", 0), ("b", 1)] {
            pod_of(&mut bench, name, index);
        }
        bench.run();
        evictions::start(&mut bench, &["a-0", "a-1", "b-0", "b-1"]);
        submit(&mut bench, "high", 2, "high");
        pass(&mut bench, 5);
        assert_eq!(
            told_to_go(&bench),
            [goes, goes],
            "{by_index} counts by index"
        );
    }
}
