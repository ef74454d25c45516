//! The programs of the control plane that are pods, and the flags that they are started with.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt, api::ListParams};

use super::reading::{self, Reading};
use crate::scheduler_config::running::{flag, items, words};

/// The label by which kubeadm and others mark these pods.
const LABEL: &str = "tier=control-plane";
/// The label that says which program it is.
const COMPONENT: &str = "component";
/// Where they are.
const NAMESPACE: &str = "kube-system";

/// One of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Its pod.
    pub pod: String,
    words: Vec<String>,
}

impl Program {
    /// The value of a flag.
    pub fn flag(&self, name: &str) -> Option<&str> {
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        flag(&words, name)
    }

    /// Whether a list of names in a flag has one.
    pub fn lists(&self, name: &str, item: &str) -> bool {
        self.items(name).contains(&item)
    }

    /// What a flag lists. Where it is given several times, these programs take all of it.
    pub fn items(&self, name: &str) -> Vec<&str> {
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        items(&words, name)
    }
}

/// The programs, by the name of their component.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControlPlane(BTreeMap<String, Vec<Program>>);

impl ControlPlane {
    /// The replicas of a component; none where they are no pods.
    pub fn of(&self, component: &str) -> &[Program] {
        self.0.get(component).map_or(&[], Vec::as_slice)
    }

    fn see(&mut self, pod: &Pod) {
        let Some(component) = pod.labels().get(COMPONENT) else {
            return;
        };
        let words = words(pod.spec.as_ref());
        self.0.entry(component.clone()).or_default().push(Program {
            pod: format!("{NAMESPACE}/{}", pod.name_any()),
            words: words.into_iter().map(str::to_owned).collect(),
        });
    }
}

/// Reads which of them are pods.
pub async fn read(client: &Client) -> Reading<ControlPlane> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let labelled = ListParams::default().labels(LABEL);
    reading::list(pods, labelled, ControlPlane::default(), ControlPlane::see).await
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    /// A control plane of these components and their flags.
    pub(crate) fn control_plane(of: &[(&str, &[&str])]) -> Reading<ControlPlane> {
        let mut found = ControlPlane::default();
        for (component, flags) in of {
            let pod = serde_json::from_value(json!({
                "metadata": {"name": format!("{component}-a"), "labels": {"component": component}},
                "spec": {"containers": [{"name": "c", "command": flags}]},
            }))
            .unwrap();
            found.see(&pod);
        }
        Reading::whole(found)
    }

    #[test]
    fn programs_are_told_apart_by_their_component_and_their_flags_are_read() {
        let plane = control_plane(&[("kube-apiserver", &["--disable-admission-plugins=A,B"])]);
        let servers = plane.found.of("kube-apiserver");
        assert_eq!(servers[0].pod, "kube-system/kube-apiserver-a");
        assert!(servers[0].lists("disable-admission-plugins", "B"));
        assert!(!servers[0].lists("disable-admission-plugins", "C"));
        let twice = control_plane(&[(
            "kube-apiserver",
            &[
                "--disable-admission-plugins",
                "A",
                "--disable-admission-plugins=B",
            ],
        )]);
        let items = twice.found.of("kube-apiserver")[0].items("disable-admission-plugins");
        assert_eq!(items, ["A", "B"]);
        assert!(plane.found.of("kube-scheduler").is_empty());
    }
}
