//! Faults of devices, as drivers of ours publish them by taints.
//!
//! What a taint means to those who hold the device is decided in [`muster_engine::recovery`]; here it is only read. Taints of others, and
//! rules of administrators, keep devices from being given out ([`crate::taint_rules`]); they say nothing of what runs.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::resource::v1::{Device, DeviceTaint, ResourceSlice};
use muster_api::keys;
use muster_engine::{
    DeviceName,
    recovery::{DeviceFault, FaultClass, FaultKind},
};

use crate::{devices::repels, pools::device_name};

/// A device of a node that has faults now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultyDevice {
    /// What is wrong with it.
    pub faults: Arc<[DeviceFault]>,
    /// Name of the ResourceSlice that says so.
    pub slice: String,
}

/// The faults that the taints of a device tell; `None`: they tell of none.
pub(crate) fn of_device(driver: &str, device: &Device) -> Option<Arc<[DeviceFault]>> {
    if driver != keys::DRIVER {
        return None;
    }
    let taints = device.taints.iter().flatten();
    let faults: Vec<DeviceFault> = taints.filter_map(of_taint).collect();
    (!faults.is_empty()).then(|| faults.into())
}

/// All faults that a slice tells, each with the name of its device: `driver/pool/device`.
pub fn of_slice(slice: &ResourceSlice) -> BTreeSet<(DeviceName, DeviceFault)> {
    let spec = &slice.spec;
    let devices = spec.devices.iter().flatten();
    let faults = devices.flat_map(|device| {
        let name: DeviceName = device_name(&spec.driver, &spec.pool.name, &device.name).into();
        let faults = of_device(&spec.driver, device);
        let faults: Vec<DeviceFault> = faults.iter().flat_map(|it| it.iter().copied()).collect();
        faults.into_iter().map(move |fault| (name.clone(), fault))
    });
    faults.collect()
}

fn of_taint(taint: &DeviceTaint) -> Option<DeviceFault> {
    if !repels(&taint.effect) {
        return None;
    }
    let class = || FaultClass::named(taint.value.as_deref().unwrap_or_default());
    let kind = match taint.key.as_str() {
        keys::TAINT_FAULT => FaultKind::Device(class()),
        keys::TAINT_LINK_FAULT => FaultKind::Links(class()),
        keys::TAINT_GONE => FaultKind::Gone,
        _ => return None,
    };
    // The API server adds it.
    let since = taint.time_added.as_ref();
    Some(DeviceFault {
        kind,
        since_unix_seconds: since.map_or(0, |since| since.0.as_second()),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn slice(driver: &str) -> ResourceSlice {
        let at = "2026-11-27T00:00:07Z";
        let taint = |key: &str, value: &str, effect: &str| json!({"key": key, "value": value, "effect": effect, "timeAdded": at});
        serde_json::from_value(json!({
            "metadata": {"name": "s"},
            "spec": {
                "driver": driver, "nodeName": "n0",
                "pool": {"name": "n0", "generation": 1, "resourceSliceCount": 1},
                "devices": [
                    {"name": "gpu-0", "taints": [
                        taint("gpu.muster.dev/fault", "Reset", "NoSchedule"),
                        taint("gpu.muster.dev/link-fault", "Link", "NoSchedule"),
                        taint("gpu.muster.dev/node-fault", "Reboot", "NoSchedule"),
                        taint("gpu.muster.dev/held", "", "NoSchedule"),
                    ]},
                    {"name": "gpu-1", "taints": [taint("gpu.muster.dev/fault", "Reset", "None")]},
                    {"name": "gpu-2", "taints": [{"key": "gpu.muster.dev/gone", "effect": "NoSchedule"}]},
                    {"name": "gpu-3"},
                ],
            },
        }))
        .unwrap()
    }

    #[test]
    fn what_is_wrong_with_a_device_is_told_by_taints_of_our_driver_that_keep_it_from_being_given_out()
     {
        let found = of_slice(&slice(keys::DRIVER));
        let fault = |device: &str, kind, since_unix_seconds| {
            let name = DeviceName::from(format!("gpu.muster.dev/n0/{device}"));
            let fault = DeviceFault {
                kind,
                since_unix_seconds,
            };
            (name, fault)
        };
        let at = 1_795_737_607;
        let expected: BTreeSet<_> = [
            fault("gpu-0", FaultKind::Device(FaultClass::Reset), at),
            fault("gpu-0", FaultKind::Links(FaultClass::Link), at),
            fault("gpu-2", FaultKind::Gone, 0),
        ]
        .into();
        assert_eq!(found, expected);
        assert!(of_slice(&slice("gpu.example.com")).is_empty());
    }
}
