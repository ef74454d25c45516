//! What an administrator drains by hand: a node, by a cordon or the taint [`keys::TAINT_DRAIN`], and a device, by a DeviceTaintRule.
//!
//! Nothing new is planned there ([`taints::block`]), as kube-scheduler gives out nothing there, and `auto` quota misses what is free
//! there. What it means to whoever runs there is decided in [`muster_engine::recovery`]; here it is only read. Taints of other keys keep
//! pods away from a node for many reasons, and drain nobody.

use k8s_openapi::api::{
    core::v1::{Node, Toleration},
    resource::v1::DeviceTaintRule,
};
use muster_api::keys;

use crate::{taint_rules, taints, text::quoted};

/// Why a pod with these tolerations is drained from the node, for people; `None`: it is not.
pub fn of_node(node: &Node, tolerations: &[Toleration]) -> Option<String> {
    let mut taints = taints::draining(node);
    if let Some(taint) = taints.find(|taint| !taints::tolerate(tolerations, taint)) {
        return Some(match taint.value.as_deref().unwrap_or_default() {
            "" => format!("is drained (taint {})", keys::TAINT_DRAIN),
            value => format!(
                "is drained (taint {}: {})",
                keys::TAINT_DRAIN,
                quoted(value)
            ),
        });
    }
    taints::is_cordoned(node).then(|| "is cordoned".to_owned())
}

/// Why a device that the rule selects is drained, for people; `None`: the rule selects none, or lets them be given out.
pub fn of_rule(rule: &DeviceTaintRule) -> Option<String> {
    taint_rules::tainted_by(rule)?;
    let taint = &rule.spec.taint;
    // That what it was given to is not released yet drains nobody.
    if taint.key == keys::TAINT_HELD {
        return None;
    }
    let name = rule.metadata.name.as_deref().unwrap_or_default();
    let value = taint.value.as_deref().unwrap_or_default();
    let says = if value.is_empty() {
        taint.key.clone()
    } else {
        format!("{}: {}", taint.key, quoted(value))
    };
    Some(format!("is drained by DeviceTaintRule {name} ({says})"))
}

/// Why this device is drained by the rule, for people; `None`: the rule does not select it, or lets it be given out.
pub fn of_device(rule: &DeviceTaintRule, driver: &str, pool: &str, device: &str) -> Option<String> {
    taint_rules::selects(rule, driver, pool, device)
        .then(|| of_rule(rule))
        .flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_node_is_drained_by_a_cordon_and_by_the_taint_for_it_and_by_no_other() {
        let taint = |key: &str, value: &str, effect: &str| json!({"taints": [{"key": key, "value": value, "effect": effect}]});
        let tolerates = [Toleration {
            operator: Some("Exists".to_owned()),
            ..Toleration::default()
        }];
        for (spec, expected, of_tolerating) in [
            (json!({}), None, None),
            (
                json!({"unschedulable": true}),
                Some("is cordoned"),
                Some("is cordoned"),
            ),
            (
                taint(keys::TAINT_DRAIN, "", "NoSchedule"),
                Some("is drained (taint muster.dev/drain)"),
                None,
            ),
            (
                taint(keys::TAINT_DRAIN, "alice.fan", "NoExecute"),
                Some("is drained (taint muster.dev/drain: \"alice.fan\")"),
                None,
            ),
            (taint(keys::TAINT_DRAIN, "", "PreferNoSchedule"), None, None),
            (taint("nvidia.com/gpu", "", "NoSchedule"), None, None),
        ] {
            let node: Node = serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
            assert_eq!(of_node(&node, &[]).as_deref(), expected, "{spec}");
            let found = of_node(&node, &tolerates);
            assert_eq!(found.as_deref(), of_tolerating, "{spec}");
        }
    }

    #[test]
    fn a_rule_drains_what_it_keeps_from_being_given_out() {
        let rule = |selector: &Value, key: &str, effect: &str| -> DeviceTaintRule {
            serde_json::from_value(json!({
                "metadata": {"name": "swap"},
                "spec": {"deviceSelector": selector, "taint": {"key": key, "value": "bob.xid", "effect": effect}},
            }))
            .unwrap()
        };
        let device = json!({"driver": keys::DRIVER, "pool": "n0", "device": "gpu-0"});
        for (selector, key, effect, is_drained) in [
            (&device, "example.com/swap", "NoSchedule", true),
            (&device, "example.com/swap", "NoExecute", true),
            (&device, "example.com/swap", "None", false),
            (&device, keys::TAINT_HELD, "NoSchedule", false),
            (&Value::Null, "example.com/swap", "NoSchedule", false),
        ] {
            let found = of_rule(&rule(selector, key, effect));
            assert_eq!(found.is_some(), is_drained, "{selector} {key} {effect}");
            if let Some(found) = found {
                assert_eq!(
                    found,
                    "is drained by DeviceTaintRule swap (example.com/swap: \"bob.xid\")"
                );
            }
        }
    }

    #[test]
    fn a_rule_drains_the_devices_that_it_selects_and_no_others() {
        let rule: DeviceTaintRule = serde_json::from_value(json!({
            "metadata": {"name": "swap"},
            "spec": {
                "deviceSelector": {"driver": keys::DRIVER, "pool": "n0"},
                "taint": {"key": "example.com/swap", "effect": "NoSchedule"},
            },
        }))
        .unwrap();
        for (driver, pool, is_drained) in [
            (keys::DRIVER, "n0", true),
            (keys::DRIVER, "n1", false),
            ("nic", "n0", false),
        ] {
            let found = of_device(&rule, driver, pool, "gpu-0");
            assert_eq!(found.is_some(), is_drained, "{driver} {pool}");
        }
    }
}
