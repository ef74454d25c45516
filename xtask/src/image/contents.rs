//! What lies in an image: the program, what it links to, and nothing that could be run instead of it.
//!
//! No certificate authorities: each program speaks TLS with the API server only, whose authority comes with the
//! service account or stands in the kubeconfig.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use anyhow::{Context, Result};

use super::{digest::sha256, layer::Files, libraries::Library};

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

/// A file that no package is known for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UnownedFile {
    pub(crate) name: String,
    /// Of its content: what tells it from others of its name.
    pub(crate) digest: String,
}

/// Where files of this machine come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sources {
    pub(crate) packages: Vec<SystemPackage>,
    pub(crate) unowned: Vec<UnownedFile>,
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

/// The program, under the path that the chart starts it by, its tools beside it, and what is in them.
pub(crate) fn program(
    name: &str,
    version: &str,
    executables: &[(&str, &Path)],
    sbom: &[u8],
) -> Result<Files> {
    let mut files = Files::default();
    for (name, path) in executables {
        files.add_executable(&format!("/{name}"), read(path)?);
    }
    // Where scanners look for the list of an image that no package manager made.
    let path = format!("/var/lib/db/sbom/{name}-{version}.spdx.json");
    files.add(&path, sbom);
    Ok(files)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("reading {}", path.display()))
}

/// Where these files come from, by Debian's package manager; from nowhere that is known, where there is no such.
pub(crate) fn sources_of<'a>(files: impl IntoIterator<Item = &'a Path>) -> Result<Sources> {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let distribution = release.lines().find_map(|line| line.strip_prefix("ID="));
    let distribution = distribution.unwrap_or("linux").trim_matches('"');
    let mut packages = BTreeMap::new();
    let mut unowned = BTreeSet::new();
    for file in files {
        if let Some(package) = owner(file, distribution)? {
            packages.insert(package.name.clone(), package);
        } else {
            let name = file.file_name().unwrap_or_default();
            unowned.insert(UnownedFile {
                name: name.to_string_lossy().into_owned(),
                digest: sha256(&read(file)?),
            });
        }
    }
    Ok(Sources {
        packages: packages.into_values().collect(),
        unowned: unowned.into_iter().collect(),
    })
}

/// The package that brought a file.
fn owner(file: &Path, distribution: &str) -> Result<Option<SystemPackage>> {
    // Debian's list knows most libraries by the path from before /lib became a link.
    let path = file.to_string_lossy().into_owned();
    let forms = [path.strip_prefix("/usr").map(str::to_owned), Some(path)];
    for path in forms.into_iter().flatten() {
        let Some(owner) = dpkg(&["--search", &path])? else {
            continue;
        };
        let Some((owner, _)) = owner.split_once(": ") else {
            continue;
        };
        let format = "--showformat=${Package} ${Version} ${Architecture}";
        let told = dpkg(&["--show", format, owner])?.unwrap_or_default();
        let words: Vec<&str> = told.split(' ').collect();
        if let [name, version, architecture] = words[..] {
            return Ok(Some(SystemPackage {
                name: name.to_owned(),
                version: version.to_owned(),
                architecture: architecture.to_owned(),
                distribution: distribution.to_owned(),
            }));
        }
    }
    Ok(None)
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

#[cfg(test)]
mod tests {
    use std::{env, ffi::OsStr, path::PathBuf};

    use super::*;
    use crate::image::{libraries, platform::Platform, start};

    fn libraries_here() -> Vec<Library> {
        let native = Platform::native();
        let executable = env::current_exe().unwrap();
        libraries::closure(&executable, &[], &native.library_directories()).unwrap()
    }

    /// All files below, by their paths as they are in the image.
    fn files_below(root: &Path, directory: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                files_below(root, &path, found);
            } else {
                let inside = path.strip_prefix(root).unwrap();
                found.insert(format!("/{}", inside.display()));
            }
        }
    }

    #[test]
    fn an_image_holds_the_program_and_its_libraries_and_nothing_else_to_run() {
        let libraries = libraries_here();
        let directory = tempfile::tempdir().unwrap();
        let executable = directory.path().join("executable");
        fs::write(&executable, "program").unwrap();
        let base = base(&libraries, &[]).unwrap().pack().unwrap();
        let executables = [("muster-webhook", &*executable), ("tool", &*executable)];
        let top = program("muster-webhook", "0.1.0", &executables, b"{}");
        let top = top.unwrap().pack().unwrap();
        let root = directory.path().join("root");
        start::unpack([&base, &top], &root).unwrap();

        let mut found = BTreeSet::new();
        files_below(&root, &root, &mut found);
        let mut wanted: BTreeSet<String> = libraries
            .into_iter()
            .map(|library| library.in_image)
            .collect();
        let others = [
            "/etc/group",
            "/etc/nsswitch.conf",
            "/etc/passwd",
            "/muster-webhook",
            "/tool",
            "/var/lib/db/sbom/muster-webhook-0.1.0.spdx.json",
        ];
        wanted.extend(others.map(str::to_owned));
        assert_eq!(found, wanted);
    }

    #[test]
    fn where_debians_package_manager_is_each_library_has_a_package_with_a_copyright_file() {
        let libraries = libraries_here();
        let files = libraries.iter().map(|library| library.here.as_path());
        let Sources { packages, unowned } = sources_of(files).unwrap();
        if !Path::new("/var/lib/dpkg/status").exists() {
            assert_eq!(packages, []);
            assert!(!unowned.is_empty());
            return;
        }
        assert_eq!(unowned, []);
        let names: Vec<&str> = packages
            .iter()
            .map(|package| package.name.as_str())
            .collect();
        assert!(names.contains(&"libc6"), "{names:?}");
        assert!(packages.iter().all(|package| !package.version.is_empty()));
        base(&libraries, &packages).unwrap();
    }

    #[test]
    fn a_file_that_no_package_brought_is_told_by_its_name_and_content() {
        let directory = tempfile::tempdir().unwrap();
        let library = directory.path().join("libown.so.1");
        fs::write(&library, "own").unwrap();
        let sources = sources_of([library.as_path()]).unwrap();
        let own = UnownedFile {
            name: "libown.so.1".to_owned(),
            digest: sha256(b"own"),
        };
        assert_eq!(sources.unowned, [own]);
        assert_eq!(sources.packages, []);
    }

    /// What the tools for nodes are linked with, which is in no list of shared libraries.
    #[test]
    fn where_debians_package_manager_is_each_archive_has_a_package() {
        let native = Platform::native();
        let archives = native.static_archives().unwrap();
        let names: Vec<_> = archives
            .iter()
            .filter_map(|path| path.file_name())
            .collect();
        assert!(names.contains(&OsStr::new("libc.a")), "{archives:?}");
        if Path::new("/var/lib/dpkg/status").exists() {
            let sources = sources_of(archives.iter().map(PathBuf::as_path)).unwrap();
            assert_eq!(sources.unowned, []);
            assert!(sources.packages.iter().any(|it| it.name == "libc6-dev"));
        }
    }
}
