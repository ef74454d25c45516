//! What lies in an image: the program, what it links to, and nothing that could be run instead of it.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use anyhow::{Context, Result};

use super::{layer::Files, libraries::Library};

/// Names for the users that the images run as, for what looks one up.
const PASSWD: &str = "\
root:x:0:0:root:/:/nonexistent
nonroot:x:65532:65532:nonroot:/:/nonexistent
";
const GROUP: &str = "\
root:x:0:
nonroot:x:65532:
";
/// Names of hosts come from what the kubelet writes into the container, then from DNS.
const NSSWITCH: &str = "hosts: files dns\n";

/// A package of the distribution that libraries were taken from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SystemPackage {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) architecture: String,
    /// As `/etc/os-release` calls it: `debian`.
    pub(crate) distribution: String,
}

/// Libraries, and what names users and hosts: the layer that all programs which need the same have in common.
pub(crate) fn base(libraries: &[Library], packages: &[SystemPackage]) -> Result<Files> {
    let mut files = Files::default();
    files.add("/etc/passwd", PASSWD);
    files.add("/etc/group", GROUP);
    files.add("/etc/nsswitch.conf", NSSWITCH);
    for library in libraries {
        files.add_executable(&library.in_image, read(&library.here)?);
    }
    for package in packages {
        let path = format!("/usr/share/doc/{}/copyright", package.name);
        files.add(&path, read(Path::new(&path))?);
    }
    Ok(files)
}

/// The program, under the path that the chart starts it by, and what is in it.
pub(crate) fn program(name: &str, version: &str, executable: &Path, sbom: &[u8]) -> Result<Files> {
    let mut files = Files::default();
    files.add_executable(&format!("/{name}"), read(executable)?);
    // Where scanners look for the list of an image that no package manager made.
    let path = format!("/var/lib/db/sbom/{name}-{version}.spdx.json");
    files.add(&path, sbom);
    Ok(files)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("reading {}", path.display()))
}

/// Which packages the libraries are from, by Debian's package manager; none where there is no such.
pub(crate) fn packages_of(libraries: &[Library]) -> Result<Vec<SystemPackage>> {
    let mut packages = BTreeMap::new();
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let distribution = release.lines().find_map(|line| line.strip_prefix("ID="));
    let distribution = distribution.unwrap_or("linux").trim_matches('"').to_owned();
    for library in libraries {
        // Debian's list knows most libraries by the path from before /lib became a link.
        let path = library.here.to_string_lossy().into_owned();
        let forms = [path.strip_prefix("/usr").map(str::to_owned), Some(path)];
        for path in forms.into_iter().flatten() {
            let Some(owner) = dpkg(&["--search", &path])? else {
                continue;
            };
            let Some((owner, _)) = owner.split_once(": ") else {
                continue;
            };
            let format = "--showformat=${Package} ${Version} ${Architecture}";
            if let Some(told) = dpkg(&["--show", format, owner])? {
                let mut words = told.split(' ').map(str::to_owned);
                if let (Some(name), Some(version), Some(architecture)) =
                    (words.next(), words.next(), words.next())
                {
                    let package = SystemPackage {
                        name,
                        version,
                        architecture,
                        distribution: distribution.clone(),
                    };
                    packages.insert(package.name.clone(), package);
                }
            }
            break;
        }
    }
    Ok(packages.into_values().collect())
}

/// The answer of Debian's package manager, if it is here and has one.
fn dpkg(arguments: &[&str]) -> Result<Option<String>> {
    match Command::new("dpkg-query").args(arguments).output() {
        Ok(output) if output.status.success() => Ok(Some(
            String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        )),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).context("starting dpkg-query"),
    }
}
