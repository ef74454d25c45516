//! Versions of Kubernetes, of the API server and of kubelets, and of the APIs that are served.

use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::APIGroupList};
use kube::ResourceExt;

use super::{
    finding::{Finding, Reason},
    nodes::Nodes,
    reading::Reading,
};
use crate::listing::Names;

/// The oldest minor version of Kubernetes 1 that Muster works with.
const OLDEST_MINOR: u32 = 37;
/// The newest that it was tested with.
const TESTED_MINOR: u32 = 37;

/// Groups and versions that Muster reads or writes, all of the API server itself.
const NEEDED_APIS: [(&str, &str); 4] = [
    ("resource.k8s.io", "v1"),
    ("admissionregistration.k8s.io", "v1"),
    ("batch", "v1"),
    ("coordination.k8s.io", "v1"),
];

/// Versions of the kubelets of some nodes.
#[derive(Clone, Debug, Default)]
pub struct Kubelets {
    too_old: Names,
    unreadable: Names,
}

impl Kubelets {
    /// Keeps what is to be told of a node.
    pub fn see(&mut self, node: &Node) {
        let version = node
            .status
            .as_ref()
            .and_then(|status| status.node_info.as_ref())
            .map_or("", |info| info.kubelet_version.as_str());
        let named = || format!("{}: {version}", node.name_any());
        match minor(version) {
            Some(minor) if minor < OLDEST_MINOR => self.too_old.add(named),
            Some(_) => {}
            None => self.unreadable.add(named),
        }
    }
}

/// The minor version in `v1.37.1`, `v1.37.1-eks-1234` or `v1.37+`; none if it is no version of Kubernetes 1.
pub fn minor(version: &str) -> Option<u32> {
    let (_, rest) = version
        .split_once('.')
        .filter(|(major, _)| major.trim_start_matches('v') == "1")?;
    let end = rest
        .find(|character: char| !character.is_ascii_digit())
        .unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// The API server's own version, as it says it.
pub fn of_server(version: &Reading<String>) -> Vec<Finding> {
    let object = "kube-apiserver";
    let text = &version.found;
    let mut findings = Vec::new();
    match minor(text) {
        _ if version.unread.is_some() => {}
        Some(minor) if minor < OLDEST_MINOR => findings.push(Finding::new(
            Reason::ServerTooOld,
            object,
            format!("the API server is {text}; Muster needs 1.{OLDEST_MINOR}"),
            format!("Upgrade the control plane to 1.{OLDEST_MINOR}"),
        )),
        Some(minor) if minor > TESTED_MINOR => findings.push(Finding::new(
            Reason::ServerNewerThanTested,
            object,
            format!("the API server is {text}; this Muster was tested with 1.{TESTED_MINOR}"),
            "See whether there is a newer Muster",
        )),
        Some(_) => {}
        None => findings.push(Finding::new(
            Reason::NotVisible,
            object,
            format!("the API server's version {text:?} is not understood"),
            format!("Make sure that it is 1.{OLDEST_MINOR}"),
        )),
    }
    version.or_passed(findings, || {
        Finding::passed(object, format!("the API server is {text}"))
    })
}

/// Kubelets of the nodes that matter.
pub fn of_kubelets(nodes: &Reading<Nodes>) -> Vec<Finding> {
    let (which, group) = nodes.found.relevant();
    let Kubelets {
        too_old,
        unreadable,
    } = &group.kubelets;
    let mut findings = Vec::new();
    if !too_old.is_empty() {
        findings.push(Finding::new(
            nodes.found.reason(Reason::KubeletTooOld),
            "kubelets",
            format!(
                "{} of {} kubelets of nodes {which} are older than 1.{OLDEST_MINOR} ({})",
                too_old.count(),
                group.count,
                too_old.list()
            ),
            "Upgrade these nodes, or take the driver's label off them",
        ));
    }
    if !unreadable.is_empty() {
        findings.push(Finding::new(
            Reason::NotVisible,
            "kubelets",
            format!(
                "{} kubelets have versions that are not understood ({})",
                unreadable.count(),
                unreadable.list()
            ),
            format!("Make sure that they are 1.{OLDEST_MINOR}"),
        ));
    }
    nodes.or_passed(findings, || {
        Finding::passed(
            "kubelets",
            format!(
                "{} kubelets of nodes {which} are 1.{OLDEST_MINOR} or newer",
                group.count
            ),
        )
    })
}

/// Whether the API server serves what Muster uses.
pub fn of_apis(groups: &Reading<APIGroupList>) -> Vec<Finding> {
    let missing = NEEDED_APIS.into_iter().filter(|(group, version)| {
        let mut served = groups
            .found
            .groups
            .iter()
            .filter(|served| served.name == *group)
            .flat_map(|served| &served.versions);
        groups.unread.is_none() && !served.any(|served| served.version == *version)
    });
    let findings = missing
        .map(|(group, version)| {
            Finding::new(
                Reason::ApiNotServed,
                format!("{group}/{version}"),
                format!("the API server does not serve {group}/{version}"),
                "Look for it in kube-apiserver's --runtime-config",
            )
        })
        .collect();
    groups.or_passed(findings, || {
        Finding::passed(
            "APIs",
            "the API server serves all versions that Muster uses",
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::preflight::nodes::tests::{node, nodes, served};

    #[test]
    fn versions_are_read_as_distributions_write_them_and_no_other_text_is_one() {
        for (text, expected) in [
            ("v1.37.1", Some(37)),
            ("v1.37.0-eks-3f1c2", Some(37)),
            ("1.38+", Some(38)),
            ("v1.36.9-gke.100", Some(36)),
            ("v2.1.0", None),
            ("v1.", None),
            ("", None),
            ("v1.99999999999", None),
            ("v1.\u{661}", None),
        ] {
            assert_eq!(minor(text), expected, "{text}");
        }
    }

    #[test]
    fn an_old_server_is_an_error_and_an_unknown_one_is_never_fine() {
        for (version, reason) in [
            ("v1.36.4", Reason::ServerTooOld),
            ("v1.37.1", Reason::Passed),
            ("v1.40.0", Reason::ServerNewerThanTested),
            ("devel", Reason::NotVisible),
        ] {
            let found = of_server(&Reading::whole(version.to_owned()));
            assert_eq!((found.len(), found[0].reason), (1, reason), "{version}");
        }
    }

    #[test]
    fn old_kubelets_count_on_nodes_that_are_served_and_are_named() {
        let info = |version: &str| {
            json!({"nodeInfo": {
            "architecture": "", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
            "kubeletVersion": version, "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""}})
        };
        let old_elsewhere = node("c", &json!({}), &info("v1.30.0"));
        for (versions, expected) in [
            (vec!["v1.37.1", "v1.37.0"], vec![Reason::Passed]),
            (vec!["v1.36.2", "v1.37.0"], vec![Reason::KubeletTooOld]),
            (vec!["x", "v1.37.0"], vec![Reason::NotVisible]),
        ] {
            let mut all = vec![old_elsewhere.clone()];
            for (number, version) in versions.iter().enumerate() {
                all.push(served(&format!("n{number}"), &info(version)));
            }
            let found = of_kubelets(&Reading::whole(nodes(&all)));
            let reasons: Vec<Reason> = found.iter().map(|finding| finding.reason).collect();
            assert_eq!(reasons, expected, "{versions:?}");
            if expected == [Reason::KubeletTooOld] {
                assert!(
                    found[0].message.contains("1 of 2") && found[0].message.contains("n0: v1.36.2")
                );
            }
        }
        // Where GPUs are scaled to none, nobody knows that it will ever have one.
        let found = of_kubelets(&Reading::whole(nodes(&[old_elsewhere])));
        assert_eq!(found[0].reason, Reason::NotVisible, "{found:?}");
    }

    #[test]
    fn an_api_that_is_not_served_is_named() {
        let groups = |version: &str| -> APIGroupList {
            let group = |name: &str, version: &str| json!({"name": name, "versions": [{"groupVersion": "", "version": version}]});
            serde_json::from_value(
                json!({"groups": [group("resource.k8s.io", version), group("batch", "v1"),
                group("coordination.k8s.io", "v1"), group("admissionregistration.k8s.io", "v1")]}),
            )
            .unwrap()
        };
        let found = of_apis(&Reading::whole(groups("v1beta2")));
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].reason, found[0].object.as_str()),
            (Reason::ApiNotServed, "resource.k8s.io/v1")
        );
        assert_eq!(
            of_apis(&Reading::whole(groups("v1")))[0].reason,
            Reason::Passed
        );
    }
}
