//! How far a gang was: one number in the shared directory.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The file `checkpoint` of the shared directory: how many steps all ranks have done.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    file: PathBuf,
}

impl Checkpoint {
    pub(crate) fn of(directory: &Path) -> Self {
        Self {
            file: directory.join("checkpoint"),
        }
    }

    /// Steps that were done; none where there is no checkpoint.
    pub(crate) fn read(&self) -> u32 {
        let text = fs::read_to_string(&self.file).ok();
        text.and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// By rename: a rank that is killed leaves the old one or the new one.
    pub(crate) fn write(&self, steps: u32) -> io::Result<()> {
        let partial = self.file.with_extension("new");
        fs::write(&partial, steps.to_string())?;
        fs::rename(partial, &self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gang_goes_on_from_the_last_checkpoint_and_begins_without_one() {
        let directory = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::of(directory.path());
        assert_eq!(checkpoint.read(), 0);
        for steps in [1, 17] {
            checkpoint.write(steps).unwrap();
        }
        assert_eq!(Checkpoint::of(directory.path()).read(), 17);
    }
}
