//! Unpacks an image and starts its program, as proof that everything which it needs is in it.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
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
    // Whatever the umask: the program's user must get in.
    fs::set_permissions(directory, Permissions::from_mode(0o755))?;
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
            // For `chroot` itself.
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
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

#[cfg(test)]
mod tests {
    use std::env;

    use super::*;
    use crate::image::{layer::Files, libraries, programs::PROGRAMS};

    /// The files of an image whose program is this test.
    fn image(directory: &Path, is_whole: bool) {
        unpack([], directory).unwrap();
        let executable = env::current_exe().unwrap();
        fs::copy(&executable, directory.join(PROGRAMS[0].name)).unwrap();
        let directories = Platform::native().library_directories();
        let needed = libraries::closure(&executable, &[], &directories).unwrap();
        for library in needed.into_iter().filter(|_| is_whole) {
            let path = directory.join(library.in_image.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::copy(library.here, path).unwrap();
        }
    }

    #[test]
    fn a_program_starts_with_what_it_links_to_and_fails_without() {
        let directory = tempfile::tempdir().unwrap();
        let whole = directory.path().join("whole");
        image(&whole, true);
        match start(&PROGRAMS[0], Platform::native(), &whole).unwrap() {
            Start::Took(duration) => assert!(duration > Duration::ZERO),
            // Only root can have its way here.
            Start::NotTried(why) => return assert!(why.contains("root"), "{why}"),
        }

        let lacking = directory.path().join("lacking");
        image(&lacking, false);
        let error = start(&PROGRAMS[0], Platform::native(), &lacking).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("muster-controller does not start"), "{text}");
    }

    #[test]
    fn a_foreign_program_is_not_started() {
        let foreign = Platform::ALL.into_iter().find(|it| !it.is_native());
        let platform = foreign.unwrap();
        let start = start(&PROGRAMS[0], platform, Path::new("/nonexistent")).unwrap();
        let why = format!("not started: this machine is not {}", platform.name());
        assert_eq!(start, Start::NotTried(why));
    }

    #[test]
    fn a_higher_layer_lies_over_a_lower_one_and_nothing_is_left_of_before() {
        let layer = |files: &[(&str, &str)]| {
            let mut packed = Files::default();
            for (path, content) in files {
                packed.add(path, *content);
            }
            packed.pack().unwrap()
        };
        let lower = layer(&[("/etc/a", "lower"), ("/etc/b", "lower")]);
        let upper = layer(&[("/etc/b", "upper")]);
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        fs::create_dir(&root).unwrap();
        fs::write(root.join("before"), "before").unwrap();
        unpack([&lower, &upper], &root).unwrap();
        assert_eq!(fs::read_to_string(root.join("etc/a")).unwrap(), "lower");
        assert_eq!(fs::read_to_string(root.join("etc/b")).unwrap(), "upper");
        assert!(!root.join("before").exists());
    }
}
