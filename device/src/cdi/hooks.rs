//! Hooks: programs of the host that the runtime runs while it makes a container.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use muster_cdi_hook::Command;

use super::{Failure, driver_root::OpenRoot, libraries::Libraries, spec::Hook};

/// In the container's mount namespace, before its root becomes `/`.
const WHEN: &str = "createContainer";

/// Whose hooks finish a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hooks {
    /// Ours (`muster-cdi-hook`), at this path on the host.
    Own(PathBuf),
    /// NVIDIA's container toolkit's (`nvidia-cdi-hook`, or `nvidia-ctk`), at this path on the host.
    Toolkit(PathBuf),
}

impl Hooks {
    pub(super) fn of(&self, libraries: &Libraries) -> Vec<Hook> {
        let links = Command::CreateSymlinks(libraries.links.clone()).arguments();
        match self {
            Self::Own(path) => {
                let cache = Command::UpdateLdcache(libraries.known.clone()).arguments();
                // It reads no variable. Without any, runtimes would let it have the container's (CVE-2025-23266).
                let env = "MUSTER_CDI_HOOK=1";
                vec![hook(path, &[], links, env), hook(path, &[], cache, env)]
            }
            Self::Toolkit(path) => {
                let parents = libraries
                    .known
                    .iter()
                    .filter_map(|library| library.path.parent());
                let folders: BTreeSet<&Path> = parents.collect();
                let flagged = folders.into_iter();
                let flagged = flagged
                    .flat_map(|folder| ["--folder".to_owned(), folder.display().to_string()]);
                let cache: Vec<String> = ["update-ldcache".to_owned()]
                    .into_iter()
                    .chain(flagged)
                    .collect();
                let is_toolkit = path.file_name().is_some_and(|name| name == "nvidia-ctk");
                let first: &[&str] = if is_toolkit { &["hook"] } else { &[] };
                let env = "NVIDIA_CTK_DEBUG=false";
                vec![hook(path, first, links, env), hook(path, first, cache, env)]
            }
        }
    }

    /// The toolkit's must be there, as far as the driver root shows: what is beside that on the host we do not see. Ours is
    /// brought by whoever writes the spec.
    pub(super) fn look(&self, root: &OpenRoot<'_>) -> Result<(), Failure> {
        let Self::Toolkit(path) = self else {
            return Ok(());
        };
        let Ok(inside) = path.strip_prefix(&root.root().on_host) else {
            return Ok(());
        };
        let found = root.file(&Path::new("/").join(inside));
        found.map(drop).map_err(|error| Failure::HookMissing {
            path: path.clone(),
            cause: error.to_string(),
        })
    }

    /// The program, as it is on the host.
    pub fn path(&self) -> &Path {
        match self {
            Self::Own(path) | Self::Toolkit(path) => path,
        }
    }
}

fn hook(path: &Path, first: &[&str], arguments: Vec<String>, env: &str) -> Hook {
    let name = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let first = first.iter().map(|word| (*word).to_owned());
    Hook {
        hook_name: WHEN.to_owned(),
        path: path.to_owned(),
        args: [name].into_iter().chain(first).chain(arguments).collect(),
        env: vec![env.to_owned()],
    }
}
