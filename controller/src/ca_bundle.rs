//! Keeps the `caBundle` of our webhook configurations equal to what their servers' certificates need.
//!
//! With a wrong or erased bundle the API server cannot reach the webhook, and with `failurePolicy: Fail` no GPU
//! pod can be created. So the leader watches them, compares them as soon as one changes, and every few seconds in any
//! case: a watch may fail, and of the authorities nothing is watched. It repairs by server-side apply under a field
//! manager of its own: it owns the one field and nothing else, so installers and users keep the rest.
//!
//! A change only says that it is time to look: what is written follows from what is read after it, so a change that is
//! seen twice, late or never costs a look, or a few seconds. Our own write is such a change, and is found to be right.
//!
//! Who else may write: an installer that applies the chart again (it leaves the field out, so nothing is lost),
//! or a second leader for a moment, which writes the same. The object's UID is a precondition, so that nothing
//! is created again that somebody removed. Somebody who writes another bundle again and again is answered once in
//! [`PAUSE`], and no faster.

use std::{fmt::Debug, time::Duration};

use futures::{
    FutureExt, Stream, StreamExt, future,
    stream::{self, BoxStream},
};
use k8s_openapi::{
    ByteString,
    api::admissionregistration::v1::{
        MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
    },
};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
    runtime::{WatchStreamExt, watcher::watch_object},
};
use muster_api::keys;
use muster_serve::{
    authority_secret::{AuthorityError, AuthoritySecret},
    client::{CALL_LIMIT, CallError, within},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout};

/// How often the bundles are compared at least: one that was erased is back within 10 s, even if no watch tells.
const INTERVAL: Duration = Duration::from_secs(4);
/// From one comparison to the next at least, however often something changes.
const PAUSE: Duration = Duration::from_millis(500);

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
trait Configuration:
    Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static
{
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
    /// Keeps them until it is dropped. `watches` is a client whose reads may be long.
    pub async fn keep(self, client: Client, watches: Client) {
        let mut changes = self.changes(&watches);
        loop {
            let next = Instant::now() + PAUSE;
            if let Err(error) = self.keep_once(&client).await {
                tracing::warn!(%error, "the webhooks' CA bundle cannot be kept now");
            }
            sleep_until(next).await;
            // Nothing in time is no news.
            let _ = timeout(INTERVAL, changes.next()).await;
            // What else has changed by now is looked at together.
            while let Some(Some(())) = changes.next().now_or_never() {}
        }
    }

    /// Ends never. Each is watched by its name, so that no right to see the others is needed.
    fn changes(&self, watches: &Client) -> impl Stream<Item = ()> + Unpin + Send + use<> {
        let mutating = named(&self.mutating)
            .map(|name| changes_of::<MutatingWebhookConfiguration>(watches, name));
        let validating = named(&self.validating)
            .map(|name| changes_of::<ValidatingWebhookConfiguration>(watches, name));
        stream::select_all(mutating.chain(validating)).chain(stream::pending())
    }

    async fn keep_once(&self, client: &Client) -> Result<(), KeepError> {
        // Before the webhook's first start there is nothing to trust.
        let Some(authorities) = self.authorities.stored().await? else {
            return Ok(());
        };
        let bundle = ByteString(authorities.set.bundle_pem().into_bytes());
        // One that somebody keeps from being repaired keeps no other one from it; the first failure is told.
        let mut kept = Ok(());
        for name in named(&self.mutating) {
            let repaired = repair::<MutatingWebhookConfiguration>(client, name, &bundle).await;
            kept = kept.and(repaired);
        }
        for name in named(&self.validating) {
            let repaired = repair::<ValidatingWebhookConfiguration>(client, name, &bundle).await;
            kept = kept.and(repaired);
        }
        kept
    }
}

/// An empty list of the chart is one empty name.
fn named(names: &[String]) -> impl Iterator<Item = &String> {
    names.iter().filter(|name| !name.is_empty())
}

fn changes_of<K: Configuration>(watches: &Client, name: &str) -> BoxStream<'static, ()> {
    let seen = watch_object(Api::<K>::all(watches.clone()), name).default_backoff();
    let changes = seen.filter_map(|seen| {
        if let Err(error) = &seen {
            tracing::debug!(kind = %K::kind(&()), %error, "the watch for the CA bundle is broken");
        }
        future::ready(seen.ok().map(drop))
    });
    changes.boxed()
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
    use std::sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    };

    use http::{Method, Request, Response};
    use kube::client::Body;
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
    async fn a_configuration_that_may_not_be_repaired_keeps_no_other_one_from_it() {
        let (secret, bundle) = secret().await;
        let mut validating = configuration([&json!(null), &bundle]);
        validating["kind"] = json!("ValidatingWebhookConfiguration");
        let api = ScriptedApi::new([
            (200, secret),
            (200, configuration([&json!(null), &bundle])),
            failure(403, "a policy refuses it"),
            (200, validating.clone()),
            (200, validating),
        ]);
        let keeper = CaBundleKeeper {
            validating: vec!["muster".to_owned()],
            ..keeper(&api.client())
        };
        let error = keeper.keep_once(&api.client()).await.unwrap_err();
        assert!(error.to_string().contains("MutatingWebhook"), "{error}");
        let repaired = &api.asked()[4].what;
        let path = "admissionregistration.k8s.io/v1/validatingwebhookconfigurations/muster";
        assert_eq!(*repaired, format!("PATCH /apis/{path}"));
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

    /// As when the mode becomes Enforce: until then pods with GPUs are refused.
    #[tokio::test(start_paused = true)]
    async fn a_configuration_that_is_made_gets_its_bundle_before_the_next_periodic_look() {
        let (secret, bundle) = secret().await;
        let mut made = configuration([&json!(null), &json!(null)]);
        made["metadata"]["resourceVersion"] = json!("2");
        let right = configuration([&bundle, &bundle]);
        let is_made = Arc::new(AtomicBool::new(false));
        let written = Arc::new(Mutex::new(Vec::new()));
        let patches = Arc::clone(&written);
        // It is made as soon as it is watched.
        let service = tower::service_fn(move |request: Request<Body>| {
            let (secret, made, right) = (secret.clone(), made.clone(), right.clone());
            let (is_made, patches) = (Arc::clone(&is_made), Arc::clone(&patches));
            async move {
                let (parts, body) = request.into_parts();
                let path = parts.uri.path();
                let query = parts.uri.query().unwrap_or_default();
                let (status, answer) = if path.contains("/secrets/") {
                    (200, secret)
                } else if parts.method == Method::PATCH {
                    let body = body.collect_bytes().await.unwrap();
                    let body: Value = serde_json::from_slice(&body).unwrap();
                    patches.lock().unwrap().push(body);
                    (200, made)
                } else if path.ends_with("/muster") && is_made.load(Ordering::SeqCst) {
                    let is_right = !patches.lock().unwrap().is_empty();
                    (200, if is_right { right } else { made })
                } else if path.ends_with("/muster") {
                    failure(404, "not found")
                } else {
                    assert!(
                        query.contains("fieldSelector=metadata.name%3Dmuster"),
                        "{query}"
                    );
                    if !query.contains("watch=true") {
                        let list = json!({
                            "kind": "MutatingWebhookConfigurationList",
                            "apiVersion": "admissionregistration.k8s.io/v1",
                            "metadata": {"resourceVersion": "1"},
                            "items": [],
                        });
                        (200, list)
                    } else if is_made.swap(true, Ordering::SeqCst) {
                        future::pending().await
                    } else {
                        (200, json!({"type": "ADDED", "object": made}))
                    }
                };
                let body = Body::from(serde_json::to_vec(&answer).unwrap());
                let response = Response::builder().status(status).body(body).unwrap();
                Ok::<_, std::io::Error>(response)
            }
        });
        let client = Client::new(service, "default");
        let keeper = keeper(&client);
        let limit = INTERVAL.checked_sub(PAUSE).unwrap();
        assert!(
            timeout(limit, keeper.keep(client.clone(), client))
                .await
                .is_err()
        );
        let written = written.lock().unwrap().clone();
        assert_eq!(written.len(), 1, "once, and then it is right: {written:?}");
        assert_eq!(
            written[0]["webhooks"][0]["clientConfig"]["caBundle"],
            bundle
        );
    }
}
