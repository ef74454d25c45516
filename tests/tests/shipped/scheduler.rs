//! The scheduler step, on a control plane as kubeadm makes it: kube-scheduler in a static pod, its files on its machine.

use anyhow::{Result, ensure};
use jiff::{Timestamp, ToSpan};
use muster_tests::containers::{Lab, kube_scheduler};

use crate::CONTROL;

/// Where the comments of what is printed have it put.
const FILE: &str = "/etc/kubernetes/muster/scheduler.yaml";

pub(crate) async fn kube_scheduler_gets_the_extender_as_the_notes_say(lab: &mut Lab) -> Result<()> {
    kube_scheduler::wait_until_ready(lab, CONTROL, None, Timestamp::UNIX_EPOCH).await?;
    let since = a_moment_ago()?;
    let printed = kube_scheduler::configure(lab, CONTROL, None).await?;
    ensure!(
        printed.contains("kubeconfig: /etc/kubernetes/scheduler.conf"),
        "it does not name the kubeconfig that the scheduler has:\n{printed}"
    );
    kube_scheduler::wait_until_ready(lab, CONTROL, Some(FILE), since).await
}

/// Kubelets tell times to the second.
fn a_moment_ago() -> Result<Timestamp> {
    Ok(Timestamp::now().checked_sub(1.second())?)
}

/// Two profiles, of which the second is the operator's own.
const EXISTING: &str = "
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: /etc/kubernetes/scheduler.conf}
leaderElection: {leaderElect: true}
podMaxBackoffSeconds: 5
profiles:
- schedulerName: default-scheduler
- schedulerName: packing
  pluginConfig:
  - name: NodeResourcesFit
    args:
      scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}]}
";

pub(crate) async fn an_existing_configuration_is_kept_and_gets_the_extender(
    lab: &mut Lab,
) -> Result<()> {
    let since = a_moment_ago()?;
    let printed = kube_scheduler::configure(lab, CONTROL, Some(EXISTING)).await?;
    for kept in [
        "schedulerName: packing",
        "podMaxBackoffSeconds: 5",
        "urlPrefix: https://",
    ] {
        ensure!(printed.contains(kept), "{kept} is not in it:\n{printed}");
    }
    kube_scheduler::wait_until_ready(lab, CONTROL, Some(FILE), since).await
}
