//! A node: a real kubelet, the process runtime and, once Muster is installed, its driver, in a user
//! and mount namespace of their own.
//!
//! In that namespace the node's directory is mounted where a node has it, so that kubelet and driver
//! run with the paths that ship:
//!
//! | path on the node | in the cluster's directory |
//! | --- | --- |
//! | `/var/lib/kubelet` | `n/NAME/kubelet` |
//! | `/var/lib/muster` | `n/NAME/muster` |
//! | `/var/run/cdi` | `n/NAME/cdi` |
//! | `/run/machine` | `n/NAME` |
//!
//! What the kernel shows of NVIDIA's driver lies in `/run/machine/proc` (`nvml.json`, which stands for the cards, names it): the minor
//! numbers of capabilities, and the processes that use GPUs. For the driver that is `/proc`.
//!
//! The user namespace keeps a kubelet that is started by root from writing the machine's sysctls, and
//! lets an ordinary user mount. Where it is forbidden, root does without it.

mod hardware;
mod kubelet;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use muster_api::keys;
use nvidia_ml_mock::StateFile;
use serde_json::json;

use crate::{
    control_plane::ControlPlane,
    gpu_board::Board,
    kube_binaries::KubeBinaries,
    kubernetes::{Progress, eventually},
    loopback::Loopback,
    preflight,
    process::{Launch, Process},
    service::{Probe, Service},
};

/// Longest time until a kubelet is registered and Ready; on an idle machine it takes five seconds.
const READY_LIMIT: Duration = Duration::from_mins(1);
/// Longest time between SIGTERM and SIGKILL.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// State file of the mock NVML library, as the driver sees it.
pub const BOARD_FILE_ON_NODE: &str = "/run/machine/nvml.json";
/// What stands for `/proc`, as the driver sees it.
pub const PROC_ON_NODE: &str = "/run/machine/proc";
/// File in a node's directory with its boot id, for drivers that are installed with [`BOOT_ID_ARGUMENT`].
pub const BOOT_ID_FILE: &str = "boot-id";
/// Argument by which the driver takes the node's boot id from its directory, so that a test can boot it anew.
pub const BOOT_ID_ARGUMENT: &str = "--boot-id-file=/run/machine/boot-id";

/// What a node is to be.
#[derive(Clone, Debug, Default)]
pub struct NodeOptions {
    /// Its name; at most 20 characters, because the paths of its sockets are bounded.
    pub name: String,
    /// Labels that it gets beside the kubelet's own.
    pub labels: BTreeMap<String, String>,
    /// Its GPUs; none without.
    pub board: Option<Board>,
    /// Whether its GPUs are in MIG mode from the beginning, as administrators leave those that would have to be reset for it.
    pub in_mig_mode: bool,
    /// Seconds between two regular looks of the kubelet at a pod; the stock 60 without.
    pub sync_seconds: Option<u32>,
}

/// A running node.
#[derive(Debug)]
pub struct Node {
    options: NodeOptions,
    directory: PathBuf,
    logs: PathBuf,
    services: BTreeMap<NodePart, Service>,
    /// How the driver is started, and the URL that it answers at.
    driver: Option<(Launch, String)>,
    /// A second instance of it, while an update is under way.
    next_driver: Option<Service>,
    /// How a process enters the namespaces.
    inside: Vec<OsString>,
    /// Keeps the namespaces; the last to go.
    holder: Option<Process>,
}

/// A program of a node, in the order in which they are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodePart {
    /// The process runtime. Its containers die with it.
    Runtime,
    /// The kubelet.
    Kubelet,
    /// Muster's DRA driver; there is none before the installation, nor on a node without GPUs.
    Driver,
}

impl Node {
    /// Starts runtime and kubelet; `number` (from 0) chooses the pod addresses. Does not wait until it
    /// is Ready, so that nodes start side by side: see [`Self::wait_until_ready`].
    pub async fn start(
        options: NodeOptions,
        number: u8,
        cluster_directory: &Path,
        programs: &KubeBinaries,
        loopback: &Loopback,
        control_plane: &ControlPlane,
    ) -> Result<Self> {
        let directory = cluster_directory.join("n").join(&options.name);
        for room in [
            "kubelet",
            "muster",
            "cdi",
            "runtime",
            "certificates",
            "logs",
        ] {
            fs::create_dir_all(directory.join(room))?;
        }
        let (arguments, url) = kubelet::arguments(&options, &directory, loopback, control_plane)?;
        let mut node = Self {
            logs: cluster_directory.join("logs"),
            services: BTreeMap::new(),
            driver: None,
            next_driver: None,
            inside: Vec::new(),
            holder: None,
            options,
            directory,
        };
        if let Some(board) = &node.options.board {
            hardware::install(board, &node.options, &node.hardware(), &node.directory)?;
        }
        node.make_namespaces().await?;
        let pods = loopback.pod_prefix(number)?;
        let runtime = node.runtime_launch(programs, &pods, &control_plane.etcd_url());
        node.add(NodePart::Runtime, runtime, Probe::Socket(node.cri_socket()));
        node.service(NodePart::Runtime)?.start().await?;
        let kubelet = node.launch("kubelet", programs.kubernetes("kubelet"));
        node.add(
            NodePart::Kubelet,
            kubelet.args(arguments),
            Probe::Http(url, "/healthz"),
        );
        node.start_kubelet()?;
        Ok(node)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.options.name
    }

    /// Its GPUs.
    pub fn board(&self) -> Option<&Board> {
        self.options.board.as_ref()
    }

    /// Its directory, which holds what a node keeps on disk.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The process runtime's record of devices injected into containers: JSON lines.
    pub fn record(&self) -> PathBuf {
        self.directory.join("record.jsonl")
    }

    /// Its CDI directory.
    pub fn cdi_directory(&self) -> PathBuf {
        self.directory.join("cdi")
    }

    /// The socket on which the driver serves the kubelet's calls.
    pub fn driver_socket(&self) -> PathBuf {
        let plugins = self.directory.join("kubelet/plugins");
        plugins.join(keys::DRIVER).join("dra.sock")
    }

    /// The directory of the driver's records, one for each claim that is prepared. The driver makes it.
    pub fn driver_records(&self) -> PathBuf {
        self.directory.join("muster/claims")
    }

    /// The driver's record of the claim with this UID; there is none before its Prepare and after its Unprepare.
    pub fn driver_record(&self, claim_uid: &str) -> PathBuf {
        self.driver_records().join(format!("{claim_uid}.json"))
    }

    /// Its hardware: what the mock NVML library of this node shows, and what its cards remember. A test changes it by
    /// [`StateFile::change`]; the driver does, too.
    pub fn hardware(&self) -> StateFile {
        StateFile::at(self.directory.join("nvml.json"))
    }

    /// UUIDs of its GPUs, in PCI order: device `gpu-N` is the N-th.
    pub fn gpu_uuids(&self) -> Vec<String> {
        let board = self
            .options
            .board
            .as_ref()
            .map(|b| b.state(self.name()).board);
        let board = board.and_then(|name| nvidia_ml_mock::Board::named(&name));
        let gpus = board.into_iter().flat_map(|board| board.gpus);
        gpus.map(|gpu| nvidia_ml_mock::uuid(self.name(), &gpu.pci_bus_id))
            .collect()
    }

    /// A process of this node: inside its namespaces, its log named `NODE-NAME.log`.
    pub fn launch(&self, name: &str, program: impl Into<PathBuf>) -> Launch {
        let mut launch = Launch::new(format!("{}-{name}", self.name()), program);
        launch.inside.clone_from(&self.inside);
        launch
    }

    /// One of its programs, to be killed, stopped, frozen or started.
    pub fn service(&mut self, part: NodePart) -> Result<&mut Service> {
        let name = &self.options.name;
        let service = self.services.get_mut(&part);
        service.with_context(|| format!("node {name} has no {part:?}"))
    }

    /// Waits until the Node is Ready.
    pub async fn wait_until_ready(&mut self, control_plane: &ControlPlane) -> Result<()> {
        let nodes: Api<NodeObject> = Api::all(control_plane.client());
        let name = self.name().to_owned();
        eventually(&format!("node {name} is Ready"), READY_LIMIT, async || {
            if let Err(ended) = self.ensure_running() {
                return Ok(Progress::Never(ended));
            }
            let Some(node) = nodes.get_opt(&name).await? else {
                return Ok(Progress::NotYet("it is not registered".to_owned()));
            };
            let ready = ready_condition(&node);
            Ok(Progress::when(
                ready.as_ref().is_some_and(|(status, _)| status == "True"),
                || format!("its condition Ready is {ready:?}"),
            ))
        })
        .await
    }

    /// Stops the kubelet and starts it again with what it has on disk.
    pub async fn restart_kubelet(&mut self) -> Result<()> {
        self.stop_kubelet().await;
        self.start_kubelet()
    }

    /// Stops the kubelet.
    pub async fn stop_kubelet(&mut self) {
        self.stop_part(NodePart::Kubelet).await;
    }

    /// Starts the kubelet that was stopped.
    pub fn start_kubelet(&mut self) -> Result<()> {
        self.service(NodePart::Kubelet)?.spawn()
    }

    /// How the driver is started here, and the URL that it answers at.
    pub(crate) fn set_driver(&mut self, launch: Launch, url: String) {
        self.driver = Some((launch.clone(), url.clone()));
        self.add(NodePart::Driver, launch, Probe::Http(url, "/readyz"));
    }

    /// Starts another instance of the driver beside the one that runs, as it happens while a DaemonSet is updated. It is ready once it has the
    /// sockets, which the first one serves; it waits 20 s for them.
    pub fn start_next_driver(&mut self) -> Result<()> {
        let (launch, url) = self.driver.as_ref().context("there is no driver")?;
        let (launch, url) = at_next_port(launch, url)?;
        let probe = Probe::Http(url.clone(), "/readyz");
        let mut next = Service::new(launch.clone(), &self.logs, probe);
        next.spawn()?;
        self.driver = Some((launch, url));
        self.next_driver = Some(next);
        Ok(())
    }

    /// Stops the driver that ran first in good order, and waits until the next one is ready in its place.
    pub async fn hand_over_driver(&mut self) -> Result<()> {
        let next = self.next_driver.take();
        let next = next.context("no other driver was started")?;
        self.stop_driver().await;
        self.services.insert(NodePart::Driver, next);
        self.wait_for_driver().await
    }

    /// Starts the driver.
    pub fn start_driver(&mut self) -> Result<()> {
        self.service(NodePart::Driver)?.spawn()
    }

    /// Waits until the driver, where there is one, is ready.
    pub async fn wait_for_driver(&mut self) -> Result<()> {
        match self.services.get_mut(&NodePart::Driver) {
            Some(driver) => driver.wait_until_ready().await,
            None => Ok(()),
        }
    }

    /// Stops the driver in good order.
    pub async fn stop_driver(&mut self) {
        self.stop_part(NodePart::Driver).await;
    }

    /// Kills the driver and starts it again: a crash.
    pub async fn crash_driver(&mut self) -> Result<()> {
        let driver = self.service(NodePart::Driver)?;
        driver.kill();
        driver.start().await
    }

    /// Fails if a process of the node has ended that should run.
    pub fn ensure_running(&mut self) -> Result<()> {
        self.services
            .values_mut()
            .chain(&mut self.next_driver)
            .try_for_each(Service::ensure_running)
    }

    /// Makes faults of the process runtime, or none with an empty object; the fields are those of
    /// `tests/controlplane/processruntime/faults.go`.
    pub fn set_runtime_faults(&self, faults: &serde_json::Value) -> Result<()> {
        let file = self.directory.join("runtime/faults.json");
        let partial = self.directory.join("runtime/faults.json.new");
        fs::write(&partial, faults.to_string())?;
        fs::rename(&partial, &file)?;
        Ok(())
    }

    /// The machine hangs: every program of the node is frozen where it is.
    pub fn freeze(&self) {
        self.services.values().for_each(Service::freeze);
    }

    /// The machine goes on.
    pub fn thaw(&self) {
        self.services.values().for_each(Service::thaw);
    }

    /// The machine is no more: neither kubelet and driver nor what the driver had on disk. Nothing starts it again.
    pub fn scrap(&mut self) -> Result<()> {
        for part in [NodePart::Kubelet, NodePart::Driver] {
            self.service(part)?.kill();
        }
        for directory in [self.cdi_directory(), self.driver_records()] {
            for entry in fs::read_dir(&directory)? {
                fs::remove_file(entry?.path())?;
            }
        }
        Ok(())
    }

    /// Stops it: driver, kubelet, runtime (which kills its containers), namespaces.
    pub async fn stop(mut self) {
        if let Some(mut next) = self.next_driver.take() {
            next.stop().await;
        }
        for part in [NodePart::Driver, NodePart::Kubelet, NodePart::Runtime] {
            self.stop_part(part).await;
        }
        if let Some(holder) = self.holder.take() {
            holder.stop(STOP_LIMIT).await;
        }
    }

    fn add(&mut self, part: NodePart, launch: Launch, probe: Probe) {
        let service = Service::new(launch, &self.logs, probe);
        self.services.insert(part, service);
    }

    async fn stop_part(&mut self, part: NodePart) {
        if let Some(service) = self.services.get_mut(&part) {
            service.stop().await;
        }
    }

    fn cri_socket(&self) -> PathBuf {
        self.directory.join("cri.sock")
    }

    /// Starts the process that holds the namespaces, and finds how to enter them.
    async fn make_namespaces(&mut self) -> Result<()> {
        let with_user_namespace = preflight::user_namespaces_work().await;
        let mut launch = Launch::new(format!("{}-namespaces", self.name()), "unshare");
        if with_user_namespace {
            launch = launch.args(["--user", "--map-root-user"]);
        }
        let ready = self.directory.join("namespaces-are-ready");
        let holder = launch
            .args(["--mount", "sh", "-euc", MOUNTS, "sh"])
            .arg(&self.directory)
            .arg(&ready)
            .start(&self.logs)?;
        let mut enter = vec![
            OsString::from("nsenter"),
            OsString::from(format!("--target={}", holder.id())),
            OsString::from("--mount"),
        ];
        if with_user_namespace {
            enter.extend(["--user", "--preserve-credentials"].map(OsString::from));
        }
        self.inside = enter;
        let what = format!("the namespaces of node {} exist", self.name());
        let holder = self.holder.insert(holder);
        eventually(&what, READY_LIMIT, async || {
            if let Err(ended) = holder.ensure_running() {
                return Ok(Progress::Never(ended));
            }
            Ok(Progress::when(ready.exists(), || {
                "the mounts are not made yet".to_owned()
            }))
        })
        .await
    }

    fn runtime_launch(&self, programs: &KubeBinaries, pods: &str, etcd_url: &str) -> Launch {
        let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
        self.launch("process-runtime", programs.kubernetes("process-runtime"))
            .arg(format!("--listen=unix://{}", self.cri_socket().display()))
            .arg(flag("cdi-dir", &self.cdi_directory()))
            .arg(flag("state-dir", &self.directory.join("runtime")))
            .arg(flag("record", &self.record()))
            .arg(flag("uses", &self.hardware().stated_directory()))
            .arg(format!("--address-prefix={pods}"))
            .arg(format!("--etcd={etcd_url}"))
            .arg(format!("--node={}", self.name()))
    }

    /// Gives the Node the labels that its options name.
    pub async fn label(&self, control_plane: &ControlPlane) -> Result<()> {
        let nodes: Api<NodeObject> = Api::all(control_plane.client());
        let patch = json!({"metadata": {"labels": self.options.labels}});
        let what = format!("node {} has its labels", self.name());
        // The kubelet writes it, too.
        eventually(&what, READY_LIMIT, async || {
            let parameters = PatchParams::default();
            nodes
                .patch(self.name(), &parameters, &Patch::Merge(&patch))
                .await?;
            Ok(Progress::Done(()))
        })
        .await
    }
}

/// `$1` is the node's directory, `$2` the file that says that all is mounted. The tmpfs on /var/lib
/// is there because the kubelet's device-plugin directory is fixed in its code and may belong to root;
/// that on /run because an ordinary user cannot make /run/cdi.
const MOUNTS: &str = r#"
mount -t tmpfs tmpfs /var/lib
mkdir /var/lib/kubelet /var/lib/muster
mount --bind "$1/kubelet" /var/lib/kubelet
mount --bind "$1/muster" /var/lib/muster
mount -t tmpfs tmpfs /run
mkdir /run/cdi /run/machine
mount --bind "$1/cdi" /run/cdi
mount --bind "$1" /run/machine
touch "$2"
exec sleep infinity
"#;

/// The same program, answering at the port after that of this URL.
fn at_next_port(launch: &Launch, url: &str) -> Result<(Launch, String)> {
    let (host, port) = url.rsplit_once(':').context("a URL has a port")?;
    let next = port.parse::<u16>()?.checked_add(1).context("a port")?;
    let next = format!("{host}:{next}");
    let [from, to] = [url, next.as_str()].map(|url| url.trim_start_matches("http://"));
    let mut launch = launch.clone();
    launch.name = format!("{}-next", launch.name);
    let mut is_named = false;
    for argument in &mut launch.arguments {
        let text = argument.to_string_lossy().into_owned();
        if text.contains(from) {
            *argument = OsString::from(text.replace(from, to));
            is_named = true;
        }
    }
    ensure!(
        is_named,
        "{} is not told to answer at {from}",
        launch.program.display()
    );
    Ok((launch, next))
}

fn ready_condition(node: &NodeObject) -> Option<(String, String)> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|c| c.type_ == "Ready")?;
    Some((
        ready.status.clone(),
        ready.message.clone().unwrap_or_default(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_instance_of_a_driver_answers_elsewhere_and_has_all_else_in_common() {
        let launch = Launch::new("node-driver", "driver")
            .args([
                "--admin-addr=127.3.0.100:8082",
                "--state-dir=/var/lib/muster",
            ])
            .env("NODE_NAME", "node");
        let (next, url) = at_next_port(&launch, "http://127.3.0.100:8082").unwrap();
        assert_eq!(url, "http://127.3.0.100:8083");
        assert_eq!(next.name, "node-driver-next");
        assert_eq!(
            next.arguments,
            [
                "--admin-addr=127.3.0.100:8083",
                "--state-dir=/var/lib/muster"
            ]
        );
        assert_eq!(next.environment, launch.environment);
        assert!(at_next_port(&launch, "http://127.3.0.101:8082").is_err());
    }
}
