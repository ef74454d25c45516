//! How a GPU is found when it is looked at.

use std::ffi::c_int;

use nvml_wrapper::{
    Device,
    bitmasks::device::ThrottleReasons,
    enum_wrappers::device::{EccCounter, MemoryError},
    enums::device::SampleValue,
    error::{NvmlError, nvml_sym, nvml_try},
    struct_wrappers::device::FieldValueSample,
    structs::device::FieldId,
};
use nvml_wrapper_sys::bindings as raw;

use super::{Backend, BackendError, Lane, gone_or_failed, library::Session, mig::is_in_mig_mode};
use crate::faults::{Condition, Errors};

/// Counters of errors of all NVLinks, as far as a part has them: packets that were sent again, links that were trained again, broken packets.
const LINK_ERRORS: [u32; 3] = [
    raw::field_id::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
    raw::field_id::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
    raw::field_id::NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
];
/// The same of one link, as parts before Blackwell count them; and as those from Blackwell on do, for which `nvml.h` says of the others that they are
/// not supported: how often it had to be trained again.
const ERRORS_OF_LINK: [&[u32]; 2] = [
    &[
        raw::field_id::NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,
        raw::field_id::NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
        raw::field_id::NVML_FI_DEV_NVLINK_ERROR_DL_CRC,
    ],
    &[raw::field_id::NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS],
];
/// What is asked for in one call, in this order.
const FIELDS: [u32; 3] = [
    raw::field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
    raw::field_id::NVML_FI_DEV_REMAPPED_PENDING,
    raw::field_id::NVML_FI_DEV_REMAPPED_FAILURE,
];

impl Backend {
    /// How a GPU is found. What it does not tell is left open; an error says that it did not answer at all.
    pub fn condition(&self, uuid: &str) -> Result<Condition, BackendError> {
        self.find(uuid)?;
        let lane = Lane::Gpu(uuid.to_owned());
        let uuid = uuid.to_owned();
        self.ask(lane, move |session| condition(session, &uuid))
    }

    /// What the driver says has to be done with a GPU; `None` where it does not say.
    pub fn recovery_action(&self, uuid: &str) -> Result<Option<u32>, BackendError> {
        self.find(uuid)?;
        let lane = Lane::Gpu(uuid.to_owned());
        let uuid = uuid.to_owned();
        self.ask(lane, move |session| {
            let device = session.device(&uuid)?;
            let [action, ..] =
                fields(&device, FIELDS).map_err(|error| gone_or_failed(&uuid, error))?;
            Ok(action.and_then(|action| u32::try_from(action).ok()))
        })
    }
}

fn condition(session: &Session, uuid: &str) -> Result<Condition, BackendError> {
    let gone = |error| gone_or_failed(uuid, error);
    let device = session.device(uuid)?;
    let [action, pending, failure] = fields(&device, FIELDS).map_err(gone)?;
    let is_in_mig_mode = is_in_mig_mode(&device).map_err(gone)?;
    let active_links = if is_in_mig_mode {
        None
    } else {
        active_links(&device)
    };
    let link_errors = if is_in_mig_mode {
        None
    } else {
        link_errors(&device).map_err(gone)?
    };
    let ecc = |kind| told(device.total_ecc_errors(kind, EccCounter::Volatile)).map_err(gone);
    let errors = Errors {
        corrected_ecc: ecc(MemoryError::Corrected)?,
        uncorrected_ecc: ecc(MemoryError::Uncorrected)?,
        links: link_errors,
    };
    let lanes = told(device.current_pcie_link_width()).map_err(gone)?;
    let most = told(device.max_pcie_link_width()).map_err(gone)?;
    let reasons = told(device.current_throttle_reasons()).map_err(gone)?;
    let harmful = ThrottleReasons::HW_SLOWDOWN
        | ThrottleReasons::HW_THERMAL_SLOWDOWN
        | ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN
        | ThrottleReasons::SW_THERMAL_SLOWDOWN;
    Ok(Condition {
        recovery_action: action.and_then(|action| u32::try_from(action).ok()),
        row_remap_pending: pending.map(|number| number != 0),
        row_remap_failure: failure.map(|number| number != 0),
        active_links,
        pcie_lanes: lanes.zip(most),
        is_throttled: reasons.map(|reasons| reasons.intersects(harmful)),
        errors,
    })
}

/// What a GPU that is lost, or a driver that is gone, says of itself is an error; what it does not tell for another reason is left open.
pub(super) fn told<T>(answer: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(
            error @ (NvmlError::GpuLost
            | NvmlError::DriverNotLoaded
            | NvmlError::LibRmVersionMismatch
            | NvmlError::Uninitialized),
        ) => Err(error),
        Err(_) => Ok(None),
    }
}

fn fields(device: &Device<'_>, asked: [u32; 3]) -> Result<[Option<u64>; 3], NvmlError> {
    let mut values = [None; 3];
    let answers = told(device.field_values_for(&asked.map(FieldId)))?.unwrap_or_default();
    for (value, answer) in values.iter_mut().zip(answers) {
        let sample = answer.and_then(|sample| sample.value);
        *value = match told(sample)? {
            Some(SampleValue::U32(number)) => Some(u64::from(number)),
            Some(SampleValue::U64(number)) => Some(number),
            _ => None,
        };
    }
    Ok(values)
}

/// Errors of all NVLinks, by the first kind of counters that the part has. Of these one that is not told adds nothing.
fn link_errors(device: &Device<'_>) -> Result<Option<u64>, NvmlError> {
    let totals = fields(device, LINK_ERRORS)?;
    let mut errors = totals.into_iter().flatten().reduce(u64::saturating_add);
    for kind in ERRORS_OF_LINK {
        if errors.is_none() {
            let told = fields_of_links(device, kind)?;
            errors = told.into_iter().reduce(u64::saturating_add);
        }
    }
    Ok(errors)
}

/// What is told of these fields, of whichever link. Raw, because the wrapper (0.13.0) asks for no link.
fn fields_of_links(device: &Device<'_>, asked: &[u32]) -> Result<Vec<u64>, NvmlError> {
    let links = 0..raw::NVML_NVLINK_MAX_LINKS;
    let mut values: Vec<raw::nvmlFieldValue_t> = links
        .flat_map(|link| asked.iter().map(move |field| (link, *field)))
        .map(|(link, field)| raw::nvmlFieldValue_t {
            fieldId: field,
            scopeId: link,
            timestamp: 0,
            latencyUsec: 0,
            valueType: raw::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT,
            // Of what is not answered nothing is believed.
            nvmlReturn: raw::nvmlReturn_enum_NVML_ERROR_UNKNOWN,
            value: raw::nvmlValue_t { ullVal: 0 },
        })
        .collect();
    let Ok(ask) = nvml_sym(device.nvml().lib().nvmlDeviceGetFieldValues.as_ref()) else {
        return Ok(Vec::new());
    };
    let count = c_int::try_from(values.len()).unwrap_or(c_int::MAX);
    // SAFETY: the handle is of the library that the function is of, which is loaded and initialised as long as `device` lives; there are `count` values.
    let answered = nvml_try(unsafe { ask(device.handle(), count, values.as_mut_ptr()) });
    if told(answered)?.is_none() {
        return Ok(Vec::new());
    }
    let mut numbers = Vec::new();
    for value in values {
        let sample = FieldValueSample::try_from(value).and_then(|sample| sample.value);
        match told(sample)? {
            Some(SampleValue::U32(number)) => numbers.push(u64::from(number)),
            Some(SampleValue::U64(number)) => numbers.push(number),
            _ => {}
        }
    }
    Ok(numbers)
}

/// How many NVLinks are active. Where one does not tell for another reason than that there is none, nobody knows.
fn active_links(device: &Device<'_>) -> Option<u32> {
    let mut active = None;
    for number in 0..raw::NVML_NVLINK_MAX_LINKS {
        match device.link_wrapper_for(number).is_active() {
            Ok(is_active) => active = Some(active.unwrap_or(0) + u32::from(is_active)),
            Err(
                NvmlError::NotSupported | NvmlError::InvalidArg | NvmlError::FailedToLoadSymbol(_),
            ) => {}
            Err(_) => return None,
        }
    }
    active
}
