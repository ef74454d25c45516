//! Whether a device may be given out, by what is published of it.

use k8s_openapi::api::resource::v1::Device;
use muster_api::keys;

use super::has_any;

/// Whether a taint of that effect keeps a device from being given out.
pub(crate) fn repels(effect: &str) -> bool {
    matches!(effect, "NoSchedule" | "NoExecute")
}

/// Whether a taint of that key says that something is wrong with the device. Ours only says that what it was given to is not
/// released yet.
pub(crate) fn is_fault(key: &str) -> bool {
    key != keys::TAINT_HELD
}

/// What its taints say of a device.
#[derive(Clone, Copy)]
pub(super) struct DeviceState {
    pub(super) is_planned: bool,
    /// Whether it may be allocated.
    pub(super) usable: bool,
    /// Whether it may be once what it was given to is released.
    pub(super) healthy: bool,
}

impl DeviceState {
    pub(super) fn of(device: &Device) -> Self {
        let mut repelling = device
            .taints
            .iter()
            .flatten()
            .filter(|taint| repels(&taint.effect));
        let is_planned = is_planned(device);
        let is_faulty = repelling.clone().any(|taint| is_fault(&taint.key));
        Self {
            is_planned,
            usable: is_planned && repelling.next().is_none(),
            healthy: is_planned && !is_faulty,
        }
    }
}

/// Devices that kube-scheduler gives out in ways that the planner does not model (devices shared by several claims, devices
/// that are bound later, devices that go with some others only) are never planned.
fn is_planned(device: &Device) -> bool {
    let mut drawn = device.consumes_counters.iter().flatten();
    !has_any(device.binding_conditions.as_ref())
        && device.allow_multiple_allocations != Some(true)
        && device.node_selector.is_none()
        && device.all_nodes != Some(true)
        && drawn.all(|of| !has_any(of.compatibility_groups.as_ref()))
}
