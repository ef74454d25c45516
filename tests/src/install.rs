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

use std::{collections::BTreeMap, net::Ipv4Addr, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;

use crate::{
    control_plane::ControlPlane,
    http_get,
    kube_binaries::KubeBinaries,
    loopback::Loopback,
    node::Node,
    process::Launch,
    programs::Programs,
    progress::ProgressCallback,
    service::{Probe, Service},
};

/// Namespace that Muster is installed in.
pub const NAMESPACE: &str = "muster-system";
/// Name of the Helm release, which is the prefix of all its objects.
pub const RELEASE: &str = "muster";
/// Port of /healthz, /readyz and /metrics that the chart gives the driver.
const DRIVER_ADMIN_PORT: u16 = 8082;

/// Most replicas of the controller: as many as have a loopback address.
pub const MOST_CONTROLLERS: usize = 8;

/// How Muster is installed.
#[derive(Clone, Debug)]
pub struct MusterOptions {
    /// Whether the controller is built with failpoints.
    pub failpoints: bool,
    /// Which of the three central programs are started; the drivers always are.
    pub parts: Vec<Part>,
    /// Replicas of the controller, 1 to [`MOST_CONTROLLERS`].
    pub controllers: usize,
    /// Further values of the chart (`a.b=c`, as for `helm --set`).
    pub values: Vec<String>,
}

impl Default for MusterOptions {
    fn default() -> Self {
        Self {
            failpoints: false,
            parts: vec![Part::Webhook, Part::Extender, Part::Controller],
            controllers: 1,
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
    /// The replicas of each part, whether they run or not.
    services: BTreeMap<Part, Vec<Replica>>,
    scheduler_config: Launch,
}

#[derive(Debug)]
struct Replica {
    service: Service,
    admin_url: String,
}

impl Installation {
    /// Installs the chart, starts the programs and kube-scheduler, and waits until all are ready.
    #[expect(clippy::too_many_arguments, reason = "all that a cluster consists of")]
    pub(crate) async fn install(
        options: MusterOptions,
        directory: &Path,
        kube: &KubeBinaries,
        programs: &Programs,
        loopback: &Loopback,
        control_plane: &mut ControlPlane,
        nodes: &mut [Node],
        progress: &ProgressCallback,
    ) -> Result<Self> {
        ensure!(
            (1..=MOST_CONTROLLERS).contains(&options.controllers),
            "there are 1 to {MOST_CONTROLLERS} replicas of the controller, not {}",
            options.controllers
        );
        let addresses: BTreeMap<Part, Ipv4Addr> = [Part::Webhook, Part::Extender, Part::Controller]
            .map(|part| (part, loopback.host(part.host_number())))
            .into();
        let values = helm::values(&addresses, programs, &options.values);
        progress.say("installing the chart by Helm");
        helm::install(kube, control_plane.admin_kubeconfig(), &values).await?;

        let mut services = BTreeMap::new();
        for part in addresses.keys().copied() {
            let replicas = match part {
                Part::Controller => options.controllers,
                Part::Webhook | Part::Extender => 1,
            };
            let replicas = (0_u8..).take(replicas).map(async |replica| {
                let address = loopback.host(part.host_number() + replica);
                let number = usize::from(replica);
                let component = part.component();
                let launch =
                    rendered::deployment(control_plane, programs, component, number, address)
                        .await?;
                let admin_url = format!("http://{address}:{}", Part::ADMIN_PORT);
                let probe = Probe::Http(admin_url.clone(), "/readyz");
                let service = Service::new(launch, directory.join("logs"), probe);
                anyhow::Ok(Replica { service, admin_url })
            });
            services.insert(part, try_join_all(replicas).await?);
        }
        let mut installation = Self {
            services,
            scheduler_config: scheduler_config(control_plane, programs, &addresses)?,
        };
        progress.say("starting Muster's programs");
        for part in &options.parts {
            installation.spawn_part(*part)?;
        }
        start_drivers(control_plane, programs, loopback, nodes).await?;
        for part in &options.parts {
            installation.wait_for(*part).await?;
        }
        let configuration = if options.parts.contains(&Part::Extender) {
            Some(installation.scheduler_configuration().await?)
        } else {
            None
        };
        progress.say("starting kube-scheduler");
        control_plane.start_scheduler(configuration).await?;
        try_join_all(nodes.iter_mut().map(Node::wait_for_driver)).await?;
        progress.say("waiting until pods are reviewed and nodes can be planned");
        if options.parts.contains(&Part::Webhook) {
            readiness::wait_until_reviewed(&control_plane.client()).await?;
        }
        if options.parts.contains(&Part::Controller) {
            readiness::wait_until_plannable(&control_plane.client(), nodes).await?;
        }
        Ok(installation)
    }

    /// A replica of a part, to be killed, stopped, frozen or started; they are numbered from 0.
    pub fn service(&mut self, part: Part, replica: usize) -> Result<&mut Service> {
        let replicas = self.services.get_mut(&part);
        let replica = replicas.and_then(|replicas| replicas.get_mut(replica));
        let replica =
            replica.with_context(|| format!("there is no such replica of the {part:?}"))?;
        Ok(&mut replica.service)
    }

    /// Starts all replicas of a part that do not run, whether they were stopped or have ended by themselves, and waits
    /// until they are ready.
    pub async fn start(&mut self, part: Part) -> Result<()> {
        self.spawn_part(part)?;
        self.wait_for(part).await
    }

    /// Stops all replicas of a part in good order.
    pub async fn stop_part(&mut self, part: Part) {
        for replica in self.services.get_mut(&part).into_iter().flatten() {
            replica.service.stop().await;
        }
    }

    /// Waits until all replicas of a part that were started are ready.
    pub async fn wait_for(&mut self, part: Part) -> Result<()> {
        for replica in self.services.get_mut(&part).into_iter().flatten() {
            if replica.service.is_started() {
                replica.service.wait_until_ready().await?;
            }
        }
        Ok(())
    }

    /// What the first replica of a part says at `/metrics`.
    pub async fn metrics(&self, part: Part) -> Result<String> {
        let replicas = self.services.get(&part);
        let first = replicas.and_then(|replicas| replicas.first());
        let first = first.with_context(|| format!("there is no {part:?}"))?;
        http_get::get(&first.admin_url, "/metrics").await
    }

    /// Fails if a program has ended that should run.
    pub fn ensure_running(&mut self) -> Result<()> {
        let mut replicas = self.services.values_mut().flatten();
        replicas.try_for_each(|replica| replica.service.ensure_running())
    }

    /// Stops everything; the drivers belong to their nodes.
    pub async fn stop(mut self) {
        for part in [Part::Controller, Part::Extender, Part::Webhook] {
            self.stop_part(part).await;
        }
    }

    fn spawn_part(&mut self, part: Part) -> Result<()> {
        for replica in self.services.get_mut(&part).into_iter().flatten() {
            if !replica.service.runs()? {
                replica.service.spawn()?;
            }
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
