//! What devices of Muster's driver cost, worked out from what is published of them.
//!
//! A slice costs the larger of its shares of its GPU's compute slices and memory slices, in thousandths of a GPU, rounded down; and its
//! own memory. Of how many slices a GPU consists the whole GPU says, and where it is not offered whole the largest of all slices that can
//! be cut from it. Slices that are there for good come without either: then it is seven and eight.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{Device, ResourceClaim, ResourceSlice};
use muster_api::keys;

use super::{quantity::thousandths, world};

/// What a whole GPU costs, in thousandths.
const ONE_GPU: i64 = 1000;
/// Parts of the GPUs that are cut into seven: compute slices, memory slices.
const OF_SEVENTHS: [i64; 2] = [7, 8];

/// What devices cost together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cost {
    /// How many they are.
    pub(super) devices: i64,
    /// Thousandths of a GPU.
    pub(super) gpus_milli: i64,
    /// Bytes of memory; `None` if one of them does not say.
    pub(super) vram_bytes: Option<i64>,
}

/// Every device of ours that was ever published, as it was published last. Allocations outlive slices: the kubelet deletes all of its
/// node at its start.
#[derive(Debug, Default)]
pub(super) struct Published {
    /// By pool and name.
    devices: BTreeMap<(String, String), Facts>,
    /// Compute slices and memory slices of GPUs that are cut anew for each claim, by pool and UUID.
    boards: BTreeMap<(String, String), [i64; 2]>,
}

#[derive(Clone, Debug)]
struct Facts {
    /// UUID of its GPU.
    gpu: String,
    is_slice: bool,
    /// Its own compute slices and memory slices.
    slices: [i64; 2],
    vram_bytes: Option<i64>,
}

impl Facts {
    fn of(device: &Device) -> Self {
        let attribute = |name: &str| device.attributes.as_ref()?.get(name);
        let text = |name: &str| attribute(name)?.string.as_deref();
        let number = |name: &str| attribute(name).and_then(|it| it.int).unwrap_or_default();
        let capacity = device.capacity.as_ref();
        let memory = capacity.and_then(|capacity| thousandths(&capacity.get("memory")?.value.0));
        Self {
            gpu: text("parentUUID").unwrap_or(&device.name).to_owned(),
            is_slice: text("type") == Some("mig"),
            slices: ["computeSlices", "memorySlices"].map(number),
            vram_bytes: memory.and_then(|memory| i64::try_from(memory / 1000).ok()),
        }
    }
}

impl Published {
    /// A slice was written.
    pub(super) fn note(&mut self, slice: &ResourceSlice) {
        let spec = &slice.spec;
        if spec.driver != keys::DRIVER {
            return;
        }
        let pool = &spec.pool.name;
        for device in spec.devices.iter().flatten() {
            let facts = Facts::of(device);
            if !facts.is_slice || device.consumes_counters.is_some() {
                let board = (pool.clone(), facts.gpu.clone());
                let [compute, memory] = self.boards.entry(board).or_default();
                let [own_compute, own_memory] = facts.slices;
                *compute = own_compute.max(*compute);
                *memory = own_memory.max(*memory);
            }
            let name = (pool.clone(), device.name.clone());
            self.devices.insert(name, facts);
        }
    }

    /// What a claim costs by the devices of ours that it was allocated; `None`: none was, or one of them was never published.
    pub(super) fn cost_of(&self, claim: &ResourceClaim) -> Option<Cost> {
        let mut cost = Cost {
            vram_bytes: Some(0),
            ..Cost::default()
        };
        for result in world::allocation(claim).filter(|result| result.driver == keys::DRIVER) {
            let name = (result.pool.clone(), result.device.clone());
            let facts = self.devices.get(&name)?;
            cost.devices += 1;
            cost.gpus_milli += self.gpus_milli_of(&result.pool, facts);
            let sum = cost.vram_bytes.zip(facts.vram_bytes);
            cost.vram_bytes = sum.map(|(sum, own)| sum + own);
        }
        (cost.devices > 0).then_some(cost)
    }

    /// What a device of a node costs, in thousandths of a GPU. One that was never published counts as a whole GPU.
    pub(super) fn gpus_milli(&self, node: &str, device: &str) -> i64 {
        let facts = self.devices.get(&(node.to_owned(), device.to_owned()));
        facts.map_or(ONE_GPU, |facts| self.gpus_milli_of(node, facts))
    }

    fn gpus_milli_of(&self, pool: &str, facts: &Facts) -> i64 {
        if !facts.is_slice {
            return ONE_GPU;
        }
        let board = self.boards.get(&(pool.to_owned(), facts.gpu.clone()));
        let shares = facts
            .slices
            .into_iter()
            .zip(board.copied().unwrap_or(OF_SEVENTHS));
        let shares = shares.filter(|(_, whole)| *whole > 0);
        let share = shares.map(|(part, whole)| part * ONE_GPU / whole).max();
        share.filter(|share| *share > 0).unwrap_or(ONE_GPU)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn slice(devices: &[Value]) -> ResourceSlice {
        serde_json::from_value(json!({
            "metadata": {"name": "slice"},
            "spec": {"driver": keys::DRIVER, "nodeName": "node", "devices": devices,
                "pool": {"name": "node", "generation": 1, "resourceSliceCount": 1}}
        }))
        .unwrap()
    }

    fn device(kind: &str, profile: &str, compute: i64, memory: i64, is_shared: bool) -> Value {
        let draws =
            json!([{"counterSet": "gpu-0", "counters": {"memory-slice-0": {"value": "1"}}}]);
        json!({"name": format!("gpu-0-{profile}"),
            "attributes": {
                "type": {"string": kind}, "parentUUID": {"string": "GPU-0"},
                "computeSlices": {"int": compute}, "memorySlices": {"int": memory},
            },
            "capacity": {"memory": {"value": format!("{}Gi", memory * 10)}},
            "consumesCounters": is_shared.then_some(draws)})
    }

    fn claim(devices: &[&str]) -> ResourceClaim {
        let results: Vec<Value> = devices
            .iter()
            .map(|device| json!({"request": "gpus", "driver": keys::DRIVER, "pool": "node", "device": device}))
            .collect();
        serde_json::from_value(
            json!({"metadata": {"name": "claim"}, "spec": {"devices": {}},
            "status": {"allocation": {"devices": {"results": results}}}}),
        )
        .unwrap()
    }

    #[test]
    fn a_slice_costs_the_larger_of_its_shares_of_the_largest_that_there_is() {
        let mut of_h100 = Published::default();
        of_h100.note(&slice(&[
            device("mig", "1g", 1, 1, true),
            device("mig", "1g-double", 1, 2, true),
            device("mig", "3g", 3, 4, true),
            device("gpu", "whole", 7, 8, true),
        ]));
        let mut of_a30 = Published::default();
        of_a30.note(&slice(&[
            device("mig", "1g", 1, 1, true),
            device("mig", "4g", 4, 4, true),
        ]));
        let mut for_good = Published::default();
        for_good.note(&slice(&[device("mig", "1g", 1, 1, false)]));
        let mut plain = Published::default();
        plain.note(&slice(&[json!({"name": "gpu-0"})]));
        for (published, name, expected) in [
            (&of_h100, "gpu-0-1g", 142),
            (&of_h100, "gpu-0-1g-double", 250),
            (&of_h100, "gpu-0-3g", 500),
            (&of_h100, "gpu-0-whole", 1000),
            (&of_a30, "gpu-0-1g", 250),
            (&of_a30, "gpu-0-4g", 1000),
            (&for_good, "gpu-0-1g", 142),
            (&plain, "gpu-0", 1000),
            (&plain, "never published", 1000),
        ] {
            assert_eq!(published.gpus_milli("node", name), expected, "{name}");
        }
    }

    #[test]
    fn a_claim_costs_what_it_was_allocated_also_when_that_is_published_no_more() {
        let mut published = Published::default();
        published.note(&slice(&[
            device("mig", "1g", 1, 1, true),
            device("gpu", "whole", 7, 8, true),
        ]));
        let cost = published.cost_of(&claim(&["gpu-0-1g", "gpu-0-whole"]));
        let expected = Cost {
            devices: 2,
            gpus_milli: 1142,
            vram_bytes: Some(90 << 30),
        };
        assert_eq!(cost, Some(expected));
        assert_eq!(published.cost_of(&claim(&["never published"])), None);
        assert_eq!(published.cost_of(&claim(&[])), None);
    }
}
