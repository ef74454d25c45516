//! A node with the real driver program on the mock NVML library, and its kubelet's side of the sockets.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use muster_kubelet_api::dra::v1::{
    Claim, NodePrepareResourceResponse, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest,
    dra_plugin_client::DraPluginClient,
};
use nvidia_ml_mock::{Process, STATE_VARIABLE, State};
use tonic::transport::{Channel, Endpoint};

use crate::api_server::ApiServer;

/// Longest time for anything to come about.
const LIMIT: Duration = Duration::from_secs(30);

/// A node. What it started ends with it.
pub(crate) struct Node {
    /// The API server that the driver talks to.
    pub(crate) api: ApiServer,
    root: tempfile::TempDir,
    /// The GPUs, which nothing uses.
    state: State,
    /// NVML's library.
    pub(crate) library: PathBuf,
    /// Flags beside those that every driver here has.
    pub(crate) flags: Vec<String>,
    driver: Option<Child>,
}

impl Node {
    /// Two T4, no driver yet.
    pub(crate) async fn new() -> Self {
        let node = Self {
            api: ApiServer::default(),
            root: tempfile::tempdir().unwrap(),
            state: State {
                board: "t4-2".to_owned(),
                seed: "node-0".to_owned(),
                ..State::default()
            },
            library: nvidia_ml_mock::library().unwrap(),
            flags: Vec::new(),
            driver: None,
        };
        node.write_state(&node.state);
        fs::write(node.path("boot_id"), "boot-1\n").unwrap();
        let server = format!("http://{}", node.api.start().await);
        let kubeconfig = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": server}}],
            "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        });
        fs::write(node.path("kubeconfig"), kubeconfig.to_string()).unwrap();
        node
    }

    /// The same with the driver running and registered to be found.
    pub(crate) async fn started() -> Self {
        let mut node = Self::new().await;
        node.start().await;
        node
    }

    /// A path on the node.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Starts the driver, and waits until its sockets are served.
    pub(crate) async fn start(&mut self) {
        let flag = |name: &str, path: &str| format!("--{name}={}", self.path(path).display());
        let driver = Command::new(env!("CARGO_BIN_EXE_muster-dra-driver"))
            .arg("--node-name=node-0")
            .arg("--admin-addr=127.0.0.1:0")
            .arg("--log-format=text")
            .arg(flag("kubeconfig", "kubeconfig"))
            .arg(flag("registration-dir", "r"))
            .arg(flag("plugin-dir", "p"))
            .arg(flag("cdi-dir", "cdi"))
            .arg(flag("state-dir", "state"))
            .arg(flag("boot-id-file", "boot_id"))
            .arg(flag("cgroup-dir", "cgroup"))
            .arg(flag("proc-dir", "proc"))
            .arg(flag("sys-dir", "sys"))
            .arg(flag("kernel-log", "kmsg"))
            .arg(format!("--nvml-library={}", self.library.display()))
            .args(&self.flags)
            .env(STATE_VARIABLE, self.path("nvml.json"))
            .stdout(Stdio::null())
            .stderr(fs::File::create(self.path("log")).unwrap())
            .spawn()
            .unwrap();
        self.driver = Some(driver);
        let socket = self.registration_socket();
        self.eventually("the sockets are served", || is_served(&socket))
            .await;
    }

    /// Says that a GPU is mended: whether the driver believes it, and its answer.
    pub(crate) async fn mended(&self, gpu: &str) -> (bool, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_muster-dra-driver"));
        command
            .arg("--node-name=node-0")
            .arg(format!("--state-dir={}", self.path("state").display()))
            .arg(format!("--mended={gpu}"));
        let ended = tokio::task::spawn_blocking(move || command.output()).await;
        let output = ended.unwrap().unwrap();
        let told = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(told).unwrap())
    }

    /// Kills the driver where it stands.
    pub(crate) fn crash(&mut self) {
        let mut driver = self.driver.take().unwrap();
        driver.kill().unwrap();
        driver.wait().unwrap();
    }

    /// Asks the driver to stop, and waits until it has; whether it ended well.
    pub(crate) async fn stop(&mut self) -> bool {
        let mut driver = self.driver.take().unwrap();
        let killed = Command::new("kill")
            .arg(driver.id().to_string())
            .status()
            .unwrap();
        assert!(killed.success());
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(status) = driver.try_wait().unwrap() {
                return status.success();
            }
            assert!(
                Instant::now() < deadline,
                "it does not stop\n{}",
                self.log()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The most memory that the driver has had since it started, in bytes.
    pub(crate) fn peak_memory_bytes(&self) -> u64 {
        let id = self.driver.as_ref().unwrap().id();
        let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let mut lines = status.lines();
        let peak = lines.find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let kibibytes = peak.trim().strip_suffix(" kB").unwrap();
        kibibytes.parse::<u64>().unwrap() * 1_024
    }

    /// Where the kubelet looks.
    pub(crate) fn registration_socket(&self) -> PathBuf {
        self.path("r/gpu.muster.dev@reg.sock")
    }

    /// The driver's log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Waits until something holds.
    pub(crate) async fn eventually(&self, what: &str, holds: impl Fn() -> bool) {
        self.eventually_within(LIMIT, what, holds).await;
    }

    /// The same of what takes its time.
    pub(crate) async fn eventually_within(
        &self,
        limit: Duration,
        what: &str,
        holds: impl Fn() -> bool,
    ) {
        let deadline = Instant::now() + limit;
        while !holds() {
            assert!(Instant::now() < deadline, "not so: {what}\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// UUID of the first GPU that is recorded for a claim.
    pub(crate) fn recorded_gpu(&self, uid: &str) -> String {
        let record = fs::read_to_string(self.path(&format!("state/claims/{uid}.json"))).unwrap();
        let record: serde_json::Value = serde_json::from_str(&record).unwrap();
        let gpu = record.pointer("/devices/0/unit/gpu").unwrap();
        gpu.as_str().unwrap().to_owned()
    }

    /// UUID of the GPU that is a device of this name, once it has one.
    pub(crate) async fn gpu(&self, device: &str) -> String {
        let index: u64 = device.strip_prefix("gpu-").unwrap().parse().unwrap();
        let known = || -> Option<String> {
            let file = fs::read(self.path("state/devices.json")).ok()?;
            let known: serde_json::Value = serde_json::from_slice(&file).ok()?;
            let gpus = known.get("gpus")?.as_array()?;
            let named = |gpu: &&serde_json::Value| gpu["index"] == index;
            Some(gpus.iter().find(named)?["uuid"].as_str()?.to_owned())
        };
        self.eventually("the GPUs have names", || known().is_some())
            .await;
        known().unwrap()
    }

    /// A process with this id uses GPU `gpu`, or none does.
    pub(crate) fn use_gpu(&self, process: Option<(&str, u32)>) {
        let processes: Vec<(&str, u32)> = process.into_iter().collect();
        self.use_gpus(&processes, &[]);
    }

    /// These processes use these GPUs, and the `secretive` GPUs do not say what uses them.
    pub(crate) fn use_gpus(&self, processes: &[(&str, u32)], secretive: &[&str]) {
        let processes = processes.iter().map(|(gpu, pid)| Process {
            gpu: (*gpu).to_owned(),
            pid: *pid,
            used_bytes: 0,
        });
        self.write_state(&State {
            processes: processes.collect(),
            secretive: secretive.iter().map(|gpu| (*gpu).to_owned()).collect(),
            ..self.state.clone()
        });
    }

    /// The hardware is otherwise than at the start.
    pub(crate) fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.clone();
        change(&mut state);
        self.write_state(&state);
    }

    /// A file with another state of the hardware, to take the place of the one that holds.
    pub(crate) fn other_state(&self, name: &str, change: impl FnOnce(&mut State)) -> PathBuf {
        let mut state = self.state.clone();
        change(&mut state);
        let path = self.path(name);
        fs::write(&path, serde_json::to_vec(&state).unwrap()).unwrap();
        path
    }

    /// The kernel's list of devices has the capabilities of slices, without which no container is given one: where the mock shows which
    /// there are.
    pub(crate) fn has_capabilities(&self) -> PathBuf {
        let proc = self.path("proc");
        fs::create_dir_all(&proc).unwrap();
        let devices =
            "Character devices:\n195 nvidia\n195 nvidiactl\n235 nvidia-caps\n236 nvidia-uvm\n";
        fs::write(proc.join("devices"), devices).unwrap();
        proc
    }

    /// What the kernel tells of a process.
    pub(crate) fn has_process(&self, pid: u32, cgroup: &str) {
        let directory = self.path(&format!("proc/{pid}"));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("cgroup"), format!("0::{cgroup}\n")).unwrap();
        std::os::unix::fs::symlink("/usr/bin/program", directory.join("exe")).unwrap();
    }

    fn write_state(&self, state: &State) {
        let next = self.path("nvml.next");
        fs::write(&next, serde_json::to_vec(state).unwrap()).unwrap();
        fs::rename(next, self.path("nvml.json")).unwrap();
    }

    /// A connection to the DRA socket, as the kubelet opens it.
    pub(crate) async fn kubelet(&self) -> DraPluginClient<Channel> {
        let address = format!("unix:{}", self.path("p/dra.sock").display());
        let channel = Endpoint::try_from(address)
            .unwrap()
            .connect()
            .await
            .unwrap();
        DraPluginClient::new(channel)
    }

    /// Has a claim prepared; its entry of the answer.
    pub(crate) async fn prepare(&self, uid: &str) -> NodePrepareResourceResponse {
        let request = NodePrepareResourcesRequest {
            claims: vec![claim(uid)],
        };
        let answer = self.kubelet().await.node_prepare_resources(request).await;
        answer.unwrap().into_inner().claims.remove(uid).unwrap()
    }

    /// Has a claim given back; the error of its entry, empty if there is none.
    pub(crate) async fn unprepare(&self, uid: &str) -> String {
        let request = NodeUnprepareResourcesRequest {
            claims: vec![claim(uid)],
        };
        let answer = self.kubelet().await.node_unprepare_resources(request).await;
        answer
            .unwrap()
            .into_inner()
            .claims
            .remove(uid)
            .unwrap()
            .error
    }

    /// Names of the files in a directory of the node.
    pub(crate) fn files(&self, directory: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(directory)).into_iter().flatten();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

/// A claim as the kubelet names it.
pub(crate) fn claim(uid: &str) -> Claim {
    Claim {
        namespace: "ml".to_owned(),
        uid: uid.to_owned(),
        name: format!("claim-{uid}"),
    }
}

/// Whether somebody listens.
pub(crate) fn is_served(socket: &Path) -> bool {
    std::os::unix::net::UnixStream::connect(socket).is_ok()
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut driver) = self.driver.take() {
            let _ = driver.kill();
            let _ = driver.wait();
        }
    }
}
