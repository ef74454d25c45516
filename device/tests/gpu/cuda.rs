//! Programs that use CUDA: through the driver API, so that nothing but the driver is needed.
//!
//! Each is this program itself, started with an argument, on the only GPU that `CUDA_VISIBLE_DEVICES` shows. It says a line for each step.
//!
//! * [`HOLD`]: it has a context until it is told to let go; it goes on with each line that it reads.
//! * [`FAULT`]: a kernel of it writes to an address that nothing is mapped to. That is an XID of its own doing: the driver ends its
//!   context, and nothing else.

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    io::{self, BufRead, Write},
    mem,
    process::ExitCode,
    ptr,
};

/// The argument of a program that has a context.
pub(crate) const HOLD: &str = "--hold-a-context";
/// What it says once it has its context.
pub(crate) const HOLDING: &str = "holding";
/// What it says once it has none any more.
pub(crate) const RELEASED: &str = "released";
/// The argument of a program that makes a fault.
pub(crate) const FAULT: &str = "--make-a-fault";
/// What it says once the driver has told it: behind this stands the number of CUDA's error.
pub(crate) const FAULTED: &str = "faulted";
/// What either says where there is no CUDA begins with this.
pub(crate) const NO_LIBRARY: &str = "no library";

const LIBRARY: &CStr = c"libcuda.so.1";
/// `RTLD_NOW`.
const NOW: c_int = 2;

unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

type Context = *mut c_void;
type Module = *mut c_void;
type Function = *mut c_void;
type Init = unsafe extern "C" fn(c_uint) -> c_int;
type GetDevice = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type CreateContext = unsafe extern "C" fn(*mut Context, c_uint, c_int) -> c_int;
type DestroyContext = unsafe extern "C" fn(Context) -> c_int;
type LoadModule = unsafe extern "C" fn(*mut Module, *const c_void) -> c_int;
type GetFunction = unsafe extern "C" fn(*mut Function, Module, *const c_char) -> c_int;
/// The function, blocks and threads in three dimensions, shared memory, the stream, arguments, and the same in another form.
type Launch = unsafe extern "C" fn(
    Function,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;
type Synchronize = unsafe extern "C" fn() -> c_int;

/// A kernel in the assembler that every driver compiles for its GPU: of CUDA 8, for compute capability 5.0 and all later ones. Nothing is
/// ever mapped so low, and the address is in the range that can be, so it is the unit of virtual memory that objects: XID 31.
const KERNEL: &CStr = c".version 5.0
.target sm_50
.address_size 64
.visible .entry fault()
{
    .reg .b64 %rd1;
    .reg .b32 %r1;
    mov.u64 %rd1, 4096;
    mov.u32 %r1, 1;
    st.volatile.global.u32 [%rd1], %r1;
    ret;
}
";

/// Runs the program of this argument; `None` if it is none of ours.
pub(crate) fn run(argument: &str) -> Option<ExitCode> {
    let ended = match argument {
        HOLD => hold_a_context(),
        FAULT => make_a_fault(),
        _ => return None,
    };
    Some(match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            let _ = say(&cause);
            ExitCode::FAILURE
        }
    })
}

fn hold_a_context() -> Result<(), String> {
    let library = library()?;
    let context = context(library)?;
    // SAFETY: this is the function's type in cuda.h. The name with `_v2` is what that without has meant since CUDA 4.0, and stays in the library.
    let destroy = unsafe {
        mem::transmute::<*mut c_void, DestroyContext>(function(library, c"cuCtxDestroy_v2")?)
    };
    say(HOLDING)?;
    wait()?;
    // SAFETY: the context is destroyed once, by the thread that made it.
    succeeded("cuCtxDestroy", unsafe { destroy(context) })?;
    say(RELEASED)?;
    wait()
}

fn make_a_fault() -> Result<(), String> {
    let library = library()?;
    context(library)?;
    // SAFETY: these are the functions' types in cuda.h.
    let (load, get_function, launch, synchronize) = unsafe {
        (
            mem::transmute::<*mut c_void, LoadModule>(function(library, c"cuModuleLoadData")?),
            mem::transmute::<*mut c_void, GetFunction>(function(library, c"cuModuleGetFunction")?),
            mem::transmute::<*mut c_void, Launch>(function(library, c"cuLaunchKernel")?),
            mem::transmute::<*mut c_void, Synchronize>(function(library, c"cuCtxSynchronize")?),
        )
    };
    let (mut module, mut kernel) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the pointers are to locals of the types that the functions write, and to texts that end with zero; the module lives as long as
    // its context, which ends with the program. The kernel takes no arguments. What it writes to is memory of the GPU that nobody has.
    let error = unsafe {
        succeeded(
            "cuModuleLoadData",
            load(&raw mut module, KERNEL.as_ptr().cast()),
        )?;
        let found = get_function(&raw mut kernel, module, c"fault".as_ptr());
        succeeded("cuModuleGetFunction", found)?;
        let (stream, none) = (ptr::null_mut(), ptr::null_mut());
        let launched = launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, none, none);
        succeeded("cuLaunchKernel", launched)?;
        synchronize()
    };
    if error == 0 {
        return Err("the kernel wrote where nothing is, and there is no error".to_owned());
    }
    // The context is of no use any more, and ends with the program.
    say(&format!("{FAULTED} {error}"))
}

fn library() -> Result<*mut c_void, String> {
    // SAFETY: the name is a text that ends with zero. What the library does when it is loaded it does in every CUDA program.
    let library = unsafe { dlopen(LIBRARY.as_ptr(), NOW) };
    if library.is_null() {
        return Err(format!("{NO_LIBRARY} {}", LIBRARY.to_string_lossy()));
    }
    Ok(library)
}

/// A context on the first GPU, which is this thread's from now on.
fn context(library: *mut c_void) -> Result<Context, String> {
    // SAFETY: these are the functions' types in cuda.h; for `_v2` see above.
    let (init, get_device, create) = unsafe {
        (
            mem::transmute::<*mut c_void, Init>(function(library, c"cuInit")?),
            mem::transmute::<*mut c_void, GetDevice>(function(library, c"cuDeviceGet")?),
            mem::transmute::<*mut c_void, CreateContext>(function(library, c"cuCtxCreate_v2")?),
        )
    };
    let (mut device, mut context) = (0, ptr::null_mut());
    // SAFETY: the pointers are to locals of the types that the functions write.
    unsafe {
        succeeded("cuInit", init(0))?;
        succeeded("cuDeviceGet", get_device(&raw mut device, 0))?;
        succeeded("cuCtxCreate", create(&raw mut context, 0, device))?;
    }
    Ok(context)
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
