//! S6: nothing stays charged, reserved, prepared or tainted without a cause.
//!
//! The cause is always the same: a pod that holds the claim is alive, or a container of it runs. It is looked for in
//! the API server's objects and in the runtimes' records. A gang is charged as a whole, so what its Gang and the Ledger say stands as long as any
//! pod of the attempt is there: for how long a kubelet ends the others is not Muster's. What a permit says stands as long as its own pod, or until
//! the driver of its node lists the claim no more; each is due by itself. What is looked at is everything that Muster, or Kubernetes
//! on its behalf, leaves behind: charges, allocations, taints, the driver's files on the nodes, and slices on the cards.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use muster_api::keys;

use super::{
    charges::{self, Charges},
    containers::Containers,
    disk::Remains,
    hardware::Part,
    world::{self, World},
};

/// Which pods have held each claim that something is left of, by claim UID.
#[derive(Debug, Default)]
pub(super) struct Holders {
    pods: BTreeMap<String, BTreeSet<String>>,
}

impl Holders {
    /// A claim was written.
    pub(super) fn note(&mut self, claim: &k8s_openapi::api::resource::v1::ResourceClaim) {
        let holders = world::reserved_for(claim).map(str::to_owned);
        let known = self.pods.entry(world::uid(claim)).or_default();
        known.extend(holders);
    }

    /// Forgets claims that are gone and of which nothing is left.
    pub(super) fn forget(&mut self, world: &World, charges: &Charges, remains: &Remains) {
        self.pods.retain(|claim, _| {
            world.claims.contains_key(claim)
                || charges.claims.contains_key(claim)
                || remains.names(claim)
        });
    }

    fn has_cause(&self, claim: &str, world: &World, containers: &Containers) -> bool {
        let holders = self.pods.get(claim).into_iter().flatten();
        let mut holders = holders.map(String::as_str);
        let is_held = holders.any(|pod| world.is_alive(pod));
        let mut open = containers.running();
        is_held || open.any(|container| container.devices.values().any(|of| of == claim))
    }
}

/// Everything that is there, each with whether it has a cause.
pub(super) fn everything(
    world: &World,
    charges: &Charges,
    holders: &Holders,
    containers: &Containers,
    remains: &Remains,
    slices: &BTreeMap<String, Vec<Part>>,
) -> Vec<(String, bool)> {
    let has_cause = |claim: &str| holders.has_cause(claim, world, containers);
    let mut all = Vec::new();
    let living = world.pods.keys().filter(|pod| world.is_alive(pod));
    let in_containers = containers.running().map(|container| &container.pod_uid);
    let alive: BTreeSet<&String> = living.chain(in_containers).collect();
    for (uid, charged) in &charges.claims {
        for (place, pods) in &charged.named_by {
            let own: &BTreeSet<String> = if pods.is_empty() { &charged.pods } else { pods };
            // A charge that names no pod belongs to an adopted claim, whose pods are not fixed.
            let is_caused = own.is_empty()
                || own.iter().any(|pod| alive.contains(pod))
                || is_said_to_be_held(world, uid);
            all.push((still_charged(uid, place), is_caused));
        }
    }
    for (uid, claim) in &world.claims {
        if world::allocated_devices(claim) > 0 {
            let namespace = claim.namespace().unwrap_or_default();
            let what = format!("claim {namespace}/{} is still allocated", claim.name_any());
            all.push((what, has_cause(uid)));
        }
    }
    for remain in remains.iter() {
        all.push((remain.to_string(), has_cause(&remain.claim)));
    }
    for (node, device) in tainted(world) {
        let is_caused = match world.node_devices.get(node).map(|node| &node.status) {
            // Without the controller's object the driver answers to nobody; its files are judged above.
            None => remains.iter().any(|remain| remain.node == node),
            Some(status) => status.iter().any(|status| {
                let mut held = status.held.iter().flat_map(|held| &held.devices);
                held.any(|held| gpu_of(held) == gpu_of(device))
            }),
        };
        let what = format!("{device} of {node} is still tainted as held");
        all.push((what, is_caused));
    }
    for (node, slices) in slices {
        // Which claim a slice was made for no card knows. On a node without any claim none was.
        let mut running = containers.running();
        let is_caused = remains.iter().any(|remain| remain.node == *node)
            || running.any(|container| container.node == *node);
        let left = slices.iter();
        all.extend(left.map(|part| (format!("{part} of {node} is still cut off"), is_caused)));
    }
    all
}

fn still_charged(claim: &str, place: &str) -> String {
    format!("claim {claim} is still charged ({place})")
}

/// What Gangs say is charged for attempts of which a pod of a Job failed, as [`everything`] calls it: it may not be known at once what it died of, and the attempt is
/// not ended before that. It is where nobody said how often the gang may be started anew, and where no pod says of itself that somebody took it. What the Ledger and
/// permits say is due as ever: there is an intent only once there is no doubt, and a permit ends with its own pod.
pub(super) fn in_doubt(world: &World) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for gang in world.gangs.values() {
        let status = gang.status.as_ref();
        let Some(admission) = status.and_then(|status| status.admission.as_ref()) else {
            continue;
        };
        if gang.spec.restart.max_restarts.is_some() {
            continue;
        }
        let pods = admission.pods.iter();
        let pods: Vec<&Pod> = pods.filter_map(|pod| world.pods.get(&pod.uid)).collect();
        let has_failed = pods.iter().any(|pod| is_failed_pod_of_a_job(pod));
        if has_failed && !pods.iter().any(|pod| was_taken(pod)) {
            let place = charges::place_of(gang);
            let claims = admission.charge.claims.iter();
            let uids = claims.flat_map(|group| &group.uids);
            found.extend(uids.map(|uid| still_charged(uid, &place)));
        }
    }
    found
}

fn is_failed_pod_of_a_job(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let mut owners = pod.metadata.owner_references.iter().flatten();
    status.is_some_and(|status| status.phase.as_deref() == Some("Failed"))
        && owners.any(|owner| owner.kind == "Job")
}

/// Whether a pod that failed says that something other than what ran in it ended it. Of one that somebody removes by now it is not known which came first.
fn was_taken(pod: &Pod) -> bool {
    let Some(status) = pod.status.as_ref() else {
        return false;
    };
    let mut conditions = status.conditions.iter().flatten();
    status.phase.as_deref() == Some("Failed")
        && pod.metadata.deletion_timestamp.is_none()
        && conditions.any(|it| it.type_ == "DisruptionTarget" && it.status == "True")
}

/// The device that is the whole GPU of a device: who holds a slice keeps others from its GPU, and from the slices that overlap it.
fn gpu_of(device: &str) -> &str {
    device.split_once("-mig-").map_or(device, |(gpu, _)| gpu)
}

/// The driver of some node lists the claim as held: the proof of its release is not there yet.
fn is_said_to_be_held(world: &World, claim: &str) -> bool {
    let statuses = world.node_devices.values().flat_map(|node| &node.status);
    let mut held = statuses.flat_map(|status| &status.held);
    held.any(|held| held.claim_uid == claim)
}

/// Devices that carry the taint of devices that are held without a permit, each with its node.
fn tainted(world: &World) -> impl Iterator<Item = (&str, &str)> {
    let slices = world.slices.values();
    let ours = slices.filter(|slice| slice.spec.driver == keys::DRIVER);
    ours.flat_map(|slice| {
        let node = slice.spec.node_name.as_deref().unwrap_or_default();
        let devices = slice.spec.devices.iter().flatten();
        let tainted = devices.filter(|device| {
            let mut taints = device.taints.iter().flatten();
            taints.any(|taint| taint.key == keys::TAINT_HELD)
        });
        tainted.map(move |device| (node, device.name.as_str()))
    })
}
