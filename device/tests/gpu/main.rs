//! A machine with a real GPU: what the driver makes of it, what the card says of itself, and what the mock says of such a card.
//!
//! Nothing is changed on the machine: a program holds a CUDA context for some seconds, and one has a kernel that writes where it may not, of
//! which an XID stays in the kernel's log. Where there is no GPU nothing is tested, and that is said; also where `CI=true`, for no CI machine has
//! one.
//!
//! The program travels: it is one file that needs the C library, NVIDIA's driver, and nothing of cargo or of the checkout.
//!
//! ```sh
//! cargo test --package muster-device --test gpu --no-run    # says where it is: target/debug/deps/gpu-…
//! MUSTER_GPU_RECORD=recorded ./gpu-…                        # on the machine
//! ```
//!
//! `MUSTER_GPU_RECORD` names a directory for what the cards said (`nvidia_ml_mock::Recording`), which the mock is tested with
//! (`tests/nvml-mock/recorded`).

mod checks;
mod cuda;
mod fault;
mod look;
mod program;
mod uses;

use std::{
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use muster_device::{Backend, BackendConfig, LibrarySource};
use nvidia_ml_mock::Recording;

use crate::{
    checks::{CHECKS, Machine},
    look::Library,
    uses::Missing,
};

/// What the loader finds.
const NVML: &str = "libnvidia-ml.so.1";
/// What there is where the kernel has NVIDIA's module.
const MODULE: [&str; 2] = ["/dev/nvidiactl", "/proc/driver/nvidia/version"];
/// Names the directory of what was recorded.
const RECORD: &str = "MUSTER_GPU_RECORD";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let Some(ended) = arguments.iter().find_map(|argument| cuda::run(argument)) {
        return ended;
    }
    if arguments.iter().any(|argument| argument == "--list") {
        for (name, _) in CHECKS {
            eprintln!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    if !MODULE.iter().any(|file| Path::new(file).exists()) {
        return skip(&format!("there is neither {}", MODULE.join(" nor ")));
    }
    match machine() {
        Ok(machine) if machine.recording.gpus.is_empty() => skip("NVML counts no GPU"),
        Ok(mut machine) => run(&mut machine),
        Err(cause) => {
            eprintln!("gpu: FAILED: {cause}");
            ExitCode::FAILURE
        }
    }
}

/// Loudly: who looks for the result must not take this for one.
fn skip(reason: &str) -> ExitCode {
    eprintln!("\n*** gpu: SKIPPED, nothing was tested: {reason}\n");
    ExitCode::SUCCESS
}

fn machine() -> Result<Machine, String> {
    let library = Library::open(OsStr::new(NVML))?;
    let recording = library.record()?;
    let backend = Backend::new(BackendConfig::new(LibrarySource::File(NVML.into())));
    let listed = backend.gpus().map_err(|error| error.to_string())?;
    Ok(Machine {
        recording,
        listed,
        backend,
    })
}

fn run(machine: &mut Machine) -> ExitCode {
    let (mut passed, mut skipped, mut failed) = (0, 0, 0);
    for (name, check) in CHECKS {
        match check(machine) {
            Ok(seen) => {
                passed += 1;
                eprintln!("test gpu::{name} ... ok ({seen})");
            }
            Err(Missing::Nothing(reason)) => {
                skipped += 1;
                eprintln!("*** test gpu::{name} ... SKIPPED: {reason}");
            }
            Err(Missing::Failed(cause)) => {
                failed += 1;
                eprintln!("test gpu::{name} ... FAILED\n    {cause}");
            }
        }
    }
    if let Some(directory) = env::var_os(RECORD) {
        match record(&machine.recording, Path::new(&directory)) {
            Ok(file) => eprintln!("gpu: recorded in {}", file.display()),
            Err(cause) => {
                failed += 1;
                eprintln!("gpu: it cannot be recorded: {cause}");
            }
        }
    }
    eprintln!("gpu: {passed} passed, {skipped} skipped, {failed} failed");
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// A file for each product and driver.
fn record(recording: &Recording, directory: &Path) -> Result<PathBuf, String> {
    let product = recording.gpus.first().map(|gpu| gpu.product_name.as_str());
    let product = product.unwrap_or_default().to_lowercase();
    let letters = product.chars();
    let name: String = letters
        .map(|letter| {
            if letter.is_ascii_alphanumeric() {
                letter
            } else {
                '-'
            }
        })
        .collect();
    let file = directory.join(format!("{name}-{}.json", recording.driver_version));
    let text = serde_json::to_string_pretty(recording).map_err(|error| error.to_string())?;
    let written = fs::create_dir_all(directory).and_then(|()| fs::write(&file, text + "\n"));
    written.map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(file)
}
