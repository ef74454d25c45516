//! Images that the tests need beside Muster's: made from files of this machine, without a daemon and without a registry.

use std::{
    fmt,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use sha2::{Digest, Sha256};

/// Files that an image consists of, in the one layer that it has.
pub struct Image {
    layer: tar::Builder<Vec<u8>>,
}

// Not derived: an archive shows nothing of itself.
impl fmt::Debug for Image {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Image").finish_non_exhaustive()
    }
}

impl Image {
    /// Without any file.
    pub fn empty() -> Self {
        Self {
            layer: tar::Builder::new(Vec::new()),
        }
    }

    /// Adds a program or a library of this machine.
    pub fn executable(&mut self, path: &str, here: &Path) -> Result<()> {
        let content = fs::read(here).with_context(|| format!("reading {}", here.display()))?;
        self.file(path, &content, 0o755)
    }

    /// Adds a file.
    pub fn file(&mut self, path: &str, content: &[u8], mode: u32) -> Result<()> {
        let mut header = entry(tar::EntryType::Regular, mode);
        header.set_size(u64::try_from(content.len())?);
        Ok(self.layer.append_data(&mut header, path, content)?)
    }

    /// Adds an empty directory.
    pub fn directory(&mut self, path: &str, mode: u32) -> Result<()> {
        let mut header = entry(tar::EntryType::Directory, mode);
        Ok(self
            .layer
            .append_data(&mut header, path, std::io::empty())?)
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) -> Result<()> {
        let mut header = entry(tar::EntryType::Symlink, 0o777);
        Ok(self.layer.append_link(&mut header, path, target)?)
    }

    /// Writes it as an archive that container runtimes import, under these names.
    pub fn write(self, archive: &Path, names: &[String], command: &[&str]) -> Result<()> {
        let layer = self.layer.into_inner()?;

        let config = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "os": "linux",
            // Images of CUDA set the variable, and mean what NVIDIA's runtime makes of it.
            "config": {"Cmd": command, "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", "NVIDIA_VISIBLE_DEVICES=all"]},
            "rootfs": {"type": "layers", "diff_ids": [digest(&layer)]},
        });
        let manifest =
            json!([{"Config": "config.json", "RepoTags": names, "Layers": ["layer.tar"]}]);
        let mut whole = tar::Builder::new(File::create(archive)?);
        for (name, content) in [
            ("manifest.json", manifest.to_string().into_bytes()),
            ("config.json", config.to_string().into_bytes()),
            ("layer.tar", layer),
        ] {
            let mut header = entry(tar::EntryType::Regular, 0o644);
            header.set_size(u64::try_from(content.len())?);
            whole.append_data(&mut header, name, content.as_slice())?;
        }
        whole.into_inner()?;
        Ok(())
    }
}

/// As the OCI writes it: `sha256:` and 64 digits.
fn digest(bytes: &[u8]) -> String {
    let digits = Sha256::digest(bytes)
        .into_iter()
        .map(|byte| format!("{byte:02x}"));
    format!("sha256:{}", digits.collect::<String>())
}

fn entry(kind: tar::EntryType, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(0);
    header
}

/// An image as users have them: a shell, glibc with its loader, and a program that looks for GPUs.
pub fn workload(cuda_devices: &Path) -> Result<Image> {
    let mut image = Image::empty();
    image.directory("tmp", 0o1777)?;
    image.file("etc/passwd", b"root:x:0:0:root:/:/bin/sh\n", 0o644)?;
    for (library, directory) in [
        ("libc.so.6", "lib/x86_64-linux-gnu"),
        ("libgcc_s.so.1", "lib/x86_64-linux-gnu"),
        ("ld-linux-x86-64.so.2", "lib64"),
    ] {
        image.executable(&format!("{directory}/{library}"), &library_here(library)?)?;
    }
    image.executable("bin/cuda-devices", cuda_devices)?;
    add_shell(&mut image)?;
    Ok(image)
}

/// An image of a shell that is linked to nothing: no glibc, no loader of it, and no cache of that.
pub fn without_glibc() -> Result<Image> {
    let mut image = Image::empty();
    image.directory("tmp", 0o1777)?;
    image.file("etc/passwd", b"root:x:0:0:root:/:/bin/sh\n", 0o644)?;
    add_shell(&mut image)?;
    Ok(image)
}

/// A static busybox under all its names.
fn add_shell(image: &mut Image) -> Result<()> {
    let busybox = Path::new("/usr/bin/busybox");
    image.executable("bin/busybox", busybox)?;
    let listed = Command::new(busybox).arg("--list").output()?;
    for applet in String::from_utf8(listed.stdout)?.lines() {
        if applet != "busybox" {
            image.link(&format!("bin/{applet}"), "busybox")?;
        }
    }
    Ok(())
}

fn library_here(name: &str) -> Result<PathBuf> {
    let output = Command::new("cc")
        .arg(format!("-print-file-name={name}"))
        .output()
        .context("starting cc")?;
    let path = PathBuf::from(String::from_utf8(output.stdout)?.trim());
    ensure!(path.is_absolute(), "cc knows no {name}");
    Ok(path)
}
