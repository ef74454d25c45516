//! The model's words in the engine's.

use std::collections::{BTreeMap, BTreeSet};

use muster_engine::{
    Amount, Cohort, CohortName, FlavorResource, Queueing, QuotaLimit, Resource, ResourceCharge,
    Shrink, Stop, Team, TeamName, Timestamp,
    model::Quota,
    quota::{Entrant, PreemptionPolicy, Preemptor, QuotaTree, RunningGang, Sharing, Weight},
};

use crate::model::{Asking, Limit, Name, Node, Nodes, Pair, Running, Waiting};

/// In alphabetical order: that is how ties of the dominant resource are decided.
const RESOURCES: u8 = 5;

pub(crate) fn resource(number: u8) -> Resource {
    match number % RESOURCES {
        0 => Resource::Cpu,
        1 => Resource::Extended("example.com/link".into()),
        2 => Resource::Gpus,
        3 => Resource::Memory,
        _ => Resource::Vram,
    }
}

pub(crate) fn amount(amount: i128) -> Amount {
    Amount(i64::try_from(amount).expect("test amounts are small"))
}

pub(crate) fn pair(pair: Pair) -> FlavorResource {
    FlavorResource {
        flavor: format!("flavor-{}", pair.flavor).as_str().into(),
        resource: resource(pair.resource),
    }
}

pub(crate) fn team_name(name: Name) -> TeamName {
    format!("team-{name:03}").as_str().into()
}

pub(crate) fn cohort_name(name: Name) -> CohortName {
    format!("cohort-{name:03}").as_str().into()
}

fn quota(limits: &BTreeMap<Pair, Limit>) -> Quota {
    let mut quota: Quota = Vec::new();
    for (of, limit) in limits {
        let FlavorResource { flavor, resource } = pair(*of);
        let limit = QuotaLimit {
            nominal: amount(limit.nominal),
            borrowing_limit: limit.borrowing.map(amount),
            lending_limit: limit.lending.map(amount),
            automatic: false,
        };
        match quota.iter_mut().find(|(known, _)| *known == flavor) {
            Some((_, resources)) => {
                resources.insert(resource, limit);
            }
            None => quota.push((flavor, BTreeMap::from([(resource, limit)]))),
        }
    }
    quota
}

pub(crate) fn team(name: Name, node: &Node, preemption: PreemptionPolicy) -> Team {
    Team {
        name: team_name(name),
        generation: 1,
        cohort: node.parent.map(cohort_name),
        quota: quota(&node.limits),
        queueing: Queueing::BestEffort,
        stop: Stop::None,
        shrink: Shrink::Keep,
        fungibility: muster_engine::quota::FlavorFungibility::default(),
        preemption,
        weight: Weight(node.weight),
        fairness: None,
    }
}

/// A Cohort that has nothing to say has no object.
fn cohort(name: Name, node: &Node) -> Option<Cohort> {
    let is_implicit =
        node.parent.is_none() && node.limits.is_empty() && node.weight == Weight::ONE.0;
    (!is_implicit).then(|| cohort_object(name, node, Sharing::ByPriority))
}

pub(crate) fn cohort_object(name: Name, node: &Node, sharing: Sharing<'static>) -> Cohort {
    Cohort {
        name: cohort_name(name),
        parent: node.parent.map(cohort_name),
        quota: quota(&node.limits),
        weight: Weight(node.weight),
        sharing,
    }
}

/// The engine's tree, with what these gangs hold.
pub(crate) fn tree(nodes: &Nodes, running: &[Running]) -> QuotaTree {
    let mut teams = BTreeMap::new();
    let mut cohorts = BTreeMap::new();
    for (name, node) in nodes {
        if let Some(policy) = node.policy {
            teams.insert(team_name(*name), team(*name, node, policy));
        } else if let Some(cohort) = cohort(*name, node) {
            cohorts.insert(cohort_name(*name), cohort);
        }
    }
    let mut usage = Vec::new();
    for gang in running {
        for (of, amount) in &gang.charges {
            usage.push((team_name(gang.team), pair(*of), *amount));
        }
    }
    let usage = usage.iter().map(|(team, of, amount)| (team, of, *amount));
    QuotaTree::new(&teams, &cohorts, usage)
}

fn charges(charges: &[(Pair, i128)]) -> Vec<ResourceCharge> {
    let charges = charges.iter().map(|(of, asked)| ResourceCharge {
        of: pair(*of),
        amount: amount(*asked),
    });
    charges.collect()
}

pub(crate) fn running(gang: &Running) -> RunningGang {
    RunningGang {
        uid: format!("gang-{:08}", gang.uid).as_str().into(),
        team: team_name(gang.team),
        priority: gang.priority,
        queued_at: Timestamp(gang.queued_at),
        admitted_at: gang.admitted_at.map(Timestamp),
        is_made_again: true,
        namespace_used: muster_engine::WeightedUse::NOTHING,
        is_ending: gang.is_ending,
        charges: charges(&gang.charges),
    }
}

pub(crate) fn entrant(gang: &Waiting) -> Entrant {
    Entrant {
        gang: format!("gang-{:08}", gang.uid).as_str().into(),
        team: team_name(gang.team),
        priority: gang.priority,
        queued_at: Timestamp(gang.queued_at),
        charges: charges(&gang.charges),
    }
}

pub(crate) fn preemptor(asking: &Asking) -> Preemptor {
    Preemptor {
        team: team_name(asking.team),
        priority: asking.priority,
        queued_at: Timestamp(asking.queued_at),
        charges: charges(&asking.charges),
        contested: asking
            .contested
            .iter()
            .map(|of| pair(*of))
            .collect::<BTreeSet<_>>(),
    }
}
