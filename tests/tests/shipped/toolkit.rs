//! NVIDIA's container toolkit, where the operator has it and wants its hooks instead of ours: the program itself, of which only
//! the calls are told.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use anyhow::{Context, Result, ensure};
use muster_tests::containers::{Lab, machine::Machine, operator};

use crate::{GPU_MACHINES, given};

/// Where the toolkit's packages have it.
const HOOK: &str = "/usr/bin/nvidia-cdi-hook";
/// Where the program lies here; under its own name lies what tells of each call first.
const PROGRAM: &str = "/usr/libexec/nvidia-cdi-hook";
/// What was told. While hooks run they see the machine's files.
const CALLS: &str = "/run/nvidia-cdi-hook.calls";

pub(crate) async fn containers_are_finished_by_its_hooks_where_the_operator_asks_for_them(
    lab: &mut Lab,
) -> Result<()> {
    let program = lab.prepared.toolkit_hook.clone();
    let program = program
        .context("the toolkit was not built: --all does it, and so does a filter with `toolkit`")?;
    for machine in GPU_MACHINES {
        install(lab.machine(machine)?, &program)?;
    }
    let result = finishes(lab).await;
    // Whatever came of it, the others need what was there before.
    operator::upgrade(lab, "").await?;
    result
}

async fn finishes(lab: &Lab) -> Result<()> {
    operator::upgrade(lab, &format!("--set driver.toolkitHook={HOOK}")).await?;
    for machine in GPU_MACHINES {
        given::given_on(lab, machine).await?;
        let calls = fs::read_to_string(lab.machine(machine)?.path(CALLS)?)
            .with_context(|| format!("nothing called {HOOK} on {machine}"))?;
        for call in [
            "create-symlinks --link libcuda.so.",
            "update-ldcache --folder /usr/lib/x86_64-linux-gnu",
        ] {
            ensure!(calls.contains(call), "{machine}: no {call} in {calls}");
        }
    }
    Ok(())
}

fn install(machine: &Machine, program: &Path) -> Result<()> {
    let script = format!("#!/bin/sh\necho \"$@\" >>{CALLS}\nexec {PROGRAM} \"$@\"\n");
    put(&machine.path(PROGRAM)?, &fs::read(program)?)?;
    put(&machine.path(HOOK)?, script.as_bytes())
}

fn put(file: &Path, content: &[u8]) -> Result<()> {
    let directory = file.parent().context("a file lies in a directory")?;
    fs::create_dir_all(directory)?;
    fs::write(file, content).with_context(|| file.display().to_string())?;
    fs::set_permissions(file, fs::Permissions::from_mode(0o755))?;
    Ok(())
}
