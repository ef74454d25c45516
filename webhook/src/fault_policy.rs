//! FaultPolicies: what the drivers would leave out is refused.

use muster_api::{FaultPolicy, Reason};
use muster_cluster::{
    fault_policy::{NAME, read},
    text::quoted,
};

use crate::finding::Findings;

/// Checks a FaultPolicy. `before`: as it was, on an update. What stood there already is not refused any more: the object could not be
/// labelled, nor deleted in the foreground.
pub fn check(policy: &FaultPolicy, before: Option<&FaultPolicy>) -> Findings {
    let mut findings = Findings::default();
    if before.is_some_and(|before| before.spec == policy.spec) {
        return findings;
    }
    let name = policy.metadata.name.as_deref().unwrap_or_default();
    if name != NAME {
        findings.error(
            Reason::InvalidValue,
            "metadata.name",
            format!(
                "{}: the drivers read the FaultPolicy {NAME} and no other",
                quoted(name)
            ),
        );
    }
    for invalid in read(&policy.spec).invalid {
        findings.error(Reason::InvalidValue, invalid.field, invalid.why);
    }
    findings
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn policy(name: &str, rules: &Value) -> FaultPolicy {
        let policy = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "FaultPolicy", "metadata": {"name": name},
            "spec": {"rules": rules}});
        serde_json::from_value(policy).unwrap()
    }

    #[test]
    fn what_a_driver_would_leave_out_is_refused_with_its_field() {
        let good = json!([{"xid": 109, "class": "App"}]);
        let bad = json!([{"xid": 109, "class": "App"}, {"xid": 48, "class": "Harmless"}]);
        for (name, rules, field) in [
            ("cluster", &good, None),
            ("default", &good, Some("metadata.name")),
            ("cluster", &bad, Some("spec.rules[1].class")),
        ] {
            let findings = check(&policy(name, rules), None);
            let fields: Vec<&str> = findings.errors.iter().map(|it| it.field.as_str()).collect();
            assert_eq!(fields, Vec::from_iter(field), "{name} {rules}");
        }
        // As it stood before it is refused no more.
        let stood = policy("cluster", &bad);
        assert_eq!(check(&stood, Some(&stood)), Findings::default());
        let changed = policy("cluster", &json!([{"xid": 48, "class": "Harmless"}]));
        assert_eq!(check(&changed, Some(&stood)).errors.len(), 1);
    }
}
