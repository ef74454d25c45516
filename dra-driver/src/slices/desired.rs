//! The devices of a node as ResourceSlices show them. Names: DESIGN 7.
//!
//! First the counters of the GPUs that can be cut anew, in slices of eight sets; then a slice for each GPU that is cut or can be, in the order of
//! [`super::order`]; then the GPUs that are whole and stay so.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::resource::v1::{
        CounterSet, Device, DeviceAttribute, DeviceCapacity, DeviceCounterConsumption, DeviceTaint,
    },
    apimachinery::pkg::api::resource::Quantity,
};
use muster_api::keys::{self, TAINT_FAULT, TAINT_LINK_FAULT, TAINT_NODE_FAULT};
use muster_cluster::quantity;
use muster_device::{
    MigFacts, Placement,
    faults::{Fault, FaultState},
};

use super::{board::Board, order};
use crate::{
    inventory::{KnownGpu, KnownGpus, Part, Slice, UsedPart},
    mig::{Mode, OnGpus, Policy},
};

/// Most devices of a slice: with more than 64 a slice becomes invalid the moment one of them gets a taint, and one with devices that draw
/// from counters is from the first.
pub const MAX_DEVICES_PER_SLICE: usize = 64;
/// Most counter sets of a slice.
pub const MAX_COUNTER_SETS_PER_SLICE: usize = 8;
/// Taint key (NoSchedule) on GPUs that NVML does not list any more.
pub const TAINT_GONE: &str = keys::TAINT_GONE;
/// Taint key (NoSchedule) on GPUs that do not answer NVML.
pub const TAINT_UNRESPONSIVE: &str = "gpu.muster.dev/unresponsive";
/// Taint key (NoSchedule) on whole GPUs that the fabric manager has not set up: CUDA does not start on them (error 802).
pub const TAINT_FABRIC: &str = "gpu.muster.dev/fabric-unfinished";
/// Taint key (NoSchedule) on what needs hardware that a slice has which no claim of ours accounts for.
pub const TAINT_FOREIGN_SLICE: &str = "gpu.muster.dev/foreign-slice";
/// Taint key (NoSchedule) on GPUs that are being brought to their declared layout.
pub const TAINT_RECONFIGURING: &str = "gpu.muster.dev/reconfiguring";
/// Taint key (NoSchedule) on devices that are not offered any more and may still be allocated, and on the others of their GPU.
pub const TAINT_WITHDRAWN: &str = "gpu.muster.dev/withdrawn";
/// Longest string attribute that the API server takes.
const MAX_STRING_BYTES: usize = 64;

/// What is to be tainted, beside what is gone or does not answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tainted {
    /// Names of devices that are held without a permit.
    pub held: BTreeSet<String>,
    /// What processes use which nothing explains.
    pub bypassed: BTreeSet<UsedPart>,
    /// UUIDs of GPUs that are being brought to their declared layout.
    pub reconfiguring: BTreeSet<String>,
    /// What is wrong with the GPUs.
    pub faults: FaultState,
}

/// What a ResourceSlice holds: the API has either in one, not both.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// What devices share.
    Counters(Vec<CounterSet>),
    /// Devices, in the order in which they are tried.
    Devices(Vec<Device>),
}

impl Content {
    /// Its devices.
    pub fn devices(&self) -> &[Device] {
        match self {
            Self::Counters(_) => &[],
            Self::Devices(devices) => devices,
        }
    }
}

/// What a node's slices are to hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Desired {
    /// Slice by slice. At least one: a pool without slices looks like a driver that is not there.
    pub contents: Vec<Content>,
    /// What the hardware could do and the API cannot show, a sentence for each.
    pub left_out: Vec<String>,
}

/// How a GPU is offered.
#[derive(Clone, Debug)]
pub enum Offering<'a> {
    /// Whole.
    Whole,
    /// As the slices that exist.
    Existing,
    /// As every slice that can be made, and whole too if `whole`.
    Every {
        /// What it can be cut into.
        board: Board<'a>,
        /// Whether it can be had whole: nothing is if its MIG mode is on and stays so.
        whole: bool,
    },
}

impl<'a> Offering<'a> {
    /// How this GPU is offered. One in MIG mode that stays in it is never offered whole.
    pub fn of(known: &'a KnownGpu, policy: &Policy) -> Self {
        Self::with_left_out(known, policy).0
    }

    /// The same with what it could be cut into and the API cannot show, a sentence for each.
    fn with_left_out(known: &'a KnownGpu, policy: &Policy) -> (Self, Vec<String>) {
        let whole = policy.may_toggle(known);
        let can_be_cut = known.is_in_mig_mode() || whole;
        let as_it_is = || {
            if known.is_in_mig_mode() {
                Self::Existing
            } else {
                Self::Whole
            }
        };
        let mig = known.gpu.mig.as_ref();
        let Some(mig) = mig.filter(|_| policy.mode == Mode::Dynamic && can_be_cut) else {
            return (as_it_is(), Vec::new());
        };
        let room = MAX_DEVICES_PER_SLICE - usize::from(whole);
        match Board::new(&known.gpu, mig, room) {
            Ok(board) => {
                let left_out = board.left_out().to_vec();
                (Self::Every { board, whole }, left_out)
            }
            Err(mut left_out) => {
                let offering = as_it_is();
                if !left_out.is_empty() {
                    let instead = match offering {
                        Self::Existing => "as the slices that exist",
                        Self::Whole | Self::Every { .. } => "whole",
                    };
                    left_out.push(format!(
                        "{}: no slice of it is made for claims; it is offered {instead}",
                        known.gpu.device_name()
                    ));
                }
                (offering, left_out)
            }
        }
    }

    /// Its devices, in the order in which they are to be tried, each with what it draws from.
    fn parts(&self, known: &'a KnownGpu) -> Vec<(Part<'a>, Option<DeviceCounterConsumption>)> {
        let whole = Part {
            name: known.gpu.device_name(),
            slice: None,
        };
        match self {
            Self::Whole => vec![(whole, None)],
            Self::Existing => {
                let mut slices: Vec<Slice<'a>> = known.existing().collect();
                slices.sort_by_key(|slice| {
                    let profile = slice.profile;
                    (
                        profile.memory_slices,
                        profile.compute_slices,
                        profile.gpu_instance_profile,
                        slice.placement,
                    )
                });
                // They do not overlap, and no GPU has that many memory slices.
                slices.truncate(MAX_DEVICES_PER_SLICE);
                let part = |slice: Slice<'a>| Part {
                    name: known.gpu.slice_name(slice.profile, slice.placement.start),
                    slice: Some(slice),
                };
                slices
                    .into_iter()
                    .map(|slice| (part(slice), None))
                    .collect()
            }
            Self::Every {
                board,
                whole: has_whole,
            } => {
                let slices = board.slices().iter().map(|&(profile, placement)| {
                    // Who it is shows when it is made; until then, and from one claim to the next, it is nobody.
                    let part = Part {
                        name: known.gpu.slice_name(profile, placement.start),
                        slice: Some(Slice {
                            profile,
                            placement,
                            uuid: None,
                        }),
                    };
                    (part, Some(board.of(profile, placement)))
                });
                let whole = has_whole.then(|| (whole, Some(board.all())));
                slices.chain(whole).collect()
            }
        }
    }
}

/// What the slices are to hold. `order`: UUIDs of the GPUs that have a slice each, as they stand; those that are not in it follow.
pub fn desired(known: &KnownGpus, policy: &Policy, order: &[String], tainted: &Tainted) -> Desired {
    let mut sets: Vec<CounterSet> = Vec::new();
    let mut cut: BTreeMap<&str, Vec<Device>> = BTreeMap::new();
    let mut whole: Vec<Device> = Vec::new();
    let mut left_out = Vec::new();
    let is_listed = |uuid: &str| known.gpus.iter().any(|gpu| gpu.gpu.uuid == uuid);
    let node_fault = tainted.faults.node_fault(is_listed);
    for gpu in &known.gpus {
        let (offering, of_gpu) = Offering::with_left_out(gpu, policy);
        left_out.extend(of_gpu);
        if let Offering::Every { board, .. } = &offering {
            sets.push(board.counter_set());
        }
        let needed = Needed {
            held: held_parts(gpu, tainted),
            // Where slices are made for claims. Elsewhere those of others are what is offered.
            foreign: match offering {
                Offering::Every { .. } => &gpu.foreign,
                Offering::Whole | Offering::Existing => &[],
            },
            node_fault: node_fault.map(|(_, fault)| fault),
        };
        let parts = offering.parts(gpu).into_iter();
        let devices = parts.map(|(part, takes)| device(gpu, &part, takes, &needed, tainted));
        if matches!(offering, Offering::Whole) {
            whole.extend(devices);
        } else {
            cut.insert(&gpu.gpu.uuid, devices.collect());
        }
    }
    let order = order::arranged(known, policy, order);
    let cut = order.iter().filter_map(|uuid| cut.remove(uuid.as_str()));
    let cut: Vec<Vec<Device>> = cut.filter(|devices| !devices.is_empty()).collect();
    let mut contents: Vec<Content> = sets
        .chunks(MAX_COUNTER_SETS_PER_SLICE)
        .map(|sets| Content::Counters(sets.to_vec()))
        .collect();
    contents.extend(cut.into_iter().map(Content::Devices));
    let whole = whole.chunks(MAX_DEVICES_PER_SLICE);
    contents.extend(whole.map(|devices| Content::Devices(devices.to_vec())));
    if contents.is_empty() {
        contents.push(Content::Devices(Vec::new()));
    }
    Desired { contents, left_out }
}

/// Every attribute stands on every device: a selector that reads one that is missing is a run-time error, which
/// aborts the scheduling of the pod. Where the hardware has no such thing the value is the device's own name, -1 or 0.
///
/// A slice has no `NVLink` and no peers: it is its own group, also beside slices of the same GPU.
fn device(
    known: &KnownGpu,
    part: &Part<'_>,
    takes: Option<DeviceCounterConsumption>,
    needed: &Needed<'_>,
    tainted: &Tainted,
) -> Device {
    let gpu = &known.gpu;
    let name = part.name.clone();
    let slice = part.slice.as_ref();
    let neighbour = |index: u32| match slice {
        None => string(&format!("gpu-{index}")),
        Some(_) => string(&name),
    };
    let own = || string(&name);
    let (major, minor) = gpu.cuda_compute_capability;
    let mig = gpu.mig.as_ref();
    let compute_slices = match slice {
        Some(slice) => slice.profile.compute_slices,
        None => mig.map_or(0, MigFacts::compute_slices),
    };
    let memory_slices = match slice {
        Some(slice) => slice.profile.memory_slices,
        None => mig.map_or(0, MigFacts::memory_slices),
    };
    let fabric_clique = gpu.fabric_clique.as_ref().filter(|_| slice.is_none());
    let attributes = [
        ("type", string(if slice.is_some() { "mig" } else { "gpu" })),
        (
            "profile",
            slice.map_or_else(own, |slice| string(&slice.profile.name)),
        ),
        ("parentUUID", string(&gpu.uuid)),
        (
            "uuid",
            match slice {
                None => string(&gpu.uuid),
                Some(slice) => string(slice.uuid.unwrap_or(&name)),
            },
        ),
        ("computeSlices", int(i64::from(compute_slices))),
        ("memorySlices", int(i64::from(memory_slices))),
        // Of how many the GPU has, by which a slice is charged where it draws from no counters.
        (
            "parentComputeSlices",
            int(i64::from(mig.map_or(0, MigFacts::compute_slices))),
        ),
        (
            "parentMemorySlices",
            int(i64::from(mig.map_or(0, MigFacts::memory_slices))),
        ),
        ("productName", string(&gpu.product_name)),
        ("architecture", string(&gpu.architecture)),
        ("nvlinkPair", neighbour(gpu.nvlink.pair)),
        ("nvlinkQuad", neighbour(gpu.nvlink.quad)),
        ("nvlinkGroup", neighbour(gpu.nvlink.group)),
        (
            "fabricClique",
            fabric_clique.map_or_else(own, |clique| string(clique)),
        ),
        (
            "rdmaNic",
            gpu.rdma_nic
                .as_ref()
                .map_or_else(own, |nic| string(&nic.name)),
        ),
        ("driverVersion", version(&semantic(&gpu.driver_version))),
        (
            "cudaComputeCapability",
            version(&format!("{major}.{minor}.0")),
        ),
        ("resource.kubernetes.io/pciBusID", string(&gpu.pci_bus_id)),
        ("resource.kubernetes.io/pcieRoot", string(&gpu.pcie_root)),
        (
            "resource.kubernetes.io/numaNode",
            int(gpu.numa_node.map_or(-1, i64::from)),
        ),
    ];
    let bytes = match slice {
        Some(slice) => Some(slice.profile.memory_bytes),
        None => gpu.memory_bytes,
    };
    let multiprocessors = slice.map(|slice| slice.profile.multiprocessors);
    let memory = bytes.map(|bytes| ("memory", memory(bytes)));
    let multiprocessors =
        multiprocessors.map(|count| ("multiprocessors", Quantity(count.to_string())));
    let capacity: BTreeMap<String, DeviceCapacity> = memory
        .into_iter()
        .chain(multiprocessors)
        .map(|(name, value)| {
            let capacity = DeviceCapacity {
                value,
                ..DeviceCapacity::default()
            };
            (name.to_owned(), capacity)
        })
        .collect();
    let taints = taints(known, slice.map(|slice| slice.placement), needed, tainted);
    Device {
        name,
        attributes: Some(owned(attributes)),
        capacity: (!capacity.is_empty()).then_some(capacity),
        consumes_counters: takes.map(|takes| vec![takes]),
        taints: (!taints.is_empty()).then_some(taints),
        ..Device::default()
    }
}

/// In the form in which the API server stores it, so that what comes back compares equal.
fn memory(bytes: u64) -> Quantity {
    Quantity(quantity::written_bytes(
        i64::try_from(bytes).unwrap_or(i64::MAX),
    ))
}

/// Parts of a GPU that somebody else needs, and what all of the node waits for.
struct Needed<'a> {
    /// What is held without a permit; `None`: the whole GPU.
    held: Vec<Option<Placement>>,
    /// Slices that no claim of ours accounts for.
    foreign: &'a [Placement],
    /// For what the node is closed.
    node_fault: Option<&'a Fault>,
}

/// Which parts of a GPU are held without a permit; `None`: the whole of it.
fn held_parts(known: &KnownGpu, tainted: &Tainted) -> Vec<Option<Placement>> {
    if tainted.held.is_empty() {
        return Vec::new();
    }
    let held = known
        .parts()
        .filter(|part| tainted.held.contains(&part.name));
    held.map(|part| part.slice.map(|slice| slice.placement))
        .collect()
}

/// A taint is on whatever needs some of the same hardware: on a whole GPU and all its slices, on a slice and what overlaps it.
fn taints(
    known: &KnownGpu,
    placement: Option<Placement>,
    needed: &Needed<'_>,
    tainted: &Tainted,
) -> Vec<DeviceTaint> {
    let overlaps = |other: Option<Placement>| match (placement, other) {
        (Some(own), Some(other)) => own.overlaps(other),
        (None, _) | (_, None) => true,
    };
    let uuid = &known.gpu.uuid;
    let mut bypassed = tainted.bypassed.iter().filter(|used| used.gpu == *uuid);
    let place = |used: &UsedPart| used.gpu_instance.and_then(|id| known.placement(id));
    let stands = [
        (
            keys::TAINT_HELD,
            needed.held.iter().any(|&other| overlaps(other)),
        ),
        (
            keys::TAINT_BYPASSED,
            bypassed.any(|used| overlaps(place(used))),
        ),
        (
            TAINT_FOREIGN_SLICE,
            needed.foreign.iter().any(|&other| overlaps(Some(other))),
        ),
        (TAINT_RECONFIGURING, tainted.reconfiguring.contains(uuid)),
        (TAINT_GONE, known.gone),
        (TAINT_UNRESPONSIVE, known.silent),
        // A slice needs no NVLink.
        (TAINT_FABRIC, placement.is_none() && known.lacks_fabric()),
    ];
    let stands = stands.into_iter().filter(|(_, stands)| *stands);
    let stands = stands.map(|(key, _)| no_schedule(key));
    stands
        .chain(faults(uuid, placement, &tainted.faults, needed.node_fault))
        .collect()
}

/// One key for each kind of consequence: a worse fault changes the value, and no other event takes it off.
fn faults(
    uuid: &str,
    placement: Option<Placement>,
    faults: &FaultState,
    node_fault: Option<&Fault>,
) -> Vec<DeviceTaint> {
    let found = [
        (TAINT_FAULT, faults.fault(uuid, placement)),
        (TAINT_LINK_FAULT, faults.link_fault(uuid, placement)),
        (TAINT_NODE_FAULT, node_fault),
    ];
    let taint = |(key, fault): (&str, Option<&Fault>)| {
        Some(DeviceTaint {
            value: Some(fault?.class.to_string()),
            ..no_schedule(key)
        })
    };
    found.into_iter().filter_map(taint).collect()
}

/// Nothing new is placed there; who runs there goes on.
pub(super) fn no_schedule(key: &str) -> DeviceTaint {
    DeviceTaint {
        key: key.to_owned(),
        effect: "NoSchedule".to_owned(),
        ..DeviceTaint::default()
    }
}

fn owned<V, const COUNT: usize>(pairs: [(&str, V); COUNT]) -> BTreeMap<String, V> {
    pairs
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

fn string(value: &str) -> DeviceAttribute {
    DeviceAttribute {
        string: Some(value[..value.floor_char_boundary(MAX_STRING_BYTES)].to_owned()),
        ..DeviceAttribute::default()
    }
}

fn int(value: i64) -> DeviceAttribute {
    DeviceAttribute {
        int: Some(value),
        ..DeviceAttribute::default()
    }
}

fn version(value: &str) -> DeviceAttribute {
    DeviceAttribute {
        version: Some(value.to_owned()),
        ..DeviceAttribute::default()
    }
}

/// NVIDIA's `580.95.05` as a semantic version, which has three numbers without leading zeros: `580.95.5`.
fn semantic(version: &str) -> String {
    let mut numbers = version
        .split('.')
        .map(|part| part.parse::<u64>().unwrap_or_default())
        .chain(std::iter::repeat(0));
    let mut next = || numbers.next().unwrap_or_default();
    format!("{}.{}.{}", next(), next(), next())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::resource::v1::ResourceSlice;
    use muster_cluster::devices::DeviceKinds;
    use muster_device::{
        FabricState, Gpu, Listed, ListedGpu, MigFacts, MigInstance, NvlinkGroups, RdmaNic,
        faults::{self, Cause, FaultClass, KnownAddresses, Observation, Scope},
    };

    use super::*;
    use crate::{
        inventory::fixtures::{a30, h100},
        mig::Toggle,
        prepare::SliceMode,
    };

    fn known_with(count: u32, mig: impl Fn(u32) -> Option<MigFacts>) -> KnownGpus {
        let gpu = |index| Gpu {
            uuid: format!("GPU-{index}"),
            index,
            pci_bus_id: "0000:1b:00.0".to_owned(),
            product_name: "NVIDIA H100 80GB HBM3".to_owned(),
            architecture: "Hopper".to_owned(),
            memory_bytes: Some(81_559 << 20),
            numa_node: Some(1),
            pcie_root: "pci0000:15".to_owned(),
            nvlink: NvlinkGroups {
                pair: index & !1,
                quad: index & !3,
                group: 0,
            },
            fabric_clique: None,
            fabric: FabricState::None,
            rdma_nic: None,
            driver_version: "580.95.05".to_owned(),
            cuda_compute_capability: (9, 0),
            minor: index,
            mig: mig(index),
        };
        let gpus = (0..count).map(|index| ListedGpu {
            gpu: gpu(index),
            silent: None,
        });
        let listed = Listed {
            gpus: gpus.collect(),
            unidentified: Vec::new(),
        };
        KnownGpus::default().after("boot", &listed)
    }

    fn known(count: u32) -> KnownGpus {
        known_with(count, |_| None)
    }

    fn policy(mode: Mode, toggle: Toggle) -> Policy {
        Policy {
            mode,
            toggle,
            ..Policy::default()
        }
    }

    fn dynamic() -> Policy {
        policy(Mode::Dynamic, Toggle::WhenIdle)
    }

    fn contents(known: &KnownGpus, policy: &Policy, tainted: &Tainted) -> Vec<Content> {
        desired(known, policy, &[], tainted).contents
    }

    /// The devices of each slice, where none is cut.
    fn devices(known: &KnownGpus, tainted: &Tainted) -> Vec<Vec<Device>> {
        let contents = contents(known, &Policy::default(), tainted).into_iter();
        contents.map(|content| content.devices().to_vec()).collect()
    }

    fn names(content: &Content) -> Vec<&str> {
        match content {
            Content::Counters(sets) => sets.iter().map(|set| set.name.as_str()).collect(),
            Content::Devices(devices) => devices.iter().map(|it| it.name.as_str()).collect(),
        }
    }

    fn taint_keys<'a>(contents: &'a [Content], device: &str) -> Vec<&'a str> {
        let mut devices = contents.iter().flat_map(Content::devices);
        let device = devices.find(|it| it.name == device).unwrap();
        let taints = device.taints.iter().flatten();
        taints.map(|taint| taint.key.as_str()).collect()
    }

    fn slice(profile: u32, start: u32, size: u32, gpu_instance: u32) -> MigInstance {
        MigInstance {
            placement: Placement { start, size },
            gpu_instance,
            compute_instance: Some(0),
            is_divided: false,
            profile,
            uuid: Some(format!("MIG-{gpu_instance}")),
        }
    }

    fn with_slices(known: KnownGpus, gpu: &str, slices: Vec<MigInstance>) -> KnownGpus {
        let seen = BTreeMap::from([(gpu.to_owned(), slices)]);
        known.with_instances(&seen, |_, _| false)
    }

    #[test]
    fn a_gpu_is_shown_with_all_names_of_the_design() {
        let slices = devices(&known(4), &Tainted::default());
        let device = slices.first().unwrap().get(3).unwrap();
        assert_eq!(
            serde_json::to_value(device).unwrap(),
            serde_json::json!({
                "name": "gpu-3",
                "attributes": {
                    "type": {"string": "gpu"},
                    "profile": {"string": "gpu-3"},
                    "parentUUID": {"string": "GPU-3"},
                    "uuid": {"string": "GPU-3"},
                    "computeSlices": {"int": 0},
                    "memorySlices": {"int": 0},
                    "parentComputeSlices": {"int": 0},
                    "parentMemorySlices": {"int": 0},
                    "productName": {"string": "NVIDIA H100 80GB HBM3"},
                    "architecture": {"string": "Hopper"},
                    "nvlinkPair": {"string": "gpu-2"},
                    "nvlinkQuad": {"string": "gpu-0"},
                    "nvlinkGroup": {"string": "gpu-0"},
                    "fabricClique": {"string": "gpu-3"},
                    "rdmaNic": {"string": "gpu-3"},
                    "driverVersion": {"version": "580.95.5"},
                    "cudaComputeCapability": {"version": "9.0.0"},
                    "resource.kubernetes.io/pciBusID": {"string": "0000:1b:00.0"},
                    "resource.kubernetes.io/pcieRoot": {"string": "pci0000:15"},
                    "resource.kubernetes.io/numaNode": {"int": 1},
                },
                "capacity": {"memory": {"value": "81559Mi"}},
            })
        );
    }

    #[test]
    fn a_gpu_is_not_given_whole_before_its_fabric_is_set_up_and_its_slices_are() {
        for (fabric, is_on, is_tainted) in [
            (FabricState::None, false, false),
            (FabricState::Completed, false, false),
            (FabricState::Unfinished, false, true),
            (FabricState::Failed, false, true),
            (FabricState::Unfinished, true, false),
        ] {
            let mut known = known_with(2, |_| Some(h100(is_on)));
            known.gpus[1].gpu.fabric = fabric;
            let contents = contents(&known, &dynamic(), &Tainted::default());
            let expected: &[&str] = if is_tainted { &[TAINT_FABRIC] } else { &[] };
            assert_eq!(taint_keys(&contents, "gpu-1"), expected, "{fabric:?}");
            assert!(taint_keys(&contents, "gpu-0").is_empty());
            assert!(taint_keys(&contents, "gpu-1-mig-1g10gb-6").is_empty());
        }
    }

    #[test]
    fn the_nearest_rdma_nic_is_that_of_a_gpu_and_of_its_slices() {
        let mut known = known_with(1, |_| Some(h100(true)));
        known.gpus[0].gpu.rdma_nic = Some(RdmaNic {
            name: "mlx5_3".to_owned(),
            pci_bus_id: "0000:19:00.0".to_owned(),
            shared_bridges: 2,
        });
        let contents = contents(&known, &dynamic(), &Tainted::default());
        let devices = contents.iter().flat_map(Content::devices);
        let nics: BTreeSet<Option<&str>> = devices
            .map(|device| {
                let attributes = device.attributes.as_ref()?;
                attributes.get("rdmaNic")?.string.as_deref()
            })
            .collect();
        assert_eq!(nics, BTreeSet::from([Some("mlx5_3")]));
    }

    #[test]
    fn no_slice_has_more_than_64_devices_and_no_pool_has_no_slice() {
        let sizes = |count| {
            let slices = devices(&known(count), &Tainted::default());
            slices.iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!(sizes(0), [0]);
        assert_eq!(sizes(8), [8]);
        assert_eq!(sizes(64), [64]);
        assert_eq!(sizes(65), [64, 1]);
    }

    #[test]
    fn held_bypassed_and_silent_devices_are_tainted_and_stay() {
        let tainted = Tainted {
            held: BTreeSet::from(["gpu-1".to_owned()]),
            bypassed: ["GPU-1", "GPU-2"]
                .map(|gpu| UsedPart {
                    gpu: gpu.to_owned(),
                    gpu_instance: None,
                })
                .into(),
            ..Tainted::default()
        };
        let mut known = known(4);
        known.gpus[3].silent = true;
        let slices = devices(&known, &tainted);
        let keys: Vec<Vec<String>> = slices
            .concat()
            .into_iter()
            .map(|device| {
                let taints = device.taints.into_iter().flatten();
                taints.map(|taint| taint.key).collect()
            })
            .collect();
        let (held, bypassed) = ("gpu.muster.dev/held", "gpu.muster.dev/bypassed");
        let silent = "gpu.muster.dev/unresponsive";
        assert_eq!(
            keys,
            [vec![], vec![held, bypassed], vec![bypassed], vec![silent]]
        );
        let no_schedule = |taint: &DeviceTaint| taint.effect == "NoSchedule";
        let devices = slices.concat();
        let mut taints = devices
            .iter()
            .flat_map(|device| device.taints.iter().flatten());
        assert!(taints.all(no_schedule), "nobody who runs is evicted");
    }

    #[test]
    fn eight_h100_that_are_cut_as_asked_are_one_slice_of_counters_and_one_for_each() {
        let known = known_with(8, |_| Some(h100(false)));
        let desired = desired(&known, &dynamic(), &[], &Tainted::default());
        assert!(desired.left_out.is_empty(), "{:?}", desired.left_out);
        let contents = desired.contents;
        assert_eq!(contents.len(), 9);
        let sets = (0..8).map(|index| format!("gpu-{index}"));
        assert_eq!(names(&contents[0]), sets.collect::<Vec<_>>());
        let Content::Counters(sets) = &contents[0] else {
            panic!("counters come first");
        };
        let quantity = |value: &str| serde_json::json!({ "value": value });
        let mut counters = serde_json::json!({
            "compute-slices": quantity("7"),
            "copy-engines": quantity("8"),
            "decoders": quantity("7"),
            "jpeg-engines": quantity("7"),
            "ofa-engines": quantity("1"),
        });
        for memory in 0..8 {
            counters[format!("memory-slice-{memory}")] = quantity("1");
        }
        let set = serde_json::json!({"name": "gpu-5", "counters": counters});
        assert_eq!(serde_json::to_value(&sets[5]).unwrap(), set);
        for (index, content) in contents[1..].iter().enumerate() {
            let names = names(content);
            assert_eq!(names.len(), 26);
            assert_eq!(names[0], format!("gpu-{index}-mig-1g10gb-4"));
            assert_eq!(names[7], format!("gpu-{index}-mig-1g10gb-me-4"));
            assert_eq!(names[24], format!("gpu-{index}-mig-7g80gb-0"));
            assert_eq!(names[25], format!("gpu-{index}"), "whole last");
        }
        let devices = contents[6].devices();
        let whole = serde_json::to_value(&devices[25]).unwrap();
        assert_eq!(
            whole["consumesCounters"],
            serde_json::json!([{"counterSet": "gpu-5", "counters": counters}])
        );
        assert_eq!(whole["attributes"]["computeSlices"]["int"], 7);
        assert_eq!(whole["attributes"]["memorySlices"]["int"], 8);
        let slice = devices.iter().find(|it| it.name == "gpu-5-mig-3g40gb-4");
        assert_eq!(
            serde_json::to_value(slice.unwrap()).unwrap(),
            serde_json::json!({
                "name": "gpu-5-mig-3g40gb-4",
                "attributes": {
                    "type": {"string": "mig"},
                    "profile": {"string": "3g.40gb"},
                    "parentUUID": {"string": "GPU-5"},
                    "uuid": {"string": "gpu-5-mig-3g40gb-4"},
                    "computeSlices": {"int": 3},
                    "memorySlices": {"int": 4},
                    "parentComputeSlices": {"int": 7},
                    "parentMemorySlices": {"int": 8},
                    "productName": {"string": "NVIDIA H100 80GB HBM3"},
                    "architecture": {"string": "Hopper"},
                    "nvlinkPair": {"string": "gpu-5-mig-3g40gb-4"},
                    "nvlinkQuad": {"string": "gpu-5-mig-3g40gb-4"},
                    "nvlinkGroup": {"string": "gpu-5-mig-3g40gb-4"},
                    "fabricClique": {"string": "gpu-5-mig-3g40gb-4"},
                    "rdmaNic": {"string": "gpu-5-mig-3g40gb-4"},
                    "driverVersion": {"version": "580.95.5"},
                    "cudaComputeCapability": {"version": "9.0.0"},
                    "resource.kubernetes.io/pciBusID": {"string": "0000:1b:00.0"},
                    "resource.kubernetes.io/pcieRoot": {"string": "pci0000:15"},
                    "resource.kubernetes.io/numaNode": {"int": 1},
                },
                "capacity": {
                    "memory": {"value": "40448Mi"},
                    "multiprocessors": {"value": "60"},
                },
                "consumesCounters": [{
                    "counterSet": "gpu-5",
                    "counters": {
                        "compute-slices": {"value": "3"},
                        "copy-engines": {"value": "3"},
                        "decoders": {"value": "3"},
                        "jpeg-engines": {"value": "3"},
                        "memory-slice-4": {"value": "1"},
                        "memory-slice-5": {"value": "1"},
                        "memory-slice-6": {"value": "1"},
                        "memory-slice-7": {"value": "1"},
                    },
                }],
            })
        );
    }

    #[test]
    fn a_mixed_node_offers_each_gpu_as_what_it_can_be() {
        // An A30 in MIG mode, whose mode nobody may switch; an H100 that can be switched; one that cannot be cut.
        let mut known = known_with(3, |index| match index {
            0 => Some(a30(true)),
            1 => Some(h100(false)),
            _ => None,
        });
        known.gpus[0].gpu.cuda_compute_capability = (8, 0);
        let known = with_slices(known, "GPU-0", vec![slice(14, 2, 1, 3)]);
        let shape = |policy: &Policy| {
            let contents = contents(&known, policy, &Tainted::default());
            let shape = contents.iter().map(|content| {
                let names = names(content);
                (names.len(), names.last().map(|name| (*name).to_owned()))
            });
            shape.collect::<Vec<_>>()
        };
        let last = |count: usize, name: &str| (count, Some(name.to_owned()));
        let as_it_is = [last(1, "gpu-0-mig-1g6gb-2"), last(2, "gpu-2")];
        for mode in [Mode::Off, Mode::Static] {
            for toggle in [Toggle::Never, Toggle::WhenIdle] {
                assert_eq!(shape(&policy(mode, toggle)), as_it_is, "{mode:?}");
            }
        }
        assert_eq!(
            shape(&dynamic()),
            [
                last(2, "gpu-1"),
                last(13, "gpu-0-mig-4g24gb-0"),
                last(26, "gpu-1"),
                last(1, "gpu-2")
            ]
        );
        // Nothing is switched: the H100 stays whole, and has nothing to share.
        assert_eq!(
            shape(&policy(Mode::Dynamic, Toggle::Never)),
            [
                last(1, "gpu-0"),
                last(13, "gpu-0-mig-4g24gb-0"),
                last(2, "gpu-2")
            ]
        );
        let existing = contents(&known, &Policy::default(), &Tainted::default());
        let attributes = existing[0].devices()[0].attributes.as_ref().unwrap();
        assert_eq!(attributes["uuid"].string.as_deref(), Some("MIG-3"));
    }

    /// A permit carries what the controller counts, and the driver holds it against what it counts itself.
    #[test]
    fn a_slice_that_exists_is_charged_what_the_driver_counts_it_as_on_every_card() {
        for (mig, of, share) in [
            (a30(true), slice(14, 2, 1, 3), 250),
            (h100(true), slice(9, 4, 4, 2), 500),
            (h100(true), slice(19, 6, 1, 11), 142),
        ] {
            let known = with_slices(known_with(1, |_| Some(mig.clone())), "GPU-0", vec![of]);
            let existing = contents(&known, &Policy::default(), &Tainted::default());
            let device = &existing[0].devices()[0];
            let published: ResourceSlice = serde_json::from_value(serde_json::json!({
                "metadata": {"name": "s"},
                "spec": {
                    "driver": keys::DRIVER, "nodeName": "n",
                    "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
                    "devices": [device],
                },
            }))
            .unwrap();
            let seen = DeviceKinds::default().slice(Arc::new(published), None);
            let inventory = known.inventory(SliceMode::Static);
            let counted = inventory[&device.name].gpus_milli;
            assert_eq!((seen.devices[0].kind.gpus.0, counted), (share, share));
        }
    }

    #[test]
    fn a_gpu_in_mig_mode_without_a_whole_slice_offers_nothing_and_never_itself() {
        let mut broken = slice(19, 0, 1, 1);
        broken.compute_instance = None;
        let mut divided = slice(9, 4, 4, 2);
        divided.is_divided = true;
        let strange = slice(77, 1, 1, 3);
        let known = known_with(1, |_| Some(h100(true)));
        let known = with_slices(known, "GPU-0", vec![broken, divided, strange]);
        for policy in [
            policy(Mode::Off, Toggle::Never),
            policy(Mode::Static, Toggle::WhenIdle),
        ] {
            let contents = contents(&known, &policy, &Tainted::default());
            assert_eq!(contents, [Content::Devices(Vec::new())]);
        }
    }

    #[test]
    fn a_taint_falls_on_all_that_needs_the_same_hardware_and_on_nothing_else() {
        let known = known_with(2, |_| Some(h100(true)));
        let known = with_slices(
            known,
            "GPU-0",
            vec![slice(19, 6, 1, 11), slice(9, 0, 4, 12)],
        );
        let tainted = Tainted {
            held: BTreeSet::from(["gpu-1-mig-2g20gb-4".to_owned()]),
            bypassed: BTreeSet::from([UsedPart {
                gpu: "GPU-0".to_owned(),
                gpu_instance: Some(11),
            }]),
            reconfiguring: BTreeSet::new(),
            ..Tainted::default()
        };
        let contents = contents(&known, &dynamic(), &tainted);
        let (held, bypassed) = (vec![keys::TAINT_HELD], vec![keys::TAINT_BYPASSED]);
        for (device, expected) in [
            ("gpu-0", bypassed.clone()),
            ("gpu-0-mig-1g10gb-6", bypassed.clone()),
            ("gpu-0-mig-1g20gb-6", bypassed.clone()),
            ("gpu-0-mig-3g40gb-4", bypassed.clone()),
            ("gpu-0-mig-7g80gb-0", bypassed.clone()),
            ("gpu-0-mig-1g10gb-5", vec![]),
            ("gpu-0-mig-3g40gb-0", vec![]),
            ("gpu-1", held.clone()),
            ("gpu-1-mig-2g20gb-4", held.clone()),
            ("gpu-1-mig-1g10gb-5", held.clone()),
            ("gpu-1-mig-1g10gb-6", vec![]),
        ] {
            assert_eq!(taint_keys(&contents, device), expected, "{device}");
        }
        // Who uses an instance that is not known may use any.
        let tainted = Tainted {
            bypassed: BTreeSet::from([UsedPart {
                gpu: "GPU-0".to_owned(),
                gpu_instance: Some(99),
            }]),
            reconfiguring: BTreeSet::from(["GPU-1".to_owned()]),
            ..Tainted::default()
        };
        let contents = super::tests::contents(&known, &dynamic(), &tainted);
        for device in contents.iter().flat_map(Content::devices) {
            let key = if device.name.starts_with("gpu-0") {
                keys::TAINT_BYPASSED
            } else {
                TAINT_RECONFIGURING
            };
            assert_eq!(taint_keys(&contents, &device.name), [key]);
        }
    }

    #[test]
    fn faults_taint_what_they_reach_with_their_class_and_a_milder_one_takes_nothing_off() {
        let known = known_with(2, |_| Some(h100(true)));
        let addresses = KnownAddresses(
            ["GPU-0", "GPU-1", "GPU-gone"]
                .map(|uuid| (uuid.to_owned(), None))
                .into(),
        );
        let mut tainted = Tainted::default();
        let see = |tainted: &mut Tainted, uuid: &str, class, scope| {
            let observation = Observation {
                class,
                scope,
                cause: Cause::Xid(1),
            };
            let device = faults::Device::Uuid(uuid.to_owned());
            tainted.faults.observe(&device, observation, &addresses, 0)
        };
        let found = |tainted: &Tainted, device: &str| -> Vec<(String, String)> {
            let contents = contents(&known, &dynamic(), tainted);
            let devices = contents.iter().flat_map(Content::devices);
            let mut devices = devices.filter(|one| one.name == device);
            let taints = devices.next().unwrap().taints.clone().unwrap_or_default();
            let taints = taints.into_iter();
            taints
                .inspect(|taint| assert_eq!(taint.effect, "NoSchedule"))
                .map(|taint| (taint.key, taint.value.unwrap_or_default()))
                .collect()
        };
        let is = |key: &str, class: &str| (key.to_owned(), class.to_owned());
        let low = Scope::Slice(Placement { start: 0, size: 1 });
        let (one, other) = ("gpu-0-mig-1g10gb-0", "gpu-0-mig-1g10gb-4");
        see(&mut tainted, "GPU-0", FaultClass::Contained, low);
        see(&mut tainted, "GPU-0", FaultClass::App, Scope::Gpu);
        assert_eq!(found(&tainted, one), [is(TAINT_FAULT, "Contained")]);
        assert!(found(&tainted, other).is_empty());
        see(&mut tainted, "GPU-0", FaultClass::Reset, Scope::Gpu);
        see(&mut tainted, "GPU-0", FaultClass::Link, Scope::Gpu);
        see(&mut tainted, "GPU-0", FaultClass::Contained, Scope::Gpu);
        for device in [one, other] {
            assert_eq!(found(&tainted, device), [is(TAINT_FAULT, "Reset")]);
        }
        assert_eq!(
            found(&tainted, "gpu-0"),
            [is(TAINT_FAULT, "Reset"), is(TAINT_LINK_FAULT, "Link")]
        );
        assert!(found(&tainted, "gpu-1").is_empty());
        // The machine came up without it: no fault of it keeps the others closed.
        see(&mut tainted, "GPU-gone", FaultClass::Reboot, Scope::Gpu);
        assert!(found(&tainted, "gpu-1").is_empty());
        see(&mut tainted, "GPU-0", FaultClass::Reboot, Scope::Gpu);
        assert_eq!(found(&tainted, "gpu-1"), [is(TAINT_NODE_FAULT, "Reboot")]);
        assert_eq!(
            found(&tainted, one),
            [is(TAINT_FAULT, "Reboot"), is(TAINT_NODE_FAULT, "Reboot")]
        );
    }

    #[test]
    fn slices_that_somebody_else_made_taint_what_overlaps_them_where_slices_are_made_for_claims() {
        let known = known_with(1, |_| Some(h100(true)));
        let seen = BTreeMap::from([("GPU-0".to_owned(), vec![slice(19, 6, 1, 1)])]);
        let known = known.with_instances(&seen, |gpu, at| gpu == "GPU-0" && at.start == 6);
        let dynamic = contents(&known, &dynamic(), &Tainted::default());
        for device in ["gpu-0", "gpu-0-mig-1g10gb-6", "gpu-0-mig-1g20gb-6"] {
            assert_eq!(taint_keys(&dynamic, device), [TAINT_FOREIGN_SLICE]);
        }
        assert!(taint_keys(&dynamic, "gpu-0-mig-1g10gb-5").is_empty());
        let existing = contents(&known, &Policy::default(), &Tainted::default());
        assert!(taint_keys(&existing, "gpu-0-mig-1g10gb-6").is_empty());
    }

    #[test]
    fn a_gpu_of_which_no_slice_can_be_shown_is_offered_as_it_is_and_that_is_said() {
        // A profile of one memory slice, at each of so many places.
        let with_memory_slices = |is_on: bool, count: u32| {
            let mut mig = h100(is_on);
            mig.profiles.retain(|profile| profile.name == "1g.10gb");
            mig.profiles[0].placements = (0..count)
                .map(|start| Placement { start, size: 1 })
                .collect();
            mig
        };
        let too_many = "gpu-0: all slices: it has 33 memory slices, each of which is a counter, and a set has at most 32";
        let existing =
            "gpu-0: no slice of it is made for claims; it is offered as the slices that exist";
        let whole = "gpu-0: no slice of it is made for claims; it is offered whole";
        for (is_on, said, offered) in [
            (true, [too_many, existing], "gpu-0-mig-1g10gb-6"),
            (false, [too_many, whole], "gpu-0"),
        ] {
            let known = known_with(1, |_| Some(with_memory_slices(is_on, 33)));
            let slices = if is_on {
                vec![slice(19, 6, 1, 1)]
            } else {
                Vec::new()
            };
            let known = with_slices(known, "GPU-0", slices);
            let found = desired(&known, &dynamic(), &[], &Tainted::default());
            assert_eq!(found.left_out, said, "{is_on}");
            assert_eq!(found.contents.len(), 1, "{is_on}");
            assert_eq!(names(&found.contents[0]), [offered], "{is_on}");
        }
        // All profiles are left out, each with its reason: one slice of a name stands for two.
        let mut twins = with_memory_slices(true, 2);
        twins.profiles[0].placements = vec![Placement { start: 0, size: 1 }; 2];
        let known = known_with(1, |_| Some(twins.clone()));
        let found = desired(&known, &dynamic(), &[], &Tainted::default());
        assert_eq!(
            found.left_out,
            [
                "gpu-0: 2 slices 1g.10gb: another slice has the same name",
                existing
            ]
        );
        // Where slices are made for nobody, none is missing.
        let known = known_with(1, |_| Some(with_memory_slices(true, 33)));
        let found = desired(&known, &Policy::default(), &[], &Tainted::default());
        assert!(found.left_out.is_empty(), "{:?}", found.left_out);
    }

    #[test]
    fn nine_gpus_have_two_slices_of_counters() {
        let known = known_with(9, |_| Some(h100(true)));
        let contents = contents(&known, &dynamic(), &Tainted::default());
        let sizes: Vec<usize> = contents
            .iter()
            .map(|content| names(content).len())
            .collect();
        assert_eq!(sizes[..2], [8, 1]);
        assert_eq!(sizes[2..], [26; 9]);
    }

    #[test]
    fn a_long_attribute_is_cut_where_a_character_ends() {
        let shown = |text: &str| string(text).string.unwrap();
        assert_eq!(shown(&"a".repeat(64)), "a".repeat(64));
        assert_eq!(shown(&"a".repeat(65)), "a".repeat(64));
        assert_eq!(shown(&format!("a{}", "ä".repeat(32))).len(), 63);
    }

    #[test]
    fn driver_versions_become_semantic_versions() {
        for (nvidia, semantic_version) in [
            ("580.95.05", "580.95.5"),
            ("570.86", "570.86.0"),
            ("1.2.3.4", "1.2.3"),
            ("strange", "0.0.0"),
        ] {
            assert_eq!(semantic(nvidia), semantic_version);
        }
    }
}
