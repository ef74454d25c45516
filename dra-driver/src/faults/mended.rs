//! What a person says of a GPU: that it is in order, or gone for good.
//!
//! `muster-dra-driver --mended GPU`, run beside the driver, writes an empty file of the GPU's name into `mended` in the state directory. The driver finds
//! it when it next looks at the GPUs, checks the GPU, and puts the answer into the file; whoever asked takes it from there. A file that has an
//! answer is not asked again: a word counts once, and only for what was seen before it was taken up. If the driver ends between the two it
//! is taken up again by the next one, which does no harm: the file is there for a minute, and the GPU is checked anew. If it ends before it
//! has written down what is over, the fault is back, and the person says it again.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use muster_device::files;

use super::eye::Eye;

/// Directory in the state directory.
const DIRECTORY: &str = "mended";
/// How an answer begins that says no; that of a check does, too.
pub(super) const NOT_MENDED: &str = "it is not mended";
/// Longest that an answer is waited for: the driver looks every ten seconds, and a GPU that hangs takes its time.
const LONGEST: Duration = Duration::from_mins(1);
/// How often it is looked for.
const POLL: Duration = Duration::from_millis(200);

/// Where the files are.
pub fn directory(state_directory: &Path) -> PathBuf {
    state_directory.join(DIRECTORY)
}

/// Says to the driver of this node that a GPU is mended, and waits for its answer. An error if it is not believed. Blocking.
pub fn say(state_directory: &Path, gpu: &str) -> anyhow::Result<String> {
    let is_name = !gpu.is_empty() && !gpu.starts_with('.') && !gpu.contains('/');
    anyhow::ensure!(
        is_name,
        "--mended {gpu:?} names no GPU: its UUID, its device or its PCI address would"
    );
    anyhow::ensure!(
        state_directory.is_dir(),
        "--state-dir {} is no directory: it has to be the driver's",
        state_directory.display()
    );
    let directory = directory(state_directory);
    let path = directory.join(gpu);
    let named = || path.display().to_string();
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&directory)
        .with_context(named)?;
    fs::write(&path, "").with_context(named)?;
    let deadline = Instant::now() + LONGEST;
    let answer = loop {
        let answer = fs::read_to_string(&path).with_context(named)?;
        if !answer.is_empty() || Instant::now() >= deadline {
            break answer;
        }
        thread::sleep(POLL);
    };
    // A word that was not heard is not to be heard later.
    files::remove(&path).with_context(named)?;
    anyhow::ensure!(
        !answer.is_empty(),
        "the driver did not answer within {} s: look whether it runs, and whether NVML is open",
        LONGEST.as_secs()
    );
    anyhow::ensure!(!answer.starts_with(NOT_MENDED), "{answer}");
    Ok(answer)
}

/// Answers who waits. Blocking.
pub(super) fn answer(eye: &Eye, directory: &Path) {
    let waiting = match waiting(directory) {
        Ok(waiting) => waiting,
        Err(error) => {
            tracing::warn!(directory = %directory.display(), %error, "nobody can say that a GPU is mended");
            return;
        }
    };
    for gpu in waiting {
        // Before the GPUs are known nobody can tell.
        let Some(answer) = eye.said_to_be_mended(&gpu) else {
            continue;
        };
        tracing::warn!(gpu, answer, "a person says that a GPU is mended");
        let path = directory.join(&gpu);
        if let Err(error) = files::write_whole(&path, answer.as_bytes(), 0o600) {
            tracing::warn!(file = %path.display(), %error, "the answer cannot be given");
            // It is not to count again and again.
            let _ = files::remove(&path);
        }
    }
}

/// The GPUs of which it is said, and nothing was answered.
fn waiting(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut waiting = Vec::new();
    for entry in entries {
        let entry = entry?;
        let is_empty = match entry.metadata() {
            Ok(metadata) => metadata.is_file() && metadata.len() == 0,
            // Whoever asked left meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        let name = entry.file_name().into_string().ok();
        // Hidden is what is being written.
        waiting.extend(name.filter(|name| is_empty && !name.starts_with('.')));
    }
    Ok(waiting)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_an_answer_or_is_no_file_waits_for_none() {
        let root = tempfile::tempdir().unwrap();
        let directory = directory(root.path());
        assert!(waiting(&directory).unwrap().is_empty(), "nobody ever asked");
        fs::create_dir_all(directory.join("GPU-directory")).unwrap();
        fs::write(directory.join("GPU-a"), "").unwrap();
        fs::write(directory.join("GPU-b"), "answered").unwrap();
        fs::write(directory.join(".GPU-c.tmp"), "").unwrap();
        assert_eq!(waiting(&directory).unwrap(), ["GPU-a"]);
    }

    #[test]
    fn what_is_no_name_leads_nowhere_else() {
        let root = tempfile::tempdir().unwrap();
        for name in ["", ".", "..", "../faults.json", "/etc/passwd", ".GPU-a.tmp"] {
            let error = say(root.path(), name).unwrap_err().to_string();
            assert!(error.contains("names no GPU"), "{error}");
        }
        let error = say(&root.path().join("none"), "GPU-a").unwrap_err();
        assert!(error.to_string().contains("--state-dir"), "{error}");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }
}
