//! All that a container gets of the host's driver.

use std::{path::Path, sync::Arc};

use super::{
    DriverRoot, Failure, Hooks, ModuleLoader,
    driver_root::OpenRoot,
    libraries::{self, Libraries},
    nodes, other_files,
    spec::{DeviceNode, Edits},
    version,
};

/// The driver of the host, as containers are to have it. It is looked at anew for each claim: it may be exchanged while we
/// run, and looking takes a few milliseconds.
#[derive(Clone, Debug)]
pub struct Driver {
    /// Where it is installed.
    pub root: DriverRoot,
    /// What finishes a container.
    pub hooks: Hooks,
    /// What loads its kernel modules.
    pub modules: Arc<dyn ModuleLoader>,
}

impl Driver {
    /// Device nodes, mounts and hooks for a container that has any GPU.
    pub(super) fn edits(&self, proc: &Path) -> Result<Edits, Failure> {
        let (device_nodes, root, libraries) = self.found(proc)?;
        let mut mounts: Vec<_> = libraries.mounts().collect();
        let (version, prefix) = (&libraries.version, libraries.prefix());
        mounts.extend(other_files::mounts(&root, version, prefix));
        Ok(Edits {
            env: Vec::new(),
            device_nodes,
            mounts,
            hooks: self.hooks.of(&libraries),
        })
    }

    /// Loads its kernel modules if need be, and tells its version and the names of libraries that one would expect in it
    /// and that are not there.
    pub fn look(&self, proc: &Path) -> Result<(String, Vec<&'static str>), Failure> {
        let (_, _, libraries) = self.found(proc)?;
        Ok((libraries.version, libraries.missing))
    }

    /// Its device nodes, with its kernel modules loaded, where it is installed, and its libraries.
    fn found(&self, proc: &Path) -> Result<(Vec<DeviceNode>, OpenRoot<'_>, Libraries), Failure> {
        let device_nodes = nodes::complete(proc, &*self.modules)?;
        let root = self.root.open()?;
        self.hooks.look(&root)?;
        let libraries = libraries::find(&root, version::of_kernel(proc))?;
        Ok((device_nodes, root, libraries))
    }
}
