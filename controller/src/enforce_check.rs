//! `check-enforce`: whether pods come to GPUs by a side door, whose GPUs no quota would count. The chart runs it before mode Enforce
//! begins.
//!
//! The policy about side doors refuses such pods when they are created; those that exist it leaves alone, and in Observe it refused
//! none. What the webhook shuts by itself in Enforce is no reason to wait: nobody has anything to change. Where the policy refuses
//! already, nothing is looked at: an upgrade within Enforce waits for no list of all pods, and is not stopped by a pod whose namespace
//! joined a Team later.
//!
//! It reads and writes nothing, so it may run at any time, twice, or beside a leader. Pods come page by page; what it keeps of them is
//! bounded. A pod that is created after its page was read, while the mode is still Observe, it does not see.

use std::{collections::BTreeSet, fmt, io::Write};

use anyhow::{Context, bail};
use k8s_openapi::api::{
    admissionregistration::v1::ValidatingAdmissionPolicyBinding,
    core::v1::{Namespace, Pod},
};
use kube::{Api, Client, ResourceExt, api::ListParams};
use muster_api::keys;
use muster_cluster::{
    managed::ManagedPods,
    side_doors::{SideDoor, SideDoors},
};
use muster_serve::client::{self, CALL_LIMIT, within};

use crate::{args::CheckEnforceArgs, listing::each};

/// As many pods are named.
const NAMED: usize = 100;
/// Pods that have not ended.
const NOT_ENDED: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// What the pods of a cluster come to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    looked_at: usize,
    open: usize,
    lines: Vec<String>,
}

/// An error if a pod comes to GPUs by a side door, unless that is accepted.
pub async fn run(args: CheckEnforceArgs) -> anyhow::Result<()> {
    let client = client::write_client(args.kubeconfig.as_deref()).await?;
    if let Some(policy) = &args.policy
        && refuses_already(&client, policy).await?
    {
        return say(&format!(
            "The policy {policy} refuses side doors already: nothing was looked at."
        ));
    }
    let found = look(&client, &args).await?;
    if found.open == 0 {
        let Found { looked_at, .. } = found;
        return say(&format!(
            "None of {looked_at} pods comes to GPUs by a side door."
        ));
    }
    if args.accept_violations {
        return say(&format!("{found}Accepted: no quota counts their GPUs."));
    }
    bail!(
        "{found}Nothing was changed. End these pods, and change what makes them; or have a namespace excepted \
         (sideDoors.exceptedNamespaces). To have mode=Enforce all the same, with GPUs that no quota counts: enforce.acceptViolations=true"
    )
}

/// This program's one output: not a log line, so not through the subscriber.
fn say(text: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "{text}")?;
    Ok(())
}

/// Whether the policy of this name, whose binding has the same one, refuses and does not only audit.
async fn refuses_already(client: &Client, policy: &str) -> anyhow::Result<bool> {
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let binding = within(CALL_LIMIT, bindings.get_opt(policy)).await;
    let binding = binding.with_context(|| format!("reading the binding of the policy {policy}"))?;
    Ok(binding.is_some_and(|binding| refuses(&binding)))
}

/// Whether a binding has its policy refuse, and not only audit.
pub(crate) fn refuses(binding: &ValidatingAdmissionPolicyBinding) -> bool {
    let actions = &binding.spec.validation_actions;
    actions.iter().any(|action| action == "Deny")
}

async fn look(client: &Client, args: &CheckEnforceArgs) -> anyhow::Result<Found> {
    let named = |names: &[String]| -> BTreeSet<String> {
        // An empty list of the chart is one empty name.
        let names = names.iter().filter(|name| !name.is_empty());
        names.cloned().collect()
    };
    let side_doors = SideDoors {
        runtime_classes: named(&args.runtime_classes),
        managed: ManagedPods::new(args.extended_resources.listed())?,
    };
    let excepted = named(&args.excepted_namespaces);
    let mut of_teams = BTreeSet::new();
    let labelled = ListParams::default().labels(keys::TEAM);
    each(
        &Api::<Namespace>::all(client.clone()),
        labelled,
        |namespace| {
            of_teams.insert(namespace.name_any());
        },
    )
    .await
    .context("listing the namespaces of Teams")?;
    let mut found = Found::default();
    let not_ended = ListParams::default().fields(NOT_ENDED);
    each(&Api::<Pod>::all(client.clone()), not_ended, |pod| {
        let namespace = pod.namespace().unwrap_or_default();
        if !excepted.contains(&namespace) {
            let of_team = of_teams.contains(&namespace);
            let mut doors = side_doors.of_pod(pod, of_team);
            doors.retain(|door| !door.is_shut_by_the_webhook());
            found.see(pod, &doors);
        }
    })
    .await
    .context("listing pods")?;
    Ok(found)
}

impl Found {
    fn see(&mut self, pod: &Pod, doors: &[SideDoor]) {
        self.looked_at += 1;
        if doors.is_empty() {
            return;
        }
        self.open += 1;
        if self.lines.len() == NAMED {
            return;
        }
        let doors: Vec<String> = doors
            .iter()
            .map(|door| format!("{door}: {}", door.remedy()))
            .collect();
        // Who makes it anew when it is ended.
        let mut owners = pod.owner_references().iter();
        let owner = owners.find(|owner| owner.controller == Some(true));
        let owner = owner
            .map(|owner| format!(" (of {} {})", owner.kind, owner.name))
            .unwrap_or_default();
        self.lines.push(format!(
            "  {}/{}{owner}: {}",
            pod.namespace().unwrap_or_default(),
            pod.name_any(),
            doors.join("; ")
        ));
    }
}

impl fmt::Display for Found {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "SideDoorsInUse: {} of {} pods come to GPUs past their claims, and would be refused if they were made anew:",
            self.open, self.looked_at
        )?;
        for line in &self.lines {
            writeln!(formatter, "{line}")?;
        }
        if self.open > self.lines.len() {
            let others = self.open - self.lines.len();
            writeln!(formatter, "  and {others} others")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        args::{Cli, Command},
        scripted_api::{ScriptedApi, failure},
    };

    fn args(flags: &[&str]) -> CheckEnforceArgs {
        let command = ["muster-controller", "check-enforce"];
        let cli = Cli::try_parse_from(command.iter().chain(flags)).unwrap();
        let Some(Command::CheckEnforce(args)) = cli.command else {
            panic!("check-enforce")
        };
        args
    }

    fn list(kind: &str, token: &str, items: &[Value]) -> (u16, Value) {
        let metadata = json!({"continue": token});
        (
            200,
            json!({"kind": kind, "apiVersion": "v1", "metadata": metadata, "items": items}),
        )
    }

    fn teams(names: &[&str]) -> (u16, Value) {
        let items: Vec<Value> = names
            .iter()
            .map(|name| json!({"metadata": {"name": name, "labels": {"muster.dev/team": "t"}}}))
            .collect();
        list("NamespaceList", "", &items)
    }

    fn pod(namespace: &str, name: &str, spec: &Value) -> Value {
        let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": true}]);
        json!({"metadata": {"namespace": namespace, "name": name, "ownerReferences": owner}, "spec": spec})
    }

    fn privileged() -> Value {
        json!({"containers": [{"name": "c", "securityContext": {"privileged": true}}]})
    }

    #[tokio::test]
    async fn pods_by_a_side_door_are_found_on_every_page_and_told_with_what_to_do() {
        let plain = json!({"containers": [{"name": "c"}]});
        let asking = json!({"containers": [{"name": "c", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}]});
        let api = ScriptedApi::new([
            teams(&["ml"]),
            list(
                "PodList",
                "more",
                &[
                    pod("ml", "plain", &plain),
                    pod("ml", "privileged", &privileged()),
                    // Who is no tenant is trusted with that.
                    pod("storage", "privileged", &privileged()),
                ],
            ),
            list(
                "PodList",
                "",
                &[
                    pod("other", "asking", &asking),
                    pod("gpu-operator", "asking", &asking),
                ],
            ),
        ]);
        let found = look(&api.client(), &args(&[])).await.unwrap();
        assert_eq!((found.looked_at, found.open), (4, 2));
        let text = found.to_string();
        for part in [
            "SideDoorsInUse: 2 of 4 pods",
            "  ml/privileged (of ReplicaSet web): container c is privileged: leave privileged out",
            "  other/asking (of ReplicaSet web): container c sets NVIDIA_VISIBLE_DEVICES: leave it out, or set it to void\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let asked = api.asked();
        assert!(asked[0].query.contains("labelSelector=muster.dev"));
        assert!(asked[1].query.contains("status.phase"), "{asked:?}");
        assert!(asked[1].query.contains("limit=500"), "{asked:?}");
        assert!(asked[2].query.contains("continue=more"), "{asked:?}");
    }

    /// Any sidecar that is put into pods with a RuntimeClass of NVIDIA.
    #[tokio::test]
    async fn what_the_webhook_shuts_when_a_pod_is_made_anew_keeps_nobody_from_enforce() {
        let spec = json!({
            "containers": [
                {"name": "work", "resources": {"limits": {"nvidia.com/gpu": "1"}}},
                {"name": "proxy"},
            ],
            "runtimeClassName": "nvidia",
        });
        let api = ScriptedApi::new([teams(&[]), list("PodList", "", &[pod("ml", "p", &spec)])]);
        let found = look(&api.client(), &args(&[])).await.unwrap();
        assert_eq!((found.looked_at, found.open), (1, 0), "{found:?}");
    }

    #[tokio::test]
    async fn what_the_chart_says_counts_and_an_empty_list_is_empty() {
        let class = |name: &str| json!({"containers": [{"name": "c"}], "runtimeClassName": name});
        let pods = || {
            list(
                "PodList",
                "",
                &[
                    pod("a", "p", &class("nvidia")),
                    pod("b", "p", &class("gpus")),
                    pod("gpu-operator", "p", &class("gpus")),
                ],
            )
        };
        for (flags, expected) in [
            (vec![], ["a/p"].as_slice()),
            (vec!["--runtime-class=gpus"], &["b/p"]),
            (
                vec!["--runtime-class=gpus", "--excepted-namespace=b,x"],
                &["gpu-operator/p"],
            ),
            (vec!["--runtime-class=", "--excepted-namespace="], &[]),
        ] {
            let api = ScriptedApi::new([teams(&[]), pods()]);
            let found = look(&api.client(), &args(&flags)).await.unwrap();
            assert_eq!(found.lines.len(), expected.len(), "{flags:?}: {found:?}");
            for (line, name) in found.lines.iter().zip(expected) {
                assert!(line.contains(name), "{flags:?}: {line}");
            }
        }
    }

    #[tokio::test]
    async fn many_are_counted_and_the_first_are_named() {
        let items: Vec<Value> = (0..150)
            .map(|number| pod("ml", &format!("p{number}"), &privileged()))
            .collect();
        let api = ScriptedApi::new([teams(&["ml"]), list("PodList", "", &items)]);
        let found = look(&api.client(), &args(&[])).await.unwrap();
        assert_eq!((found.open, found.lines.len()), (150, NAMED));
        assert!(found.to_string().ends_with("  and 50 others\n"), "{found}");
    }

    #[tokio::test]
    async fn an_api_server_that_does_not_answer_is_no_leave() {
        for answers in [
            vec![],
            vec![failure(403, "forbidden")],
            vec![
                teams(&[]),
                list("PodList", "more", &[]),
                failure(410, "expired"),
            ],
        ] {
            let api = ScriptedApi::new(answers);
            assert!(look(&api.client(), &args(&[])).await.is_err());
        }
    }

    #[tokio::test]
    async fn only_a_binding_that_denies_is_one_that_refuses_already() {
        let bound = |actions: Value| {
            let spec = json!({"policyName": "muster-pod-side-door", "validationActions": actions});
            let binding = json!({
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "ValidatingAdmissionPolicyBinding",
                "metadata": {"name": "muster-pod-side-door"},
                "spec": spec,
            });
            (200, binding)
        };
        for (answer, expected) in [
            (bound(json!(["Deny"])), Some(true)),
            (bound(json!(["Audit"])), Some(false)),
            (failure(404, "not found"), Some(false)),
            (failure(403, "forbidden"), None),
        ] {
            let api = ScriptedApi::new([answer]);
            let refuses = refuses_already(&api.client(), "muster-pod-side-door").await;
            assert_eq!(refuses.ok(), expected);
            assert!(api.asked()[0].what.ends_with("/muster-pod-side-door"));
        }
    }
}
