use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate};
use muster_api::{Team, device_class};
use muster_cluster::managed::ManagedPods;
use serde_json::{Value, json};

use super::*;
use crate::{cache::Cached, claims::Asked, finding::Finding, gpus::testing::slice, pod::PodRules};

fn rules() -> PodRules {
    PodRules {
        managed: ManagedPods::new(["nvidia.com/gpu", "nvidia.com/mig-*"]).unwrap(),
        extender: false,
        void_devices: false,
        excepted_namespaces: [].into(),
        scheduler_name: None,
    }
}

/// Namespace `ml` of Team `red`, which says that; a T4; and claims and templates that say how much memory, and that do not.
fn facts(policy: VramPolicy) -> Cache {
    let mut facts = Cache {
        team_of_namespace: [("ml".to_owned(), "red".to_owned())].into(),
        ..Cache::default()
    };
    let spec = TeamSpec {
        vram: policy,
        vram_default: (policy == VramPolicy::Default).then(|| "10Gi".into()),
        ..TeamSpec::default()
    };
    Team::new("red", spec).is(&mut facts);
    facts.gpus.put(&slice("n1", "T4", "15Gi", 1, 1));
    for class in device_class::SHIPPED {
        let selectors = json!([{"cel": {"expression": class.selector}}]);
        let class: DeviceClass = serde_json::from_value(
            json!({"metadata": {"name": class.name}, "spec": {"selectors": selectors}}),
        )
        .unwrap();
        class.is(&mut facts);
    }
    for (name, capacity) in [
        ("silent", json!(null)),
        ("saying", json!({"requests": {"memory": "10Gi"}})),
    ] {
        let spec = json!({"devices": {"requests": [{"name": "gpu",
            "exactly": {"deviceClassName": "gpu.muster.dev", "capacity": capacity}}]}});
        let metadata = json!({"name": name, "namespace": "ml"});
        let claim: Asked<ResourceClaim> =
            serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap();
        claim.is(&mut facts);
        let template: Asked<ResourceClaimTemplate> =
            serde_json::from_value(json!({"metadata": metadata, "spec": {"spec": spec}})).unwrap();
        template.is(&mut facts);
    }
    facts
}

fn pod(annotations: &Value, limits: &Value, claims: &Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ml", "annotations": annotations},
        "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}], "resourceClaims": claims},
    }))
    .unwrap()
}

fn from_template(name: &str) -> Value {
    json!([{"name": "gpu", "resourceClaimTemplateName": name}])
}

fn by_name(name: &str) -> Value {
    json!([{"name": "gpu", "resourceClaimName": name}])
}

/// A pod, and by which field it does not say how much memory it needs.
fn cases() -> Vec<(Pod, Option<&'static str>)> {
    let none = json!({});
    let no_claims = json!([]);
    let gpus = |annotations: Value| pod(&annotations, &json!({}), &json!([]));
    vec![
        (
            gpus(json!({"muster.dev/gpus": "1"})),
            Some("metadata.annotations[muster.dev/vram]"),
        ),
        (gpus(json!({"muster.dev/vram": "10Gi"})), None),
        (
            gpus(json!({"muster.dev/gpus": "1", "muster.dev/vram": "10Gi"})),
            None,
        ),
        (
            pod(&none, &none, &from_template("silent")),
            Some("spec.resourceClaims[0]"),
        ),
        // Called as the claim of a shorthand, and there is none.
        (
            pod(
                &none,
                &none,
                &json!([{"name": "muster-gpus", "resourceClaimTemplateName": "silent"}]),
            ),
            Some("spec.resourceClaims[0]"),
        ),
        (pod(&none, &none, &from_template("saying")), None),
        (pod(&none, &none, &from_template("not-known-yet")), None),
        (
            pod(&none, &none, &by_name("silent")),
            Some("spec.resourceClaims[0]"),
        ),
        (pod(&none, &none, &by_name("saying")), None),
        (pod(&none, &none, &by_name("not-known-yet")), None),
        (
            pod(&none, &json!({"nvidia.com/gpu": "1"}), &no_claims),
            Some("spec.containers[*].resources.limits[nvidia.com/gpu]"),
        ),
        (
            pod(&none, &json!({"nvidia.com/mig-1g.10gb": "1"}), &no_claims),
            None,
        ),
    ]
}

fn is_about_memory(finding: &Finding) -> bool {
    finding.reason == Reason::VramNotDeclared
}

#[test]
fn a_team_that_requires_it_refuses_pods_that_do_not_say_how_much_memory_they_need() {
    for (pod, field) in cases() {
        let findings = rules().check(&pod, "ml", &facts(VramPolicy::Required));
        let found = findings
            .errors
            .iter()
            .find(|finding| is_about_memory(finding));
        assert_eq!(
            found.map(|found| found.field.as_str()),
            field,
            "{pod:?}: {findings:?}"
        );
        if let Some(found) = found {
            let says = &found.message;
            assert!(
                says.contains("team red requires")
                    && says.ends_with("there are: 15Gi (T4, 1 of them)"),
                "{says}"
            );
        }
    }
}

#[test]
fn a_team_that_says_nothing_about_it_and_a_namespace_of_no_team_let_every_pod_pass() {
    for (pod, _) in cases() {
        for (namespace, policy) in [("ml", VramPolicy::Off), ("other", VramPolicy::Required)] {
            let findings = rules().check(&pod, namespace, &facts(policy));
            assert!(findings.errors.is_empty(), "{pod:?}: {findings:?}");
        }
    }
}

#[test]
fn a_team_with_a_default_gives_it_to_gpus_that_are_counted_and_warns_of_what_it_cannot_change() {
    let facts = facts(VramPolicy::Default);
    for (pod, field) in cases() {
        let findings = rules().check(&pod, "ml", &facts);
        assert!(findings.errors.is_empty(), "{pod:?}: {findings:?}");
        let is_given = field.is_some_and(|field| field.starts_with("metadata"));
        let warned = findings
            .warnings
            .iter()
            .any(|it| it.contains("team red gives 10Gi"));
        assert_eq!(warned, field.is_some() && !is_given, "{findings:?}");

        let mut patched = serde_json::to_value(&pod).unwrap();
        let annotation = |pod: &Value| pod["metadata"]["annotations"]["muster.dev/vram"].clone();
        let before = annotation(&patched);
        json_patch::patch(&mut patched, &rules().patch(&pod, "ml", &facts)).unwrap();
        let expected = if is_given { json!("10Gi") } else { before };
        assert_eq!(annotation(&patched), expected);
        let again: Pod = serde_json::from_value(patched.clone()).unwrap();
        assert!(rules().patch(&again, "ml", &facts).0.is_empty(), "once");
        if is_given {
            let template = &patched["spec"]["resourceClaims"][0]["resourceClaimTemplateName"];
            let template = template.as_str().unwrap();
            assert!(template.starts_with("muster-1-gpu-10gi-"), "{template}");
        }
    }
}

#[test]
fn a_default_that_nobody_can_count_with_is_given_to_nobody() {
    let mut facts = facts(VramPolicy::Default);
    facts.teams.get_mut("red").unwrap().vram_default = Some("40".into());
    let pod = pod(&json!({"muster.dev/gpus": "2"}), &json!({}), &json!([]));
    let mut patched = serde_json::to_value(&pod).unwrap();
    json_patch::patch(&mut patched, &rules().patch(&pod, "ml", &facts)).unwrap();
    let annotations = &patched["metadata"]["annotations"];
    assert_eq!(*annotations, json!({"muster.dev/gpus": "2"}));
    let claims = patched["spec"]["resourceClaims"].as_array().unwrap();
    assert_eq!(claims.len(), 1, "its claim it gets");
}
