//! The driver's libraries: those in a driver root whose file names end in the version of the kernel's module.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use muster_cdi_hook::{Library, Link, Machine};

use super::{
    Failure, driver_root::OpenRoot, elf, loader_configuration, spec::Mount, version::is_version,
};

/// Where installers put them: distributions, NVIDIA's own, Container-Optimized OS, NixOS, Talos, Bottlerocket.
const DIRECTORIES: [&str; 15] = [
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64/nvidia",
    "/usr/lib/x86_64-linux-gnu/nvidia",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/lib64",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib",
    "/run/opengl-driver/lib",
    "/usr/local/glibc/usr/lib",
    "/usr/lib/nvidia/tesla",
];
const CUDA: &str = "libcuda.so";
/// What compiles the intermediate code of older compilers. Its file bears a version of its own, whatever the driver's is.
const OLDER_COMPILER: &str = "libnvidia-nvvm70.so";
/// NVML.
const MANAGEMENT: &str = "libnvidia-ml.so";
/// What no CUDA program runs without.
const NEEDED: [&str; 2] = [CUDA, MANAGEMENT];
/// What many of them run with; an older or a leaner driver may have no such library.
const EXPECTED: [&str; 9] = [
    "libnvidia-ptxjitcompiler.so",
    "libnvidia-nvvm.so",
    "libnvidia-gpucomp.so",
    "libnvidia-opencl.so",
    "libnvidia-allocator.so",
    "libnvidia-cfg.so",
    "libcudadebugger.so",
    "libnvidia-encode.so",
    "libnvcuvid.so",
];
/// Links that programs look for and that drivers do not always bring.
const CUSTOMARY: [&str; 2] = ["libcuda.so", "libnvidia-opticalflow.so"];

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Libraries {
    /// The version of all of them.
    pub(super) version: String,
    /// Files, on the host and in the container.
    pub(super) files: Vec<(PathBuf, PathBuf)>,
    /// What the container's loader is to know.
    pub(super) known: Vec<Library>,
    /// Links beside them.
    pub(super) links: Vec<Link>,
    /// Names of what one would expect and is not there.
    pub(super) missing: Vec<&'static str>,
}

/// Finds them. `kernel` is the version of the kernel's module; where that does not say, there must be one version only.
pub(super) fn find(root: &OpenRoot<'_>, kernel: Option<String>) -> Result<Libraries, Failure> {
    let directories = directories(root);
    let version = wanted_version(root, kernel, &directories, CUDA)?;
    let mut found = Libraries {
        version,
        ..Libraries::default()
    };
    let mut names = BTreeSet::new();
    for (directory, there) in &directories {
        for name in there {
            // The same name in a later directory is another installation's. What is no library of 64 bits hides none.
            if let Some(stem) = stem(name, &found.version)
                && !names.contains(name)
                && found.add(root, directory, there, name, stem)
            {
                names.insert(name.clone());
            }
        }
    }
    let is_there = |library: &&str| names.contains(&format!("{library}.{}", found.version));
    let absent: Vec<_> = NEEDED.iter().filter(|library| !is_there(library)).collect();
    if !absent.is_empty() {
        let cause = format!("it has no {} of version {}", join(&absent), found.version);
        return Err(root.root().failure(&cause));
    }
    let missing = EXPECTED
        .into_iter()
        .filter(|library| !is_there(library))
        .collect();
    found.add_older_compiler(root, &directories);
    found.missing = missing;
    Ok(found)
}

/// NVML's library of that version, where this process finds it. It is looked for by itself: what containers lack besides is no
/// reason to know nothing of the GPUs.
pub(super) fn management_library(
    root: &OpenRoot<'_>,
    kernel: Option<String>,
) -> Result<PathBuf, Failure> {
    let directories = directories(root);
    let version = wanted_version(root, kernel, &directories, MANAGEMENT)?;
    let name = format!("{MANAGEMENT}.{version}");
    let there = directories
        .iter()
        .filter(|(_, there)| there.contains(&name));
    let mut libraries = there
        .map(|(directory, _)| directory.join(&name))
        .filter(|path| root.file(path).is_ok_and(|file| elf::read(&file).is_some()));
    let found = libraries.find_map(|path| root.here(&path));
    found.ok_or_else(|| {
        let cause = format!("its {name} is no library of 64 bits");
        root.root().failure(&cause)
    })
}

impl Libraries {
    /// Adds a library, unless it is none for us; returns whether it is one.
    fn add(
        &mut self,
        root: &OpenRoot<'_>,
        directory: &Path,
        there: &[String],
        name: &str,
        stem: &str,
    ) -> bool {
        let path = directory.join(name);
        let elf = root.file(&path).ok().and_then(|file| elf::read(&file));
        // A link that leads nowhere, no library, or one of 32 bits.
        let (Some(elf), Some(on_host)) = (elf, root.on_host(&path)) else {
            return false;
        };
        self.files.push((on_host, path));
        let soname = elf.soname.unwrap_or_else(|| name.to_owned());
        self.know(elf.machine, directory, &soname, name);
        if CUSTOMARY.contains(&stem) || there.iter().any(|other| other == stem) {
            self.know(elf.machine, directory, stem, &soname);
        }
        if stem == "libGLX_nvidia.so" {
            self.know(elf.machine, directory, "libGLX_indirect.so.0", name);
        }
        true
    }

    /// Adds the one library of which the name does not tell the driver's version, from beside the others: there it is of
    /// their version.
    fn add_older_compiler(&mut self, root: &OpenRoot<'_>, directories: &[(PathBuf, Vec<String>)]) {
        let is_beside = |directory: &Path| {
            let mut files = self.files.iter();
            files.any(|(_, file)| file.parent() == Some(directory))
        };
        let is_number =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let beside = directories
            .iter()
            .filter(|(directory, _)| is_beside(directory));
        let candidates: Vec<_> = beside
            .flat_map(|(directory, there)| there.iter().map(move |name| (directory, there, name)))
            .filter(|(_, _, name)| {
                let version = name
                    .strip_prefix(OLDER_COMPILER)
                    .and_then(|rest| rest.strip_prefix('.'));
                let is_known = self.known.iter().any(|known| known.soname == **name);
                version.is_some_and(is_number) && !is_known
            })
            .collect();
        for (directory, there, name) in candidates {
            if self.add(root, directory, there, name, OLDER_COMPILER) {
                return;
            }
        }
    }

    /// Programs may ask for `name`, which is a link to `target` if it is not that itself.
    fn know(&mut self, machine: Machine, directory: &Path, name: &str, target: &str) {
        let path = directory.join(name);
        // A file that is mounted is no place for a link.
        if name != target && stem(name, &self.version).is_none() {
            self.links.push(Link {
                target: target.to_owned(),
                path: path.clone(),
            });
        }
        self.known.push(Library {
            machine,
            soname: name.to_owned(),
            path,
        });
    }

    /// The directory that CUDA's directory is in. Where a driver has directories of its own, its programs and its firmware lie there.
    pub(super) fn prefix(&self) -> Option<&Path> {
        let name = format!("{CUDA}.{}", self.version);
        let mut paths = self.files.iter().map(|(_, path)| path);
        let cuda = paths.find(|path| path.ends_with(&name))?;
        cuda.parent()?.parent()
    }

    /// Their mounts.
    pub(super) fn mounts(&self) -> impl Iterator<Item = Mount> {
        self.files.iter().map(|(host, container)| Mount {
            host_path: host.clone(),
            container_path: container.clone(),
            options: super::other_files::READ_ONLY.map(str::to_owned).to_vec(),
        })
    }
}

/// The directories that there are, each once, with what is in them: those that installers use, then what the root's own loader is told
/// of.
fn directories(root: &OpenRoot<'_>) -> Vec<(PathBuf, Vec<String>)> {
    let mut seen = BTreeSet::new();
    let known = DIRECTORIES.into_iter().map(PathBuf::from);
    known
        .chain(loader_configuration::directories(root))
        .filter(|directory| {
            root.on_host(directory)
                .is_some_and(|real| seen.insert(real))
        })
        .map(|directory| {
            let names = root.names(&directory);
            (directory, names)
        })
        .collect()
}

/// The version that counts: the kernel's, of which there must be this library; where the kernel does not say, the only one.
fn wanted_version(
    root: &OpenRoot<'_>,
    kernel: Option<String>,
    directories: &[(PathBuf, Vec<String>)],
    library: &str,
) -> Result<String, Failure> {
    let versions = versions(directories, library);
    match (kernel, &versions.iter().collect::<Vec<_>>()[..]) {
        (Some(kernel), found) if found.contains(&&kernel) => Ok(kernel),
        (Some(kernel), found) => Err(other_version(root, &kernel, found, library)),
        (None, [only]) => Ok((*only).clone()),
        (None, []) => Err(root.root().failure(&nothing(library))),
        (None, several) => {
            let cause = format!(
                "it has {library} of versions {}, and the kernel does not say which one is loaded",
                join(several)
            );
            Err(root.root().failure(&cause))
        }
    }
}

/// The versions of a library that there are.
fn versions(directories: &[(PathBuf, Vec<String>)], library: &str) -> BTreeSet<String> {
    let names = directories.iter().flat_map(|(_, names)| names);
    let versions = names.filter_map(|name| name.strip_prefix(library)?.strip_prefix('.'));
    versions
        .filter(|version| is_version(version))
        .map(str::to_owned)
        .collect()
}

/// `libcuda.so` of `libcuda.so.580.65.06`. The name goes into paths and arguments.
fn stem<'a>(name: &'a str, version: &str) -> Option<&'a str> {
    let stem = name.strip_suffix(version)?.strip_suffix('.')?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._+-".contains(&byte);
    let is_library =
        stem.starts_with("lib") && stem.strip_suffix(".so").is_some() && stem.bytes().all(is_plain);
    is_library.then_some(stem)
}

fn other_version(root: &OpenRoot<'_>, kernel: &str, found: &[&String], library: &str) -> Failure {
    if found.is_empty() {
        return root.root().failure(&nothing(library));
    }
    root.root().failure(&format!(
        "it has {library} of version {}, and the kernel's module is of version {kernel}; unload the module, or restart \
         the node, so that both are of one version",
        join(found)
    ))
}

fn nothing(library: &str) -> String {
    format!(
        "it has no {library}.VERSION in any of {}, nor where its /etc/ld.so.conf says; name the directory in which NVIDIA's \
         driver is installed (--driver-root)",
        DIRECTORIES.join(", ")
    )
}

fn join(words: &[impl AsRef<str>]) -> String {
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    words.join(" and ")
}
