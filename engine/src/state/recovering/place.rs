//! Whether what an attempt held has its place still.

use std::{cmp::Reverse, collections::BTreeSet};

use crate::{
    model::{HeldClaim, Hold, PodResources},
    names::DeviceName,
    placement::{NodeRecord, Occupancy},
    state::State,
};

impl State {
    /// Whether what is held has its place still: its node may be planned on, and nothing is wrong with its devices. `must_be_free`: nor does anybody
    /// else have them; of a claim whose devices nobody knows, others that are free are taken.
    pub(super) fn find_place(&self, hold: &mut Hold, must_be_free: bool) -> bool {
        let slot = self.cluster.slot_of(&hold.node);
        let Some(record) = slot.and_then(|slot| self.cluster.record(slot)) else {
            return false;
        };
        self.cluster.note_visits(1);
        if record.node.block.is_some() {
            return false;
        }
        // Where a place is kept for the head of a line nothing is free to most, and nobody has it all the same.
        let now = self.cluster.free_on_held_back(&hold.node);
        let now = now.unwrap_or(&record.now);
        let mut left_free = now.clone();
        // What another claim of the pod is known to have had is no other's.
        for name in hold.claims.iter().flat_map(|it| &it.devices).flatten() {
            let at = record.device_named(name);
            if let Some(at) = at.filter(|at| left_free.free.contains(*at)) {
                left_free.take(&record.kind, at);
            }
        }
        let mut chosen: Vec<Option<Vec<DeviceName>>> = Vec::with_capacity(hold.claims.len());
        for claim in &hold.claims {
            let Some(devices) = &claim.devices else {
                let Some(names) = alike_devices(record, claim, &mut left_free) else {
                    return false;
                };
                chosen.push(Some(names));
                continue;
            };
            let are_well = devices.iter().all(|name| {
                let Some(at) = record.device_named(name) else {
                    return false;
                };
                let device = record.node.devices.get(at);
                device.is_some_and(|device| device.healthy)
                    && (!must_be_free || now.free.contains(at))
            });
            if !are_well {
                return false;
            }
            chosen.push(None);
        }
        for (claim, devices) in hold.claims.iter_mut().zip(chosen) {
            if devices.is_some() {
                claim.devices = devices;
            }
        }
        if must_be_free {
            // What its pods took besides nobody knows any more.
            hold.resources = PodResources::default();
        }
        true
    }
}

/// Devices that nobody has for a claim whose own nobody knows any more: of its Flavor, all of one size, and charged just as much. Of several sizes it is
/// the one of which the memory is charged as well, then the largest. They are taken from what is free.
fn alike_devices(
    record: &NodeRecord,
    claim: &HeldClaim,
    free: &mut Occupancy,
) -> Option<Vec<DeviceName>> {
    let charged = claim.gpus.0;
    if charged <= 0 {
        return Some(Vec::new());
    }
    let of_flavor = || {
        let devices = record.node.devices.iter().enumerate();
        devices.filter(|(_, device)| device.healthy && device.flavors.contains(&claim.flavor))
    };
    let sizes = of_flavor().filter_map(|(_, device)| {
        let (gpus, vram) = (device.gpus.0, device.vram.0);
        let count = (gpus > 0 && charged % gpus == 0).then(|| charged / gpus)?;
        let is_of_other_memory = vram.checked_mul(count) != Some(claim.vram.0);
        Some((is_of_other_memory, Reverse(gpus), vram))
    });
    let sizes: BTreeSet<(bool, Reverse<i64>, i64)> = sizes.collect();
    for (_, Reverse(gpus), vram) in sizes {
        let mut left = free.clone();
        let mut names = Vec::new();
        let mut missing = charged;
        for (at, device) in of_flavor() {
            let is_of_size = (device.gpus.0, device.vram.0) == (gpus, vram);
            if missing > 0 && is_of_size && left.free.contains(at) {
                missing -= gpus;
                names.push(device.name.clone());
                // Others may be cut of the same.
                left.take(&record.kind, at);
            }
        }
        if missing == 0 {
            *free = left;
            return Some(names);
        }
    }
    None
}
