//! Muster as a user installs it: the chart by real Helm, then our real binaries with the arguments, the
//! environment and the ServiceAccounts that the chart rendered.
//!
//! The process runtime has no images and the machine one network namespace, so the pods of the chart
//! cannot run as they are. The chart is installed with 0 replicas and a DaemonSet that no node selects, and
//! each program runs as a process instead. What differs from what was rendered, and nothing else does:
//!
//! * the program is the one that cargo built, not `/NAME` of the image;
//! * an address `0.0.0.0:PORT` becomes that of the process's own loopback address;
//! * `--kubeconfig` names a file with a ServiceAccount token instead of the one mounted into a pod; the
//!   driver's token is bound to a placeholder pod on its node, so that it carries the node's name.

mod failpoint;
mod helm;
mod identity;
mod readiness;
mod rendered;

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use futures::future::try_join_all;

use crate::{
    control_plane::{ControlPlane, wait_until_ready},
    http_get,
    kube_binaries::KubeBinaries,
    loopback::Loopback,
    node::Node,
    process::{Launch, Process},
    programs::Programs,
};

/// Namespace that Muster is installed in.
pub const NAMESPACE: &str = "muster-system";
/// Name of the Helm release, which is the prefix of all its objects.
pub const RELEASE: &str = "muster";
/// Longest time between SIGTERM and SIGKILL.
const STOP_LIMIT: Duration = Duration::from_secs(10);
/// Port of /healthz, /readyz and /metrics that the chart gives the driver.
const DRIVER_ADMIN_PORT: u16 = 8082;

/// How Muster is installed.
#[derive(Clone, Debug)]
pub struct MusterOptions {
    /// Whether the controller is built with failpoints.
    pub failpoints: bool,
    /// Which of the three central programs are started; the drivers always are.
    pub parts: Vec<Part>,
    /// Further values of the chart (`a.b=c`, as for `helm --set`).
    pub values: Vec<String>,
}

impl Default for MusterOptions {
    fn default() -> Self {
        Self {
            failpoints: false,
            parts: vec![Part::Webhook, Part::Extender, Part::Controller],
            values: Vec::new(),
        }
    }
}

/// A central program of Muster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The admission server.
    Webhook,
    /// The kube-scheduler extender.
    Extender,
    /// The controller.
    Controller,
}

impl Part {
    /// The last part of its Deployment's and ServiceAccount's name.
    fn component(self) -> &'static str {
        match self {
            Self::Webhook => "webhook",
            Self::Extender => "extender",
            Self::Controller => "controller",
        }
    }

    /// Port of /healthz, /readyz and /metrics that the chart gives it.
    const ADMIN_PORT: u16 = 8080;

    /// Last number of its own loopback address 127.x.0.N.
    fn host_number(self) -> u8 {
        match self {
            Self::Webhook => 11,
            Self::Extender => 12,
            Self::Controller => 13,
        }
    }
}

/// Muster, running.
#[derive(Debug)]
pub struct Installation {
    logs: PathBuf,
    addresses: BTreeMap<Part, Ipv4Addr>,
    launches: BTreeMap<Part, Launch>,
    running: BTreeMap<Part, Process>,
    scheduler_config: Launch,
}

impl Installation {
    /// Installs the chart, starts the programs and kube-scheduler, and waits until all are ready.
    pub(crate) async fn install(
        options: MusterOptions,
        directory: &Path,
        kube: &KubeBinaries,
        programs: &Programs,
        loopback: &Loopback,
        control_plane: &mut ControlPlane,
        nodes: &mut [Node],
    ) -> Result<Self> {
        let addresses: BTreeMap<Part, Ipv4Addr> = [Part::Webhook, Part::Extender, Part::Controller]
            .map(|part| (part, loopback.host(part.host_number())))
            .into();
        let values = helm::values(&addresses, programs, &options.values);
        helm::install(kube, control_plane.admin_kubeconfig(), &values).await?;

        let mut launches = BTreeMap::new();
        for (part, address) in &addresses {
            let launch =
                rendered::deployment(control_plane, programs, part.component(), *address).await?;
            launches.insert(*part, launch);
        }
        let mut installation = Self {
            logs: directory.join("logs"),
            launches,
            running: BTreeMap::new(),
            scheduler_config: scheduler_config(control_plane, programs, &addresses)?,
            addresses,
        };
        for part in options.parts {
            installation.start_part(part)?;
        }
        start_drivers(control_plane, programs, loopback, nodes).await?;
        installation.wait_until_ready().await?;
        let configuration = if installation.running.contains_key(&Part::Extender) {
            Some(installation.scheduler_configuration().await?)
        } else {
            None
        };
        control_plane.start_scheduler(configuration).await?;
        try_join_all(nodes.iter_mut().map(Node::wait_for_driver)).await?;
        if installation.running.contains_key(&Part::Webhook) {
            readiness::wait_until_reviewed(&control_plane.client()).await?;
        }
        if installation.running.contains_key(&Part::Controller) {
            readiness::wait_until_plannable(&control_plane.client(), nodes).await?;
        }
        Ok(installation)
    }

    /// Starts a program that was stopped.
    pub async fn start(&mut self, part: Part) -> Result<()> {
        self.start_part(part)?;
        self.wait_for(part).await
    }

    /// Stops a program in good order.
    pub async fn stop_part(&mut self, part: Part) {
        if let Some(process) = self.running.remove(&part) {
            process.stop(STOP_LIMIT).await;
        }
    }

    /// Waits until a program is ready.
    pub async fn wait_for(&mut self, part: Part) -> Result<()> {
        let url = self.admin_url(part);
        let process = self
            .running
            .get_mut(&part)
            .with_context(|| format!("the {} is not started", part.component()))?;
        wait_until_ready(process, &url, "/readyz").await
    }

    /// What a program says at `/metrics`.
    pub async fn metrics(&self, part: Part) -> Result<String> {
        http_get::get(&self.admin_url(part), "/metrics").await
    }

    /// Fails if a program has ended that should run.
    pub fn ensure_running(&mut self) -> Result<()> {
        self.running
            .values_mut()
            .try_for_each(Process::ensure_running)
    }

    /// Stops everything; the drivers belong to their nodes.
    pub async fn stop(mut self) {
        for part in [Part::Controller, Part::Extender, Part::Webhook] {
            self.stop_part(part).await;
        }
    }

    fn start_part(&mut self, part: Part) -> Result<()> {
        let process = self.launch(part)?.start(&self.logs)?;
        self.running.insert(part, process);
        Ok(())
    }

    fn launch(&self, part: Part) -> Result<&Launch> {
        let launch = self.launches.get(&part);
        launch.with_context(|| format!("the chart has no {}", part.component()))
    }

    fn admin_url(&self, part: Part) -> String {
        let address = self.addresses.get(&part).unwrap_or(&Ipv4Addr::LOCALHOST);
        format!("http://{address}:{}", Part::ADMIN_PORT)
    }

    async fn wait_until_ready(&mut self) -> Result<()> {
        let started: Vec<Part> = self.running.keys().copied().collect();
        for part in started {
            self.wait_for(part).await?;
        }
        Ok(())
    }

    /// The configuration that our command prints for kube-scheduler.
    pub async fn scheduler_configuration(&self) -> Result<String> {
        self.scheduler_config.output(Duration::from_secs(30)).await
    }
}

/// The command that prints kube-scheduler's configuration, as an administrator runs it.
fn scheduler_config(
    control_plane: &ControlPlane,
    programs: &Programs,
    addresses: &BTreeMap<Part, Ipv4Addr>,
) -> Result<Launch> {
    let address = addresses.get(&Part::Extender);
    let address = address.context("the extender has no address")?;
    let path = |flag: &str, path: &Path| format!("--{flag}={}", path.display());
    Ok(
        Launch::new("scheduler-config", programs.path("muster-controller"))
            .arg("scheduler-config")
            .arg(path("kubeconfig", control_plane.admin_kubeconfig()))
            .arg(format!("--namespace={NAMESPACE}"))
            .arg(format!("--extender-url=https://{address}:8444/scheduler"))
            .arg(path(
                "scheduler-kubeconfig",
                &control_plane.scheduler_kubeconfig()?,
            ))
            .arg("--leader-elect=false")
            .arg("--pod-max-backoff-seconds=2"),
    )
}

/// Starts the driver of every node that has GPUs.
async fn start_drivers(
    control_plane: &ControlPlane,
    programs: &Programs,
    loopback: &Loopback,
    nodes: &mut [Node],
) -> Result<()> {
    let starts = (0_u8..)
        .zip(nodes)
        .filter(|(_, node)| node.board().is_some())
        .map(async |(number, node)| {
            let address = loopback.host(100_u8.saturating_add(number));
            let launch = rendered::driver(control_plane, programs, node, address).await?;
            node.set_driver(launch, format!("http://{address}:{DRIVER_ADMIN_PORT}"));
            node.start_driver()
        });
    try_join_all(starts).await?;
    Ok(())
}
