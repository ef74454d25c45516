//! S1: whether any node of the quota tree is over its limit. Written from the definitions, not from the engine.
//!
//! For each resource of each Flavor, with `quota(n)` the node's own nominal plus what its children lend it:
//! a child lends at most its lending limit of its quota, and asks of its parent only what it uses beyond
//! what it does not lend. No node may use more than its quota and its borrowing limit, no root more than
//! its quota. A resource of which anybody's quota follows the inventory (`auto`) is not judged: no scenario has one.

use std::collections::{BTreeMap, BTreeSet};

use muster_api::FlavorQuota;

use super::{charges::Charges, quantity::thousandths, world::World};

#[derive(Clone, Copy, Default)]
struct Limit {
    nominal: i128,
    borrowing: Option<i128>,
    lending: Option<i128>,
}

/// A node of the tree: what it has, and what it uses, towards its parent.
#[derive(Clone, Copy, Default)]
struct Sum {
    quota: i128,
    used: i128,
}

/// What a node of the quota tree uses of one resource, and whether that is more than it may.
#[derive(Debug)]
pub(super) struct Use {
    /// Node, Flavor and resource.
    pub(super) of: String,
    pub(super) used: i128,
    /// Set if it is more than the node may use.
    pub(super) over: Option<i128>,
}

/// What every node of the tree uses of everything that a quota names.
pub(super) fn uses(world: &World, charges: &Charges) -> Vec<Use> {
    let mut uses = Vec::new();
    for (flavor, resource) in resources(world) {
        let mut pools: BTreeMap<&str, Sum> = BTreeMap::new();
        for (name, team) in &world.teams {
            let limit = limit_of(&team.spec.quota, &flavor, &resource);
            let own = Sum {
                quota: limit.nominal,
                used: charges.used(name, &flavor, &resource),
            };
            let parent = team.spec.cohort.as_deref();
            judge(
                &mut uses,
                &format!("Team {name}"),
                &flavor,
                &resource,
                own,
                limit,
                parent.is_none(),
            );
            if let Some(parent) = parent {
                hand_up(pools.entry(parent).or_default(), own, limit);
            }
        }
        for cohort in bottom_up(world, pools.keys().copied()) {
            let spec = world.cohorts.get(&cohort).map(|cohort| &cohort.spec);
            let limit = spec.map_or_else(Limit::default, |spec| {
                limit_of(&spec.quota, &flavor, &resource)
            });
            let mut sum = pools.get(cohort.as_str()).copied().unwrap_or_default();
            sum.quota += limit.nominal;
            let parent = spec.and_then(|spec| spec.parent.as_deref());
            judge(
                &mut uses,
                &format!("Cohort {cohort}"),
                &flavor,
                &resource,
                sum,
                limit,
                parent.is_none(),
            );
            if let Some(parent) = parent {
                hand_up(pools.entry(parent).or_default(), sum, limit);
            }
        }
    }
    uses
}

fn hand_up(parent: &mut Sum, child: Sum, limit: Limit) {
    let kept = limit
        .lending
        .map_or(0, |lending| (child.quota - lending).max(0));
    parent.quota += child.quota - kept;
    parent.used += (child.used - kept).max(0);
}

fn judge(
    uses: &mut Vec<Use>,
    node: &str,
    flavor: &str,
    resource: &str,
    sum: Sum,
    limit: Limit,
    is_root: bool,
) {
    let most = if is_root {
        Some(sum.quota)
    } else {
        limit.borrowing.map(|borrowing| sum.quota + borrowing)
    };
    uses.push(Use {
        of: format!("{node}: {resource} of {flavor}"),
        used: sum.used,
        over: most.filter(|most| sum.used > *most),
    });
}

/// Every (Flavor, resource) that a quota names, unless some of it follows the inventory.
fn resources(world: &World) -> BTreeSet<(String, String)> {
    let teams = world.teams.values().flat_map(|team| &team.spec.quota);
    let cohorts = world.cohorts.values().flat_map(|cohort| &cohort.spec.quota);
    let mut named = BTreeSet::new();
    let mut automatic = BTreeSet::new();
    for quota in teams.chain(cohorts) {
        for resource in &quota.resources {
            let of = (quota.flavor.clone(), resource.name.clone());
            if resource.auto {
                automatic.insert(of.clone());
            }
            named.insert(of);
        }
    }
    named.difference(&automatic).cloned().collect()
}

fn limit_of(quota: &[FlavorQuota], flavor: &str, resource: &str) -> Limit {
    // Charges of GPUs and cpu are thousandths; of everything else whole units.
    let divisor = if matches!(resource, "gpus" | "cpu") {
        1
    } else {
        1000
    };
    let amount =
        |quantity: &muster_api::Quantity| thousandths(&quantity.0).map(|amount| amount / divisor);
    quota
        .iter()
        .filter(|quota| quota.flavor == flavor)
        .flat_map(|quota| &quota.resources)
        .find(|limit| limit.name == resource)
        .map_or_else(Limit::default, |limit| Limit {
            nominal: limit.nominal.as_ref().and_then(amount).unwrap_or(0),
            borrowing: limit.borrowing_limit.as_ref().and_then(amount),
            lending: limit.lending_limit.as_ref().and_then(amount),
        })
}

/// Cohorts, children before parents. What is part of a cycle is left out: nothing is admitted there.
fn bottom_up<'a>(world: &World, named: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut open: BTreeSet<String> = world
        .cohorts
        .keys()
        .cloned()
        .chain(named.map(str::to_owned))
        .collect();
    let parents = world
        .cohorts
        .values()
        .filter_map(|cohort| cohort.spec.parent.clone());
    open.extend(parents.collect::<Vec<_>>());
    let mut order = Vec::new();
    loop {
        let is_parent = |name: &str| {
            open.iter().any(|child| {
                world
                    .cohorts
                    .get(child)
                    .and_then(|cohort| cohort.spec.parent.as_deref())
                    == Some(name)
            })
        };
        let leaves: Vec<String> = open
            .iter()
            .filter(|name| !is_parent(name))
            .cloned()
            .collect();
        if leaves.is_empty() {
            return order;
        }
        for leaf in leaves {
            open.remove(&leaf);
            order.push(leaf);
        }
    }
}
