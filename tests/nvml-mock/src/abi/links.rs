//! How GPUs reach each other: NVLink, the fabric, PCI.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY, NVML_GPU_FABRIC_STATE_COMPLETED, nvmlDevice_t,
    nvmlEnableState_enum_NVML_FEATURE_ENABLED, nvmlEnableState_t, nvmlGpuFabricInfo_t,
    nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t, nvmlGpuFabricInfoV_t,
    nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_NVLINK, nvmlGpuP2PCapsIndex_t,
    nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED,
    nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_NOT_SUPPORTED, nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_OK,
    nvmlGpuP2PStatus_t, nvmlGpuTopologyLevel_t,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_UNKNOWN, nvmlIntNvLinkDeviceType_t,
    nvmlPciInfo_t,
};

use super::{gpus::pci_info, put, put_version};
use crate::{
    call::{Code, INVALID_ARGUMENT, NOT_SUPPORTED, SUCCESS, UNKNOWN},
    machine::Machine,
};

/// `NVML_TOPOLOGY_NODE`: the same NUMA node.
const SAME_NODE: nvmlGpuTopologyLevel_t = 40;
/// `NVML_TOPOLOGY_SYSTEM`: another one.
const SAME_SYSTEM: nvmlGpuTopologyLevel_t = 50;

/// What is at the other end of a link, by its PCI bus id.
enum LinkEnd<'a> {
    Gpu(&'a str),
    Switch(&'a str),
}

impl Machine {
    /// What is at the other end of a link.
    fn link_end(&self, device: nvmlDevice_t, link: c_uint) -> Result<LinkEnd<'_>, Code> {
        let gpu = self.at(self.whole(device)?.position)?;
        let nvlink = self.board.nvlink.as_ref().ok_or(NOT_SUPPORTED)?;
        if link >= nvlink.links_per_gpu {
            return Err(INVALID_ARGUMENT);
        }
        if let Some(other) = nvlink.bridged(&gpu.pci_bus_id) {
            return Ok(LinkEnd::Gpu(other));
        }
        let position = usize::try_from(link).map_err(|_| INVALID_ARGUMENT)?;
        let switch = nvlink.switches.iter().cycle().nth(position);
        let switch = switch.ok_or(NOT_SUPPORTED)?;
        Ok(LinkEnd::Switch(switch))
    }

    /// How far the fabric manager has come with a GPU.
    fn fabric_state(&self, device: nvmlDevice_t) -> Result<u8, Code> {
        self.whole(device)?;
        if !self.board.fabric_managed {
            return Err(NOT_SUPPORTED);
        }
        let completed = u8::try_from(NVML_GPU_FABRIC_STATE_COMPLETED).map_err(|_| UNKNOWN)?;
        Ok(self.state.fabric_state.unwrap_or(completed))
    }
}

export! {
    fn nvmlDeviceGetNvLinkState(device: nvmlDevice_t, link: c_uint, active: *mut nvmlEnableState_t) {
        Machine::now()?.link_end(device, link)?;
        put(active, nvmlEnableState_enum_NVML_FEATURE_ENABLED)
    }

    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(device: nvmlDevice_t, link: c_uint, pci: *mut nvmlPciInfo_t) {
        let machine = Machine::now()?;
        let (LinkEnd::Gpu(end) | LinkEnd::Switch(end)) = machine.link_end(device, link)?;
        if machine.state.hides_link_peers {
            return Err(NOT_SUPPORTED);
        }
        put(pci, pci_info(end)?)
    }

    fn nvmlDeviceGetNvLinkRemoteDeviceType(
        device: nvmlDevice_t, link: c_uint, kind: *mut nvmlIntNvLinkDeviceType_t,
    ) {
        let machine = Machine::now()?;
        let end = machine.link_end(device, link)?;
        put(kind, match end {
            _ if machine.state.hides_link_peers => nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_UNKNOWN,
            LinkEnd::Gpu(_) => nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU,
            LinkEnd::Switch(_) => nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH,
        })
    }

    // One machine under a fabric manager: no part of a multi-node domain (all zero).
    fn nvmlDeviceGetGpuFabricInfo(device: nvmlDevice_t, info: *mut nvmlGpuFabricInfo_t) {
        let state = Machine::now()?.fabric_state(device)?;
        put(info, nvmlGpuFabricInfo_t {
            clusterUuid: [0; 16],
            status: SUCCESS,
            cliqueId: 0,
            state,
        })
    }

    fn nvmlDeviceGetGpuFabricInfoV(device: nvmlDevice_t, info: *mut nvmlGpuFabricInfoV_t) {
        let state = Machine::now()?.fabric_state(device)?;
        let healthy = u8::try_from(NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY).map_err(|_| UNKNOWN)?;
        let second = |version| nvmlGpuFabricInfo_v2_t {
            version,
            clusterUuid: [0; 16],
            status: SUCCESS,
            cliqueId: 0,
            state,
            healthMask: 0,
        };
        let third = |version| nvmlGpuFabricInfo_v3_t {
            version,
            clusterUuid: [0; 16],
            status: SUCCESS,
            cliqueId: 0,
            state,
            healthMask: 0,
            healthSummary: healthy,
        };
        put_version(info.cast(), (2, second), (3, third))
    }

    // Over NVLink where there is any; these machines have no other way. No GPU in MIG mode reaches another.
    fn nvmlDeviceGetP2PStatus(
        first: nvmlDevice_t, second: nvmlDevice_t, index: nvmlGpuP2PCapsIndex_t, status: *mut nvmlGpuP2PStatus_t,
    ) {
        let machine = Machine::now()?;
        let ends = [machine.whole(first)?, machine.whole(second)?];
        let mut cards = ends.iter().filter_map(|end| machine.card(&end.gpu));
        let is_cut = cards.any(|card| card.mig_current);
        let [one, other] = ends.map(|end| machine.at(end.position));
        let (one, other) = (&one?.pci_bus_id, &other?.pci_bus_id);
        let nvlink = machine.board.nvlink.as_ref();
        let is_linked = nvlink.is_some_and(|nvlink| nvlink.connects(one, other));
        put(status, if is_linked && !is_cut {
            nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_OK
        } else if index == nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_NVLINK || is_cut {
            nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_NOT_SUPPORTED
        } else {
            nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED
        })
    }

    fn nvmlDeviceGetTopologyCommonAncestor(
        first: nvmlDevice_t, second: nvmlDevice_t, level: *mut nvmlGpuTopologyLevel_t,
    ) {
        let machine = Machine::now()?;
        let first = machine.at(machine.whole(first)?.position)?;
        let second = machine.at(machine.whole(second)?.position)?;
        put(level, if first.numa_node == second.numa_node { SAME_NODE } else { SAME_SYSTEM })
    }
}
