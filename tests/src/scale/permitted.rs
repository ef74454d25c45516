//! Whether what runs may run: a played node that started pods without asking its driver would be fast, and worthless.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt, api::ListParams};
use muster_api::NodeDevices;

/// Fails unless every pod that runs has a live permit on the node that it runs on, and so many run.
pub(super) async fn check(client: &Client, pods_wanted: usize) -> Result<()> {
    let devices: Api<NodeDevices> = Api::all(client.clone());
    let permitted: BTreeSet<(String, String)> = devices
        .list(&ListParams::default())
        .await?
        .into_iter()
        .flat_map(|devices| {
            let node = devices.name_any();
            let live = devices.spec.permits.into_iter();
            let live = live.filter(|permit| !permit.withdrawn);
            live.map(move |permit| (node.clone(), permit.pod_uid))
        })
        .collect();
    let pods: Api<Pod> = Api::all(client.clone());
    let running = ListParams::default().fields("status.phase=Running");
    let mut count = 0;
    for pod in pods.list(&running).await? {
        let spec = pod.spec.as_ref();
        if spec.is_none_or(|spec| spec.resource_claims.is_none()) {
            continue;
        }
        count += 1;
        let node = spec
            .and_then(|spec| spec.node_name.clone())
            .unwrap_or_default();
        let (uid, name) = (pod.uid().unwrap_or_default(), pod.name_any());
        ensure!(
            permitted.contains(&(node.clone(), uid)),
            "pod {name} runs on {node} without a permit"
        );
    }
    ensure!(count == pods_wanted, "{count} of {pods_wanted} pods run");
    Ok(())
}
