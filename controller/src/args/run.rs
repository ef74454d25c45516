//! Flags of `run`, and what follows from them for the rest of the program.

use std::{collections::BTreeSet, time::Duration};

use clap::{Args, ValueEnum};
use muster_cluster::{
    index,
    managed::{InvalidResourcePattern, ManagedPods},
};
use muster_protocol::Mode;
use muster_serve::{
    ExtendedResourcesArgs, ServeArgs,
    authority_secret::{AuthoritySecret, SecretReference},
    certificates::Policy,
    lease::LeaseSettings,
};

use super::recovery::{OnCordonArg, RecoveryArgs};
use crate::scheduler_lease::{CLUSTER_SCHEDULER, LeaseReference};

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
    use clap::Parser;

    use crate::args::Cli;

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
    fn two_processes_never_share_a_lease_identity() {
        let cli = Cli::try_parse_from(["muster-controller"]).unwrap();
        let first = cli.run.lease_settings();
        assert!(first.identity.starts_with("muster-controller_"));
        assert_ne!(first.identity, cli.run.lease_settings().identity);
    }
}
