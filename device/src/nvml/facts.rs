//! What NVML says of one GPU.

use nvml_wrapper::{
    Device, Nvml,
    error::{NvmlError, nvml_sym, nvml_try},
};
use nvml_wrapper_sys::bindings as raw;

use super::{BackendError, condition::told, gone_or_failed, mig::mig_facts};
use crate::{
    gpu::{FabricState, Gpu, NvlinkGroups, architecture_name},
    mig::MigFacts,
    nvlink::Peer,
    sysfs,
};

/// What NVML says of one GPU.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) uuid: String,
    pub(super) pci_bus_id: String,
    product_name: String,
    architecture: u32,
    memory_bytes: Option<u64>,
    numa_node: Option<u32>,
    pub(super) peers: Vec<Peer>,
    /// It has active links, of which none says where it leads.
    pub(super) hides_peers: bool,
    /// Every link answered, or is none, or does not say where it leads.
    is_complete: bool,
    fabric_clique: Option<String>,
    fabric: FabricState,
    driver_version: String,
    cuda_compute_capability: (u32, u32),
    minor: u32,
    mig: Option<MigFacts>,
}

impl Facts {
    pub(super) fn into_gpu(self, index: u32, nvlink: NvlinkGroups, sysfs: &std::path::Path) -> Gpu {
        Gpu {
            index,
            rdma_nic: sysfs::nearest_rdma_nic(sysfs, &self.pci_bus_id),
            numa_node: sysfs::numa_node(sysfs, &self.pci_bus_id).or(self.numa_node),
            pcie_root: sysfs::pcie_root(sysfs, &self.pci_bus_id),
            nvlink,
            uuid: self.uuid,
            pci_bus_id: self.pci_bus_id,
            product_name: self.product_name,
            architecture: architecture_name(self.architecture),
            memory_bytes: self.memory_bytes,
            fabric_clique: self.fabric_clique,
            fabric: self.fabric,
            driver_version: self.driver_version,
            cuda_compute_capability: self.cuda_compute_capability,
            minor: self.minor,
            mig: self.mig,
        }
    }

    /// Whether it is in MIG mode.
    pub(super) fn is_cut(&self) -> bool {
        self.mig.as_ref().is_some_and(|mig| mig.current)
    }

    /// Links are soldered: where some did not answer, what they said before counts, if they all did. Else a GPU that fails once would have its
    /// neighbours grouped anew.
    pub(super) fn keep_links(&mut self, before: Option<&Self>) {
        let whole = before.filter(|before| before.is_complete && !self.is_complete);
        if let Some(before) = whole {
            self.peers.clone_from(&before.peers);
            self.hides_peers = before.hides_peers;
            self.is_complete = true;
        }
    }

    /// Says what of it cannot be, unless that was so before.
    pub(super) fn warn(&self, before: Option<&Self>) {
        let implausible = |facts: &Self| facts.mig.as_ref().map(|mig| mig.implausible.clone());
        let now = implausible(self).unwrap_or_default();
        let said = before.and_then(implausible).unwrap_or_default();
        if now != said && !now.is_empty() {
            let (gpu, profiles) = (&self.uuid, now.join("; "));
            tracing::warn!(gpu, profiles, "NVML tells of slices that cannot be");
        }
    }
}

/// Asks for them.
pub(super) fn facts(nvml: &Nvml, index: u32) -> Result<Facts, BackendError> {
    let name = || format!("with index {index}");
    let gone = |error| gone_or_failed(&name(), error);
    let device = nvml.device_by_index(index).map_err(gone)?;
    let pci = device.pci_info().map_err(gone)?;
    let capability = device.cuda_compute_capability().map_err(gone)?;
    let unsigned = |number: i32| u32::try_from(number).unwrap_or_default();
    let uuid = device.uuid().map_err(gone)?;
    let memory_bytes = memory_bytes(&device).map_err(gone)?;
    let Links {
        peers,
        hides_peers,
        is_complete,
    } = links(nvml, &device).map_err(gone)?;
    let (fabric, fabric_clique) = fabric(nvml, &device);
    Ok(Facts {
        mig: mig_facts(&device, &uuid, memory_bytes)?,
        uuid,
        pci_bus_id: kernel_address(&pci.bus_id),
        product_name: device.name().map_err(gone)?,
        architecture: architecture(nvml, &device).map_err(gone)?,
        memory_bytes,
        numa_node: numa_node(&device),
        peers,
        hides_peers,
        is_complete,
        fabric_clique,
        fabric,
        driver_version: nvml.sys_driver_version()?,
        cuda_compute_capability: (unsigned(capability.major), unsigned(capability.minor)),
        minor: device.minor_number().map_err(gone)?,
    })
}

/// Parts that use the host's memory have none to report (GB10).
fn memory_bytes(device: &Device<'_>) -> Result<Option<u64>, NvmlError> {
    match device.memory_info() {
        Ok(memory) => Ok(Some(memory.total).filter(|bytes| *bytes > 0)),
        Err(NvmlError::NotSupported) => Ok(None),
        Err(error) => Err(error),
    }
}

/// `00000000:1B:00.0` of NVML as the kernel writes it: `0000:1b:00.0`.
fn kernel_address(bus_id: &str) -> String {
    let lower = bus_id.to_ascii_lowercase();
    match lower.split_once(':') {
        Some((domain, rest)) if domain.len() == 8 => {
            let short = domain.strip_prefix("0000").unwrap_or(domain);
            format!("{short}:{rest}")
        }
        _ => lower,
    }
}

/// Raw, because the wrapper refuses architectures that are newer than itself.
fn architecture(nvml: &Nvml, device: &Device<'_>) -> Result<u32, NvmlError> {
    let get = nvml_sym(nvml.lib().nvmlDeviceGetArchitecture.as_ref())?;
    let mut architecture = raw::NVML_DEVICE_ARCH_UNKNOWN;
    // SAFETY: the handle is of this library, which is loaded and initialised as long as `nvml` lives, and
    // the pointer is to a local of the type that the function writes.
    nvml_try(unsafe { get(device.handle(), &raw mut architecture) })?;
    Ok(architecture)
}

/// NUMA node by memory affinity, for kernels that show none. More than one node is no answer.
fn numa_node(device: &Device<'_>) -> Option<u32> {
    let words = device
        .memory_affinity(4, raw::NVML_AFFINITY_SCOPE_NODE)
        .ok()?;
    let nodes: Vec<u32> = (0..)
        .zip(&words)
        .flat_map(|(word, bits)| {
            let set = move |bit: &u32| bits.checked_shr(*bit).unwrap_or(0) & 1 == 1;
            (0..64).filter(set).map(move |bit| word * 64 + bit)
        })
        .collect();
    match nodes.as_slice() {
        [node] => Some(*node),
        _ => None,
    }
}

/// What the active links of a GPU lead to.
#[derive(Debug)]
struct Links {
    peers: Vec<Peer>,
    /// There are some, and none says so.
    hides_peers: bool,
    is_complete: bool,
}

/// Asks all of them. A link that does not say where it leads connects nothing that we could promise.
fn links(nvml: &Nvml, device: &Device<'_>) -> Result<Links, NvmlError> {
    let mut peers = Vec::new();
    let mut has_links = false;
    let mut is_complete = true;
    for number in 0..raw::NVML_NVLINK_MAX_LINKS {
        let link = device.link_wrapper_for(number);
        if told_by_link(link.is_active(), &mut is_complete)? != Some(true) {
            continue;
        }
        has_links = true;
        let Some(remote) = told_by_link(link.remote_pci_info(), &mut is_complete)? else {
            continue;
        };
        let address = kernel_address(&remote.bus_id);
        match told_by_link(remote_type(nvml, device, number), &mut is_complete)? {
            Some(raw::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU) => {
                peers.push(Peer::Gpu(address));
            }
            Some(raw::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH) => {
                peers.push(Peer::Switch(address));
            }
            _ => {}
        }
    }
    Ok(Links {
        hides_peers: has_links && peers.is_empty(),
        peers,
        is_complete,
    })
}

/// What a link says, if it does. There may be no such link, or nobody who may say where it leads; whatever else is no answer is missing.
fn told_by_link<T>(
    answer: Result<T, NvmlError>,
    is_complete: &mut bool,
) -> Result<Option<T>, NvmlError> {
    match answer {
        Err(NvmlError::NotSupported | NvmlError::InvalidArg | NvmlError::FailedToLoadSymbol(_)) => {
            Ok(None)
        }
        answer => {
            let told = told(answer)?;
            *is_complete &= told.is_some();
            Ok(told)
        }
    }
}

/// Raw, because the wrapper (0.13.0) gives the library a temporary to write to and returns what was there before.
fn remote_type(nvml: &Nvml, device: &Device<'_>, link: u32) -> Result<u32, NvmlError> {
    let get = nvml_sym(nvml.lib().nvmlDeviceGetNvLinkRemoteDeviceType.as_ref())?;
    let mut kind = raw::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
    // SAFETY: as in `architecture`.
    nvml_try(unsafe { get(device.handle(), link, &raw mut kind) })?;
    Ok(kind)
}

/// How far the fabric manager has come, and the multi-node NVLink domain. A fabric manager on one machine gives a cluster UUID of zeros:
/// no such domain. Drivers and boards that cannot tell have neither.
fn fabric(nvml: &Nvml, device: &Device<'_>) -> (FabricState, Option<String>) {
    let Some(info) = fabric_info(nvml, device) else {
        return (FabricState::None, None);
    };
    let state = fabric_state(u32::from(info.state), info.status);
    let member = info.clusterUuid.iter().any(|byte| *byte != 0);
    let clique = (state == FabricState::Completed && member)
        .then(|| format!("{}.{}", uuid_text(info.clusterUuid), info.cliqueId));
    (state, clique)
}

/// What NVML's state means; its status is an answer only once it is done. A state that is not known here is not taken for a good one.
///
/// "Not started" is no fault: behind NVSwitch a GPU asks to be set up as soon as it is in use and waits ("in progress") for a manager that may
/// not be there. Where nobody has to set it up, as with a single GPU of such a board in a virtual machine, it may never start.
fn fabric_state(state: u32, status: raw::nvmlReturn_t) -> FabricState {
    match state {
        raw::NVML_GPU_FABRIC_STATE_NOT_SUPPORTED | raw::NVML_GPU_FABRIC_STATE_NOT_STARTED => {
            FabricState::None
        }
        raw::NVML_GPU_FABRIC_STATE_COMPLETED if status == raw::nvmlReturn_enum_NVML_SUCCESS => {
            FabricState::Completed
        }
        raw::NVML_GPU_FABRIC_STATE_COMPLETED => FabricState::Failed,
        _ => FabricState::Unfinished,
    }
}

fn fabric_info(nvml: &Nvml, device: &Device<'_>) -> Option<raw::nvmlGpuFabricInfo_t> {
    let get = nvml_sym(nvml.lib().nvmlDeviceGetGpuFabricInfo.as_ref()).ok()?;
    let mut info = raw::nvmlGpuFabricInfo_t {
        clusterUuid: [0; 16],
        status: 0,
        cliqueId: 0,
        state: 0,
    };
    // SAFETY: as in `architecture`.
    nvml_try(unsafe { get(device.handle(), &raw mut info) }).ok()?;
    Some(info)
}

fn uuid_text(bytes: [u8; 16]) -> String {
    let hex = format!("{:032x}", u128::from_be_bytes(bytes));
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    [
        part(0, 8),
        part(8, 12),
        part(12, 16),
        part(16, 20),
        part(20, 32),
    ]
    .join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_usual() {
        let bytes = std::array::from_fn(|position| u8::try_from(position).unwrap());
        assert_eq!(uuid_text(bytes), "00010203-0405-0607-0809-0a0b0c0d0e0f");
    }

    #[test]
    fn a_fabric_is_good_only_once_it_is_completed_without_an_error() {
        let (success, error) = (
            raw::nvmlReturn_enum_NVML_SUCCESS,
            raw::nvmlReturn_enum_NVML_ERROR_UNKNOWN,
        );
        for (state, status, expected) in [
            (0, success, FabricState::None),
            (1, success, FabricState::None),
            // Before it is done the status says nothing.
            (2, error, FabricState::Unfinished),
            (3, success, FabricState::Completed),
            (3, error, FabricState::Failed),
            (4, success, FabricState::Unfinished),
        ] {
            assert_eq!(fabric_state(state, status), expected, "{state}, {status}");
        }
    }

    #[test]
    fn addresses_are_written_as_the_kernel_does() {
        for (nvml, kernel) in [
            ("00000000:1B:00.0", "0000:1b:00.0"),
            ("00010000:1B:00.0", "00010000:1b:00.0"),
            ("0000:1B:00.0", "0000:1b:00.0"),
        ] {
            assert_eq!(kernel_address(nvml), kernel);
        }
    }
}
