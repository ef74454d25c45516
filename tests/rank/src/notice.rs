//! What a rank is told about the end of its gang: a file that the kubelet writes from an annotation of its pod.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

/// Variables of the process runtime that say where a volume is: `MUSTER_MOUNT_N=PATH IN THE CONTAINER=PATH ON THE NODE`.
const MOUNT_VARIABLES: &str = "MUSTER_MOUNT_";

/// The file, and what was answered to it.
#[derive(Debug)]
pub(crate) struct Notice {
    file: PathBuf,
    answers: PathBuf,
    answered: String,
}

impl Notice {
    /// `file` as the container names it; the answers go into `directory`.
    pub(crate) fn of(file: &Path, directory: &Path) -> Self {
        let variables = env::vars().filter(|(name, _)| name.starts_with(MOUNT_VARIABLES));
        Self {
            file: on_node(file, variables.map(|(_, value)| value)),
            answers: directory.join("saved-for"),
            answered: String::new(),
        }
    }

    /// What it says, if that is news. It says nothing as long as there is no notice.
    pub(crate) fn news(&self) -> Option<String> {
        let said = fs::read_to_string(&self.file).unwrap_or_default();
        (!said.is_empty() && said != self.answered).then_some(said)
    }

    /// Says that all is saved for this notice: in a file, by rename, as a checkpoint is.
    pub(crate) fn answer(&mut self, said: String) -> io::Result<()> {
        let partial = self.answers.with_extension("new");
        fs::write(&partial, &said)?;
        fs::rename(partial, &self.answers)?;
        self.answered = said;
        Ok(())
    }
}

/// Where a file in a volume of the container is: the containers of the tests have no file system of their own.
fn on_node(file: &Path, mounts: impl Iterator<Item = String>) -> PathBuf {
    for mount in mounts {
        let Some((in_container, on_node)) = mount.split_once('=') else {
            continue;
        };
        if let Ok(rest) = file.strip_prefix(in_container) {
            return Path::new(on_node).join(rest);
        }
    }
    file.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_in_a_volume_is_where_the_runtime_says_that_the_volume_is() {
        let mounts = || ["/tokens=/node/tokens", "/told=/node/told"].map(str::to_owned);
        let at = |file: &str| on_node(Path::new(file), mounts().into_iter());
        assert_eq!(at("/told/preempt-at"), Path::new("/node/told/preempt-at"));
        assert_eq!(at("/toldnot/preempt-at"), Path::new("/toldnot/preempt-at"));
    }

    #[test]
    fn a_notice_is_answered_once_and_another_one_anew() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("preempt-at");
        let mut notice = Notice::of(&file, directory.path());
        assert_eq!(notice.news(), None, "there is no file");
        for said in ["", "2026-01-01T00:00:00Z", "", "2026-01-01T00:00:09Z"] {
            fs::write(&file, said).unwrap();
            assert_eq!(notice.news().is_some(), !said.is_empty(), "{said:?}");
            if let Some(said) = notice.news() {
                notice.answer(said).unwrap();
                assert_eq!(notice.news(), None);
            }
        }
        let answer = fs::read_to_string(directory.path().join("saved-for"));
        assert_eq!(answer.unwrap(), "2026-01-01T00:00:09Z");
    }
}
