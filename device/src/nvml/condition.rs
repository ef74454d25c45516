//! How a GPU is found when it is looked at.

use nvml_wrapper::{
    Device,
    bitmasks::device::ThrottleReasons,
    enum_wrappers::device::{EccCounter, MemoryError},
    enums::device::SampleValue,
    error::NvmlError,
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
    let counters = if is_in_mig_mode {
        [None; 3]
    } else {
        fields(&device, LINK_ERRORS).map_err(gone)?
    };
    let ecc = |kind| told(device.total_ecc_errors(kind, EccCounter::Volatile)).map_err(gone);
    let errors = Errors {
        corrected_ecc: ecc(MemoryError::Corrected)?,
        uncorrected_ecc: ecc(MemoryError::Uncorrected)?,
        // Of those that are told: one that a part does not have adds nothing.
        links: counters.into_iter().flatten().reduce(u64::saturating_add),
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
fn told<T>(answer: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
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
