//! What besides libraries: programs, firmware and sockets of the driver. A container works without them, so what is not
//! there is left out.

use std::path::{Path, PathBuf};

use super::{driver_root::OpenRoot, spec::Mount};

/// How files are mounted.
pub(super) const READ_ONLY: [&str; 5] = ["ro", "nosuid", "nodev", "rbind", "rprivate"];
/// How sockets are mounted: they are written to.
const SOCKET: [&str; 5] = ["nosuid", "nodev", "noexec", "rbind", "rprivate"];

const PROGRAM_DIRECTORIES: [&str; 5] = ["/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin"];
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
const FIRMWARE_DIRECTORIES: [&str; 2] = ["/lib/firmware/updates/nvidia", "/lib/firmware/nvidia"];

/// The mounts of all that is there.
pub(super) fn mounts(root: &OpenRoot<'_>, version: &str) -> Vec<Mount> {
    let programs = PROGRAMS.map(|name| (in_each(&PROGRAM_DIRECTORIES, name), READ_ONLY));
    let firmware = firmware(root, version)
        .into_iter()
        .map(|file| (vec![file], READ_ONLY));
    let sockets = SOCKETS.map(|name| (in_each(&SOCKET_DIRECTORIES, name), SOCKET));
    let wanted = programs.into_iter().chain(firmware).chain(sockets);
    let mount = |(candidates, options): (Vec<PathBuf>, [&str; 5])| {
        let mut candidates = candidates.into_iter();
        let found = candidates.find_map(|path| Some((root.on_host(&path)?, path)));
        found.map(|(host_path, container_path)| Mount {
            host_path,
            container_path,
            options: options.map(str::to_owned).to_vec(),
        })
    };
    wanted.filter_map(mount).collect()
}

fn in_each(directories: &[&str], name: &str) -> Vec<PathBuf> {
    directories
        .iter()
        .map(|directory| Path::new(directory).join(name))
        .collect()
}

/// The firmware of the GPUs' system processor, from the first directory that has any.
fn firmware(root: &OpenRoot<'_>, version: &str) -> Vec<PathBuf> {
    let is_firmware = |name: &String| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        name.starts_with("gsp") && name.strip_suffix(".bin").is_some() && name.bytes().all(is_plain)
    };
    let files = FIRMWARE_DIRECTORIES.iter().map(|directory| {
        let directory = Path::new(directory).join(version);
        let names = root.names(&directory).into_iter().filter(is_firmware);
        names.map(|name| directory.join(name)).collect::<Vec<_>>()
    });
    files
        .into_iter()
        .find(|files| !files.is_empty())
        .unwrap_or_default()
}
