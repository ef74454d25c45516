//! Flags of `run` about faults of devices, silent nodes, and what a person drains.

use clap::{Args, ValueEnum};
use muster_cluster::index;
use muster_protocol::{BreakerLimits, ForcePolicy, OnCordon, Recovery, ResetLimits};

use super::run::ModeArg;

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

    /// Share of the nodes with devices for which gangs are evicted, or on which GPUs are reset, at most within the window, in percent; two nodes
    /// always. Where more would be, the circuit breaker opens, and nothing is evicted or reset any more until a person closes it.
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

    /// On how many nodes GPUs may be reset at the same time. With 0 none is, and no fault counts for the circuit breaker for that: so it is where
    /// drivers have no command for it.
    #[arg(
        long,
        env = "MUSTER_MOST_NODES_RESETTING",
        default_value_t = ResetLimits::SHIPPED.most_nodes
    )]
    pub most_nodes_resetting: usize,

    /// How long the command may take by which drivers reset GPUs, in seconds: a node that may not any more counts for as long as one that was begun.
    #[arg(
        long,
        env = "MUSTER_RESET_DEADLINE_SECONDS",
        default_value_t = 120,
        value_parser = limit_seconds(1)
    )]
    pub reset_deadline_seconds: u32,

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
    /// The same for the protocol.
    pub(super) fn settings(&self) -> Recovery {
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
            resets: ResetLimits {
                most_nodes: self.most_nodes_resetting,
                run_out_seconds: ResetLimits::run_out_seconds(self.reset_deadline_seconds.into()),
                ..ResetLimits::SHIPPED
            },
            on_cordon: self.on_cordon.into(),
            keep_seconds: self.recovery_keep_seconds.into(),
        }
    }
}

/// Seconds from that on, up to what gangs may ask for.
fn limit_seconds(least: u32) -> clap::builder::RangedI64ValueParser<u32> {
    let most = muster_api::keys::MAX_LIMIT_SECONDS;
    clap::value_parser!(u32).range(i64::from(least)..=i64::from(most))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use muster_protocol::Mode;

    use super::*;
    use crate::args::Cli;

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
            "--most-nodes-resetting=0",
            "--reset-deadline-seconds=600",
            "--on-cordon=Move",
            "--recovery-keep-seconds=0",
        ];
        let recovery = configured(&flags);
        assert_eq!(recovery.mode, Mode::Enforce);
        assert_eq!(recovery.breaker.most_nodes(100), 5);
        assert_eq!(recovery.breaker_window_seconds, 60);
        assert_eq!(recovery.resets.most_nodes, 0);
        assert_eq!(recovery.resets.run_out_seconds, 660);
        assert_eq!(recovery.on_cordon, OnCordon::Move);
        assert_eq!(recovery.keep_seconds, 0);
        for flag in [
            "--breaker-share-percent=101",
            "--breaker-window-seconds=0",
            "--most-nodes-resetting=-1",
            "--reset-deadline-seconds=0",
            "--reset-deadline-seconds=86401",
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
}
