//! What stands for a device on the hardware of its node, and what a container was really given of it.
//!
//! A program can use what it has device nodes of, whatever its variables say. So what a pod was allocated is compared with the nodes that the
//! runtime was told to put into its container: `/dev/nvidiaN` of the GPU with minor number `N`, and of a slice its two capabilities as well.
//! Minor numbers are those that the cards have, and not those that Muster has read.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use nvidia_ml_mock::{Board, State, mig::capability_minor, mig_uuid};
use serde_json::Value;

/// A device as the hardware of its node has it, while it exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnHardware {
    /// UUID of the GPU, or of the slice.
    pub uuid: String,
    /// Those by which a program can use it, beside those that are the same for all GPUs.
    pub device_nodes: Vec<String>,
}

impl OnHardware {
    /// Finds a device by its name: `gpu-N` is the N-th GPU of its node in PCI order, and of a slice the name ends with the first of its memory
    /// slices.
    pub fn find(state: &State, device: &str) -> Result<Self> {
        let unknown = || format!("there is no device {device}");
        let (gpu, slice) = match device.split_once("-mig-") {
            Some((gpu, slice)) => (gpu, Some(slice)),
            None => (device, None),
        };
        let number = gpu.strip_prefix("gpu-").with_context(unknown)?;
        let number: usize = number.parse().with_context(unknown)?;
        let board = Board::named(&state.board).with_context(unknown)?;
        board.gpus.get(number).with_context(unknown)?;
        let gpu = state.uuid(&board, number);
        let minor = state.minor(&board, number);
        let mut device_nodes = vec![format!("/dev/nvidia{minor}")];
        let Some(slice) = slice else {
            return Ok(Self {
                uuid: gpu,
                device_nodes,
            });
        };
        let (_, start) = slice.rsplit_once('-').with_context(unknown)?;
        let start: u32 = start.parse().with_context(unknown)?;
        let card = state.cards.get(&gpu).with_context(unknown)?;
        let mut instances = card.gpu_instances.iter();
        let instance = instances.find(|instance| instance.placement.start == start);
        let instance = instance.with_context(unknown)?;
        // The whole of it: what begins with its first compute slice.
        let mut parts = instance.compute_instances.iter();
        let part = parts.find(|part| part.placement.start == 0);
        let part = part.with_context(unknown)?;
        for compute_instance in [None, Some(part.id)] {
            let capability = capability_minor(minor, instance.id, compute_instance);
            device_nodes.push(format!("/dev/nvidia-caps/nvidia-cap{capability}"));
        }
        Ok(Self {
            uuid: mig_uuid(&gpu, instance.id, part.placement.start),
            device_nodes,
        })
    }
}

/// The device nodes of GPUs and slices that a pod's container was started with, by the record of its node's runtime: that of the last one that was
/// started.
pub fn of_container(record: &str, namespace: &str, pod: &str) -> Result<BTreeSet<String>> {
    let mut started = None;
    // The runtime writes more of them meanwhile: a line without an end is none yet.
    let lines = record.split_inclusive('\n');
    for line in lines.filter(|line| line.ends_with('\n')) {
        let line: Value =
            serde_json::from_str(line).with_context(|| format!("no line of a record: {line}"))?;
        let is_of_pod = line["podNamespace"] == namespace && line["podName"] == pod;
        if is_of_pod && line["event"] == "started" {
            started = Some(line);
        }
    }
    let started = started
        .with_context(|| format!("the runtime has started no container of {namespace}/{pod}"))?;
    let nodes: Vec<String> = serde_json::from_value(started["deviceNodes"].clone())
        .with_context(|| format!("it does not say which device nodes it has: {started}"))?;
    Ok(nodes.into_iter().filter(|node| is_of_gpu(node)).collect())
}

/// Whether it is that of one GPU or of one slice, and not one that all who have any GPU share.
fn is_of_gpu(device_node: &str) -> bool {
    let rest = device_node.strip_prefix("/dev/nvidia").unwrap_or_default();
    rest.starts_with("-caps/") || rest.starts_with(|first: char| first.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use nvidia_ml_mock::{ComputeInstance, GpuInstance, Placement};
    use serde_json::json;

    use super::*;

    /// A machine whose third GPU has minor number 5, and one slice: the second half of its memory.
    fn state() -> State {
        let mut state = State {
            board: "a30-4".to_owned(),
            seed: "node-0".to_owned(),
            ..State::default()
        };
        let board = Board::named(&state.board).unwrap();
        let gpu = state.uuid(&board, 2);
        let card = state.card(&gpu);
        card.minor = Some(5);
        card.gpu_instances.push(GpuInstance {
            id: 2,
            profile: 5,
            placement: Placement { start: 2, size: 2 },
            compute_instances: vec![ComputeInstance {
                id: 0,
                profile: 1,
                placement: Placement { start: 0, size: 2 },
            }],
        });
        state
    }

    #[test]
    fn a_device_is_found_by_the_minor_number_that_its_card_has() {
        let state = state();
        let board = Board::named(&state.board).unwrap();
        let gpu = |number: usize| state.uuid(&board, number);
        let (capability, of_part) = (
            "/dev/nvidia-caps/nvidia-cap696",
            "/dev/nvidia-caps/nvidia-cap697",
        );
        for (device, uuid, device_nodes) in [
            ("gpu-0", gpu(0), vec!["/dev/nvidia0"]),
            ("gpu-2", gpu(2), vec!["/dev/nvidia5"]),
            (
                "gpu-2-mig-2g12gb-2",
                mig_uuid(&gpu(2), 2, 0),
                vec!["/dev/nvidia5", capability, of_part],
            ),
        ] {
            let found = OnHardware::find(&state, device).unwrap();
            assert_eq!(found.uuid, uuid, "{device}");
            assert_eq!(found.device_nodes, device_nodes, "{device}");
        }
        for device in [
            "gpu-4",
            "gpu-x",
            "nic-0",
            "gpu-2-mig-2g12gb-0",
            "gpu-1-mig-2g12gb-2",
            "gpu-2-mig-2g12gb",
        ] {
            assert!(OnHardware::find(&state, device).is_err(), "{device}");
        }
    }

    fn started(namespace: &str, pod: &str, nodes: &[&str]) -> String {
        let line = json!({"event": "started", "podNamespace": namespace, "podName": pod, "deviceNodes": nodes});
        format!("{line}\n")
    }

    #[test]
    fn a_container_has_what_its_last_start_says_but_for_what_all_share() {
        let nodes = [
            "/dev/nvidiactl",
            "/dev/nvidia-uvm",
            "/dev/nvidia-modeset",
            "/dev/null",
            "/dev/nvidia11",
            "/dev/nvidia-caps/nvidia-cap30",
        ];
        let exited = json!({"event": "exited", "podNamespace": "ml", "podName": "p"});
        let whole = started("ml", "p", &["/dev/nvidia4"]);
        let record = [
            started("ml", "p", &["/dev/nvidia1"]),
            format!("{exited}\n"),
            started("ml", "p", &nodes),
            started("ml", "q", &["/dev/nvidia2"]),
            started("other", "p", &["/dev/nvidia3"]),
            // What is being written.
            whole.trim_end().to_owned(),
        ]
        .concat();
        let has = of_container(&record, "ml", "p").unwrap();
        let has: Vec<&str> = has.iter().map(String::as_str).collect();
        assert_eq!(has, ["/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia11"]);
        assert!(of_container(&record, "ml", "r").is_err());
        assert!(of_container("{\n", "ml", "p").is_err());
    }
}
