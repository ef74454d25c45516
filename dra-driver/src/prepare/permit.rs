//! What the controller permits, read from its `NodeDevices`.

use muster_api::{Held, NodeDevices, Permit, Reason};

use super::{
    claim::Claim,
    disk::Disk,
    effect::{Inventory, Refusal},
};

/// Whether a live permit lets `claim` have its devices, and its charge covers them.
///
/// The permit must name the claim by UID, and a pod that the claim is reserved for. What a claim costs is charged
/// once, so it may stand in the permit of any pod that shares it: every live permit that names the claim is
/// looked at. `any_claim` breaks the rule that the permit must name the claim (a mutation).
pub(super) fn check(
    node_devices: &NodeDevices,
    node: &str,
    claim: &Claim,
    inventory: &Inventory,
    any_claim: bool,
) -> Result<(), Refusal> {
    let live: Vec<&Permit> = node_devices
        .spec
        .permits
        .iter()
        .filter(|permit| !permit.withdrawn)
        .filter(|permit| any_claim || permit.claim_uids.contains(&claim.reference.uid))
        .collect();
    if !live
        .iter()
        .any(|permit| claim.pods.contains(&permit.pod_uid))
    {
        return Err(no_permit(node, claim));
    }
    if any_claim {
        return Ok(());
    }
    let charged = live
        .iter()
        .flat_map(|permit| &permit.charge.claims)
        .filter(|charge| charge.uids.contains(&claim.reference.uid))
        .map(|charge| (charge.gpus_milli, charge.vram_bytes))
        .max()
        .unwrap_or_default();
    let taken = taken(claim, inventory);
    // Memory that no quota names is charged as nothing; the GPUs then bound what may be taken.
    let exceeds_memory = charged.1 > 0 && taken.1 > charged.1;
    if taken.0 > charged.0 || exceeds_memory {
        return Err(charge_exceeded(claim, taken, charged));
    }
    Ok(())
}

fn no_permit(node: &str, claim: &Claim) -> Refusal {
    let pods = if claim.pods.is_empty() {
        "no pod".to_owned()
    } else {
        format!("pod UID {}", claim.pods.join(", "))
    };
    Refusal {
        reason: Some(Reason::NoPermit),
        message: format!(
            "claim {} is reserved for {pods}, and no live permit on node {node} names both; \
             the controller permits it once the pod's gang is admitted here",
            claim.reference
        ),
    }
}

fn charge_exceeded(claim: &Claim, taken: (i64, i64), charged: (i64, i64)) -> Refusal {
    Refusal {
        reason: Some(Reason::ChargeExceeded),
        message: format!(
            "claim {} was allocated {} thousandths of a GPU and {} bytes of memory, but its permit is charged {} and {}",
            claim.reference, taken.0, taken.1, charged.0, charged.1
        ),
    }
}

/// Thousandths of a GPU and bytes that the allocation takes. What is too large to count covers nothing.
fn taken(claim: &Claim, inventory: &Inventory) -> (i64, i64) {
    claim
        .devices
        .iter()
        .flatten()
        .filter(|device| !device.admin_access)
        .filter_map(|device| inventory.get(&device.device))
        .fold((0_i64, 0_i64), |(gpus, bytes), facts| {
            (
                gpus.saturating_add(facts.gpus_milli),
                bytes.saturating_add(facts.memory_bytes),
            )
        })
}

/// What is recorded without a live permit, ascending by claim UID.
pub(super) fn held(disk: &Disk, node_devices: Option<&NodeDevices>) -> Vec<Held> {
    let permitted = |uid: &String| {
        node_devices.is_some_and(|object| {
            object
                .spec
                .permits
                .iter()
                .any(|permit| !permit.withdrawn && permit.claim_uids.contains(uid))
        })
    };
    disk.records
        .values()
        .filter(|record| record.holds() && !permitted(&record.claim.uid))
        .map(|record| Held {
            claim_uid: record.claim.uid.clone(),
            namespace: record.claim.namespace.clone(),
            name: record.claim.name.clone(),
            pod_uid: record.pods.first().cloned(),
            devices: record
                .devices
                .iter()
                .map(|device| device.device.clone())
                .collect(),
        })
        .collect()
}
