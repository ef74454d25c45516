//! Whether what an attempt held has its place still.

use std::collections::BTreeSet;

use crate::{
    model::{Hold, PodResources},
    names::DeviceName,
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
        let mut taken: BTreeSet<usize> = BTreeSet::new();
        let mut chosen: Vec<Option<Vec<DeviceName>>> = Vec::with_capacity(hold.claims.len());
        for claim in &hold.claims {
            let Some(devices) = &claim.devices else {
                let (mut left, mut names) = (claim.gpus.0, Vec::new());
                for (at, device) in record.node.devices.iter().enumerate() {
                    let is_of_it = device.flavors.contains(&claim.flavor) && device.healthy;
                    let is_free = record.now.free.contains(at) && !taken.contains(&at);
                    if is_of_it && is_free && (1..=left).contains(&device.gpus.0) {
                        left -= device.gpus.0;
                        names.push(device.name.clone());
                        taken.insert(at);
                    }
                }
                if left > 0 {
                    return false;
                }
                chosen.push(Some(names));
                continue;
            };
            let are_well = devices.iter().all(|name| {
                let Some(at) = record.device_named(name) else {
                    return false;
                };
                let device = record.node.devices.get(at);
                device.is_some_and(|device| device.healthy)
                    && (!must_be_free || record.now.free.contains(at))
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
