//! `check-uninstall`: whether anything would be left that only Muster can end. The chart runs it before it is uninstalled.
//!
//! It reads, and takes down only what it is told to ([`take_down`]), so it may run at any time, twice, or beside the leader. In Enforce the
//! chart has it take down what holds pods, and it looks once more. What comes after it has looked (a pod that is created meanwhile) it does
//! not see: then no gate and no suspension comes any more. A pod that takes GPUs in that moment may still be permitted, and its
//! NodeDevices keeps the finalizer; the operator guide says how to take it off.
//!
//! Helm writes that it uninstalls a release before this runs, and upgrades none of which it has written that, also after a refusal. So each
//! refusal says how the release becomes again what it was; by the same way comes back what was taken down, by this or an earlier try.

use std::{fmt, io::Write};

use k8s_openapi::api::{
    batch::v1::Job, core::v1::Pod, policy::v1::PodDisruptionBudget, resource::v1::ResourceClaim,
};
use kube::{Api, Client, ResourceExt, api::ListParams};
use muster_api::{NodeDevices, keys};
use muster_cluster::pod_rules::is_marked;
use muster_serve::{
    client::{self, CallError},
    watch::Decoded,
};

use crate::{
    args::CheckUninstallArgs,
    disruption_budgets::MANAGED_BY,
    listing::{Names, each, with_causes},
    take_down,
};

/// What only Muster can end.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Remaining {
    gated: Names,
    suspended: Names,
    held: Names,
    permitted: Names,
    budgets: Names,
}

/// What was found.
#[derive(Debug, Default)]
struct Found {
    remaining: Remaining,
    /// Pods without a gate for which kube-scheduler asks the extender, and which it has not bound.
    marked: Names,
}

/// An error if anything remains.
pub async fn run(args: CheckUninstallArgs) -> anyhow::Result<()> {
    let client = client::write_client(args.kubeconfig.as_deref()).await?;
    let text = check(&client, &args).await?;
    // This program's one output: not a log line, so not through the subscriber.
    writeln!(std::io::stdout(), "{text}")?;
    Ok(())
}

/// What is to be told of a release that goes.
async fn check(client: &Client, args: &CheckUninstallArgs) -> anyhow::Result<String> {
    let looked = look(client).await;
    let mut found = looked.map_err(|error| refusal(args, false, &with_causes(&error)))?;
    if !found.remaining.is_empty() {
        return Err(refusal(args, false, &found.remaining.to_string()));
    }
    if !args.guards.are_none() {
        let taken = take_down::take_down(client, &args.guards).await;
        taken.map_err(|error| refusal(args, true, &format!("{error:#}")))?;
        tokio::time::sleep(take_down::LEARNED).await;
        let looked = look(client).await;
        found = looked.map_err(|error| refusal(args, true, &with_causes(&error)))?;
        if !found.remaining.is_empty() {
            let why = format!("{}They came while it was looked.", found.remaining);
            return Err(refusal(args, true, &why));
        }
    }
    Ok(farewell(&found.marked))
}

/// Why the release stays, and what to do. What was taken down may be all or a part.
fn refusal(args: &CheckUninstallArgs, is_taken_down: bool, why: &str) -> anyhow::Error {
    let mut text = format!("{}\nNothing was uninstalled", why.trim_end());
    if is_taken_down {
        text += " yet, but policies and webhooks that refuse and hold pods may be gone: until all is back or uninstalled, pods may start \
                 without quota";
    }
    text += ". To try again: helm uninstall; to do it all the same: helm uninstall --no-hooks.";
    if let Some(command) = &args.restore_command {
        text += &format!(
            "\nHelm takes the release for one that is being uninstalled, and does not upgrade it. To keep it, or to change its values \
             first:\n{command}"
        );
    }
    anyhow::Error::msg(text)
}

fn farewell(marked: &Names) -> String {
    let mut text =
        "No pod is gated, no Job suspended, no claim held and no permit out by Muster.".to_owned();
    if marked.is_empty() {
        text += " If kube-scheduler's configuration names its extender, take it out: pods that were marked are not bound while it names \
                 one that does not answer.";
    } else {
        text += &format!(
            "\nMarkedPods: pods with the resource {} that are not bound yet: {marked}. If kube-scheduler's configuration names Muster's \
             extender, they stay Pending from now on: take it out and start kube-scheduler again, or delete them, and whoever made them \
             makes them without the mark.",
            keys::MARKER_RESOURCE
        );
    }
    text
}

async fn look(client: &Client) -> Result<Found, CallError> {
    let mut found = Found::default();
    let Found { remaining, marked } = &mut found;
    // A pod with a gate is in no other phase, and neither is one that is not bound.
    let pending = ListParams::default().fields("status.phase=Pending");
    each(&Api::<Pod>::all(client.clone()), pending, |pod| {
        if is_gated(pod) {
            remaining.gated.add_object(pod);
        } else if is_marked(pod) && is_to_be_bound(pod) {
            marked.add_object(pod);
        }
    })
    .await?;
    each(
        &Api::<Job>::all(client.clone()),
        ListParams::default(),
        |job| {
            if is_suspended(job) {
                remaining.suspended.add_object(job);
            }
        },
    )
    .await?;
    each(
        &Api::<Decoded<ResourceClaim>>::all(client.clone()),
        ListParams::default(),
        |claim| {
            // One of which only the metadata can be read may be held.
            if claim.read().is_none_or(is_held) {
                remaining.held.add_object(claim);
            }
        },
    )
    .await?;
    let nodes = Api::<NodeDevices>::all(client.clone());
    let listed = each(&nodes, ListParams::default(), |devices| {
        if has_permits(devices) {
            remaining.permitted.add_object(devices);
        }
    })
    .await;
    match listed {
        // Where an install failed early, or the definitions are gone already, there are none.
        Err(error) if error.status_code() == Some(404) => {}
        listed => listed?,
    }
    // Their Gangs stay after Muster, and they with them.
    let (key, value) = MANAGED_BY;
    each(
        &Api::<PodDisruptionBudget>::all(client.clone()),
        ListParams::default().labels(&format!("{key}={value}")),
        |budget| remaining.budgets.add_object(budget),
    )
    .await?;
    Ok(found)
}

/// One that is being deleted goes without being bound.
fn is_to_be_bound(pod: &Pod) -> bool {
    let is_bound = pod
        .spec
        .as_ref()
        .is_some_and(|spec| spec.node_name.is_some());
    !is_bound && pod.metadata.deletion_timestamp.is_none()
}

fn is_gated(pod: &Pod) -> bool {
    let gates = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.scheduling_gates.as_ref());
    gates
        .into_iter()
        .flatten()
        .any(|gate| gate.name == keys::ADMISSION_GATE)
}

fn is_suspended(job: &Job) -> bool {
    let suspended = job.spec.as_ref().and_then(|spec| spec.suspend) == Some(true);
    suspended && job.annotations().contains_key(keys::SUSPENDED_FOR)
}

/// Whether a pod may use it, and our driver gave it a device.
fn is_held(claim: &ResourceClaim) -> bool {
    let Some(status) = &claim.status else {
        return false;
    };
    let allocation = status.allocation.as_ref();
    let devices = allocation.and_then(|allocation| allocation.devices.as_ref());
    let results = devices.and_then(|devices| devices.results.as_ref());
    let ours = results
        .into_iter()
        .flatten()
        .any(|result| result.driver == keys::DRIVER);
    ours && status
        .reserved_for
        .as_ref()
        .is_some_and(|users| !users.is_empty())
}

/// Whether permits of its node have not come back: the controller takes the finalizer off with the last of them, and nobody else does.
fn has_permits(devices: &NodeDevices) -> bool {
    let finalizers = devices.finalizers();
    finalizers
        .iter()
        .any(|finalizer| finalizer == keys::PERMITS_FINALIZER)
}

impl Remaining {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Remaining {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.gated.count() > 0 {
            writeln!(
                formatter,
                "GatedPods: pods with the gate {}, which nobody would take: {}. Set mode=Observe and wait.",
                keys::ADMISSION_GATE,
                self.gated
            )?;
        }
        if self.suspended.count() > 0 {
            writeln!(
                formatter,
                "SuspendedJobs: Jobs that Muster suspended and nobody would resume: {}. Set mode=Observe and wait, or set spec.suspend \
                 to false.",
                self.suspended
            )?;
        }
        if self.held.count() > 0 {
            writeln!(
                formatter,
                "HeldClaims: claims of {} that pods use: {}. Without the driver these pods cannot end: delete them and wait.",
                keys::DRIVER,
                self.held
            )?;
        }
        if self.permitted.count() > 0 {
            writeln!(
                formatter,
                "PermitsLeft: nodes on which gangs hold devices, or have not proved yet that they gave them back: {}. Wait until \
                 `kubectl get nodedevices --output wide` shows no gang there. With --no-hooks the pods run on, and these NodeDevices keep \
                 the finalizer {}, which nobody takes off: the operator guide says how to, under Upgrade and uninstall.",
                self.permitted,
                keys::PERMITS_FINALIZER
            )?;
        }
        if self.budgets.count() > 0 {
            let (key, value) = MANAGED_BY;
            writeln!(
                formatter,
                "BudgetsLeft: PodDisruptionBudgets of gangs, which would hold drains off for ever: {}. Set recovery.onCordon=Nothing and \
                 wait, or delete those with the label {key}={value}.",
                self.budgets
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        args::GuardsArgs,
        scripted_api::{ScriptedApi, failure},
    };

    fn list(kind: &str, token: &str, items: &[Value]) -> (u16, Value) {
        let metadata = json!({"continue": token});
        (
            200,
            json!({"kind": kind, "apiVersion": "v1", "metadata": metadata, "items": items}),
        )
    }

    fn pod(name: &str, gate: &str) -> Value {
        json!({"metadata": {"namespace": "ml", "name": name},
            "spec": {"containers": [], "schedulingGates": [{"name": gate}]}})
    }

    fn job(name: &str, suspend: bool, annotation: &str) -> Value {
        json!({"metadata": {"namespace": "ml", "name": name, "annotations": {annotation: "1"}},
            "spec": {"suspend": suspend, "template": {"spec": {"containers": []}}}})
    }

    fn claim(name: &str, driver: &str, users: &Value) -> Value {
        let result = json!({"request": "gpu", "driver": driver, "pool": "a", "device": "gpu-0"});
        json!({"metadata": {"namespace": "ml", "name": name}, "spec": {},
            "status": {"allocation": {"devices": {"results": [result]}}, "reservedFor": users}})
    }

    fn node(name: &str, finalizers: &Value) -> Value {
        json!({"metadata": {"name": name, "finalizers": finalizers}, "spec": {"nodeUid": "u", "leaderEpoch": 1}})
    }

    fn budget(name: &str) -> Value {
        json!({"metadata": {"namespace": "ml", "name": name}, "spec": {"minAvailable": 2}})
    }

    #[tokio::test]
    async fn what_only_muster_can_end_is_counted_on_every_page_and_named() {
        let user = json!([{"resource": "pods", "name": "p", "uid": "u"}]);
        let gated: Vec<Value> = (0..6)
            .map(|number| pod(&format!("p{number}"), "muster.dev/admission"))
            .collect();
        let api = ScriptedApi::new([
            list("PodList", "more", &[pod("other", "example.com/gate")]),
            list("PodList", "", &gated),
            list(
                "JobList",
                "",
                &[
                    job("ours", true, "muster.dev/suspended-for"),
                    job("resumed", false, "muster.dev/suspended-for"),
                    job("the-users", true, "example.com/why"),
                ],
            ),
            list(
                "ResourceClaimList",
                "",
                &[
                    claim("used", "gpu.muster.dev", &user),
                    claim("left", "gpu.muster.dev", &json!([])),
                    claim("foreign", "gpu.example.com", &user),
                    json!({"metadata": {"namespace": "ml", "name": "new"}, "spec": {}}),
                ],
            ),
            list(
                "NodeDevicesList",
                "",
                &[
                    node("a", &json!(["muster.dev/permits"])),
                    node("b", &json!(["example.com/kept"])),
                    node("c", &json!([])),
                ],
            ),
            list("PodDisruptionBudgetList", "", &[budget("train")]),
        ]);
        let remaining = look(&api.client()).await.unwrap().remaining;
        assert_eq!(remaining.gated.count(), 6);
        assert_eq!(remaining.suspended.first(), ["ml/ours"]);
        assert_eq!(remaining.held.first(), ["ml/used"]);
        assert_eq!(remaining.permitted.first(), ["a"]);
        assert_eq!(remaining.budgets.first(), ["ml/train"]);
        let asked = api.asked();
        let of_budgets = &asked.last().unwrap().query;
        let is_ours = of_budgets.contains("managed-by%3Dmuster-controller");
        assert!(is_ours, "{of_budgets}");
        assert!(
            asked[0].query.contains("status.phase%3DPending"),
            "{}",
            asked[0].query
        );
        assert!(
            asked[1].query.contains("continue=more"),
            "{}",
            asked[1].query
        );
        let text = remaining.to_string();
        for word in [
            "GatedPods: ",
            "6 (ml/p0, ml/p1, ml/p2, ml/p3, ml/p4 and others)",
            "SuspendedJobs: ",
            "HeldClaims: ",
            "PermitsLeft: nodes on which gangs hold devices, or have not proved yet that they gave them back: 1 (a)",
            "BudgetsLeft: ",
        ] {
            assert!(text.contains(word), "{word}: {text}");
        }
    }

    /// The claim is gone with its pod, and the driver has not answered yet: then nobody would take the finalizer off.
    #[tokio::test]
    async fn a_permit_that_has_not_come_back_keeps_muster_there_by_itself() {
        let nothing = ["PodList", "JobList", "ResourceClaimList"].map(|kind| list(kind, "", &[]));
        let nodes = list(
            "NodeDevicesList",
            "",
            &[node("a", &json!(["muster.dev/permits"]))],
        );
        let budgets = || list("PodDisruptionBudgetList", "", &[]);
        let api = ScriptedApi::new(nothing.clone().into_iter().chain([nodes, budgets()]));
        let remaining = look(&api.client()).await.unwrap().remaining;
        assert!(!remaining.is_empty());
        let text = remaining.to_string();
        for part in ["PermitsLeft: ", "muster.dev/permits"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        // Where the definitions are gone, so are the permits.
        let gone = nothing
            .into_iter()
            .chain([failure(404, "not found"), budgets()]);
        assert!(
            look(&ScriptedApi::new(gone).client())
                .await
                .unwrap()
                .remaining
                .is_empty()
        );
    }

    #[tokio::test]
    async fn an_api_server_that_does_not_answer_is_no_leave() {
        let silent = ScriptedApi::new([list("PodList", "", &[])]);
        assert!(look(&silent.client()).await.is_err());
        let found = look(&ScriptedApi::new(nothing()).client()).await.unwrap();
        assert!(found.remaining.is_empty());
    }

    const RESTORE: &str = "helm rollback muster 3 --no-hooks --namespace muster-system";

    /// Of a release in mode Observe, and in Enforce with one policy and a webhook.
    fn args(mode: &str) -> CheckUninstallArgs {
        let mut guards = GuardsArgs::default();
        if mode == "Enforce" {
            guards.policy_bindings = vec!["muster-pod-created".to_owned()];
            guards.mutating_webhook_configuration = Some("zz-muster".to_owned());
        }
        CheckUninstallArgs {
            kubeconfig: None,
            guards,
            restore_command: Some(RESTORE.to_owned()),
        }
    }

    fn nothing() -> [(u16, Value); 5] {
        let kinds = [
            "PodList",
            "JobList",
            "ResourceClaimList",
            "NodeDevicesList",
            "PodDisruptionBudgetList",
        ];
        kinds.map(|kind| list(kind, "", &[]))
    }

    fn deleted() -> (u16, Value) {
        let status =
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
        (200, status)
    }

    /// `helm upgrade` says then that there is no deployed release: so what a refusal advises would fail without this.
    #[tokio::test(start_paused = true)]
    async fn a_refusal_says_how_the_release_is_upgraded_again_and_whether_pods_pass_meanwhile() {
        let gated = || vec![list("PodList", "", &[pod("late", "muster.dev/admission")])];
        let others = || nothing().into_iter().skip(1).collect::<Vec<_>>();
        let forbidden = || vec![failure(403, "forbidden")];
        let cases = [
            ("it refuses", "Observe", vec![gated(), others()], false),
            ("it cannot look", "Observe", vec![forbidden()], false),
            (
                "nothing could be taken down",
                "Enforce",
                vec![nothing().to_vec(), forbidden()],
                true,
            ),
            (
                "a part was taken down",
                "Enforce",
                vec![nothing().to_vec(), vec![deleted()], forbidden()],
                true,
            ),
            (
                "it cannot look once more",
                "Enforce",
                vec![nothing().to_vec(), vec![deleted(), deleted()], forbidden()],
                true,
            ),
            (
                "a pod came meanwhile",
                "Enforce",
                vec![
                    nothing().to_vec(),
                    vec![deleted(), deleted()],
                    gated(),
                    others(),
                ],
                true,
            ),
        ];
        for (what, mode, answers, may_pass) in cases {
            let api = ScriptedApi::new(answers.concat());
            let refused = check(&api.client(), &args(mode)).await.unwrap_err();
            let text = format!("{refused:#}");
            assert!(text.ends_with(RESTORE), "{what}: {text}");
            let says = text.contains("pods may start without quota");
            assert_eq!(says, may_pass, "{what}: {text}");
        }
    }

    /// A kube-scheduler whose configuration still names the extender leaves them Pending, and says so to nobody.
    #[tokio::test(start_paused = true)]
    async fn pods_that_only_the_extender_lets_go_are_counted_and_named_and_keep_nothing_from_going()
    {
        let marked = |name: &str, spec: &Value| {
            let mut pod = json!({"metadata": {"namespace": "ml", "name": name}, "spec": spec});
            let limits = json!({"muster.dev/managed": "0"});
            pod["spec"]["containers"] = json!([{"name": "a", "resources": {"limits": limits}}]);
            pod
        };
        let mut ending = marked("ending", &json!({}));
        ending["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let pods = [
            marked("waits", &json!({})),
            marked("bound", &json!({"nodeName": "a"})),
            ending,
            json!({"metadata": {"namespace": "ml", "name": "plain"}, "spec": {"containers": []}}),
        ];
        let others = || nothing().into_iter().skip(1);
        let first = [list("PodList", "", &pods)].into_iter().chain(others());
        let api = ScriptedApi::new(first);
        let text = check(&api.client(), &args("Observe")).await.unwrap();
        assert!(text.contains("MarkedPods: "), "{text}");
        assert!(text.contains(": 1 (ml/waits)"), "{text}");
        // In Enforce those count that are there after the last one was marked.
        let late = [list("PodList", "", &pods[..1])]
            .into_iter()
            .chain(others());
        let deletions = [deleted(), deleted()];
        let api = ScriptedApi::new(nothing().into_iter().chain(deletions).chain(late));
        let text = check(&api.client(), &args("Enforce")).await.unwrap();
        assert!(text.contains(": 1 (ml/waits)"), "{text}");
        let api = ScriptedApi::new(nothing());
        let text = check(&api.client(), &args("Observe")).await.unwrap();
        assert!(!text.contains("MarkedPods"), "{text}");
    }
}
