use k8s_openapi::api::core::v1::Pod;
use muster_cluster::managed::ManagedPods;
use serde_json::{Value, json};

use super::*;
use crate::{cache::Cache, gpus::testing::slice, pod::PodRules};

fn rules() -> PodRules {
    PodRules {
        managed: ManagedPods::new(["nvidia.com/gpu"]).unwrap(),
        extender: true,
        void_devices: false,
        excepted_namespaces: [].into(),
        scheduler_name: None,
    }
}

/// A cluster of four nodes with eight GPUs each, and one with two small ones.
fn facts() -> Cache {
    let mut facts = Cache::default();
    for node in ["n1", "n2", "n3", "n4"] {
        facts
            .gpus
            .put(&slice(node, "NVIDIA H100 80GB HBM3", "81559Mi", 8, 8));
    }
    facts.gpus.put(&slice("n5", "Tesla T4", "15360Mi", 2, 1));
    facts
}

fn pod(annotations: &Value, spec: &Value) -> Value {
    json!({"metadata": {"name": "p", "namespace": "ml", "annotations": annotations}, "spec": spec})
}

fn two_containers() -> Value {
    json!({"initContainers": [{"name": "fetch"}], "containers": [{"name": "train"}, {"name": "log"}]})
}

fn typed(pod: &Value) -> Pod {
    serde_json::from_value(pod.clone()).unwrap()
}

fn patched(pod: &Value) -> Value {
    let mut patched = pod.clone();
    json_patch::patch(
        &mut patched,
        &rules().patch(&typed(pod), "ml", &Cache::default()),
    )
    .unwrap();
    patched
}

fn checked(annotations: &Value, spec: &Value) -> Findings {
    rules().check(&typed(&pod(annotations, spec)), "ml", &facts())
}

#[test]
fn three_lines_become_a_claim_of_the_first_container() {
    let patched = patched(&pod(&json!({"muster.dev/gpus": "2"}), &two_containers()));
    let claims = &patched["spec"]["resourceClaims"];
    assert_eq!(claims[0]["name"], "muster-gpus");
    let template = claims[0]["resourceClaimTemplateName"].as_str().unwrap();
    assert!(template.starts_with("muster-2-gpus-"), "{template}");
    assert_eq!(
        patched["spec"]["containers"],
        json!([
            {"name": "train", "resources": {
                "limits": {"muster.dev/managed": "0"}, "requests": {"muster.dev/managed": "0"},
                "claims": [{"name": "muster-gpus"}]}},
            {"name": "log"},
        ])
    );
    assert_eq!(
        patched["spec"]["initContainers"],
        json!([{"name": "fetch"}])
    );
}

#[test]
fn the_claim_goes_to_the_container_that_is_named() {
    for (name, list, index) in [("log", "containers", 1), ("fetch", "initContainers", 0)] {
        let annotations = json!({"muster.dev/gpus": "1", "muster.dev/container": name});
        let patched = patched(&pod(&annotations, &two_containers()));
        assert_eq!(
            patched["spec"][list][index]["resources"],
            json!({"claims": [{"name": "muster-gpus"}]}),
            "{name}"
        );
        assert!(
            patched["spec"]["containers"][0]["resources"]
                .get("claims")
                .is_none()
        );
    }
}

#[test]
fn claims_of_other_names_stay_and_stand_beside_it() {
    let spec = json!({"resourceClaims": [{"name": "nic", "resourceClaimName": "n"}],
        "containers": [{"name": "c", "resources": {"claims": [{"name": "nic"}], "limits": {"cpu": "1"}}}]});
    let patched = patched(&pod(&json!({"muster.dev/vram": "40Gi"}), &spec));
    assert_eq!(
        patched["spec"]["resourceClaims"][0],
        spec["resourceClaims"][0]
    );
    assert_eq!(
        patched["spec"]["resourceClaims"].as_array().unwrap().len(),
        2
    );
    assert_eq!(
        patched["spec"]["containers"][0]["resources"]["claims"],
        json!([{"name": "nic"}, {"name": "muster-gpus"}])
    );
    assert_eq!(
        checked(&json!({"muster.dev/vram": "40Gi"}), &spec),
        Findings::default()
    );
}

#[test]
fn a_container_that_somebody_puts_first_afterwards_does_not_get_the_claim_too() {
    let mut pod = patched(&pod(&json!({"muster.dev/gpus": "1"}), &two_containers()));
    let containers = pod["spec"]["containers"].as_array_mut().unwrap();
    containers.insert(0, json!({"name": "proxy"}));
    let again = patched(&pod);
    assert!(
        again["spec"]["containers"][0]["resources"]
            .get("claims")
            .is_none()
    );
    assert_eq!(
        again["spec"]["containers"][1]["resources"]["claims"],
        json!([{"name": "muster-gpus"}])
    );
}

#[test]
fn every_refusal_names_its_field_and_what_would_work() {
    let theirs = json!({"containers": [{"name": "c"}],
        "resourceClaims": [{"name": "nic", "resourceClaimName": "n"}, {"name": "muster-gpus", "resourceClaimName": "n"}]});
    for (annotations, spec, field, reason, message) in [
        (
            json!({"muster.dev/gpus": "-1"}),
            two_containers(),
            "metadata.annotations[muster.dev/gpus]",
            Reason::InvalidValue,
            "\"-1\": must be a whole number from 1 to 32, in plain digits",
        ),
        (
            json!({"muster.dev/gpus": "1", "muster.dev/container": "gpu"}),
            two_containers(),
            "metadata.annotations[muster.dev/container]",
            Reason::InvalidValue,
            "\"gpu\": the pod has no such container; it has: train, log, fetch",
        ),
        (
            json!({"muster.dev/container": "train"}),
            two_containers(),
            "metadata.annotations[muster.dev/container]",
            Reason::InvalidValue,
            "says which container gets the GPUs, and neither muster.dev/gpus nor muster.dev/vram says which GPUs",
        ),
        (
            json!({"muster.dev/gpus": "1"}),
            theirs,
            "spec.resourceClaims[1].name",
            Reason::InvalidValue,
            "\"muster-gpus\" is the claim that muster.dev/gpus and muster.dev/vram stand for: give this one another name, or leave it out",
        ),
        (
            json!({"muster.dev/vram": "200Gi"}),
            two_containers(),
            "metadata.annotations[muster.dev/vram]",
            Reason::PlacementImpossible,
            "no GPU has 200Gi; the nearest smaller one has 81559Mi (NVIDIA H100 80GB HBM3); there are: 81559Mi (NVIDIA H100 80GB HBM3, 32 of them), 15Gi (Tesla T4, 2 of them)",
        ),
    ] {
        let findings = checked(&annotations, &spec);
        assert_eq!(findings.errors.len(), 1, "{annotations}: {findings:?}");
        let found = &findings.errors[0];
        assert_eq!(
            (found.field.as_str(), found.reason, found.message.as_str()),
            (field, reason, message)
        );
    }
}

#[test]
fn what_is_refused_gets_no_claim() {
    for annotations in [
        json!({"muster.dev/gpus": "x"}),
        json!({"muster.dev/gpus": "1", "muster.dev/container": "unknown"}),
        json!({"muster.dev/container": "train"}),
    ] {
        let patched = patched(&pod(&annotations, &two_containers()));
        assert!(
            patched["spec"].get("resourceClaims").is_none(),
            "{annotations}"
        );
    }
}

#[test]
fn more_gpus_than_any_node_has_are_warned_of_and_queue() {
    for (annotations, warned) in [
        (json!({"muster.dev/gpus": "8"}), None),
        (
            json!({"muster.dev/gpus": "16"}),
            Some("no node has 16 GPUs, but 8 at the most"),
        ),
        (
            json!({"muster.dev/gpus": "16", "muster.dev/vram": "40Gi", "muster.dev/interconnect": "nvlink"}),
            Some("no node has 16 GPUs with 40Gi or more connected by nvlink, but 8 at the most"),
        ),
        (
            json!({"muster.dev/gpus": "1", "muster.dev/interconnect": "nvlink"}),
            Some("metadata.annotations[muster.dev/interconnect] has no effect"),
        ),
    ] {
        let findings = checked(&annotations, &two_containers());
        assert_eq!(findings.errors, [], "{annotations}");
        match warned {
            None => assert!(findings.warnings.is_empty(), "{findings:?}"),
            Some(words) => {
                assert!(findings.warnings[0].contains(words), "{findings:?}");
                assert!(findings.warnings[0].len() <= 256, "{findings:?}");
            }
        }
    }
}

#[test]
fn while_no_gpu_is_known_any_amount_of_memory_queues() {
    let pod = typed(&pod(
        &json!({"muster.dev/vram": "200Gi"}),
        &two_containers(),
    ));
    assert_eq!(
        rules().check(&pod, "ml", &Cache::default()),
        Findings::default()
    );
}

#[test]
fn hostile_values_are_answered_like_any_other() {
    let long = "9".repeat(100_000);
    for value in [
        "1e30",
        "-9223372036854775808",
        "\u{0}",
        "１６",
        "𝟙Gi",
        long.as_str(),
    ] {
        for key in keys::SHORTHAND {
            let findings = checked(&json!({key: value}), &two_containers());
            assert!(!findings.errors.is_empty(), "{key} {value:.20}");
            assert!(
                findings
                    .errors
                    .iter()
                    .all(|error| error.message.len() < 1024)
            );
        }
    }
}
