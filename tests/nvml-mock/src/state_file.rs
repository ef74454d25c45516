//! The state file itself, which several processes read and change at once.

use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use crate::{own_file, state::State};

/// Environment variable with the path of the state file.
pub const STATE_VARIABLE: &str = "MUSTER_NVML_MOCK_STATE";
/// Name of the state file beside the library, where that variable is not set.
pub const STATE_FILE: &str = "nvml-mock.json";

/// The text that this process has read last, and what it says. A call reads the file four times and more, a call that waits does so every few
/// milliseconds, and seldom has it changed: without this most of the time of a test with many slices is spent on the same text again.
static LAST: Mutex<Option<(Vec<u8>, Arc<State>)>> = Mutex::new(None);

/// A state file.
///
/// Whoever reads it needs no lock: it is replaced by rename, so a reader has it as it was before a change or as it is after it.
/// Whoever changes it holds the lock of `FILE.lock` from reading to renaming, so that no change is lost. The kernel lets go of
/// the lock of a process that is killed; what such a process has not renamed has not happened, as a call that never reached
/// the card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateFile {
    path: PathBuf,
}

impl StateFile {
    /// The state file with this path.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// That of this library: see [`STATE_VARIABLE`].
    pub(crate) fn of_library() -> io::Result<Self> {
        let named = std::env::var_os(STATE_VARIABLE).map(PathBuf::from);
        let beside = || Some(own_file::path()?.parent()?.join(STATE_FILE));
        let path = named.or_else(beside);
        let path = path.ok_or_else(|| io::Error::other(format!("{STATE_VARIABLE} is not set")))?;
        Ok(Self { path })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Directory in which the runtime states which processes use GPUs: see [`crate::Stated`].
    pub fn stated_directory(&self) -> PathBuf {
        self.beside(".processes")
    }

    /// What is in it.
    pub fn read(&self) -> io::Result<State> {
        self.read_shared().map(Arc::unwrap_or_clone)
    }

    /// As [`Self::read`], for whoever changes nothing of it. The file is read each time, and understood again only if its text is another
    /// one than the last: the same text says the same, whoever wrote it, and in whichever file.
    pub(crate) fn read_shared(&self) -> io::Result<Arc<State>> {
        let text = fs::read(&self.path).map_err(|error| self.named(&error))?;
        let last = || LAST.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, state)) = &*last()
            && *of == text
        {
            return Ok(Arc::clone(state));
        }
        let state: State =
            serde_json::from_slice(&text).map_err(|error| self.named(&error.into()))?;
        let state = Arc::new(state);
        *last() = Some((text, Arc::clone(&state)));
        Ok(state)
    }

    /// Replaces what is in it, whatever that is.
    pub fn write(&self, state: &State) -> io::Result<()> {
        let _lock = self.lock()?;
        self.replace(state)
    }

    /// Changes what is in it. Nobody changes it in between.
    pub fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> io::Result<T> {
        self.change_then(change, |_| Ok(()))
    }

    /// As [`Self::change`], and `then` is called with the new state before anybody else changes it.
    pub(crate) fn change_then<T>(
        &self,
        change: impl FnOnce(&mut State) -> T,
        then: impl FnOnce(&State) -> io::Result<()>,
    ) -> io::Result<T> {
        let _lock = self.lock()?;
        let before = self.read()?;
        let mut state = before.clone();
        let answer = change(&mut state);
        if state != before {
            self.replace(&state)?;
        }
        then(&state)?;
        Ok(answer)
    }

    /// Held until what is returned is dropped.
    fn lock(&self) -> io::Result<File> {
        let path = self.beside(".lock");
        let opened = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|file| file.lock().map(|()| file));
        opened.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    }

    fn replace(&self, state: &State) -> io::Result<()> {
        let next = self.beside(".new");
        let text = serde_json::to_vec_pretty(state)?;
        fs::write(&next, text)
            .and_then(|()| fs::rename(&next, &self.path))
            .map_err(|error| self.named(&error))
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        let mut name = OsString::from(self.path.file_name().unwrap_or_default());
        name.push(suffix);
        self.path.with_file_name(name)
    }

    fn named(&self, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}: {error}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn temporary(name: &str) -> (PathBuf, StateFile) {
        let name = format!("nvml-mock-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).unwrap();
        let file = StateFile::at(directory.join("state.json"));
        (directory, file)
    }

    #[test]
    fn no_change_is_lost_and_no_reader_sees_half_of_one() {
        let (directory, file) = temporary("changes");
        file.write(&State::default()).unwrap();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        file.change(|state| state.next_event += 1).unwrap();
                        file.read().unwrap();
                    }
                });
            }
        });
        assert_eq!(file.read().unwrap().next_event, 200);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn what_is_read_is_what_the_file_says_now() {
        let (directory, file) = temporary("now");
        let other = StateFile::at(directory.join("other.json"));
        let state = |next_event| State {
            next_event,
            ..State::default()
        };
        // All texts have the same length, and most are written within the same tick of the clock.
        for number in 10..50 {
            file.write(&state(number)).unwrap();
            other.write(&state(number + 1)).unwrap();
            for _ in 0..2 {
                assert_eq!(file.read().unwrap(), state(number));
                assert_eq!(other.read().unwrap(), state(number + 1));
            }
            // Somebody writes into the file itself.
            let text = fs::read(file.path()).unwrap();
            fs::copy(other.path(), file.path()).unwrap();
            assert_eq!(file.read().unwrap(), state(number + 1));
            fs::write(file.path(), &text[..text.len() - 1]).unwrap();
            file.read().unwrap_err();
            fs::write(file.path(), text).unwrap();
            assert_eq!(file.read().unwrap(), state(number));
        }
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_file_that_is_not_there_or_is_none_is_an_error_that_names_it() {
        let (directory, file) = temporary("errors");
        for content in [None, Some("{\"bord\": \"t4-2\"}")] {
            if let Some(content) = content {
                fs::write(file.path(), content).unwrap();
            }
            let error = file.read().unwrap_err().to_string();
            assert!(error.contains("state.json"), "{error}");
        }
        fs::remove_dir_all(directory).unwrap();
    }
}
