//! Keeps the `caBundle` of our webhook configurations equal to what their servers' certificates need.
//!
//! With a wrong or erased bundle the API server cannot reach the webhook, and with `failurePolicy: Fail` no GPU
//! pod can be created. So the leader compares every few seconds and repairs by server-side apply under a field
//! manager of its own: it owns the one field and nothing else, so installers and users keep the rest.
//!
//! Who else may write: an installer that applies the chart again (it leaves the field out, so nothing is lost),
//! or a second leader for a moment, which writes the same. The object's UID is a precondition, so that nothing
//! is created again that somebody removed.

use std::{fmt::Debug, time::Duration};

use k8s_openapi::{
    ByteString,
    api::admissionregistration::v1::{
        MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
    },
};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
};
use muster_api::keys;
use muster_serve::{
    authority_secret::{AuthorityError, AuthoritySecret},
    client::{CALL_LIMIT, CallError, within},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// How often the bundles are compared: one that was erased is back within 10 s.
const INTERVAL: Duration = Duration::from_secs(4);

/// Why the bundles could not be kept this time.
#[derive(Debug, thiserror::Error)]
enum KeepError {
    #[error(transparent)]
    Authorities(#[from] AuthorityError),
    #[error("{kind} {name}: {source}")]
    Configuration {
        kind: String,
        name: String,
        source: CallError,
    },
}

/// A kind of configuration that lists webhooks.
trait Configuration: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug {
    /// Name and client configuration of each webhook.
    fn webhooks(&self) -> Vec<(&str, &WebhookClientConfig)>;
}

impl Configuration for MutatingWebhookConfiguration {
    fn webhooks(&self) -> Vec<(&str, &WebhookClientConfig)> {
        let webhooks = self.webhooks.iter().flatten();
        webhooks
            .map(|webhook| (webhook.name.as_str(), &webhook.client_config))
            .collect()
    }
}

impl Configuration for ValidatingWebhookConfiguration {
    fn webhooks(&self) -> Vec<(&str, &WebhookClientConfig)> {
        let webhooks = self.webhooks.iter().flatten();
        webhooks
            .map(|webhook| (webhook.name.as_str(), &webhook.client_config))
            .collect()
    }
}

/// Which bundles are kept, and from what.
#[derive(Debug)]
pub struct CaBundleKeeper {
    /// The authorities of the webhook's certificates.
    pub authorities: AuthoritySecret,
    /// Names of MutatingWebhookConfigurations.
    pub mutating: Vec<String>,
    /// Names of ValidatingWebhookConfigurations.
    pub validating: Vec<String>,
}

impl CaBundleKeeper {
    /// Keeps them until it is dropped.
    pub async fn keep(self, client: Client) {
        loop {
            if let Err(error) = self.keep_once(&client).await {
                tracing::warn!(%error, "the webhooks' CA bundle cannot be kept now");
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    async fn keep_once(&self, client: &Client) -> Result<(), KeepError> {
        // Before the webhook's first start there is nothing to trust.
        let Some(authorities) = self.authorities.stored().await? else {
            return Ok(());
        };
        let bundle = ByteString(authorities.set.bundle_pem().into_bytes());
        for name in self.mutating.iter().filter(|name| !name.is_empty()) {
            repair::<MutatingWebhookConfiguration>(client, name, &bundle).await?;
        }
        for name in self.validating.iter().filter(|name| !name.is_empty()) {
            repair::<ValidatingWebhookConfiguration>(client, name, &bundle).await?;
        }
        Ok(())
    }
}

async fn repair<K: Configuration>(
    client: &Client,
    name: &str,
    bundle: &ByteString,
) -> Result<(), KeepError> {
    let failed = |source| KeepError::Configuration {
        kind: K::kind(&()).into_owned(),
        name: name.to_owned(),
        source,
    };
    let api: Api<K> = Api::all(client.clone());
    // The chart may not install it (a mode without webhooks), or not yet.
    let Some(found) = within(CALL_LIMIT, api.get_opt(name))
        .await
        .map_err(failed)?
    else {
        return Ok(());
    };
    let Some(patch) = repair_patch(&found, name, bundle) else {
        return Ok(());
    };
    let params = PatchParams::apply(keys::FIELD_MANAGER_CERTIFICATES).force();
    let patch = Patch::Apply(&patch);
    within(CALL_LIMIT, api.patch(name, &params, &patch))
        .await
        .map_err(failed)?;
    tracing::info!(kind = %K::kind(&()), name, "the CA bundle was repaired");
    Ok(())
}

/// What is to be applied, if a bundle differs: all webhooks, because what we no longer name we no longer own.
fn repair_patch<K: Configuration>(found: &K, name: &str, bundle: &ByteString) -> Option<Value> {
    let webhooks = found.webhooks();
    if webhooks
        .iter()
        .all(|(_, client)| client.ca_bundle.as_ref() == Some(bundle))
    {
        return None;
    }
    let webhooks: Vec<Value> = webhooks
        .iter()
        .map(|(webhook, _)| json!({"name": webhook, "clientConfig": {"caBundle": bundle}}))
        .collect();
    Some(json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        "metadata": {"name": name, "uid": found.meta().uid},
        "webhooks": webhooks,
    }))
}

#[cfg(test)]
mod tests {
    use muster_serve::{authority_secret::SecretReference, certificates::Policy};

    use super::*;
    use crate::scripted_api::{ScriptedApi, failure};

    const NOW: i64 = 1_800_000_000;

    fn keeper(client: &Client) -> CaBundleKeeper {
        let reference = SecretReference {
            namespace: "muster".to_owned(),
            name: "ca".to_owned(),
        };
        CaBundleKeeper {
            authorities: AuthoritySecret::new(client.clone(), reference, Policy::ROTATED),
            mutating: vec!["muster".to_owned()],
            validating: vec![],
        }
    }

    /// A Secret as it is stored, and the bundle in it.
    async fn secret() -> (Value, Value) {
        let stored = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "ca"}});
        let api = ScriptedApi::new([
            failure(404, "not found"),
            (201, stored.clone()),
            (200, stored),
        ]);
        // It is read back, which this script cannot answer; what was written is all that is wanted.
        let _ = keeper(&api.client()).authorities.ensure(NOW).await;
        let secret = api.asked()[1].body.clone();
        let bundle = secret["data"]["ca.crt"].clone();
        (secret, bundle)
    }

    fn configuration(bundles: [&Value; 2]) -> Value {
        let webhook = |name: &str, bundle: &Value| {
            json!({
                "name": name, "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "clientConfig": {"caBundle": bundle, "url": "https://127.0.0.1/mutate"},
            })
        };
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "muster", "uid": "u-1"},
            "webhooks": [webhook("pods.muster.dev", bundles[0]), webhook("teams.muster.dev", bundles[1])],
        })
    }

    #[tokio::test]
    async fn an_erased_bundle_is_put_back_and_nothing_else_is_touched() {
        let (secret, bundle) = secret().await;
        let found = configuration([&json!(null), &bundle]);
        let api = ScriptedApi::new([(200, secret), (200, found.clone()), (200, found)]);
        keeper(&api.client())
            .keep_once(&api.client())
            .await
            .unwrap();
        let patch = &api.asked()[2];
        assert_eq!(
            patch.what,
            "PATCH /apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/muster"
        );
        assert!(
            patch.query.contains("fieldManager=muster-certificates"),
            "{}",
            patch.query
        );
        assert!(patch.query.contains("force=true"), "{}", patch.query);
        assert_eq!(
            patch.body,
            json!({
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
                "metadata": {"name": "muster", "uid": "u-1"},
                "webhooks": [
                    {"name": "pods.muster.dev", "clientConfig": {"caBundle": bundle}},
                    {"name": "teams.muster.dev", "clientConfig": {"caBundle": bundle}},
                ],
            })
        );
    }

    #[tokio::test]
    async fn a_bundle_that_is_right_is_left_alone() {
        let (secret, bundle) = secret().await;
        let api = ScriptedApi::new([(200, secret), (200, configuration([&bundle, &bundle]))]);
        keeper(&api.client())
            .keep_once(&api.client())
            .await
            .unwrap();
        assert_eq!(api.asked().len(), 2, "two reads");
    }

    #[tokio::test]
    async fn without_authorities_or_configuration_there_is_nothing_to_do() {
        let api = ScriptedApi::new([failure(404, "not found")]);
        keeper(&api.client())
            .keep_once(&api.client())
            .await
            .unwrap();
        let (secret, _) = secret().await;
        let api = ScriptedApi::new([(200, secret), failure(404, "not found")]);
        keeper(&api.client())
            .keep_once(&api.client())
            .await
            .unwrap();
        assert_eq!(api.asked().len(), 2);
    }
}
