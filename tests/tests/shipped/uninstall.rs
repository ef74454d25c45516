//! The end: refused as long as somebody would be left with what nobody could end.

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    core::v1::{Namespace, Pod},
};
use kube::{Api, api::ListParams};
use muster_tests::{
    containers::{
        Lab, operator,
        operator::{DRIVER_NAMESPACE, NAMESPACE, RELEASE, TEAM_NAMESPACE},
        workload,
    },
    kubernetes::{LIMIT, Progress, eventually},
};
use serde_json::json;

use crate::upgrade;

pub(crate) async fn an_uninstall_is_refused_while_claims_are_held_and_goes_through_afterwards(
    lab: &mut Lab,
) -> Result<()> {
    let pod = json!({
        "metadata": {"name": "holds", "annotations": {"muster.dev/gpus": "1"}},
        "spec": {"containers": [workload::reporting("holds", &[], &json!({}), true)]},
    });
    workload::create(lab, TEAM_NAMESPACE, &pod).await?;
    let client = lab.client();
    workload::runs(&client, TEAM_NAMESPACE, "holds").await?;
    let refused = match uninstall(lab, RELEASE, NAMESPACE).await {
        Ok(said) => bail!("it was uninstalled while a claim was held: {said}"),
        Err(refused) => format!("{refused:#}"),
    };
    ensure!(
        refused.contains("holds") || refused.contains(TEAM_NAMESPACE),
        "{refused}"
    );
    // Nothing was taken down by the try.
    operator::wait_until_ready(lab).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), TEAM_NAMESPACE);
    let phase = pods
        .get("holds")
        .await?
        .status
        .and_then(|status| status.phase);
    ensure!(phase.as_deref() == Some("Running"), "the pod is {phase:?}");
    // Helm upgrades the release again, as most of what is advised takes, once it was told to by the line that was said.
    // What a hook says Helm quotes in its log.
    let said = refused.replace("\\n", "\n");
    let mut lines = said.lines().map(|line| line.trim().trim_end_matches('"'));
    let restore = lines.find(|line| line.starts_with("helm rollback "));
    let restore = restore.with_context(|| format!("it says no way back: {refused}"))?;
    lab.shell(restore).await?;
    operator::upgrade(lab, "").await?;
    workload::delete(lab, TEAM_NAMESPACE, "holds").await?;
    workload::all_gone(&client, TEAM_NAMESPACE).await?;
    // None of them is kept: one that is gated would hold the uninstall up.
    let created =
        upgrade::meanwhile(lab, false, uninstall_in_the_end(lab, RELEASE, NAMESPACE)).await?;
    created.ensure_none_refused()?;
    nothing_is_left(lab, "after").await
}

/// What Helm says to it.
pub(crate) async fn uninstall(lab: &Lab, release: &str, namespace: &str) -> Result<String> {
    let line = format!("helm uninstall {release} --namespace {namespace} --timeout 100s");
    lab.shell(&line).await
}

/// What is held is told by the drivers, a moment after a pod is gone.
pub(crate) async fn uninstall_in_the_end(lab: &Lab, release: &str, namespace: &str) -> Result<()> {
    eventually("the chart is uninstalled", LIMIT * 2, async || {
        uninstall(lab, release, namespace).await?;
        Ok(Progress::Done(()))
    })
    .await
}

/// Uninstalls the README's release if it is there.
pub(crate) async fn uninstall_if_there(lab: &Lab) -> Result<()> {
    let releases = format!("helm list --namespace {NAMESPACE} --short");
    if lab.shell(&releases).await?.trim() == RELEASE {
        uninstall_in_the_end(lab, RELEASE, NAMESPACE).await?;
    }
    Ok(())
}

/// No program of the README's release, and nothing that refuses or holds pods, as a pod of this name shows.
pub(crate) async fn nothing_is_left(lab: &Lab, name: &str) -> Result<()> {
    let client = lab.client();
    for namespace in [NAMESPACE, DRIVER_NAMESPACE] {
        workload::all_gone(&client, namespace).await?;
    }
    let everything = ListParams::default();
    let mutating = Api::<MutatingWebhookConfiguration>::all(client.clone());
    let validating = Api::<ValidatingWebhookConfiguration>::all(client.clone());
    ensure!(
        mutating.list(&everything).await?.items.is_empty()
            && validating.list(&everything).await?.items.is_empty(),
        "a webhook configuration is left"
    );
    // Pods start as if Muster had never been there: also one that its policies would refuse and its webhook hold.
    let pod = json!({
        "metadata": {"name": name, "annotations": {"muster.dev/gpus": "1"}},
        "spec": {"containers": [workload::reporting(name, &[], &json!({}), true)]},
    });
    workload::create(lab, TEAM_NAMESPACE, &pod).await?;
    let pod = workload::runs(&client, TEAM_NAMESPACE, name).await?;
    let gates = pod.spec.and_then(|spec| spec.scheduling_gates);
    ensure!(gates.is_none_or(|gates| gates.is_empty()), "it is gated");
    Ok(())
}

/// Definitions, Secrets and PriorityTiers were kept, and what an administrator changed of them stays.
pub(crate) async fn a_later_install_goes_on_with_what_the_former_one_left(
    lab: &mut Lab,
) -> Result<()> {
    // As `kubectl edit` does it: the value is the administrator's from then on.
    let changed = [
        "patch",
        "prioritytier",
        "standard",
        "--type=merge",
        "--patch",
        r#"{"spec":{"value":150}}"#,
    ];
    lab.kubectl(&changed).await?;
    let authority = [
        "get",
        "secret",
        "muster-extender-ca",
        "--namespace",
        NAMESPACE,
        "--output=jsonpath={.data}",
    ];
    let before = lab.kubectl(&authority).await?;
    // Helm does not wait until the API server has emptied it.
    let namespaces: Api<Namespace> = Api::all(lab.client());
    eventually("the driver's namespace is gone", LIMIT, async || {
        let left = namespaces.get_opt(DRIVER_NAMESPACE).await?;
        Ok(Progress::when(left.is_none(), || "it is there".to_owned()))
    })
    .await?;
    operator::install_again(lab).await?;
    operator::wait_until_ready(lab).await?;
    let value = [
        "get",
        "prioritytier",
        "standard",
        "--output=jsonpath={.spec.value}",
    ];
    let value = lab.kubectl(&value).await?;
    ensure!(value == "150", "the tier's value is {value}");
    let after = lab.kubectl(&authority).await?;
    ensure!(before == after, "the extender has another authority");
    Ok(())
}
