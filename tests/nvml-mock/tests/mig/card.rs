//! A machine with a library of its own, and the calls that tests make.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

use nvidia_ml_mock::{LIBRARY, Placement, STATE_FILE, State, StateFile, library};
use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlDevice_t, nvmlGpuInstance_t,
    nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t,
};

pub(crate) const INVALID_ARGUMENT: u32 = 2;
pub(crate) const NOT_SUPPORTED: u32 = 3;
pub(crate) const NOT_FOUND: u32 = 6;
pub(crate) const INSUFFICIENT_SIZE: u32 = 7;
pub(crate) const TIMEOUT: u32 = 10;
pub(crate) const GPU_IS_LOST: u32 = 15;
pub(crate) const RESET_REQUIRED: u32 = 16;
pub(crate) const IN_USE: u32 = 19;
pub(crate) const INSUFFICIENT_RESOURCES: u32 = 23;
pub(crate) const UNKNOWN: u32 = 999;

/// Calls a function of the library: nothing, or the error.
macro_rules! call {
    ($nvml:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the arguments are values, handles that the library made up, and pointers to values that live until the call
        // returns, with room for what it writes.
        let code = unsafe { $nvml.lib.$name($($argument),*) };
        if code == 0 { Ok(()) } else { Err(code) }
    }};
}

/// A machine.
pub(crate) struct Machine {
    pub(crate) lib: NvmlLib,
    pub(crate) file: StateFile,
    pub(crate) library: PathBuf,
    directory: PathBuf,
    owns_directory: bool,
}

impl Machine {
    /// A machine with this board on which all is well.
    pub(crate) fn new(board: &str) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("nvml-mock-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).unwrap();
        fs::copy(library().unwrap(), directory.join(LIBRARY)).unwrap();
        let file = StateFile::at(directory.join(STATE_FILE));
        let state = State {
            board: board.to_owned(),
            seed: "node-0".to_owned(),
            proc_directory: Some(directory.join("proc")),
            ..State::default()
        };
        file.write(&state).unwrap();
        let mut machine = Self::in_directory(&directory);
        machine.owns_directory = true;
        machine
    }

    /// The machine whose library and state are in this directory, seen by another process.
    pub(crate) fn in_directory(directory: &Path) -> Self {
        let library = directory.join(LIBRARY);
        // SAFETY: loading the library runs nothing of it.
        let lib = unsafe { NvmlLib::new(&library) }.unwrap();
        let machine = Self {
            lib,
            file: StateFile::at(directory.join(STATE_FILE)),
            library,
            directory: directory.to_owned(),
            owns_directory: false,
        };
        call!(machine, nvmlInit_v2()).unwrap();
        machine
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.directory.join(path)
    }

    pub(crate) fn gpu(&self, index: u32) -> nvmlDevice_t {
        let mut device = std::ptr::null_mut();
        call!(self, nvmlDeviceGetHandleByIndex_v2(index, &raw mut device)).unwrap();
        device
    }

    pub(crate) fn uuid(&self, device: nvmlDevice_t) -> String {
        let mut text = [0_u8; 96];
        call!(
            self,
            nvmlDeviceGetUUID(device, text.as_mut_ptr().cast(), 96)
        )
        .unwrap();
        in_rust(&text)
    }

    /// Sets the mode, which is current then.
    pub(crate) fn enable(&self, device: nvmlDevice_t) {
        assert_eq!(self.set_mode(device, 1), Ok(0));
    }

    /// Asks for a mode; the status of its activation.
    pub(crate) fn set_mode(&self, device: nvmlDevice_t, mode: u32) -> Result<u32, u32> {
        let mut status = u32::MAX;
        call!(self, nvmlDeviceSetMigMode(device, mode, &raw mut status)).map(|()| status)
    }

    /// Current and pending mode.
    pub(crate) fn mode(&self, device: nvmlDevice_t) -> Result<(u32, u32), u32> {
        let (mut current, mut pending) = (u32::MAX, u32::MAX);
        let asked = call!(
            self,
            nvmlDeviceGetMigMode(device, &raw mut current, &raw mut pending)
        );
        asked.map(|()| (current, pending))
    }

    pub(crate) fn create(
        &self,
        device: nvmlDevice_t,
        profile: u32,
        placement: Placement,
    ) -> Result<nvmlGpuInstance_t, u32> {
        let mut instance = std::ptr::null_mut();
        let Placement { start, size } = placement;
        let placement = nvmlGpuInstancePlacement_t { start, size };
        let made = call!(
            self,
            nvmlDeviceCreateGpuInstanceWithPlacement(
                device,
                profile,
                &raw const placement,
                &raw mut instance
            )
        );
        made.map(|()| instance)
    }

    pub(crate) fn create_compute(
        &self,
        instance: nvmlGpuInstance_t,
        profile: u32,
    ) -> Result<nvmlComputeInstance_t, u32> {
        let mut compute = std::ptr::null_mut();
        let made = call!(
            self,
            nvmlGpuInstanceCreateComputeInstance(instance, profile, &raw mut compute)
        );
        made.map(|()| compute)
    }

    pub(crate) fn destroy(&self, instance: nvmlGpuInstance_t) -> Result<(), u32> {
        call!(self, nvmlGpuInstanceDestroy(instance))
    }

    pub(crate) fn destroy_compute(&self, compute: nvmlComputeInstance_t) -> Result<(), u32> {
        call!(self, nvmlComputeInstanceDestroy(compute))
    }

    pub(crate) fn info(&self, instance: nvmlGpuInstance_t) -> Result<nvmlGpuInstanceInfo_t, u32> {
        let mut info = nvmlGpuInstanceInfo_t {
            device: std::ptr::null_mut(),
            id: 0,
            profileId: 0,
            placement: nvmlGpuInstancePlacement_t { start: 0, size: 0 },
        };
        call!(self, nvmlGpuInstanceGetInfo(instance, &raw mut info)).map(|()| info)
    }

    /// The MIG device of a compute instance.
    pub(crate) fn mig_device(&self, compute: nvmlComputeInstance_t) -> nvmlDevice_t {
        let mut info: std::mem::MaybeUninit<nvmlComputeInstanceInfo_t> =
            std::mem::MaybeUninit::zeroed();
        call!(
            self,
            nvmlComputeInstanceGetInfo_v2(compute, info.as_mut_ptr())
        )
        .unwrap();
        // SAFETY: it was filled, and zeroes would be one, too.
        unsafe { info.assume_init() }.device
    }

    /// The GPU instances of a GPU that NVML lists by their profile, as (id, profile, start, size).
    pub(crate) fn instances(&self, device: nvmlDevice_t) -> Vec<(u32, u32, u32, u32)> {
        let mut found = Vec::new();
        for id in 0..15 {
            let mut instance = std::ptr::null_mut();
            let asked = call!(
                self,
                nvmlDeviceGetGpuInstanceById(device, id, &raw mut instance)
            );
            if asked.is_ok() {
                let info = self.info(instance).unwrap();
                let place = info.placement;
                found.push((info.id, info.profileId, place.start, place.size));
            }
        }
        found
    }

    /// Changes what the hardware is.
    pub(crate) fn change(&self, change: impl FnOnce(&mut State)) {
        self.file.change(change).unwrap();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if self.owns_directory {
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

/// A text of C.
pub(crate) fn in_rust(text: &[u8]) -> String {
    let characters = text.iter().take_while(|byte| **byte != 0);
    characters.map(|byte| char::from(*byte)).collect()
}

/// `size` memory slices from `start`.
pub(crate) fn at(start: u32, size: u32) -> Placement {
    Placement { start, size }
}
