//! Nominal quota that follows the inventory: what is healthy of a Flavor, less all nominal quota that is given as a number, by weight.
//!
//! So a drained GPU takes from the slack first, and from no guarantee before the slack is used up. Of one Flavor nothing is divided
//! that is not there: the parts, and what is given as numbers, together are what is healthy, or the numbers alone are more. Flavors
//! that count the same devices are divided apart.
//!
//! Work follows change: a node moves the sums of the Flavors that count its devices, a Team or Cohort those that its quota
//! names, and only where somebody's nominal quota follows a sum that moved it is divided again.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
};

use super::{healthy::healthy_of, policy::Weight};
use crate::{
    amount::{Amount, FlavorResource, Resource},
    model::{Node, Quota},
    names::{CohortName, NodeName, TeamName},
};

/// Who has nominal quota.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    Team(TeamName),
    Cohort(CohortName),
}

/// What is healthy, what is guaranteed by numbers, and the parts of those whose nominal quota follows the difference.
#[derive(Clone, Debug, Default)]
pub(crate) struct Automatic {
    healthy: BTreeMap<FlavorResource, i128>,
    by_node: BTreeMap<NodeName, BTreeMap<FlavorResource, i128>>,
    /// Sums of what is given as numbers.
    fixed: BTreeMap<FlavorResource, i128>,
    by_owner: BTreeMap<Owner, Claimed>,
    /// Whose nominal quota follows.
    following: BTreeMap<FlavorResource, BTreeMap<Owner, Weight>>,
    parts: BTreeMap<FlavorResource, BTreeMap<Owner, Amount>>,
    /// What is to be divided again.
    changed: BTreeSet<FlavorResource>,
}

/// What the quota of one owner says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Claimed {
    fixed: BTreeMap<FlavorResource, i128>,
    following: BTreeSet<FlavorResource>,
    weight: Weight,
}

impl Automatic {
    /// A node is as given.
    pub(crate) fn note_node(&mut self, node: &Node) {
        let has = healthy_of(node);
        let before = self.by_node.get(&node.name);
        if before.map_or(has.is_empty(), |before| *before == has) {
            return;
        }
        self.note_node_gone(&node.name);
        for (of, amount) in &has {
            self.add_healthy(of, *amount);
        }
        if !has.is_empty() {
            self.by_node.insert(node.name.clone(), has);
        }
    }

    /// A node is gone.
    pub(crate) fn note_node_gone(&mut self, name: &NodeName) {
        for (of, amount) in self.by_node.remove(name).unwrap_or_default() {
            self.add_healthy(&of, -amount);
        }
    }

    fn add_healthy(&mut self, of: &FlavorResource, by: i128) {
        add(&mut self.healthy, of, by);
        self.note_changed(of);
    }

    fn note_changed(&mut self, of: &FlavorResource) {
        if self.following.contains_key(of) {
            self.changed.insert(of.clone());
        }
    }

    /// The quota of a Team or Cohort is as given; without any, it is gone.
    pub(crate) fn note_quota(&mut self, owner: &Owner, quota: &Quota, weight: Weight) {
        let mut claimed = Claimed {
            weight,
            ..Claimed::default()
        };
        for (flavor, resources) in quota {
            for (resource, limit) in resources {
                let of = FlavorResource {
                    flavor: flavor.clone(),
                    resource: resource.clone(),
                };
                if limit.automatic {
                    claimed.following.insert(of);
                } else {
                    claimed.fixed.insert(of, i128::from(limit.nominal.0));
                }
            }
        }
        let before = self.by_owner.get(owner).cloned().unwrap_or_default();
        if before == claimed {
            return;
        }
        for (of, amount) in &before.fixed {
            add(&mut self.fixed, of, -amount);
            self.note_changed(of);
        }
        for (of, amount) in &claimed.fixed {
            add(&mut self.fixed, of, *amount);
            self.note_changed(of);
        }
        for of in &before.following {
            self.note_changed(of);
            if let Some(owners) = self.following.get_mut(of) {
                owners.remove(owner);
                if owners.is_empty() {
                    self.following.remove(of);
                    self.parts.remove(of);
                    self.changed.remove(of);
                }
            }
        }
        for of in &claimed.following {
            let owners = self.following.entry(of.clone()).or_default();
            owners.insert(owner.clone(), weight);
            self.note_changed(of);
        }
        if claimed.fixed.is_empty() && claimed.following.is_empty() {
            self.by_owner.remove(owner);
        } else {
            self.by_owner.insert(owner.clone(), claimed);
        }
    }

    /// Whether somebody's nominal quota follows what there is of something: what others have as numbers is taken from it.
    pub(crate) fn is_divided(&self, of: &FlavorResource) -> bool {
        self.following.contains_key(of)
    }

    /// Divides what changed again. Returns who has another part by that.
    pub(crate) fn divide_again(&mut self) -> BTreeSet<Owner> {
        let mut moved = BTreeSet::new();
        while let Some(of) = self.changed.pop_first() {
            let Some(owners) = self.following.get(&of) else {
                continue;
            };
            let gpus = gpus_of(&of).and_then(|gpus| self.parts.get(&gpus));
            let parts = self.divided(&of, 0, owners, gpus);
            if of.resource == Resource::Gpus {
                let memory = memory_of(&of);
                self.note_changed(&memory);
            }
            let before = self.parts.insert(of, parts.clone()).unwrap_or_default();
            let other = parts
                .into_iter()
                .filter(|(owner, part)| before.get(owner).copied().unwrap_or_default() != *part);
            moved.extend(other.map(|(owner, _)| owner));
        }
        moved
    }

    /// By how much the parts would grow if so much more were healthy. Nobody's part would be less: at most, with other GPUs, that of
    /// memory is.
    pub(crate) fn growth(
        &self,
        more: &BTreeMap<FlavorResource, i128>,
    ) -> Vec<(Owner, FlavorResource, i128)> {
        let mut divided: BTreeMap<FlavorResource, BTreeMap<Owner, Amount>> = BTreeMap::new();
        let mut growth = Vec::new();
        for of in divided_with(more) {
            let Some(owners) = self.following.get(&of) else {
                continue;
            };
            let gpus = gpus_of(&of);
            let gpus = gpus.and_then(|gpus| divided.get(&gpus).or_else(|| self.parts.get(&gpus)));
            let by = more.get(&of).copied().unwrap_or_default();
            let parts = self.divided(&of, by, owners, gpus);
            let before = self.parts.get(&of);
            for (owner, part) in &parts {
                let before = before.and_then(|parts| parts.get(owner));
                let by = i128::from(part.0) - before.map_or(0, |part| i128::from(part.0));
                if by != 0 {
                    growth.push((owner.clone(), of.clone(), by));
                }
            }
            divided.insert(of, parts);
        }
        growth
    }

    /// How many parts are worked out for [`Automatic::growth`].
    pub(crate) fn count_parts(&self, more: &BTreeMap<FlavorResource, i128>) -> usize {
        let divided = divided_with(more).into_iter();
        let owners = divided.filter_map(|of| self.following.get(&of));
        owners.map(BTreeMap::len).sum()
    }

    /// The parts of what is healthy and no number has, and of so much more; of memory by the parts of the GPUs that it belongs to.
    fn divided(
        &self,
        of: &FlavorResource,
        more: i128,
        owners: &BTreeMap<Owner, Weight>,
        gpus: Option<&BTreeMap<Owner, Amount>>,
    ) -> BTreeMap<Owner, Amount> {
        let sum = |sums: &BTreeMap<_, _>| sums.get(of).copied().unwrap_or_default();
        let left = sum(&self.healthy) + more - sum(&self.fixed);
        let left = left.clamp(0, i128::from(i64::MAX));
        let parts = divide(left, unit(&of.resource), &weights(owners, gpus));
        let parts = parts.into_iter().map(amount);
        owners.keys().cloned().zip(parts).collect()
    }

    /// Writes an owner's parts into its quota, as far as its nominal quota follows the inventory.
    pub(crate) fn resolve(&self, owner: &Owner, quota: &mut Quota) {
        for (flavor, resources) in quota {
            for (resource, limit) in resources {
                if limit.automatic {
                    let of = FlavorResource {
                        flavor: flavor.clone(),
                        resource: resource.clone(),
                    };
                    let part = self.parts.get(&of).and_then(|parts| parts.get(owner));
                    limit.nominal = part.copied().unwrap_or_default();
                }
            }
        }
    }
}

/// What is divided anew if more of something is healthy. GPUs stand before their memory, which is divided by them.
fn divided_with(more: &BTreeMap<FlavorResource, i128>) -> BTreeSet<FlavorResource> {
    let memory = more.keys().filter(|of| of.resource == Resource::Gpus);
    more.keys().cloned().chain(memory.map(memory_of)).collect()
}

/// By what an amount is divided: by other parts, where all have one of those as well.
fn weights(owners: &BTreeMap<Owner, Weight>, by: Option<&BTreeMap<Owner, Amount>>) -> Vec<Weight> {
    let part = |owner| Some(Weight(by?.get(owner)?.0.unsigned_abs()));
    let parts: Option<Vec<Weight>> = owners.keys().map(part).collect();
    parts.unwrap_or_else(|| owners.values().copied().collect())
}

/// The GPUs that memory belongs to.
fn gpus_of(memory: &FlavorResource) -> Option<FlavorResource> {
    (memory.resource == Resource::Vram).then(|| FlavorResource {
        flavor: memory.flavor.clone(),
        resource: Resource::Gpus,
    })
}

fn memory_of(gpus: &FlavorResource) -> FlavorResource {
    FlavorResource {
        flavor: gpus.flavor.clone(),
        resource: Resource::Vram,
    }
}

/// Changes a sum. One of zero is no entry.
pub(super) fn add(sums: &mut BTreeMap<FlavorResource, i128>, of: &FlavorResource, by: i128) {
    let sum = sums.entry(of.clone()).or_default();
    *sum += by;
    if *sum == 0 {
        sums.remove(of);
    }
}

fn amount(part: i128) -> Amount {
    Amount(i64::try_from(part).unwrap_or(i64::MAX))
}

/// What parts are whole multiples of, where there are several.
fn unit(of: &Resource) -> i128 {
    match of {
        Resource::Gpus => i128::from(Amount::ONE_GPU.0),
        Resource::Vram | Resource::Cpu | Resource::Memory | Resource::Extended(_) => 1,
    }
}

/// Divides an amount into whole units by weight, by the method of D'Hondt: each unit goes to whoever has the most weight for
/// each unit that it would have then. It never gives anybody less of a larger amount, nor less than the whole units of its exact
/// part. Of equals the first gets it. Where all weights are zero they count as equal. A single one gets all, fractions of a unit
/// included; else what is less than a unit stays with nobody.
fn divide(left: i128, unit: i128, weights: &[Weight]) -> Vec<i128> {
    if weights.len() == 1 {
        return vec![left];
    }
    let is_zero = weights.iter().all(|weight| *weight == Weight::ZERO);
    let weight = |weight: &Weight| if is_zero { 1 } else { i128::from(weight.0) };
    let weights: Vec<i128> = weights.iter().map(weight).collect();
    let total: i128 = weights.iter().sum();
    let units = left / unit;
    // Nobody has less than this in the end, so the counting begins here: fewer units are left than there are owners. Units fit
    // into 63 bits and weights into 64, so no product needs more than 127.
    let mut parts: Vec<i128> = weights
        .iter()
        .map(|weight| units / total * weight + (units % total) * weight / total)
        .collect();
    let given: i128 = parts.iter().sum();
    let mut next: BinaryHeap<Next> = weights
        .iter()
        .zip(&parts)
        .enumerate()
        .map(|(at, (weight, part))| Next {
            weight: *weight,
            units: part + 1,
            at,
        })
        .collect();
    for _ in given..units {
        if let Some(mut first) = next.peek_mut() {
            parts[first.at] += 1;
            first.units += 1;
        }
    }
    parts.into_iter().map(|part| part * unit).collect()
}

/// One that may get the next unit. The greatest does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Next {
    weight: i128,
    /// How many units it would have then.
    units: i128,
    at: usize,
}

impl Ord for Next {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_weight = (self.weight * other.units).cmp(&(other.weight * self.units));
        by_weight.then_with(|| other.at.cmp(&self.at))
    }
}

impl PartialOrd for Next {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parts(left: i128, unit: i128, weights: &[u64]) -> Vec<i128> {
        let weights: Vec<Weight> = weights.iter().map(|weight| Weight(*weight)).collect();
        divide(left, unit, &weights)
    }

    #[test]
    fn what_is_left_is_divided_by_weight_into_whole_gpus() {
        for (left, weights, expected) in [
            (8_000, vec![1], vec![8_000]),
            (8_500, vec![7], vec![8_500]),
            (8_000, vec![1, 1], vec![4_000, 4_000]),
            (9_000, vec![1, 1], vec![5_000, 4_000]),
            (8_999, vec![1, 1], vec![4_000, 4_000]),
            (8_000, vec![3, 1], vec![6_000, 2_000]),
            (8_000, vec![0, 1], vec![0, 8_000]),
            (3_000, vec![0, 0], vec![2_000, 1_000]),
            (0, vec![1, 2], vec![0, 0]),
        ] {
            assert_eq!(parts(left, 1_000, &weights), expected, "{left} {weights:?}");
        }
    }

    /// As it is defined: unit by unit.
    fn one_by_one(units: i128, weights: &[u64]) -> Vec<i128> {
        let is_zero = weights.iter().all(|weight| *weight == 0);
        let mut parts = vec![0_i128; weights.len()];
        for _ in 0..units {
            let mut best = 0;
            for at in 1..weights.len() {
                let weight = |at: usize| if is_zero { 1 } else { i128::from(weights[at]) };
                if weight(at) * (parts[best] + 1) > weight(best) * (parts[at] + 1) {
                    best = at;
                }
            }
            parts[best] += 1;
        }
        parts
    }

    proptest! {
        #[test]
        fn units_go_where_the_weight_for_each_is_most(
            units in 0_i128..300, weights in prop::collection::vec(0_u64..9, 2..6),
        ) {
            prop_assert_eq!(parts(units, 1, &weights), one_by_one(units, &weights));
        }

        #[test]
        fn all_is_divided_and_more_is_never_less_for_anybody(
            units in 0..i128::from(i64::MAX), weights in prop::collection::vec(any::<u64>(), 2..6),
        ) {
            let before = parts(units, 1, &weights);
            prop_assert_eq!(before.iter().sum::<i128>(), units);
            for (less, more) in before.iter().zip(parts(units + 1, 1, &weights)) {
                prop_assert!(*less <= more);
            }
        }
    }
}
