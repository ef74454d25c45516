//! Fairness among the namespaces of one Team: of gangs of one tier those go first whose namespace used least, lately.
//!
//! What a namespace *used* is what its gangs hold, averaged over the past with a weight that halves with each half-life:
//!
//! * Each sampling interval `used = left * used + (1 - left) * held`, where `left = 2^-(elapsed / half-life)`.
//! * An admission counts at once, before anything is sampled: as much as one sampling interval would count of it. Without that, one
//!   namespace could have all that is free between two samples. It is taken back exactly if the admission is.
//! * What counts is the sum over resources, each by its weight, divided by the weight of the namespace.
//!
//! Everything is whole numbers. Used amounts are kept in units of 2^-32 of what an [`Amount`](crate::Amount) counts, every step rounds
//! down, and sums saturate; what is left of less than 2^-10 of such a unit is forgotten. So the same observations give the same order,
//! and a namespace that holds nothing comes to nothing.

mod account;
mod consumed;
mod decay;

use std::collections::BTreeMap;

pub(crate) use account::{Accounts, Held, HeldByNamespace};
use consumed::Consumed;
use decay::Part;

use crate::{
    amount::{Amount, Resource},
    names::{NamespaceName, TeamName, Timestamp},
    quota::Weight,
};

/// How a Team weighs what its namespaces used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionFairness {
    /// After how long half of what was used counts. At 0 nothing that was used is forgotten, and nothing is added to it.
    pub half_life_seconds: u64,
    /// How often what is held is looked at; at least 1 counts.
    pub sampling_interval_seconds: u64,
    /// What a unit of a resource weighs: a GPU, a core, a GiB of memory, one of anything else. What is not listed does not count.
    pub resource_weights: BTreeMap<Resource, Weight>,
    /// What namespaces weigh: one of weight 2 may use twice as much as one of weight 1, which those have that are not listed.
    /// Those of weight 0 are served last.
    pub namespace_weights: BTreeMap<NamespaceName, Weight>,
}

impl AdmissionFairness {
    pub(crate) fn weight_of(&self, namespace: &NamespaceName) -> Weight {
        let listed = self.namespace_weights.get(namespace);
        listed.copied().unwrap_or(Weight::ONE)
    }

    /// As much of a new charge as counts at once.
    pub(crate) fn penalty(&self) -> Part {
        let seconds = self.sampling_interval_seconds.max(1);
        Part::left_after(seconds, self.half_life_seconds).rest()
    }
}

/// What a namespace of a Team used by a time, as was recorded by whoever decided before. To be told before the first decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceUse {
    /// The Team that was charged.
    pub team: TeamName,
    /// The namespace.
    pub namespace: NamespaceName,
    /// How much: of extended resources in thousandths, of all others in the unit of an amount of the resource.
    pub used: BTreeMap<Resource, Amount>,
    /// By when.
    pub as_of: Timestamp,
}

/// What a namespace used, by all weights: where it stands among those of its Team. The less, the sooner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct WeightedUse(pub(crate) u128);

impl WeightedUse {
    /// Nothing.
    pub const NOTHING: Self = Self(0);
    /// Of a namespace that weighs nothing.
    pub(crate) const WITHOUT_MEASURE: Self = Self(u128::MAX);
}
