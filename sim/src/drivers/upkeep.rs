//! What a driver does besides preparing: it publishes taints, and looks for claims that the kubelet has forgotten.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::{DeviceTaint, ResourceSlice};
use muster_api::keys;
use muster_dra_driver::prepare::{Input, Orphan};

use super::{Drivers, instance::read_claim};
use crate::{api_server::ApiServer, fixtures, gpu_node::GpuNode, taints};

/// Between two looks for claims that the kubelet has forgotten.
const LOOK_MILLISECONDS: u64 = 300_000;

impl Drivers {
    /// What the newest instance published as tainted, if the slice says otherwise.
    pub(super) fn unpublished(&self, api: &ApiServer, node: &str) -> Option<BTreeSet<String>> {
        let newest = self.instances.last()?;
        let wanted = newest.tainted.as_ref()?;
        let slice = api.get::<ResourceSlice>("", &fixtures::slice_name(node))?;
        let devices = slice.spec.devices.iter().flatten();
        let is: BTreeSet<String> = devices
            .filter(|device| taints::has(device, keys::TAINT_HELD))
            .map(|device| device.name.clone())
            .collect();
        (is != *wanted).then(|| wanted.clone())
    }

    /// As the driver's own look for orphans: what was one twice in a row is given back.
    pub(super) fn look(&mut self, now: u64, api: &ApiServer, node: &GpuNode) {
        self.look_at = now + LOOK_MILLISECONDS;
        let seen = orphans(api, node);
        let twice: Vec<Orphan> = seen.intersection(&self.orphans).cloned().collect();
        self.orphans = seen;
        if let Some(instance) = self.instances.last_mut()
            && !twice.is_empty()
        {
            instance.tell(now, Input::Orphaned(twice));
        }
    }
}

fn orphans(api: &ApiServer, node: &GpuNode) -> BTreeSet<Orphan> {
    let recorded = &node.disk.records;
    let only_told = node
        .cdi
        .iter()
        .filter(|(uid, _)| !recorded.contains_key(*uid));
    recorded
        .iter()
        .chain(only_told)
        .filter_map(|(_, record)| {
            Orphan::of(
                record,
                &node.shape.name,
                &read_claim(api, &record.claim, None),
            )
        })
        .collect()
}

pub(super) fn has_orphans(api: &ApiServer, node: &GpuNode) -> bool {
    !orphans(api, node).is_empty()
}

/// Publishes these devices with the taint, and no others.
pub(super) fn taint(api: &mut ApiServer, node: &str, devices: &BTreeSet<String>) {
    let taint = DeviceTaint {
        key: keys::TAINT_HELD.to_owned(),
        effect: "NoSchedule".to_owned(),
        ..DeviceTaint::default()
    };
    taints::publish(api, node, keys::TAINT_HELD, |device| {
        devices.contains(device).then(|| taint.clone())
    });
}
