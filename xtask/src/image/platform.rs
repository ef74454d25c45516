//! The platforms that images are built for, and what building for one takes.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result};
use oci_spec::image::Arch;

use super::libraries::SearchDirectory;

/// A processor architecture; the system is Linux with glibc always, because the driver loads NVIDIA's library, which is
/// linked to glibc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Platform {
    /// `linux/amd64`.
    Amd64,
    /// `linux/arm64`.
    Arm64,
}

impl Platform {
    pub(crate) const ALL: [Self; 2] = [Self::Amd64, Self::Arm64];

    /// The one that is called `linux/amd64` or `linux/arm64`.
    pub(crate) fn named(name: &str) -> Result<Self, String> {
        let found = Self::ALL
            .into_iter()
            .find(|platform| platform.name() == name);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("{name:?} is no platform that Muster is built for: {names}")
        })
    }

    /// As container runtimes write it: `linux/amd64`.
    pub(crate) fn name(self) -> String {
        format!("linux/{}", self.architecture())
    }

    /// The OCI's word for the architecture.
    pub(crate) fn architecture(self) -> Arch {
        match self {
            Self::Amd64 => Arch::Amd64,
            Self::Arm64 => Arch::ARM64,
        }
    }

    /// rustc's name.
    pub(crate) fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// Debian's and GCC's name.
    fn triplet(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-linux-gnu",
            Self::Arm64 => "aarch64-linux-gnu",
        }
    }

    /// Debian's word for the architecture.
    fn debian_architecture(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Whether programs for it run here.
    pub(crate) fn is_native(self) -> bool {
        let here = match self {
            Self::Amd64 => "x86_64",
            Self::Arm64 => "aarch64",
        };
        env::consts::ARCH == here
    }

    /// That of this machine.
    #[cfg(test)]
    pub(crate) fn native() -> Self {
        let mut all = Self::ALL.into_iter();
        all.find(|platform| platform.is_native()).unwrap()
    }

    /// The linker, where it is not the compiler of this machine.
    pub(crate) fn cross_linker(self) -> Option<String> {
        (!self.is_native()).then(|| format!("{}-gcc", self.triplet()))
    }

    /// The archives of this machine that are in whatever is linked statically for it, besides Rust's own.
    pub(crate) fn static_archives(self) -> Result<Vec<PathBuf>> {
        let linker = self.cross_linker().unwrap_or_else(|| "cc".to_owned());
        let mut archives = Vec::new();
        for name in ["libc.a", "libgcc_eh.a"] {
            let output = Command::new(&linker)
                .arg(format!("-print-file-name={name}"))
                .output()
                .with_context(|| format!("starting {linker}"))?;
            let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
            // Of what it does not find, the compiler says nothing but the name.
            if path.is_absolute() {
                let path = fs::canonicalize(&path)
                    .with_context(|| format!("looking at {}", path.display()))?;
                archives.push(path);
            }
        }
        Ok(archives)
    }

    /// What is missing here to build for it, each with how to get it.
    pub(crate) fn missing(self) -> Result<Vec<String>> {
        let mut missing = Vec::new();
        let target = self.target();
        if !standard_library(target)?.is_dir() {
            missing.push(format!(
                "Rust's standard library for {target} (`rustup target add {target}`)"
            ));
        }
        if let Some(linker) = self.cross_linker() {
            let status = Command::new(&linker)
                .arg("--version")
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            if !status.is_ok_and(|status| status.success()) {
                let debian = self.debian_architecture();
                missing.push(format!(
                    "{linker} (Debian: gcc-{} libc6-dev-{debian}-cross)",
                    self.triplet(),
                ));
            }
        }
        Ok(missing)
    }

    /// Where its libraries lie here, and where its loader looks for them in an image.
    pub(crate) fn library_directories(self) -> Vec<SearchDirectory> {
        let triplet = self.triplet();
        let multiarch = format!("/usr/lib/{triplet}");
        if !self.is_native() {
            let cross = format!("/usr/{triplet}/lib");
            return vec![SearchDirectory::new(&cross, &multiarch)];
        }
        [multiarch.as_str(), "/usr/lib64", "/usr/lib"]
            .map(|directory| SearchDirectory::new(directory, directory))
            .to_vec()
    }
}

/// Where rustc would find the standard library.
fn standard_library(target: &str) -> Result<PathBuf> {
    let output = Command::new("rustc")
        .args(["--print", "target-libdir", "--target", target])
        .output()
        .context("starting rustc")?;
    Ok(Path::new(String::from_utf8_lossy(&output.stdout).trim()).to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_machine_is_can_be_built_for_it() {
        let native: Vec<Platform> = Platform::ALL
            .into_iter()
            .filter(|platform| platform.is_native())
            .collect();
        assert_eq!(native.len(), 1);
        assert_eq!(native[0].missing().unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_platform_is_read_as_it_is_written() {
        for platform in Platform::ALL {
            assert_eq!(Platform::named(&platform.name()), Ok(platform));
        }
        let unknown = Platform::named("linux/s390x").unwrap_err();
        assert!(unknown.contains("linux/amd64, linux/arm64"), "{unknown}");
    }
}
