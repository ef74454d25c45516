//! A kernel driver that a container has installed, as GPU Operator does: all of it lies below a directory of its own, and nothing
//! where a distribution would have it. One release has one such directory, so all machines with GPUs are like that here.

use std::time::Duration;

use anyhow::{Result, ensure};
use muster_tests::containers::{Lab, operator};

use crate::{GPU_MACHINES, given};

/// Where GPU Operator's driver container shows what it has.
const ROOT: &str = "/run/nvidia/driver";
/// Where a library of the driver is in either root.
const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";
/// Longest time in which files are moved.
const LIMIT: Duration = Duration::from_secs(30);

/// From the first root to the second, which exist.
const MOVE: &str = r#"
mkdir -p "$1$3" "$1/usr/bin" "$2$3" "$2/usr/bin"
mv "$1$3"/libcuda.so* "$1$3"/libnvidia-* "$2$3/"
mv "$1/usr/bin/nvidia-smi" "$2/usr/bin/"
"#;

pub(crate) async fn a_driver_that_a_container_installed_is_given_from_its_own_root(
    lab: &mut Lab,
) -> Result<()> {
    move_driver(lab, "", ROOT).await?;
    let result = gives_from_root(lab).await;
    // Whatever came of it, the others need what was there before.
    move_driver(lab, ROOT, "").await?;
    operator::upgrade(lab, "").await?;
    result
}

async fn gives_from_root(lab: &Lab) -> Result<()> {
    // NVML is found there, too.
    operator::upgrade(lab, &format!("--set driver.driverRoot={ROOT}")).await?;
    for machine in GPU_MACHINES {
        let library = format!("{LIBRARIES}/libcuda.so.1");
        let is_there = lab.machine(machine)?.path(&library)?.exists();
        ensure!(!is_there, "{machine} has {library} in its own root, too");
        // A container that names the claim finds the library and its GPUs; one that does not finds neither.
        given::given_on(lab, machine).await?;
    }
    Ok(())
}

async fn move_driver(lab: &Lab, from: &str, to: &str) -> Result<()> {
    for machine in GPU_MACHINES {
        let words = ["bash", "-euc", MOVE, "move", from, to, LIBRARIES];
        lab.machine(machine)?.run(&words, LIMIT).await?;
    }
    Ok(())
}
