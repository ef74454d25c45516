//! What besides libraries: programs, firmware and sockets of the driver. A container works without them, so what is not
//! there is left out.

use std::path::{Path, PathBuf};

use super::{driver_root::OpenRoot, spec::Mount};

/// How files are mounted.
pub(super) const READ_ONLY: [&str; 5] = ["ro", "nosuid", "nodev", "rbind", "rprivate"];
/// How sockets are mounted: they are written to.
const SOCKET: [&str; 5] = ["nosuid", "nodev", "noexec", "rbind", "rprivate"];

const PROGRAM_DIRECTORIES: [&str; 5] = ["/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin"];
/// Where a system has them and no shell of a container looks (Bottlerocket).
const HIDDEN_PROGRAM_DIRECTORY: &str = "/usr/libexec/nvidia/tesla/bin";
const PROGRAMS: [&str; 7] = [
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
];
/// Those of `nvidia-cuda-mps-control` are not among them: a server of the host holds GPUs that no claim gave the container.
const SOCKETS: [&str; 2] = ["nvidia-persistenced/socket", "nvidia-fabricmanager/socket"];
const SOCKET_DIRECTORIES: [&str; 2] = ["/run", "/var/run"];
/// Where it is in a container.
const FIRMWARE: &str = "/lib/firmware/nvidia";
/// Where systems have it, and where it is in a container: the third is that of Container-Optimized OS, whose driver root holds
/// nothing but the driver.
const FIRMWARE_DIRECTORIES: [(&str, &str); 3] = [
    (
        "/lib/firmware/updates/nvidia",
        "/lib/firmware/updates/nvidia",
    ),
    (FIRMWARE, FIRMWARE),
    ("/firmware/nvidia", FIRMWARE),
];

/// A path in the driver root, and where a container gets what is there.
type Place = (PathBuf, PathBuf);

/// The mounts of all that is there; `prefix` is the directory that the libraries' directory is in.
pub(super) fn mounts(root: &OpenRoot<'_>, version: &str, prefix: Option<&Path>) -> Vec<Mount> {
    let programs = PROGRAMS.map(|name| (program(name, prefix), READ_ONLY));
    let firmware = firmware(root, version, prefix)
        .into_iter()
        .map(|file| (vec![file], READ_ONLY));
    let sockets = SOCKETS.map(|name| (in_each(&SOCKET_DIRECTORIES, name), SOCKET));
    let wanted = programs.into_iter().chain(firmware).chain(sockets);
    let mount = |(candidates, options): (Vec<Place>, [&str; 5])| {
        let mut candidates = candidates.into_iter();
        let found = candidates.find_map(|(here, there)| Some((root.on_host(&here)?, there)));
        found.map(|(host_path, container_path)| Mount {
            host_path,
            container_path,
            options: options.map(str::to_owned).to_vec(),
        })
    };
    wanted.filter_map(mount).collect()
}

/// Where it may be: in a system's directories, or in one where no shell of a container looks.
fn program(name: &str, prefix: Option<&Path>) -> Vec<Place> {
    let mut places = in_each(&PROGRAM_DIRECTORIES, name);
    let beside = prefix.map(|prefix| prefix.join("bin"));
    let hidden = [Some(PathBuf::from(HIDDEN_PROGRAM_DIRECTORY)), beside];
    let hidden = hidden.into_iter().flatten();
    let there = Path::new("/usr/bin").join(name);
    places.extend(hidden.map(|directory| (directory.join(name), there.clone())));
    places
}

/// The same path in both.
fn in_each(directories: &[&str], name: &str) -> Vec<Place> {
    directories
        .iter()
        .map(|directory| Path::new(directory).join(name))
        .map(|path| (path.clone(), path))
        .collect()
}

/// The firmware of the GPUs' system processor, from the first directory that has any.
fn firmware(root: &OpenRoot<'_>, version: &str, prefix: Option<&Path>) -> Vec<Place> {
    let is_firmware = |name: &String| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        name.starts_with("gsp") && name.strip_suffix(".bin").is_some() && name.bytes().all(is_plain)
    };
    let known = FIRMWARE_DIRECTORIES.map(|(here, there)| (PathBuf::from(here), there));
    let beside = prefix.map(|prefix| (prefix.join("firmware/nvidia"), FIRMWARE));
    let mut files = known.into_iter().chain(beside).map(|(here, there)| {
        let (here, there) = (here.join(version), Path::new(there).join(version));
        let names = root.names(&here).into_iter().filter(is_firmware);
        let places = names.map(|name| (here.join(&name), there.join(name)));
        places.collect::<Vec<_>>()
    });
    files.find(|files| !files.is_empty()).unwrap_or_default()
}
