//! What a gang asks of a Flavor.

use std::collections::BTreeMap;

use crate::{
    amount::{Amount, Overflow, Resource},
    model::QuotaLimit,
    names::FlavorName,
    placement::{Cluster, Demand, UnitClaim},
};

/// Amounts of one Flavor.
pub(crate) type Ask = BTreeMap<Resource, Amount>;

/// The least that a gang may be charged on a Flavor, before it is known which devices it gets. GPUs always
/// count; all else only where the Team's quota for the Flavor names it.
pub(crate) fn at_least(
    demand: &Demand,
    flavor: &FlavorName,
    named: &BTreeMap<Resource, QuotaLimit>,
    cluster: &Cluster,
) -> Result<Ask, Overflow> {
    let mut ask = Ask::new();
    for class in &demand.classes {
        let units = class.units.len();
        let resources = class.shape.resources().ok_or(Overflow)?;
        let (mut gpus, mut vram) = (Amount::ZERO, Amount::ZERO);
        for claim in &class.shape.claims {
            let least = of_claim(claim, flavor, cluster)?;
            gpus = gpus.add(least.0)?;
            vram = vram.add(least.1)?;
        }
        let parts = [
            (Resource::Gpus, gpus),
            (Resource::Vram, vram),
            (Resource::Cpu, Amount(resources.cpu_milli)),
            (Resource::Memory, Amount(resources.memory_bytes)),
        ];
        for (resource, amount) in parts {
            if resource == Resource::Gpus || named.contains_key(&resource) {
                let sum = ask.entry(resource).or_default();
                *sum = sum.add(amount.times(units)?)?;
            }
        }
    }
    ask.retain(|_, amount| *amount > Amount::ZERO);
    Ok(ask)
}

fn of_claim(
    claim: &UnitClaim,
    flavor: &FlavorName,
    cluster: &Cluster,
) -> Result<(Amount, Amount), Overflow> {
    if let Some((node, devices)) = &claim.allocated {
        return cluster.charged_as(node, devices);
    }
    let (mut gpus, mut vram) = (Amount::ZERO, Amount::ZERO);
    for (selector, count) in &claim.shape.requests {
        // What no node has is taken for a whole GPU: the number that its owner has in mind.
        let known = cluster.cheapest(flavor, *selector);
        let least = known.unwrap_or((Amount::ONE_GPU, Amount::ZERO));
        gpus = gpus.add(least.0.times(*count)?)?;
        vram = vram.add(least.1.times(*count)?)?;
    }
    Ok((gpus, vram))
}

/// Whether a Flavor has, on all nodes together and taken or not, fewer devices than a gang asks for.
pub(crate) fn exceeds_inventory(demand: &Demand, flavor: &FlavorName, cluster: &Cluster) -> bool {
    let mut asked: BTreeMap<_, usize> = BTreeMap::new();
    for class in &demand.classes {
        let claims = class.shape.claims.iter();
        for claim in claims.filter(|claim| claim.allocated.is_none()) {
            for (selector, count) in &claim.shape.requests {
                let sum = asked.entry(*selector).or_default();
                *sum = sum.saturating_add(count.saturating_mul(class.units.len()));
            }
        }
    }
    asked
        .into_iter()
        .any(|(selector, count)| count > cluster.devices(flavor, selector))
}
