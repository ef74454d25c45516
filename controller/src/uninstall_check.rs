//! `check-uninstall`: whether anything would be left that only Muster can end. The chart runs it before it is uninstalled.
//!
//! It reads, and takes down only what it is told to ([`take_down`]), so it may run at any time, twice, or beside the leader. In Enforce the
//! chart has it take down what holds pods, and it looks once more. What comes after it has looked (a pod that is created meanwhile) it does
//! not see: then no gate and no suspension comes any more. A pod that takes GPUs in that moment may still be permitted, and its
//! NodeDevices keeps the finalizer; the operator guide says how to take it off.

use std::{fmt, io::Write};

use anyhow::bail;
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod, resource::v1::ResourceClaim};
use kube::{Api, Client, ResourceExt, api::ListParams};
use muster_api::{NodeDevices, keys};
use muster_serve::client;

use crate::{
    args::CheckUninstallArgs,
    listing::{Names, each},
    take_down,
};

/// What only Muster can end.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Remaining {
    gated: Names,
    suspended: Names,
    held: Names,
    permitted: Names,
}

/// An error if anything remains.
pub async fn run(args: CheckUninstallArgs) -> anyhow::Result<()> {
    let client = client::write_client(args.kubeconfig.as_deref()).await?;
    let remaining = look(&client).await?;
    if !remaining.is_empty() {
        bail!("{remaining}");
    }
    if !args.guards.are_none() {
        take_down::take_down(&client, &args.guards).await?;
        tokio::time::sleep(take_down::LEARNED).await;
        let late = look(&client).await?;
        if !late.is_empty() {
            bail!(
                "{late}\nThey came while it was looked. Its webhooks and policies about pods are taken down already: uninstall again when \
                 these have ended, or bring all back by helm upgrade."
            );
        }
    }
    // This program's one output: not a log line, so not through the subscriber.
    writeln!(
        std::io::stdout(),
        "No pod is gated, no Job suspended, no claim held and no permit out by Muster. If kube-scheduler's configuration names its extender, take it \
         out: pods that were marked are not bound while it names one that does not answer."
    )?;
    Ok(())
}

async fn look(client: &Client) -> anyhow::Result<Remaining> {
    let mut remaining = Remaining::default();
    // A pod with a gate is in no other phase.
    let pending = ListParams::default().fields("status.phase=Pending");
    each(&Api::<Pod>::all(client.clone()), pending, |pod| {
        if is_gated(pod) {
            remaining.gated.add_object(pod);
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
        &Api::<ResourceClaim>::all(client.clone()),
        ListParams::default(),
        |claim| {
            if is_held(claim) {
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
    Ok(remaining)
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
        write!(
            formatter,
            "Nothing was uninstalled. To do it all the same: helm uninstall --no-hooks, or uninstall.check=false"
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::scripted_api::{ScriptedApi, failure};

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
        ]);
        let remaining = look(&api.client()).await.unwrap();
        assert_eq!(remaining.gated.count(), 6);
        assert_eq!(remaining.suspended.first(), ["ml/ours"]);
        assert_eq!(remaining.held.first(), ["ml/used"]);
        assert_eq!(remaining.permitted.first(), ["a"]);
        let asked = api.asked();
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
        let api = ScriptedApi::new(nothing.clone().into_iter().chain([nodes]));
        let remaining = look(&api.client()).await.unwrap();
        assert!(!remaining.is_empty());
        let text = remaining.to_string();
        for part in [
            "PermitsLeft: ",
            "muster.dev/permits",
            "Nothing was uninstalled",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        // Where the definitions are gone, so are the permits.
        let gone = nothing.into_iter().chain([failure(404, "not found")]);
        assert!(
            look(&ScriptedApi::new(gone).client())
                .await
                .unwrap()
                .is_empty()
        );
    }

    #[tokio::test]
    async fn an_api_server_that_does_not_answer_is_no_leave() {
        let silent = ScriptedApi::new([list("PodList", "", &[])]);
        assert!(look(&silent.client()).await.is_err());
        let kinds = ["PodList", "JobList", "ResourceClaimList", "NodeDevicesList"];
        let empty = kinds.map(|kind| list(kind, "", &[]));
        let remaining = look(&ScriptedApi::new(empty).client()).await.unwrap();
        assert!(remaining.is_empty());
    }
}
