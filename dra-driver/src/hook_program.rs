//! The hook's program on the node.
//!
//! CDI files name it, and the runtime runs it whenever a container of a prepared claim starts: also while the driver is
//! being updated, and after it was removed. So its name tells its content, a new version goes beside the old one, and an old
//! one stays as long as a CDI file names it.
//!
//! Who else may write: another instance of the driver, during an update. Both do so under the store's lock, and each looks
//! whether its own is there before it writes a CDI file. Installed twice it is there once.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
};

use muster_device::files;
use ring::digest::{SHA256, digest};
use rustix::fs::{StatVfsMountFlags, statvfs};

/// What names of all versions begin with.
const PREFIX: &str = "muster-cdi-hook-";
/// How much of the content's digest is in the name.
const DIGEST_BYTES: usize = 8;
/// The runtime runs it as whatever user the container's root is.
const MODE: u32 = 0o755;

/// The version of the hook that came with this driver.
#[derive(Clone, Debug)]
pub struct HookProgram {
    source: PathBuf,
    path: PathBuf,
}

impl HookProgram {
    /// The program at `source`, to be installed in `directory`.
    pub fn new(source: &Path, directory: &Path) -> io::Result<Self> {
        let content = fs::read(source)?;
        let digest = digest(&SHA256, &content);
        let digest: String = digest
            .as_ref()
            .iter()
            .take(DIGEST_BYTES)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let name = format!("{PREFIX}{}-{digest}", env!("CARGO_PKG_VERSION"));
        Ok(Self {
            source: source.to_owned(),
            path: directory.join(name),
        })
    }

    /// Where it is on the node.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Installs it, unless it is there as it should be.
    pub fn install(&self) -> io::Result<()> {
        let content = fs::read(&self.source).map_err(|error| named(&self.source, &error))?;
        let directory = self.path.parent().unwrap_or_else(|| Path::new("/"));
        let made = fs::DirBuilder::new()
            .recursive(true)
            .mode(MODE)
            .create(directory);
        made.map_err(|error| named(directory, &error))?;
        let mounted = statvfs(directory).map_err(|error| named(directory, &error.into()))?;
        if mounted.f_flag.contains(StatVfsMountFlags::NOEXEC) {
            let cause =
                "nothing may be executed there (noexec); choose another directory with --hook-dir";
            return Err(named(directory, &io::Error::other(cause)));
        }
        let is_there = fs::read(&self.path).is_ok_and(|there| there == content)
            && fs::metadata(&self.path)
                .is_ok_and(|there| there.permissions().mode() & 0o7777 == MODE);
        if !is_there {
            files::write_whole(&self.path, &content, MODE)
                .map_err(|error| named(&self.path, &error))?;
            // Whatever our umask is.
            let permissions = fs::Permissions::from_mode(MODE);
            fs::set_permissions(&self.path, permissions)
                .map_err(|error| named(&self.path, &error))?;
        }
        Ok(())
    }

    /// Installs it if somebody removed it.
    pub fn ensure(&self) -> io::Result<()> {
        let there = fs::symlink_metadata(&self.path);
        if there.is_ok_and(|there| there.is_file()) {
            return Ok(());
        }
        self.install()
    }

    /// Removes other versions, but for those that `named` tells, in whatever directory: this one may have had another name
    /// before (on some systems `/opt` is a link), and names of files tell their content. It is asked only if there are any.
    pub fn remove_others(
        &self,
        named: impl FnOnce() -> io::Result<BTreeSet<PathBuf>>,
    ) -> io::Result<()> {
        let others = self.others()?;
        if others.is_empty() {
            return Ok(());
        }
        let named = named()?;
        let is_named = |other: &Path| {
            let mut named = named.iter();
            named.any(|path| path.file_name() == other.file_name())
        };
        for other in others.into_iter().filter(|other| !is_named(other)) {
            tracing::info!(file = %other.display(), "a hook program that no CDI file names is removed");
            files::remove(&other)?;
        }
        Ok(())
    }

    fn others(&self) -> io::Result<Vec<PathBuf>> {
        let directory = self.path.parent().unwrap_or_else(|| Path::new("/"));
        let mut others = Vec::new();
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let is_ours = entry
                .file_name()
                .to_str()
                .is_some_and(|name| name.starts_with(PREFIX));
            let path = entry.path();
            if is_ours && path != self.path {
                others.push(path);
            }
        }
        Ok(others)
    }
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!("hook program: {}: {error}", path.display()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixture {
        root: tempfile::TempDir,
    }

    impl Fixture {
        fn new() -> Self {
            Self {
                root: tempfile::tempdir().unwrap(),
            }
        }

        fn directory(&self) -> PathBuf {
            self.root.path().join("muster/bin")
        }

        /// The version with this content.
        fn version(&self, content: &str) -> HookProgram {
            let source = self.root.path().join(content);
            fs::write(&source, content).unwrap();
            HookProgram::new(&source, &self.directory()).unwrap()
        }

        fn installed(&self) -> BTreeSet<PathBuf> {
            let entries = fs::read_dir(self.directory()).unwrap();
            entries.map(|entry| entry.unwrap().path()).collect()
        }
    }

    fn paths(programs: &[&HookProgram]) -> BTreeSet<PathBuf> {
        programs
            .iter()
            .map(|program| program.path.clone())
            .collect()
    }

    #[test]
    fn it_is_installed_beside_other_versions_and_again_if_it_was_removed_or_changed() {
        let f = Fixture::new();
        let (one, two) = (f.version("one"), f.version("two"));
        for program in [&one, &two, &one] {
            program.install().unwrap();
        }
        assert_eq!(f.installed(), paths(&[&one, &two]));
        fs::remove_file(&one.path).unwrap();
        one.ensure().unwrap();
        fs::write(&two.path, "changed").unwrap();
        fs::set_permissions(&two.path, fs::Permissions::from_mode(0o600)).unwrap();
        two.install().unwrap();
        for (program, content) in [(&one, "one"), (&two, "two")] {
            assert_eq!(fs::read_to_string(&program.path).unwrap(), content);
            let mode = fs::metadata(&program.path).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o755);
        }
    }

    #[test]
    fn a_link_under_its_name_is_replaced_and_not_followed() {
        let f = Fixture::new();
        let one = f.version("one");
        let file = f.root.path().join("file");
        fs::write(&file, "of the host").unwrap();
        fs::create_dir_all(f.directory()).unwrap();
        std::os::unix::fs::symlink(&file, &one.path).unwrap();
        one.ensure().unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "of the host");
        assert!(fs::symlink_metadata(&one.path).unwrap().is_file());
    }

    #[test]
    fn other_versions_go_once_nobody_names_them_and_files_of_others_stay() {
        let f = Fixture::new();
        let (one, two, three) = (f.version("one"), f.version("two"), f.version("three"));
        for program in [&one, &two, &three] {
            program.install().unwrap();
        }
        let foreign = f.directory().join("nvidia-cdi-hook");
        fs::write(&foreign, "").unwrap();
        let unknown = || Err(io::Error::other("it cannot be told"));
        assert!(three.remove_others(unknown).is_err());
        assert_eq!(f.installed().len(), 4);
        three.remove_others(|| Ok(paths(&[&two]))).unwrap();
        assert_eq!(
            f.installed(),
            &paths(&[&two, &three]) | &BTreeSet::from([foreign.clone()])
        );
        three.remove_others(|| Ok(BTreeSet::new())).unwrap();
        assert_eq!(
            f.installed(),
            &paths(&[&three]) | &BTreeSet::from([foreign])
        );
    }

    #[test]
    fn a_version_stays_that_a_file_names_by_another_way_to_its_directory() {
        let f = Fixture::new();
        let (one, two) = (f.version("one"), f.version("two"));
        for program in [&one, &two] {
            program.install().unwrap();
        }
        let other_way = Path::new("/opt/muster/bin").join(one.path.file_name().unwrap());
        two.remove_others(|| Ok(BTreeSet::from([other_way])))
            .unwrap();
        assert_eq!(f.installed(), paths(&[&one, &two]));
    }

    /// Set where the test runs once more, with such a directory mounted.
    const MOUNTED: &str = "MUSTER_TEST_NOEXEC_DIRECTORY";

    #[test]
    fn a_directory_in_which_nothing_may_be_executed_is_refused() {
        if let Some(directory) = std::env::var_os(MOUNTED) {
            let program = HookProgram::new(Path::new("/proc/self/exe"), Path::new(&directory));
            let refusal = program.unwrap().install().unwrap_err().to_string();
            assert!(
                refusal.contains("noexec") && refusal.contains("--hook-dir"),
                "{refusal}"
            );
            assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
            return;
        }
        let f = Fixture::new();
        let name = "hook_program::tests::a_directory_in_which_nothing_may_be_executed_is_refused";
        let script = format!("mount -t tmpfs -o noexec tmpfs \"${MOUNTED}\"; exec \"$@\"");
        let again = std::process::Command::new("unshare")
            .args([
                "--user",
                "--map-root-user",
                "--mount",
                "sh",
                "-euc",
                &script,
                "sh",
            ])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(MOUNTED, f.root.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&again.stdout).into_owned()
            + &String::from_utf8_lossy(&again.stderr);
        assert!(
            again.status.success() && said.contains("1 passed"),
            "{said}"
        );
    }
}
