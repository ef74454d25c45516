//! What refuses and holds pods is taken down before a release in mode Enforce is uninstalled: bindings of its policies, and its webhooks.
//!
//! Helm deletes webhooks early, and what it does not know last. Left to it, a policy would refuse every pod with a GPU for the want of
//! the gate that no webhook puts any more, for as long as all else takes.
//!
//! What puts the gate goes last, so that nothing insists on it any more when it is gone. Who else may write: Helm, which deletes the same
//! afterwards and passes over what is gone; a `helm upgrade` between the two, which makes them again, and whose objects then go with the
//! release. Deleted twice, or late, they are gone. Where one cannot be deleted, those before it are, and `helm rollback` to the same
//! revision brings them back: Helm upgrades no release that it has begun to uninstall.

use std::{fmt::Debug, time::Duration};

use anyhow::Context;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingAdmissionPolicyBinding, ValidatingWebhookConfiguration,
};
use kube::{Api, Client, Resource, api::DeleteParams};
use muster_serve::client::{CALL_LIMIT, within};
use serde::de::DeserializeOwned;

use crate::args::GuardsArgs;

/// Until every API server has learned of it: they watch these objects.
pub const LEARNED: Duration = Duration::from_secs(3);

/// Deletes all of them.
pub async fn take_down(client: &Client, guards: &GuardsArgs) -> anyhow::Result<()> {
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    for name in &guards.policy_bindings {
        delete(&bindings, name).await?;
    }
    // An API server learns of webhooks at once, and of policies by looking once a second: without the wait it would refuse what no webhook
    // gives the gate any more. Nothing tells what it knows.
    if !guards.policy_bindings.is_empty() {
        tokio::time::sleep(LEARNED).await;
    }
    if let Some(name) = &guards.validating_webhook_configuration {
        let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
        delete(&configurations, name).await?;
    }
    if let Some(name) = &guards.mutating_webhook_configuration {
        let configurations: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
        delete(&configurations, name).await?;
    }
    Ok(())
}

/// What is not there need not be deleted.
async fn delete<K>(api: &Api<K>, name: &str) -> anyhow::Result<()>
where
    K: Clone + Debug + DeserializeOwned + Resource,
{
    match within(CALL_LIMIT, api.delete(name, &DeleteParams::default())).await {
        Ok(_) => Ok(()),
        Err(error) if error.status_code() == Some(404) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("deleting {name}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::scripted_api::{ScriptedApi, failure};

    fn guards() -> GuardsArgs {
        GuardsArgs {
            policy_bindings: vec!["muster-pod-created".to_owned(), "muster-claim".to_owned()],
            mutating_webhook_configuration: Some("zz-muster".to_owned()),
            validating_webhook_configuration: Some("muster".to_owned()),
        }
    }

    fn done() -> (u16, serde_json::Value) {
        let status =
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
        (200, status)
    }

    #[tokio::test(start_paused = true)]
    async fn what_insists_on_the_gate_goes_before_what_puts_it_and_what_is_gone_is_passed_over() {
        let gone = failure(404, "not found");
        let api = ScriptedApi::new([done(), gone, done(), done()]);
        take_down(&api.client(), &guards()).await.unwrap();
        let asked: Vec<String> = api.asked().into_iter().map(|asked| asked.what).collect();
        let of = |path: &str| format!("DELETE /apis/admissionregistration.k8s.io/v1/{path}");
        assert_eq!(
            asked,
            [
                of("validatingadmissionpolicybindings/muster-pod-created"),
                of("validatingadmissionpolicybindings/muster-claim"),
                of("validatingwebhookconfigurations/muster"),
                of("mutatingwebhookconfigurations/zz-muster"),
            ]
        );
    }

    #[tokio::test]
    async fn what_may_not_be_deleted_is_named_and_what_comes_behind_it_stays() {
        let api = ScriptedApi::new([done(), failure(403, "forbidden"), done()]);
        let error = take_down(&api.client(), &guards()).await.unwrap_err();
        assert!(format!("{error:#}").contains("muster-claim"), "{error:#}");
        assert_eq!(api.asked().len(), 2);
    }

    #[tokio::test]
    async fn without_names_nothing_is_asked_for() {
        let api = ScriptedApi::new([]);
        let none = GuardsArgs::default();
        assert!(none.are_none());
        take_down(&api.client(), &none).await.unwrap();
        assert!(api.asked().is_empty() && !guards().are_none());
    }
}
