//! Decisions, as the Gangs carry them.

use std::collections::BTreeMap;

use muster_api::{Charge, Gang, GangPhase, Quantity, Reason};
use muster_cluster::quantity;
use muster_engine::Amount;
use serde::Serialize;

use crate::api_server::ApiServer;

/// What was decided about one gang.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// Namespace of the gang.
    pub namespace: String,
    /// Name of its Gang object, which begins with the name of its Job, label or pod.
    pub name: String,
    /// The Team that is charged, or would be.
    pub team: Option<String>,
    /// Whether it holds quota and a place.
    pub admitted: bool,
    /// The node of each rank, in rank order; empty if it is not admitted.
    pub nodes: Vec<String>,
    /// How many pods it has, if fewer are admitted: as many as `nodes` names.
    pub gang_size: Option<i32>,
    /// The narrowest domain of the Topology that holds all its nodes: path of label values, outermost first. Empty if
    /// there is none.
    pub domain: Vec<String>,
    /// What it takes from quota; empty if it is not admitted.
    pub charge: Vec<Charged>,
    /// Why it is not admitted: a stable word.
    pub reason: Option<Reason>,
    /// The same with numbers, for people.
    pub details: Option<String>,
}

/// An amount of a resource of a Flavor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Charged {
    /// The Flavor.
    pub flavor: String,
    /// The resource, as quotas name it: `gpus`, `vram`, `cpu`, `memory`, or an extended resource.
    pub resource: String,
    /// The amount, as quotas write it: `2`, `1500m`, `640Gi`.
    pub amount: Quantity,
}

/// One decision per Gang, in the order of namespace and name.
pub(super) fn decisions(api: &ApiServer) -> Vec<Decision> {
    api.list::<Gang>().map(decision).collect()
}

fn decision(gang: &Gang) -> Decision {
    let status = gang.status.clone().unwrap_or_default();
    let placement = status.placement.unwrap_or_default();
    let (reason, details) = match (status.queue, status.phase) {
        (Some(queue), _) => (Some(queue.reason), Some(queue.details)),
        (None, GangPhase::Finished) => (Some(Reason::Completed), ended(gang)),
        (None, GangPhase::Failed) => (Some(Reason::PodFailed), ended(gang)),
        (None, _) => (None, None),
    };
    let ranks = status
        .admission
        .as_ref()
        .map_or(0, |admission| admission.pods.len());
    Decision {
        namespace: gang.metadata.namespace.clone().unwrap_or_default(),
        name: gang.metadata.name.clone().unwrap_or_default(),
        team: status.team,
        admitted: status.admission.is_some(),
        nodes: (0..ranks)
            .filter_map(|rank| placement.node_of(rank).map(|run| run.node.clone()))
            .collect(),
        gang_size: status
            .admission
            .as_ref()
            .and_then(|admission| admission.gang_size),
        domain: placement.domain,
        charge: status
            .admission
            .map(|admission| charged(&admission.charge))
            .unwrap_or_default(),
        reason,
        details,
    }
}

fn ended(gang: &Gang) -> Option<String> {
    let conditions = &gang.status.as_ref()?.conditions;
    let finished = conditions
        .iter()
        .find(|condition| condition.type_ == muster_api::conditions::FINISHED)?;
    Some(finished.message.clone())
}

fn charged(charge: &Charge) -> Vec<Charged> {
    let mut amounts: BTreeMap<(String, String), i64> = BTreeMap::new();
    let mut add = |flavor: &str, resource: &str, amount: i64| {
        let sum = amounts
            .entry((flavor.to_owned(), resource.to_owned()))
            .or_default();
        *sum = sum.saturating_add(amount);
    };
    for group in &charge.claims {
        let count = i64::try_from(group.uids.len()).unwrap_or(i64::MAX);
        add(
            &group.flavor,
            "gpus",
            group.gpus_milli.saturating_mul(count),
        );
        add(
            &group.flavor,
            "vram",
            group.vram_bytes.saturating_mul(count),
        );
    }
    for resource in &charge.resources {
        add(&resource.flavor, &resource.resource, resource.amount);
    }
    amounts
        .into_iter()
        .filter(|(_, amount)| *amount != 0)
        .map(|((flavor, resource), amount)| Charged {
            amount: quantity::written(&quantity::resource(&resource), Amount(amount)),
            flavor,
            resource,
        })
        .collect()
}
