//! Whether Pod Security keeps tenants' pods from what no policy of Muster sees: privileged containers and paths of the host.
//!
//! Tenants' namespaces are those of a Team; where namespaces that name none have a default one, all that are Muster's business. The
//! API server's own defaults, which hold where a namespace says nothing, are in no API.

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, ResourceExt, api::ListParams};
use muster_api::keys;

use super::{
    finding::{Finding, Reason},
    installation::Installation,
    reading::{self, Reading},
};
use crate::listing::Names;

/// The label that says which level pods of a namespace must have.
const LABEL: &str = "pod-security.kubernetes.io/enforce";
/// The levels that refuse privileged pods and every hostPath.
const LEVELS: [&str; 2] = ["baseline", "restricted"];

/// Namespaces of Teams.
#[derive(Clone, Debug, Default)]
pub struct Tenants {
    count: usize,
    open: Names,
}

impl Tenants {
    fn see(&mut self, namespace: &Namespace, installation: Option<&Installation>) {
        let name = namespace.name_any();
        if !namespace.labels().contains_key(keys::TEAM)
            && installation.is_none_or(|release| release.is_left_out(&name))
        {
            return;
        }
        self.count += 1;
        let level = namespace.labels().get(LABEL);
        if level.is_none_or(|level| !LEVELS.contains(&level.as_str())) {
            let level = level.map_or("no level", String::as_str);
            self.open.add(|| format!("{name}: {level}"));
        }
    }
}

/// Reads them.
pub async fn read(client: &Client, installation: Option<&Installation>) -> Reading<Tenants> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let has_default = installation.is_some_and(|release| release.default_team.is_some());
    let which = if has_default {
        ListParams::default()
    } else {
        ListParams::default().labels(keys::TEAM)
    };
    reading::list(
        namespaces,
        which,
        Tenants::default(),
        |tenants, namespace| {
            tenants.see(namespace, installation);
        },
    )
    .await
}

/// What that means.
pub fn findings(tenants: &Reading<Tenants>) -> Vec<Finding> {
    let object = "namespaces";
    let Tenants { count, open } = &tenants.found;
    let mut findings = Vec::new();
    if !open.is_empty() {
        findings.push(Finding::new(
            Reason::PodSecurityOpen,
            object,
            format!(
                "{} of {count} namespaces of Teams enforce neither baseline nor restricted ({}): a privileged pod there opens every GPU of its node, unless the API server's own default refuses it",
                open.count(),
                open.list()
            ),
            // Pods that run stay, and those that follow them, of the same gang, would be refused.
            format!(
                "See what it would refuse, such as hostNetwork or IPC_LOCK: kubectl label namespace NAMESPACE {LABEL}=baseline --overwrite \
                 --dry-run=server. Change those pods, then say it without --dry-run"
            ),
        ));
    }
    tenants.or_passed(findings, || {
        Finding::passed(
            object,
            format!("all of {count} namespaces of Teams enforce baseline or restricted"),
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::scripted_api::{ScriptedApi, failure};

    fn list(labels: &[Value]) -> (u16, Value) {
        let items: Vec<Value> = labels
            .iter()
            .enumerate()
            .map(|(number, labels)| json!({"metadata": {"name": format!("n{number}"), "labels": labels}}))
            .collect();
        let list =
            json!({"kind": "NamespaceList", "apiVersion": "v1", "metadata": {}, "items": items});
        (200, list)
    }

    #[tokio::test]
    async fn a_tenants_namespace_must_enforce_baseline_or_restricted() {
        for (level, expected) in [
            (json!({LABEL: "baseline"}), Reason::Passed),
            (json!({LABEL: "restricted"}), Reason::Passed),
            (json!({LABEL: "privileged"}), Reason::PodSecurityOpen),
            (json!({LABEL: ""}), Reason::PodSecurityOpen),
            (
                json!({"pod-security.kubernetes.io/warn": "restricted"}),
                Reason::PodSecurityOpen,
            ),
            (json!({}), Reason::PodSecurityOpen),
        ] {
            let good = json!({LABEL: "restricted", (keys::TEAM): "ml"});
            let mut labels = level.clone();
            labels[keys::TEAM] = json!("ml");
            let api = ScriptedApi::new([list(&[good, labels])]);
            let found = findings(&read(&api.client(), None).await);
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].reason, expected, "{level}");
            if expected != Reason::Passed {
                assert!(found[0].message.contains("1 of 2 namespaces"), "{found:?}");
                assert!(found[0].message.contains("(n1: "), "{found:?}");
                // One that has a level has to be written over, and nobody wants to learn from a restart what is refused.
                let remedy = &found[0].remedy;
                assert!(remedy.contains("--overwrite --dry-run=server"), "{remedy}");
            }
            let query = &api.asked()[0].query;
            assert!(query.contains("labelSelector=muster.dev"), "{query}");
        }
    }

    #[tokio::test]
    async fn no_tenant_is_a_pass_and_what_was_not_read_is_none() {
        for (answer, expected) in [
            (list(&[]), Reason::Passed),
            (failure(403, "forbidden"), Reason::ReadForbidden),
        ] {
            let api = ScriptedApi::new([answer]);
            let found = findings(&read(&api.client(), None).await);
            assert_eq!(found[0].reason, expected);
        }
    }

    #[tokio::test]
    async fn with_a_default_team_every_namespace_that_is_looked_at_is_a_tenants() {
        let release = Installation {
            default_team: Some("ml".to_owned()),
            excluded_namespaces: Some(["n0".to_owned()].into()),
            ..Installation::default()
        };
        let team = json!({(keys::TEAM): "ml", LABEL: "baseline"});
        let api = ScriptedApi::new([list(&[json!({}), team, json!({})])]);
        let found = findings(&read(&api.client(), Some(&release)).await);
        assert_eq!(found[0].reason, Reason::PodSecurityOpen);
        let told =
            "1 of 2 namespaces of Teams enforce neither baseline nor restricted (n2: no level)";
        assert!(found[0].message.contains(told), "{found:?}");
        assert!(!api.asked()[0].query.contains("labelSelector"));
    }
}
