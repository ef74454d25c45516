//! The hardware at the moment of a call.

use std::{
    io,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use nvml_wrapper_sys::bindings::{nvmlComputeInstance_t, nvmlDevice_t, nvmlGpuInstance_t};

use crate::{
    board::{Board, Gpu},
    call::{
        Code, DRIVER_NOT_LOADED, GPU_IS_LOST, INVALID_ARGUMENT, LIB_RM_VERSION_MISMATCH,
        NOT_SUPPORTED, UNINITIALIZED, UNKNOWN, about,
    },
    capabilities,
    handle::{Handle, Kind},
    mig::{Profile, Table},
    own_file,
    state::{Card, ComputeInstance, GpuInstance, State},
    state_file::StateFile,
    stated,
    uuid::mig_uuid,
};

/// How often init was called more than shutdown.
static USERS: AtomicUsize = AtomicUsize::new(0);

/// The machine.
pub(crate) struct Machine {
    pub(crate) state: State,
    pub(crate) board: Board,
    file: StateFile,
}

/// What a call is about: a GPU, or a MIG device of it.
pub(crate) struct Target {
    /// Place of the GPU on the board.
    pub(crate) position: usize,
    /// UUID of the GPU.
    pub(crate) gpu: String,
    /// The MIG device, if it is one.
    pub(crate) slice: Option<Slice>,
}

/// Ids of a MIG device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) gpu_instance: u32,
    pub(crate) compute_instance: u32,
}

/// A process on a GPU, and where on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Running {
    pub(crate) pid: u32,
    pub(crate) used_bytes: u64,
    pub(crate) slice: Option<Slice>,
}

/// A list of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Context {
    Compute,
    Graphics,
    Mps,
}

/// The library is used once more.
pub(crate) fn begin() -> Result<(), Code> {
    let machine = Machine::load().map_err(|_| DRIVER_NOT_LOADED)?;
    machine.has_module()?;
    if machine.state.proc_directory.is_some() {
        // As the module does when it is loaded.
        let shown = machine.file.change_then(|_| (), capabilities::show);
        shown.map_err(|_| UNKNOWN)?;
    }
    USERS.fetch_add(1, Ordering::SeqCst);
    Ok(())
}

/// The library is used once less.
pub(crate) fn end() -> Result<(), Code> {
    let less = |users: usize| users.checked_sub(1);
    let before = USERS.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    before.map(drop).map_err(|_| UNINITIALIZED)
}

impl Machine {
    /// The machine, if the library may be used.
    pub(crate) fn now() -> Result<Self, Code> {
        if USERS.load(Ordering::SeqCst) == 0 {
            return Err(UNINITIALIZED);
        }
        let machine = Self::load().map_err(|_| UNKNOWN)?;
        machine.has_module()?;
        thread::sleep(Duration::from_millis(machine.state.delay_milliseconds));
        Ok(machine)
    }

    /// Changes the machine. Nobody else does in between, and what fails changes nothing. Whatever may hang or fail because the file
    /// says so has been asked before: here the file is locked.
    pub(crate) fn change<T>(
        &self,
        change: impl FnOnce(&mut Self) -> Result<T, Code>,
    ) -> Result<T, Code> {
        let in_file = |state: &mut State| {
            let mut machine = Self::of(self.file.clone(), state.clone()).map_err(|_| UNKNOWN)?;
            let answer = change(&mut machine)?;
            *state = machine.state;
            Ok(answer)
        };
        let changed = self.file.change_then(in_file, capabilities::show);
        changed.map_err(|_| UNKNOWN)?
    }

    fn load() -> io::Result<Self> {
        let file = StateFile::of_library()?;
        let state = file.read()?;
        Self::of(file, state)
    }

    fn of(file: StateFile, state: State) -> io::Result<Self> {
        let unknown = || io::Error::other(format!("there is no board {:?}", state.board));
        let board = Board::named(&state.board).ok_or_else(unknown)?;
        Ok(Self { state, board, file })
    }

    /// Whether the kernel has a module that this library is for.
    fn has_module(&self) -> Result<(), Code> {
        let loaded = &self.state.module_version;
        if self.state.unloaded {
            Err(DRIVER_NOT_LOADED)
        } else if loaded.is_empty() || loaded == self.driver_version() {
            Ok(())
        } else {
            Err(LIB_RM_VERSION_MISMATCH)
        }
    }

    /// The library's, which is the module's where it works at all.
    pub(crate) fn driver_version(&self) -> &str {
        own_file::version().unwrap_or(&self.board.driver_version)
    }

    /// What a handle of a GPU or a MIG device is of. The call is about it from now on.
    pub(crate) fn target(&self, device: nvmlDevice_t) -> Result<Target, Code> {
        let handle = Handle::of(device, &[Kind::Gpu, Kind::MigDevice])?;
        let gpu = self.present(handle.position)?;
        let slice = (handle.kind == Kind::MigDevice).then_some(Slice {
            gpu_instance: handle.gpu_instance,
            compute_instance: handle.compute_instance,
        });
        let target = Target {
            position: handle.position,
            gpu,
            slice,
        };
        if let Some(slice) = slice {
            self.slice(&target.gpu, slice).ok_or(INVALID_ARGUMENT)?;
        }
        Ok(target)
    }

    /// The same for what only whole GPUs answer.
    pub(crate) fn whole(&self, device: nvmlDevice_t) -> Result<Target, Code> {
        let target = self.target(device)?;
        match target.slice {
            None => Ok(target),
            Some(_) => Err(INVALID_ARGUMENT),
        }
    }

    /// What a handle of a GPU instance is of.
    pub(crate) fn gpu_instance(
        &self,
        instance: nvmlGpuInstance_t,
    ) -> Result<(Handle, String), Code> {
        let handle = Handle::of(instance, &[Kind::GpuInstance])?;
        let gpu = self.present(handle.position)?;
        let card = self.card(&gpu).ok_or(INVALID_ARGUMENT)?;
        find(card, handle.gpu_instance).ok_or(INVALID_ARGUMENT)?;
        Ok((handle, gpu))
    }

    /// What a handle of a compute instance is of.
    pub(crate) fn compute_instance(
        &self,
        instance: nvmlComputeInstance_t,
    ) -> Result<(Handle, String), Code> {
        let handle = Handle::of(instance, &[Kind::ComputeInstance])?;
        let gpu = self.present(handle.position)?;
        let slice = Slice {
            gpu_instance: handle.gpu_instance,
            compute_instance: handle.compute_instance,
        };
        self.slice(&gpu, slice).ok_or(INVALID_ARGUMENT)?;
        Ok((handle, gpu))
    }

    /// UUID of the GPU at a place, if it answers. The call is about it from now on.
    pub(crate) fn present(&self, position: usize) -> Result<String, Code> {
        self.at(position)?;
        let uuid = self.state.uuid(&self.board, position);
        about(&uuid)?;
        if self.state.lost.contains(&uuid) {
            return Err(GPU_IS_LOST);
        }
        Ok(uuid)
    }

    /// The GPU at a place of the board.
    pub(crate) fn at(&self, position: usize) -> Result<&Gpu, Code> {
        self.board.gpus.get(position).ok_or(INVALID_ARGUMENT)
    }

    /// What the card remembers, if it ever had anything to remember.
    pub(crate) fn card(&self, gpu: &str) -> Option<&Card> {
        self.state.cards.get(gpu)
    }

    /// The card in MIG mode, and what it can be cut into.
    pub(crate) fn in_mig_mode(&self, gpu: &str) -> Result<(&'static Table, &Card), Code> {
        let table = self.board.mig_table().ok_or(NOT_SUPPORTED)?;
        let card = self.card(gpu).filter(|card| card.mig_current);
        Ok((table, card.ok_or(NOT_SUPPORTED)?))
    }

    /// What a MIG device consists of.
    pub(crate) fn slice(
        &self,
        gpu: &str,
        slice: Slice,
    ) -> Option<(&'static Profile, &GpuInstance, &ComputeInstance)> {
        let instance = find(self.card(gpu)?, slice.gpu_instance)?;
        let profile = self.board.mig_table()?.profile(instance.profile)?;
        let mut parts = instance.compute_instances.iter();
        let part = parts.find(|part| part.id == slice.compute_instance)?;
        Some((profile, instance, part))
    }

    /// The MIG devices of a GPU with their UUIDs, in the order of NVML's indices: by GPU instance, then by compute instance.
    pub(crate) fn slices(&self, gpu: &str) -> Vec<(Slice, String)> {
        let instances = self
            .card(gpu)
            .into_iter()
            .flat_map(|card| &card.gpu_instances);
        let parts = instances.flat_map(|instance| {
            instance
                .compute_instances
                .iter()
                .map(move |part| (instance.id, part))
        });
        parts
            .map(|(gpu_instance, part)| {
                let slice = Slice {
                    gpu_instance,
                    compute_instance: part.id,
                };
                (slice, mig_uuid(gpu, gpu_instance, part.placement.start))
            })
            .collect()
    }

    /// The processes on a GPU with such a context.
    pub(crate) fn running(&self, position: usize, gpu: &str, context: Context) -> Vec<Running> {
        let listed = match context {
            Context::Compute => &self.state.processes,
            Context::Graphics => &self.state.graphics_processes,
            Context::Mps => &self.state.mps_processes,
        };
        let slices = self.slices(gpu);
        let mut running: Vec<Running> = listed
            .iter()
            .filter_map(|process| {
                let on_slice = slices.iter().find(|(_, uuid)| *uuid == process.gpu);
                let slice = on_slice.map(|(slice, _)| *slice);
                (slice.is_some() || process.gpu == gpu).then_some(Running {
                    pid: process.pid,
                    used_bytes: process.used_bytes,
                    slice,
                })
            })
            .collect();
        if context == Context::Compute {
            running.extend(self.stated(position, gpu, &slices));
        }
        running
    }

    /// Whether a process with any context is on a GPU, or on a part of it.
    pub(crate) fn is_used(
        &self,
        position: usize,
        gpu: &str,
        is_part: impl Fn(Option<Slice>) -> bool,
    ) -> bool {
        [Context::Compute, Context::Graphics, Context::Mps]
            .into_iter()
            .flat_map(|context| self.running(position, gpu, context))
            .any(|process| is_part(process.slice))
    }

    /// The processes that have the device node of a GPU, and in MIG mode those of a GPU instance and a compute instance in it: without
    /// them they have no context.
    fn stated(&self, position: usize, gpu: &str, slices: &[(Slice, String)]) -> Vec<Running> {
        let minor = self.state.minor(&self.board, position);
        let is_mig = self.card(gpu).is_some_and(|card| card.mig_current);
        let mut running = Vec::new();
        for (stated, pids) in stated::all(&self.file.stated_directory()) {
            if !stated.gpus().contains(&minor) {
                continue;
            }
            let capabilities = stated.capabilities();
            let has = |slice: &Slice| {
                let of = |part| crate::mig::capability_minor(minor, slice.gpu_instance, part);
                capabilities.contains(&of(None))
                    && capabilities.contains(&of(Some(slice.compute_instance)))
            };
            let places: Vec<Option<Slice>> = if is_mig {
                let mine = slices.iter().filter(|(slice, _)| has(slice));
                mine.map(|(slice, _)| Some(*slice)).collect()
            } else {
                vec![None]
            };
            for slice in places {
                running.extend(pids.iter().map(|pid| Running {
                    pid: *pid,
                    used_bytes: 0,
                    slice,
                }));
            }
        }
        running
    }
}

/// The GPU instance with this id.
pub(crate) fn find(card: &Card, id: u32) -> Option<&GpuInstance> {
    card.gpu_instances.iter().find(|instance| instance.id == id)
}
