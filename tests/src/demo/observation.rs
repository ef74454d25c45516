//! What the API server shows of gangs, their pods and their GPUs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::{Duration, Instant},
};

use anyhow::Result;
use k8s_openapi::{
    api::{
        core::v1::{Node, Pod},
        resource::v1::{ResourceClaim, ResourceSlice},
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{Api, Client, Resource, ResourceExt, api::ListParams};
use muster_api::{Gang, GangPhase, keys};
use serde::de::DeserializeOwned;

use super::{
    cast::LEAF_LABEL,
    report::{DemoReport, FaultReport, GangReport},
};
use crate::{
    gangs,
    kubernetes::{is_terminal, list},
    observer::Verdict,
};

/// What was seen of one gang, over all looks: nodes and GPUs stay known after its pods have ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Seen {
    pub(super) team: String,
    pub(super) phase: GangPhase,
    pub(super) reason: Option<String>,
    pub(super) charged_gpus_milli: i64,
    pub(super) nodes: BTreeSet<String>,
    pub(super) leaves: BTreeSet<String>,
    pub(super) gpus: BTreeSet<String>,
    /// Of those pods only that are not being ended.
    pub(super) nodes_now: BTreeSet<String>,
    pub(super) leaves_now: BTreeSet<String>,
    /// Since when it queues: its place in the queue.
    pub(super) queued_at: Option<Time>,
    /// Its attempts that had a place, by the UID of the Gang: one that was deleted and made again counts its own.
    attempts: BTreeSet<(String, i64)>,
    /// What it is told about giving way, as long as it is.
    pub(super) notice: Option<String>,
    /// Why it was evicted, by attempt.
    pub(super) evictions: BTreeMap<(String, i64), String>,
    told_since: Option<Instant>,
    pub(super) evicted_since: Option<Instant>,
    complete_since: Option<Instant>,
    running_since: Option<Instant>,
}

/// The fault of a device, as it is published.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SeenFault {
    /// Its taint, as `key=value`.
    pub(super) taint: String,
    since: Instant,
}

/// Everything that was seen, by `namespace/owner`.
pub(super) struct Observation {
    client: Client,
    pub(super) gangs: BTreeMap<String, Seen>,
    /// The devices that have a fault now, by node and name.
    pub(super) faulty: BTreeMap<(String, String), SeenFault>,
}

impl Observation {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            gangs: BTreeMap::new(),
            faulty: BTreeMap::new(),
        }
    }

    /// Looks once.
    pub(super) async fn look(&mut self) -> Result<()> {
        let now = Instant::now();
        let client = &self.client;
        let (mut gangs, pods, claims, slices, nodes) = tokio::try_join!(
            list::<Gang>(client, None),
            list::<Pod>(client, None),
            list::<ResourceClaim>(client, None),
            everywhere::<ResourceSlice>(client),
            everywhere::<Node>(client),
        )?;
        let uuids = uuids_by_device(&slices);
        let leaves = leaves_by_node(&nodes);
        self.take_faults(&slices, now);
        // Of several Gangs of one owner the latest is what it is now.
        gangs.sort_by_key(|gang| gang.creation_timestamp().map(|at| at.0));
        for gang in &gangs {
            let members: Vec<&Pod> = pods.iter().filter(|pod| is_member(pod, gang)).collect();
            let seen = self.gangs.entry(name_of(gang)).or_default();
            seen.take_status(gang, now);
            seen.nodes_now.clear();
            seen.leaves_now.clear();
            for pod in &members {
                seen.take_pod(pod, &claims, &uuids, &leaves);
            }
            let size = usize::try_from(gang.spec.size).unwrap_or(usize::MAX);
            if members.len() >= size || seen.phase != GangPhase::Assembling {
                seen.complete_since.get_or_insert(now);
            }
            if members.len() >= size && members.iter().all(|pod| has_phase(pod, "Running")) {
                seen.running_since.get_or_insert(now);
            }
        }
        Ok(())
    }

    fn take_faults(&mut self, slices: &[ResourceSlice], now: Instant) {
        let mut faulty = BTreeMap::new();
        for slice in slices {
            for device in slice.spec.devices.iter().flatten() {
                let mut taints = device.taints.iter().flatten();
                let Some(taint) = taints.find(|taint| taint.key == keys::TAINT_FAULT) else {
                    continue;
                };
                let key = (slice.spec.pool.name.clone(), device.name.clone());
                let since = self.faulty.get(&key).map_or(now, |before| before.since);
                let value = taint.value.as_deref().unwrap_or_default();
                let taint = format!("{}={value}", taint.key);
                faulty.insert(key, SeenFault { taint, since });
            }
        }
        self.faulty = faulty;
    }

    /// The taint of a device that has a fault, and when it was first seen.
    pub(super) fn fault_of(&self, node: &str, device: &str) -> Option<(&str, Instant)> {
        let fault = self.faulty.get(&(node.to_owned(), device.to_owned()))?;
        Some((fault.taint.as_str(), fault.since))
    }

    pub(super) fn is_running(&self, team: &str, name: &str) -> bool {
        self.seen(team, name)
            .is_some_and(|seen| seen.running_since.is_some())
    }

    pub(super) fn is_told_to_give_way(&self, team: &str, name: &str) -> bool {
        self.seen(team, name)
            .is_some_and(|seen| seen.told_since.is_some())
    }

    pub(super) fn is_evicted(&self, team: &str, name: &str) -> bool {
        self.seen(team, name)
            .is_some_and(|seen| seen.evicted_since.is_some())
    }

    /// In a later attempt than its first.
    pub(super) fn is_running_again(&self, team: &str, name: &str) -> bool {
        self.seen(team, name)
            .is_some_and(|seen| seen.phase == GangPhase::Running && seen.attempts.len() > 1)
    }

    pub(super) fn waits(&self, team: &str, name: &str) -> bool {
        self.seen(team, name)
            .is_some_and(|seen| seen.phase == GangPhase::Pending && seen.reason.is_some())
    }

    pub(super) fn has_ended(&self, team: &str, name: &str) -> bool {
        self.seen(team, name)
            .is_some_and(|seen| seen.phase == GangPhase::Finished)
    }

    /// What was seen of a gang.
    pub(super) fn seen(&self, team: &str, name: &str) -> Option<&Seen> {
        self.gangs.get(&format!("{team}/{name}"))
    }

    /// The report of everything that was seen.
    pub(super) fn report(
        &self,
        fault: FaultReport,
        kubernetes: String,
        took: Duration,
        verdict: Verdict,
    ) -> DemoReport {
        let gangs = self.gangs.iter().map(|(name, seen)| GangReport {
            name: name.clone(),
            team: seen.team.clone(),
            phase: format!("{:?}", seen.phase),
            nodes: seen.nodes.iter().cloned().collect(),
            leaves: seen.leaves.iter().cloned().collect(),
            gpus: seen.gpus.iter().cloned().collect(),
            wait_seconds: seen.wait().map(tenths),
            attempts: seen.attempts.len(),
            notice_seconds: seen.notice_lasted().map(tenths),
            evictions: seen.evictions.values().cloned().collect(),
        });
        DemoReport {
            gangs: gangs.collect(),
            fault,
            kubernetes,
            seconds: tenths(took),
            observer: verdict.into(),
        }
    }
}

impl fmt::Display for Observation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, seen) in &self.gangs {
            let reason = seen.reason.as_deref().unwrap_or("");
            writeln!(formatter, "  {name}: {:?} {reason}", seen.phase)?;
        }
        Ok(())
    }
}

impl Seen {
    /// From the last of its pods created until all of them ran.
    fn wait(&self) -> Option<Duration> {
        Some(
            self.running_since?
                .saturating_duration_since(self.complete_since?),
        )
    }

    /// From the first sight of its notice to that of its eviction.
    fn notice_lasted(&self) -> Option<Duration> {
        Some(
            self.evicted_since?
                .saturating_duration_since(self.told_since?),
        )
    }

    fn take_status(&mut self, gang: &Gang, now: Instant) {
        let Some(status) = &gang.status else { return };
        let uid = gang.uid().unwrap_or_default();
        if status.admission.is_some() {
            self.attempts.insert((uid.clone(), status.attempt));
        }
        self.notice = status.preemption.as_ref().map(|notice| {
            let at = notice.preempt_at.0;
            format!("is to end by {at:.0}: {}", notice.message)
        });
        if self.notice.is_some() {
            self.told_since.get_or_insert(now);
        }
        self.evictions
            .extend(status.evictions.iter().map(|eviction| {
                let why = format!("{}: {}", eviction.reason, eviction.message);
                ((uid.clone(), eviction.attempt), why)
            }));
        if !self.evictions.is_empty() {
            self.evicted_since.get_or_insert(now);
        }
        self.phase = status.phase;
        self.queued_at.clone_from(&status.queued_at);
        self.team = status.team.clone().unwrap_or_default();
        self.reason = status
            .queue
            .as_ref()
            .map(|queue| format!("{}: {}", queue.reason, queue.details));
        if let Some(admission) = &status.admission {
            let claims = &admission.charge.claims;
            self.charged_gpus_milli = claims
                .iter()
                .map(|group| group.gpus_milli * i64::try_from(group.uids.len()).unwrap_or(0))
                .sum();
        }
    }

    fn take_pod(
        &mut self,
        pod: &Pod,
        claims: &[ResourceClaim],
        uuids: &BTreeMap<(String, String), String>,
        leaves: &BTreeMap<String, String>,
    ) {
        let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()) else {
            return;
        };
        self.leaves.extend(leaves.get(&node).cloned());
        if pod.metadata.deletion_timestamp.is_none() && !is_terminal(pod) {
            self.leaves_now.extend(leaves.get(&node).cloned());
            self.nodes_now.insert(node.clone());
        }
        self.nodes.insert(node);
        let uid = pod.uid();
        for claim in claims
            .iter()
            .filter(|claim| is_reserved_for(claim, uid.as_deref()))
        {
            let allocation = claim
                .status
                .iter()
                .filter_map(|status| status.allocation.as_ref()?.devices.as_ref());
            for result in allocation.flat_map(|devices| devices.results.iter().flatten()) {
                let device = (result.pool.clone(), result.device.clone());
                self.gpus.extend(uuids.get(&device).cloned());
            }
        }
    }
}

/// All objects of a cluster-scoped kind.
async fn everywhere<K>(client: &Client) -> Result<Vec<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug,
{
    Ok(Api::<K>::all(client.clone())
        .list(&ListParams::default())
        .await?
        .items)
}

/// `namespace/NAME`, with the name of the Job instead of the Gang's where there is one.
fn name_of(gang: &Gang) -> String {
    let owned = gangs::owner_of(gang);
    let (namespace, name) =
        owned.unwrap_or_else(|| (gang.namespace().unwrap_or_default(), gang.name_any()));
    format!("{namespace}/{name}")
}

fn is_member(pod: &Pod, gang: &Gang) -> bool {
    let same_owner = pod.owner_references().iter().any(|owner| {
        gang.owner_references()
            .iter()
            .any(|of_gang| of_gang.uid == owner.uid)
    });
    let named = pod.annotations().get(keys::GANG_NAME) == Some(&gang.name_any());
    pod.namespace() == gang.namespace() && (same_owner || named)
}

fn has_phase(pod: &Pod, phase: &str) -> bool {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        == Some(phase)
}

fn is_reserved_for(claim: &ResourceClaim, pod_uid: Option<&str>) -> bool {
    let reserved = claim
        .status
        .iter()
        .flat_map(|status| status.reserved_for.iter().flatten());
    reserved
        .into_iter()
        .any(|consumer| Some(consumer.uid.as_str()) == pod_uid)
}

/// UUIDs by (pool, device), from the attributes that the driver publishes.
fn uuids_by_device(slices: &[ResourceSlice]) -> BTreeMap<(String, String), String> {
    let mut uuids = BTreeMap::new();
    for slice in slices {
        for device in slice.spec.devices.iter().flatten() {
            let uuid = device
                .attributes
                .as_ref()
                .and_then(|attributes| attributes.get("uuid")?.string.clone());
            if let Some(uuid) = uuid {
                uuids.insert((slice.spec.pool.name.clone(), device.name.clone()), uuid);
            }
        }
    }
    uuids
}

fn leaves_by_node(nodes: &[Node]) -> BTreeMap<String, String> {
    nodes
        .iter()
        .filter_map(|node| Some((node.name_any(), node.labels().get(LEAF_LABEL)?.clone())))
        .collect()
}

/// Seconds with one decimal.
pub(super) fn tenths(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10.0).round() / 10.0
}
