//! The GPUs that there are, and the slices that they can be cut into, as the ResourceSlices of our driver publish them.
//!
//! A request is compared with all of them: for most of them until the first node that will do, for one that
//! no node meets a few milliseconds at 80,000 GPUs. Of the slices of a GPU, which stand for each other, each size is kept once.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use muster_api::keys;
use muster_cluster::{
    nodes,
    quantity::written_bytes,
    shorthand::{Interconnect, Shorthand},
};

/// Kinds of GPUs that are named in a message.
const NAMED_KINDS: usize = 5;

/// All GPUs, by node and slice.
#[derive(Clone, Debug, Default)]
pub struct Gpus {
    nodes: BTreeMap<String, BTreeMap<String, OfSlice>>,
    /// Node of each slice: a slice that is gone is known by its name alone.
    node_of_slice: BTreeMap<String, String>,
}

/// What one ResourceSlice publishes.
#[derive(Clone, Debug, Default)]
struct OfSlice {
    gpus: Vec<Gpu>,
    /// The slices into which GPUs can be cut.
    parts: BTreeSet<Part>,
}

/// Slices of one size.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    memory_bytes: i64,
    product: String,
}

#[derive(Clone, Debug)]
struct Gpu {
    product: String,
    memory_bytes: i64,
    /// Values of the attributes of [`Interconnect::ALL`], in that order.
    neighbours: [Option<String>; 3],
}

impl Gpus {
    /// The slice is as given. One of another driver counts for nothing.
    pub fn put(&mut self, slice: &ResourceSlice) {
        let name = slice.metadata.name.as_deref().unwrap_or_default();
        self.remove(name);
        let spec = &slice.spec;
        if spec.driver != keys::DRIVER {
            return;
        }
        let node = spec.node_name.as_deref().unwrap_or(&spec.pool.name);
        let mut published = OfSlice::default();
        for device in spec.devices.iter().flatten() {
            let gpu = Gpu::of(device);
            if is_part(device) {
                published.parts.insert(Part {
                    memory_bytes: gpu.memory_bytes,
                    product: gpu.product,
                });
            } else {
                published.gpus.push(gpu);
            }
        }
        let of_node = self.nodes.entry(node.to_owned()).or_default();
        of_node.insert(name.to_owned(), published);
        self.node_of_slice.insert(name.to_owned(), node.to_owned());
    }

    /// The slice is gone.
    pub fn remove(&mut self, slice: &str) {
        let Some(node) = self.node_of_slice.remove(slice) else {
            return;
        };
        if let Some(of_node) = self.nodes.get_mut(&node) {
            of_node.remove(slice);
            if of_node.is_empty() {
                self.nodes.remove(&node);
            }
        }
    }

    /// Whether there is any device that is what each of the shorthand's must be. Yes while none is known at all:
    /// then nobody can tell.
    pub fn some_fit(&self, shorthand: &Shorthand) -> bool {
        let mut memory = self.memory(shorthand).peekable();
        memory.peek().is_none() || memory.any(|(bytes, _)| fits(bytes, shorthand))
    }

    /// The device with the most memory of those that the shorthand could mean, if it has less than that: `81559Mi (H100)`.
    pub fn nearest_smaller(&self, shorthand: &Shorthand) -> Option<String> {
        let smaller = self
            .memory(shorthand)
            .filter(|(bytes, _)| !fits(*bytes, shorthand));
        let (bytes, product) = smaller.max()?;
        Some(format!("{} ({product})", written_bytes(bytes)))
    }

    /// Memory and product of each device that the shorthand could mean.
    fn memory(&self, shorthand: &Shorthand) -> impl Iterator<Item = (i64, &str)> {
        let takes_slices = shorthand.takes_slices();
        let published = self.nodes.values().flat_map(BTreeMap::values);
        published.flat_map(move |of_slice| {
            let whole = of_slice.gpus.iter();
            let whole = whole.map(|gpu| (gpu.memory_bytes, gpu.product.as_str()));
            let parts = of_slice.parts.iter().filter(move |_| takes_slices);
            whole.chain(parts.map(|part| (part.memory_bytes, part.product.as_str())))
        })
    }

    /// Whether a node has as many whole GPUs as the shorthand asks for, connected as it asks for. If none, how many
    /// there are at most.
    pub fn enough_on_one_node(&self, shorthand: &Shorthand) -> Result<(), u32> {
        let mut most = 0;
        for of_node in self.nodes.values() {
            let fitting = all(of_node).filter(|gpu| fits(gpu.memory_bytes, shorthand));
            let connected = connected(fitting, shorthand);
            if connected >= shorthand.gpus() {
                return Ok(());
            }
            most = most.max(connected);
        }
        Err(most)
    }

    /// What there is, largest memory first: `81559Mi (NVIDIA H100 80GB HBM3, 32 of them)`, and the slices that GPUs can be cut into.
    pub fn described(&self) -> String {
        let mut kinds: BTreeMap<(i64, &str), u32> = BTreeMap::new();
        let mut parts: BTreeSet<i64> = BTreeSet::new();
        for of_slice in self.nodes.values().flat_map(BTreeMap::values) {
            for gpu in &of_slice.gpus {
                *kinds.entry((gpu.memory_bytes, &gpu.product)).or_default() += 1;
            }
            parts.extend(of_slice.parts.iter().map(|part| part.memory_bytes));
        }
        let mut named: Vec<String> = kinds
            .iter()
            .rev()
            .take(NAMED_KINDS)
            .map(|((bytes, product), count)| {
                format!("{} ({product}, {count} of them)", written_bytes(*bytes))
            })
            .collect();
        named.extend(more_than_named(kinds.len(), "kinds"));
        if !parts.is_empty() {
            let mut sizes: Vec<String> = parts
                .iter()
                .rev()
                .take(NAMED_KINDS)
                .map(|bytes| written_bytes(*bytes))
                .collect();
            sizes.extend(more_than_named(parts.len(), "sizes"));
            named.push(format!("slices of {}", sizes.join(", ")));
        }
        named.join(", ")
    }
}

fn more_than_named(kinds: usize, called: &str) -> Option<String> {
    let more = kinds.checked_sub(NAMED_KINDS)?;
    (more > 0).then(|| format!("{more} smaller {called}"))
}

/// Whether the device is a part of a GPU. A driver that does not say what its devices are has whole GPUs.
fn is_part(device: &Device) -> bool {
    let kind = nodes::attribute(keys::DRIVER, device, "type");
    kind.is_some_and(|kind| kind.string.as_deref() == Some("mig"))
}

fn fits(memory_bytes: i64, shorthand: &Shorthand) -> bool {
    let least = shorthand.least_bytes();
    least.is_none_or(|least| memory_bytes >= least)
}

impl Gpu {
    fn of(device: &Device) -> Self {
        let string = |name: &str| nodes::attribute(keys::DRIVER, device, name)?.string.clone();
        Self {
            product: string("productName").unwrap_or_else(|| "unknown product".to_owned()),
            memory_bytes: nodes::memory(keys::DRIVER, device).0,
            neighbours: Interconnect::ALL.map(|interconnect| string(interconnect.attribute())),
        }
    }

    fn neighbours(&self, interconnect: Interconnect) -> Option<&str> {
        let mut values = Interconnect::ALL.into_iter().zip(&self.neighbours);
        let (_, value) = values.find(|(one, _)| *one == interconnect)?;
        value.as_deref()
    }
}

fn all(of_node: &BTreeMap<String, OfSlice>) -> impl Iterator<Item = &Gpu> {
    of_node.values().flat_map(|of_slice| &of_slice.gpus)
}

/// How many of these GPUs of one node are connected as the shorthand asks for: the largest group.
fn connected<'a>(gpus: impl Iterator<Item = &'a Gpu>, shorthand: &Shorthand) -> u32 {
    let mut groups: BTreeMap<Option<&str>, u32> = BTreeMap::new();
    for gpu in gpus {
        let group = match shorthand.interconnect() {
            None => Some(""),
            Some(interconnect) => gpu.neighbours(interconnect),
        };
        *groups.entry(group).or_default() += 1;
    }
    // Without the attribute a device meets no constraint.
    groups.remove(&None);
    groups.into_values().max().unwrap_or(0)
}

#[cfg(test)]
pub(crate) mod testing {
    use k8s_openapi::api::resource::v1::ResourceSlice;
    use serde_json::json;

    /// A node's slice with GPUs of one kind, in NVLink groups of this size.
    pub(crate) fn slice(
        node: &str,
        product: &str,
        memory: &str,
        count: usize,
        group: usize,
    ) -> ResourceSlice {
        let devices: Vec<_> = (0..count)
            .map(|index| {
                let first =
                    |size: usize| json!({"string": format!("gpu-{}", index - index % size)});
                json!({"name": format!("gpu-{index}"), "capacity": {"memory": {"value": memory}},
                    "attributes": {"productName": {"string": product}, "nvlinkGroup": first(group),
                        "nvlinkPair": first(group.min(2)), "nvlinkQuad": first(group.min(4))}})
            })
            .collect();
        serde_json::from_value(
            json!({"metadata": {"name": format!("{node}-slice")}, "spec": {
            "driver": "gpu.muster.dev", "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}}),
        )
        .unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpus::testing::slice;
    use muster_api::keys::{GPUS, INTERCONNECT, VRAM};

    fn asked(pairs: &[(&str, &str)]) -> Shorthand {
        let given = pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Shorthand::read(Some(&given.collect())).unwrap().unwrap()
    }

    #[test]
    fn what_is_known_of_no_gpu_fits() {
        let gpus = Gpus::default();
        assert!(gpus.some_fit(&asked(&[(VRAM, "200Gi")])));
        assert_eq!(gpus.enough_on_one_node(&asked(&[(GPUS, "8")])), Err(0));
    }

    #[test]
    fn gpus_are_counted_by_node_memory_and_connection() {
        let mut gpus = Gpus::default();
        gpus.put(&slice("a", "H100", "81559Mi", 8, 8));
        gpus.put(&slice("b", "T4", "15Gi", 4, 1));
        for (pairs, fits, enough) in [
            (vec![(VRAM, "16Gi")], true, Ok(())),
            // Memory is meant nominally, and not more than that.
            (vec![(VRAM, "80Gi")], true, Ok(())),
            (vec![(VRAM, "86Gi")], false, Err(0)),
            (vec![(GPUS, "8")], true, Ok(())),
            (vec![(GPUS, "9")], true, Err(8)),
            (vec![(GPUS, "8"), (INTERCONNECT, "nvlink")], true, Ok(())),
            (
                vec![(GPUS, "4"), (INTERCONNECT, "nvlink-quad")],
                true,
                Ok(()),
            ),
            (
                vec![(GPUS, "2"), (INTERCONNECT, "nvlink-pair"), (VRAM, "16Gi")],
                true,
                Ok(()),
            ),
        ] {
            assert_eq!(gpus.some_fit(&asked(&pairs)), fits, "{pairs:?}");
            assert_eq!(gpus.enough_on_one_node(&asked(&pairs)), enough, "{pairs:?}");
        }
        assert_eq!(
            gpus.described(),
            "81559Mi (H100, 8 of them), 15Gi (T4, 4 of them)"
        );
        gpus.remove("a-slice");
        assert_eq!(
            gpus.enough_on_one_node(&asked(&[(GPUS, "2"), (INTERCONNECT, "nvlink")])),
            Err(1),
            "without NVLink each is alone"
        );
    }

    /// A GPU that can be cut, as our driver publishes it in one ResourceSlice.
    fn cut(node: &str) -> ResourceSlice {
        let mut whole = slice(node, "H100", "81559Mi", 1, 1);
        let part = |name: &str, memory: &str| -> Device {
            serde_json::from_value(
                serde_json::json!({"name": name, "capacity": {"memory": {"value": memory}},
                "attributes": {"type": {"string": "mig"}, "productName": {"string": "H100"}}}),
            )
            .unwrap()
        };
        let devices = whole.spec.devices.get_or_insert_default();
        for start in 0..7 {
            devices.push(part(&format!("gpu-0-mig-1g10gb-{start}"), "9984Mi"));
        }
        devices.push(part("gpu-0-mig-3g40gb-0", "40448Mi"));
        whole
    }

    #[test]
    fn a_slice_will_do_for_an_amount_and_never_for_gpus_that_are_counted() {
        let mut gpus = Gpus::default();
        gpus.put(&cut("a"));
        gpus.put(&slice("b", "T4", "15Gi", 1, 1));
        assert_eq!(
            gpus.described(),
            "81559Mi (H100, 1 of them), 15Gi (T4, 1 of them), slices of 40448Mi, 9984Mi"
        );
        assert_eq!(gpus.nodes["a"]["a-slice"].parts.len(), 2, "each size once");
        assert_eq!(
            gpus.enough_on_one_node(&asked(&[(GPUS, "2")])),
            Err(1),
            "slices are no GPUs"
        );
        for (pairs, smaller) in [
            (vec![(VRAM, "44Gi")], Some("40448Mi (H100)")),
            (vec![(VRAM, "16Gi")], Some("9984Mi (H100)")),
            (vec![(VRAM, "17Gi")], Some("15Gi (T4)")),
            (vec![(VRAM, "90Gi")], Some("81559Mi (H100)")),
            (vec![(VRAM, "90Gi"), (GPUS, "1")], Some("81559Mi (H100)")),
            (vec![(VRAM, "40Gi"), (GPUS, "1")], Some("15Gi (T4)")),
            (vec![(VRAM, "1Gi")], None),
        ] {
            let found = gpus.nearest_smaller(&asked(&pairs));
            assert_eq!(found.as_deref(), smaller, "{pairs:?}");
        }
    }

    #[test]
    fn a_slice_that_moves_or_belongs_to_another_driver_leaves_nothing_behind() {
        let mut gpus = Gpus::default();
        let mut moved = slice("a", "H100", "80Gi", 8, 8);
        gpus.put(&moved);
        moved.spec.node_name = Some("b".to_owned());
        gpus.put(&moved);
        assert_eq!(gpus.described(), "80Gi (H100, 8 of them)");
        moved.spec.driver = "nic.example.com".to_owned();
        gpus.put(&moved);
        assert_eq!(gpus.described(), "");
        assert!(gpus.nodes.is_empty() && gpus.node_of_slice.is_empty());
    }

    #[test]
    fn many_kinds_are_summed_up() {
        let mut gpus = Gpus::default();
        for size in 1..=8 {
            gpus.put(&slice(
                &format!("n{size}"),
                "GPU",
                &format!("{size}Gi"),
                1,
                1,
            ));
        }
        let text = gpus.described();
        assert!(text.starts_with("8Gi (GPU, 1 of them), 7Gi"), "{text}");
        assert!(text.ends_with("3 smaller kinds"), "{text}");
    }
}
