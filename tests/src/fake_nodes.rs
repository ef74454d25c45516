//! Nodes that one process plays: for questions of size, where a kubelet for each is out of reach.

use std::{path::Path, time::Duration};

use anyhow::Result;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::ListParams};
use muster_api::NodeDevices;

use crate::{
    control_plane::ControlPlane,
    install::{NAMESPACE, RELEASE},
    kubernetes::{Progress, eventually},
    process::Launch,
    programs::Programs,
    service::{Probe, Service},
};

/// The program.
pub const PROGRAM: &str = "muster-fake-nodes";
/// Label of the leaf of a played node.
pub const LEAF_LABEL: &str = "example.com/leaf";
/// Label of its spine.
pub const SPINE_LABEL: &str = "example.com/spine";
/// How often a played node renews its lease. Thousands of nodes that renew every few seconds would be what is measured.
const LEASE_RENEWAL_SECONDS: u64 = 60;
/// Grace of the node monitor for such leases; stock clusters renew every 10 s and wait 50 s.
pub const MONITOR_GRACE_SECONDS: u64 = 5 * LEASE_RENEWAL_SECONDS;

/// Which nodes are played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FakeNodes {
    /// How many.
    pub count: u32,
    /// GPUs of each.
    pub gpus: u32,
}

impl FakeNodes {
    /// The process that plays them. Its drivers and kubelets have identities of their own by impersonation.
    pub(crate) fn service(
        self,
        directory: &Path,
        programs: &Programs,
        control_plane: &ControlPlane,
        has_driver: bool,
    ) -> Service {
        let without_driver = (!has_driver).then_some("--without-driver");
        let launch = Launch::new("fake-nodes", programs.path(PROGRAM))
            .arg(format!(
                "--kubeconfig={}",
                control_plane.admin_kubeconfig().display()
            ))
            .arg(format!("--nodes={}", self.count))
            .arg(format!("--gpus={}", self.gpus))
            .arg(format!("--lease-renewal-seconds={LEASE_RENEWAL_SECONDS}"))
            .arg(format!(
                "--driver-service-account={NAMESPACE}/{RELEASE}-driver"
            ))
            .args(without_driver);
        Service::new(launch, directory.join("logs"), Probe::None)
    }

    /// Waits until every played node is Ready: all that there is to wait for where it has no driver.
    pub async fn wait_until_registered(
        self,
        control_plane: &ControlPlane,
        process: &mut Service,
        limit: Duration,
    ) -> Result<()> {
        let nodes: Api<Node> = Api::all(control_plane.client());
        let wanted = usize::try_from(self.count)?;
        eventually("all played nodes are Ready", limit, async || {
            if let Err(ended) = process.ensure_running() {
                return Ok(Progress::Never(ended));
            }
            let all = nodes.list(&ListParams::default()).await?.items;
            let ready = all.iter().filter(|node| is_ready(node)).count();
            Ok(Progress::when(ready >= wanted, || {
                format!("{ready} of {wanted}")
            }))
        })
        .await
    }

    /// Waits until every played node can be planned: its driver has answered the controller.
    pub async fn wait_until_plannable(
        self,
        control_plane: &ControlPlane,
        process: &mut Service,
        limit: Duration,
    ) -> Result<()> {
        let devices: Api<NodeDevices> = Api::all(control_plane.client());
        let wanted = usize::try_from(self.count)?;
        eventually("all played nodes can be planned", limit, async || {
            if let Err(ended) = process.ensure_running() {
                return Ok(Progress::Never(ended));
            }
            let all = devices.list(&ListParams::default()).await?.items;
            let ready = all.iter().filter(|devices| has_answered(devices)).count();
            Ok(Progress::when(ready >= wanted, || {
                format!("{ready} of {wanted}")
            }))
        })
        .await
    }
}

/// Whether the driver has answered for this object as it stands.
pub fn has_answered(devices: &NodeDevices) -> bool {
    let metadata = &devices.metadata;
    devices.status.as_ref().is_some_and(|status| {
        Some(&status.uid) == metadata.uid.as_ref()
            && Some(status.observed_generation) >= metadata.generation
    })
}

fn is_ready(node: &Node) -> bool {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
