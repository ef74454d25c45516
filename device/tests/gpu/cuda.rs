//! A program that has a CUDA context on a GPU until it is told to let go: through the driver API, so that nothing but the driver is needed.
//!
//! It is this program itself, started with [`HOLD`], on the only GPU that `CUDA_VISIBLE_DEVICES` shows. It says a line for each step, and goes on with
//! each line that it reads.

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    io::{self, BufRead, Write},
    mem,
    process::ExitCode,
    ptr,
};

/// Its argument.
pub(crate) const HOLD: &str = "--hold-a-context";
/// What it says once it has its context.
pub(crate) const HOLDING: &str = "holding";
/// What it says once it has none any more.
pub(crate) const RELEASED: &str = "released";
/// What it says where there is no CUDA begins with this.
pub(crate) const NO_LIBRARY: &str = "no library";

const LIBRARY: &CStr = c"libcuda.so.1";
/// `RTLD_NOW`.
const NOW: c_int = 2;

unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

type Context = *mut c_void;
type Init = unsafe extern "C" fn(c_uint) -> c_int;
type GetDevice = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type CreateContext = unsafe extern "C" fn(*mut Context, c_uint, c_int) -> c_int;
type DestroyContext = unsafe extern "C" fn(Context) -> c_int;

/// Runs it.
pub(crate) fn hold() -> ExitCode {
    match hold_a_context() {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            let _ = say(&cause);
            ExitCode::FAILURE
        }
    }
}

fn hold_a_context() -> Result<(), String> {
    // SAFETY: the name is a text that ends with zero. What the library does when it is loaded it does in every CUDA program.
    let library = unsafe { dlopen(LIBRARY.as_ptr(), NOW) };
    if library.is_null() {
        return Err(format!("{NO_LIBRARY} {}", LIBRARY.to_string_lossy()));
    }
    // SAFETY: these are the functions' types in cuda.h. The names with `_v2` are what its names without have meant since CUDA 4.0, and stay in the
    // library.
    let (init, get_device, create, destroy): (Init, GetDevice, CreateContext, DestroyContext) = unsafe {
        (
            mem::transmute::<*mut c_void, Init>(function(library, c"cuInit")?),
            mem::transmute::<*mut c_void, GetDevice>(function(library, c"cuDeviceGet")?),
            mem::transmute::<*mut c_void, CreateContext>(function(library, c"cuCtxCreate_v2")?),
            mem::transmute::<*mut c_void, DestroyContext>(function(library, c"cuCtxDestroy_v2")?),
        )
    };
    let (mut device, mut context) = (0, ptr::null_mut());
    // SAFETY: the pointers are to locals of the types that the functions write; the context is destroyed once, by the thread that made it.
    unsafe {
        succeeded("cuInit", init(0))?;
        succeeded("cuDeviceGet", get_device(&raw mut device, 0))?;
        succeeded("cuCtxCreate", create(&raw mut context, 0, device))?;
    }
    say(HOLDING)?;
    wait()?;
    // SAFETY: as above.
    succeeded("cuCtxDestroy", unsafe { destroy(context) })?;
    say(RELEASED)?;
    wait()
}

fn function(library: *mut c_void, name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the library is loaded, and is never unloaded; the name is a text that ends with zero.
    let found = unsafe { dlsym(library, name.as_ptr()) };
    if found.is_null() {
        return Err(format!("the library lacks {}", name.to_string_lossy()));
    }
    Ok(found)
}

fn succeeded(call: &str, code: c_int) -> Result<(), String> {
    if code == 0 {
        Ok(())
    } else {
        Err(format!("{call} answers {code}"))
    }
}

fn say(line: &str) -> Result<(), String> {
    let mut output = io::stdout().lock();
    let said = writeln!(output, "{line}").and_then(|()| output.flush());
    said.map_err(|error| error.to_string())
}

/// Until a line comes, or the end.
fn wait() -> Result<(), String> {
    let read = io::stdin().lock().read_line(&mut String::new());
    read.map(drop).map_err(|error| error.to_string())
}
