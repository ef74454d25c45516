//! Who else hands out the GPUs of this node.
//!
//! Two who hand out one GPU give it to two pods, and neither can know. So nothing is published while a device plugin offers GPUs of
//! the node, or another GPU driver publishes any there. A device that somebody was given stays in the ResourceSlices under its
//! name: it is in use, whoever else offers it.
//!
//! A container that a plugin gave a GPU counts like the plugin: when that is taken off, the node's allocatable drops to 0 while the
//! container runs on.
//!
//! That nobody is seen is no proof. A kubelet that starts says 0 of every plugin until that registers again, knows none of its pods
//! at first, and takes the ResourceSlices of all drivers away. So whoever was seen is waited for, [`QUIET`]; and as long as the kubelet
//! does not say what it gave to containers, nothing is added to what is published, but for the devices that claims have.
//!
//! It is looked at with each publication, and once a minute without one. Until then both offer the same GPUs, so this is a net, and
//! no way to change from one to the other: a node is emptied first.

use std::{
    collections::BTreeSet,
    mem,
    time::{Duration, Instant},
};

use k8s_openapi::api::{core::v1::Node, resource::v1::Device};
use muster_api::keys;
use muster_cluster::{device_plugin, managed::ManagedPods, text::listed};

use super::desired::Content;

/// Names who else hands out GPUs of the node, with what shows it; empty: nobody does.
/// `publishing`: the drivers that have ResourceSlices there; `handed_out`: what a container got of a device plugin, if one has anything.
pub fn others<'a>(
    node: &Node,
    publishing: impl Iterator<Item = &'a str>,
    handed_out: Option<&str>,
    managed: &ManagedPods,
) -> String {
    let plugin = device_plugin::offered(node, managed)
        .map(|units| format!("a device plugin ({units} in the node's status)"))
        .or_else(|| handed_out.map(|what| format!("a device plugin ({what})")));
    let drivers: BTreeSet<&str> = publishing
        .filter(|driver| *driver != keys::DRIVER && device_plugin::is_gpu_driver(driver))
        .collect();
    let drivers = drivers.iter().map(|driver| format!("driver {driver}"));
    let all: Vec<String> = plugin.into_iter().chain(drivers).collect();
    if all.is_empty() {
        return String::new();
    }
    listed(all.iter().map(String::as_str))
}

/// How long nobody else has to be seen before GPUs are published that were not.
pub const QUIET: Duration = Duration::from_mins(2);

/// What is published of the node's GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// All.
    All,
    /// What is published already, and what claims have: whether somebody else hands out the others nobody knows.
    Published,
    /// What claims have: others hand them out.
    InUse,
}

/// When others were seen to hand out GPUs of the node.
#[derive(Debug, Default)]
pub struct Sightings {
    /// Whether it was looked at before.
    has_looked: bool,
    last: Option<Instant>,
}

impl Sightings {
    /// What is to be published by what is seen now. `others`: whether anybody else was seen; `once`: whether a plugin may be restarting,
    /// which counts if nothing was seen before; `is_told`: whether the kubelet says what it gave to containers.
    pub fn look(&mut self, now: Instant, others: bool, once: bool, is_told: bool) -> Offer {
        let is_first = !mem::replace(&mut self.has_looked, true);
        if others || (is_first && once) {
            self.last = Some(now);
        }
        let is_quiet = self
            .last
            .is_none_or(|last| now.saturating_duration_since(last) >= QUIET);
        match (others, is_quiet && is_told) {
            (true, _) => Offer::InUse,
            (false, true) => Offer::All,
            (false, false) => Offer::Published,
        }
    }
}

/// How long after the last device was withdrawn kube-scheduler may still write an allocation of it, by what it knew before.
pub(crate) const AFTERMATH: Duration = Duration::from_secs(30);

/// Whether claims may still get devices that were withdrawn.
#[derive(Debug, Default)]
pub struct Withdrawal {
    last_published: Option<Instant>,
    last_listed: Option<Instant>,
}

impl Withdrawal {
    /// Whether the list of claims that was made last has all of them. `is_published`: whether any device is.
    pub fn is_over(&mut self, now: Instant, is_published: bool) -> bool {
        if is_published {
            self.last_published = Some(now);
        }
        self.last_listed.is_some_and(|listed| {
            let published = self.last_published;
            published.is_none_or(|last| listed.saturating_duration_since(last) >= AFTERMATH)
        })
    }

    /// Claims were listed.
    pub fn listed(&mut self, now: Instant) {
        self.last_listed = Some(now);
    }
}

/// Of what would be published only the devices of these names, with what they draw from; at least one slice.
pub fn only(desired: &[Content], names: &BTreeSet<String>) -> Vec<Content> {
    let is_kept = |device: &&Device| names.contains(&device.name);
    let sets: BTreeSet<&str> = desired
        .iter()
        .flat_map(|content| content.devices().iter().filter(is_kept))
        .flat_map(|device| device.consumes_counters.iter().flatten())
        .map(|takes| takes.counter_set.as_str())
        .collect();
    let kept = desired.iter().filter_map(|content| match content {
        Content::Counters(counters) => {
            let counters = counters.iter();
            let counters = counters.filter(|set| sets.contains(set.name.as_str()));
            let counters: Vec<_> = counters.cloned().collect();
            (!counters.is_empty()).then_some(Content::Counters(counters))
        }
        Content::Devices(devices) => {
            let devices: Vec<_> = devices.iter().filter(is_kept).cloned().collect();
            (!devices.is_empty()).then_some(Content::Devices(devices))
        }
    });
    let mut contents: Vec<Content> = kept.collect();
    if contents.is_empty() {
        contents.push(Content::Devices(Vec::new()));
    }
    contents
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::resource::v1::{CounterSet, DeviceCounterConsumption};
    use serde_json::json;

    use super::*;

    fn managed() -> ManagedPods {
        ManagedPods::new(["nvidia.com/gpu", "nvidia.com/mig-*"]).unwrap()
    }

    fn node(resource: &str, units: &str) -> Node {
        serde_json::from_value(json!({"status": {"allocatable": {"cpu": "8", resource: units}}}))
            .unwrap()
    }

    #[test]
    fn whoever_else_hands_out_gpus_is_named_and_nobody_else() {
        let given = Some("nvidia.com/gpu of pod ml/w-0");
        assert_eq!(
            others(
                &node("nvidia.com/gpu", "0"),
                std::iter::empty(),
                given,
                &managed()
            ),
            "a device plugin (nvidia.com/gpu of pod ml/w-0)"
        );
        for (resource, units, drivers, expected) in [
            ("nvidia.com/gpu", "0", vec![], ""),
            (
                "nvidia.com/gpu",
                "8",
                vec![],
                "a device plugin (8 nvidia.com/gpu in the node's status)",
            ),
            (
                "nvidia.com/mig-1g.10gb",
                "7",
                vec![],
                "a device plugin (7 nvidia.com/mig-1g.10gb in the node's status)",
            ),
            (
                "rdma/hca",
                "8",
                vec!["gpu.muster.dev", "dra.net", "compute-domain.nvidia.com"],
                "",
            ),
            (
                "rdma/hca",
                "8",
                vec!["gpu.nvidia.com", "gpu.nvidia.com"],
                "driver gpu.nvidia.com",
            ),
        ] {
            let drivers = drivers.into_iter();
            assert_eq!(
                others(&node(resource, units), drivers, None, &managed()),
                expected
            );
        }
    }

    #[test]
    fn nothing_is_added_until_nobody_else_was_seen_for_two_minutes_and_the_kubelet_says_so() {
        let start = Instant::now();
        // At which second; whether others are seen, a plugin may be restarting, and the kubelet answers.
        let look =
            |sightings: &mut Sightings, second: u64, others: bool, once: bool, told: bool| {
                sightings.look(start + Duration::from_secs(second), others, once, told)
            };
        for once in [false, true] {
            let mut sightings = Sightings::default();
            let first = look(&mut sightings, 0, false, once, true);
            assert_eq!(
                first == Offer::All,
                !once,
                "a plugin that may be restarting"
            );
            assert_eq!(look(&mut sightings, 120, false, once, true), Offer::All);
            // What it says of a plugin that is long gone means nothing any more.
            assert_eq!(look(&mut sightings, 121, false, true, true), Offer::All);
            // A kubelet that is silent, whoever is seen.
            assert_eq!(
                look(&mut sightings, 122, false, once, false),
                Offer::Published
            );
            assert_eq!(look(&mut sightings, 123, false, once, true), Offer::All);
            assert_eq!(look(&mut sightings, 124, true, once, false), Offer::InUse);
            // It answers, and knows no pods and no plugins yet.
            assert_eq!(
                look(&mut sightings, 125, false, true, true),
                Offer::Published
            );
            assert_eq!(look(&mut sightings, 200, true, true, true), Offer::InUse);
            assert_eq!(
                look(&mut sightings, 319, false, true, true),
                Offer::Published
            );
            assert_eq!(look(&mut sightings, 320, false, true, true), Offer::All);
        }
    }

    #[test]
    fn claims_are_listed_again_until_nothing_was_published_for_a_while() {
        let start = Instant::now();
        let at = |second: u64| start + Duration::from_secs(second);
        let mut withdrawal = Withdrawal::default();
        for (second, is_published, is_over) in [
            // It is withdrawn now; the scheduler may have chosen it a moment ago.
            (0, true, false),
            (1, false, false),
            (60, false, false),
            (61, false, true),
            (120, false, true),
            // A device that a claim has is published again.
            (180, true, false),
            (240, false, false),
            (300, false, true),
        ] {
            let now = at(second);
            assert_eq!(withdrawal.is_over(now, is_published), is_over, "{second} s");
            if !is_over {
                withdrawal.listed(now);
            }
        }
        let mut started = Withdrawal::default();
        assert!(!started.is_over(start, false));
        started.listed(start);
        assert!(started.is_over(start, false), "nothing was published");
    }

    #[test]
    fn what_is_in_use_stays_with_what_it_draws_from_and_no_pool_is_without_a_slice() {
        let device = |name: &str, set: Option<&str>| Device {
            name: name.to_owned(),
            consumes_counters: set.map(|set| {
                vec![DeviceCounterConsumption {
                    counter_set: set.to_owned(),
                    ..DeviceCounterConsumption::default()
                }]
            }),
            ..Device::default()
        };
        let set = |name: &str| CounterSet {
            name: name.to_owned(),
            ..CounterSet::default()
        };
        let desired = [
            Content::Counters(vec![set("gpu-0"), set("gpu-1")]),
            Content::Devices(vec![device("gpu-0", Some("gpu-0"))]),
            Content::Devices(vec![device("gpu-1", Some("gpu-1")), device("gpu-2", None)]),
            Content::Devices(vec![device("gpu-64", None)]),
        ];
        let names = |used: &[&str]| {
            let used = used.iter().map(|name| (*name).to_owned()).collect();
            let contents = only(&desired, &used).into_iter();
            let names = contents.map(|content| match content {
                Content::Counters(sets) => sets.into_iter().map(|it| it.name + ":").collect(),
                Content::Devices(devices) => devices.into_iter().map(|it| it.name).collect(),
            });
            names.collect::<Vec<Vec<String>>>()
        };
        assert_eq!(names(&[]), [Vec::<String>::new()]);
        assert_eq!(names(&["gpu-1", "gpu-9"]), [["gpu-1:"], ["gpu-1"]]);
        assert_eq!(names(&["gpu-2", "gpu-64"]), [["gpu-2"], ["gpu-64"]]);
    }
}
