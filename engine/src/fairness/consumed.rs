//! Used amounts, in fixed point.

use std::collections::{BTreeMap, BTreeSet};

use super::{AdmissionFairness, Held, Part, WeightedUse};
use crate::{
    amount::{Amount, Resource},
    names::NamespaceName,
    quota::Weight,
};

/// Binary digits behind the point.
const FRACTION_BITS: u32 = 32;

/// Less than this counts as nothing.
const NEGLIGIBLE: u128 = 1 << (FRACTION_BITS - 10);

/// Amounts by resource, in units of 2^-32 of what an [`Amount`] of the resource counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Consumed(BTreeMap<Resource, u128>);

impl Consumed {
    /// A part of what is held, rounded down. What does not count is left out.
    pub(crate) fn part_of(held: &Held, part: Part, policy: &AdmissionFairness) -> Self {
        let counted = held.iter().filter(|(resource, _)| counts(policy, resource));
        let counted = counted.map(|(resource, amount)| {
            // More than 64 bits of anything are as good as 64 bits.
            let amount = u64::try_from((*amount).max(0)).unwrap_or(u64::MAX);
            let amount = u128::from(amount) << FRACTION_BITS;
            (resource.clone(), part.of(amount))
        });
        Self(counted.filter(|(_, amount)| *amount > 0).collect())
    }

    /// What counts after a time of which so much is left, with this held meanwhile.
    pub(crate) fn decayed(&self, left: Part, held: &Held, policy: &AdmissionFairness) -> Self {
        let mut decayed = Self::part_of(held, left.rest(), policy);
        for (resource, amount) in &self.0 {
            let kept = left.of(*amount);
            if counts(policy, resource) && kept > 0 {
                decayed.add_one(resource, kept);
            }
        }
        decayed.0.retain(|_, amount| *amount >= NEGLIGIBLE);
        decayed
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (resource, amount) in &other.0 {
            self.add_one(resource, *amount);
        }
    }

    fn add_one(&mut self, resource: &Resource, amount: u128) {
        let known = self.0.entry(resource.clone()).or_default();
        *known = known.saturating_add(amount);
    }

    /// Takes back what was added.
    pub(crate) fn subtract(&mut self, other: &Self) {
        for (resource, amount) in &other.0 {
            if let Some(known) = self.0.get_mut(resource) {
                *known = known.saturating_sub(*amount);
            }
        }
        self.0.retain(|_, amount| *amount > 0);
    }

    /// Only these resources.
    pub(crate) fn retain(&mut self, resources: &BTreeSet<Resource>) {
        self.0.retain(|resource, _| resources.contains(resource));
    }

    /// Takes over what is known of resources that did not count before.
    pub(crate) fn add_unknown(&mut self, other: Self) {
        for (resource, amount) in other.0 {
            self.0.entry(resource).or_insert(amount);
        }
    }

    pub(crate) fn is_nothing(&self) -> bool {
        self.0.is_empty()
    }

    /// Where this stands by all weights, rounded down.
    pub(crate) fn weighted(
        &self,
        policy: &AdmissionFairness,
        namespace: &NamespaceName,
    ) -> WeightedUse {
        let weight = policy.weight_of(namespace);
        if weight == Weight::ZERO {
            return WeightedUse::WITHOUT_MEASURE;
        }
        let weighed = self.0.iter().map(|(resource, amount)| {
            let weight = policy.resource_weights.get(resource);
            let weight = weight.map_or(0, |weight| u128::from(weight.0));
            (amount / unit(resource)).saturating_mul(weight)
        });
        let sum = weighed.fold(0, u128::saturating_add);
        WeightedUse(sum / u128::from(weight.0))
    }

    /// As it is shown and recorded, rounded to the nearest: see [`super::NamespaceUse::used`].
    pub(crate) fn shown(&self) -> BTreeMap<Resource, Amount> {
        let half = 1_u128 << (FRACTION_BITS - 1);
        let shown = self.0.iter().map(|(resource, amount)| {
            let amount = amount.saturating_mul(recorded_per_unit(resource));
            let amount = amount.saturating_add(half) >> FRACTION_BITS;
            let amount = i64::try_from(amount).unwrap_or(i64::MAX);
            (resource.clone(), Amount(amount))
        });
        shown.filter(|(_, amount)| *amount > Amount::ZERO).collect()
    }

    /// What was recorded.
    pub(crate) fn recorded(used: &BTreeMap<Resource, Amount>) -> Self {
        let recorded = used.iter().map(|(resource, amount)| {
            let amount = u64::try_from(amount.0).unwrap_or(0);
            let amount = u128::from(amount) << FRACTION_BITS;
            (resource.clone(), amount / recorded_per_unit(resource))
        });
        Self(recorded.filter(|(_, amount)| *amount > 0).collect())
    }
}

fn counts(policy: &AdmissionFairness, resource: &Resource) -> bool {
    let weight = policy.resource_weights.get(resource);
    weight.is_some_and(|weight| *weight > Weight::ZERO)
}

/// What is weighed as one: a GPU, a core, a GiB, one of anything else.
fn unit(resource: &Resource) -> u128 {
    match resource {
        Resource::Gpus | Resource::Cpu => 1000,
        Resource::Vram | Resource::Memory => 1 << 30,
        Resource::Extended(_) => 1,
    }
}

/// Into how many parts an amount of one is divided where it is recorded. What is counted in thousandths or bytes is fine enough.
fn recorded_per_unit(resource: &Resource) -> u128 {
    match resource {
        Resource::Extended(_) => 1000,
        Resource::Gpus | Resource::Cpu | Resource::Vram | Resource::Memory => 1,
    }
}
