//! A machine with a driver root, in which the mock library is NVIDIA's.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use muster_device::{
    Backend, BackendConfig, Gpu, LibrarySource, Listed, ListedGpu, cdi::DriverRoot,
};
use nvidia_ml_mock::{Failure, Hang, STATE_FILE, State, StateFile, library};

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
    board: String,
}

impl Machine {
    /// Eight H100, with a driver that is installed and loaded.
    pub(crate) fn new() -> Self {
        Self::of("h100-nvswitch-8")
    }

    /// The same with another board.
    pub(crate) fn of(board: &str) -> Self {
        let machine = Self {
            board: board.to_owned(),
            ..Self::without_library()
        };
        machine.install(LIBRARIES, VERSION);
        machine
    }

    /// Eight H100 without NVML's library.
    pub(crate) fn without_library() -> Self {
        let machine = Self {
            directory: tempfile::tempdir().unwrap(),
            board: "h100-nvswitch-8".to_owned(),
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

    /// Installs NVML of a version: a file of its own, as another version is. Those of one directory see the same hardware.
    pub(crate) fn install(&self, directory: &str, version: &str) -> PathBuf {
        let directory = self.root(directory);
        fs::create_dir_all(&directory).unwrap();
        let file = directory.join(format!("libnvidia-ml.so.{version}"));
        fs::copy(library().unwrap(), &file).unwrap();
        let state = StateFile::at(directory.join(STATE_FILE));
        if !state.path().exists() {
            let board = self.board.clone();
            let new = State {
                board,
                ..State::default()
            };
            state.write(&new).unwrap();
        }
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

    fn state_file(&self) -> StateFile {
        StateFile::at(self.root(LIBRARIES).join(STATE_FILE))
    }

    /// The hardware that the libraries in the usual directory see.
    pub(crate) fn state(&self) -> State {
        self.state_file().read().unwrap()
    }

    /// Changes it.
    pub(crate) fn change(&self, change: impl FnOnce(&mut State)) {
        self.state_file().change(change).unwrap();
    }

    /// Calls of this function about this GPU hang, or none does any more.
    pub(crate) fn hang(&self, hangs: &[(&str, &str)]) {
        let hang = |(function, gpu): &(&str, &str)| Hang {
            function: (*function).to_owned(),
            gpu: (*gpu).to_owned(),
        };
        self.change(|state| state.hangs = hangs.iter().map(hang).collect());
    }

    /// These calls fail, and no others do.
    pub(crate) fn fail(&self, failures: Vec<Failure>) {
        self.change(|state| state.failures = failures);
    }

    /// A GPU of it is in MIG mode.
    pub(crate) fn in_mig_mode(&self, gpu: &str) {
        self.change(|state| {
            let card = state.card(gpu);
            card.mig_current = true;
            card.mig_pending = true;
        });
    }

    pub(crate) fn backend(&self) -> Backend {
        self.backend_within(CALL_LIMIT)
    }

    /// One that waits so long for a call.
    pub(crate) fn backend_within(&self, call_limit: Duration) -> Backend {
        let root = DriverRoot {
            path: self.path("root"),
            on_host: "/run/nvidia/driver".into(),
        };
        Backend::new(BackendConfig {
            library: LibrarySource::DriverRoot(root),
            sysfs: self.path("sys"),
            proc: self.path("proc"),
            call_limit,
        })
    }
}

/// The first call of this function fails with this code; having done what it is for, or not.
pub(crate) fn once(function: &str, code: u32, after_effect: bool) -> Failure {
    Failure {
        function: function.to_owned(),
        code,
        times: Some(1),
        after_effect,
        ..Failure::default()
    }
}

/// All GPUs, which answer.
pub(crate) fn gpus(backend: &Backend) -> Vec<Gpu> {
    let listed = backend.gpus().unwrap();
    assert_eq!(uuids(&listed).1, Vec::<String>::new(), "these are silent");
    listed.gpus.into_iter().map(|listed| listed.gpu).collect()
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
