//! The process runtime's record: which container got which GPUs, from when to when.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

/// One line of the record.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Line {
    pub(super) event: Event,
    pub(super) pod_namespace: String,
    pub(super) pod_name: String,
    pub(super) pod_uid: String,
    pub(super) container_id: String,
    #[serde(default)]
    pub(super) cdi_devices: Option<Vec<String>>,
    #[serde(default)]
    pub(super) env: Option<BTreeMap<String, String>>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(super) enum Event {
    Started,
    Exited,
}

/// A container that runs with devices.
#[derive(Clone, Debug)]
pub(super) struct Container {
    pub(super) node: String,
    pub(super) pod: String,
    pub(super) pod_uid: String,
    /// Claims by which it got devices.
    pub(super) claims: BTreeSet<String>,
    /// Devices, each with the claim by which it came.
    pub(super) devices: BTreeMap<String, String>,
    /// GPUs by UUID, as the container was told.
    pub(super) gpus: BTreeSet<String>,
}

/// Length of a UID, by which a CDI device name `CLAIM-DEVICE` is taken apart.
const UID_LENGTH: usize = 36;

impl Container {
    /// The container of a `started` line; `None` if it got no device of ours.
    pub(super) fn of(node: &str, line: &Line) -> Option<Self> {
        let mut devices = BTreeMap::new();
        for id in line.cdi_devices.iter().flatten() {
            let Some(name) = id.strip_prefix("gpu.muster.dev/claim=") else {
                continue;
            };
            let (claim, device) = name.split_at_checked(UID_LENGTH)?;
            devices.insert(device.trim_start_matches('-').to_owned(), claim.to_owned());
        }
        if devices.is_empty() {
            return None;
        }
        let gpus = line
            .env
            .iter()
            .flatten()
            .filter(|(name, _)| *name == "MUSTER_VISIBLE_GPUS");
        Some(Self {
            node: node.to_owned(),
            pod: format!("{}/{}", line.pod_namespace, line.pod_name),
            pod_uid: line.pod_uid.clone(),
            claims: devices.values().cloned().collect(),
            gpus: gpus
                .flat_map(|(_, value)| value.split(','))
                .map(str::to_owned)
                .collect(),
            devices,
        })
    }
}
