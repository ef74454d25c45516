//! `scheduler-config`: the configuration that kube-scheduler is started with, and where to put it.
//!
//! What can be found out is no flag: the extender's Service and its cluster IP, the Secret of its certificates, and how the
//! running kube-scheduler is started ([`discovery`]). A configuration that exists is kept ([`document`], [`merge`]), and what
//! would leave the cluster without scheduling is refused and never printed ([`safety`]). The way from the
//! output to the scheduler stands as comments before it ([`guide`]).
//!
//! Certificates are inline by default: one file, and nothing that can be out of step with it. But kube-scheduler logs the whole
//! of it from `--v=2` on. The key opens nothing but the extender, which only answers questions; who would rather not have it
//! in a log takes files.

pub mod discovery;
pub mod document;
pub mod extender;
pub mod guide;
pub mod merge;
pub mod refusal;
pub mod running;
pub mod safety;
pub mod target;

use std::{
    io::{Read, Write},
    path::{Path, PathBuf},
};

use anyhow::Context;
use muster_cluster::managed::ManagedPods;
use muster_serve::{authority_secret::AuthoritySecret, certificates::Policy, client};
use serde_json::Value;

use self::{
    discovery::Installation,
    extender::{Certificates, Endpoint},
    refusal::{Reason, Refusal},
    running::RunningScheduler,
    target::Target,
};
use crate::args::SchedulerConfigArgs;

/// Common name of the scheduler's client certificate.
const CLIENT_NAME: &str = "muster-scheduler";

/// Everything that the output follows from.
#[derive(Clone, Debug)]
pub struct Request {
    /// Which kube-scheduler it is for.
    pub target: Target,
    /// Where Muster is installed.
    pub installation: Installation,
    /// How that scheduler reaches the extender.
    pub endpoint: Endpoint,
    /// With which certificates.
    pub certificates: Certificates,
    /// The cluster's own scheduler, as it runs.
    pub running: Vec<RunningScheduler>,
    /// The configuration that exists, as it was read.
    pub existing: Option<Value>,
    /// Which extended resources stand for devices.
    pub managed: ManagedPods,
    /// What the command line says.
    pub settings: Settings,
}

/// What the command line says of the scheduler; what it does not say stays as it is, or gets a default.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The scheduler's own kubeconfig file, on its machine.
    pub kubeconfig: Option<PathBuf>,
    /// Whether it uses the ServiceAccount of its pod instead.
    pub in_cluster: bool,
    /// The scheduler that the webhook writes into managed pods.
    pub scheduler_name: Option<String>,
    /// Whether a second scheduler of that name runs.
    pub second_scheduler: bool,
    /// Whether several of it elect a leader.
    pub leader_elect: Option<bool>,
    /// Nodes that are looked at in parallel.
    pub parallelism: Option<u32>,
    /// Requests per second to the API server.
    pub qps: Option<u32>,
    /// Requests at once to the API server.
    pub burst: Option<u32>,
    /// Seconds before a pod that did not fit is tried again.
    pub pod_initial_backoff_seconds: Option<u32>,
    /// Most of these seconds.
    pub pod_max_backoff_seconds: Option<u32>,
    /// Weight of the extender's scores.
    pub weight: Option<u32>,
    /// Directory of the certificates, if they are files.
    pub tls_files: Option<PathBuf>,
}

/// Prints the configuration, after making the certificates where there are none.
pub async fn print(args: SchedulerConfigArgs) -> anyhow::Result<()> {
    let text = if args.target == Some(Target::Managed) {
        guide::managed_control_plane()
    } else {
        configuration(&request(&args).await?)?
    };
    // This program's one output: not a log line, so not through the subscriber.
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

/// The configuration as YAML, with comments that say where it goes.
pub fn configuration(request: &Request) -> Result<String, Refusal> {
    let document = merge::document(request)?;
    safety::check(&document, request)?;
    Ok(guide::before(request) + &document::write(&document)?)
}

async fn request(args: &SchedulerConfigArgs) -> anyhow::Result<Request> {
    let existing = match &args.merge {
        Some(path) => Some(read_file("--merge", path)?),
        None => None,
    };
    let client = client::write_client(args.kubeconfig.as_deref()).await?;
    let running = match args.target {
        Some(Target::Second) => Vec::new(),
        _ => discovery::running_schedulers(&client).await?,
    };
    let target = target::choose(args.target, &running, args.describes_a_scheduler())?;
    let found = discovery::installation(&client, args, target).await?;
    let authorities = AuthoritySecret::new(client, found.secret(), Policy::PINNED)
        .with_client(CLIENT_NAME)
        .ensure(jiff::Timestamp::now().as_second())
        .await?;
    let certificates = match &args.tls_files {
        None => Certificates::inline(&authorities, &found.extender_ca_secret)?,
        Some(directory) => Certificates::files(directory)?,
    };
    Ok(Request {
        target,
        endpoint: found.endpoint.clone(),
        installation: found,
        certificates,
        running,
        existing,
        managed: ManagedPods::new(args.extended_resources.listed())?,
        settings: args.settings(),
    })
}

/// The file of a flag, or standard input for `-`.
pub(crate) fn read_file(flag: &str, path: &Path) -> anyhow::Result<Value> {
    let mut text = Vec::new();
    let limit = u64::try_from(document::LARGEST_BYTES)? + 1;
    if path == Path::new("-") {
        std::io::stdin().take(limit).read_to_end(&mut text)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(limit).read_to_end(&mut text))
    }
    .with_context(|| format!("{flag} {}", path.display()))?;
    Ok(document::read_from(flag, &text)?)
}

/// A refusal of this reason.
fn refused<T>(reason: Reason, text: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::new(reason, text))
}
