//! What pods ask for of device plugins: `nvidia.com/gpu` and the like in `resources.limits`.
//!
//! Whether a Flavor counts it, and whether the Team has quota of that, is not asked: that queues, with its reason. Refused is what
//! could never be planned.

use k8s_openapi::api::core::v1::Pod;
use muster_api::Reason;
use muster_cluster::{device_plugin, managed::ManagedPods, pod_resources};

use crate::{declared::Declared, finding::Findings};

/// Checks a pod that is being created.
pub fn check(pod: &Pod, declared: &Declared<'_>, managed: &ManagedPods, findings: &mut Findings) {
    // What cannot be read the API server refuses itself.
    let Ok(resources) = pod_resources::of_pod(pod) else {
        return;
    };
    let asked: Vec<_> = device_plugin::asked(&resources, managed).collect();
    let has_shorthand = matches!(declared.shorthand(), Ok(Some(_)));
    if let Err(error) = device_plugin::check(&asked, has_shorthand) {
        let field = format!("spec.containers[*].{}", error.field);
        findings.error(Reason::RequestNotUnderstood, field, error.why);
        return;
    }
    let spec = pod.spec.as_ref();
    let claims = spec.and_then(|spec| spec.resource_claims.as_ref());
    if let (Some((resource, _)), Some([_, ..])) = (asked.first(), claims.map(Vec::as_slice)) {
        findings.warn(format!(
            "spec.resourceClaims: beside resources.limits[{resource}] they may be for devices only that nobody is charged for, such as \
             network cards; else the pod waits"
        ));
    }
}

/// The resources of device plugins, and of DeviceClasses, that a pod asks for.
pub fn resources(pod: &Pod, managed: &ManagedPods) -> Vec<String> {
    let Ok(resources) = pod_resources::of_pod(pod) else {
        return Vec::new();
    };
    let asked = device_plugin::asked(&resources, managed);
    asked.map(|(name, _)| name.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// What is found of a pod with these limits in its containers, annotations and claims: the reasons for which it is refused, and
    /// how many warnings there are.
    fn found(
        limits: &[Value],
        annotations: &Value,
        claims: &Value,
    ) -> (Vec<(Reason, String)>, usize) {
        let containers = limits
            .iter()
            .enumerate()
            .map(|(at, limits)| json!({"name": format!("c{at}"), "resources": {"limits": limits}}));
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "annotations": annotations},
            "spec": {"containers": containers.collect::<Vec<_>>(), "resourceClaims": claims},
        }))
        .unwrap();
        let managed = ManagedPods::new(["nvidia.com/gpu", "nvidia.com/mig-*"]).unwrap();
        let mut findings = Findings::default();
        let declared = Declared::at("metadata", &pod.metadata);
        check(&pod, &declared, &managed, &mut findings);
        let errors = findings.errors.into_iter();
        let errors = errors.map(|error| (error.reason, error.message));
        (errors.collect(), findings.warnings.len())
    }

    #[test]
    fn limits_alone_are_let_pass_and_what_could_never_be_planned_is_refused() {
        let gpus = |count: &str| json!({"nvidia.com/gpu": count});
        let claims = json!([{"name": "nic", "resourceClaimTemplateName": "nic"}]);
        let table = [
            (vec![gpus("8")], json!({}), json!([]), None, 0),
            (vec![gpus("32")], json!({}), json!([]), None, 0),
            (vec![gpus("16"), gpus("16")], json!({}), json!([]), None, 0),
            (
                vec![gpus("16"), gpus("17")],
                json!({}),
                json!([]),
                Some("is 33; a pod gets at most 32"),
                0,
            ),
            (
                vec![gpus("1"), json!({"nvidia.com/mig-1g.10gb": "1"})],
                json!({}),
                json!([]),
                Some("is asked for beside nvidia.com/mig-1g.10gb"),
                0,
            ),
            (
                vec![gpus("1")],
                json!({"muster.dev/gpus": "1"}),
                json!([]),
                Some("is asked for beside ResourceClaims"),
                0,
            ),
            (vec![gpus("1")], json!({}), claims.clone(), None, 1),
            (vec![gpus("0")], json!({}), claims.clone(), None, 0),
            (vec![json!({"cpu": "1"})], json!({}), claims, None, 0),
        ];
        for (limits, annotations, claims, refused, warnings) in table {
            let (errors, warned) = found(&limits, &annotations, &claims);
            assert_eq!(warned, warnings, "{limits:?}");
            match (errors.as_slice(), refused) {
                ([], None) => {}
                ([(Reason::RequestNotUnderstood, message)], Some(why)) => {
                    assert!(message.contains(why), "{message}");
                }
                (errors, refused) => panic!("{limits:?}: {errors:?} instead of {refused:?}"),
            }
        }
    }
}
