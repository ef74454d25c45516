//! Devices that are published, are not offered any more, and may still be allocated.
//!
//! kube-scheduler knows what is allocated by name only, and counts counters over the devices that are in the slices now: one that leaves them
//! while a claim has it gives its hardware away again. So a device that is not offered any more (a slice that an administrator destroyed, a
//! GPU whose mode has changed) stays under its name, with a taint, until all claims were listed, none has it, and none can get it any
//! more: half a minute after the taint was published. The other devices of its GPU have the taint, too: they may need the same hardware.
//!
//! In memory only: after a restart what is still published and not offered begins anew.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use k8s_openapi::api::resource::v1::Device;

use super::{
    desired::{Content, MAX_DEVICES_PER_SLICE, TAINT_WITHDRAWN, no_schedule},
    others::AFTERMATH,
};

/// What is known of the devices that are not offered any more.
#[derive(Debug, Default)]
pub struct Retained {
    /// When each was first seen to be published with the taint.
    tainted: BTreeMap<String, Instant>,
}

impl Retained {
    /// Of what is published the devices that are not desired.
    pub fn missing<'a>(
        published: impl Iterator<Item = &'a Device>,
        desired: &[Content],
    ) -> BTreeMap<String, &'a Device> {
        let desired = desired.iter().flat_map(Content::devices);
        let desired: BTreeSet<&str> = desired.map(|device| device.name.as_str()).collect();
        published
            .filter(|device| !desired.contains(device.name.as_str()))
            .map(|device| (device.name.clone(), device))
            .collect()
    }

    /// Takes what is missing now. Returns the devices of which it may be asked whether a claim has them.
    pub fn look(&mut self, now: Instant, missing: &BTreeMap<String, &Device>) -> BTreeSet<String> {
        self.tainted.retain(|name, _| missing.contains_key(name));
        for (name, device) in missing {
            if is_withdrawn(device) {
                self.tainted.entry(name.clone()).or_insert(now);
            }
        }
        let over = self
            .tainted
            .iter()
            .filter(|(_, since)| now.saturating_duration_since(**since) >= AFTERMATH);
        over.map(|(name, _)| name.clone()).collect()
    }
}

fn is_withdrawn(device: &Device) -> bool {
    let mut taints = device.taints.iter().flatten();
    taints.any(|taint| taint.key == TAINT_WITHDRAWN)
}

/// Adds devices that stay although they are not offered, and taints the others of their GPUs.
pub fn retain(contents: &mut Vec<Content>, retained: &[&Device]) {
    if retained.is_empty() {
        return;
    }
    let gpus: BTreeSet<&str> = retained.iter().filter_map(|device| gpu(device)).collect();
    for content in &mut *contents {
        if let Content::Devices(devices) = content {
            let beside = devices
                .iter_mut()
                .filter(|device| gpu(device).is_some_and(|gpu| gpus.contains(gpu)));
            beside.for_each(taint);
        }
    }
    let counters: BTreeMap<String, BTreeSet<String>> = contents
        .iter()
        .filter_map(|content| match content {
            Content::Counters(sets) => Some(sets),
            Content::Devices(_) => None,
        })
        .flatten()
        .map(|set| (set.name.clone(), set.counters.keys().cloned().collect()))
        .collect();
    let stays = retained.iter().map(|device| {
        let mut device = (*device).clone();
        // A set, or a counter, that does not exist would make the pool invalid.
        if let Some(takes) = &mut device.consumes_counters {
            takes.retain(|takes| {
                counters
                    .get(&takes.counter_set)
                    .is_some_and(|known| takes.counters.keys().all(|name| known.contains(name)))
            });
        }
        device.consumes_counters = device.consumes_counters.filter(|takes| !takes.is_empty());
        taint(&mut device);
        device
    });
    let stays: Vec<Device> = stays.collect();
    // Alone, there is the empty slice of a pool without devices.
    contents.retain(|content| *content != Content::Devices(Vec::new()));
    let chunks = stays.chunks(MAX_DEVICES_PER_SLICE);
    contents.extend(chunks.map(|devices| Content::Devices(devices.to_vec())));
}

/// UUID of the GPU that a device is, or is a part of.
fn gpu(device: &Device) -> Option<&str> {
    let attributes = device.attributes.as_ref()?;
    attributes.get("parentUUID")?.string.as_deref()
}

fn taint(device: &mut Device) {
    if !is_withdrawn(device) {
        let taints = device.taints.get_or_insert_default();
        taints.push(no_schedule(TAINT_WITHDRAWN));
    }
    // When it was added the server says; it is kept by whoever plans the writes.
    for taint in device.taints.iter_mut().flatten() {
        taint.time_added = None;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::api::resource::v1::{Counter, DeviceAttribute, DeviceCounterConsumption};
    use muster_device::{Listed, ListedGpu};

    use super::*;
    use crate::{
        inventory::{KnownGpus, fixtures},
        mig::{Mode, Policy, Toggle},
        slices::desired::{Tainted, desired},
    };

    fn contents(mode: Mode, is_on: bool) -> Vec<Content> {
        let mut gpu = fixtures::gpu("GPU-0", 0, "1");
        gpu.mig = Some(fixtures::h100(is_on));
        let listed = Listed {
            gpus: vec![ListedGpu { gpu, silent: None }],
            unidentified: Vec::new(),
        };
        let known = KnownGpus::default().after("boot", &listed);
        let policy = Policy {
            mode,
            toggle: Toggle::WhenIdle,
            ..Policy::default()
        };
        desired(&known, &policy, &[], &Tainted::default()).contents
    }

    fn all(contents: &[Content]) -> Vec<&Device> {
        contents.iter().flat_map(Content::devices).collect()
    }

    #[test]
    fn what_is_not_offered_any_more_stays_with_a_taint_until_no_claim_can_have_it() {
        let before = contents(Mode::Dynamic, true);
        let wanted = contents(Mode::Off, false);
        let mut published = before.clone();
        let mut retained = Retained::default();
        let start = Instant::now();
        for (second, asks) in [(0, false), (1, false), (30, false), (31, true), (60, true)] {
            let now = start + Duration::from_secs(second);
            let missing = Retained::missing(all(&published).into_iter(), &wanted);
            assert_eq!(missing.len(), 25, "all slices");
            let asked = retained.look(now, &missing);
            assert_eq!(asked.len(), if asks { 25 } else { 0 }, "{second} s");
            let mut next = wanted.clone();
            let kept: Vec<&Device> = missing.values().copied().collect();
            retain(&mut next, &kept);
            let names = |contents: &[Content]| {
                let devices = all(contents).into_iter();
                devices.map(|it| it.name.clone()).collect::<BTreeSet<_>>()
            };
            assert_eq!(names(&next), names(&before), "no name is lost");
            assert!(all(&next).iter().all(|device| is_withdrawn(device)));
            // Their counters are not there any more.
            assert!(
                all(&next)
                    .iter()
                    .all(|device| device.consumes_counters.is_none())
            );
            published = next;
        }
        // One that is offered again is forgotten.
        let missing = Retained::missing(all(&before).into_iter(), &before);
        assert!(retained.look(start, &missing).is_empty());
        assert!(retained.tainted.is_empty());
    }

    #[test]
    fn what_stays_draws_from_counters_as_long_as_these_exist() {
        let mut contents = contents(Mode::Dynamic, true);
        let strange = |counter: &str| {
            let takes = DeviceCounterConsumption {
                counter_set: "gpu-0".to_owned(),
                counters: [(counter.to_owned(), Counter::default())].into(),
                ..DeviceCounterConsumption::default()
            };
            let uuid = DeviceAttribute {
                string: Some("GPU-9".to_owned()),
                ..DeviceAttribute::default()
            };
            Device {
                name: format!("gpu-0-mig-{counter}"),
                attributes: Some([("parentUUID".to_owned(), uuid)].into()),
                consumes_counters: Some(vec![takes]),
                ..Device::default()
            }
        };
        let (known, unknown) = (strange("memory-slice-7"), strange("memory-slice-8"));
        retain(&mut contents, &[&known, &unknown]);
        let all = all(&contents);
        let stays = &all[all.len() - 2..];
        assert!(stays[0].consumes_counters.is_some());
        assert!(stays[1].consumes_counters.is_none());
        // The devices of other GPUs are as they were.
        assert!(!is_withdrawn(all[0]));
    }
}
