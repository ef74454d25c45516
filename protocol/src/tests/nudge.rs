use super::*;

/// A gang of two whose pods are bound to their nodes, and whose kubelets have not made their sandboxes.
fn bound() -> Bench {
    let mut bench = Bench::new();
    bench.gang("train", 2);
    bench.run();
    for name in ["train-0", "train-1"] {
        let affinity = bench.server.pod(name).unwrap().spec.unwrap().affinity;
        let node = serde_json::to_value(affinity).unwrap()
            ["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0]
            ["matchFields"][0]["values"][0]
            .clone();
        bench.change_pod(name, |pod| {
            pod.spec.as_mut().unwrap().node_name = Some(node.as_str().unwrap().to_owned());
        });
        set_sandbox_ready(&mut bench, name, "False");
    }
    bench.run_at_once();
    bench.written.clear();
    bench
}

fn set_sandbox_ready(bench: &mut Bench, name: &str, status: &str) {
    bench.change_pod(name, |pod| {
        let conditions = json!([{"type": "PodReadyToStartContainers", "status": status}]);
        let status = pod.status.as_mut().unwrap();
        status.conditions = serde_json::from_value(conditions).unwrap();
    });
}

/// Names of the pods that are nudged in each of the next seconds, and in which.
fn nudged(bench: &mut Bench, seconds: u64) -> Vec<(u64, String)> {
    let mut nudged = Vec::new();
    for second in 1..=seconds {
        bench.seconds += 1;
        bench.run_at_once();
        for write in std::mem::take(&mut bench.written) {
            if let ApiRequest::PatchPod { key, patch } = write {
                let text = patch.to_string();
                assert!(text.contains("muster.dev~1nudges"), "{text}");
                assert!(
                    !text.contains("resourceVersion"),
                    "kubelets write often: {text}"
                );
                nudged.push((second, key.name));
            }
        }
    }
    nudged
}

#[test]
fn a_pod_that_gets_no_sandbox_is_nudged_after_3_seconds_and_then_ever_more_rarely() {
    let mut bench = bound();
    set_sandbox_ready(&mut bench, "train-1", "True");
    let told = nudged(&mut bench, 160);
    assert!(told.iter().all(|(_, name)| name == "train-0"), "{told:?}");
    let seconds: Vec<u64> = told.iter().map(|(second, _)| *second).collect();
    assert_eq!(seconds, [3, 9, 21, 45, 93, 153]);
    let annotations = bench.server.pod("train-0").unwrap().metadata.annotations;
    assert_eq!(annotations.unwrap()[keys::NUDGES], "6");
}

#[test]
fn a_pod_that_gets_its_sandbox_in_time_is_left_alone() {
    let mut bench = bound();
    assert!(nudged(&mut bench, 2).is_empty());
    for name in ["train-0", "train-1"] {
        set_sandbox_ready(&mut bench, name, "True");
    }
    assert!(nudged(&mut bench, 100).is_empty());
}
