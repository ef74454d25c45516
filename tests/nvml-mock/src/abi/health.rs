//! How a GPU fares.

use std::ffi::{c_int, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    field_id::{
        NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS,
        NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, NVML_FI_DEV_REMAPPED_COR,
        NVML_FI_DEV_REMAPPED_FAILURE, NVML_FI_DEV_REMAPPED_PENDING, NVML_FI_DEV_REMAPPED_UNC,
    },
    nvmlDevice_t, nvmlEccCounterType_t, nvmlFieldValue_t,
    nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_CORRECTED,
    nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvmlMemoryErrorType_t,
    nvmlValue_t, nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT,
};

use super::{get, put};
use crate::{
    board::BLACKWELL,
    call::{Code, INVALID_ARGUMENT, NOT_SUPPORTED, SUCCESS},
    machine::{Machine, Target},
    state::RemappedRows,
};

export! {
    // Each field has its own result.
    fn nvmlDeviceGetFieldValues(device: nvmlDevice_t, number: c_int, values: *mut nvmlFieldValue_t) {
        let machine = Machine::now()?;
        let target = machine.target(device)?;
        if values.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        for position in 0..usize::try_from(number).map_err(|_| INVALID_ARGUMENT)? {
            // SAFETY: the caller says that there are `number` values.
            let place = unsafe { values.add(position) };
            let asked = get(place)?;
            let answer = machine.field(&target, asked.fieldId, asked.scopeId);
            put(place, nvmlFieldValue_t {
                valueType: nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT,
                nvmlReturn: answer.err().unwrap_or(SUCCESS),
                value: nvmlValue_t { uiVal: answer.unwrap_or_default() },
                ..asked
            })?;
        }
        Ok(())
    }

    // The card counts since its driver was loaded, and for good, alike.
    fn nvmlDeviceGetTotalEccErrors(
        device: nvmlDevice_t,
        error: nvmlMemoryErrorType_t,
        _counter: nvmlEccCounterType_t,
        count: *mut c_ulonglong,
    ) {
        let machine = Machine::now()?;
        let target = machine.target(device)?;
        let errors = machine.card(&target.gpu).map(|card| card.counted_errors).unwrap_or_default();
        if error == nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_CORRECTED {
            put(count, errors.corrected_ecc)
        } else if error == nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_UNCORRECTED {
            put(count, errors.uncorrected_ecc)
        } else {
            Err(INVALID_ARGUMENT)
        }
    }

    fn nvmlDeviceGetCurrentClocksThrottleReasons(device: nvmlDevice_t, reasons: *mut c_ulonglong) {
        let machine = Machine::now()?;
        let target = machine.target(device)?;
        put(reasons, machine.card(&target.gpu).map_or(0, |card| card.throttle_reasons))
    }

    fn nvmlDeviceGetRemappedRows(
        device: nvmlDevice_t,
        correctable: *mut c_uint,
        uncorrectable: *mut c_uint,
        is_pending: *mut c_uint,
        has_failed: *mut c_uint,
    ) {
        let machine = Machine::now()?;
        let rows = machine.remapped_rows(&machine.target(device)?)?;
        put(correctable, rows.correctable)?;
        put(uncorrectable, rows.uncorrectable)?;
        put(is_pending, c_uint::from(rows.is_pending))?;
        put(has_failed, c_uint::from(rows.has_failed))
    }
}

impl Machine {
    fn field(&self, target: &Target, id: c_uint, scope: c_uint) -> Result<c_uint, Code> {
        let is_blackwell = self.board.architecture >= BLACKWELL;
        match id {
            NVML_FI_DEV_GET_GPU_RECOVERY_ACTION => {
                let card = self.card(&target.gpu);
                Ok(card.map_or(0, |card| card.recovery_action))
            }
            // All of them of the first link.
            NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS if is_blackwell => {
                let links = self.board.nvlink.as_ref().map_or(0, |it| it.links_per_gpu);
                if scope >= links {
                    return Err(NOT_SUPPORTED);
                }
                let card = self.card(&target.gpu);
                let recoveries = card.map_or(0, |card| card.counted_errors.link_recoveries);
                Ok(if scope == 0 { recoveries } else { 0 })
            }
            // `nvml.h` says so of those before it.
            NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL if !is_blackwell => {
                let card = self.card(&target.gpu);
                Ok(card.map_or(0, |card| card.counted_errors.link_replays))
            }
            NVML_FI_DEV_REMAPPED_COR => Ok(self.remapped_rows(target)?.correctable),
            NVML_FI_DEV_REMAPPED_UNC => Ok(self.remapped_rows(target)?.uncorrectable),
            NVML_FI_DEV_REMAPPED_PENDING => {
                Ok(c_uint::from(self.remapped_rows(target)?.is_pending))
            }
            NVML_FI_DEV_REMAPPED_FAILURE => {
                Ok(c_uint::from(self.remapped_rows(target)?.has_failed))
            }
            _ => Err(NOT_SUPPORTED),
        }
    }

    /// Not told while the GPU is cut.
    fn remapped_rows(&self, target: &Target) -> Result<RemappedRows, Code> {
        let Some(card) = self.card(&target.gpu) else {
            return Ok(RemappedRows::default());
        };
        if card.gpu_instances.is_empty() {
            Ok(card.remapped_rows)
        } else {
            Err(NOT_SUPPORTED)
        }
    }
}
