//! Teams, Cohorts, Flavors and Topologies as the engine's types.
//!
//! A limit that is not understood grants nothing: the resource is left out, so that gangs that need it
//! wait with `NoQuotaForResource`, and the fault is told.

use std::collections::BTreeMap;

use muster_api::{self as api, FlavorQuota, ResourceQuota};
use muster_engine::{
    self as engine,
    quota::{
        AtAPrice, BorrowWithinCohort, FlavorFungibility, FlavorPreference, PreemptionPolicy,
        ReclaimWithinCohort, Sharing, Weight, WithinTeam,
    },
};

use crate::{
    namespace_use,
    quantity::{self, QuantityError},
};

/// A Team for the engine, and what of it is not understood.
pub fn team(team: &api::Team) -> (engine::Team, Vec<QuantityError>) {
    let (quota, mut faults) = quota(&team.spec.quota);
    let team = engine::Team {
        name: name_of(&team.metadata).into(),
        generation: team.metadata.generation.unwrap_or(0),
        cohort: team.spec.cohort.as_deref().map(Into::into),
        quota,
        queueing: match team.spec.queueing {
            api::team::Queueing::BestEffort => engine::Queueing::BestEffort,
            api::team::Queueing::StrictFifo => engine::Queueing::StrictFifo,
        },
        stop: match team.spec.stop {
            api::team::Stop::None => engine::Stop::None,
            api::team::Stop::Hold | api::team::Stop::HoldAndDrain => engine::Stop::Hold,
        },
        shrink: match team.spec.shrink {
            api::team::Shrink::Keep => engine::Shrink::Keep,
            api::team::Shrink::Evict => engine::Shrink::Evict,
        },
        fungibility: fungibility(team.spec.flavor_fungibility),
        preemption: preemption(&team.spec.preemption),
        weight: weight(team.spec.fair_share_weight.as_ref(), &mut faults),
        fairness: team
            .spec
            .admission_fairness
            .as_ref()
            .map(|given| namespace_use::policy(given, &mut faults)),
    };
    (team, faults)
}

/// The weight of a fair share. One that is not understood is none: its owner borrows after all others.
fn weight(given: Option<&api::Quantity>, faults: &mut Vec<QuantityError>) -> Weight {
    let Some(given) = given else {
        return Weight::ONE;
    };
    match quantity::billionths(&given.0, "spec.fairShareWeight") {
        Ok(weight) => Weight(weight),
        Err(fault) => {
            faults.push(fault);
            Weight::ZERO
        }
    }
}

fn preemption(given: &api::team::TeamPreemption) -> PreemptionPolicy {
    use api::team;
    PreemptionPolicy {
        within_team: match given.within_team {
            team::WithinTeam::Never => WithinTeam::Never,
            team::WithinTeam::LowerPriority => WithinTeam::LowerPriority,
            team::WithinTeam::LowerOrNewerEqualPriority => WithinTeam::LowerOrNewerEqualPriority,
        },
        reclaim_within_cohort: match given.reclaim_within_cohort {
            team::ReclaimWithinCohort::Never => ReclaimWithinCohort::Never,
            team::ReclaimWithinCohort::LowerPriority => ReclaimWithinCohort::LowerPriority,
            team::ReclaimWithinCohort::Any => ReclaimWithinCohort::Any,
        },
        borrow_within_cohort: match given.borrow_within_cohort.policy {
            team::BorrowPolicy::Never => BorrowWithinCohort::Never,
            team::BorrowPolicy::LowerPriority => BorrowWithinCohort::LowerPriority {
                highest: given.borrow_within_cohort.max_priority_threshold,
            },
        },
    }
}

fn fungibility(given: api::team::FlavorFungibility) -> FlavorFungibility {
    let at_a_price = |given| match given {
        api::team::AtAPrice::MayStopSearch => AtAPrice::MayStopSearch,
        api::team::AtAPrice::TryNextFlavor => AtAPrice::TryNextFlavor,
    };
    let preference = given.preference.map(|given| match given {
        api::team::FlavorPreference::BorrowingOverPreemption => {
            FlavorPreference::BorrowingOverPreemption
        }
        api::team::FlavorPreference::PreemptionOverBorrowing => {
            FlavorPreference::PreemptionOverBorrowing
        }
    });
    FlavorFungibility {
        when_can_borrow: at_a_price(given.when_can_borrow),
        when_can_preempt: at_a_price(given.when_can_preempt),
        preference: preference.unwrap_or_default(),
    }
}

/// A Cohort for the engine, and what of it is not understood.
pub fn cohort(cohort: &api::Cohort) -> (engine::Cohort, Vec<QuantityError>) {
    let (quota, mut faults) = quota(&cohort.spec.quota);
    let cohort = engine::Cohort {
        name: name_of(&cohort.metadata).into(),
        parent: cohort.spec.parent.as_deref().map(Into::into),
        quota,
        weight: weight(cohort.spec.fair_share_weight.as_ref(), &mut faults),
        sharing: match cohort.spec.sharing {
            api::Sharing::Classical => Sharing::ByPriority,
            api::Sharing::Fair => Sharing::FAIR,
        },
    };
    (cohort, faults)
}

/// A Flavor for the engine. Which devices it counts is told with the devices.
pub fn flavor(flavor: &api::Flavor) -> engine::Flavor {
    engine::Flavor {
        name: name_of(&flavor.metadata).into(),
        topology: flavor.spec.topology.as_deref().map(Into::into),
        excluded: std::collections::BTreeSet::new(),
    }
}

/// A Topology for the engine. Where nodes stand in it is told with the nodes.
pub fn topology(topology: &api::Topology) -> engine::Topology {
    let levels = topology.spec.fabric.iter();
    engine::Topology {
        name: name_of(&topology.metadata).into(),
        levels: levels.map(|level| level.name.as_str().into()).collect(),
    }
}

fn quota(given: &[FlavorQuota]) -> (engine::model::Quota, Vec<QuantityError>) {
    let mut faults = Vec::new();
    let quota = given
        .iter()
        .enumerate()
        .map(|(index, flavor)| {
            let mut limits = BTreeMap::new();
            for (position, resource) in flavor.resources.iter().enumerate() {
                let path = format!("spec.quota[{index}].resources[{position}]");
                match limit(resource, &path) {
                    Ok(limit) => {
                        limits.insert(quantity::resource(&resource.name), limit);
                    }
                    Err(fault) => faults.push(fault),
                }
            }
            (flavor.flavor.as_str().into(), limits)
        })
        .collect();
    (quota, faults)
}

fn limit(given: &ResourceQuota, path: &str) -> Result<engine::QuotaLimit, QuantityError> {
    let resource = quantity::resource(&given.name);
    let read = |quantity: &api::Quantity, field: &str| {
        quantity::amount(&resource, &quantity.0, &format!("{path}.{field}"))
    };
    let optional = |quantity: &Option<api::Quantity>, field: &str| {
        quantity
            .as_ref()
            .map(|quantity| read(quantity, field))
            .transpose()
    };
    // Without a nominal amount it is none; the schema lets none but an automatic one be without.
    Ok(engine::QuotaLimit {
        nominal: optional(&given.nominal, "nominal")?.unwrap_or_default(),
        automatic: given.auto,
        borrowing_limit: optional(&given.borrowing_limit, "borrowingLimit")?,
        lending_limit: optional(&given.lending_limit, "lendingLimit")?,
    })
}

fn name_of(metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> &str {
    metadata.name.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_nominal_quota_is_a_number_or_follows_the_inventory() {
        for (said, nominal, automatic) in [
            (json!({"name": "gpus", "nominal": 4}), 4_000, false),
            (json!({"name": "gpus", "auto": true}), 0, true),
        ] {
            let mut object = crate::testing::team("vision");
            object["spec"]["quota"][0]["resources"] = json!([said]);
            let object: api::Team = serde_json::from_value(object).expect("it is a Team");
            let limit = team(&object).0.quota[0].1[&engine::Resource::Gpus];
            let told = (limit.nominal, limit.automatic);
            assert_eq!(told, (engine::Amount(nominal), automatic));
        }
    }

    #[test]
    fn the_weight_of_a_fair_share_is_exact_and_without_one_it_is_one() {
        for (said, expected) in [
            (None, Weight::ONE),
            (Some(json!(1)), Weight::ONE),
            (Some(json!("0")), Weight::ZERO),
            (Some(json!("500m")), Weight(500_000_000)),
            (Some(json!("2.5")), Weight(2_500_000_000)),
            (Some(json!("9223372036")), Weight(9_223_372_036_000_000_000)),
        ] {
            let mut object = crate::testing::team("vision");
            let mut above = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "Cohort",
                "metadata": {"name": "all"}, "spec": {}});
            if let Some(said) = &said {
                object["spec"]["fairShareWeight"] = said.clone();
                above["spec"]["fairShareWeight"] = said.clone();
            }
            let object: api::Team = serde_json::from_value(object).expect("it is a Team");
            let above: api::Cohort = serde_json::from_value(above).expect("it is a Cohort");
            assert_eq!(team(&object).0.weight, expected, "{said:?}");
            assert_eq!(cohort(&above).0.weight, expected, "{said:?}");
        }
    }

    #[test]
    fn a_weight_beyond_what_can_be_counted_is_told_and_borrows_last() {
        let mut object = crate::testing::team("vision");
        object["spec"]["fairShareWeight"] = json!("9223372037");
        let object: api::Team = serde_json::from_value(object).expect("it is a Team");
        let (read, faults) = team(&object);
        assert_eq!(read.weight, Weight::ZERO);
        assert_eq!(faults.len(), 1);
        assert_eq!(faults[0].field, "spec.fairShareWeight");
    }

    #[test]
    fn how_a_tree_shares_is_told_to_the_engine() {
        for (said, expected) in [
            (json!({}), Sharing::ByPriority),
            (json!({"sharing": "Classical"}), Sharing::ByPriority),
            (json!({"sharing": "Fair"}), Sharing::FAIR),
        ] {
            let object = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "Cohort",
                "metadata": {"name": "all"}, "spec": said});
            let object: api::Cohort = serde_json::from_value(object).expect("it is a Cohort");
            assert_eq!(cohort(&object).0.sharing, expected);
        }
    }

    fn fungibility_of(said: Option<&Value>) -> FlavorFungibility {
        let mut object = crate::testing::team("vision");
        if let Some(said) = said {
            object["spec"]["flavorFungibility"] = said.clone();
        }
        let object: api::Team = serde_json::from_value(object).expect("it is a Team");
        team(&object).0.fungibility
    }

    #[test]
    fn each_word_about_the_choice_of_a_flavor_is_told_to_the_engine() {
        let default = FlavorFungibility::default();
        assert_eq!(fungibility_of(None), default);
        for (said, expected) in [
            (json!({}), default),
            (
                json!({"whenCanBorrow": "TryNextFlavor"}),
                FlavorFungibility {
                    when_can_borrow: AtAPrice::TryNextFlavor,
                    ..default
                },
            ),
            (
                json!({"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "MayStopSearch"}),
                FlavorFungibility {
                    when_can_preempt: AtAPrice::MayStopSearch,
                    ..default
                },
            ),
            (
                json!({
                    "whenCanBorrow": "TryNextFlavor",
                    "whenCanPreempt": "TryNextFlavor",
                    "preference": "PreemptionOverBorrowing",
                }),
                FlavorFungibility {
                    when_can_borrow: AtAPrice::TryNextFlavor,
                    when_can_preempt: AtAPrice::TryNextFlavor,
                    preference: FlavorPreference::PreemptionOverBorrowing,
                },
            ),
        ] {
            assert_eq!(fungibility_of(Some(&said)), expected, "{said}");
        }
    }
}
