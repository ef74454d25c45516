//! Lists of processes in each version, and what the runtime states.

use std::{
    ffi::{CString, c_char, c_int, c_void},
    fs,
    os::unix::process::CommandExt,
    process::{Child, Command},
};

use nvidia_ml_mock::{Process, Stated, mig::capability_minor};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlProcessInfo_t, nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t,
};

use crate::card::{INSUFFICIENT_SIZE, Machine, NOT_SUPPORTED, UNKNOWN, at};

const NO_SLICE: u32 = u32::MAX;

unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// A function that lists processes: GPU, number of entries, entries.
type List<Entry> = extern "C" fn(nvmlDevice_t, *mut u32, *mut Entry) -> u32;

/// `RTLD_NOW`.
const NOW: c_int = 2;

/// Compute processes by the third version: process id, GPU instance, compute instance.
fn list(machine: &Machine, device: nvmlDevice_t) -> Result<Vec<(u32, u32, u32)>, u32> {
    let mut number = 16;
    let mut infos = [nvmlProcessInfo_t {
        pid: 0,
        usedGpuMemory: 0,
        gpuInstanceId: 0,
        computeInstanceId: 0,
    }; 16];
    call!(
        machine,
        nvmlDeviceGetComputeRunningProcesses_v3(device, &raw mut number, infos.as_mut_ptr())
    )?;
    let listed = infos.iter().take(usize::try_from(number).unwrap());
    Ok(listed
        .map(|info| (info.pid, info.gpuInstanceId, info.computeInstanceId))
        .collect())
}

/// Entries of a list whose function the bindings lack.
fn by_name<Entry: Copy>(
    machine: &Machine,
    name: &str,
    device: nvmlDevice_t,
    empty: Entry,
) -> Vec<Entry> {
    let file = CString::new(machine.library.to_str().unwrap()).unwrap();
    let name = CString::new(name).unwrap();
    // SAFETY: the library is loaded already, so that this only finds it again; both texts live as long as the calls.
    let function = unsafe { dlsym(dlopen(file.as_ptr(), NOW), name.as_ptr()) };
    assert!(!function.is_null(), "{name:?}");
    // SAFETY: all functions that list processes have this signature, each with the entry of its version.
    let function = unsafe { std::mem::transmute::<*mut c_void, List<Entry>>(function) };
    let mut entries = [empty; 4];
    let mut number = 4;
    assert_eq!(function(device, &raw mut number, entries.as_mut_ptr()), 0);
    entries
        .into_iter()
        .take(usize::try_from(number).unwrap())
        .collect()
}

/// A GPU in MIG mode with two slices; UUIDs of those.
fn cut(machine: &Machine, device: nvmlDevice_t) -> Vec<(nvmlDevice_t, String)> {
    machine.enable(device);
    [at(0, 1), at(3, 1)]
        .into_iter()
        .map(|place| {
            let instance = machine.create(device, 19, place).unwrap();
            let compute = machine.create_compute(instance, 0).unwrap();
            let mig = machine.mig_device(compute);
            (mig, machine.uuid(mig))
        })
        .collect()
}

#[test]
fn processes_are_listed_where_they_are() {
    let machine = Machine::new("h100-nvswitch-8");
    let (device, other) = (machine.gpu(0), machine.gpu(1));
    let slices = cut(&machine, device);
    let (second, whole) = (slices[1].1.clone(), machine.uuid(other));
    machine.change(|state| {
        let process = |gpu: &str, pid| Process {
            gpu: gpu.to_owned(),
            pid,
            used_bytes: 1 << 20,
        };
        state.processes = vec![process(&second, 10), process(&whole, 11)];
    });
    assert_eq!(list(&machine, device), Ok(vec![(10, 10, 0)]));
    assert_eq!(list(&machine, slices[0].0), Ok(vec![]));
    assert_eq!(list(&machine, slices[1].0), Ok(vec![(10, 10, 0)]));
    assert_eq!(list(&machine, other), Ok(vec![(11, NO_SLICE, NO_SLICE)]));

    // With too little room the size is told, and nothing else.
    let mut number = 0;
    assert_eq!(
        call!(
            machine,
            nvmlDeviceGetComputeRunningProcesses_v3(device, &raw mut number, std::ptr::null_mut())
        ),
        Err(INSUFFICIENT_SIZE)
    );
    assert_eq!(number, 1);

    let (silent, without) = (machine.uuid(device), whole);
    machine.change(|state| {
        state.secretive = vec![silent.clone()];
        state.without_lists = vec![without.clone()];
    });
    assert_eq!(list(&machine, device), Err(UNKNOWN));
    assert_eq!(list(&machine, other), Err(NOT_SUPPORTED));
}

#[test]
fn each_version_has_entries_of_its_own() {
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Early535 {
        pid: u32,
        used_bytes: u64,
        gpu_instance: u32,
        compute_instance: u32,
        protected_bytes: u64,
    }
    let machine = Machine::new("h100-nvswitch-8");
    let device = machine.gpu(0);
    let slices = cut(&machine, device);
    let process = |pid: u32, used_bytes: u64| Process {
        gpu: slices[0].1.clone(),
        pid,
        used_bytes,
    };
    let all = vec![process(7, 1 << 20), process(8, 1 << 21)];
    machine.change(|state| {
        state.processes = all.clone();
        state.graphics_processes = all.clone();
        state.mps_processes = all.clone();
    });
    for list in ["Compute", "Graphics", "MPSCompute"] {
        let name = |version: &str| format!("nvmlDeviceGet{list}RunningProcesses{version}");
        let empty = nvmlProcessInfo_v1_t {
            pid: 0,
            usedGpuMemory: 0,
        };
        let told = by_name(&machine, &name(""), device, empty);
        let told: Vec<_> = told
            .iter()
            .map(|info| (info.pid, info.usedGpuMemory))
            .collect();
        assert_eq!(told, [(7, 1 << 20), (8, 1 << 21)]);

        let empty = nvmlProcessInfo_v2_t {
            pid: 0,
            usedGpuMemory: 0,
            gpuInstanceId: 0,
            computeInstanceId: 0,
        };
        for version in ["_v2", "_v3"] {
            let told = by_name(&machine, &name(version), device, empty);
            let told: Vec<_> = told
                .iter()
                .map(|info| {
                    (
                        info.pid,
                        info.usedGpuMemory,
                        info.gpuInstanceId,
                        info.computeInstanceId,
                    )
                })
                .collect();
            assert_eq!(told, [(7, 1 << 20, 7, 0), (8, 1 << 21, 7, 0)]);
        }

        machine.change(|state| state.has_early_535_lists = true);
        let empty = Early535 {
            pid: 0,
            used_bytes: 0,
            gpu_instance: 0,
            compute_instance: 0,
            protected_bytes: 1,
        };
        let told = by_name(&machine, &name("_v3"), device, empty);
        let told: Vec<_> = told
            .iter()
            .map(|info| {
                (
                    info.pid,
                    info.used_bytes,
                    info.gpu_instance,
                    info.compute_instance,
                    info.protected_bytes,
                )
            })
            .collect();
        assert_eq!(told, [(7, 1 << 20, 7, 0, 0), (8, 1 << 21, 7, 0, 0)]);
        machine.change(|state| state.has_early_535_lists = false);
    }
}

/// A process that ends with the test.
struct Container(Child);

impl Container {
    fn start() -> Self {
        let mut command = Command::new("sleep");
        Self(command.arg("600").process_group(0).spawn().unwrap())
    }

    fn state(&self, machine: &Machine, nodes: &[String]) {
        let directory = machine.file.stated_directory();
        fs::create_dir_all(&directory).unwrap();
        let stated = Stated {
            group: self.0.id(),
            device_nodes: nodes.to_vec(),
        };
        let file = directory.join(format!("{}.json", self.0.id()));
        fs::write(file, serde_json::to_vec(&stated).unwrap()).unwrap();
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_the_runtime_states_goes_by_device_nodes_and_ends_with_the_process() {
    let machine = Machine::new("h100-nvswitch-8");
    let (cut_gpu, whole) = (machine.gpu(0), machine.gpu(3));
    let slices = cut(&machine, cut_gpu);
    let whole_uuid = machine.uuid(whole);
    machine.change(|state| state.card(&whole_uuid).minor = Some(12));
    let capability = |part| {
        format!(
            "/dev/nvidia-caps/nvidia-cap{}",
            capability_minor(0, 10, part)
        )
    };
    let node = |minor: u32| format!("/dev/nvidia{minor}");

    let (on_slice, on_whole, without) =
        (Container::start(), Container::start(), Container::start());
    on_slice.state(&machine, &[node(0), capability(None), capability(Some(0))]);
    on_whole.state(&machine, &[node(12), "/dev/nvidiactl".to_owned()]);
    // Without the capabilities of a slice there is no context on a GPU that is cut.
    without.state(&machine, &[node(0)]);
    assert_eq!(list(&machine, cut_gpu), Ok(vec![(on_slice.0.id(), 10, 0)]));
    assert_eq!(list(&machine, slices[0].0), Ok(vec![]));
    assert_eq!(
        list(&machine, whole),
        Ok(vec![(on_whole.0.id(), NO_SLICE, NO_SLICE)])
    );
    // What is used so is in use.
    assert_eq!(machine.set_mode(whole, 1), Ok(crate::card::IN_USE));

    drop((on_slice, on_whole));
    assert_eq!(list(&machine, cut_gpu), Ok(vec![]));
    assert_eq!(list(&machine, whole), Ok(vec![]));
}
