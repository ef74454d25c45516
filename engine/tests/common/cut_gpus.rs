//! Nodes whose GPUs may be cut into slices, and claims for these.
#![allow(dead_code, reason = "each test program uses its part")]

use std::{collections::BTreeSet, sync::Arc};

use muster_engine::{
    Amount, Claim, Consumption, CounterSet, Device, DeviceChoice, DeviceRequest, Gang, HeldClaim,
    Hold, Node, SelectorId,
};

use crate::common::*;

/// Memory slices of a GPU; it has one compute slice less.
const MEMORY_SLICES: usize = 8;

/// A profile by its selector: so many memory and compute slices, where it may begin, and what it is charged as, in thousandths.
#[derive(Clone, Copy)]
struct Profile {
    selector: SelectorId,
    memory: usize,
    compute: i64,
    starts: &'static [usize],
    gpus: i64,
}

pub(crate) const ONE_SLICE: SelectorId = SelectorId(11);
pub(crate) const TWO_SLICES: SelectorId = SelectorId(12);
pub(crate) const THREE_SLICES: SelectorId = SelectorId(13);

/// As on an H100 with 80 GiB, the smallest first and the GPU as a whole last.
const PROFILES: [Profile; 4] = [
    Profile {
        selector: ONE_SLICE,
        memory: 1,
        compute: 1,
        starts: &[0, 1, 2, 3, 4, 5, 6],
        gpus: 142,
    },
    Profile {
        selector: TWO_SLICES,
        memory: 2,
        compute: 2,
        starts: &[0, 2, 4],
        gpus: 285,
    },
    Profile {
        selector: THREE_SLICES,
        memory: 4,
        compute: 3,
        starts: &[0, 4],
        gpus: 500,
    },
    Profile {
        selector: ANY_GPU,
        memory: MEMORY_SLICES,
        compute: 7,
        starts: &[0],
        gpus: 1000,
    },
];

/// Devices of one GPU.
pub(crate) const DEVICES_PER_GPU: usize = 13;

/// The place of a part among the devices of its node.
pub(crate) fn part(gpu: usize, selector: SelectorId, start: usize) -> usize {
    let parts = PROFILES.iter().flat_map(|profile| {
        profile
            .starts
            .iter()
            .map(|start| (profile.selector, *start))
    });
    let mut parts = parts.enumerate();
    let found = parts.find(|(_, part)| *part == (selector, start));
    gpu * DEVICES_PER_GPU + found.expect("a part that there is").0
}

/// A node of GPUs each of which may be cut.
pub(crate) fn cut_node(name: &str, path: &str, gpus: u32) -> Node {
    let mut node = node(name, path, 0);
    let set = |_| CounterSet {
        pool: 0,
        counters: [vec![1; MEMORY_SLICES], vec![7]].concat(),
    };
    node.counter_sets = (0..gpus).map(set).collect();
    for gpu in 0..gpus {
        for profile in PROFILES {
            for start in profile.starts {
                let memory = (*start..start + profile.memory)
                    .map(|slice| (u32::try_from(slice).expect("few"), 1));
                let compute = u32::try_from(MEMORY_SLICES).expect("few");
                let amounts: Arc<[(u32, i64)]> =
                    memory.chain([(compute, profile.compute)]).collect();
                let consumption = Consumption { set: gpu, amounts };
                let gib = i64::try_from(10 * profile.memory).expect("few");
                node.devices.push(Device {
                    gpus: Amount(profile.gpus),
                    vram: Amount(gib * GIB),
                    selectors: BTreeSet::from([profile.selector]).into(),
                    attributes: Arc::default(),
                    consumes: vec![consumption].into(),
                    ..device(node.devices.len())
                });
            }
        }
    }
    node
}

/// A claim for the smallest of these that is to be had.
pub(crate) fn first_of(uid: &str, selectors: &[SelectorId]) -> Claim {
    let choices = selectors.iter().enumerate();
    Claim {
        requests: vec![DeviceRequest {
            name: "memory".into(),
            choices: choices
                .map(|(at, selector)| DeviceChoice {
                    name: Some(format!("c{at}")),
                    selector: *selector,
                    count: 1,
                })
                .collect(),
        }],
        ..claim(uid, 1)
    }
}

/// A claim for so many tens of GiB, or for the least that is more.
pub(crate) fn tens_of_gib(uid: &str, tens: usize) -> Claim {
    let large = PROFILES.iter().filter(|profile| profile.memory >= tens);
    let selectors: Vec<SelectorId> = large.map(|profile| profile.selector).collect();
    first_of(uid, &selectors)
}

/// A gang of so many pods, each with such a claim.
pub(crate) fn memory_gang(name: &str, team: &str, pods: usize, tens: usize) -> Gang {
    let pods = (0..pods).map(|rank| {
        let uid = format!("{name}-{rank}");
        pod(&uid, vec![tens_of_gib(&format!("{uid}-memory"), tens)])
    });
    gang_of(name, team, pods.collect())
}

/// A hold of one part, with its charge.
pub(crate) fn hold_part(
    pod: &str,
    team: &str,
    node: &str,
    (gpu, selector, start): (usize, SelectorId, usize),
) -> Hold {
    let held = hold(pod, team, node, &[part(gpu, selector, start)]);
    let profile = PROFILES.iter().find(|profile| profile.selector == selector);
    let charge = profile.map_or(0, |profile| profile.gpus);
    Hold {
        claims: held
            .claims
            .iter()
            .map(|claim| HeldClaim {
                gpus: Amount(charge),
                ..claim.clone()
            })
            .collect(),
        ..held
    }
}
