//! A call: what it returns, whether it hangs, and whether it fails because the state file says so.

use std::{
    cell::{Cell, RefCell},
    fs::File,
    io::Write,
    sync::Arc,
    thread,
    time::Duration,
};

use nvml_wrapper_sys::bindings as raw;

use crate::{
    state::{Failure, State},
    state_file::StateFile,
};

/// What a function of NVML returns.
pub(crate) type Code = raw::nvmlReturn_t;

pub(crate) const SUCCESS: Code = raw::nvmlReturn_enum_NVML_SUCCESS;
pub(crate) const UNINITIALIZED: Code = raw::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED;
pub(crate) const INVALID_ARGUMENT: Code = raw::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT;
pub(crate) const NOT_SUPPORTED: Code = raw::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;
pub(crate) const NO_PERMISSION: Code = raw::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION;
pub(crate) const NOT_FOUND: Code = raw::nvmlReturn_enum_NVML_ERROR_NOT_FOUND;
pub(crate) const INSUFFICIENT_SIZE: Code = raw::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE;
pub(crate) const DRIVER_NOT_LOADED: Code = raw::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED;
pub(crate) const TIMEOUT: Code = raw::nvmlReturn_enum_NVML_ERROR_TIMEOUT;
pub(crate) const GPU_IS_LOST: Code = raw::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST;
pub(crate) const RESET_REQUIRED: Code = raw::nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED;
pub(crate) const LIB_RM_VERSION_MISMATCH: Code =
    raw::nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH;
pub(crate) const IN_USE: Code = raw::nvmlReturn_enum_NVML_ERROR_IN_USE;
pub(crate) const INSUFFICIENT_RESOURCES: Code =
    raw::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES;
pub(crate) const VERSION_MISMATCH: Code = raw::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
pub(crate) const UNKNOWN: Code = raw::nvmlReturn_enum_NVML_ERROR_UNKNOWN;

/// How often a call that waits for a change of the state looks at it.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(5);

thread_local! {
    /// The function that this thread was called by.
    static FUNCTION: Cell<&'static str> = const { Cell::new("") };
    /// UUID of the GPU that the call is about, as far as it is known.
    static GPU: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs the body of a function.
pub(crate) fn run(function: &'static str, body: impl FnOnce() -> Result<(), Code>) -> Code {
    FUNCTION.set(function);
    let result = about("")
        .and_then(|()| body())
        .and_then(|()| fails_after_effect());
    result.err().unwrap_or(SUCCESS)
}

/// The call is about the GPU of this UUID, or about none: it does not return while the state says that it hangs, and fails where that
/// says so.
pub(crate) fn about(gpu: &str) -> Result<(), Code> {
    GPU.set(gpu.to_owned());
    let function = FUNCTION.get();
    let hangs = |state: &State| state.hangs.iter().any(|hang| hang.is_of(function, gpu));
    loop {
        let Some(state) = state() else {
            return Ok(());
        };
        if !hangs(&state) {
            log(&state, function, gpu);
            return fails(&state, gpu, false);
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Adds the call to the log, if there is one. Whoever asks for a log finds it wanting where that fails: the call goes on.
fn log(state: &State, function: &str, gpu: &str) {
    let Some(file) = state.call_log.as_ref().filter(|_| !gpu.is_empty()) else {
        return;
    };
    // In one piece, so that calls at the same time have a line each.
    let line = format!("{function} {gpu}\n");
    let opened = File::options().create(true).append(true).open(file);
    let _ = opened.and_then(|mut file| file.write_all(line.as_bytes()));
}

fn fails_after_effect() -> Result<(), Code> {
    let Some(state) = state() else {
        return Ok(());
    };
    let gpu = GPU.take();
    fails(&state, "", true)?;
    if gpu.is_empty() {
        return Ok(());
    }
    fails(&state, &gpu, true)
}

/// The error that the state has for this call, if any. One that is counted is counted under the lock: with two calls at once and one
/// failure left, one of them fails.
fn fails(state: &State, gpu: &str, after_effect: bool) -> Result<(), Code> {
    let function = FUNCTION.get();
    let fits =
        |failure: &Failure| failure.after_effect == after_effect && failure.is_of(function, gpu);
    let Some(failure) = state.failures.iter().find(|failure| fits(failure)) else {
        return Ok(());
    };
    if failure.times.is_none() {
        return Err(failure.code);
    }
    let count = |state: &mut State| {
        let failure = state.failures.iter_mut().find(|failure| fits(failure))?;
        failure.times = failure.times.map(|times| times - 1);
        Some(failure.code)
    };
    let file = StateFile::of_library().map_err(|_| UNKNOWN)?;
    match file.change(count).map_err(|_| UNKNOWN)? {
        Some(code) => Err(code),
        None => Ok(()),
    }
}

fn state() -> Option<Arc<State>> {
    StateFile::of_library().ok()?.read_shared().ok()
}
