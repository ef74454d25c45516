//! What has to be so on a machine with GPUs: what the driver makes of its cards against what they say, and the mock against both.

use std::{collections::BTreeSet, fmt::Debug, path::Path};

use muster_device::{Backend, Gpu, Listed};
use nvidia_ml_mock::{ListedAs, RecordedGpu, Recording};

use crate::{
    fault,
    uses::{self, Missing},
};

/// `NVML_P2P_STATUS_OK`.
const REACHED: u32 = 0;
/// `nvmlEventTypeXidCriticalError`.
const XID: u64 = 8;

/// A machine with GPUs.
pub(crate) struct Machine {
    /// What NVML says.
    pub(crate) recording: Recording,
    /// What the driver makes of it.
    pub(crate) listed: Listed,
    /// NVML as the driver asks it.
    pub(crate) backend: Backend,
}

/// What was seen, or why there was nothing to see, or what is wrong.
pub(crate) type Outcome = Result<String, Missing>;
/// Something that has to be so.
pub(crate) type Check = fn(&mut Machine) -> Outcome;

/// All that is checked.
pub(crate) const CHECKS: [(&str, Check); 8] = [
    ("every_gpu_is_listed_as_nvml_has_it", inventory),
    ("memory_is_what_nvml_says", memory),
    (
        "what_a_gpu_can_be_cut_into_is_believed_and_adds_up",
        profiles,
    ),
    ("gpus_are_grouped_as_they_reach_each_other", groups),
    ("events_can_be_registered", events),
    ("who_uses_a_gpu_is_listed_while_it_does", processes),
    ("an_xid_of_a_process_is_told", xid),
    ("the_mock_says_what_the_cards_say", mock),
];

impl Machine {
    /// Each card with what the driver makes of it, in NVML's order.
    fn pairs(&self) -> Result<Vec<(&RecordedGpu, &Gpu)>, String> {
        let pair = |card: &RecordedGpu| {
            let address = card.pci_bus_id.to_lowercase();
            let mut gpus = self.listed.gpus.iter().map(|listed| &listed.gpu);
            // The kernel writes domains with four digits.
            let gpu = gpus.find(|gpu| address.ends_with(&gpu.pci_bus_id));
            gpu.ok_or_else(|| format!("the driver lists no GPU at {address}"))
        };
        let cards = self.recording.gpus.iter();
        cards.map(|card| Ok((card, pair(card)?))).collect()
    }
}

fn inventory(machine: &mut Machine) -> Outcome {
    let listed = &machine.listed;
    let silent = listed.gpus.iter().filter_map(|gpu| gpu.silent.as_ref());
    let silent: Vec<_> = silent.chain(&listed.unidentified).collect();
    if !silent.is_empty() {
        return failed(format!("GPUs do not answer: {silent:?}"));
    }
    same(
        "the number of GPUs",
        &listed.gpus.len(),
        &machine.recording.gpus.len(),
    )?;
    let mut uuids = BTreeSet::new();
    for (card, gpu) in machine.pairs()? {
        same("the product", &gpu.product_name, &card.product_name)?;
        let (major, minor) = gpu.cuda_compute_capability;
        let (card_major, card_minor) = card.compute_capability;
        same(
            "the compute capability",
            &(i64::from(major), i64::from(minor)),
            &(i64::from(card_major), i64::from(card_minor)),
        )?;
        let driver = &machine.recording.driver_version;
        same("the driver", &gpu.driver_version, driver)?;
        if !gpu.uuid.starts_with("GPU-") || !uuids.insert(&gpu.uuid) {
            return failed(format!("{} is no UUID, or not the only one", gpu.uuid));
        }
        let node = format!("/dev/nvidia{}", gpu.minor);
        if !Path::new(&node).exists() {
            return failed(format!(
                "there is no {node}, which the GPU has as its minor"
            ));
        }
    }
    let products: BTreeSet<&str> = listed
        .gpus
        .iter()
        .map(|listed| listed.gpu.product_name.as_str())
        .collect();
    Ok(format!("{} of {products:?}", listed.gpus.len()))
}

fn memory(machine: &mut Machine) -> Outcome {
    let mut seen = Vec::new();
    for (card, gpu) in machine.pairs()? {
        same("the memory", &gpu.memory_bytes, &card.memory_bytes.ok())?;
        let mebibytes = gpu.memory_bytes.map(|bytes| bytes >> 20);
        seen.push(mebibytes.map_or_else(|| "none".to_owned(), |it| format!("{it} MiB")));
    }
    Ok(seen.join(", "))
}

fn profiles(machine: &mut Machine) -> Outcome {
    let mut seen = Vec::new();
    for (card, gpu) in machine.pairs()? {
        let Some(mig) = &gpu.mig else {
            same("that it can be cut", &false, &card.mig.is_ok())?;
            seen.push("cannot be cut".to_owned());
            continue;
        };
        let Ok(mode) = card.mig else {
            return failed(format!("{} can be cut, and NVML says no mode", gpu.uuid));
        };
        let believed = (mig.current, mig.pending);
        same("the mode", &believed, &(mode.current, mode.pending))?;
        if !mig.implausible.is_empty() {
            return failed(format!("not believed: {:?}", mig.implausible));
        }
        // The driver asks for more of them than the first 17.
        for told in &card.profiles {
            let mut profiles = mig.profiles.iter();
            let profile = profiles.find(|profile| profile.gpu_instance_profile == told.id);
            let Some(profile) = profile else {
                return failed(format!("the driver does not know profile {told:?}"));
            };
            let told_name = told.name.as_ref().ok();
            if told_name.is_some_and(|name| name.trim_start_matches("MIG ") != profile.name) {
                return failed(format!("{told_name:?} is called {}", profile.name));
            }
            same(
                &profile.name,
                &(
                    profile.memory_bytes,
                    profile.compute_slices,
                    profile.multiprocessors,
                    profile.max_instances,
                    profile.placements.len(),
                ),
                &(
                    told.memory_mib << 20,
                    told.compute_slices,
                    told.multiprocessors,
                    told.max_instances,
                    told.placements.as_ref().map_or(0, Vec::len),
                ),
            )?;
        }
        let names: Vec<&str> = mig.profiles.iter().map(|it| it.name.as_str()).collect();
        let (current, slices) = (mig.current, mig.memory_slices());
        seen.push(format!(
            "MIG is on: {current}; {slices} memory slices, {names:?}"
        ));
    }
    Ok(seen.join("; "))
}

fn groups(machine: &mut Machine) -> Outcome {
    let pairs = machine.pairs()?;
    if pairs.len() < 2 {
        return Err(Missing::Nothing("there is one GPU only".to_owned()));
    }
    let mut linked = 0;
    for peers in &machine.recording.peers {
        let (first, second) = peers.gpus;
        let (Some((_, one)), Some((_, other))) = (pairs.get(first), pairs.get(second)) else {
            return failed(format!("{peers:?} are no two GPUs"));
        };
        let is_cut = |gpu: &Gpu| gpu.mig.as_ref().is_some_and(|mig| mig.current);
        // These reach nobody, and keep their places among their neighbours.
        if is_cut(one) || is_cut(other) {
            continue;
        }
        let is_group = one.nvlink.group == other.nvlink.group;
        let reaches = peers.nvlink == Ok(REACHED);
        if is_group != reaches {
            return failed(format!(
                "{} and {} answer {:?} for NVLink and are in one group: {is_group}",
                one.uuid, other.uuid, peers.nvlink
            ));
        }
        linked += u32::from(reaches);
    }
    let all = machine.recording.peers.len();
    Ok(format!("{linked} of {all} pairs reach each other"))
}

fn events(machine: &mut Machine) -> Outcome {
    let mut seen = Vec::new();
    for gpu in &machine.recording.gpus {
        match (gpu.events, gpu.registered) {
            (Ok(kinds), Ok(())) if kinds & XID != 0 => seen.push(format!("{kinds:#x}")),
            (kinds, registered) => {
                let product = &gpu.product_name;
                let cause = format!("{product}: events {kinds:?}, registered {registered:?}");
                return failed(cause);
            }
        }
    }
    Ok(seen.join(", "))
}

fn processes(machine: &mut Machine) -> Outcome {
    let pairs = machine.pairs()?;
    let all: Vec<&Gpu> = pairs.iter().map(|(_, gpu)| *gpu).collect();
    let mut seen = Vec::new();
    for (place, (card, gpu)) in pairs.iter().enumerate() {
        let used = uses::look(&machine.backend, place, gpu, &all)?;
        if used.from_the_host && used.listed != ListedAs::Itself {
            let cause = format!(
                "{}: its own process is listed as {:?}",
                gpu.uuid, used.listed
            );
            return failed(cause);
        }
        let is_cut = card.mig.is_ok_and(|mig| mig.current);
        if used.listed != ListedAs::Nobody {
            same(
                "that it is listed with a GPU instance",
                &used.has_gpu_instance,
                &is_cut,
            )?;
        }
        seen.push(used);
    }
    let text = format!("{seen:?}");
    machine.recording.uses = seen;
    Ok(text)
}

fn xid(machine: &mut Machine) -> Outcome {
    let pairs = machine.pairs()?;
    let mut seen = Vec::new();
    for (_, gpu) in pairs {
        seen.push(fault::look(&machine.backend, gpu)?);
    }
    Ok(seen.join("; "))
}

fn mock(machine: &mut Machine) -> Outcome {
    let differences = machine.recording.differences();
    if !differences.is_empty() {
        return failed(differences.join("\n    "));
    }
    let unknown = machine.recording.gpus.iter();
    let unknown: BTreeSet<&str> = unknown
        .filter(|gpu| gpu.board().is_none())
        .map(|gpu| gpu.product_name.as_str())
        .collect();
    if unknown.is_empty() {
        Ok("no difference".to_owned())
    } else {
        Err(Missing::Nothing(format!("it has no board of {unknown:?}")))
    }
}

fn failed(cause: String) -> Outcome {
    Err(Missing::Failed(cause))
}

fn same<T: PartialEq + Debug>(what: &str, driver: &T, card: &T) -> Result<(), String> {
    if driver == card {
        Ok(())
    } else {
        Err(format!("{what}: the driver says {driver:?}, NVML {card:?}"))
    }
}
