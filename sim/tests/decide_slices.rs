//! `muster-sim decide`: GPUs that can be partitioned, requests with alternatives, and DeviceTaintRules.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use muster_sim::decide::{Answer, Decision, Source, decide};
use serde_json::{Value, json};

/// A node with so many GPUs of 80 GiB, each of which can be cut into seven slices of 10 GiB.
fn partitioned(name: &str, gpus: usize) -> Vec<Value> {
    let counters = |slices: std::ops::Range<usize>, compute: usize| {
        let mut counters = json!({"compute-slices": {"value": compute.to_string()}});
        for slice in slices {
            counters[format!("memory-slice-{slice}")] = json!({"value": "1"});
        }
        counters
    };
    let slice = |number: usize, content: &str, of: Value| {
        let mut slice = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
            "metadata": {"name": format!("{name}-{number}")},
            "spec": {"driver": "gpu.muster.dev", "nodeName": name, "pool": {"name": name}},
        });
        slice["spec"][content] = of;
        slice
    };
    let sets =
        (0..gpus).map(|gpu| json!({"name": format!("gpu-{gpu}"), "counters": counters(0..8, 7)}));
    let mut objects = vec![
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}),
        slice(0, "sharedCounters", sets.collect()),
    ];
    for gpu in 0..gpus {
        let device = |name: String, kind: &str, profile: &str, memory: &str, of: Value| {
            json!({
                "name": name,
                "attributes": {"type": {"string": kind}, "profile": {"string": profile}},
                "capacity": {"memory": {"value": memory}},
                "consumesCounters": [{"counterSet": format!("gpu-{gpu}"), "counters": of}],
            })
        };
        let slices = (0..7).map(|start| {
            let name = format!("gpu-{gpu}-mig-1g10gb-{start}");
            device(
                name,
                "mig",
                "1g.10gb",
                "10Gi",
                counters(start..start + 1, 1),
            )
        });
        let whole = device(
            format!("gpu-{gpu}"),
            "gpu",
            "whole",
            "80Gi",
            counters(0..8, 7),
        );
        let devices: Vec<Value> = slices.chain([whole]).collect();
        objects.push(slice(gpu + 1, "devices", json!(devices)));
    }
    objects
}

/// A Flavor of everything, and a Team with so many GPUs and the namespace `ml`.
fn team(gpus: usize) -> Vec<Value> {
    vec![
        json!({"apiVersion": "muster.dev/v1alpha1", "kind": "Flavor", "metadata": {"name": "h100"}, "spec": {}}),
        json!({"apiVersion": "muster.dev/v1alpha1", "kind": "Team", "metadata": {"name": "research"}, "spec": {
            "quota": [{"flavor": "h100", "resources": [{"name": "gpus", "nominal": gpus}, {"name": "vram", "nominal": "1Ti"}]}],
        }}),
        json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "ml", "labels": {"muster.dev/team": "research"}}}),
        // Of all devices of the driver, whatever an installation makes of its own.
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "any"}, "spec": {
            "selectors": [{"cel": {"expression": "device.driver == 'gpu.muster.dev'"}}],
        }}),
    ]
}

/// A template of claims for a device of that type, or of the first of these types that is there.
fn template(name: &str, types: &[&str]) -> Value {
    let alternatives = types.iter().map(|kind| {
        let expression = format!("device.attributes['gpu.muster.dev'].type == '{kind}'");
        json!({"name": kind, "deviceClassName": "any", "selectors": [{"cel": {"expression": expression}}]})
    });
    let alternatives: Vec<Value> = alternatives.collect();
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "ml"},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "firstAvailable": alternatives}]}}}})
}

/// A pod with a claim of a template. The larger ones were created later.
fn pod(name: &str, template: &str) -> Value {
    let second = if name.starts_with("large") { 2 } else { 1 };
    let created = format!("2026-01-01T00:00:0{second}Z");
    let metadata = json!({"name": name, "namespace": "ml", "creationTimestamp": created});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {
        "containers": [{"name": "main", "image": "i"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": template}],
    }})
}

fn answer(objects: impl IntoIterator<Item = Value>) -> Answer {
    let documents: Vec<String> = objects
        .into_iter()
        .map(|object| format!("{object}\n"))
        .collect();
    let source = Source {
        name: "cluster.yaml".to_owned(),
        text: documents.join("---\n"),
    };
    decide(&[source]).unwrap()
}

fn admitted(answer: &Answer) -> Vec<&Decision> {
    let decisions = answer.decisions.iter();
    decisions.filter(|decision| decision.admitted).collect()
}

fn objects(parts: impl IntoIterator<Item = Vec<Value>>) -> Vec<Value> {
    parts.into_iter().flatten().collect()
}

#[test]
fn slices_fill_one_gpu_and_the_other_one_is_given_out_whole() {
    let pods = (0..7).map(|number| pod(&format!("small-{number}"), "slice"));
    let pods = pods.chain(["large-0", "large-1"].map(|name| pod(name, "whole")));
    let mut cluster = objects([partitioned("node-0", 2), team(3)]);
    cluster.extend([template("slice", &["mig"]), template("whole", &["gpu"])]);
    cluster.extend(pods);
    let answer = answer(cluster);
    assert_eq!(answer.warnings, [""; 0]);
    let small = |decision: &&&Decision| decision.name.contains("small");
    let placed = admitted(&answer);
    assert_eq!(placed.len(), 8, "{:?}", answer.decisions);
    assert_eq!(placed.iter().filter(small).count(), 7);
    for decision in placed.iter().filter(small) {
        let written = serde_json::to_value(decision).unwrap();
        assert_eq!(
            written["slices"],
            json!([{"claims": 1, "flavor": "h100", "gpus": "142m", "vram": "10Gi"}])
        );
        assert_eq!(written["charge"][0]["amount"], "142m", "{written}");
    }
    for decision in placed.iter().filter(|decision| !small(decision)) {
        let written = serde_json::to_value(decision).unwrap();
        assert_eq!(written.get("slices"), None, "{written}");
        assert_eq!(written["charge"][0]["amount"], "1", "{written}");
    }
}

#[test]
fn a_request_gets_the_first_alternative_that_is_there() {
    let mut cluster = objects([partitioned("node-0", 1), team(3)]);
    cluster.push(template("either", &["mig", "gpu"]));
    let amount = |cluster: Vec<Value>| {
        let answer = answer(cluster);
        let placed = serde_json::to_value(admitted(&answer)).unwrap();
        placed[0]["charge"][0]["amount"].clone()
    };
    cluster.push(pod("p", "either"));
    assert_eq!(amount(cluster.clone()), "142m");
    // Without slices the whole GPU is what is there.
    let rules = (0..7).map(|start| {
        taint_rule(
            &json!({"device": format!("gpu-0-mig-1g10gb-{start}")}),
            start,
        )
    });
    cluster.extend(rules);
    assert_eq!(amount(cluster), "1");
}

fn taint_rule(selector: &Value, number: usize) -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule", "metadata": {"name": format!("rule-{number}")},
        "spec": {"deviceSelector": selector, "taint": {"key": "example.com/off", "effect": "NoSchedule"}}})
}

#[test]
fn what_a_rule_taints_is_given_to_nobody_in_whichever_version_it_is_written() {
    let with_rule = |rule: Option<Value>| {
        let mut cluster = objects([partitioned("node-0", 1), team(3)]);
        cluster.extend([template("whole", &["gpu"]), pod("p", "whole")]);
        cluster.extend(rule);
        let answer = answer(cluster);
        (admitted(&answer).len(), answer.warnings.len())
    };
    assert_eq!(with_rule(None), (1, 0));
    for (version, selector, expected) in [
        ("v1", json!({}), (0, 0)),
        ("v1", json!({"pool": "node-0"}), (0, 0)),
        ("v1", json!({"pool": "node-1"}), (1, 0)),
        ("v1beta2", json!({"device": "gpu-0"}), (0, 0)),
        ("v1alpha3", json!({"driver": "gpu.muster.dev"}), (0, 0)),
        // Without that field it would select more than it says.
        ("v1alpha3", json!({"deviceClassName": "any"}), (1, 1)),
    ] {
        let mut rule = taint_rule(&selector, 0);
        rule["apiVersion"] = json!(format!("resource.k8s.io/{version}"));
        assert_eq!(with_rule(Some(rule)), expected, "{version} {selector}");
    }
}

#[test]
fn a_slice_that_runs_keeps_its_gpu_from_being_given_out_whole() {
    let running = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "Gang",
        "metadata": {"name": "old", "namespace": "ml"}, "spec": {"size": 1},
        "status": {"phase": "Running", "attempt": 1, "team": "research",
            "admission": {"team": "research", "teamGeneration": 1, "ledgerSequence": 3,
                "charge": {"claims": [{"flavor": "h100", "gpusMilli": 142, "vramBytes": 10_i64 << 30, "uids": ["claim-of-old"]}]},
                "pods": [{"uid": "pod-of-old", "claims": ["claim-of-old"]}]},
            "placement": {"nodes": [{"node": "node-0", "nodeUid": "node//node-0", "ranks": 1}]}}});
    let mut cluster = objects([partitioned("node-0", 1), team(3)]);
    cluster.extend([
        running,
        template("whole", &["gpu"]),
        template("slice", &["mig"]),
    ]);
    cluster.extend([pod("large", "whole"), pod("small", "slice")]);
    let answer = answer(cluster);
    assert_eq!(answer.warnings, [""; 0]);
    let names: Vec<String> = admitted(&answer)
        .iter()
        .map(|decision| decision.name.clone())
        .collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(
        names.iter().all(|name| !name.contains("large")),
        "{names:?}"
    );
}

#[test]
fn a_pod_that_was_let_go_and_finds_no_devices_is_told_of_and_stays_unbound() {
    let agent = |number: usize| {
        let mut agent = pod(&format!("agent-{number}"), "whole");
        agent["metadata"]["namespace"] = json!("kube-system");
        agent["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] = json!({
            "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-0"]}]}],
        });
        agent
    };
    let warnings = |agents: usize| {
        let mut cluster = objects([partitioned("node-0", 1), team(3)]);
        let mut template = template("whole", &["gpu"]);
        template["metadata"]["namespace"] = json!("kube-system");
        cluster.push(template);
        cluster.extend((0..agents).map(agent));
        answer(cluster).warnings
    };
    assert_eq!(warnings(1), [""; 0]);
    let told = warnings(2);
    assert_eq!(told.len(), 1, "{told:?}");
    let expected = "pod kube-system/agent-1 is let go to node node-0 and stays unbound: the node has no free devices";
    assert!(told[0].starts_with(expected), "{told:?}");
}

#[test]
fn slices_fill_both_gpus_and_then_no_whole_one_is_left() {
    let pods = (0..8).map(|number| pod(&format!("small-{number}"), "slice"));
    let mut cluster = objects([partitioned("node-0", 2), team(4)]);
    cluster.extend([template("slice", &["mig"]), template("whole", &["gpu"])]);
    cluster.extend(pods.chain([pod("large-0", "whole")]));
    let answer = answer(cluster);
    assert_eq!(answer.warnings, [""; 0]);
    let placed = admitted(&answer);
    assert_eq!(placed.len(), 8, "{:?}", answer.decisions);
    assert!(
        placed
            .iter()
            .all(|decision| decision.name.contains("small")),
        "{:?}",
        answer.decisions
    );
}
