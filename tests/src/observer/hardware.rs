//! The hardware of a node: which parts of which GPUs device nodes stand for, and which slices exist on the cards.
//!
//! What a container can use it can use by the device nodes that it was given, and by nothing else: `/dev/nvidiaN` is the GPU with minor
//! number `N`, and where capabilities of instances of it are there, too (`/dev/nvidia-caps/nvidia-capM`), these instances alone. The
//! kernel numbers capabilities by the GPU's minor number and the number of the instance, and hardware numbers GPU instances by their
//! places. So the nodes say which memory is meant, also once the instance is gone; no variable of the container and no name of a device
//! plays a part.

use std::{collections::BTreeMap, fmt, fs, path::PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

/// GPU instances that a GPU numbers at most, 0 to 14.
const GPU_INSTANCES: u32 = 15;
/// Capabilities of one GPU instance: its own, and those of its compute instances, 0 to 7.
const CAPABILITIES_PER_INSTANCE: u32 = 9;
/// The first capability of an instance; those before are for configuration and monitoring. As the kernel lists them in
/// `/proc/driver/nvidia-caps/mig-minors`: `gpu0/gi0/access 3`.
const FIRST_CAPABILITY: u32 = 3;
/// The memory of a GPU is counted in so many parts here, whatever it has itself: no slice has an edge in between.
const EIGHTHS: u32 = 8;

/// A part of the memory of one GPU, in eighths of it, and whatever belongs to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Part {
    /// UUID of the GPU.
    gpu: String,
    start: u32,
    end: u32,
}

impl Part {
    fn whole(gpu: &str) -> Self {
        Self {
            gpu: gpu.to_owned(),
            start: 0,
            end: EIGHTHS,
        }
    }

    /// A GPU instance by its number. Numbers stand for places: the whole GPU is 0, its halves 1 and 2, its quarters 3 to 6, its eighths 7 to
    /// 14 (as `nvidia-smi mig -lgi` shows them). `None`: there is no such number.
    fn of_instance(gpu: &str, number: u32) -> Option<Self> {
        let mut first = 0;
        for places in [1, 2, 4, EIGHTHS] {
            if number < first + places {
                let size = EIGHTHS / places;
                let start = (number - first) * size;
                return Some(Self {
                    gpu: gpu.to_owned(),
                    start,
                    end: start + size,
                });
            }
            first += places;
        }
        None
    }

    /// Whether it is a part of this GPU.
    pub(super) fn is_of(&self, gpu: &str) -> bool {
        self.gpu == gpu
    }

    /// Whether both need the same hardware.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.gpu == other.gpu && self.start < other.end && other.start < self.end
    }
}

impl fmt::Display for Part {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.end - self.start == EIGHTHS {
            return formatter.write_str(&self.gpu);
        }
        let Self { gpu, start, end } = self;
        write!(formatter, "eighths {start}..{end} of {gpu}")
    }
}

/// Where a node's hardware keeps what it is.
#[derive(Debug)]
pub(super) struct Machine {
    /// What the cards remember; there is none where a node has no GPUs.
    pub(super) state_file: PathBuf,
    /// UUIDs of its GPUs, in PCI order.
    pub(super) gpus: Vec<String>,
}

/// The cards of a node at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cards {
    /// UUID by minor number.
    by_minor: BTreeMap<u32, String>,
    /// The slices that exist.
    pub(super) slices: Vec<Part>,
}

/// What is read of what the cards remember.
#[derive(Default, Deserialize)]
#[serde(default)]
struct State {
    cards: BTreeMap<String, Card>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Card {
    /// Its place in PCI order without.
    minor: Option<u32>,
    gpu_instances: Vec<Instance>,
}

#[derive(Deserialize)]
struct Instance {
    id: u32,
}

impl Machine {
    /// Looks at its cards.
    pub(super) fn look(&self) -> Result<Cards> {
        if self.gpus.is_empty() {
            return Ok(Cards::default());
        }
        let file = self.state_file.display();
        let text = fs::read(&self.state_file).with_context(|| format!("cannot read {file}"))?;
        let state: State =
            serde_json::from_slice(&text).with_context(|| format!("{file}: no state of cards"))?;
        Cards::of(&self.gpus, &state)
    }
}

impl Cards {
    fn of(gpus: &[String], state: &State) -> Result<Self> {
        let mut cards = Self::default();
        for (place, gpu) in (0..).zip(gpus) {
            let card = state.cards.get(gpu);
            let minor = card.and_then(|card| card.minor).unwrap_or(place);
            cards.by_minor.insert(minor, gpu.clone());
            for instance in card.into_iter().flat_map(|card| &card.gpu_instances) {
                let part = Part::of_instance(gpu, instance.id);
                let part = part.with_context(|| {
                    format!("GPU instance {} of {gpu} has no place", instance.id)
                })?;
                cards.slices.push(part);
            }
        }
        Ok(cards)
    }

    /// The GPUs with these UUIDs, by their minor numbers from 0 on, with no slice on them.
    #[cfg(test)]
    pub(super) fn fresh(gpus: &[&str]) -> Self {
        let gpus = (0..).zip(gpus.iter().map(|gpu| (*gpu).to_owned()));
        Self {
            by_minor: gpus.collect(),
            slices: Vec::new(),
        }
    }

    /// What whoever has these device nodes can use. A node that stands for nothing here is an error: who has it would be judged by less than
    /// all.
    pub(super) fn parts(&self, device_nodes: &[String]) -> Result<Vec<Part>> {
        let gpus = minors(device_nodes, "/dev/nvidia");
        let capabilities = minors(device_nodes, "/dev/nvidia-caps/nvidia-cap");
        let mut slices: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for capability in capabilities {
            let number = capability.checked_sub(FIRST_CAPABILITY).with_context(|| {
                format!("capability {capability} is that of no instance of a GPU")
            })?;
            let instance = number / CAPABILITIES_PER_INSTANCE;
            let of_gpu = slices.entry(instance / GPU_INSTANCES).or_default();
            of_gpu.push(instance % GPU_INSTANCES);
        }
        let mut parts = Vec::new();
        for minor in gpus {
            let gpu = self.by_minor.get(&minor);
            let gpu = gpu.with_context(|| format!("there is no GPU with minor number {minor}"))?;
            let Some(instances) = slices.get(&minor) else {
                parts.push(Part::whole(gpu));
                continue;
            };
            let of_instances = instances.iter();
            parts.extend(of_instances.filter_map(|number| Part::of_instance(gpu, *number)));
        }
        parts.sort();
        parts.dedup();
        Ok(parts)
    }
}

fn minors(device_nodes: &[String], prefix: &str) -> Vec<u32> {
    let minor = |node: &String| node.strip_prefix(prefix)?.parse().ok();
    device_nodes.iter().filter_map(minor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(nodes: &[&str]) -> Vec<String> {
        nodes.iter().map(|node| (*node).to_owned()).collect()
    }

    fn said(cards: &Cards, device_nodes: &[&str]) -> Vec<String> {
        let parts = cards.parts(&nodes(device_nodes)).unwrap();
        parts.iter().map(Part::to_string).collect()
    }

    #[test]
    fn device_nodes_tell_a_whole_gpu_from_a_slice_of_it() {
        let cards = Cards::fresh(&["A", "B"]);
        for (device_nodes, expected) in [
            (&["/dev/nvidiactl", "/dev/nvidia-uvm"][..], vec![]),
            (&["/dev/nvidia1", "/dev/nvidiactl"][..], vec!["B"]),
            // GPU instance 13 of GPU 0, which is the seventh eighth, and its compute instance 0.
            (
                &[
                    "/dev/nvidia0",
                    "/dev/nvidia-caps/nvidia-cap120",
                    "/dev/nvidia-caps/nvidia-cap121",
                ][..],
                vec!["eighths 6..7 of A"],
            ),
            // GPU instance 2 of GPU 1, the second half, beside GPU 0 as a whole.
            (
                &[
                    "/dev/nvidia1",
                    "/dev/nvidia0",
                    "/dev/nvidia-caps/nvidia-cap156",
                ][..],
                vec!["A", "eighths 4..8 of B"],
            ),
        ] {
            assert_eq!(said(&cards, device_nodes), expected, "{device_nodes:?}");
        }
        assert!(cards.parts(&nodes(&["/dev/nvidia2"])).is_err());
        let configuration = nodes(&["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap1"]);
        assert!(cards.parts(&configuration).is_err());
    }

    #[test]
    fn slices_overlap_their_gpu_and_what_has_memory_in_common() {
        let instance = |number| Part::of_instance("A", number).unwrap();
        for (one, other, overlap) in [
            (instance(0), Part::whole("A"), true),
            (instance(7), Part::whole("A"), true),
            (instance(7), Part::whole("B"), false),
            (instance(7), instance(8), false),
            (instance(1), instance(10), true),
            (instance(1), instance(11), false),
            (instance(6), instance(14), true),
        ] {
            assert_eq!(one.overlaps(&other), overlap, "{one} and {other}");
            assert_eq!(other.overlaps(&one), overlap, "{other} and {one}");
        }
        assert_eq!(Part::of_instance("A", 15), None);
    }

    #[test]
    fn cards_are_found_by_the_minor_numbers_that_they_have_now() {
        let text = r#"{"board": "h100-nvswitch-8", "cards": {"A": {"minor": 7, "migCurrent": true,
            "gpuInstances": [{"id": 9, "profile": 19, "placement": {"start": 2, "size": 1}}]}}}"#;
        let state: State = serde_json::from_str(text).unwrap();
        let cards = Cards::of(&nodes(&["A", "B"]), &state).unwrap();
        assert_eq!(said(&cards, &["/dev/nvidia7"]), ["A"]);
        assert_eq!(said(&cards, &["/dev/nvidia1"]), ["B"]);
        let slices: Vec<String> = cards.slices.iter().map(Part::to_string).collect();
        assert_eq!(slices, ["eighths 2..3 of A"]);
    }
}
