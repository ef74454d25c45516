//! Which writes lead from the slices that there are to those that there should be.
//!
//! A pool counts only at its highest generation, and only if all its slices are there. So a change of one slice
//! may keep the generation; anything more gives all slices a new one, which the scheduler takes up when the last
//! of them is written.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::resource::v1::{Device, ResourcePool, ResourceSlice, ResourceSliceSpec},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::core::ObjectMeta;

use super::desired::Content;

/// Whose slices they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// The driver.
    pub driver: String,
    /// The node; the pool has its name.
    pub node: String,
    /// UID of the Node, which owns the slices: they go with it.
    pub node_uid: String,
}

/// The writes, to be performed in this order: deletions first, so that no device is offered twice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Slices that are obsolete, as they were seen.
    pub delete: Vec<ResourceSlice>,
    /// Slices with their new content, under the version that was seen.
    pub update: Vec<ResourceSlice>,
    /// Slices that are missing.
    pub create: Vec<ResourceSlice>,
}

impl Plan {
    /// Whether all is as it should be.
    pub fn is_empty(&self) -> bool {
        self.delete.is_empty() && self.update.is_empty() && self.create.is_empty()
    }
}

/// Works the writes out. `existing` are all slices of this driver on this node, in any order.
pub fn plan(pool: &Pool, desired: &[Content], existing: &[ResourceSlice]) -> Plan {
    let newest = existing
        .iter()
        .map(|slice| slice.spec.pool.generation)
        .max();
    let mut kept: BTreeMap<usize, &ResourceSlice> = BTreeMap::new();
    let mut delete = Vec::new();
    let mut ordered: Vec<&ResourceSlice> = existing.iter().collect();
    ordered.sort_by_key(|slice| slice.metadata.name.clone());
    for slice in ordered {
        let index = position(slice).filter(|index| *index < desired.len());
        let current = Some(slice.spec.pool.generation) == newest && is_ours(slice, pool);
        match index {
            Some(index) if current && !kept.contains_key(&index) => {
                kept.insert(index, slice);
            }
            _ => delete.push(slice.clone()),
        }
    }
    let count = i64::try_from(desired.len()).unwrap_or(i64::MAX);
    let differs = |index: usize, content: &Content| {
        kept.get(&index).is_some_and(|slice| {
            !is_same(content, slice) || slice.spec.pool.resource_slice_count != count
        })
    };
    let numbered = || desired.iter().enumerate();
    let missing = numbered().any(|(index, _)| !kept.contains_key(&index));
    let changed = numbered()
        .filter(|(index, content)| differs(*index, content))
        .count();
    // Deleting a slice of the newest generation leaves the pool incomplete, too, if the count does not change.
    let keeps_generation = !missing && changed <= 1;
    let generation = match newest {
        None => 1,
        Some(newest) if keeps_generation => newest,
        Some(newest) => newest.saturating_add(1),
    };
    let mut plan = Plan {
        delete,
        ..Plan::default()
    };
    for (index, content) in numbered() {
        let spec = |content: Content| {
            let (shared_counters, devices) = match content {
                Content::Counters(sets) => (Some(sets), None),
                Content::Devices(devices) => (None, (!devices.is_empty()).then_some(devices)),
            };
            ResourceSliceSpec {
                driver: pool.driver.clone(),
                node_name: Some(pool.node.clone()),
                pool: ResourcePool {
                    name: pool.node.clone(),
                    generation,
                    resource_slice_count: count,
                },
                shared_counters,
                devices,
                ..ResourceSliceSpec::default()
            }
        };
        match kept.get(&index) {
            None => plan.create.push(ResourceSlice {
                metadata: metadata(pool, index),
                spec: spec(content.clone()),
            }),
            Some(slice) if differs(index, content) || slice.spec.pool.generation != generation => {
                plan.update.push(ResourceSlice {
                    metadata: slice.metadata.clone(),
                    spec: spec(with_times(content, slice)),
                });
            }
            Some(_) => {}
        }
    }
    plan
}

fn metadata(pool: &Pool, index: usize) -> ObjectMeta {
    ObjectMeta {
        generate_name: Some(format!("{index:05x}-{}-{}-", pool.driver, pool.node)),
        owner_references: Some(vec![OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: pool.node.clone(),
            uid: pool.node_uid.clone(),
            controller: Some(true),
            block_owner_deletion: None,
        }]),
        ..ObjectMeta::default()
    }
}

/// The position of a slice in the pool, which its name begins with.
pub(super) fn position(slice: &ResourceSlice) -> Option<usize> {
    let name = slice.metadata.name.as_deref()?;
    let (digits, _) = name.split_once('-')?;
    (digits.len() >= 5).then(|| usize::from_str_radix(digits, 16).ok())?
}

/// A slice of a Node that was deleted and made again belongs to the old one, and the garbage collector takes it.
fn is_ours(slice: &ResourceSlice, pool: &Pool) -> bool {
    let owners = slice.metadata.owner_references.iter().flatten();
    slice.spec.pool.name == pool.node
        && owners
            .into_iter()
            .any(|owner| owner.kind == "Node" && owner.uid == pool.node_uid)
}

/// The server adds to each taint when it was added; we do not.
fn is_same(content: &Content, slice: &ResourceSlice) -> bool {
    let stored = slice.spec.shared_counters.as_deref().unwrap_or_default();
    let counters = match content {
        Content::Counters(sets) => sets.as_slice(),
        Content::Devices(_) => &[],
    };
    counters == stored && same_devices(content.devices(), slice)
}

fn same_devices(devices: &[Device], slice: &ResourceSlice) -> bool {
    let mut stored = slice.spec.devices.clone().unwrap_or_default();
    for taint in stored
        .iter_mut()
        .flat_map(|device| device.taints.iter_mut().flatten())
    {
        taint.time_added = None;
    }
    stored == devices
}

/// An update must not make a taint younger: that would restart toleration delays.
fn with_times(content: &Content, slice: &ResourceSlice) -> Content {
    let mut content = content.clone();
    let Content::Devices(devices) = &mut content else {
        return content;
    };
    for device in devices {
        let before = slice
            .spec
            .devices
            .iter()
            .flatten()
            .find(|old| old.name == device.name)
            .and_then(|old| old.taints.clone())
            .unwrap_or_default();
        for taint in device.taints.iter_mut().flatten() {
            let same = before.iter().find(|old| {
                (&old.key, &old.value, &old.effect) == (&taint.key, &taint.value, &taint.effect)
            });
            taint.time_added = same.and_then(|old| old.time_added.clone());
        }
    }
    content
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::resource::v1::{CounterSet, DeviceTaint};

    use super::*;

    fn pool() -> Pool {
        Pool {
            driver: "gpu.muster.dev".to_owned(),
            node: "node-0".to_owned(),
            node_uid: "n-1".to_owned(),
        }
    }

    fn device(name: &str) -> Device {
        Device {
            name: name.to_owned(),
            ..Device::default()
        }
    }

    /// What the API server makes of the writes.
    fn apply(plan: Plan, existing: &[ResourceSlice]) -> Vec<ResourceSlice> {
        let gone = |slice: &&ResourceSlice| {
            let name = |other: &ResourceSlice| other.metadata.name == slice.metadata.name;
            !plan.delete.iter().any(name) && !plan.update.iter().any(name)
        };
        let mut slices: Vec<_> = existing.iter().filter(gone).cloned().collect();
        slices.extend(plan.update);
        for mut slice in plan.create {
            let generated = slice.metadata.generate_name.clone().unwrap();
            slice.metadata.name = Some(format!("{generated}abcde"));
            slices.push(slice);
        }
        slices
    }

    fn generations(slices: &[ResourceSlice]) -> Vec<i64> {
        let generation = |slice: &ResourceSlice| slice.spec.pool.generation;
        slices.iter().map(generation).collect()
    }

    fn devices(names: &[&str]) -> Content {
        Content::Devices(names.iter().map(|name| device(name)).collect())
    }

    fn counters(name: &str) -> Content {
        Content::Counters(vec![CounterSet {
            name: name.to_owned(),
            ..CounterSet::default()
        }])
    }

    fn two() -> (Vec<Content>, Vec<ResourceSlice>) {
        let desired = vec![devices(&["gpu-0"]), devices(&["gpu-1"])];
        let slices = apply(plan(&pool(), &desired, &[]), &[]);
        (desired, slices)
    }

    #[test]
    fn the_first_publication_creates_all_and_a_second_look_changes_nothing() {
        let (desired, slices) = two();
        assert_eq!(slices.len(), 2);
        assert_eq!(generations(&slices), [1, 1]);
        let first = slices.first().unwrap();
        assert_eq!(
            first.metadata.generate_name.as_deref(),
            Some("00000-gpu.muster.dev-node-0-")
        );
        assert_eq!(first.spec.pool.resource_slice_count, 2);
        assert!(plan(&pool(), &desired, &slices).is_empty());
    }

    #[test]
    fn one_change_keeps_the_generation_and_two_do_not() {
        let (mut desired, slices) = two();
        *desired.first_mut().unwrap() = devices(&["gpu-9"]);
        let one = plan(&pool(), &desired, &slices);
        assert_eq!((one.update.len(), one.create.len()), (1, 0));
        assert_eq!(generations(&one.update), [1]);

        *desired.last_mut().unwrap() = devices(&["gpu-8"]);
        let both = plan(&pool(), &desired, &slices);
        assert_eq!(generations(&both.update), [2, 2]);
    }

    #[test]
    fn a_wiped_slice_comes_back_with_a_new_generation_for_all() {
        let (desired, mut slices) = two();
        slices.pop();
        let again = plan(&pool(), &desired, &slices);
        assert_eq!(generations(&again.update), [2]);
        assert_eq!(generations(&again.create), [2]);
        let slices = apply(again, &slices);
        assert!(plan(&pool(), &desired, &slices).is_empty());
    }

    #[test]
    fn counters_are_slices_of_the_pool_like_devices() {
        let desired = vec![counters("gpu-0"), devices(&["gpu-0"])];
        let slices = apply(plan(&pool(), &desired, &[]), &[]);
        let specs: Vec<&ResourceSliceSpec> = slices.iter().map(|slice| &slice.spec).collect();
        assert!(specs[0].devices.is_none() && specs[1].shared_counters.is_none());
        assert_eq!(specs[0].pool.resource_slice_count, 2);
        assert!(plan(&pool(), &desired, &slices).is_empty());
        // What a slice holds may change from one to the other.
        let swapped = vec![devices(&["gpu-0"]), counters("gpu-0")];
        let update = plan(&pool(), &swapped, &slices).update;
        assert_eq!(generations(&update), [2, 2]);
        assert!(update[0].spec.shared_counters.is_none());
        assert!(update[1].spec.devices.is_none());
        // Counters that somebody changed are put right.
        let mut changed = slices.clone();
        changed[0].spec.shared_counters = None;
        let update = plan(&pool(), &desired, &changed).update;
        assert_eq!(generations(&update), [1]);
        assert_eq!(
            update[0].spec.shared_counters,
            specs[0].shared_counters.clone()
        );
    }

    #[test]
    fn strangers_duplicates_and_old_generations_are_deleted() {
        let (desired, slices) = two();
        let named = |name: &str, slice: &ResourceSlice| {
            let mut other = slice.clone();
            other.metadata.name = Some(name.to_owned());
            other
        };
        let first = slices.first().unwrap();
        let mut old = named("00001-gpu.muster.dev-node-0-aaaaa", first);
        old.spec.pool.generation = 0;
        let mut of_old_node = named("00000-gpu.muster.dev-node-0-00000", first);
        of_old_node.metadata.owner_references = None;
        let strangers = [
            named("by-hand", first),
            named("00000-gpu.muster.dev-node-0-zzzzz", first),
            named("00007-gpu.muster.dev-node-0-abcde", first),
            old,
            of_old_node,
        ];
        let mut all = slices.clone();
        all.extend(strangers);
        let swept = plan(&pool(), &desired, &all);
        assert_eq!(swept.delete.len(), 5);
        assert!(swept.update.is_empty() && swept.create.is_empty());
        assert!(plan(&pool(), &desired, &apply(swept, &all)).is_empty());
    }

    #[test]
    fn a_taint_keeps_its_age_and_its_age_is_no_difference() {
        let taint = |time: Option<&str>| DeviceTaint {
            key: "gpu.muster.dev/held".to_owned(),
            effect: "NoSchedule".to_owned(),
            time_added: time.map(|time| serde_json::from_value(time.into()).unwrap()),
            value: None,
        };
        let tainted = |time| Device {
            taints: Some(vec![taint(time)]),
            ..device("gpu-0")
        };
        let desired = vec![Content::Devices(vec![tainted(None)])];
        let mut slices = apply(plan(&pool(), &desired, &[]), &[]);
        slices.first_mut().unwrap().spec.devices =
            Some(vec![tainted(Some("2026-11-21T20:00:00Z"))]);
        assert!(plan(&pool(), &desired, &slices).is_empty());

        let more = vec![Content::Devices(vec![tainted(None), device("gpu-1")])];
        let update = plan(&pool(), &more, &slices).update;
        let devices = update.first().unwrap().spec.devices.as_ref().unwrap();
        assert_eq!(
            devices.first(),
            Some(&tainted(Some("2026-11-21T20:00:00Z")))
        );
    }
}
