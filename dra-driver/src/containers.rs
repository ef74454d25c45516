//! What containers are to get, as the program's flags say, and what that needs on the node.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context;
use muster_api::keys;
use muster_device::cdi::{Directory, Driver, DriverRoot, Hooks, NvidiaModprobe};

use crate::{hook_program::HookProgram, store::Store};

/// What containers are to get.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the container runtime looks for CDI files.
    pub cdi_directory: PathBuf,
    /// The host's `/proc`.
    pub proc: PathBuf,
    /// The driver; without it containers get device nodes only.
    pub driver: Option<DriverSettings>,
}

/// The driver that containers are to get.
#[derive(Clone, Debug)]
pub struct DriverSettings {
    /// Where it is installed.
    pub root: DriverRoot,
    /// The toolkit's hook on the host, if ours is not to be used.
    pub toolkit_hook: Option<PathBuf>,
    /// Where ours is installed.
    pub hook_directory: PathBuf,
    /// Ours.
    pub hook_program: PathBuf,
}

/// Opens the store of a node whose containers get this, and brings to the node what they need. What is missing there at
/// this time holds up claims and not the program, which must give back what is prepared.
pub fn store(settings: &Settings, state_directory: &Path) -> anyhow::Result<Store> {
    let cdi = Directory::new(&settings.cdi_directory, keys::DRIVER, &settings.proc);
    let Some(wanted) = &settings.driver else {
        return Store::open(state_directory, cdi).context("--state-dir");
    };
    let own = match wanted.toolkit_hook {
        Some(_) => None,
        None => Some(
            HookProgram::new(&wanted.hook_program, &wanted.hook_directory)
                .with_context(|| format!("--hook-program {}", wanted.hook_program.display()))?,
        ),
    };
    let hooks = match (&wanted.toolkit_hook, &own) {
        (Some(toolkit), _) => Hooks::Toolkit(toolkit.clone()),
        (None, Some(own)) => Hooks::Own(own.path().to_owned()),
        (None, None) => anyhow::bail!("no hook is configured"),
    };
    let driver = Driver {
        modules: Arc::new(NvidiaModprobe::new(&wanted.root.path)),
        root: wanted.root.clone(),
        hooks,
    };
    match driver.look(&settings.proc) {
        Ok((version, missing)) => {
            tracing::info!(version, ?missing, "the driver that containers get");
        }
        Err(error) => tracing::error!(%error, "no claim is prepared before this is mended"),
    }
    let store = Store::open(state_directory, cdi.with_driver(driver)).context("--state-dir")?;
    let Some(own) = own else {
        return Ok(store);
    };
    let store = store.with_hook(own.clone());
    let lock = store.lock().context("--state-dir")?;
    match own.install() {
        Ok(()) => store.remove_unnamed_hooks(&lock),
        Err(error) => tracing::error!(%error, "no claim is prepared before this is mended"),
    }
    drop(lock);
    Ok(store)
}
