//! Nodes, read once and page by page; each check keeps of a node only what it will say of it.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, NodeSelectorTerm};
use kube::{Api, Client, ResourceExt, api::ListParams};
use muster_cluster::{
    device_plugin, managed::ManagedPods, mig_settings::Settings, node_filter::affinity_passes,
};

use super::{
    finding::{Finding, Reason},
    mig::MigNodes,
    other_drivers::DevicePlugins,
    reading::{self, Reading},
    runtimes::Runtimes,
    versions::Kubelets,
};
use crate::listing::Names;

/// The label that NVIDIA's feature discovery gives nodes with GPUs.
const GPU_PRESENT: &str = "nvidia.com/gpu.present";

/// What Muster is to serve.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Labels of the nodes that its driver runs on.
    pub labels: BTreeMap<String, String>,
    /// Terms of its driver's affinity to nodes, of which one must match. `None`: no such affinity.
    pub affinity: Option<Vec<NodeSelectorTerm>>,
    /// Resources that stand for devices.
    pub devices: ManagedPods,
    /// How its driver is to cut GPUs; an error says why it does not understand that. `None`: no driver is seen.
    pub mig: Option<Result<Settings, String>>,
}

/// What is known of nodes of one kind.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// How many there are.
    pub count: usize,
    /// Their kubelets.
    pub kubelets: Kubelets,
    /// Their container runtimes.
    pub runtimes: Runtimes,
    /// Device plugins on them.
    pub plugins: DevicePlugins,
    /// Those on which NVIDIA's container runtime is set up.
    pub(super) nvidia_runtime: Names,
    /// Those whose kubelet names no runtime's handler at all, as with older runtimes.
    pub(super) without_handlers: Names,
}

/// The nodes of the cluster.
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    /// Those that Muster's driver runs on, or will.
    pub served: Group,
    /// Others that seem to have GPUs.
    pub candidates: Group,
    /// All others.
    pub others: Group,
    /// Names of those that are served.
    pub served_names: BTreeSet<String>,
    /// Resources of device plugins that are not managed, with the nodes that offer them.
    pub(super) unmanaged: BTreeMap<String, Names>,
    /// Slices that are asked for on those that are served.
    pub(super) mig: MigNodes,
    /// Those that have the labels and are left out by the driver's affinity.
    left_out: Names,
}

impl Nodes {
    pub(super) fn see(&mut self, node: &Node, wanted: &Wanted) {
        let labels = node.labels();
        // A driver that chooses by no label runs on all.
        let has_labels = wanted
            .labels
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value));
        let affinity = wanted.affinity.as_deref();
        let is_served = has_labels && affinity.is_none_or(|terms| affinity_passes(terms, node));
        if has_labels && !is_served {
            self.left_out.add_object(node);
        }
        for resource in device_plugin::offered_unmanaged(node, &wanted.devices) {
            let nodes = self.unmanaged.entry(resource.to_owned()).or_default();
            nodes.add_object(node);
        }
        let plugin = device_plugin::offered(node, &wanted.devices);
        let group = if is_served {
            self.served_names.insert(node.name_any());
            if let Some(Ok(settings)) = &wanted.mig {
                self.mig.see(node, settings);
            }
            &mut self.served
        } else if plugin.is_some() || labels.get(GPU_PRESENT).is_some_and(|value| value == "true") {
            &mut self.candidates
        } else {
            &mut self.others
        };
        group.count += 1;
        group.kubelets.see(node);
        group.runtimes.see(node);
        group.plugins.see(node, plugin);
        match has_nvidia_runtime(node) {
            Some(true) => group.nvidia_runtime.add_object(node),
            Some(false) => {}
            None => group.without_handlers.add_object(node),
        }
    }

    /// What is so bad on nodes with GPUs is not known to matter while no node is seen to have any.
    pub fn reason(&self, reason: Reason) -> Reason {
        if self.served.count == 0 && self.candidates.count == 0 {
            Reason::NotVisible
        } else {
            reason
        }
    }

    /// The nodes that matter, and which they are: those that are served; before any is, those with GPUs, and where there is no sign
    /// of those, all.
    pub fn relevant(&self) -> (&'static str, &Group) {
        if self.served.count > 0 {
            ("that Muster serves", &self.served)
        } else if self.candidates.count > 0 {
            ("with GPUs", &self.candidates)
        } else {
            ("in the cluster", &self.others)
        }
    }
}

/// Whether its kubelet names a handler of NVIDIA's: a RuntimeClass can choose it. Nobody knows where it names none.
fn has_nvidia_runtime(node: &Node) -> Option<bool> {
    let handlers = node.status.as_ref()?.runtime_handlers.as_ref()?;
    let mut names = handlers
        .iter()
        .map(|handler| handler.name.as_deref().unwrap_or_default());
    (!handlers.is_empty()).then(|| names.any(|name| name.starts_with("nvidia")))
}

/// Reads them.
pub async fn read(client: &Client, wanted: &Wanted) -> Reading<Nodes> {
    let nodes: Api<Node> = Api::all(client.clone());
    reading::list(
        nodes,
        ListParams::default(),
        Nodes::default(),
        |nodes, node| {
            nodes.see(node, wanted);
        },
    )
    .await
}

/// Whether there is any node to serve.
pub fn findings(nodes: &Reading<Nodes>, wanted: &Wanted) -> Vec<Finding> {
    let Nodes {
        served,
        candidates,
        left_out,
        ..
    } = &nodes.found;
    let label: Vec<String> = wanted
        .labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let label = if label.is_empty() {
        "(any)".to_owned()
    } else {
        label.join(",")
    };
    let mut findings = Vec::new();
    if served.count == 0 && nodes.unread.is_none() {
        let others = format!("{} other nodes seem to have GPUs", candidates.count);
        findings.push(if left_out.is_empty() {
            Finding::new(
                Reason::NoNodeToServe,
                "nodes",
                format!("no node has the label {label}, so Muster's driver runs nowhere; {others}"),
                format!("Label the nodes whose GPUs Muster is to give out: kubectl label node NODE {label}"),
            )
        } else {
            Finding::new(
                Reason::NoNodeToServe,
                "nodes",
                format!(
                    "the driver's affinity leaves out every node with the label {label}: {left_out}; {others}"
                ),
                "Change driver.affinity, or give the nodes the labels that it asks for",
            )
        });
    }
    nodes.or_passed(findings, || {
        let mut text = format!(
            "{} nodes have the label {label}; {} others seem to have GPUs",
            served.count, candidates.count
        );
        if !left_out.is_empty() {
            text += &format!("; the driver's affinity leaves out {left_out}");
        }
        Finding::passed("nodes", text)
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::*;

    pub(crate) fn wanted() -> Wanted {
        Wanted {
            labels: [("muster.dev/driver".to_owned(), "true".to_owned())].into(),
            affinity: None,
            devices: ManagedPods::new(["nvidia.com/gpu", "nvidia.com/mig-*"]).unwrap(),
            mig: None,
        }
    }

    /// A node of this name, with these labels and this status.
    pub(crate) fn node(name: &str, labels: &Value, status: &Value) -> Node {
        serde_json::from_value(
            json!({"metadata": {"name": name, "labels": labels}, "status": status}),
        )
        .unwrap()
    }

    pub(crate) fn served(name: &str, status: &Value) -> Node {
        node(name, &json!({"muster.dev/driver": "true"}), status)
    }

    pub(crate) fn nodes(all: &[Node]) -> Nodes {
        let mut nodes = Nodes::default();
        for node in all {
            nodes.see(node, &wanted());
        }
        nodes
    }

    #[test]
    fn the_nodes_that_matter_are_those_with_the_label_then_those_with_gpus_then_all() {
        let plain = node("c", &json!({}), &json!({}));
        let with_gpus = node(
            "b",
            &json!({}),
            &json!({"allocatable": {"nvidia.com/gpu": "8"}}),
        );
        let discovered = node("d", &json!({"nvidia.com/gpu.present": "true"}), &json!({}));
        let labelled = served("a", &json!({}));
        for (all, expected) in [
            (vec![plain.clone()], ("in the cluster", 1)),
            (
                vec![plain.clone(), with_gpus.clone(), discovered],
                ("with GPUs", 2),
            ),
            (vec![plain, with_gpus, labelled], ("that Muster serves", 1)),
        ] {
            let nodes = nodes(&all);
            let (which, group) = nodes.relevant();
            assert_eq!((which, group.count), expected);
        }
    }

    #[test]
    fn a_driver_that_chooses_by_no_label_runs_on_every_node() {
        let wanted = Wanted {
            labels: BTreeMap::new(),
            ..wanted()
        };
        let mut nodes = Nodes::default();
        nodes.see(&node("a", &json!({}), &json!({})), &wanted);
        assert_eq!(nodes.served.count, 1);
        let found = findings(&Reading::whole(nodes), &wanted);
        assert_eq!(found[0].reason, Reason::Passed);
    }

    #[test]
    fn a_cluster_without_a_labelled_node_is_told_how_to_label_one() {
        for (all, reason) in [
            (
                vec![node(
                    "a",
                    &json!({"muster.dev/driver": "false"}),
                    &json!({}),
                )],
                Reason::NoNodeToServe,
            ),
            (vec![served("a", &json!({}))], Reason::Passed),
        ] {
            let found = findings(&Reading::whole(nodes(&all)), &wanted());
            assert_eq!(found[0].reason, reason, "{found:?}");
        }
    }

    #[test]
    fn a_node_with_the_label_that_the_drivers_affinity_leaves_out_is_not_served_and_is_told() {
        let terms = json!([
            {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a"]}]},
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["named"]}]},
        ]);
        let wanted = Wanted {
            affinity: Some(serde_json::from_value(terms).unwrap()),
            ..wanted()
        };
        let labelled = |name: &str, pool: &str| {
            let labels = json!({"muster.dev/driver": "true", "pool": pool});
            node(name, &labels, &json!({}))
        };
        let without_label = node("d", &json!({"pool": "a"}), &json!({}));
        for (all, served, reason, told) in [
            (
                vec![
                    labelled("a", "a"),
                    labelled("named", "b"),
                    labelled("c", "b"),
                    without_label,
                ],
                2,
                Reason::Passed,
                "leaves out 1 (c)",
            ),
            (
                vec![labelled("c", "b")],
                0,
                Reason::NoNodeToServe,
                "the driver's affinity leaves out every node with the label muster.dev/driver=true: 1 (c)",
            ),
        ] {
            let mut nodes = Nodes::default();
            for node in &all {
                nodes.see(node, &wanted);
            }
            assert_eq!(nodes.served.count, served);
            let found = findings(&Reading::whole(nodes), &wanted);
            assert_eq!(found[0].reason, reason);
            assert!(found[0].message.contains(told), "{found:?}");
        }
    }
}
