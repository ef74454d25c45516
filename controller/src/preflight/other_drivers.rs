//! Other drivers and device plugins that hand out the same GPUs: Muster's quota and its record of devices see none of that.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{core::v1::Node, resource::v1::ResourceSlice};
use kube::{Api, Client, ResourceExt, api::ListParams};
use muster_api::keys;
use muster_cluster::device_plugin::is_gpu_driver;

use super::{
    finding::{Finding, Reason},
    nodes::Nodes,
    reading::{self, Reading},
};
use crate::listing::Names;

/// Objects of one answer: a slice may have 128 devices, and all of an answer are in memory at once.
const PAGE: u32 = 50;

/// Device plugins on some nodes.
#[derive(Clone, Debug, Default)]
pub struct DevicePlugins {
    nodes: Names,
}

impl DevicePlugins {
    /// Keeps what is to be told of a node, of which `plugin` was found.
    pub fn see(&mut self, node: &Node, plugin: Option<String>) {
        if let Some(plugin) = plugin {
            self.nodes.add(|| format!("{}: {plugin}", node.name_any()));
        }
    }
}

/// Nodes by the other GPU drivers that publish devices there.
pub type Slices = BTreeMap<String, BTreeSet<String>>;

/// Reads who publishes GPUs where.
pub async fn read(client: &Client) -> Reading<Slices> {
    let slices: Api<ResourceSlice> = Api::all(client.clone());
    // Muster's own, which are most of them on a large cluster, are not looked at.
    let others = format!("spec.driver!={}", keys::DRIVER);
    let params = ListParams::default().fields(&others).limit(PAGE);
    reading::list(slices, params, Slices::new(), see).await
}

fn see(found: &mut Slices, slice: &ResourceSlice) {
    let driver = &slice.spec.driver;
    if driver != keys::DRIVER && is_gpu_driver(driver) {
        // What is not of one node has a pool's name instead.
        let node = slice.spec.node_name.as_ref();
        found
            .entry(driver.clone())
            .or_default()
            .insert(node.unwrap_or(&slice.spec.pool.name).clone());
    }
}

/// Device plugins on the nodes.
pub fn of_plugins(nodes: &Reading<Nodes>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let served = &nodes.found.served.plugins.nodes;
    if !served.is_empty() {
        findings.push(Finding::new(
            Reason::DevicePluginOnNode,
            "device plugins",
            format!(
                "on {} of {} nodes that Muster serves, a device plugin hands out the same GPUs ({}); Muster's driver publishes none there",
                served.count(),
                nodes.found.served.count,
                served.list()
            ),
            "Keep the device plugin off these nodes (GPU Operator: label them nvidia.com/gpu.deploy.device-plugin=false), or take the \
             driver's label off them",
        ));
    }
    let elsewhere = &nodes.found.candidates.plugins.nodes;
    if nodes.found.served.count == 0 && !elsewhere.is_empty() {
        findings.push(Finding::new(
            Reason::GpusServedByOthers,
            "device plugins",
            format!(
                "on {} nodes a device plugin hands out GPUs ({})",
                elsewhere.count(),
                elsewhere.list()
            ),
            "Count them by a Flavor with extendedResource; or take the device plugin off a node before you label it for Muster's driver",
        ));
    }
    nodes.or_passed(findings, || {
        Finding::passed(
            "device plugins",
            "none hands out GPUs of nodes that Muster serves",
        )
    })
}

/// Other DRA drivers on the nodes.
pub fn of_drivers(slices: &Reading<Slices>, nodes: &Reading<Nodes>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (driver, on) in &slices.found {
        let (mut shared, mut elsewhere) = (Names::default(), Names::default());
        for node in on {
            let names = if nodes.found.served_names.contains(node) {
                &mut shared
            } else {
                &mut elsewhere
            };
            names.add(|| node.clone());
        }
        if !shared.is_empty() {
            findings.push(Finding::new(
                Reason::OtherDriverOnNode,
                driver,
                format!(
                    "{driver} publishes GPUs of {} nodes that Muster serves ({}); Muster's driver publishes none there",
                    shared.count(),
                    shared.list()
                ),
                format!("Keep {driver} off these nodes, or take the label of Muster's driver off them"),
            ));
        } else if nodes.found.served.count == 0 && nodes.unread.is_none() {
            findings.push(Finding::new(
                Reason::GpusServedByOthers,
                driver,
                format!(
                    "{driver} publishes GPUs of {} nodes ({})",
                    elsewhere.count(),
                    elsewhere.list()
                ),
                format!("Take {driver} off a node before you label it for Muster's driver"),
            ));
        }
    }
    if slices.unread.is_none()
        && let Some(unread) = &nodes.unread
    {
        // Without all nodes nobody can say which of them are shared.
        findings.push(unread.finding());
        return findings;
    }
    slices.or_passed(findings, || {
        Finding::passed(
            "DRA drivers",
            "no other one publishes GPUs of nodes that Muster serves",
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        preflight::nodes::tests::{node, nodes, served},
        scripted_api::ScriptedApi,
    };

    fn reasons(findings: &[Finding]) -> Vec<Reason> {
        findings.iter().map(|finding| finding.reason).collect()
    }

    #[test]
    fn a_device_plugin_is_an_error_on_nodes_that_are_served_and_a_warning_before_any_is() {
        let gpus = |count: &str| json!({"allocatable": {"nvidia.com/gpu": count, "cpu": "8"}});
        let shared = json!({"allocatable": {"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "16"}});
        let mig = json!({"allocatable": {"nvidia.com/mig-1g.10gb": "2"}});
        for (all, expected) in [
            (vec![served("a", &gpus("8"))], Reason::DevicePluginOnNode),
            (vec![served("a", &mig)], Reason::DevicePluginOnNode),
            (vec![served("a", &shared)], Reason::DevicePluginOnNode),
            (vec![served("a", &gpus("0"))], Reason::Passed),
            (
                vec![served("a", &json!({})), node("b", &json!({}), &gpus("8"))],
                Reason::Passed,
            ),
            (
                vec![node("b", &json!({}), &gpus("8"))],
                Reason::GpusServedByOthers,
            ),
        ] {
            let found = of_plugins(&Reading::whole(nodes(&all)));
            assert_eq!(reasons(&found), [expected], "{found:?}");
        }
    }

    fn slices(of: &[(&str, &str)]) -> Reading<Slices> {
        let mut found = Slices::new();
        for (driver, node) in of {
            let slice = serde_json::from_value(json!({"metadata": {"name": "s"}, "spec": {
                "driver": driver, "nodeName": node, "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}}))
            .unwrap();
            see(&mut found, &slice);
        }
        Reading::whole(found)
    }

    #[test]
    fn another_gpu_driver_is_an_error_where_it_shares_a_node_and_network_drivers_are_none() {
        let served = [served("a", &json!({}))];
        for (published, all, expected) in [
            (
                vec![("gpu.nvidia.com", "a")],
                &served[..],
                Reason::OtherDriverOnNode,
            ),
            (vec![("gpu.nvidia.com", "b")], &served, Reason::Passed),
            (
                vec![("gpu.nvidia.com", "b")],
                &[],
                Reason::GpusServedByOthers,
            ),
            (
                vec![
                    ("gpu.muster.dev", "a"),
                    ("compute-domain.nvidia.com", "a"),
                    ("dra.net", "a"),
                ],
                &served,
                Reason::Passed,
            ),
        ] {
            let nodes = Reading::whole(nodes(all));
            let found = of_drivers(&slices(&published), &nodes);
            assert_eq!(reasons(&found), [expected], "{published:?}");
        }
    }

    #[tokio::test]
    async fn only_slices_of_others_are_asked_for_and_in_small_pages() {
        let list = json!({"kind": "ResourceSliceList", "apiVersion": "resource.k8s.io/v1", "metadata": {}, "items": []});
        let api = ScriptedApi::new([(200, list)]);
        let reading = read(&api.client()).await;
        assert!(reading.unread.is_none(), "{reading:?}");
        let query = &api.asked()[0].query;
        assert!(query.contains("fieldSelector=spec.driver%21%3D"), "{query}");
        assert!(
            query.split('&').any(|part| part.ends_with("limit=50")),
            "{query}"
        );
    }
}
