//! Who tries, and who may.

use anyhow::{Context, Result};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::Client;
use muster_tests::{cluster::Cluster, install::NAMESPACE, kubeconfig, users};

/// A user of a namespace.
pub(crate) struct User {
    /// As whom the API server knows him.
    pub(crate) name: &'static str,
    /// What he calls it with.
    pub(crate) client: Client,
    /// Whether RBAC lets him use the subresources that could go round the gate.
    pub(crate) is_insider: bool,
}

impl User {
    /// Somebody with `edit`, and nothing else.
    pub(crate) async fn editor(cluster: &Cluster, namespace: &str) -> Result<Self> {
        let name = "editor";
        Ok(Self {
            name,
            client: users::user(cluster, namespace, name, "edit", Vec::new()).await?,
            is_insider: false,
        })
    }

    /// Somebody with `edit` who also has pods/binding, pods/status and pods/ephemeralcontainers.
    pub(crate) async fn insider(cluster: &Cluster, namespace: &str) -> Result<Self> {
        let rule = |resources: &[&str], verbs: &[&str]| PolicyRule {
            api_groups: Some(vec![String::new()]),
            resources: Some(resources.iter().map(ToString::to_string).collect()),
            verbs: verbs.iter().map(ToString::to_string).collect(),
            ..PolicyRule::default()
        };
        let beyond = vec![
            rule(&["pods/binding", "bindings"], &["create"]),
            rule(
                &["pods/status", "pods/ephemeralcontainers"],
                &["patch", "update"],
            ),
        ];
        let name = "insider";
        Ok(Self {
            name,
            client: users::user(cluster, namespace, name, "edit", beyond).await?,
            is_insider: true,
        })
    }

    /// Who refuses a call of a subresource that only the insider may make: RBAC, or what comes behind it.
    pub(crate) fn or_rbac(&self, behind: &str) -> String {
        if self.is_insider {
            behind.to_owned()
        } else {
            self.rbac()
        }
    }

    /// How RBAC refuses him.
    pub(crate) fn rbac(&self) -> String {
        format!("User {:?} cannot", self.name)
    }
}

/// The controller's own ServiceAccount.
pub(crate) async fn controller(cluster: &Cluster) -> Result<Client> {
    let file = cluster.directory().join("muster-controller.kubeconfig");
    kubeconfig::client(&file)
        .await
        .with_context(|| format!("the ServiceAccount in {NAMESPACE}"))
}

/// kube-scheduler.
pub(crate) async fn scheduler(cluster: &Cluster) -> Result<Client> {
    kubeconfig::client(&cluster.control_plane.scheduler_kubeconfig()?).await
}
