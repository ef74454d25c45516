//! Flavors: which devices a quota counts. An expression that does not parse would count nothing, and an overlap would give the same
//! devices out twice.

use muster_api::{Flavor, Reason};
use muster_cluster::{
    device_plugin,
    flavor::{Counts, Scope},
    managed::ManagedPods,
    text::quoted,
};

use crate::{
    cache::Cache,
    finding::{Findings, listed},
};

/// Checks a Flavor. `before`: as it was, on an update. What stood there already is not refused any more: the Flavor could
/// not be labelled, nor deleted in the foreground.
///
/// What devices there are is not asked: a Flavor may be there before its nodes. Whether two Flavors count the same devices goes by
/// their specs alone, so no warning does not mean no overlap; the controller counts it (`status.overlaps`).
pub fn check(
    flavor: &Flavor,
    before: Option<&Flavor>,
    managed: &ManagedPods,
    facts: &Cache,
) -> Findings {
    let mut findings = Findings::default();
    let scope = Scope::of(&flavor.spec);
    if let Counts::Resource(resource) = scope.counts
        && before.is_none_or(|before| Scope::of(&before.spec).counts != scope.counts)
        && !managed.stands_for_devices(resource)
    {
        findings.error(
            Reason::InvalidValue,
            "spec.extendedResource",
            device_plugin::unmanaged(resource),
        );
        return findings;
    }
    if before.is_none_or(|before| Scope::of(&before.spec).selector() != scope.selector())
        && let Err(cause) = scope.check_selector()
    {
        findings.error(
            Reason::InvalidValue,
            "spec.devices.selector",
            format!(
                "{} {cause}; write a CEL expression over device, as in a DeviceClass: \
                 device.attributes['gpu.muster.dev'].productName == 'H100'",
                quoted(scope.selector().unwrap_or_default())
            ),
        );
        return findings;
    }
    let name = flavor.metadata.name.as_deref().unwrap_or_default();
    let others = facts.flavors.iter().filter(|(other, _)| *other != name);
    let overlapping = others.filter(|(_, spec)| {
        let other = Scope::of(spec);
        scope.covers(&other) || other.covers(&scope)
    });
    let overlapping: Vec<&str> = overlapping.map(|(other, _)| other.as_str()).collect();
    if !overlapping.is_empty() {
        findings.warn(format!(
            "spec: devices of this Flavor count as of {} as well; quota of both gives them out twice",
            listed(overlapping)
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn found(flavor: &Flavor, before: Option<&Flavor>, facts: &Cache) -> Findings {
        let managed = ManagedPods::new(["nvidia.com/gpu", "nvidia.com/mig-*"]).unwrap();
        check(flavor, before, &managed, facts)
    }

    fn flavor(name: &str, spec: &Value) -> Flavor {
        let flavor = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "Flavor", "metadata": {"name": name},
            "spec": spec});
        serde_json::from_value(flavor).unwrap()
    }

    fn selecting(selector: &str) -> Value {
        json!({"devices": {"driver": "gpu.muster.dev", "selector": selector}})
    }

    #[test]
    fn a_selector_that_could_not_be_evaluated_is_refused_with_its_cause_and_what_would_work() {
        let long = format!("true // {}", "x".repeat(10_240));
        let deep = format!("{}true{}", "(".repeat(5_000), ")".repeat(5_000));
        for (selector, cause) in [
            ("device.driver == 'gpu.muster.dev'", None),
            (
                "device.attributes['gpu.muster.dev'].productName == 'H100'",
                None,
            ),
            ("device.driver ==", Some("")),
            (&long, Some("an expression has at most 10240")),
            (&deep, Some("")),
            (
                "lists.range(9000000000).size() > 0",
                Some("which selectors cannot use"),
            ),
        ] {
            let flavor = flavor("h100", &selecting(selector));
            let findings = found(&flavor, None, &Cache::default());
            assert_eq!(findings.errors.is_empty(), cause.is_none(), "{findings:?}");
            for error in &findings.errors {
                assert_eq!(error.reason, Reason::InvalidValue);
                assert_eq!(error.field, "spec.devices.selector");
                assert!(error.message.contains(cause.unwrap()), "{error:?}");
                assert!(error.message.contains("CEL expression over device"));
            }
        }
    }

    #[test]
    fn a_selector_that_stood_before_is_refused_no_more_so_that_the_flavor_can_be_labelled_and_deleted()
     {
        let bad = flavor("h100", &selecting("device.driver =="));
        let mut labelled = bad.clone();
        labelled.metadata.labels = Some([("x".into(), "y".into())].into());
        let is_refused = |before: Option<&Flavor>| {
            let findings = found(&labelled, before, &Cache::default());
            !findings.errors.is_empty()
        };
        assert!(is_refused(None) && is_refused(Some(&flavor("h100", &json!({})))));
        assert!(!is_refused(Some(&bad)));
    }

    #[test]
    fn a_resource_that_the_installation_does_not_manage_is_refused_with_what_would_help() {
        let counting = |resource: &str| flavor("plugin", &json!({"extendedResource": resource}));
        for (resource, is_managed) in [
            ("nvidia.com/gpu", true),
            ("nvidia.com/mig-1g.10gb", true),
            ("nvidia.com/gpu.shared", false),
            ("amd.com/gpu", false),
        ] {
            let findings = found(&counting(resource), None, &Cache::default());
            assert_eq!(findings.errors.is_empty(), is_managed, "{findings:?}");
            for error in &findings.errors {
                assert_eq!(error.reason, Reason::InvalidValue);
                assert_eq!(error.field, "spec.extendedResource");
                assert!(error.message.contains("managedResources"), "{error:?}");
            }
        }
        // As it stood before it is refused no more.
        let amd = counting("amd.com/gpu");
        assert!(found(&amd, Some(&amd), &Cache::default()).errors.is_empty());
        let other = counting("intel.com/gpu");
        assert!(
            !found(&amd, Some(&other), &Cache::default())
                .errors
                .is_empty()
        );
    }

    #[test]
    fn a_flavor_that_counts_devices_of_another_one_is_allowed_with_a_warning_that_names_it() {
        let h100 = || selecting("device.attributes['gpu.muster.dev'].productName == 'H100'");
        let on = |mut spec: Value, labels: Value| {
            spec["nodeSelector"] = labels;
            spec
        };
        let pool = |name: &str| json!({"pool": name});
        let other_driver = json!({"devices": {"driver": "gpu.example.com"}});
        for (spec, other, overlaps) in [
            (json!({}), json!({}), true),
            (
                json!({}),
                json!({"devices": {"driver": "gpu.muster.dev"}}),
                true,
            ),
            (json!({}), json!({"topology": "fabric"}), true),
            (json!({}), h100(), true),
            (h100(), json!({}), true),
            (h100(), h100(), true),
            (
                h100(),
                selecting("device.driver == 'gpu.muster.dev'"),
                false,
            ),
            (json!({}), other_driver, false),
            (
                json!({"extendedResource": "nvidia.com/gpu"}),
                json!({}),
                false,
            ),
            (
                json!({"extendedResource": "nvidia.com/gpu"}),
                json!({"extendedResource": "nvidia.com/mig-1g.10gb"}),
                false,
            ),
            (
                on(json!({"extendedResource": "nvidia.com/gpu"}), pool("a")),
                json!({"extendedResource": "nvidia.com/gpu"}),
                true,
            ),
            (on(json!({}), pool("a")), json!({}), true),
            (on(json!({}), pool("a")), on(json!({}), pool("a")), true),
            (on(json!({}), pool("a")), on(json!({}), pool("b")), false),
            (
                on(json!({}), pool("a")),
                on(json!({}), json!({"zone": "1"})),
                false,
            ),
        ] {
            let facts = Cache {
                flavors: [("other".to_owned(), flavor("other", &other).spec)].into(),
                ..Cache::default()
            };
            let findings = found(&flavor("h100", &spec), None, &facts);
            assert!(findings.errors.is_empty());
            let warned = findings
                .warnings
                .iter()
                .any(|it| it.contains("count as of other"));
            assert_eq!(warned, overlaps, "{spec} and {other}: {findings:?}");
            // As it is known already, it is no other one.
            let itself = found(&flavor("other", &spec), None, &facts);
            assert_eq!(itself, Findings::default());
        }
    }
}
