//! The library itself.

use std::ffi::{c_char, c_int, c_uint};

use super::{put, put_text};
use crate::{
    call::{
        Code, DRIVER_NOT_LOADED, GPU_IS_LOST, IN_USE, INSUFFICIENT_RESOURCES, INSUFFICIENT_SIZE,
        INVALID_ARGUMENT, LIB_RM_VERSION_MISMATCH, NO_PERMISSION, NOT_FOUND, NOT_SUPPORTED,
        RESET_REQUIRED, SUCCESS, TIMEOUT, UNINITIALIZED,
    },
    machine::{Machine, begin, end},
};

export! {
    fn nvmlInit_v2() {
        begin()
    }

    fn nvmlInitWithFlags(_flags: c_uint) {
        begin()
    }

    fn nvmlShutdown() {
        end()
    }

    fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) {
        put_text(version, length, Machine::now()?.driver_version())
    }

    fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: c_uint) {
        put_text(version, length, &format!("13.{}", Machine::now()?.driver_version()))
    }

    fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) {
        put(version, Machine::now()?.board.cuda_driver_version)
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: Code) -> *const c_char {
    let text = match code {
        SUCCESS => c"Success",
        UNINITIALIZED => c"Uninitialized",
        INVALID_ARGUMENT => c"Invalid Argument",
        NOT_SUPPORTED => c"Not Supported",
        NO_PERMISSION => c"Insufficient Permissions",
        NOT_FOUND => c"Not Found",
        INSUFFICIENT_SIZE => c"Insufficient Size",
        DRIVER_NOT_LOADED => c"Driver Not Loaded",
        TIMEOUT => c"Timeout",
        GPU_IS_LOST => c"GPU is lost",
        RESET_REQUIRED => c"GPU requires reset",
        LIB_RM_VERSION_MISMATCH => c"RM has detected an NVML/RM version mismatch.",
        IN_USE => c"In use by another client",
        INSUFFICIENT_RESOURCES => c"Insufficient Resources",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}
