//! NVML's calls about slices, as functions. Raw, because the wrapper (0.13.0) has few of them, and one that never answers
//! (`possible_placements`).
//!
//! Here are those about the GPU; those about instances are in [`super::instances`].
//!
//! Safety of all of them: the handles of a GPU are of the library that is loaded and initialised as long as its [`Device`] lives;
//! those of instances come from it, are looked up anew in each question and are not kept (one that was destroyed meanwhile is
//! refused by NVML, which looks it up itself); pointers are to locals of the types that the functions write, and lists have room
//! for more than any GPU has.

use std::{ptr, slice};

use nvml_wrapper::{
    Device, Nvml,
    error::{NvmlError, nvml_sym, nvml_try, nvml_try_count},
};
use nvml_wrapper_sys::bindings::{self as raw, NvmlLib};

use crate::mig::{Media, MigModeAfter, Placement, Told};

/// Room for a list: more than a GPU has of anything here.
pub(super) const ROOM: u32 = 64;
/// Enumerators of profiles that are asked for. `nvml.h` of 580 has 17; a later driver may have more.
const ENUMERATORS: u32 = 32;
/// Layouts of a profile's facts, newest first. The first two have names.
const LAYOUTS: [Layout; 3] = [Layout::Third, Layout::Second, Layout::First];

/// Facts of a profile, which have the same names in all layouts.
macro_rules! told {
    ($enumerator:expr, $info:ident, $name:expr) => {
        Told {
            enumerator: $enumerator,
            id: $info.id,
            name: $name,
            compute_slices: $info.sliceCount,
            instances: $info.instanceCount,
            multiprocessors: $info.multiprocessorCount,
            media: Media {
                copy_engines: $info.copyEngineCount,
                decoders: $info.decoderCount,
                encoders: $info.encoderCount,
                jpeg_engines: $info.jpegCount,
                ofa_engines: $info.ofaCount,
            },
            memory_mebibytes: $info.memorySizeMB,
            placements: Vec::new(),
        }
    };
}

#[derive(Clone, Copy, Debug)]
enum Layout {
    First,
    Second,
    Third,
}

/// A GPU that can be cut.
#[derive(Debug)]
pub(super) struct Card<'a> {
    device: &'a Device<'a>,
}

impl<'a> Card<'a> {
    pub(super) fn new(device: &'a Device<'a>) -> Self {
        Self { device }
    }

    pub(super) fn nvml(&self) -> &'a Nvml {
        self.device.nvml()
    }

    pub(super) fn lib(&self) -> &'a NvmlLib {
        self.nvml().lib()
    }

    pub(super) fn handle(&self) -> raw::nvmlDevice_t {
        // SAFETY: it is used in calls of its own library only, as above.
        unsafe { self.device.handle() }
    }

    /// Minor number of the GPU's device node.
    pub(super) fn minor(&self) -> Result<u32, NvmlError> {
        self.device.minor_number()
    }

    /// Whether the mode is on; `None` for GPUs and drivers that have none.
    pub(super) fn mode(&self) -> Result<Option<MigModeAfter>, NvmlError> {
        let Ok(get) = nvml_sym(self.lib().nvmlDeviceGetMigMode.as_ref()) else {
            return Ok(None);
        };
        let (mut current, mut pending) =
            (raw::NVML_DEVICE_MIG_DISABLE, raw::NVML_DEVICE_MIG_DISABLE);
        // SAFETY: as above.
        match nvml_try(unsafe { get(self.handle(), &raw mut current, &raw mut pending) }) {
            Ok(()) => Ok(Some(MigModeAfter {
                current: current == raw::NVML_DEVICE_MIG_ENABLE,
                pending: pending == raw::NVML_DEVICE_MIG_ENABLE,
            })),
            Err(NvmlError::NotSupported) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Asks for another mode. The inner result says whether it is in force.
    pub(super) fn set_mode(&self, on: bool) -> Result<Result<(), NvmlError>, NvmlError> {
        let set = nvml_sym(self.lib().nvmlDeviceSetMigMode.as_ref())?;
        let mode = if on {
            raw::NVML_DEVICE_MIG_ENABLE
        } else {
            raw::NVML_DEVICE_MIG_DISABLE
        };
        let mut activation = raw::nvmlReturn_enum_NVML_SUCCESS;
        // SAFETY: as above.
        nvml_try(unsafe { set(self.handle(), mode, &raw mut activation) })?;
        Ok(nvml_try(activation))
    }

    /// Profiles of GPU instances, but for their placements. None where the driver does not tell.
    pub(super) fn profiles(&self) -> Result<Vec<Told>, NvmlError> {
        let mut layouts: &[Layout] = &LAYOUTS;
        let mut profiles = Vec::new();
        for enumerator in 0..ENUMERATORS {
            for layout in layouts {
                match self.profile(enumerator, *layout) {
                    Ok(profile) => {
                        profiles.push(profile);
                        // The library has it. From now on what it does not know are enumerators.
                        layouts = slice::from_ref(layout);
                        break;
                    }
                    Err(NvmlError::NotSupported) => break,
                    Err(error) if is_unknown(&error) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(profiles)
    }

    fn profile(&self, enumerator: u32, layout: Layout) -> Result<Told, NvmlError> {
        let lib = self.lib();
        match layout {
            Layout::First => {
                let get = nvml_sym(lib.nvmlDeviceGetGpuInstanceProfileInfo.as_ref())?;
                // SAFETY: it is made of numbers only.
                let mut info: raw::nvmlGpuInstanceProfileInfo_t = unsafe { std::mem::zeroed() };
                // SAFETY: as above.
                nvml_try(unsafe { get(self.handle(), enumerator, &raw mut info) })?;
                Ok(told!(enumerator, info, None))
            }
            Layout::Second => {
                let get = nvml_sym(lib.nvmlDeviceGetGpuInstanceProfileInfoV.as_ref())?;
                // SAFETY: it is made of numbers only.
                let mut info: raw::nvmlGpuInstanceProfileInfo_v2_t = unsafe { std::mem::zeroed() };
                info.version = version::<raw::nvmlGpuInstanceProfileInfo_v2_t>(2);
                // SAFETY: as above.
                nvml_try(unsafe { get(self.handle(), enumerator, &raw mut info) })?;
                Ok(told!(enumerator, info, text(&info.name)))
            }
            Layout::Third => {
                let get = nvml_sym(lib.nvmlDeviceGetGpuInstanceProfileInfoV.as_ref())?;
                // SAFETY: it is made of numbers only.
                let mut info: raw::nvmlGpuInstanceProfileInfo_v3_t = unsafe { std::mem::zeroed() };
                info.version = version::<raw::nvmlGpuInstanceProfileInfo_v3_t>(3);
                // SAFETY: as above; the version says which of its layouts the pointer is to.
                nvml_try(unsafe { get(self.handle(), enumerator, (&raw mut info).cast()) })?;
                Ok(told!(enumerator, info, text(&info.name)))
            }
        }
    }

    /// Where instances of a profile may lie, whatever lies there now.
    pub(super) fn placements(&self, profile: u32) -> Result<Vec<Placement>, NvmlError> {
        let get = nvml_sym(
            self.lib()
                .nvmlDeviceGetGpuInstancePossiblePlacements_v2
                .as_ref(),
        )?;
        let mut count = 0;
        // SAFETY: as above; without a list NVML writes only how long that is.
        nvml_try_count(unsafe { get(self.handle(), profile, ptr::null_mut(), &raw mut count) })?;
        fits(count)?;
        let none = raw::nvmlGpuInstancePlacement_t { start: 0, size: 0 };
        let listed = list(none, |placements, count| {
            // SAFETY: as above.
            unsafe { get(self.handle(), profile, placements, count) }
        })?;
        Ok(listed.into_iter().map(placement).collect())
    }
}

/// Whether a library, or a GPU, may know no such enumerator or no such layout.
fn is_unknown(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::InvalidArg
            | NvmlError::FunctionNotFound
            | NvmlError::FailedToLoadSymbol(_)
            | NvmlError::UnexpectedVariant(
                raw::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH
            )
    )
}

pub(super) fn placement(told: raw::nvmlGpuInstancePlacement_t) -> Placement {
    Placement {
        start: told.start,
        size: told.size,
    }
}

/// A list that NVML writes; it is told how much room there is, and tells how long the list is.
pub(super) fn list<T: Clone>(
    none: T,
    write: impl FnOnce(*mut T, *mut u32) -> raw::nvmlReturn_t,
) -> Result<Vec<T>, NvmlError> {
    let room = usize::try_from(ROOM).unwrap_or_default();
    let mut listed = vec![none; room];
    let mut count = ROOM;
    nvml_try(write(listed.as_mut_ptr(), &raw mut count))?;
    listed.truncate(fits(count)?);
    Ok(listed)
}

/// The length of a list, if there is room for it.
fn fits(count: u32) -> Result<usize, NvmlError> {
    let length = usize::try_from(count).unwrap_or(usize::MAX);
    if count > ROOM {
        return Err(NvmlError::InsufficientSize(Some(length)));
    }
    Ok(length)
}

/// `NVML_STRUCT_VERSION` of `nvml.h`: the size, with the version in the highest byte.
fn version<T>(version: u32) -> u32 {
    u32::try_from(size_of::<T>()).unwrap_or_default() | (version << 24)
}

/// A text with its closing zero.
fn text(characters: &[std::ffi::c_char]) -> Option<String> {
    let bytes = characters
        .iter()
        .flat_map(|character| character.to_ne_bytes());
    String::from_utf8(bytes.take_while(|byte| *byte != 0).collect()).ok()
}
