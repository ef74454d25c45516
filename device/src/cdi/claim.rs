//! The spec of a claim.

use std::{collections::BTreeMap, path::Path};

use super::{
    Failure,
    nodes::{Capabilities, MODESET, NVIDIA_MAJOR},
    spec::{Device, DeviceNode, Edits, Spec, VERSION},
};

/// Class of the devices: they exist for one claim.
pub(super) const CLASS: &str = "claim";

/// A GPU of a claim, or a slice of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedGpu {
    /// Name of the device in its pool.
    pub device: String,
    /// UUID: of the slice, if it is one, else of the GPU. Containers find it by this.
    pub uuid: String,
    /// Minor number of the GPU.
    pub minor: u32,
    /// The slice of it that the claim has; the whole GPU without.
    pub slice: Option<MigSlice>,
}

/// A slice of a GPU: a compute instance in a GPU instance, numbered as NVML does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigSlice {
    /// The GPU instance, which has memory of its own.
    pub gpu_instance: u32,
    /// The compute instance in it.
    pub compute_instance: u32,
}

/// The spec with these GPUs, each once however many requests have it, and what every container with one of them gets.
pub(super) fn spec(
    vendor: &str,
    claim_uid: &str,
    gpus: &[ClaimedGpu],
    annotations: BTreeMap<String, String>,
    mut common: Edits,
    proc: &Path,
) -> Result<Spec, Failure> {
    let mut once: Vec<&ClaimedGpu> = Vec::new();
    for gpu in gpus {
        if once.iter().all(|known| known.device != gpu.device) {
            once.push(gpu);
        }
    }
    if !once.is_empty() && once.iter().all(|gpu| gpu.slice.is_some()) {
        common.device_nodes.retain(|node| node.path != MODESET);
    }
    let uuids: Vec<&str> = once.iter().map(|gpu| gpu.uuid.as_str()).collect();
    let mut env = vec![
        format!("MUSTER_VISIBLE_GPUS={}", uuids.join(",")),
        // NVIDIA's runtime, where it is the default one, would add what this names: by itself, whatever the image says.
        "NVIDIA_VISIBLE_DEVICES=void".to_owned(),
    ];
    env.extend(common.env);
    let capabilities = Capabilities::new(proc);
    let devices: Result<Vec<_>, Failure> = once
        .into_iter()
        .map(|gpu| device(claim_uid, gpu, &capabilities))
        .collect();
    Ok(Spec {
        cdi_version: VERSION.to_owned(),
        kind: format!("{vendor}/{CLASS}"),
        annotations,
        devices: devices?,
        container_edits: Edits { env, ..common },
    })
}

/// Its variable is its own, so that a container with several claims, or with some requests of one, sees
/// exactly what it got; `MUSTER_VISIBLE_GPUS` is the whole claim, and with several claims the last one.
fn device(
    claim_uid: &str,
    gpu: &ClaimedGpu,
    capabilities: &Capabilities<'_>,
) -> Result<Device, Failure> {
    let variable = gpu.device.to_ascii_uppercase().replace('-', "_");
    let mut device_nodes = vec![DeviceNode::character(
        format!("/dev/nvidia{}", gpu.minor),
        NVIDIA_MAJOR,
        i64::from(gpu.minor),
    )];
    if let Some(slice) = gpu.slice {
        device_nodes.extend(capabilities.of_slice(gpu.minor, slice)?);
    }
    Ok(Device {
        name: format!("{claim_uid}-{}", gpu.device),
        container_edits: Edits {
            env: vec![format!("MUSTER_{variable}={}", gpu.uuid)],
            device_nodes,
            ..Edits::default()
        },
    })
}
