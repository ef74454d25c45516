//! The command line: what there is to do, and the flags of what ends by itself.

mod recovery;
mod run;
mod scheduler_config;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use muster_serve::ExtendedResourcesArgs;

pub use self::{
    recovery::{ForceDeletionArg, OnCordonArg, RecoveryArgs},
    run::{LeaseArgs, ModeArg, NodeArgs, RunArgs, WebhookArgs},
    scheduler_config::SchedulerConfigArgs,
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
}
