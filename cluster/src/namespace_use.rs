//! What namespaces used, as Queues record it: written for people, and read back by the next leader.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use muster_api::{self as api, NamespaceUse, UsedResource};
use muster_engine::{self as engine, Resource};

use crate::quantity::{self, QuantityError};

/// How a Team's fairness among its namespaces is meant. A weight that is not understood is none, and told as a fault.
pub fn policy(
    given: &api::AdmissionFairness,
    faults: &mut Vec<QuantityError>,
) -> engine::AdmissionFairness {
    let mut weight = |given: &api::Quantity, field: String| {
        let read = quantity::billionths(&given.0, &field);
        let weight = read.unwrap_or_else(|fault| {
            faults.push(fault);
            0
        });
        engine::quota::Weight(weight)
    };
    let field = |list: &str, at: usize| format!("spec.admissionFairness.{list}[{at}].weight");
    let resources = given.resource_weights.iter().enumerate();
    let mut resource_weights: std::collections::BTreeMap<_, _> = resources
        .map(|(at, it)| {
            let weight = weight(&it.weight, field("resourceWeights", at));
            (quantity::resource(&it.resource), weight)
        })
        .collect();
    if resource_weights.is_empty() {
        // Bytes of memory beside GPUs would be all that counts.
        resource_weights.insert(Resource::Gpus, engine::quota::Weight::ONE);
    }
    let namespaces = given.namespaces.iter().enumerate();
    let namespace_weights = namespaces
        .map(|(at, it)| {
            let weight = weight(&it.weight, field("namespaces", at));
            (it.name.as_str().into(), weight)
        })
        .collect();
    engine::AdmissionFairness {
        half_life_seconds: given.half_life_seconds.max(1).unsigned_abs(),
        sampling_interval_seconds: given.sampling_interval_seconds.max(1).unsigned_abs(),
        resource_weights,
        namespace_weights,
    }
}

/// As a Queue shows it. `None` if the time is none that can be written.
pub fn written(used: &engine::NamespaceUse) -> Option<NamespaceUse> {
    let resources = used.used.iter().map(|(resource, amount)| UsedResource {
        resource: resource.to_string(),
        amount: quantity::written(counted_as(resource), *amount),
    });
    Some(NamespaceUse {
        used: resources.collect(),
        as_of: Time(Timestamp::from_second(used.as_of.0).ok()?),
    })
}

/// As the engine is told it. What cannot be read counts as nothing: somebody else wrote it.
pub fn read(team: &str, namespace: &str, recorded: &NamespaceUse) -> engine::NamespaceUse {
    let used = recorded.used.iter().filter_map(|used| {
        let resource = quantity::resource(&used.resource);
        let amount = quantity::amount(counted_as(&resource), &used.amount.0, "").ok()?;
        Some((resource, amount))
    });
    engine::NamespaceUse {
        team: team.into(),
        namespace: namespace.into(),
        used: used.collect(),
        as_of: engine::Timestamp(recorded.as_of.0.as_second()),
    }
}

/// Extended resources are recorded in thousandths, as GPUs are.
fn counted_as(resource: &Resource) -> &Resource {
    match resource {
        Resource::Extended(_) => &Resource::Gpus,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use muster_engine::{Amount, quota::Weight};
    use serde_json::json;

    use super::*;

    fn understood(said: serde_json::Value) -> (engine::AdmissionFairness, Vec<QuantityError>) {
        let mut faults = Vec::new();
        let policy = policy(&serde_json::from_value(said).unwrap(), &mut faults);
        (policy, faults)
    }

    #[test]
    fn gpus_alone_count_unless_others_are_named() {
        let (policy, faults) = understood(json!({"halfLifeSeconds": 86_400}));
        assert_eq!(policy.sampling_interval_seconds, 300);
        assert_eq!(
            policy.resource_weights,
            BTreeMap::from([(Resource::Gpus, Weight::ONE)])
        );
        assert_eq!(faults, []);
        let (policy, _) = understood(json!({
            "halfLifeSeconds": 86_400,
            "resourceWeights": [{"resource": "memory", "weight": "125m"}, {"resource": "gpus", "weight": 0}],
            "namespaces": [{"name": "ml", "weight": 2}],
        }));
        let weights = [
            (Resource::Gpus, Weight::ZERO),
            (Resource::Memory, Weight(125_000_000)),
        ];
        assert_eq!(policy.resource_weights, BTreeMap::from(weights));
        assert_eq!(
            policy.namespace_weights,
            BTreeMap::from([("ml".into(), Weight(2_000_000_000))])
        );
    }

    #[test]
    fn a_weight_that_is_not_understood_is_none_and_named_by_its_field() {
        let (policy, faults) = understood(json!({
            "halfLifeSeconds": 86_400,
            "namespaces": [{"name": "ml", "weight": 1}, {"name": "web", "weight": "much"}],
        }));
        assert_eq!(policy.namespace_weights[&"web".into()], Weight::ZERO);
        assert_eq!(faults.len(), 1);
        assert_eq!(
            faults[0].field,
            "spec.admissionFairness.namespaces[1].weight"
        );
    }

    #[test]
    fn what_is_written_is_read_back_and_what_cannot_be_read_counts_as_nothing() {
        let used = engine::NamespaceUse {
            team: "ml".into(),
            namespace: "train".into(),
            used: BTreeMap::from([
                (Resource::Gpus, Amount(1_250)),
                (Resource::Memory, Amount(3 << 30)),
                (Resource::Extended("example.com/link".into()), Amount(700)),
            ]),
            as_of: engine::Timestamp(1_800_000_000),
        };
        let mut shown = written(&used).unwrap();
        assert_eq!(read("ml", "train", &shown), used);
        let amounts: Vec<_> = shown.used.iter().map(|it| it.amount.0.as_str()).collect();
        assert_eq!(amounts, ["1250m", "3Gi", "700m"]);
        shown.used[0].amount = "none".into();
        assert!(
            !read("ml", "train", &shown)
                .used
                .contains_key(&Resource::Gpus)
        );
    }
}
