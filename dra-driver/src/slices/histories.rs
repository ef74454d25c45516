//! Random histories of what is allocated from a node's slices, while GPUs move, modes change and slices come and go. Whatever happens, an
//! allocated device stays in the slices under its name, no two that are allocated need the same hardware, no counter is overdrawn, and the
//! slices are such as the API server takes.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use k8s_openapi::api::resource::v1::{Counter, Device};
use muster_device::{Listed, ListedGpu, MigInstance, NvlinkGroups};

use super::{
    board::MAX_COUNTERS,
    desired::{Content, MAX_COUNTER_SETS_PER_SLICE, MAX_DEVICES_PER_SLICE, Tainted, desired},
    order::{Moves, arranged, next_move},
    retained::{Retained, retain},
};
use crate::{
    inventory::{KnownGpus, fixtures},
    mig::{Mode, Policy, Toggle},
    prepare::{SliceMode, Unit},
    random::Random,
};

struct Node {
    seed: u64,
    now: Instant,
    policy: Policy,
    /// GPUs in MIG mode, by index.
    is_on: [bool; 4],
    /// Devices that claims have, with their hardware.
    allocated: BTreeMap<String, Unit>,
    published: Vec<Content>,
    standing: Vec<String>,
    retained: Retained,
    moves: Moves,
    moved: u32,
    given: u32,
}

fn policy(mode: Mode) -> Policy {
    Policy {
        mode,
        toggle: Toggle::WhenIdle,
        ..Policy::default()
    }
}

impl Node {
    fn new(seed: u64) -> Self {
        let now = Instant::now();
        Self {
            seed,
            now,
            policy: policy(Mode::Dynamic),
            is_on: [false; 4],
            allocated: BTreeMap::new(),
            published: Vec::new(),
            standing: Vec::new(),
            retained: Retained::default(),
            moves: Moves::new(now),
            moved: 0,
            given: 0,
        }
    }

    /// The GPUs; a slice exists for each that is allocated.
    fn known(&self) -> KnownGpus {
        let listed = |index: u32| {
            let mut gpu = fixtures::gpu(&format!("GPU-{index}"), index, &format!("{index}"));
            gpu.memory_bytes = Some(80 << 30);
            gpu.nvlink = NvlinkGroups {
                pair: index & !1,
                quad: 0,
                group: 0,
            };
            gpu.mig = Some(fixtures::h100(self.is_on[usize::try_from(index).unwrap()]));
            ListedGpu { gpu, silent: None }
        };
        let listed = Listed {
            gpus: (0..4).map(listed).collect(),
            unidentified: Vec::new(),
        };
        let known = KnownGpus::default().after("boot", &listed);
        let mut slices: BTreeMap<String, Vec<MigInstance>> = BTreeMap::new();
        for gpu in &known.gpus {
            let of_gpu = slices.entry(gpu.gpu.uuid.clone()).or_default();
            let held = gpu
                .parts()
                .filter(|part| self.allocated.contains_key(&part.name));
            for slice in held.filter_map(|part| part.slice) {
                of_gpu.push(MigInstance {
                    placement: slice.placement,
                    gpu_instance: slice.placement.start + 1,
                    compute_instance: Some(0),
                    is_divided: false,
                    profile: slice.profile.gpu_instance_profile,
                    uuid: Some(format!("MIG-{}", slice.placement.start)),
                });
            }
        }
        known.with_instances(&slices, |_, _| false)
    }

    /// What the publisher does.
    fn publish(&mut self) {
        let known = self.known();
        let mut order = arranged(&known, &self.policy, &self.standing);
        if let Some((one, other)) = next_move(&known, &self.policy, &order)
            && self.moves.is_due(self.now)
        {
            order.swap(one, other);
            self.moves.moved(self.now);
            self.moved += 1;
        }
        let mut contents = desired(&known, &self.policy, &order, &Tainted::default()).contents;
        let published = self.published.iter().flat_map(Content::devices);
        let missing = Retained::missing(published, &contents);
        let mut over = self.retained.look(self.now, &missing);
        over.retain(|name| !self.allocated.contains_key(name));
        let stays = missing.iter().filter(|(name, _)| !over.contains(*name));
        let stays: Vec<Device> = stays.map(|(_, device)| (*device).clone()).collect();
        retain(&mut contents, &stays.iter().collect::<Vec<_>>());
        self.standing = order;
        self.published = contents;
    }

    /// What kube-scheduler does: the first device with as much memory that is free, untainted and has counters left.
    fn allocate(&mut self, memory_bytes: i64) {
        let read = |counter: &Counter| counter.value.0.parse::<i64>().unwrap();
        let mut left = self.left();
        if left.values().any(|left| *left < 0) {
            return;
        }
        let inventory = self.known().inventory(SliceMode::Dynamic);
        for device in self.published.iter().flat_map(Content::devices) {
            let facts = &inventory[&device.name];
            let is_free = !self.allocated.contains_key(&device.name) && device.taints.is_none();
            if !is_free || facts.memory_bytes < memory_bytes {
                continue;
            }
            let takes = device.consumes_counters.iter().flatten();
            let takes = takes.flat_map(|takes| {
                let each = takes.counters.iter();
                each.map(|(name, counter)| {
                    let key = (takes.counter_set.clone(), name.clone());
                    (key, read(counter))
                })
            });
            let takes: Vec<_> = takes.collect();
            if takes.iter().any(|(key, amount)| left[key] < *amount) {
                continue;
            }
            for (key, amount) in takes {
                *left.get_mut(&key).unwrap() -= amount;
            }
            self.allocated
                .insert(device.name.clone(), facts.unit.clone());
            self.given += 1;
            return;
        }
    }

    /// What is left of each counter beside what is allocated.
    fn left(&self) -> BTreeMap<(String, String), i64> {
        let read = |counter: &Counter| counter.value.0.parse::<i64>().unwrap();
        let mut left = BTreeMap::new();
        for content in &self.published {
            if let Content::Counters(sets) = content {
                for set in sets {
                    for (name, counter) in &set.counters {
                        let key = (set.name.clone(), name.clone());
                        assert!(left.insert(key, read(counter)).is_none());
                    }
                }
            }
        }
        let devices = self.published.iter().flat_map(Content::devices);
        for device in devices.filter(|device| self.allocated.contains_key(&device.name)) {
            for takes in device.consumes_counters.iter().flatten() {
                for (name, counter) in &takes.counters {
                    let key = (takes.counter_set.clone(), name.clone());
                    *left.get_mut(&key).expect("the counter exists") -= read(counter);
                }
            }
        }
        left
    }

    fn check(&self) {
        let seed = self.seed;
        let devices: Vec<&Device> = self.published.iter().flat_map(Content::devices).collect();
        let names: BTreeSet<&str> = devices.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(
            names.len(),
            devices.len(),
            "seed {seed}: a name stands twice"
        );
        for name in self.allocated.keys() {
            assert!(names.contains(name.as_str()), "seed {seed}: {name} is lost");
        }
        let units: Vec<&Unit> = self.allocated.values().collect();
        for (at, unit) in units.iter().enumerate() {
            let collides = units[..at].iter().any(|other| unit.overlaps(other));
            assert!(!collides, "seed {seed}: {unit} is given to two");
        }
        let overdrawn: Vec<_> = self
            .left()
            .into_iter()
            .filter(|(_, left)| *left < 0)
            .collect();
        assert!(overdrawn.is_empty(), "seed {seed}: {overdrawn:?}");
        for content in &self.published {
            match content {
                Content::Counters(sets) => {
                    assert!((1..=MAX_COUNTER_SETS_PER_SLICE).contains(&sets.len()));
                    let fits = |count: usize| (1..=MAX_COUNTERS).contains(&count);
                    assert!(sets.iter().all(|set| fits(set.counters.len())));
                }
                Content::Devices(devices) => {
                    assert!(devices.len() <= MAX_DEVICES_PER_SLICE, "seed {seed}");
                }
            }
        }
    }
}

#[test]
fn an_allocated_device_is_never_lost_and_no_hardware_is_given_to_two() {
    let (mut moved, mut given, mut changed) = (0, 0, 0);
    for seed in 0..40 {
        let mut random = Random(seed);
        let mut node = Node::new(seed);
        node.publish();
        for _ in 0..150 {
            node.now += Duration::from_secs(random.below(25));
            match random.below(12) {
                0..6 => {
                    let gibibytes = [1, 5, 9, 19, 39, 40];
                    let at = usize::try_from(random.below(6)).unwrap();
                    node.allocate(gibibytes[at] << 30);
                }
                6..10 => {
                    let count = u64::try_from(node.allocated.len()).unwrap();
                    if count > 0 {
                        let at = usize::try_from(random.below(count)).unwrap();
                        let name = node.allocated.keys().nth(at).unwrap().clone();
                        node.allocated.remove(&name);
                    }
                }
                // An administrator switches a GPU that is idle, whoever is about to get it.
                10 => {
                    let index = random.below(4);
                    let uuid = format!("GPU-{index}");
                    if node.allocated.values().all(|unit| unit.gpu != uuid) {
                        let index = usize::try_from(index).unwrap();
                        node.is_on[index] = !node.is_on[index];
                    }
                }
                _ => {
                    let modes = [Mode::Dynamic, Mode::Dynamic, Mode::Static, Mode::Off];
                    let mode = modes[usize::try_from(random.below(4)).unwrap()];
                    changed += u32::from(node.policy.mode != mode);
                    node.policy = policy(mode);
                }
            }
            // Not after each: kube-scheduler sees what was published last.
            if random.below(3) > 0 {
                node.publish();
            }
            node.check();
        }
        moved += node.moved;
        given += node.given;
    }
    assert!(
        moved > 20 && given > 500 && changed > 100,
        "{moved} moves, {given} allocations, {changed} changes of mode"
    );
}
