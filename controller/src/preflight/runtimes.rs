//! Container runtimes: whether they give containers devices by CDI, which is the only way that Muster's driver uses.

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::{
    finding::{Finding, Reason},
    nodes::Nodes,
    reading::Reading,
};
use crate::listing::Names;

/// containerd from here on can do CDI, if `enable_cdi` is set.
const CONTAINERD_CAN: (u32, u32) = (1, 7);
/// containerd from here on does CDI by default.
const CONTAINERD_DOES: (u32, u32) = (2, 0);
/// CRI-O from here on does CDI by default.
const CRIO_DOES: (u32, u32) = (1, 23);

/// Container runtimes of some nodes.
#[derive(Clone, Debug, Default)]
pub struct Runtimes {
    without: Names,
    off_by_default: Names,
    unknown: Names,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cdi {
    On,
    OffByDefault,
    Never,
    Unknown,
}

impl Runtimes {
    /// Keeps what is to be told of a node.
    pub fn see(&mut self, node: &Node) {
        let version = node
            .status
            .as_ref()
            .and_then(|status| status.node_info.as_ref())
            .map_or("", |info| info.container_runtime_version.as_str());
        let list = match cdi(version) {
            Cdi::On => return,
            Cdi::OffByDefault => &mut self.off_by_default,
            Cdi::Never => &mut self.without,
            Cdi::Unknown => &mut self.unknown,
        };
        list.add(|| format!("{}: {version}", node.name_any()));
    }
}

/// What is known of a runtime by `NAME://VERSION`, as the kubelet reports it.
fn cdi(version: &str) -> Cdi {
    let Some((name, version)) = version.split_once("://") else {
        return Cdi::Unknown;
    };
    let mut numbers = version
        .trim_start_matches('v')
        .split(|character: char| !character.is_ascii_digit())
        .map(str::parse);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return Cdi::Unknown;
    };
    match name {
        "containerd" if (major, minor) >= CONTAINERD_DOES => Cdi::On,
        "containerd" if (major, minor) >= CONTAINERD_CAN => Cdi::OffByDefault,
        "cri-o" if (major, minor) >= CRIO_DOES => Cdi::On,
        // cri-dockerd hands no CDI ids on.
        "containerd" | "cri-o" | "docker" => Cdi::Never,
        _ => Cdi::Unknown,
    }
}

/// Runtimes of the nodes that matter.
pub fn findings(nodes: &Reading<Nodes>) -> Vec<Finding> {
    let (which, group) = nodes.found.relevant();
    let Runtimes {
        without,
        off_by_default,
        unknown,
    } = &group.runtimes;
    let mut findings = Vec::new();
    for (reason, names, what, remedy) in [
        (
            Reason::RuntimeWithoutCdi,
            without,
            "have a container runtime without CDI, so no container there gets a GPU of Muster's",
            "Upgrade to containerd 2 or CRI-O 1.23 or newer",
        ),
        (
            Reason::CdiOffByDefault,
            off_by_default,
            "have containerd 1.7, where CDI is off unless its configuration says otherwise",
            "Set enable_cdi = true in [plugins.\"io.containerd.grpc.v1.cri\"] of containerd's configuration there, or upgrade to containerd 2",
        ),
        (
            Reason::NotVisible,
            unknown,
            "have a container runtime of which nothing is known here",
            "Make sure that it resolves the CDI ids which the kubelet hands it",
        ),
    ] {
        if !names.is_empty() {
            let message = format!(
                "{} of {} nodes {which} {what} ({})",
                names.count(),
                group.count,
                names.list()
            );
            let reason = nodes.found.reason(reason);
            findings.push(Finding::new(reason, "container runtimes", message, remedy));
        }
    }
    nodes.or_passed(findings, || {
        Finding::passed(
            "container runtimes",
            format!("those of {} nodes {which} do CDI by default", group.count),
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::preflight::nodes::tests::{node, nodes, served};

    #[test]
    fn what_a_runtime_does_is_told_by_its_name_and_version_and_never_guessed() {
        for (version, expected) in [
            ("containerd://1.6.36", Reason::RuntimeWithoutCdi),
            ("containerd://1.7.27", Reason::CdiOffByDefault),
            ("containerd://2.1.4-k3s1", Reason::Passed),
            ("containerd://v2.0.0", Reason::Passed),
            ("cri-o://1.22.5", Reason::RuntimeWithoutCdi),
            ("cri-o://1.37.0", Reason::Passed),
            ("docker://27.0.3", Reason::RuntimeWithoutCdi),
            ("process://1", Reason::NotVisible),
            ("kata://3.1.0", Reason::NotVisible),
            ("containerd://Unknown", Reason::NotVisible),
            ("", Reason::NotVisible),
        ] {
            let status = json!({"nodeInfo": {
                "architecture": "", "bootID": "", "containerRuntimeVersion": version, "kernelVersion": "", "kubeProxyVersion": "",
                "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""}});
            let found = findings(&Reading::whole(nodes(&[served("a", &status)])));
            assert_eq!((found.len(), found[0].reason), (1, expected), "{version}");
            let elsewhere = findings(&Reading::whole(nodes(&[node("a", &json!({}), &status)])));
            assert!(
                [Reason::Passed, Reason::NotVisible].contains(&elsewhere[0].reason),
                "{version}"
            );
        }
    }
}
