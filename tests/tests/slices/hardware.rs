//! What stands for a device on the hardware of its node, and what a container was really given of it.
//!
//! A program can use what it has device nodes of, whatever its variables say. So what a pod was allocated is compared with the nodes that the
//! runtime was told to put into its container: `/dev/nvidiaN` of the GPU with minor number `N`, and of a slice its two capabilities as well.
//! Minor numbers are those that the cards have, and not those that Muster has read.

use std::{collections::BTreeSet, fs};

use anyhow::{Context, Result, ensure};
use muster_tests::{cluster::Cluster, node::Node};
use nvidia_ml_mock::{Board, mig::capability_minor, mig_uuid};
use serde_json::Value;

/// A device as its node's hardware has it, while it exists.
#[derive(Debug)]
pub(crate) struct OnHardware {
    pub(crate) uuid: String,
    /// Those by which a program can use it, beside those that are the same for all GPUs.
    pub(crate) device_nodes: Vec<String>,
}

/// The node with this name.
pub(crate) fn node<'a>(cluster: &'a Cluster, name: &str) -> Result<&'a Node> {
    let mut nodes = cluster.nodes.iter();
    let node = nodes.find(|known| known.name() == name);
    node.with_context(|| format!("there is no node {name}"))
}

/// Device `gpu-N` is the N-th GPU of its node, and of a slice the name ends with the first of its memory slices.
pub(crate) fn find(node: &Node, device: &str) -> Result<OnHardware> {
    let unknown = || format!("there is no device {device} on {}", node.name());
    let (gpu, slice) = match device.split_once("-mig-") {
        Some((gpu, slice)) => (gpu, Some(slice)),
        None => (device, None),
    };
    let number = gpu.strip_prefix("gpu-").with_context(unknown)?;
    let number: usize = number.parse().with_context(unknown)?;
    let uuids = node.gpu_uuids();
    let gpu = uuids.get(number).with_context(unknown)?;
    let state = node.hardware().read()?;
    let board = Board::named(&state.board).with_context(unknown)?;
    let minor = state.minor(&board, number);
    let mut device_nodes = vec![format!("/dev/nvidia{minor}")];
    let Some(slice) = slice else {
        return Ok(OnHardware {
            uuid: gpu.clone(),
            device_nodes,
        });
    };
    let (_, start) = slice.rsplit_once('-').with_context(unknown)?;
    let start: u32 = start.parse().with_context(unknown)?;
    let card = state.cards.get(gpu).with_context(unknown)?;
    let mut instances = card.gpu_instances.iter();
    let instance = instances.find(|instance| instance.placement.start == start);
    let instance = instance.with_context(unknown)?;
    // All of it: from its first compute slice on.
    let mut parts = instance.compute_instances.iter();
    let part = parts.find(|part| part.placement.start == 0);
    let part = part.with_context(unknown)?;
    for compute_instance in [None, Some(part.id)] {
        let capability = capability_minor(minor, instance.id, compute_instance);
        device_nodes.push(format!("/dev/nvidia-caps/nvidia-cap{capability}"));
    }
    Ok(OnHardware {
        uuid: mig_uuid(gpu, instance.id, part.placement.start),
        device_nodes,
    })
}

/// Fails unless the container of a pod that runs on this node was started with these device nodes of GPUs and slices, and with no other.
pub(crate) fn ensure_has(
    node: &Node,
    namespace: &str,
    pod: &str,
    wanted: &BTreeSet<String>,
) -> Result<()> {
    let file = node.record();
    let name = file.display();
    let record = fs::read_to_string(&file).with_context(|| format!("cannot read {name}"))?;
    let mut started = None;
    // The runtime writes more of them meanwhile: a line without an end is none yet.
    let lines = record.split_inclusive('\n');
    for line in lines.filter(|line| line.ends_with('\n')) {
        let line: Value =
            serde_json::from_str(line).with_context(|| format!("{name}: no line of it: {line}"))?;
        let is_of_pod = line["podNamespace"] == namespace && line["podName"] == pod;
        if is_of_pod && line["event"] == "started" {
            started = Some(line);
        }
    }
    let started = started
        .with_context(|| format!("{name}: no container of {namespace}/{pod} was started"))?;
    let nodes: Vec<String> = serde_json::from_value(started["deviceNodes"].clone())
        .with_context(|| format!("{name}: no device nodes: {started}"))?;
    let has: BTreeSet<String> = nodes.into_iter().filter(|node| is_of_gpu(node)).collect();
    ensure!(
        has == *wanted,
        "the container of {namespace}/{pod} was given the device nodes {has:?}, and {wanted:?} are those of what the pod was allocated"
    );
    Ok(())
}

/// Whether it is that of one GPU or of one slice, and not one that all who have any GPU share.
fn is_of_gpu(device_node: &str) -> bool {
    let rest = device_node.strip_prefix("/dev/nvidia").unwrap_or_default();
    rest.starts_with("-caps/") || rest.starts_with(|first: char| first.is_ascii_digit())
}
