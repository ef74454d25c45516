//! The quota tree of a case: ClusterQueues and Cohorts as Kueue writes them, as Teams and Cohorts.

use std::collections::BTreeMap;

use anyhow::Context;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use muster_cluster::quantity;
use muster_engine::{
    Amount, Cohort, CohortName, FlavorResource, QuotaLimit, Resource, ResourceCharge, Shrink, Stop,
    Team, TeamName,
    model::Quota,
    quota::{
        self, BorrowWithinCohort, FlavorFungibility, FlavorPreference, PreemptionPolicy, QuotaTree,
        ReclaimWithinCohort, Sharing, Weight, WithinTeam,
    },
};
use serde::Deserialize;

use super::nodes::Constraints;

/// A ClusterQueue, or a Cohort: what both have.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Queue {
    pub(super) name: String,
    cohort: Option<String>,
    parent: Option<String>,
    pub(super) resource_groups: Vec<Vec<FlavorQuota>>,
    pub(super) flavor_fungibility: Fungibility,
    preemption: Option<Preemption>,
    fair_weight: Option<Quantity>,
    pub(super) queueing_strategy: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct FlavorQuota {
    pub(super) flavor: String,
    #[serde(default)]
    pub(super) resources: BTreeMap<String, ResourceQuota>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ResourceQuota {
    nominal: String,
    borrowing_limit: Option<String>,
    lending_limit: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Fungibility {
    when_can_borrow: Option<AtAPrice>,
    when_can_preempt: Option<AtAPrice>,
    preference: Option<Preference>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
enum AtAPrice {
    MayStopSearch,
    TryNextFlavor,
}

#[derive(Clone, Copy, Debug, Deserialize)]
enum Preference {
    BorrowingOverPreemption,
    PreemptionOverBorrowing,
}

impl Fungibility {
    pub(super) fn policy(self) -> FlavorFungibility {
        let default = FlavorFungibility::default();
        let at_a_price = |given| match given {
            AtAPrice::MayStopSearch => quota::AtAPrice::MayStopSearch,
            AtAPrice::TryNextFlavor => quota::AtAPrice::TryNextFlavor,
        };
        let preference = self.preference.map(|given| match given {
            Preference::BorrowingOverPreemption => FlavorPreference::BorrowingOverPreemption,
            Preference::PreemptionOverBorrowing => FlavorPreference::PreemptionOverBorrowing,
        });
        FlavorFungibility {
            when_can_borrow: self
                .when_can_borrow
                .map_or(default.when_can_borrow, at_a_price),
            when_can_preempt: self
                .when_can_preempt
                .map_or(default.when_can_preempt, at_a_price),
            preference: preference.unwrap_or(default.preference),
        }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Preemption {
    within_cluster_queue: Within,
    /// Where a queue says something of preemption but not this, Kueue's tests leave it empty, which Kueue takes neither for `Never`
    /// nor for `Any`.
    reclaim_within_cohort: Option<Reclaim>,
    borrow_within_cohort: Borrow,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
enum Within {
    #[default]
    Never,
    LowerPriority,
    LowerOrNewerEqualPriority,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
enum Reclaim {
    #[default]
    Never,
    LowerPriority,
    Any,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Borrow {
    policy: BorrowPolicy,
    max_priority_threshold: Option<i32>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
enum BorrowPolicy {
    #[default]
    Never,
    LowerPriority,
}

impl Preemption {
    fn policy(&self) -> PreemptionPolicy {
        PreemptionPolicy {
            within_team: match self.within_cluster_queue {
                Within::Never => WithinTeam::Never,
                Within::LowerPriority => WithinTeam::LowerPriority,
                Within::LowerOrNewerEqualPriority => WithinTeam::LowerOrNewerEqualPriority,
            },
            reclaim_within_cohort: match self
                .reclaim_within_cohort
                .unwrap_or(Reclaim::LowerPriority)
            {
                Reclaim::Never => ReclaimWithinCohort::Never,
                Reclaim::LowerPriority => ReclaimWithinCohort::LowerPriority,
                Reclaim::Any => ReclaimWithinCohort::Any,
            },
            borrow_within_cohort: match self.borrow_within_cohort.policy {
                BorrowPolicy::Never => BorrowWithinCohort::Never,
                BorrowPolicy::LowerPriority => BorrowWithinCohort::LowerPriority {
                    highest: self.borrow_within_cohort.max_priority_threshold,
                },
            },
        }
    }
}

impl Queue {
    fn quota(&self) -> anyhow::Result<Quota> {
        let flavors = self.resource_groups.iter().flatten();
        flavors
            .map(|flavor| {
                let limits = flavor.resources.iter().map(|(name, limit)| {
                    let resource = resource(name);
                    let read = |text: &String| amount(&resource, text);
                    let limits = QuotaLimit {
                        nominal: read(&limit.nominal)?,
                        borrowing_limit: limit.borrowing_limit.as_ref().map(read).transpose()?,
                        lending_limit: limit.lending_limit.as_ref().map(read).transpose()?,
                        automatic: false,
                    };
                    Ok((resource, limits))
                });
                let limits = limits.collect::<anyhow::Result<_>>()?;
                Ok((flavor.flavor.as_str().into(), limits))
            })
            .collect()
    }

    /// In billionths, which is as fine as Kubernetes writes quantities.
    fn weight(&self) -> anyhow::Result<Weight> {
        let Some(Quantity(text)) = &self.fair_weight else {
            return Ok(Weight::ONE);
        };
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let fraction = format!("{fraction:0<9}");
        let billionths = whole.parse::<u64>().ok().zip(fraction.parse::<u64>().ok());
        billionths
            .and_then(|(whole, fraction)| whole.checked_mul(Weight::ONE.0)?.checked_add(fraction))
            .map(Weight)
            .with_context(|| format!("the weight {text:?} is no decimal number"))
    }

    /// The Flavors that it names.
    pub(super) fn flavors(&self) -> impl Iterator<Item = &str> {
        let flavors = self.resource_groups.iter().flatten();
        flavors.map(|flavor| flavor.flavor.as_str())
    }

    pub(super) fn team(&self) -> anyhow::Result<Team> {
        Ok(Team {
            name: self.name.as_str().into(),
            generation: 1,
            cohort: self.cohort.as_deref().map(CohortName::from),
            quota: self.quota()?,
            queueing: self.queueing(),
            stop: Stop::None,
            shrink: Shrink::Keep,
            fungibility: self.flavor_fungibility.policy(),
            preemption: self
                .preemption
                .as_ref()
                .map_or(PreemptionPolicy::NEVER, Preemption::policy),
            weight: self.weight()?,
            fairness: None,
        })
    }

    /// The Cohort above.
    pub(super) fn above(&self) -> Option<&str> {
        self.cohort.as_deref().or(self.parent.as_deref())
    }

    pub(super) fn cohort(&self) -> anyhow::Result<Cohort> {
        Ok(Cohort {
            name: self.name.as_str().into(),
            parent: self.parent.as_deref().map(CohortName::from),
            quota: self.quota()?,
            weight: self.weight()?,
            sharing: Sharing::ByPriority,
        })
    }
}

/// Equal pods of a workload.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodSet {
    #[serde(default)]
    pub(super) name: String,
    #[serde(default = "one")]
    pub(super) count: i64,
    /// With how many of them its workload may start at the least, if not with all only.
    #[serde(default)]
    pub(super) min_count: Option<i64>,
    /// Of each pod.
    #[serde(default)]
    pub(super) requests: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) constraints: Constraints,
    /// What else Go's builders say of its pods.
    #[serde(default)]
    pub(super) other: Constraints,
}

fn one() -> i64 {
    1
}

impl PodSet {
    pub(super) fn of_one_pod(requests: BTreeMap<String, String>, other: Constraints) -> Self {
        Self {
            name: String::new(),
            count: 1,
            min_count: None,
            requests,
            constraints: Constraints::default(),
            other,
        }
    }

    /// What its pods say about nodes.
    pub(super) fn about_nodes(&self) -> Constraints {
        let other = self.other.about_nodes();
        self.constraints.clone().and(other)
    }

    /// Whether its pods ask for more of something than their own limit. No API server takes in such a pod.
    pub(super) fn exceeds_its_limits(&self) -> anyhow::Result<bool> {
        for (name, text) in self.other.limits()? {
            let resource = resource(&name);
            let limit = amount(&resource, &text)?;
            let asked = self.requests.get(&name);
            let asked = asked.map(|text| amount(&resource, text)).transpose()?;
            if asked.is_some_and(|asked| asked > limit) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The tree of these queues, with what is charged to them.
pub(super) fn tree<'a>(
    queues: impl IntoIterator<Item = &'a Queue>,
    cohorts: &[Queue],
    charges: &[(TeamName, ResourceCharge)],
) -> anyhow::Result<QuotaTree> {
    let mut teams = BTreeMap::new();
    for queue in queues {
        let team = queue.team()?;
        teams.insert(team.name.clone(), team);
    }
    let mut inner = BTreeMap::new();
    for cohort in cohorts {
        let cohort = cohort.cohort()?;
        inner.insert(cohort.name.clone(), cohort);
    }
    let charges = charges.iter();
    let usage = charges.map(|(team, charge)| (team, &charge.of, i128::from(charge.amount.0)));
    Ok(QuotaTree::new(&teams, &inner, usage))
}

/// A resource of these files. None of them means what Muster calls `gpus` or `vram`.
pub(super) fn resource(name: &str) -> Resource {
    match name {
        "cpu" => Resource::Cpu,
        "memory" => Resource::Memory,
        other => Resource::Extended(other.into()),
    }
}

/// A Kubernetes quantity, in the unit of its resource.
pub(super) fn amount(resource: &Resource, text: &str) -> anyhow::Result<Amount> {
    Ok(quantity::amount(resource, text, "quantity")?)
}

/// What is charged of a Flavor.
pub(super) fn charge(flavor: &str, name: &str, text: &str) -> anyhow::Result<ResourceCharge> {
    let resource = resource(name);
    let amount = amount(&resource, text)?;
    Ok(ResourceCharge::new(flavor.into(), resource, amount))
}

/// Amounts in base units, by `flavor/resource`.
pub(super) type BaseUnits = BTreeMap<String, i64>;

/// Reads [`BaseUnits`].
pub(super) fn base_units(amounts: &BaseUnits) -> anyhow::Result<Vec<(FlavorResource, Amount)>> {
    let amounts = amounts.iter();
    amounts
        .map(|(key, amount)| {
            let (flavor, name) = key
                .split_once('/')
                .with_context(|| format!("{key:?} is no flavor/resource"))?;
            let of = FlavorResource {
                flavor: flavor.into(),
                resource: resource(name),
            };
            Ok((of, Amount(*amount)))
        })
        .collect()
}

/// The same amounts, as charges of a Team.
pub(super) fn charges_of(
    team: &str,
    amounts: &BaseUnits,
) -> anyhow::Result<Vec<(TeamName, ResourceCharge)>> {
    let amounts = base_units(amounts)?.into_iter();
    let charges = amounts.map(|(of, amount)| (team.into(), ResourceCharge { of, amount }));
    Ok(charges.collect())
}
