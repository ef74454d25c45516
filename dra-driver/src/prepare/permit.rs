//! What the controller permits, read from its `NodeDevices`.

use muster_api::{Held, NodeDevices, Permit, Reason};

use super::{
    claim::Claim,
    disk::{Disk, Record},
    effect::{Inventory, Refusal},
};

/// Whether a live permit lets `claim` have its devices, and its charge covers them.
///
/// The permit must name the claim by UID (or by the name that kube-scheduler's own claims are permitted by), and a pod that the claim is
/// reserved for. What a claim costs is charged
/// once, so it may stand in the permit of any pod that shares it: every live permit that names the claim is
/// looked at. `any_claim` breaks the rule that the permit must name the claim (a bug).
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
        .filter(|permit| any_claim || names(permit, claim.permitted_as()))
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
    let charges: Vec<Amount> = live
        .iter()
        .flat_map(|permit| &permit.charge.claims)
        .filter(|charge| charge.uids.iter().any(|uid| uid == claim.permitted_as()))
        .map(|charge| Amount {
            gpus_milli: charge.gpus_milli,
            vram_bytes: charge.vram_bytes,
        })
        .collect();
    let taken = taken(claim, inventory);
    // One of them, whole: what two charges cover together was never admitted together.
    if taken == Amount::default() || charges.iter().any(|charge| charge.covers(taken)) {
        return Ok(());
    }
    let largest = charges.into_iter().max().unwrap_or_default();
    Err(charge_exceeded(claim, taken, largest))
}

/// Whether the permit names what stands for a claim.
pub(super) fn names(permit: &Permit, permitted_as: &str) -> bool {
    permit.claim_uids.iter().any(|uid| uid == permitted_as)
}

/// Whether no other claim has devices by the name that this one is permitted by. A charge covers one of them: anybody may write a claim that
/// says that kube-scheduler made it for a pod.
pub(super) fn check_name(disk: &Disk, claim: &Claim) -> Result<(), Refusal> {
    if claim.by_name.is_none() {
        return Ok(());
    }
    let mut others = disk
        .records
        .values()
        .filter(|other| other.holds() && other.claim.uid != claim.reference.uid);
    let Some(other) = others.find(|other| other.by_name == claim.by_name) else {
        return Ok(());
    };
    Err(Refusal {
        reason: Some(Reason::NoPermit),
        is_overlap: false,
        message: format!(
            "claim {}: what its pod asks for by the name of a resource claim {} holds, and the permit is for one of them",
            claim.reference, other.claim
        ),
    })
}

/// What a claim takes, or is charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Amount {
    /// Thousandths of a GPU.
    gpus_milli: i64,
    /// Bytes of device memory. In a charge, 0 says that no quota of the Team names memory: it is not counted, and the
    /// GPUs alone bound what may be taken.
    vram_bytes: i64,
}

impl Amount {
    fn covers(self, taken: Self) -> bool {
        let memory_is_covered = self.vram_bytes == 0 || taken.vram_bytes <= self.vram_bytes;
        taken.gpus_milli <= self.gpus_milli && memory_is_covered
    }
}

fn no_permit(node: &str, claim: &Claim) -> Refusal {
    let pods = if claim.pods.is_empty() {
        "no pod".to_owned()
    } else {
        format!("pod UID {}", claim.pods.join(", "))
    };
    Refusal {
        reason: Some(Reason::NoPermit),
        is_overlap: false,
        message: format!(
            "claim {} is reserved for {pods}, and no live permit on node {node} names both; \
             the controller permits it once the pod's gang is admitted here",
            claim.reference
        ),
    }
}

fn charge_exceeded(claim: &Claim, taken: Amount, charged: Amount) -> Refusal {
    let memory = if charged.vram_bytes == 0 {
        String::new()
    } else {
        format!(
            ", and {} bytes of device memory of {} charged",
            taken.vram_bytes, charged.vram_bytes
        )
    };
    Refusal {
        reason: Some(Reason::ChargeExceeded),
        is_overlap: false,
        message: format!(
            "claim {} was allocated {} thousandths of a GPU, and its permit is charged {}{memory}; \
             what was admitted is what may be allocated",
            claim.reference, taken.gpus_milli, charged.gpus_milli
        ),
    }
}

/// What the allocation takes. What is too large to count is covered by nothing that the engine admits. A device that the
/// node does not have counts nothing here, and is never recorded.
fn taken(claim: &Claim, inventory: &Inventory) -> Amount {
    claim
        .devices
        .iter()
        .flatten()
        .filter(|device| !device.admin_access)
        .filter_map(|device| inventory.get(&device.device))
        .fold(Amount::default(), |sum, facts| Amount {
            gpus_milli: sum.gpus_milli.saturating_add(facts.gpus_milli),
            vram_bytes: sum.vram_bytes.saturating_add(facts.memory_bytes),
        })
}

/// What is recorded without a live permit, ascending by what is listed as the claim's UID: what stands for it in permits, so that the
/// controller finds it by that.
pub(super) fn held(disk: &Disk, node_devices: Option<&NodeDevices>) -> Vec<Held> {
    let permitted = |record: &Record| {
        node_devices.is_some_and(|object| {
            let mut live = object
                .spec
                .permits
                .iter()
                .filter(|permit| !permit.withdrawn);
            live.any(|permit| names(permit, record.permitted_as()))
        })
    };
    let mut held: Vec<Held> = disk
        .records
        .values()
        .filter(|record| record.holds() && !permitted(record))
        .map(|record| Held {
            claim_uid: record.permitted_as().to_owned(),
            namespace: record.claim.namespace.clone(),
            name: record.claim.name.clone(),
            pod_uid: record.pods.first().cloned(),
            devices: record
                .devices
                .iter()
                .map(|device| device.device.clone())
                .collect(),
        })
        .collect();
    held.sort_by(|one, other| one.claim_uid.as_str().cmp(other.claim_uid.as_str()));
    held
}
