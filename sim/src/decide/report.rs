//! Decisions, as the Gangs carry them.

use std::collections::BTreeMap;

use muster_api::{
    Charge, Gang, GangPhase, Quantity, Queue, Reason,
    gang::{PreemptionNotice, PreemptionRight},
};
use muster_cluster::quantity;
use muster_engine::{Amount, Resource};
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
    /// Claims of which each has a part of a GPU. Left out where all GPUs are whole.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<SliceClaims>,
    /// Why it is not admitted: a stable word.
    pub reason: Option<Reason>,
    /// The same with numbers, and with what would help, for people.
    pub details: Option<String>,
    /// Its place in its Team's queue, from 1, if it waits there.
    pub position: Option<i64>,
    /// That it is to go so that another one has its quota and its place. That it is to go since its Team uses more than it may is decided
    /// after a minute only, for which nobody waits here: it stands here where its Gang says so already.
    pub gives_way: Option<GivesWay>,
    /// Who gives way to it: `namespace/name` of the first gangs by UID. Empty if nobody does.
    pub victims: Vec<String>,
}

/// That a gang is to go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GivesWay {
    /// `namespace/name` of the gang that it goes for; none where its own Team uses more than it may.
    pub to: Option<String>,
    /// By what right: a stable word.
    pub right: PreemptionRight,
    /// The same for people.
    pub message: String,
    /// How long it has at most from when it is told, in seconds.
    pub notice_seconds: i64,
}

/// Claims of which each has a part of a GPU, all the same: MIG slices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SliceClaims {
    /// How many there are.
    pub claims: usize,
    /// The Flavor that is charged.
    pub flavor: String,
    /// What each is charged as, in GPUs: `142m` for a slice of one seventh.
    pub gpus: Quantity,
    /// The memory that each is charged, where quota counts it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vram: Option<Quantity>,
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
    let positions = positions(api);
    let gangs = api.list::<Gang>();
    gangs.map(|gang| decision(gang, &positions)).collect()
}

/// The places of gangs that wait, by namespace and name, as their Queues list them.
fn positions(api: &ApiServer) -> BTreeMap<(String, String), i64> {
    let queues = api.list::<Queue>();
    let listed = queues.flat_map(|queue| {
        let namespace = queue.metadata.namespace.clone().unwrap_or_default();
        let pending = queue.status.iter().flat_map(|status| &status.pending);
        pending.map(move |gang| ((namespace.clone(), gang.name.clone()), gang.position))
    });
    listed.collect()
}

fn gives_way(notice: PreemptionNotice) -> GivesWay {
    let PreemptionNotice {
        preemptor,
        right,
        message,
        noticed_at,
        preempt_at,
        ..
    } = notice;
    GivesWay {
        to: (!preemptor.is_empty()).then_some(preemptor),
        right,
        message,
        notice_seconds: preempt_at.0.as_second() - noticed_at.0.as_second(),
    }
}

fn decision(gang: &Gang, positions: &BTreeMap<(String, String), i64>) -> Decision {
    let status = gang.status.clone().unwrap_or_default();
    let namespace = gang.metadata.namespace.clone().unwrap_or_default();
    let name = gang.metadata.name.clone().unwrap_or_default();
    let reservation = status.reservation.into_iter();
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
    let key = (namespace.clone(), name.clone());
    let admission = status.admission.as_ref();
    let slices = admission.map(|admission| slices(&admission.charge));
    Decision {
        position: positions.get(&key).copied(),
        gives_way: status.preemption.map(gives_way),
        victims: reservation
            .flat_map(|kept| kept.victims)
            .map(|victim| victim.gang)
            .collect(),
        namespace,
        name,
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
        slices: slices.unwrap_or_default(),
        reason,
        details,
    }
}

fn slices(charge: &Charge) -> Vec<SliceClaims> {
    let groups = charge.claims.iter();
    let parts = groups.filter(|group| group.gpus_milli % Amount::ONE_GPU.0 != 0);
    let parts = parts.map(|group| SliceClaims {
        claims: group.uids.len(),
        flavor: group.flavor.clone(),
        gpus: quantity::written(&Resource::Gpus, Amount(group.gpus_milli)),
        vram: (group.vram_bytes != 0)
            .then(|| quantity::written(&Resource::Vram, Amount(group.vram_bytes))),
    });
    parts.collect()
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
