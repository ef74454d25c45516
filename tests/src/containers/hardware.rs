//! GPUs of a machine, and NVIDIA's driver on it, as far as neither is there.
//!
//! Everything lies where a real driver has it: libraries under their real names and sonames, programs, the kernel's lists. What
//! stands for hardware is NVML, which answers from a state file; the kernel's lists, which are files; and `libcuda.so.1`,
//! which finds GPUs by opening device nodes, as the real one does, and takes it for a GPU that it may open one.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use nvidia_ml_mock::{Process, State, StateFile};
use serde_json::{Value, json};

use super::machine::Machine;
use crate::gpu_board::Board;

/// Where the real machine would have the driver's libraries.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// Where the stand-ins for the kernel lie on a machine.
const DIRECTORY: &str = "/opt/hardware";
/// Character devices with numbers from here to 511 are given out as they are asked for.
const DYNAMIC_MAJORS: std::ops::RangeInclusive<u32> = 384..=511;
/// Libraries of which nothing but the name counts here, and their sonames; `VERSION` stands for the driver's.
const FURTHER: [(&str, &str); 3] = [
    (
        "libnvidia-ptxjitcompiler.so",
        "libnvidia-ptxjitcompiler.so.1",
    ),
    ("libnvidia-nvvm.so", "libnvidia-nvvm.so.4"),
    ("libnvidia-gpucomp.so", "libnvidia-gpucomp.so.VERSION"),
];

/// What a driver consists of, compiled once.
#[derive(Clone, Debug)]
pub struct Driver {
    files: PathBuf,
    version: String,
}

impl Driver {
    /// That which was compiled into `directory`.
    pub fn built(directory: &Path) -> Result<Self> {
        let board = nvidia_ml_mock::Board::named("h100-nvswitch-8");
        Ok(Self {
            files: directory.to_owned(),
            version: board.context("the board is known")?.driver_version,
        })
    }

    /// Compiles it into `directory`; `nvml` is the mock library.
    pub fn build(directory: &Path, nvml: &Path) -> Result<Self> {
        let driver = Self::built(directory)?;
        let libraries = directory.join(LIBRARIES);
        fs::create_dir_all(&libraries)?;
        fs::create_dir_all(directory.join("usr/bin"))?;
        driver.compile_library("libcuda.so", "libcuda.so.1", Some("libcuda.c"))?;
        for (stem, soname) in FURTHER {
            let soname = soname.replace("VERSION", &driver.version);
            driver.compile_library(stem, &soname, None)?;
        }
        let nvml_file = format!("libnvidia-ml.so.{}", driver.version);
        fs::copy(nvml, libraries.join(&nvml_file))?;
        symlink(&nvml_file, libraries.join("libnvidia-ml.so.1"))?;
        let smi = directory.join("usr/bin/nvidia-smi");
        compile(&[], &source("nvidia-smi.c"), &smi)?;
        Ok(driver)
    }

    /// Lays it, the kernel's lists and the state of the GPUs over a machine's root.
    pub fn install(&self, over: &Path, machine: &str, board: &Board) -> Result<()> {
        let copied = Command::new("cp")
            .arg("--archive")
            .arg(self.files.join("."))
            .arg(over)
            .status()?;
        ensure!(copied.success(), "cp: {copied}");
        let directory = over.join(DIRECTORY.trim_start_matches('/'));
        fs::create_dir_all(directory.join("proc/driver/nvidia"))?;
        let version = format!(
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Sun Jul 27 07:17:54 UTC 2025\n",
            self.version
        );
        fs::write(directory.join("proc/driver/nvidia/version"), version)?;
        let [unified_memory, capabilities] = free_majors()?;
        let devices = format!(
            "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n{capabilities} nvidia-caps\n{unified_memory} nvidia-uvm\n\nBlock devices:\n"
        );
        fs::write(directory.join("proc/devices"), devices)?;
        let state = State {
            proc_directory: Some(format!("{DIRECTORY}/proc").into()),
            ..board.state(machine)
        };
        let file = StateFile::at(directory.join("board.json"));
        file.write(&state)?;
        Ok(())
    }

    fn compile_library(&self, stem: &str, soname: &str, from: Option<&str>) -> Result<()> {
        let libraries = self.files.join(LIBRARIES);
        let file = format!("{stem}.{}", self.version);
        let source = match from {
            Some(name) => source(name),
            None => PathBuf::from("/dev/null"),
        };
        let name = format!("-Wl,-soname,{soname}");
        let flags = ["-shared", "-fPIC", &name, "-x", "c"];
        compile(&flags, &source, &libraries.join(&file))?;
        if soname != file {
            symlink(&file, libraries.join(soname))?;
        }
        Ok(())
    }
}

/// The program that looks for GPUs as CUDA programs do.
pub fn build_cuda_devices(to: &Path) -> Result<()> {
    compile(&[], &source("cuda-devices.c"), to)
}

/// What the chart is told besides what an operator says: where the stand-ins for hardware are. They can be written to, since
/// hardware changes by what NVML is asked for.
pub fn values() -> Value {
    json!({
        "extraEnv": [
            {"name": nvidia_ml_mock::STATE_VARIABLE, "value": format!("{DIRECTORY}/board.json")},
            {"name": "MUSTER_PROC_DIR", "value": format!("{DIRECTORY}/proc")},
        ],
        "extraVolumes": [{"name": "hardware", "hostPath": {"path": DIRECTORY, "type": "Directory"}}],
        "extraVolumeMounts": [{"name": "hardware", "mountPath": DIRECTORY}],
    })
}

/// Has a process of the machine use the GPU of this UUID, as far as NVML says so. `process` is its id as the machine counts; what
/// stands for the kernel's lists leads to what the kernel itself says of it.
pub fn begin_use(machine: &Machine, gpu: &str, process: u32) -> Result<()> {
    let link = process_link(machine, process)?;
    symlink(format!("/proc/{process}"), &link).with_context(|| link.display().to_string())?;
    change_state(machine, |state| {
        state.processes.push(Process {
            gpu: gpu.to_owned(),
            pid: process,
            used_bytes: 1 << 30,
        });
    })
}

/// Ends what [`begin_use`] began: NVML lists no process that has ended.
pub fn end_use(machine: &Machine, process: u32) -> Result<()> {
    change_state(machine, |state| {
        state.processes.retain(|listed| listed.pid != process);
    })?;
    let link = process_link(machine, process)?;
    fs::remove_file(&link).with_context(|| link.display().to_string())
}

fn process_link(machine: &Machine, process: u32) -> Result<PathBuf> {
    machine.path(&format!("{DIRECTORY}/proc/{process}"))
}

/// What the GPUs of a machine are, and what their cards remember.
pub fn state(machine: &Machine) -> Result<State> {
    Ok(state_file(machine)?.read()?)
}

/// Changes that: what happens to hardware, or what an administrator does with it.
pub fn change_state(machine: &Machine, change: impl FnOnce(&mut State)) -> Result<()> {
    Ok(state_file(machine)?.change(change)?)
}

fn state_file(machine: &Machine) -> Result<StateFile> {
    let file = machine.path(&format!("{DIRECTORY}/board.json"))?;
    Ok(StateFile::at(file))
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("containers/gpu")
        .join(name)
}

fn compile(flags: &[&str], source: &Path, to: &Path) -> Result<()> {
    let output = Command::new("cc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(to)
        .args(flags)
        .arg(source)
        .output()
        .context("starting cc")?;
    ensure!(
        output.status.success(),
        "cc does not compile {}: {}",
        source.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// Numbers that no device of the real machine has: opening a node with one must reach nothing.
fn free_majors() -> Result<[u32; 2]> {
    let listed = fs::read_to_string("/proc/devices")?;
    let words = listed
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    let taken: BTreeSet<u32> = words.filter_map(|word| word.parse().ok()).collect();
    let mut free = DYNAMIC_MAJORS.filter(|major| !taken.contains(major));
    let two = free.next().zip(free.next());
    let (one, other) = two.context("every number of character devices is taken")?;
    Ok([one, other])
}
