//! What a person says of a GPU: that it is in order, or gone for good.
//!
//! `muster-dra-driver --mended GPU`, run beside the driver, writes an empty file of the GPU's name into `mended` in the state directory. The driver finds
//! it within a second, notes in it what it has seen so far, checks the GPU, and puts the answer into it; whoever asked takes it from there.
//!
//! A word counts once, and only for what was seen before it was taken up. If the driver ends between that and its answer, the next one finds the
//! note, and takes the word for what it was: nothing that was seen since then is mended by it. If the driver ends before it has written down what
//! is over, the fault is back, and the person says it again. A file that has an answer is not asked again. Of two who ask about one GPU at a time
//! one gets the answer, and the other is told so.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use muster_device::files;

use super::eye::{Eye, TakenUp};

/// Directory in the state directory.
const DIRECTORY: &str = "mended";
/// How an answer begins that says no; that of a check does, too.
pub(super) const NOT_MENDED: &str = "it is not mended";
/// How a file begins that was taken up and has no answer yet. A number follows.
const TAKEN_UP: &str = "taken up at ";
/// Longest file that may be a word: what is longer is an answer.
const MOST_NOTE_BYTES: u64 = 64;
/// Longest that an answer is waited for: the driver looks every second, and not while it looks at all GPUs; one that hangs takes its time.
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
        let answer = match fs::read_to_string(&path) {
            Ok(answer) => answer,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                anyhow::bail!(
                    "somebody else asked about {gpu} at the same time, and has the answer: ask again"
                )
            }
            Err(error) => return Err(error).with_context(named),
        };
        if is_answer(&answer) || Instant::now() >= deadline {
            break answer;
        }
        thread::sleep(POLL);
    };
    // A word that was not heard is not to be heard later.
    files::remove(&path).with_context(named)?;
    anyhow::ensure!(
        is_answer(&answer),
        "the driver did not answer within {} s: look whether it runs, and whether NVML is open",
        LONGEST.as_secs()
    );
    anyhow::ensure!(!answer.starts_with(NOT_MENDED), "{answer}");
    Ok(answer)
}

/// Answers who waits. An error if the directory cannot be read. Blocking.
pub(super) fn answer(eye: &Eye, directory: &Path) -> io::Result<()> {
    let waiting = waiting(directory)?;
    // Before the GPUs are known nobody can tell.
    if !eye.knows_gpus() {
        return Ok(());
    }
    for Waiting { gpu, taken_up } in waiting {
        let path = directory.join(&gpu);
        // Before the GPU is looked at, so that the next driver knows how old the word is.
        let taken_up = if let Some(mark) = taken_up {
            TakenUp::Before(mark)
        } else {
            let mark = eye.mark();
            match note(&path, mark) {
                Ok(()) => TakenUp::Now(mark),
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    tracing::warn!(file = %path.display(), %error, "a word cannot be taken up");
                    continue;
                }
            }
        };
        let Some(answer) = eye.said_to_be_mended(&gpu, taken_up) else {
            continue;
        };
        tracing::warn!(gpu, answer, "a person says that a GPU is mended");
        // Whoever asked may have left: nobody would take the answer away.
        if !path.exists() {
            continue;
        }
        if let Err(error) = files::write_whole(&path, answer.as_bytes(), 0o600) {
            tracing::warn!(file = %path.display(), %error, "the answer cannot be given");
            // It is not to count again and again.
            let _ = files::remove(&path);
        }
    }
    Ok(())
}

/// Notes that a word was taken up, if whoever said it is still there. It is written into the file that there is: one that were put in its place
/// would stay when they leave at this moment. Who reads half of it takes it for no answer, or for an older word.
fn note(path: &Path, mark: u64) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).truncate(true).open(path)?;
    file.write_all(format!("{TAKEN_UP}{mark}").as_bytes())
}

fn is_answer(text: &str) -> bool {
    !TAKEN_UP.starts_with(text) && !text.starts_with(TAKEN_UP)
}

/// A word that nobody has answered.
#[derive(Debug, PartialEq, Eq)]
struct Waiting {
    gpu: String,
    /// At what it was taken up, if it was.
    taken_up: Option<u64>,
}

/// The GPUs of which it is said, and nothing was answered.
fn waiting(directory: &Path) -> io::Result<Vec<Waiting>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut waiting = Vec::new();
    for entry in entries {
        let entry = entry?;
        // Hidden is what is being written.
        let name = entry.file_name().into_string().ok();
        let Some(gpu) = name.filter(|name| !name.starts_with('.')) else {
            continue;
        };
        let read = match entry.metadata() {
            Ok(metadata) if metadata.is_file() && metadata.len() <= MOST_NOTE_BYTES => {
                fs::read(entry.path())
            }
            Ok(_) => continue,
            Err(error) => Err(error),
        };
        let text = match read {
            Ok(text) => String::from_utf8_lossy(&text).into_owned(),
            // Whoever asked left meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let taken_up = text
            .strip_prefix(TAKEN_UP)
            .map(|mark| mark.parse().unwrap_or_default());
        if text.is_empty() || taken_up.is_some() {
            waiting.push(Waiting { gpu, taken_up });
        }
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
        let word = |gpu: &str, taken_up| Waiting {
            gpu: gpu.to_owned(),
            taken_up,
        };
        assert_eq!(waiting(&directory).unwrap(), [word("GPU-a", None)]);
        // One that was taken up, and not answered, waits for the next driver.
        for (note, expected) in [("17", 17), ("", 0), ("soon", 0)] {
            fs::write(directory.join("GPU-a"), format!("{TAKEN_UP}{note}")).unwrap();
            let expected = word("GPU-a", Some(expected));
            assert_eq!(waiting(&directory).unwrap(), [expected]);
        }
    }

    #[test]
    fn of_two_who_ask_at_a_time_the_second_is_told_who_has_the_answer() {
        let root = tempfile::tempdir().unwrap();
        let path = directory(root.path()).join("GPU-a");
        thread::scope(|scope| {
            let asking = scope.spawn(|| say(root.path(), "GPU-a"));
            let deadline = Instant::now() + LONGEST;
            while !path.exists() && Instant::now() < deadline {
                thread::yield_now();
            }
            files::remove(&path).unwrap();
            let error = asking.join().unwrap().unwrap_err().to_string();
            assert!(error.contains("somebody else asked"), "{error}");
        });
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
