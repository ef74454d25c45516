//! Taints of a node's devices, as whoever publishes them changes them: each sees to its own key alone.

use k8s_openapi::api::resource::v1::{DeviceTaint, ResourceSlice};

use crate::{
    api_server::{ApiServer, Precondition},
    fixtures,
};

/// Gives each device of the node that `taint` says the taint of that key, and takes it off the others. What other keys say stays.
pub(crate) fn publish(
    api: &mut ApiServer,
    node: &str,
    key: &str,
    taint: impl Fn(&str) -> Option<DeviceTaint>,
) {
    let name = fixtures::slice_name(node);
    let _ = api.update::<ResourceSlice>("", &name, Precondition::default(), |slice| {
        for device in slice.spec.devices.iter_mut().flatten() {
            let mut taints = device.taints.take().unwrap_or_default();
            taints.retain(|known| known.key != key);
            taints.extend(taint(&device.name));
            device.taints = (!taints.is_empty()).then_some(taints);
        }
    });
}

/// Whether a device has a taint of that key.
pub(crate) fn has(device: &k8s_openapi::api::resource::v1::Device, key: &str) -> bool {
    let mut taints = device.taints.iter().flatten();
    taints.any(|taint| taint.key == key)
}
