//! A machine with a driver root, in which the mock library is NVIDIA's.

use std::{
    cell::RefCell,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use muster_device::{Backend, BackendConfig, LibrarySource, Listed, ListedGpu, cdi::DriverRoot};
use nvidia_ml_mock::{Hang, STATE_FILE, State, library};

/// The driver that is installed first.
pub(crate) const VERSION: &str = "580.95.05";
/// Where it is installed.
pub(crate) const LIBRARIES: &str = "usr/lib64";
/// Longest that a call is waited for here.
pub(crate) const CALL_LIMIT: Duration = Duration::from_secs(2);
/// Longest time for anything to come about.
const LIMIT: Duration = Duration::from_secs(30);

pub(crate) struct Machine {
    directory: tempfile::TempDir,
    state: RefCell<State>,
}

impl Machine {
    /// Eight H100, with a driver that is installed and loaded.
    pub(crate) fn new() -> Self {
        let machine = Self::without_library();
        machine.install(LIBRARIES, VERSION);
        machine
    }

    /// The same, but for NVML's library.
    pub(crate) fn without_library() -> Self {
        let machine = Self {
            directory: tempfile::tempdir().unwrap(),
            state: RefCell::new(State {
                board: "h100-nvswitch-8".to_owned(),
                ..State::default()
            }),
        };
        fs::create_dir_all(machine.path("root")).unwrap();
        machine.load(Some(VERSION));
        machine
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    /// A path in the driver root.
    pub(crate) fn root(&self, path: &str) -> PathBuf {
        self.path("root").join(path)
    }

    /// Installs NVML of a version: a file of its own, as another version is.
    pub(crate) fn install(&self, directory: &str, version: &str) -> PathBuf {
        let directory = self.root(directory);
        fs::create_dir_all(&directory).unwrap();
        let file = directory.join(format!("libnvidia-ml.so.{version}"));
        fs::copy(library().unwrap(), &file).unwrap();
        self.write(&directory);
        file
    }

    /// A link in the driver root.
    pub(crate) fn link(&self, path: &str, target: impl AsRef<Path>) {
        let path = self.root(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    /// The kernel has the module of this version, or none.
    pub(crate) fn load(&self, version: Option<&str>) {
        let directory = self.path("proc/driver/nvidia");
        fs::create_dir_all(&directory).unwrap();
        let text = version.map_or(String::new(), |version| {
            format!("NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Sun Jul 27\n")
        });
        fs::write(directory.join("version"), text).unwrap();
    }

    /// Changes what the libraries in the usual directory see.
    pub(crate) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.borrow_mut());
        self.write(&self.root(LIBRARIES));
    }

    /// Calls of this function about this GPU hang, or none does any more.
    pub(crate) fn hang(&self, hangs: &[(&str, &str)]) {
        let hang = |(function, gpu): &(&str, &str)| Hang {
            function: (*function).to_owned(),
            gpu: (*gpu).to_owned(),
        };
        self.change(|state| state.hangs = hangs.iter().map(hang).collect());
    }

    fn write(&self, directory: &Path) {
        let next = directory.join("next.json");
        fs::write(&next, serde_json::to_vec(&*self.state.borrow()).unwrap()).unwrap();
        fs::rename(&next, directory.join(STATE_FILE)).unwrap();
    }

    pub(crate) fn backend(&self) -> Backend {
        let root = DriverRoot {
            path: self.path("root"),
            on_host: "/run/nvidia/driver".into(),
        };
        Backend::new(BackendConfig {
            library: LibrarySource::DriverRoot(root),
            sysfs: self.path("sys"),
            proc: self.path("proc"),
            call_limit: CALL_LIMIT,
        })
    }
}

/// Waits until something holds.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < deadline, "not so: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// UUIDs of the GPUs that answered, and of those that did not.
pub(crate) fn uuids(listed: &Listed) -> (Vec<String>, Vec<String>) {
    let (silent, answered): (Vec<_>, Vec<_>) =
        listed.gpus.iter().partition(|gpu| gpu.silent.is_some());
    let uuids = |gpus: Vec<&ListedGpu>| -> Vec<String> {
        let uuids = gpus.iter().map(|listed| listed.gpu.uuid.clone());
        uuids.collect()
    };
    (uuids(answered), uuids(silent))
}
