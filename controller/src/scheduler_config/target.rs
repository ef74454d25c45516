//! Which kube-scheduler a configuration is for.

use clap::ValueEnum;

use super::{
    refusal::{Reason, Refusal},
    refused,
    running::RunningScheduler,
};

/// Name by which pods choose the cluster's own scheduler, if they name none.
pub const DEFAULT_SCHEDULER: &str = "default-scheduler";
/// Name of a second scheduler, where the chart gives it none.
pub const SECOND_SCHEDULER: &str = "muster-scheduler";

/// Which kube-scheduler a configuration is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Target {
    /// The cluster's own, in pods of kube-system that the control plane's kubelets run (kubeadm and others).
    Kubeadm,
    /// The cluster's own, started in some other way (a unit of systemd, say).
    Other,
    /// A second one, in pods of this cluster.
    Second,
    /// The cluster's own, where nobody can configure it.
    Managed,
}

impl Target {
    /// Whether pods that name no scheduler are this one's.
    pub fn is_cluster_scheduler(self) -> bool {
        self != Self::Second
    }
}

/// The target that was named, or the one that what runs suggests.
pub fn choose(
    named: Option<Target>,
    running: &[RunningScheduler],
    described: bool,
) -> Result<Target, Refusal> {
    match named {
        Some(Target::Kubeadm) if running.is_empty() => refused(
            Reason::SchedulerNotFound,
            "--for kubeadm: no pod with the label component=kube-scheduler is in kube-system; use --for other with \
             --scheduler-kubeconfig PATH, or --for managed",
        ),
        Some(target) => Ok(target),
        None if !running.is_empty() => Ok(Target::Kubeadm),
        None if described => Ok(Target::Other),
        None => refused(
            Reason::SchedulerNotFound,
            "no pod with the label component=kube-scheduler is in kube-system; say which scheduler it is: --for managed (a \
             provider runs the control plane), --for second (one that you run beside it), or --for other with \
             --scheduler-kubeconfig PATH (one outside of the cluster's pods)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_is_taken_unless_another_target_is_named_and_nothing_is_guessed() {
        let running = [RunningScheduler::default()];
        for (named, running, described, expected) in [
            (None, &running[..], false, Ok(Target::Kubeadm)),
            (None, &running[..], true, Ok(Target::Kubeadm)),
            (None, &[], true, Ok(Target::Other)),
            (None, &[], false, Err(Reason::SchedulerNotFound)),
            (
                Some(Target::Kubeadm),
                &[],
                true,
                Err(Reason::SchedulerNotFound),
            ),
            (
                Some(Target::Second),
                &running[..],
                false,
                Ok(Target::Second),
            ),
            (Some(Target::Other), &[], false, Ok(Target::Other)),
        ] {
            let chosen = choose(named, running, described).map_err(|refusal| refusal.reason);
            assert_eq!(chosen, expected, "{named:?} {described}");
        }
    }
}
