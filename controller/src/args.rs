//! The command line.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use muster_cluster::{
    index,
    managed::{InvalidResourcePattern, ManagedPods},
};
use muster_protocol::{BreakerLimits, ForcePolicy, Mode, OnCordon, Recovery};
use muster_serve::{
    ExtendedResourcesArgs, ServeArgs,
    authority_secret::{AuthoritySecret, SecretReference},
    certificates::Policy,
    lease::LeaseSettings,
};

use crate::{
    scheduler_config::{Settings, target::Target},
    scheduler_lease::{CLUSTER_SCHEDULER, LeaseReference},
};

/// Controller of Muster: admits gangs, permits and releases devices.
#[derive(Debug, Parser)]
#[command(
    name = "muster-controller",
    version,
    args_conflicts_with_subcommands = true
)]
pub struct Cli {
    /// What to do; `run` without.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Flags of `run`.
    #[command(flatten)]
    pub run: RunArgs,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs the controller (the default).
    Run(RunArgs),
    /// Prints the configuration that kube-scheduler is to be started with, and where to put it.
    SchedulerConfig(SchedulerConfigArgs),
    /// Looks for the GPUs of the container that it runs in; the pod of `helm test` does.
    CheckDevice(CheckDeviceArgs),
    /// Looks for pods that come to GPUs by a side door; the chart does before mode Enforce begins.
    CheckEnforce(CheckEnforceArgs),
    /// Takes down what insists on the work of the webhook; the chart does before mode Observe begins.
    BeginObserve(BeginObserveArgs),
    /// Looks for what only Muster can end; the chart does before it is uninstalled.
    CheckUninstall(CheckUninstallArgs),
    /// Closes the circuit breaker of recovery, once somebody has looked whether the faults were real.
    ResetBreaker(ResetBreakerArgs),
    /// Looks at a cluster for everything that is known to go wrong with Muster, before the install and after it.
    Preflight(PreflightArgs),
}

/// Flags of `preflight`.
#[derive(Args, Clone, Debug)]
pub struct PreflightArgs {
    /// Kubeconfig file; without it the ServiceAccount of the pod is used.
    #[arg(long, env = "MUSTER_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// The KubeSchedulerConfiguration that kube-scheduler is started with, `-` for standard input.
    #[arg(long, value_name = "FILE")]
    pub scheduler_config: Option<PathBuf>,

    /// Namespace that Muster is installed in. Without: where its controller is found.
    #[arg(long, env = "MUSTER_NAMESPACE")]
    pub namespace: Option<String>,

    /// Where kube-scheduler reaches the extender, where --scheduler-config does not say it. Without: its Service.
    #[arg(
        long,
        env = "MUSTER_EXTENDER_URL",
        value_name = "https://HOST:PORT/scheduler"
    )]
    pub extender_url: Option<String>,

    /// Directory with ca.crt, client.crt and client.key, by which the extender is asked where --scheduler-config carries
    /// no certificates: the Secret of the extender's authority, mounted.
    #[arg(long, value_name = "DIR")]
    pub extender_tls_files: Option<PathBuf>,

    /// Labels of the nodes that Muster is to serve, while its driver is not installed.
    #[arg(
        long = "node-label",
        default_value = "muster.dev/driver=true",
        value_delimiter = ',',
        value_name = "KEY=VALUE"
    )]
    pub node_labels: Vec<String>,

    /// Which resources stand for devices.
    #[command(flatten)]
    pub extended_resources: ExtendedResourcesArgs,

    /// How the findings are written.
    #[arg(long, short, default_value = "text")]
    pub output: OutputArg,
}

/// How findings are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OutputArg {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// Flags of `check-enforce`.
#[derive(Args, Clone, Debug)]
pub struct CheckEnforceArgs {
    /// Kubeconfig file; without it the ServiceAccount of the pod is used.
    #[arg(long, env = "MUSTER_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// The policy about side doors. Where it refuses already, there is nothing to look at. Without: pods are looked at in any case.
    #[arg(long, value_name = "NAME")]
    pub policy: Option<String>,

    /// Namespaces whose pods may come to GPUs past claims.
    #[arg(
        long = "excepted-namespace",
        value_delimiter = ',',
        default_value = "kube-system,gpu-operator,nvidia-gpu-operator,nvidia-dra-driver-gpu",
        value_name = "NAMESPACE"
    )]
    pub excepted_namespaces: Vec<String>,

    /// RuntimeClasses that give a container the GPUs that its image names.
    #[arg(
        long = "runtime-class",
        value_delimiter = ',',
        default_value = "nvidia,nvidia-cdi,nvidia-legacy",
        value_name = "NAME"
    )]
    pub runtime_classes: Vec<String>,

    /// Which resources stand for devices.
    #[command(flatten)]
    pub extended_resources: ExtendedResourcesArgs,

    /// Only name the pods, and succeed.
    #[arg(long)]
    pub accept_violations: bool,
}

/// Flags of `begin-observe`.
#[derive(Args, Clone, Debug)]
pub struct BeginObserveArgs {
    /// Kubeconfig file; without it the ServiceAccount of the pod is used.
    #[arg(long, env = "MUSTER_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Bindings of the policies that refuse pods without what the webhook puts into them.
    #[arg(
        long = "policy-binding",
        value_delimiter = ',',
        required = true,
        value_name = "NAME"
    )]
    pub policy_bindings: Vec<String>,
}

/// Flags of `reset-breaker`.
#[derive(Args, Clone, Debug)]
pub struct ResetBreakerArgs {
    /// Kubeconfig file; without it the ServiceAccount of the pod is used.
    #[arg(long, env = "MUSTER_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

/// Flags of `check-uninstall`.
#[derive(Args, Clone, Debug)]
pub struct CheckUninstallArgs {
    /// Kubeconfig file; without it the ServiceAccount of the pod is used.
    #[arg(long, env = "MUSTER_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// What is taken down once nothing remains. Without any of it, the check only looks.
    #[command(flatten)]
    pub guards: GuardsArgs,

    /// The command by which the release is again what it was, if it is not uninstalled after all; it is only told.
    #[arg(long, value_name = "COMMAND")]
    pub restore_command: Option<String>,
}

/// What a release refuses and holds pods with.
#[derive(Args, Clone, Debug, Default)]
pub struct GuardsArgs {
    /// Bindings of policies that refuse pods.
    #[arg(long = "policy-binding", value_delimiter = ',', value_name = "NAME")]
    pub policy_bindings: Vec<String>,

    /// The MutatingWebhookConfiguration.
    #[arg(long, value_name = "NAME")]
    pub mutating_webhook_configuration: Option<String>,

    /// The ValidatingWebhookConfiguration.
    #[arg(long, value_name = "NAME")]
    pub validating_webhook_configuration: Option<String>,
}

impl GuardsArgs {
    /// Whether none is named.
    pub fn are_none(&self) -> bool {
        self.policy_bindings.is_empty()
            && self.mutating_webhook_configuration.is_none()
            && self.validating_webhook_configuration.is_none()
    }
}

/// Flags of `check-device`.
#[derive(Args, Clone, Debug)]
pub struct CheckDeviceArgs {
    /// How many there should be.
    #[arg(long, default_value_t = 1)]
    pub gpus: usize,
}

/// Flags of `run`.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// What every program has.
    #[command(flatten)]
    pub serve: ServeArgs,

    /// Namespace that Muster is installed in: of its lease and its Secrets.
    #[arg(long, env = "MUSTER_NAMESPACE", default_value = "muster-system")]
    pub namespace: String,

    /// Name of this replica (its pod).
    #[arg(long, env = "POD_NAME", default_value = "muster-controller")]
    pub identity: String,

    /// Whether pods are held until they are admitted, or only shown.
    #[arg(
        long,
        env = "MUSTER_MODE",
        default_value = "enforce",
        ignore_case = true
    )]
    pub mode: ModeArg,

    /// Team of namespaces without the label muster.dev/team.
    #[arg(long, env = "MUSTER_DEFAULT_TEAM", value_name = "TEAM")]
    pub default_team: Option<String>,

    /// Which resources stand for devices.
    #[command(flatten)]
    pub extended_resources: ExtendedResourcesArgs,

    /// Namespaces whose pods are none of Muster's business.
    #[arg(
        long = "excluded-namespace",
        env = "MUSTER_EXCLUDED_NAMESPACES",
        value_delimiter = ',',
        default_value = "kube-system",
        value_name = "NAMESPACE"
    )]
    pub excluded_namespaces: Vec<String>,

    /// DeviceClasses that are not charged: a pod whose claims name only these starts at once.
    #[arg(
        long = "excepted-device-class",
        env = "MUSTER_EXCEPTED_DEVICE_CLASSES",
        value_delimiter = ',',
        value_name = "CLASS"
    )]
    pub excepted_device_classes: Vec<String>,

    /// Readiness URL of an extender replica, or of a Service that leads to ready ones (plain HTTP). While
    /// none of them answers 200, no pod is released. Without: no extender is configured.
    #[arg(
        long = "extender-ready-url",
        env = "MUSTER_EXTENDER_READY_URLS",
        value_delimiter = ',',
        value_name = "URL"
    )]
    pub extender_ready_urls: Vec<String>,

    /// Scheduler that the webhook writes into managed pods which name none. With the cluster's default one it is the
    /// scheduler that is not given more than a window of released pods at a time.
    #[arg(long, env = "MUSTER_SCHEDULER_NAME", value_name = "NAME")]
    pub scheduler_name: Option<String>,

    /// Lease of the scheduler that managed pods get: start limits stand still while nobody renews it.
    #[arg(
        long,
        env = "MUSTER_SCHEDULER_LEASE",
        default_value = CLUSTER_SCHEDULER,
        value_name = "NAMESPACE/NAME"
    )]
    pub scheduler_lease: LeaseReference,

    /// Most calls that the leader sends to the API server in a second, watches not counted; 0: as many as there are. Its
    /// writes go by priority, and at most 32 are under way, so a bound is for API servers that have to be spared.
    #[arg(
        long,
        env = "MUSTER_KUBE_API_QPS",
        default_value_t = 0,
        value_name = "CALLS"
    )]
    pub kube_api_qps: u32,

    /// Calls that may be sent at once after a rest, where there is a bound.
    #[arg(
        long,
        env = "MUSTER_KUBE_API_BURST",
        default_value_t = 100,
        value_name = "CALLS"
    )]
    pub kube_api_burst: u32,

    /// When a node is given up.
    #[command(flatten)]
    pub nodes: NodeArgs,

    /// What is done about faults.
    #[command(flatten)]
    pub recovery: RecoveryArgs,

    /// How the lease is held.
    #[command(flatten)]
    pub lease: LeaseArgs,

    /// Whose caBundle is kept.
    #[command(flatten)]
    pub webhooks: WebhookArgs,
}

/// When a node is given up.
#[derive(Args, Clone, Debug)]
pub struct NodeArgs {
    /// Seconds for which a node is not Ready before it is lost: what it holds is charged to no Team any more. Nothing new is
    /// planned on a node whose driver owes an answer for as long.
    #[arg(
        long,
        env = "MUSTER_NODE_LOST_AFTER_SECONDS",
        default_value_t = 60,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub node_lost_after_seconds: u32,

    /// Seconds for which a node is not Ready before the gangs on it are evicted; not before it is lost. Less than the seconds for which
    /// pods tolerate that by default (300), or Kubernetes deletes the pods first, which their Jobs count as failures.
    #[arg(
        long,
        env = "MUSTER_NODE_EVICT_AFTER_SECONDS",
        default_value_t = 240,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub node_evict_after_seconds: u32,
}

/// Seconds from that on, up to what gangs may ask for.
fn limit_seconds(least: u32) -> clap::builder::RangedI64ValueParser<u32> {
    let most = muster_api::keys::MAX_LIMIT_SECONDS;
    clap::value_parser!(u32).range(i64::from(least)..=i64::from(most))
}

/// Which pods are deleted by force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ForceDeletionArg {
    /// None.
    Never,
    /// Those on nodes that are fenced.
    Fenced,
    /// Also those whose owner consents.
    #[value(alias = "withconsent")]
    WithConsent,
}

impl From<ForceDeletionArg> for ForcePolicy {
    fn from(which: ForceDeletionArg) -> Self {
        match which {
            ForceDeletionArg::Never => Self::Never,
            ForceDeletionArg::Fenced => Self::Fenced,
            ForceDeletionArg::WithConsent => Self::WithConsent,
        }
    }
}

/// What is done about faults of devices, and about nodes that are silent.
#[derive(Args, Clone, Debug)]
pub struct RecoveryArgs {
    /// Whether gangs are evicted for faulty devices and silent nodes, or it is only told that they would be.
    #[arg(
        long,
        env = "MUSTER_RECOVERY_MODE",
        default_value = "observe",
        ignore_case = true
    )]
    pub recovery_mode: ModeArg,

    /// Seconds for which the start of an attempt may make no progress where its pods and their Job do not say
    /// (muster.dev/start-timeout-seconds). For Gangs that are made from now on.
    #[arg(
        long,
        env = "MUSTER_WARM_UP_SECONDS",
        default_value_t = index::START_TIMEOUT_SECONDS,
        value_parser = limit_seconds(1)
    )]
    pub warm_up_seconds: u32,

    /// Seconds for which a rank may have failed while others go on where its gang does not say (muster.dev/failure-grace-seconds). So long
    /// is the attempt left alone, so that a fault that explains it may be told.
    #[arg(
        long,
        env = "MUSTER_FAILURE_GRACE_SECONDS",
        default_value_t = 60,
        value_parser = limit_seconds(1)
    )]
    pub failure_grace_seconds: u32,

    /// Seconds that a gang pauses after the first of consecutive attempts that got nowhere; each time twice as long.
    #[arg(
        long,
        env = "MUSTER_RETRY_PAUSE_SECONDS",
        default_value_t = 30,
        value_parser = limit_seconds(1)
    )]
    pub retry_pause_seconds: u32,

    /// The longest such pause, in seconds; not less than the first.
    #[arg(
        long,
        env = "MUSTER_MAX_RETRY_PAUSE_SECONDS",
        default_value_t = 1_800,
        value_parser = limit_seconds(1)
    )]
    pub max_retry_pause_seconds: u32,

    /// Which pods of evicted attempts are deleted by force if they do not die: none; those on nodes that are out of service or gone; or also, on
    /// nodes that are not Ready, those whose owner consents by muster.dev/force-deletion. On a node that is Ready none ever is.
    #[arg(
        long,
        env = "MUSTER_FORCE_DELETION",
        default_value = "fenced",
        ignore_case = true
    )]
    pub force_deletion: ForceDeletionArg,

    /// Seconds that such a pod has after the end of its own grace period.
    #[arg(
        long,
        env = "MUSTER_FORCE_AFTER_SECONDS",
        default_value_t = 60,
        value_parser = limit_seconds(10)
    )]
    pub force_after_seconds: u32,

    /// Share of the nodes with devices for which gangs are evicted at most within the window, in percent; two nodes always. Where more would
    /// be, the circuit breaker opens, and nothing is evicted any more until a person closes it.
    #[arg(
        long,
        env = "MUSTER_BREAKER_SHARE_PERCENT",
        default_value_t = 20,
        value_parser = clap::value_parser!(u32).range(0..=100)
    )]
    pub breaker_share_percent: u32,

    /// The window, in seconds.
    #[arg(
        long,
        env = "MUSTER_BREAKER_WINDOW_SECONDS",
        default_value_t = 600,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub breaker_window_seconds: u32,

    /// What is done about gangs on nodes that are cordoned, and on nodes and devices that are drained by hand: nothing, or they are moved whole
    /// if they have a place elsewhere, and budgets of disruption hold `kubectl drain` off meanwhile.
    #[arg(
        long,
        env = "MUSTER_ON_CORDON",
        default_value = "nothing",
        ignore_case = true
    )]
    pub on_cordon: OnCordonArg,

    /// For how long the quota and the place of an attempt are kept for its gang after it ended by a fault, a lost node or the like, in
    /// seconds. With 0 nothing is kept.
    #[arg(
        long,
        env = "MUSTER_RECOVERY_KEEP_SECONDS",
        default_value_t = 600,
        value_parser = limit_seconds(0)
    )]
    pub recovery_keep_seconds: u32,
}

impl RecoveryArgs {
    fn settings(&self) -> Recovery {
        Recovery {
            mode: self.recovery_mode.into(),
            force_deletion: self.force_deletion.into(),
            force_after_seconds: self.force_after_seconds.into(),
            failure_grace_seconds: self.failure_grace_seconds.into(),
            retry_pause_seconds: self.retry_pause_seconds,
            most_retry_pause_seconds: self.max_retry_pause_seconds,
            breaker: BreakerLimits {
                share_percent: self.breaker_share_percent,
                ..BreakerLimits::SHIPPED
            },
            breaker_window_seconds: self.breaker_window_seconds.into(),
            on_cordon: self.on_cordon.into(),
            keep_seconds: self.recovery_keep_seconds.into(),
        }
    }
}

/// How the leader's lease is held.
#[derive(Args, Clone, Debug)]
pub struct LeaseArgs {
    /// Name of the Lease.
    #[arg(long, env = "MUSTER_LEASE_NAME", default_value = "muster-controller")]
    pub lease_name: String,

    /// Seconds that others wait after the last renewal that they saw.
    #[arg(long, env = "MUSTER_LEASE_SECONDS", default_value_t = 15)]
    pub lease_seconds: u32,

    /// Seconds after its last renewal at which a leader stops.
    #[arg(long, env = "MUSTER_LEASE_RENEW_SECONDS", default_value_t = 10)]
    pub lease_renew_seconds: u32,

    /// Seconds between two attempts.
    #[arg(long, env = "MUSTER_LEASE_RETRY_SECONDS", default_value_t = 2)]
    pub lease_retry_seconds: u32,
}

/// Which webhook configurations the leader keeps the CA bundle of.
#[derive(Args, Clone, Debug)]
pub struct WebhookArgs {
    /// Secret of the webhook's certificate authorities.
    #[arg(
        long,
        env = "MUSTER_WEBHOOK_CA_SECRET",
        default_value = "muster-webhook-ca",
        value_name = "NAME"
    )]
    pub webhook_ca_secret: String,

    /// MutatingWebhookConfiguration whose caBundle is kept; none without.
    #[arg(
        long = "mutating-webhook-configuration",
        env = "MUSTER_MUTATING_WEBHOOK_CONFIGURATIONS",
        value_delimiter = ',',
        value_name = "NAME"
    )]
    pub mutating_configurations: Vec<String>,

    /// ValidatingWebhookConfiguration whose caBundle is kept; none without.
    #[arg(
        long = "validating-webhook-configuration",
        env = "MUSTER_VALIDATING_WEBHOOK_CONFIGURATIONS",
        value_delimiter = ',',
        value_name = "NAME"
    )]
    pub validating_configurations: Vec<String>,
}

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

/// Whether pods are held until they are admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModeArg {
    /// Nothing is held; gangs and their reasons are computed and shown.
    Observe,
    /// Pods start when they are admitted.
    Enforce,
}

impl From<ModeArg> for Mode {
    fn from(mode: ModeArg) -> Self {
        match mode {
            ModeArg::Observe => Self::Observe,
            ModeArg::Enforce => Self::Enforce,
        }
    }
}

/// What is done about gangs on what a person drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnCordonArg {
    /// Nothing.
    Nothing,
    /// They are moved, if they have a place elsewhere.
    Move,
}

impl From<OnCordonArg> for OnCordon {
    fn from(on_cordon: OnCordonArg) -> Self {
        match on_cordon {
            OnCordonArg::Nothing => Self::Nothing,
            OnCordonArg::Move => Self::Move,
        }
    }
}

impl RunArgs {
    /// Whether gangs are moved away from what is drained, and not only told that they would be.
    pub fn moves_gangs(&self) -> bool {
        self.mode == ModeArg::Enforce
            && self.recovery.recovery_mode == ModeArg::Enforce
            && self.recovery.on_cordon == OnCordonArg::Move
    }

    /// The configuration of the protocol.
    pub fn protocol_config(&self) -> Result<muster_protocol::Config, InvalidResourcePattern> {
        let mut config = muster_protocol::Config {
            mode: self.mode.into(),
            lost_after_seconds: self.nodes.node_lost_after_seconds.into(),
            node_loss_seconds: self.nodes.node_evict_after_seconds.into(),
            recovery: self.recovery.settings(),
            ..muster_protocol::Config::new(self.index_config()?)
        };
        let own_scheduler = self.scheduler_name.iter().filter(|name| !name.is_empty());
        config.scheduler_names.extend(own_scheduler.cloned());
        Ok(config)
    }

    fn index_config(&self) -> Result<index::Config, InvalidResourcePattern> {
        Ok(index::Config {
            managed: ManagedPods::new(self.extended_resources.listed())?,
            excluded_namespaces: names(&self.excluded_namespaces),
            excepted_device_classes: names(&self.excepted_device_classes),
            default_team: self.default_team.clone().filter(|team| !team.is_empty()),
            start_timeout_seconds: self.recovery.warm_up_seconds,
        })
    }

    /// The lease, under an identity that no other process ever has.
    pub fn lease_settings(&self) -> LeaseSettings {
        let seconds = |seconds: u32| Duration::from_secs(u64::from(seconds));
        let started_at = jiff::Timestamp::now().as_nanosecond();
        LeaseSettings {
            namespace: self.namespace.clone(),
            name: self.lease.lease_name.clone(),
            identity: format!("{}_{}_{started_at}", self.identity, std::process::id()),
            duration: seconds(self.lease.lease_seconds),
            renew_limit: seconds(self.lease.lease_renew_seconds),
            retry: seconds(self.lease.lease_retry_seconds),
        }
    }

    /// The Secret of the webhook's authorities.
    pub fn webhook_authorities(&self, client: kube::Client) -> AuthoritySecret {
        let reference = SecretReference {
            namespace: self.namespace.clone(),
            name: self.webhooks.webhook_ca_secret.clone(),
        };
        AuthoritySecret::new(client, reference, Policy::ROTATED)
    }
}

fn names(list: &[String]) -> BTreeSet<String> {
    // An empty environment variable gives one empty name.
    list.iter()
        .filter(|name| !name.is_empty())
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed_and_run_is_the_default() {
        Cli::command().debug_assert();
        let cli = Cli::try_parse_from(["muster-controller", "--mode", "Observe"]).unwrap();
        assert!(cli.command.is_none());
        assert_eq!(cli.run.mode, ModeArg::Observe);
        let cli =
            Cli::try_parse_from(["muster-controller", "run", "--default-team", "ml"]).unwrap();
        assert!(
            matches!(cli.command, Some(Command::Run(args)) if args.default_team.as_deref() == Some("ml"))
        );
    }

    #[test]
    fn empty_lists_of_the_chart_are_empty_lists() {
        let cli = Cli::try_parse_from([
            "muster-controller",
            "--excepted-device-class=",
            "--excluded-namespace=kube-system,muster-system",
            "--default-team=",
        ])
        .unwrap();
        let config = cli.run.index_config().unwrap();
        assert!(config.excepted_device_classes.is_empty());
        assert_eq!(config.excluded_namespaces.len(), 2);
        assert_eq!(config.default_team, None);
        assert!(config.managed.stands_for_devices("nvidia.com/mig-1g.10gb"));
    }

    #[test]
    fn the_window_is_for_the_default_scheduler_and_for_the_one_that_the_webhook_writes() {
        for (flag, expected) in [
            ("--scheduler-name=", vec!["default-scheduler"]),
            ("--scheduler-name=gang", vec!["default-scheduler", "gang"]),
        ] {
            let cli = Cli::try_parse_from(["muster-controller", flag]).unwrap();
            let config = cli.run.protocol_config().unwrap();
            assert!(config.scheduler_names.iter().eq(expected), "{flag}");
        }
    }

    #[test]
    fn nodes_are_given_up_when_the_protocol_says_unless_the_flags_say_otherwise() {
        let run = |flags: &[&str]| {
            let flags = [&["muster-controller"], flags].concat();
            Cli::try_parse_from(flags).unwrap().run
        };
        let times =
            |config: muster_protocol::Config| (config.lost_after_seconds, config.node_loss_seconds);
        let configured = |flags: &[&str]| times(run(flags).protocol_config().unwrap());
        let index = run(&[]).index_config().unwrap();
        let shipped = times(muster_protocol::Config::new(index));
        assert_eq!(configured(&[]), shipped);
        let flags = [
            "--node-lost-after-seconds=10",
            "--node-evict-after-seconds=20",
        ];
        assert_eq!(configured(&flags), (10, 20));
        for flag in flags.map(|flag| flag.replace("=10", "=0").replace("=20", "=0")) {
            let refused = Cli::try_parse_from(["muster-controller", &flag]);
            assert!(refused.is_err(), "{flag}");
        }
    }

    #[test]
    fn nothing_is_ended_for_faults_unless_the_flags_say_so() {
        let configured = |flags: &[&str]| {
            let flags = [&["muster-controller"], flags].concat();
            let cli = Cli::try_parse_from(flags).unwrap();
            cli.run.protocol_config().unwrap().recovery
        };
        assert_eq!(configured(&[]), Recovery::default(), "what ships");
        let flags = [
            "--recovery-mode=Enforce",
            "--breaker-share-percent=5",
            "--breaker-window-seconds=60",
            "--on-cordon=Move",
            "--recovery-keep-seconds=0",
        ];
        let recovery = configured(&flags);
        assert_eq!(recovery.mode, Mode::Enforce);
        assert_eq!(recovery.breaker.most_nodes(100), 5);
        assert_eq!(recovery.breaker_window_seconds, 60);
        assert_eq!(recovery.on_cordon, OnCordon::Move);
        assert_eq!(recovery.keep_seconds, 0);
        for flag in [
            "--breaker-share-percent=101",
            "--breaker-window-seconds=0",
            "--on-cordon=Evict",
            "--recovery-keep-seconds=86401",
        ] {
            let refused = Cli::try_parse_from(["muster-controller", flag]);
            assert!(refused.is_err(), "{flag}");
        }
    }

    #[test]
    fn phases_of_recovery_are_as_they_ship_unless_the_flags_say_otherwise_within_their_bounds() {
        let parse = |flags: &[&str]| {
            let flags = [&["muster-controller"], flags].concat();
            Cli::try_parse_from(flags).map(|cli| cli.run.protocol_config().unwrap())
        };
        let flags = [
            "--warm-up-seconds=1200",
            "--failure-grace-seconds=5",
            "--retry-pause-seconds=10",
            "--max-retry-pause-seconds=20",
            "--force-deletion=WithConsent",
            "--force-after-seconds=10",
        ];
        let config = parse(&flags).unwrap();
        let recovery = Recovery {
            force_deletion: ForcePolicy::WithConsent,
            force_after_seconds: 10,
            failure_grace_seconds: 5,
            retry_pause_seconds: 10,
            most_retry_pause_seconds: 20,
            ..Recovery::default()
        };
        assert_eq!(config.recovery, recovery);
        assert_eq!(config.index.start_timeout_seconds, 1_200);
        let shipped = parse(&[]).unwrap();
        assert_eq!(shipped.recovery, Recovery::default());
        assert_eq!(
            shipped.index.start_timeout_seconds,
            index::START_TIMEOUT_SECONDS
        );
        for (word, policy) in [
            ("never", ForcePolicy::Never),
            ("Fenced", ForcePolicy::Fenced),
            ("with-consent", ForcePolicy::WithConsent),
            ("withconsent", ForcePolicy::WithConsent),
        ] {
            let flag = format!("--force-deletion={word}");
            let config = parse(&[flag.as_str()]).unwrap();
            assert_eq!(config.recovery.force_deletion, policy, "{word}");
        }
        for (flag, least) in [
            ("--warm-up-seconds", 1),
            ("--failure-grace-seconds", 1),
            ("--retry-pause-seconds", 1),
            ("--max-retry-pause-seconds", 1),
            ("--force-after-seconds", 10),
        ] {
            for (seconds, is_taken) in [
                (least - 1, false),
                (least, true),
                (86_400, true),
                (86_401, false),
            ] {
                let flag = format!("{flag}={seconds}");
                assert_eq!(parse(&[flag.as_str()]).is_ok(), is_taken, "{flag}");
            }
        }
        assert!(parse(&["--force-deletion=always"]).is_err());
    }

    #[test]
    fn two_processes_never_share_a_lease_identity() {
        let cli = Cli::try_parse_from(["muster-controller"]).unwrap();
        let first = cli.run.lease_settings();
        assert!(first.identity.starts_with("muster-controller_"));
        assert_ne!(first.identity, cli.run.lease_settings().identity);
    }
}
