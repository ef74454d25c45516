//! Unpacks an image and starts its program, as proof that everything which it needs is in it.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use flate2::read::GzDecoder;

use super::{layer::Layer, platform::Platform, programs::Program};

/// Of so many starts the middle one is told.
const STARTS: usize = 5;

/// Exit status of `chroot` where it may not do what it does.
const CHROOT_FAILED: i32 = 125;

/// How long a program takes to start, or why nobody knows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Start {
    Took(Duration),
    NotTried(String),
}

/// Unpacks the layers into `directory`, one over the other.
pub(crate) fn unpack<'a>(
    layers: impl IntoIterator<Item = &'a Layer>,
    directory: &Path,
) -> Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory)
            .with_context(|| format!("removing {}", directory.display()))?;
    }
    fs::create_dir_all(directory)?;
    for layer in layers {
        tar::Archive::new(GzDecoder::new(layer.blob.as_slice()))
            .unpack(directory)
            .with_context(|| format!("unpacking into {}", directory.display()))?;
    }
    Ok(())
}

/// Has the program print its help, with nothing around it but the image. A program that does not start is a failure.
pub(crate) fn start(program: &Program, platform: Platform, directory: &Path) -> Result<Start> {
    if !platform.is_native() {
        let why = format!("not started: this machine is not {}", platform.name());
        return Ok(Start::NotTried(why));
    }
    let mut times = Vec::new();
    for _ in 0..STARTS {
        let began = Instant::now();
        let output = Command::new("chroot")
            .arg(format!("--userspec={}", program.user))
            .arg(directory)
            .args([format!("/{}", program.name).as_str(), "--help"])
            .env_clear()
            .stdin(Stdio::null())
            .output()
            .context("starting chroot")?;
        times.push(began.elapsed());
        let complaint = String::from_utf8_lossy(&output.stderr);
        let complaint = complaint.trim();
        if output.status.code() == Some(CHROOT_FAILED) {
            let why = format!("not started, it takes root: {complaint}");
            return Ok(Start::NotTried(why));
        }
        if !output.status.success() || output.stdout.is_empty() {
            bail!(
                "{} does not start from its image ({}): {complaint}",
                program.name,
                output.status
            );
        }
    }
    times.sort();
    Ok(Start::Took(times[STARTS / 2]))
}
