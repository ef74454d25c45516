//! What NVML says of the cards of a machine, call by call: raw, so that what the driver makes of it can be compared.

use std::{
    ffi::{OsStr, c_char, c_uint},
    mem, ptr,
};

use nvidia_ml_mock::{
    Answer, Placement, RecordedGpu, RecordedLink, RecordedMig, RecordedPeers, RecordedProfile,
    Recording,
};
use nvml_wrapper_sys::bindings::{self as raw, NvmlLib};

/// Room for a text.
const LONGEST_TEXT: c_uint = 96;

/// Calls a function of the library: nothing, or the number of the error.
macro_rules! ask {
    ($lib:expr, $name:ident($($argument:expr),* $(,)?)) => {
        match $lib.$name.as_ref() {
            Ok(function) => {
                // SAFETY: the library is loaded as long as `Library` lives; the arguments are values, handles of this library, and
                // pointers to locals of the types that the function writes, with room for as much as it is told.
                let code = unsafe { function($($argument),*) };
                if code == raw::nvmlReturn_enum_NVML_SUCCESS { Ok(()) } else { Err(code) }
            }
            Err(_) => Err(raw::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND),
        }
    };
}

/// NVML, which is initialised as long as this lives.
pub(crate) struct Library {
    lib: NvmlLib,
}

impl Drop for Library {
    fn drop(&mut self) {
        let _ = ask!(self.lib, nvmlShutdown());
    }
}

impl Library {
    /// The library of this file, or of this name.
    pub(crate) fn open(file: &OsStr) -> Result<Self, String> {
        // SAFETY: to load NVML sets up its own variables, and nothing else.
        let lib = unsafe { NvmlLib::new(file) };
        let lib = lib.map_err(|error| error.to_string())?;
        ask!(lib, nvmlInit_v2()).map_err(failed("nvmlInit_v2"))?;
        Ok(Self { lib })
    }

    /// Everything that is asked here. Nothing is changed by it.
    pub(crate) fn record(&self) -> Result<Recording, String> {
        let lib = &self.lib;
        let mut number = 0;
        ask!(lib, nvmlDeviceGetCount_v2(&raw mut number))
            .map_err(failed("nvmlDeviceGetCount_v2"))?;
        let devices: Vec<raw::nvmlDevice_t> = (0..number)
            .map(|index| self.device(index))
            .collect::<Result<_, String>>()?;
        let driver_version = text(|text, room| ask!(lib, nvmlSystemGetDriverVersion(text, room)));
        let mut cuda_driver_version = 0;
        let asked = ask!(
            lib,
            nvmlSystemGetCudaDriverVersion_v2(&raw mut cuda_driver_version)
        );
        Ok(Recording {
            driver_version: driver_version.map_err(failed("nvmlSystemGetDriverVersion"))?,
            cuda_driver_version: asked.map(|()| cuda_driver_version),
            gpus: devices
                .iter()
                .map(|device| self.gpu(*device))
                .collect::<Result<_, String>>()?,
            peers: self.all_peers(&devices),
            uses: Vec::new(),
        })
    }

    fn device(&self, index: u32) -> Result<raw::nvmlDevice_t, String> {
        let mut device = ptr::null_mut();
        let call = "nvmlDeviceGetHandleByIndex_v2";
        ask!(
            self.lib,
            nvmlDeviceGetHandleByIndex_v2(index, &raw mut device)
        )
        .map_err(failed(call))?;
        Ok(device)
    }

    fn gpu(&self, device: raw::nvmlDevice_t) -> Result<RecordedGpu, String> {
        let lib = &self.lib;
        let product_name = text(|text, room| ask!(lib, nvmlDeviceGetName(device, text, room)));
        let mut architecture = 0;
        ask!(
            lib,
            nvmlDeviceGetArchitecture(device, &raw mut architecture)
        )
        .map_err(failed("nvmlDeviceGetArchitecture"))?;
        let (mut major, mut minor) = (0, 0);
        ask!(
            lib,
            nvmlDeviceGetCudaComputeCapability(device, &raw mut major, &raw mut minor)
        )
        .map_err(failed("nvmlDeviceGetCudaComputeCapability"))?;
        // SAFETY: it is made of numbers only.
        let mut pci: raw::nvmlPciInfo_t = unsafe { mem::zeroed() };
        ask!(lib, nvmlDeviceGetPciInfo_v3(device, &raw mut pci))
            .map_err(failed("nvmlDeviceGetPciInfo_v3"))?;
        // SAFETY: it is made of numbers only.
        let mut memory: raw::nvmlMemory_v2_t = unsafe { mem::zeroed() };
        memory.version = version::<raw::nvmlMemory_v2_t>(2);
        let told = ask!(lib, nvmlDeviceGetMemoryInfo_v2(device, &raw mut memory));
        let (mut current, mut pending) = (0, 0);
        let mode = ask!(
            lib,
            nvmlDeviceGetMigMode(device, &raw mut current, &raw mut pending)
        );
        let mut fabric = raw::nvmlGpuFabricInfo_t {
            clusterUuid: [0; 16],
            status: 0,
            cliqueId: 0,
            state: 0,
        };
        let has_fabric = ask!(lib, nvmlDeviceGetGpuFabricInfo(device, &raw mut fabric));
        let mut kinds = 0;
        let events = ask!(
            lib,
            nvmlDeviceGetSupportedEventTypes(device, &raw mut kinds)
        );
        let events = events.map(|()| kinds);
        Ok(RecordedGpu {
            product_name: product_name.map_err(failed("nvmlDeviceGetName"))?,
            architecture,
            compute_capability: (major, minor),
            pci_bus_id: in_rust(&pci.busId),
            pci_device_id: pci.pciDeviceId,
            pci_subsystem_id: pci.pciSubSystemId,
            memory_bytes: told.map(|()| memory.total),
            reserved_bytes: told.map(|()| memory.reserved),
            mig: mode.map(|()| RecordedMig {
                current: current == raw::NVML_DEVICE_MIG_ENABLE,
                pending: pending == raw::NVML_DEVICE_MIG_ENABLE,
            }),
            profiles: (0..raw::NVML_GPU_INSTANCE_PROFILE_COUNT)
                .filter_map(|enumerator| self.profile(device, enumerator))
                .collect(),
            links: (0..raw::NVML_NVLINK_MAX_LINKS)
                .map(|link| self.link(device, link))
                .collect(),
            fabric_state: has_fabric.map(|()| fabric.state),
            registered: events.and_then(|kinds| self.register(device, kinds)),
            events,
        })
    }

    fn profile(&self, device: raw::nvmlDevice_t, enumerator: u32) -> Option<RecordedProfile> {
        let lib = &self.lib;
        // SAFETY: it is made of numbers only.
        let mut info: raw::nvmlGpuInstanceProfileInfo_t = unsafe { mem::zeroed() };
        ask!(
            lib,
            nvmlDeviceGetGpuInstanceProfileInfo(device, enumerator, &raw mut info)
        )
        .ok()?;
        // SAFETY: it is made of numbers only.
        let mut named: raw::nvmlGpuInstanceProfileInfo_v2_t = unsafe { mem::zeroed() };
        named.version = version::<raw::nvmlGpuInstanceProfileInfo_v2_t>(2);
        let has_name = ask!(
            lib,
            nvmlDeviceGetGpuInstanceProfileInfoV(device, enumerator, &raw mut named)
        );
        Some(RecordedProfile {
            enumerator,
            id: info.id,
            name: has_name.map(|()| in_rust(&named.name)),
            compute_slices: info.sliceCount,
            max_instances: info.instanceCount,
            multiprocessors: info.multiprocessorCount,
            copy_engines: info.copyEngineCount,
            decoders: info.decoderCount,
            encoders: info.encoderCount,
            jpeg_engines: info.jpegCount,
            ofa_engines: info.ofaCount,
            memory_mib: info.memorySizeMB,
            placements: self.placements(device, info.id),
        })
    }

    fn placements(&self, device: raw::nvmlDevice_t, profile: u32) -> Answer<Vec<Placement>> {
        let lib = &self.lib;
        let mut number = 0;
        ask!(
            lib,
            nvmlDeviceGetGpuInstancePossiblePlacements_v2(
                device,
                profile,
                ptr::null_mut(),
                &raw mut number,
            )
        )?;
        let none = raw::nvmlGpuInstancePlacement_t { start: 0, size: 0 };
        let mut places = vec![none; length(number)];
        ask!(
            lib,
            nvmlDeviceGetGpuInstancePossiblePlacements_v2(
                device,
                profile,
                places.as_mut_ptr(),
                &raw mut number,
            )
        )?;
        let told = places.into_iter().take(length(number));
        let placements = told.map(|place| Placement {
            start: place.start,
            size: place.size,
        });
        Ok(placements.collect())
    }

    fn link(&self, device: raw::nvmlDevice_t, link: u32) -> Answer<RecordedLink> {
        let mut state = 0;
        ask!(
            self.lib,
            nvmlDeviceGetNvLinkState(device, link, &raw mut state)
        )?;
        let mut remote = raw::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
        let asked = ask!(
            self.lib,
            nvmlDeviceGetNvLinkRemoteDeviceType(device, link, &raw mut remote)
        );
        Ok(RecordedLink {
            is_active: state == raw::nvmlEnableState_enum_NVML_FEATURE_ENABLED,
            remote: asked.map(|()| remote),
        })
    }

    /// Registers for these events, and looks once; that nothing has happened is no error.
    fn register(&self, device: raw::nvmlDevice_t, kinds: u64) -> Answer<()> {
        let mut set = ptr::null_mut();
        ask!(self.lib, nvmlEventSetCreate(&raw mut set))?;
        let registered = ask!(self.lib, nvmlDeviceRegisterEvents(device, kinds, set));
        // SAFETY: it is made of numbers and a pointer, which may be null.
        let mut data: raw::nvmlEventData_t = unsafe { mem::zeroed() };
        let waited = ask!(self.lib, nvmlEventSetWait_v2(set, &raw mut data, 0));
        let freed = ask!(self.lib, nvmlEventSetFree(set));
        registered?;
        match waited {
            Ok(()) | Err(raw::nvmlReturn_enum_NVML_ERROR_TIMEOUT) => freed,
            Err(code) => Err(code),
        }
    }

    fn all_peers(&self, devices: &[raw::nvmlDevice_t]) -> Vec<RecordedPeers> {
        let mut found = Vec::new();
        for (first, one) in devices.iter().enumerate() {
            for (second, other) in devices.iter().enumerate().skip(first + 1) {
                let status = |capability| self.peer_status(*one, *other, capability);
                found.push(RecordedPeers {
                    gpus: (first, second),
                    read: status(raw::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_READ),
                    write: status(raw::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_WRITE),
                    nvlink: status(raw::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_NVLINK),
                    atomics: status(raw::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_ATOMICS),
                    common_ancestor: self.common_ancestor(*one, *other),
                });
            }
        }
        found
    }

    fn peer_status(
        &self,
        one: raw::nvmlDevice_t,
        other: raw::nvmlDevice_t,
        capability: u32,
    ) -> Answer<u32> {
        let mut status = 0;
        ask!(
            self.lib,
            nvmlDeviceGetP2PStatus(one, other, capability, &raw mut status)
        )?;
        Ok(status)
    }

    fn common_ancestor(&self, one: raw::nvmlDevice_t, other: raw::nvmlDevice_t) -> Answer<u32> {
        let mut level = 0;
        ask!(
            self.lib,
            nvmlDeviceGetTopologyCommonAncestor(one, other, &raw mut level)
        )?;
        Ok(level)
    }
}

/// The sentence for a call that has to succeed.
fn failed(call: &'static str) -> impl FnOnce(u32) -> String {
    move |code| format!("{call} answers {code}")
}

/// A text that NVML writes into room of this size.
fn text(write: impl FnOnce(*mut c_char, c_uint) -> Answer<()>) -> Answer<String> {
    let mut characters: Vec<c_char> = vec![0; length(LONGEST_TEXT)];
    write(characters.as_mut_ptr(), LONGEST_TEXT)?;
    Ok(in_rust(&characters))
}

fn in_rust(characters: &[c_char]) -> String {
    let bytes = characters.iter().flat_map(|it| it.to_ne_bytes());
    let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// `NVML_STRUCT_VERSION`.
fn version<T>(number: u32) -> u32 {
    u32::try_from(size_of::<T>()).unwrap_or_default() | (number << 24)
}

fn length(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
