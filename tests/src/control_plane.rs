//! etcd, kube-apiserver, kube-controller-manager and kube-scheduler as processes on loopback: what a
//! user runs, with RBAC, the node authorizer and admission on.
//!
//! The scheduler is started separately, because the configuration it gets is printed by a command of
//! Muster after Muster is installed.

mod launches;
mod network;

use std::{
    collections::BTreeMap,
    fmt, fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use kube::{Api, Client};
use serde_json::json;

pub use self::network::Network;
use crate::{
    kube_binaries::KubeBinaries,
    kubeconfig::{self, Credentials},
    kubernetes::{Progress, eventually},
    loopback,
    pki::Pki,
    process::Launch,
    progress::ProgressCallback,
    service::{Probe, Service},
};

/// Longest time that one program may take until it says that it is ready. On an idle machine each
/// takes about two seconds; a machine that compiles at the same time is slower.
const READY_LIMIT: Duration = Duration::from_mins(1);

/// A program of the control plane, in the order in which they are started; they are stopped in reverse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ControlPlanePart {
    /// etcd.
    Etcd,
    /// kube-apiserver.
    ApiServer,
    /// kube-controller-manager.
    ControllerManager,
    /// kube-scheduler.
    Scheduler,
}

/// A node that a test stops is NotReady after so many seconds instead of 50.
pub const NODE_MONITOR_GRACE_SECONDS: u64 = 8;

/// A running control plane.
pub struct ControlPlane {
    directory: PathBuf,
    programs: KubeBinaries,
    network: Network,
    ports: Ports,
    pki: Pki,
    admin_kubeconfig: PathBuf,
    client: Client,
    services: BTreeMap<ControlPlanePart, Service>,
    node_monitor_grace_seconds: u64,
}

// Not derived: a client shows nothing of itself.
impl fmt::Debug for ControlPlane {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ControlPlane")
            .field("server", &self.server())
            .field("services", &self.services)
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
        network: Network,
        node_monitor_grace_seconds: u64,
        progress: &ProgressCallback,
    ) -> Result<Self> {
        let logs = directory.join("logs");
        fs::create_dir_all(&logs)?;
        let [etcd, etcd_peer, apiserver, controller_manager, scheduler] =
            loopback::free_ports(network.address)?;
        let pki = Pki::create(&directory.join("pki"))?;
        let admin = pki.client("admin", "admin", Some("system:masters"))?;
        let admin_kubeconfig = directory.join("admin.kubeconfig");
        let server = format!("https://{}:{apiserver}", network.address);
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
            network,
            ports: Ports {
                etcd,
                etcd_peer,
                apiserver,
                controller_manager,
                scheduler,
            },
            pki,
            admin_kubeconfig,
            services: BTreeMap::new(),
            node_monitor_grace_seconds,
        };
        control_plane.start_programs(progress).await?;
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
        format!("https://{}:{}", self.network.address, self.ports.apiserver)
    }

    /// The address that its programs listen on.
    pub fn address(&self) -> Ipv4Addr {
        self.network.address
    }

    /// URL of etcd, which serves without TLS.
    pub fn etcd_url(&self) -> String {
        self.url("http", self.ports.etcd)
    }

    /// One of its programs, to be killed, stopped or started.
    pub fn service(&mut self, part: ControlPlanePart) -> Result<&mut Service> {
        let service = self.services.get_mut(&part);
        service.with_context(|| format!("{part:?} was never started"))
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
        let url = self.url("https", self.ports.scheduler);
        self.start_part(ControlPlanePart::Scheduler, launch, url, "/readyz")
            .await
    }

    /// Stops kube-scheduler.
    pub async fn stop_scheduler(&mut self) {
        if let Some(scheduler) = self.services.get_mut(&ControlPlanePart::Scheduler) {
            scheduler.stop().await;
        }
    }

    /// Fails if one of the programs has ended that should run.
    pub fn ensure_running(&mut self) -> Result<()> {
        self.services
            .values_mut()
            .try_for_each(Service::ensure_running)
    }

    /// Stops in reverse order: an API server whose etcd is gone hangs in its own shutdown.
    pub async fn stop(mut self) {
        for service in self.services.values_mut().rev() {
            service.stop().await;
        }
    }

    async fn start_programs(&mut self, progress: &ProgressCallback) -> Result<()> {
        let (launch, url) = (self.etcd(), self.etcd_url());
        progress.say("starting etcd");
        self.start_part(ControlPlanePart::Etcd, launch, url, "/health")
            .await?;
        let (launch, url) = (self.apiserver()?, self.server());
        progress.say("starting kube-apiserver");
        self.start_part(ControlPlanePart::ApiServer, launch, url, "/readyz")
            .await?;
        // Not before the API server has made its own RBAC objects: the controller manager would be
        // refused and end.
        let launch = self.controller_manager()?;
        let url = self.url("https", self.ports.controller_manager);
        progress.say("starting kube-controller-manager");
        self.start_part(ControlPlanePart::ControllerManager, launch, url, "/healthz")
            .await?;
        self.wait_for_default_objects().await
    }

    async fn start_part(
        &mut self,
        part: ControlPlanePart,
        launch: Launch,
        url: String,
        path: &'static str,
    ) -> Result<()> {
        let probe = Probe::Http(url, path);
        let service = Service::new(launch, self.directory.join("logs"), probe);
        // What ran before under this name has been stopped; if not, it is killed here.
        self.services.insert(part, service);
        self.service(part)?.start().await
    }

    fn launch(&self, program: &str) -> Launch {
        Launch::new(program, self.programs.kubernetes(program))
    }

    fn url(&self, scheme: &str, port: u16) -> String {
        format!("{scheme}://{}:{port}", self.network.address)
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
