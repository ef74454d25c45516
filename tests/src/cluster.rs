//! A whole cluster: control plane, nodes and, where asked for, Muster. Started and stopped together.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use futures::future::try_join_all;
use kube::Client;
use tempfile::TempDir;

use crate::{
    control_plane::{ControlPlane, ControlPlanePart, NODE_MONITOR_GRACE_SECONDS},
    fake_nodes::{self, FakeNodes},
    gpu_board::Board,
    install::{Installation, MusterOptions, Part},
    kube_binaries::KubeBinaries,
    loopback::Loopback,
    node::{Node, NodeOptions, NodePart},
    observer::Observer,
    programs::{Programs, Wanted},
    progress::ProgressCallback,
    service::Service,
};

/// Longest time until all played nodes can be planned: thousands take minutes to register.
const FAKE_NODES_LIMIT: Duration = Duration::from_mins(10);

/// What a cluster is to be.
#[derive(Clone, Debug, Default)]
pub struct ClusterOptions {
    /// Its nodes, in the order in which they are started.
    pub nodes: Vec<NodeOptions>,
    /// Whether and how Muster is installed in it.
    pub muster: Option<MusterOptions>,
    /// Nodes that one process plays besides. A cluster that has any is not observed: there are no containers to see.
    pub fake_nodes: Option<FakeNodes>,
    /// A node whose kubelet is silent is NotReady after so many seconds, instead of what suits the tests; 50 is what Kubernetes ships.
    pub node_monitor_grace_seconds: Option<u64>,
    /// Is told every step of the start.
    pub progress: ProgressCallback,
}

impl ClusterOptions {
    /// Nodes of these names with eight GPUs each, and Muster with failpoints in its controller. A controller that dies
    /// leaves its lease to the next one after 8 s instead of 15.
    pub fn with_failpoints(nodes: &[&str]) -> Self {
        let node = |name: &&str| NodeOptions {
            name: (*name).to_owned(),
            board: Some(Board::H100Nvswitch8),
            ..NodeOptions::default()
        };
        Self {
            nodes: nodes.iter().map(node).collect(),
            muster: Some(MusterOptions {
                failpoints: true,
                values: vec![SHORT_LEASE.to_owned()],
                ..MusterOptions::default()
            }),
            ..Self::default()
        }
    }
}

/// The chart's value for a lease that runs out sooner. Renewals still get five times as long as they take on a machine
/// whose cores are all busy.
const SHORT_LEASE: &str =
    "controller.extraArgs={--lease-seconds=8,--lease-renew-seconds=5,--lease-retry-seconds=1}";

/// Any program of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program<'a> {
    /// One of the control plane.
    ControlPlane(ControlPlanePart),
    /// One of Muster's central programs, by its replica, from 0.
    Muster(Part, usize),
    /// One of a node, by the node's name.
    Node(&'a str, NodePart),
}

/// A running cluster. Dropping it kills every process at once and removes its directory; [`Self::stop`]
/// does the same in good order.
#[derive(Debug)]
pub struct Cluster {
    // Fields are dropped in this order: what watches first, what is watched last, then its files.
    observer: Option<Observer>,
    /// Muster, where it is installed.
    pub muster: Option<Installation>,
    /// The nodes, in the order of the options.
    pub nodes: Vec<Node>,
    fake_nodes: Option<Service>,
    /// etcd, API server, controller manager, scheduler.
    pub control_plane: ControlPlane,
    programs: Programs,
    directory: TempDir,
    _loopback: Loopback,
}

impl Cluster {
    /// Starts everything and waits until pods can be created and run. Programs are built first where
    /// that has not been done. On an error the cluster's directory is kept and named.
    pub async fn start(options: ClusterOptions) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("muster-").tempdir()?;
        let path = directory.path().to_owned();
        match Self::start_in(&path, options).await {
            Ok(started) => {
                tracing::info!(directory = %path.display(), "the cluster is up");
                Ok(started.with_directory(directory))
            }
            Err(error) => {
                let kept = directory.keep();
                let kept = kept.display();
                Err(error.context(format!(
                    "the cluster did not start; its logs are kept in {kept}"
                )))
            }
        }
    }

    /// A client with all rights.
    pub fn client(&self) -> Client {
        self.control_plane.client()
    }

    /// The cluster's directory: files, logs, kubeconfigs.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Our own programs.
    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    /// The observer, which watches as long as Muster is installed.
    pub fn observer(&self) -> Option<&Observer> {
        self.observer.as_ref()
    }

    /// Muster, which has to be installed.
    pub fn installation(&mut self) -> Result<&mut Installation> {
        self.muster.as_mut().context("Muster is not installed")
    }

    /// A node by its name.
    pub fn node(&mut self, name: &str) -> Result<&mut Node> {
        self.nodes
            .iter_mut()
            .find(|node| node.name() == name)
            .with_context(|| format!("the cluster has no node {name}"))
    }

    /// Any program of the cluster, to be killed, stopped, frozen or started alone. What was killed or stopped is not
    /// missed until it is started again.
    pub fn service(&mut self, program: Program<'_>) -> Result<&mut Service> {
        match program {
            Program::ControlPlane(part) => self.control_plane.service(part),
            Program::Muster(part, replica) => self.installation()?.service(part, replica),
            Program::Node(name, part) => self.node(name)?.service(part),
        }
    }

    /// Fails if a program has ended that should run.
    pub fn ensure_running(&mut self) -> Result<()> {
        self.control_plane.ensure_running()?;
        if let Some(muster) = &mut self.muster {
            muster.ensure_running()?;
        }
        if let Some(played) = &mut self.fake_nodes {
            played.ensure_running()?;
        }
        self.nodes.iter_mut().try_for_each(Node::ensure_running)
    }

    /// Keeps the directory when the cluster is gone, and returns its path.
    pub fn keep_directory(&mut self) -> PathBuf {
        self.directory.disable_cleanup(true);
        self.directory.path().to_owned()
    }

    /// Stops everything in good order: Muster, nodes, control plane.
    pub async fn stop(self) {
        drop(self.observer);
        if let Some(muster) = self.muster {
            muster.stop().await;
        }
        for node in self.nodes {
            node.stop().await;
        }
        if let Some(mut played) = self.fake_nodes {
            played.stop().await;
        }
        self.control_plane.stop().await;
    }

    async fn start_in(directory: &Path, options: ClusterOptions) -> Result<Started> {
        let progress = &options.progress;
        progress.say("looking for Kubernetes and Helm (built once, minutes the first time)");
        let kube = KubeBinaries::find().await?;
        progress.say("building Muster's programs");
        let wanted = match &options.muster {
            None if options.fake_nodes.is_some() => Wanted::FakeNodes,
            None => Wanted::Workload,
            Some(muster) if muster.failpoints => Wanted::MusterWithFailpoints,
            Some(_) if options.fake_nodes.is_some() => Wanted::MusterWithFakeNodes,
            Some(_) => Wanted::Muster,
        };
        let programs = Programs::find(directory, wanted).await?;
        let loopback = Loopback::take()?;

        let grace = match (options.node_monitor_grace_seconds, options.fake_nodes) {
            (Some(seconds), _) => seconds,
            (None, Some(_)) => fake_nodes::MONITOR_GRACE_SECONDS,
            (None, None) => NODE_MONITOR_GRACE_SECONDS,
        };
        let mut control_plane =
            ControlPlane::start(directory, &kube, (&loopback).into(), grace, progress).await?;
        progress.say(&format!("starting {} nodes", options.nodes.len()));
        let mut nodes =
            start_nodes(&options.nodes, directory, &kube, &loopback, &control_plane).await?;
        let (muster, observer) = if let Some(wanted) = options.muster.clone() {
            let observer = match options.fake_nodes {
                Some(_) => None,
                None => Some(Observer::start(&control_plane.etcd_url(), &nodes)?),
            };
            if let Some(observer) = &observer {
                // Without a controller nothing is ever charged or given back.
                observer.suspend_bounds(!wanted.parts.contains(&Part::Controller));
            }
            let installation = Installation::install(
                wanted,
                directory,
                &kube,
                &programs,
                &loopback,
                &mut control_plane,
                &mut nodes,
                progress,
            )
            .await?;
            (Some(installation), observer)
        } else {
            progress.say("starting kube-scheduler");
            control_plane.start_scheduler(None).await?;
            (None, None)
        };
        let mut played = None;
        if let Some(fake_nodes) = options.fake_nodes {
            progress.say(&format!("starting {} played nodes", fake_nodes.count));
            let has_driver = muster.is_some();
            let mut service = fake_nodes.service(directory, &programs, &control_plane, has_driver);
            service.start().await?;
            if has_driver {
                fake_nodes
                    .wait_until_plannable(&control_plane, &mut service, FAKE_NODES_LIMIT)
                    .await?;
            } else {
                fake_nodes
                    .wait_until_registered(&control_plane, &mut service, FAKE_NODES_LIMIT)
                    .await?;
            }
            played = Some(service);
        }
        progress.say("the cluster is ready");
        Ok(Started {
            observer,
            muster,
            nodes,
            fake_nodes: played,
            control_plane,
            programs,
            loopback,
        })
    }
}

/// All of a cluster but its directory, which outlives a start that fails.
struct Started {
    observer: Option<Observer>,
    muster: Option<Installation>,
    nodes: Vec<Node>,
    fake_nodes: Option<Service>,
    control_plane: ControlPlane,
    programs: Programs,
    loopback: Loopback,
}

impl Started {
    fn with_directory(self, directory: TempDir) -> Cluster {
        Cluster {
            observer: self.observer,
            muster: self.muster,
            nodes: self.nodes,
            fake_nodes: self.fake_nodes,
            control_plane: self.control_plane,
            programs: self.programs,
            directory,
            _loopback: self.loopback,
        }
    }
}

/// Starts all nodes side by side, waits until they are Ready and gives them their labels.
async fn start_nodes(
    wanted: &[NodeOptions],
    directory: &Path,
    kube: &KubeBinaries,
    loopback: &Loopback,
    control_plane: &ControlPlane,
) -> Result<Vec<Node>> {
    if wanted.len() > usize::from(u8::MAX) {
        bail!("a cluster has at most 254 nodes");
    }
    let starts = (0..=u8::MAX).zip(wanted).map(|(number, options)| {
        Node::start(
            options.clone(),
            number,
            directory,
            kube,
            loopback,
            control_plane,
        )
    });
    let mut nodes = try_join_all(starts).await?;
    try_join_all(
        nodes
            .iter_mut()
            .map(|node| node.wait_until_ready(control_plane)),
    )
    .await?;
    try_join_all(nodes.iter().map(|node| node.label(control_plane))).await?;
    Ok(nodes)
}
