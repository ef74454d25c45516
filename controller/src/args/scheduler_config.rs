//! Flags of `scheduler-config`.

use std::path::PathBuf;

use clap::Args;
use muster_serve::ExtendedResourcesArgs;

use crate::scheduler_config::{Settings, target::Target};

/// Flags of `scheduler-config`.
#[derive(Args, Clone, Debug)]
pub struct SchedulerConfigArgs {
    /// Kubeconfig file for reading and making the Secret; without it the ServiceAccount of the pod is used.
    #[arg(long, env = "MUSTER_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Which kube-scheduler it is for. Without: the one whose pods are in kube-system.
    #[arg(
        long = "for",
        env = "MUSTER_SCHEDULER_CONFIG_FOR",
        value_name = "SCHEDULER"
    )]
    pub target: Option<Target>,

    /// A KubeSchedulerConfiguration that exists, `-` for standard input: it is kept, and Muster's extender added to it.
    #[arg(long, value_name = "FILE")]
    pub merge: Option<PathBuf>,

    /// Namespace that Muster is installed in. Without: where the extender's Service is.
    #[arg(long, env = "MUSTER_NAMESPACE")]
    pub namespace: Option<String>,

    /// Service of the extender. Without: the one with the labels that the chart sets.
    #[arg(long, env = "MUSTER_EXTENDER_SERVICE", value_name = "NAME")]
    pub extender_service: Option<String>,

    /// Secret of the extender's certificate authority and of the scheduler's client certificate; made where
    /// there is none, valid for ten years. Without: the name of the Service and `-ca`.
    #[arg(long, env = "MUSTER_EXTENDER_CA_SECRET", value_name = "NAME")]
    pub extender_ca_secret: Option<String>,

    /// Where kube-scheduler reaches the extender. Without: the Service's cluster IP, or its name for a second scheduler.
    #[arg(
        long,
        env = "MUSTER_EXTENDER_URL",
        value_name = "https://HOST:PORT/scheduler"
    )]
    pub extender_url: Option<String>,

    /// Name that the extender's certificate is checked for; the URL's host without.
    #[arg(long, env = "MUSTER_EXTENDER_SERVER_NAME", value_name = "NAME")]
    pub server_name: Option<String>,

    /// Which resources stand for devices: no other extender may manage them.
    #[command(flatten)]
    pub extended_resources: ExtendedResourcesArgs,

    /// Directory on the scheduler's machine that holds ca.crt, client.crt and client.key: the configuration then names
    /// these files, and says how to write them from the Secret, instead of carrying their content. kube-scheduler logs its
    /// configuration, the client's private key with it, from --v=2 on.
    #[arg(long, value_name = "DIR")]
    pub tls_files: Option<PathBuf>,

    /// Kubeconfig file that kube-scheduler itself uses, as a path on its machine. Without: as it is started now.
    #[arg(long, value_name = "PATH", conflicts_with = "in_cluster")]
    pub scheduler_kubeconfig: Option<PathBuf>,

    /// kube-scheduler uses the ServiceAccount of its pod, and no kubeconfig.
    #[arg(long)]
    pub in_cluster: bool,

    /// Name that managed pods choose their scheduler by, where it is not the cluster's default one.
    #[arg(long, env = "MUSTER_SCHEDULER_NAME", value_name = "NAME")]
    pub scheduler_name: Option<String>,

    /// A second scheduler of that name runs, as the chart says: no profile of the cluster's own may take its pods too.
    #[arg(long, env = "MUSTER_SECOND_SCHEDULER")]
    pub second_scheduler: bool,

    /// Whether several of these schedulers elect a leader; true without.
    #[arg(long)]
    pub leader_elect: Option<bool>,

    /// Nodes that are looked at in parallel.
    #[arg(long)]
    pub parallelism: Option<u32>,

    /// Requests per second to the API server; 500 where nothing is said. A bound pod with claims costs four.
    #[arg(long)]
    pub qps: Option<u32>,

    /// Requests at once to the API server; 1000 where nothing is said.
    #[arg(long)]
    pub burst: Option<u32>,

    /// Seconds before a pod that did not fit is tried again.
    #[arg(long)]
    pub pod_initial_backoff_seconds: Option<u32>,

    /// Most seconds before a pod that did not fit is tried again.
    #[arg(long)]
    pub pod_max_backoff_seconds: Option<u32>,

    /// Weight of the extender's scores; 20 without.
    #[arg(long)]
    pub weight: Option<u32>,
}

impl SchedulerConfigArgs {
    /// Whether a scheduler is described that need not be seen.
    pub fn describes_a_scheduler(&self) -> bool {
        self.scheduler_kubeconfig.is_some() || self.in_cluster || self.merge.is_some()
    }

    /// What is said of the scheduler itself.
    pub fn settings(&self) -> Settings {
        Settings {
            kubeconfig: self.scheduler_kubeconfig.clone(),
            in_cluster: self.in_cluster,
            scheduler_name: self.scheduler_name.clone().filter(|name| !name.is_empty()),
            second_scheduler: self.second_scheduler,
            leader_elect: self.leader_elect,
            parallelism: self.parallelism,
            qps: self.qps,
            burst: self.burst,
            pod_initial_backoff_seconds: self.pod_initial_backoff_seconds,
            pod_max_backoff_seconds: self.pod_max_backoff_seconds,
            weight: self.weight,
            tls_files: self.tls_files.clone(),
        }
    }
}
