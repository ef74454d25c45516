//! etcd, kube-apiserver, kube-controller-manager and kube-scheduler as processes on loopback: what a
//! user runs, with RBAC, the node authorizer and admission on.
//!
//! The scheduler is started separately, because the configuration it gets is printed by a command of
//! Muster after Muster is installed.

use std::{
    fmt, fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Result;
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::{
    http_get,
    kube_binaries::KubeBinaries,
    kubeconfig::{self, Credentials},
    kubernetes::{Progress, eventually},
    loopback::Loopback,
    pki::Pki,
    process::{Launch, Process},
};

/// Longest time that one program may take until it says that it is ready. On an idle machine each
/// takes about two seconds; a machine that compiles at the same time is slower.
const READY_LIMIT: Duration = Duration::from_mins(1);

/// Longest time between SIGTERM and SIGKILL. All four end within a second where all is well.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// A node that a test stops is NotReady after so many seconds instead of 50.
pub const NODE_MONITOR_GRACE_SECONDS: u64 = 8;

/// A running control plane.
pub struct ControlPlane {
    directory: PathBuf,
    programs: KubeBinaries,
    address: Ipv4Addr,
    ports: Ports,
    pki: Pki,
    admin_kubeconfig: PathBuf,
    client: Client,
    /// In the order in which they were started; stopped in reverse.
    processes: Vec<Process>,
    node_monitor_grace_seconds: u64,
}

// Not derived: a client shows nothing of itself.
impl fmt::Debug for ControlPlane {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ControlPlane")
            .field("server", &self.server())
            .field("processes", &self.processes)
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug)]
struct Ports {
    etcd: u16,
    etcd_peer: u16,
    apiserver: u16,
    controller_manager: u16,
    scheduler: u16,
}

impl ControlPlane {
    /// Starts all but the scheduler in `directory` and waits until pods can be created. A node whose lease is not
    /// renewed is NotReady after `node_monitor_grace_seconds`.
    pub async fn start(
        directory: &Path,
        programs: &KubeBinaries,
        loopback: &Loopback,
        node_monitor_grace_seconds: u64,
    ) -> Result<Self> {
        let logs = directory.join("logs");
        fs::create_dir_all(&logs)?;
        let [etcd, etcd_peer, apiserver, controller_manager, scheduler] = loopback.free_ports()?;
        let pki = Pki::create(&directory.join("pki"))?;
        let admin = pki.client("admin", "admin", Some("system:masters"))?;
        let admin_kubeconfig = directory.join("admin.kubeconfig");
        let server = format!("https://{}:{apiserver}", loopback.address());
        let credentials = Credentials::Certificate(admin);
        kubeconfig::write(
            &admin_kubeconfig,
            &server,
            &pki.cluster.certificate,
            &credentials,
        )?;
        let mut control_plane = Self {
            client: kubeconfig::client(&admin_kubeconfig).await?,
            directory: directory.to_owned(),
            programs: programs.clone(),
            address: loopback.address(),
            ports: Ports {
                etcd,
                etcd_peer,
                apiserver,
                controller_manager,
                scheduler,
            },
            pki,
            admin_kubeconfig,
            processes: Vec::new(),
            node_monitor_grace_seconds,
        };
        control_plane.start_programs().await?;
        Ok(control_plane)
    }

    /// A client with all rights.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// A kubeconfig with all rights.
    pub fn admin_kubeconfig(&self) -> &Path {
        &self.admin_kubeconfig
    }

    /// URL of the API server.
    pub fn server(&self) -> String {
        format!("https://{}:{}", self.address, self.ports.apiserver)
    }

    /// The cluster's directory, which holds its files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Certificates and keys of the cluster.
    pub fn pki(&self) -> &Pki {
        &self.pki
    }

    /// The audit log: one JSON event a line, who wrote what in which order.
    pub fn audit_log(&self) -> PathBuf {
        self.directory.join("logs/audit.log")
    }

    /// Makes `NAME.kubeconfig` for a client certificate and returns its path.
    pub fn kubeconfig_for(&self, file: &str, user: &str, group: Option<&str>) -> Result<PathBuf> {
        let identity = self.pki.client(file, user, group)?;
        self.kubeconfig_with(file, &Credentials::Certificate(identity))
    }

    /// Makes `NAME.kubeconfig` for these credentials and returns its path.
    pub fn kubeconfig_with(&self, file: &str, credentials: &Credentials) -> Result<PathBuf> {
        let path = self.directory.join(format!("{file}.kubeconfig"));
        let authority = &self.pki.cluster.certificate;
        kubeconfig::write(&path, &self.server(), authority, credentials)?;
        Ok(path)
    }

    /// Runs kubectl with all rights and returns what it prints.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let kubectl = self
            .launch("kubectl")
            .arg(format!("--kubeconfig={}", self.admin_kubeconfig.display()));
        kubectl.args(arguments).output(READY_LIMIT).await
    }

    /// The kubeconfig of kube-scheduler.
    pub fn scheduler_kubeconfig(&self) -> Result<PathBuf> {
        self.kubeconfig_for("scheduler", "system:kube-scheduler", None)
    }

    /// Starts kube-scheduler with this `KubeSchedulerConfiguration`, word for word; without one as a
    /// cluster without Muster has it, but for a short back-off.
    pub async fn start_scheduler(&mut self, configuration: Option<String>) -> Result<()> {
        let kubeconfig = self.scheduler_kubeconfig()?;
        let content = configuration.unwrap_or_else(|| {
            json!({
                "apiVersion": "kubescheduler.config.k8s.io/v1",
                "kind": "KubeSchedulerConfiguration",
                "leaderElection": {"leaderElect": false},
                "clientConnection": {"kubeconfig": kubeconfig, "qps": 500, "burst": 1000},
                "podInitialBackoffSeconds": 1,
                "podMaxBackoffSeconds": 2,
            })
            .to_string()
        });
        let file = self.directory.join("scheduler.yaml");
        fs::write(&file, content)?;
        let launch = self
            .launch("kube-scheduler")
            .arg(format!("--config={}", file.display()))
            .args(self.serving(self.ports.scheduler, &kubeconfig));
        self.run(launch, self.ports.scheduler, "/readyz").await
    }

    /// Stops kube-scheduler.
    pub async fn stop_scheduler(&mut self) {
        let is_scheduler = |process: &Process| process.name() == "kube-scheduler";
        if let Some(running) = self.processes.iter().position(is_scheduler) {
            self.processes.remove(running).stop(STOP_LIMIT).await;
        }
    }

    /// Fails if one of the programs has ended.
    pub fn ensure_running(&mut self) -> Result<()> {
        self.processes
            .iter_mut()
            .try_for_each(Process::ensure_running)
    }

    /// Stops in reverse order: an API server whose etcd is gone hangs in its own shutdown.
    pub async fn stop(mut self) {
        while let Some(process) = self.processes.pop() {
            process.stop(STOP_LIMIT).await;
        }
    }

    async fn start_programs(&mut self) -> Result<()> {
        let etcd = self.etcd();
        self.run_probed(etcd, &self.url("http", self.ports.etcd), "/health")
            .await?;
        let apiserver = self.apiserver()?;
        self.run(apiserver, self.ports.apiserver, "/readyz").await?;
        // Not before the API server has made its own RBAC objects: the controller manager would be
        // refused and end.
        let controller_manager = self.controller_manager()?;
        self.run(
            controller_manager,
            self.ports.controller_manager,
            "/healthz",
        )
        .await?;
        self.wait_for_default_objects().await
    }

    fn etcd(&self) -> Launch {
        let client = self.url("http", self.ports.etcd);
        let peer = self.url("http", self.ports.etcd_peer);
        self.launch("etcd")
            .arg("--name=muster")
            .arg(format!(
                "--data-dir={}",
                self.directory.join("etcd").display()
            ))
            .arg(format!("--listen-client-urls={client}"))
            .arg(format!("--advertise-client-urls={client}"))
            .arg(format!("--listen-peer-urls={peer}"))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .arg(format!("--initial-cluster=muster={peer}"))
            // A test cluster does not outlive its machine, and fsync is most of what etcd does.
            .arg("--unsafe-no-fsync=true")
            .arg("--log-level=warn")
    }

    fn apiserver(&self) -> Result<Launch> {
        let names = [
            &self.address.to_string(),
            "127.0.0.1",
            "localhost",
            "kubernetes.default.svc",
            "10.0.0.1",
        ]
        .map(str::to_owned);
        let serving = self.pki.server("kube-apiserver", &names)?;
        let front_proxy = self.pki.front_proxy_client()?;
        let audit_policy = self.directory.join("audit-policy.yaml");
        fs::write(&audit_policy, audit_policy_content().to_string())?;
        let file = |flag: &str, path: &Path| format!("--{flag}={}", path.display());
        let issuer = "https://kubernetes.default.svc";
        Ok(self
            .launch("kube-apiserver")
            .arg(format!(
                "--etcd-servers={}",
                self.url("http", self.ports.etcd)
            ))
            .arg(format!("--bind-address={}", self.address))
            .arg(format!("--advertise-address={}", self.address))
            .arg(format!("--secure-port={}", self.ports.apiserver))
            .arg("--endpoint-reconciler-type=none")
            .arg(file("tls-cert-file", &serving.certificate))
            .arg(file("tls-private-key-file", &serving.key))
            .arg(file("client-ca-file", &self.pki.cluster.certificate))
            .arg("--authorization-mode=Node,RBAC")
            .arg("--enable-admission-plugins=NodeRestriction")
            .arg(format!("--service-account-issuer={issuer}"))
            .arg(file(
                "service-account-key-file",
                &self.pki.service_accounts_public,
            ))
            .arg(file(
                "service-account-signing-key-file",
                &self.pki.service_accounts,
            ))
            .arg(format!("--api-audiences={issuer}"))
            .arg("--service-cluster-ip-range=10.0.0.0/24")
            .arg("--allow-privileged=true")
            .arg(file(
                "requestheader-client-ca-file",
                &self.pki.front_proxy.certificate,
            ))
            .arg("--requestheader-allowed-names=front-proxy-client")
            .arg("--requestheader-username-headers=X-Remote-User")
            .arg("--requestheader-group-headers=X-Remote-Group")
            .arg("--requestheader-extra-headers-prefix=X-Remote-Extra-")
            .arg(file("proxy-client-cert-file", &front_proxy.certificate))
            .arg(file("proxy-client-key-file", &front_proxy.key))
            .arg(file("audit-policy-file", &audit_policy))
            .arg(file("audit-log-path", &self.audit_log()))
            .arg("--v=1"))
    }

    fn controller_manager(&self) -> Result<Launch> {
        let user = "system:kube-controller-manager";
        let kubeconfig = self.kubeconfig_for("controller-manager", user, None)?;
        let file = |flag: &str, path: &Path| format!("--{flag}={}", path.display());
        Ok(self
            .launch("kube-controller-manager")
            .arg(file("kubeconfig", &kubeconfig))
            .args(self.serving(self.ports.controller_manager, &kubeconfig))
            .arg("--leader-elect=false")
            .arg("--use-service-account-credentials=true")
            .arg(file("root-ca-file", &self.pki.cluster.certificate))
            .arg(file(
                "service-account-private-key-file",
                &self.pki.service_accounts,
            ))
            .arg(file(
                "cluster-signing-cert-file",
                &self.pki.cluster.certificate,
            ))
            .arg(file("cluster-signing-key-file", &self.pki.cluster.key))
            .arg("--node-monitor-period=1s")
            .arg(format!(
                "--node-monitor-grace-period={}s",
                self.node_monitor_grace_seconds
            ))
            .arg("--terminated-pod-gc-threshold=100")
            .arg("--kube-api-qps=500")
            .arg("--kube-api-burst=1000"))
    }

    /// Flags of a program that asks the API server who its callers are.
    fn serving(&self, port: u16, kubeconfig: &Path) -> [String; 4] {
        [
            format!("--bind-address={}", self.address),
            format!("--secure-port={port}"),
            format!("--authentication-kubeconfig={}", kubeconfig.display()),
            format!("--authorization-kubeconfig={}", kubeconfig.display()),
        ]
    }

    fn launch(&self, program: &str) -> Launch {
        Launch::new(program, self.programs.kubernetes(program))
    }

    fn url(&self, scheme: &str, port: u16) -> String {
        format!("{scheme}://{}:{port}", self.address)
    }

    async fn run(&mut self, launch: Launch, port: u16, path: &str) -> Result<()> {
        let url = self.url("https", port);
        self.run_probed(launch, &url, path).await
    }

    async fn run_probed(&mut self, launch: Launch, url: &str, path: &str) -> Result<()> {
        let mut process = launch.start(&self.directory.join("logs"))?;
        let ready = wait_until_ready(&mut process, url, path).await;
        self.processes.push(process);
        ready
    }

    /// The ServiceAccount and the CA bundle without which the API server refuses pods.
    async fn wait_for_default_objects(&self) -> Result<()> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client(), "default");
        let bundles: Api<ConfigMap> = Api::namespaced(self.client(), "default");
        eventually(
            "the default ServiceAccount and kube-root-ca.crt exist",
            READY_LIMIT,
            async || {
                let account = accounts.get_opt("default").await?.is_some();
                let bundle = bundles.get_opt("kube-root-ca.crt").await?.is_some();
                Ok(Progress::when(account && bundle, || {
                    format!("ServiceAccount: {account}, ConfigMap: {bundle}")
                }))
            },
        )
        .await
    }
}

/// Waits until `url` answers `path` with success, or the process ends.
pub async fn wait_until_ready(process: &mut Process, url: &str, path: &str) -> Result<()> {
    let what = format!("{} answers {url}{path}", process.name());
    eventually(&what, READY_LIMIT, async || {
        if let Err(ended) = process.ensure_running() {
            return Ok(Progress::Never(ended));
        }
        http_get::get(url, path).await?;
        Ok(Progress::Done(()))
    })
    .await
}

/// Bodies for what Muster decides by and writes; names alone for the rest; reads are left out.
fn audit_policy_content() -> Value {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "None", "verbs": ["get", "list", "watch"]},
            {"level": "None", "resources": [{"group": "coordination.k8s.io"}, {"group": "", "resources": ["events", "nodes/status"]}]},
            {"level": "Request", "resources": [{"group": "muster.dev"}, {"group": "resource.k8s.io"}, {"group": "", "resources": ["pods", "pods/binding"]}]},
            {"level": "Metadata"},
        ],
    })
}
