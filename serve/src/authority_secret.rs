//! Authorities in a Secret, shared by all replicas that issue from them.
//!
//! Who starts first makes them. Two that start at once both try; creation (or the replacement of an empty Secret
//! that the installer made) carries a precondition, so one wins and the other reads what the winner wrote. The
//! same holds for every step of a rotation. A write whose answer is lost is settled by reading again.
//!
//! What is found there need not be what was left there:
//!
//! * **Emptied** (or deleted and created again, empty): whoever has known the authorities puts them back
//!   ([`AuthoritySecret::keep`]). So clients that trust them, kube-scheduler above all, go on as if nothing had been. Two that
//!   put back run the same race as two that start. One that knows less by a step of a rotation may win it: then that step is
//!   made again.
//! * **Deleted**: nobody may create Secrets in the chart's roles, because creation cannot be limited to names, and a
//!   Secret of the right type is a token of any ServiceAccount of the namespace. It is said how to create it.
//! * **Somebody else's, or garbage**: refused with what is wrong and kept, since nobody knows who needs it. Servers go on with
//!   the certificate that they have.
//! * **The bundle alone, or the client's certificate, changed, expired or left over from other authorities**: made anew from
//!   the authorities.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};

use crate::{
    certificates::{self, Authority, AuthoritySet, IssueError, Policy, Subject, Validity},
    client::{CALL_LIMIT, CallError, within},
    tls::CertificateAndKey,
};

/// Key of the bundle that clients trust (PEM), for people and mounts; made from [`AUTHORITIES`].
pub const BUNDLE: &str = "ca.crt";
/// Key of the authorities with their private keys (JSON).
pub const AUTHORITIES: &str = "authorities.json";
/// Key of the certificate of the client that the Secret is shared with, if there is one (PEM).
pub const CLIENT_CERTIFICATE: &str = "client.crt";
/// Key of that client's private key (PEM).
pub const CLIENT_KEY: &str = "client.key";

/// Field manager of the writes of a Secret.
const FIELD_MANAGER: &str = "muster-certificates";
/// How often a lost race for the Secret is run again.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(200);

/// The Secret that holds the authorities of one purpose.
#[derive(Clone, Debug)]
pub struct AuthoritySecret {
    secrets: Api<Secret>,
    /// Where it is.
    pub reference: SecretReference,
    /// How long its authorities live.
    pub policy: Policy,
    client_name: Option<String>,
}

/// Namespace and name of a Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretReference {
    /// Namespace.
    pub namespace: String,
    /// Name; also the first part of the authorities' common names.
    pub name: String,
}

impl std::fmt::Display for SecretReference {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Secret {}/{}", self.namespace, self.name)
    }
}

/// What such a Secret holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorities {
    /// The authorities.
    pub set: AuthoritySet,
    /// Certificate and key of the client that the Secret is shared with, if it is.
    pub client: Option<CertificateAndKey>,
}

/// Why there are no authorities.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The API server did not do it.
    #[error("{reference}: {source}")]
    Call {
        /// Which Secret.
        reference: SecretReference,
        /// Why.
        source: CallError,
    },
    /// There is none, and this program may not create one.
    #[error(
        "{0} does not exist, and this program may not create it: `helm upgrade` puts an empty one back, and so does \
         `kubectl create secret generic {name} --namespace {namespace}`; it is filled at once",
        name = .0.name,
        namespace = .0.namespace
    )]
    Missing(SecretReference),
    /// The Secret holds something else.
    #[error(
        "{reference}, key {key}: {details}; if nobody needs what is there, empty the Secret and it is filled again: `kubectl patch secret \
         {name} --namespace {namespace} --type=json --patch='[{{\"op\": \"remove\", \"path\": \"/data\"}}]'`",
        name = .reference.name,
        namespace = .reference.namespace
    )]
    Content {
        /// Which Secret.
        reference: SecretReference,
        /// Which key of its data.
        key: &'static str,
        /// What is wrong.
        details: String,
    },
    /// A certificate could not be made.
    #[error(transparent)]
    Issue(#[from] IssueError),
    /// Others wrote at every attempt.
    #[error("{0} is being changed by others all the time")]
    Contended(SecretReference),
}

impl AuthoritySecret {
    /// Authorities in this Secret.
    pub fn new(client: Client, reference: SecretReference, policy: Policy) -> Self {
        Self {
            secrets: Api::namespaced(client, &reference.namespace),
            reference,
            policy,
            client_name: None,
        }
    }

    /// Also keeps a client certificate of this name in the Secret, valid as long as the authority that issues it.
    /// For clients that are configured by hand; only with authorities that are never replaced.
    #[must_use]
    pub fn with_client(mut self, name: &str) -> Self {
        self.client_name = Some(name.to_owned());
        self
    }

    /// The authorities as they should be at `now` (seconds since the Unix epoch), made or moved on where needed.
    pub async fn ensure(&self, now: i64) -> Result<Authorities, AuthorityError> {
        self.settle(None, now).await
    }

    /// The same for who knows what was there before: if nothing is there now, that is put back.
    pub async fn keep(&self, known: &Authorities, now: i64) -> Result<Authorities, AuthorityError> {
        self.settle(Some(known), now).await
    }

    async fn settle(
        &self,
        known: Option<&Authorities>,
        now: i64,
    ) -> Result<Authorities, AuthorityError> {
        for _ in 0..ATTEMPTS {
            let stored = self.read().await?;
            let written = match stored {
                None => self.create(&self.first(known, now)?).await?,
                Some(secret) => match self.changed(&secret, known, now)? {
                    Changed::No(authorities) => return Ok(authorities),
                    Changed::To(authorities) => self.replace(secret, &authorities).await?,
                },
            };
            // What counts is what is stored, not what we wrote: read it back.
            if !written {
                tokio::time::sleep(PAUSE).await;
            }
        }
        Err(AuthorityError::Contended(self.reference.clone()))
    }

    /// The authorities as they are stored, if they are; nothing is written.
    pub async fn stored(&self) -> Result<Option<Authorities>, AuthorityError> {
        match self.read().await? {
            Some(secret) => self.parse(&secret),
            None => Ok(None),
        }
    }

    /// What an empty Secret is filled with.
    fn first(&self, known: Option<&Authorities>, now: i64) -> Result<Authorities, AuthorityError> {
        if let Some(known) = known {
            tracing::warn!(secret = %self.reference, "it was emptied: the authorities that were in it are put back");
            return Ok(known.clone());
        }
        tracing::info!(secret = %self.reference, "it holds no authority: a new one is made, and who trusted an earlier one has to be told");
        let set = AuthoritySet::generate(&self.reference.name, &self.policy, now)?;
        let client = self.issue_client(&set, now)?;
        Ok(Authorities { set, client })
    }

    fn issue_client(
        &self,
        set: &AuthoritySet,
        now: i64,
    ) -> Result<Option<CertificateAndKey>, IssueError> {
        let Some(name) = &self.client_name else {
            return Ok(None);
        };
        let issuer = set.issuer(&self.policy, now);
        let subject = Subject::Client(name.clone());
        issuer
            .issue(&subject, now, self.policy.authority_seconds)
            .map(Some)
    }

    fn changed(
        &self,
        secret: &Secret,
        known: Option<&Authorities>,
        now: i64,
    ) -> Result<Changed, AuthorityError> {
        let Some(mut authorities) = self.parse(secret)? else {
            return Ok(Changed::To(self.first(known, now)?));
        };
        // For people and mounts, who take nothing else.
        let bundle = secret.data.as_ref().and_then(|data| data.get(BUNDLE));
        let mut changed = bundle
            .is_none_or(|bundle| bundle.0.as_slice() != authorities.set.bundle_pem().as_bytes());
        if let Some(advanced) = authorities
            .set
            .advanced(&self.reference.name, &self.policy, now)?
        {
            authorities.set = advanced;
            changed = true;
        }
        // Another one of the same authority takes nothing from whoever has the old one.
        let client_is_valid = authorities.client.as_ref().is_some_and(|client| {
            let validity = Validity::of(&client.certificate_pem);
            certificates::check_pair(&client.certificate_pem, &client.key_pem).is_ok()
                && validity.is_some_and(|validity| {
                    (validity.not_before..validity.not_after).contains(&now)
                })
                && authorities.set.vouches_for(&client.certificate_pem)
        });
        if self.client_name.is_some() && !client_is_valid {
            authorities.client = self.issue_client(&authorities.set, now)?;
            changed = true;
        }
        Ok(if changed {
            Changed::To(authorities)
        } else {
            Changed::No(authorities)
        })
    }

    /// What is in it; `None` if nothing is.
    fn parse(&self, secret: &Secret) -> Result<Option<Authorities>, AuthorityError> {
        let invalid = |details: String| AuthorityError::Content {
            reference: self.reference.clone(),
            key: AUTHORITIES,
            details,
        };
        let data = secret.data.iter().flatten();
        let filled: BTreeMap<&str, &[u8]> = data
            .filter(|(_, value)| !value.0.is_empty())
            .map(|(key, value)| (key.as_str(), value.0.as_slice()))
            .collect();
        let Some(stored) = filled.get(AUTHORITIES) else {
            let ours = [BUNDLE, CLIENT_CERTIFICATE, CLIENT_KEY];
            if filled.keys().all(|key| ours.contains(key)) {
                return Ok(None);
            }
            let others: Vec<&str> = filled.into_keys().collect();
            let others = others.join(", ");
            return Err(invalid(format!(
                "it is not there, and {others} is: this Secret is somebody else's"
            )));
        };
        let authorities: Vec<Authority> =
            serde_json::from_slice(stored).map_err(|error| invalid(error.to_string()))?;
        for (number, authority) in authorities.iter().enumerate() {
            authority
                .check()
                .map_err(|why| invalid(format!("authority {number}: {why}")))?;
        }
        let set = AuthoritySet::from_stored(authorities)
            .ok_or_else(|| invalid("no authority".to_owned()))?;
        // What is no text is no certificate, and is made anew.
        let text = |key| String::from_utf8(filled.get(key)?.to_vec()).ok();
        let client = match (text(CLIENT_CERTIFICATE), text(CLIENT_KEY)) {
            (Some(certificate_pem), Some(key_pem)) => Some(CertificateAndKey {
                certificate_pem,
                key_pem,
            }),
            _ => None,
        };
        Ok(Some(Authorities { set, client }))
    }

    fn data(
        &self,
        authorities: &Authorities,
    ) -> Result<BTreeMap<String, ByteString>, AuthorityError> {
        let stored = serde_json::to_vec(authorities.set.authorities()).map_err(|error| {
            AuthorityError::Content {
                reference: self.reference.clone(),
                key: AUTHORITIES,
                details: error.to_string(),
            }
        })?;
        let mut data = BTreeMap::from([
            (
                BUNDLE.to_owned(),
                ByteString(authorities.set.bundle_pem().into_bytes()),
            ),
            (AUTHORITIES.to_owned(), ByteString(stored)),
        ]);
        if let Some(client) = &authorities.client {
            let pem = |pem: &str| ByteString(pem.as_bytes().to_vec());
            data.insert(CLIENT_CERTIFICATE.to_owned(), pem(&client.certificate_pem));
            data.insert(CLIENT_KEY.to_owned(), pem(&client.key_pem));
        }
        Ok(data)
    }

    async fn read(&self) -> Result<Option<Secret>, AuthorityError> {
        within(CALL_LIMIT, self.secrets.get_opt(&self.reference.name))
            .await
            .map_err(|source| self.call_failed(source))
    }

    async fn create(&self, authorities: &Authorities) -> Result<bool, AuthorityError> {
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(self.reference.name.clone()),
                namespace: Some(self.reference.namespace.clone()),
                ..ObjectMeta::default()
            },
            data: Some(self.data(authorities)?),
            ..Secret::default()
        };
        let params = post_params();
        let call = self.secrets.create(&params, &secret);
        let answer = within(CALL_LIMIT, call).await;
        if let Err(error) = &answer
            && error.status_code() == Some(403)
        {
            return Err(AuthorityError::Missing(self.reference.clone()));
        }
        self.written(answer)
    }

    /// Replaces the Secret as it was read: its resourceVersion is the precondition.
    async fn replace(
        &self,
        mut secret: Secret,
        authorities: &Authorities,
    ) -> Result<bool, AuthorityError> {
        secret
            .data
            .get_or_insert_default()
            .extend(self.data(authorities)?);
        let params = post_params();
        let call = self.secrets.replace(&self.reference.name, &params, &secret);
        self.written(within(CALL_LIMIT, call).await)
    }

    fn written(&self, answer: Result<Secret, CallError>) -> Result<bool, AuthorityError> {
        match answer {
            Ok(_) => Ok(true),
            Err(error) if error.status_code() == Some(409) => Ok(false),
            Err(source) => Err(self.call_failed(source)),
        }
    }

    fn call_failed(&self, source: CallError) -> AuthorityError {
        AuthorityError::Call {
            reference: self.reference.clone(),
            source,
        }
    }
}

fn post_params() -> PostParams {
    PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    }
}

enum Changed {
    No(Authorities),
    To(Authorities),
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fake_api::{FakeApi, Passage};

    const NOW: i64 = 1_800_000_000;
    const PATH: &str = "/api/v1/namespaces/muster/secrets/webhook-ca";

    fn secret(client: Client) -> AuthoritySecret {
        let reference = SecretReference {
            namespace: "muster".to_owned(),
            name: "webhook-ca".to_owned(),
        };
        AuthoritySecret::new(client, reference, Policy::ROTATED)
    }

    fn store(api: &FakeApi, data: &Value) {
        let metadata = json!({"namespace": "muster", "name": "webhook-ca"});
        api.put(
            PATH,
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}),
        );
    }

    #[tokio::test(start_paused = true)]
    async fn replicas_that_start_together_share_what_the_first_made() {
        let api = FakeApi::default();
        // Everyone reads before anyone writes.
        let slow = || Passage::Through(Duration::from_millis(50));
        let replicas = (0..5).map(|_| secret(api.client_over(slow)));
        let made = futures::future::join_all(
            replicas.map(|secret| async move { secret.ensure(NOW).await.unwrap() }),
        )
        .await;
        assert!(made.iter().all(|authorities| *authorities == made[0]));
        assert_eq!(api.writes(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_empty_secret_of_the_installer_is_filled() {
        let api = FakeApi::default();
        store(&api, &json!(null));
        let made = secret(api.client()).ensure(NOW).await.unwrap();
        let again = secret(api.client()).stored().await.unwrap();
        assert_eq!(again, Some(made));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_answer_does_not_make_a_second_authority() {
        let api = FakeApi::default();
        let mut fates = vec![
            Passage::AnswerLost(Duration::ZERO),
            Passage::Through(Duration::ZERO),
        ];
        let client =
            api.client_over(move || fates.pop().unwrap_or(Passage::Through(Duration::ZERO)));
        assert!(
            secret(client.clone()).ensure(NOW).await.is_err(),
            "it says that it does not know"
        );
        secret(client).ensure(NOW).await.unwrap();
        assert_eq!(api.writes(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_authority_gets_a_successor_and_the_bundle_both() {
        let api = FakeApi::default();
        let first = secret(api.client()).ensure(NOW).await.unwrap();
        let later = NOW + Policy::ROTATED.authority_seconds / 3 * 2;
        let second = secret(api.client()).ensure(later).await.unwrap();
        assert_eq!(second.set.authorities().len(), 2);
        assert!(second.set.bundle_pem().starts_with(&first.set.bundle_pem()));
        assert_eq!(secret(api.client()).ensure(later).await.unwrap(), second);
        assert_eq!(api.writes(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_certificate_is_made_once_and_kept() {
        let api = FakeApi::default();
        let plain = secret(api.client()).ensure(NOW).await.unwrap();
        assert_eq!(plain.client, None);
        let with_client = secret(api.client()).with_client("scheduler");
        let made = with_client.ensure(NOW).await.unwrap();
        assert_eq!(made.set, plain.set);
        assert_eq!(with_client.ensure(NOW).await.unwrap(), made);
        assert!(made.client.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn what_somebody_else_put_there_is_refused_and_kept() {
        let api = FakeApi::default();
        let known = secret(api.client()).ensure(NOW).await.unwrap();
        let other = Authority::generate("other", &Policy::ROTATED, NOW).unwrap();
        let mut mixed = serde_json::to_value(&known.set.authorities()[0]).unwrap();
        mixed["keyPem"] = serde_json::to_value(other).unwrap()["keyPem"].clone();
        let text = |text: &str| json!(ByteString(text.as_bytes().to_vec()));
        for (content, told) in [
            (json!({AUTHORITIES: text("not JSON")}), "expected ident"),
            (json!({AUTHORITIES: text("[]")}), "no authority"),
            (json!({AUTHORITIES: text("[{}]")}), "missing field"),
            (
                json!({AUTHORITIES: text(&json!([mixed]).to_string())}),
                "authority 0: the key is not that of the certificate",
            ),
            // As cert-manager writes it.
            (
                json!({"ca.crt": text("a"), "tls.crt": text("b"), "tls.key": text("c")}),
                "ca.crt, tls.crt, tls.key is: this Secret is somebody else's",
            ),
        ] {
            store(&api, &content);
            // Whoever knows what was there before does not write over it either.
            for error in [
                secret(api.client()).ensure(NOW).await.unwrap_err(),
                secret(api.client()).keep(&known, NOW).await.unwrap_err(),
                secret(api.client()).stored().await.unwrap_err(),
            ] {
                let message = error.to_string();
                for part in [
                    "Secret muster/webhook-ca, key authorities.json: ",
                    told,
                    "kubectl patch secret webhook-ca --namespace muster ",
                    r#"'[{"op": "remove", "path": "/data"}]'"#,
                ] {
                    assert!(message.contains(part), "{part}: {message}");
                }
            }
            assert_eq!(api.get(PATH).unwrap()["data"], content);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_emptied_is_put_back_by_whoever_knew_it_and_by_several_once() {
        let bundle = |text: &str| json!(ByteString(text.as_bytes().to_vec()));
        for emptied in [
            json!(null),
            json!({}),
            json!({AUTHORITIES: "", "client.crt": ""}),
            json!({BUNDLE: bundle("left over")}),
        ] {
            let api = FakeApi::default();
            let known = secret(api.client())
                .with_client("scheduler")
                .ensure(NOW)
                .await
                .unwrap();
            let before = api.get(PATH).unwrap()["data"].clone();
            store(&api, &emptied);
            let writes = api.writes();
            let slow = || Passage::Through(Duration::from_millis(50));
            let replicas = (0..3).map(|_| secret(api.client_over(slow)).with_client("scheduler"));
            let kept = futures::future::join_all(replicas.map(|secret| {
                let known = known.clone();
                async move { secret.keep(&known, NOW + 1).await.unwrap() }
            }))
            .await;
            assert!(kept.iter().all(|kept| *kept == known), "{emptied}");
            assert_eq!(api.get(PATH).unwrap()["data"], before, "{emptied}");
            assert_eq!(api.writes(), writes + 1, "{emptied}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_bundle_that_was_changed_and_a_client_certificate_that_is_of_no_use_are_made_anew() {
        let api = FakeApi::default();
        let pinned = |client| {
            AuthoritySecret {
                policy: Policy::PINNED,
                ..secret(client)
            }
            .with_client("scheduler")
        };
        let first = pinned(api.client()).ensure(NOW).await.unwrap();
        let good = api.get(PATH).unwrap()["data"].clone();
        for (key, value) in [
            (BUNDLE, json!("")),
            (BUNDLE, json!("YQ==")),
            (BUNDLE, json!(null)),
            (CLIENT_CERTIFICATE, json!("YQ==")),
            (CLIENT_KEY, json!("YQ==")),
            (CLIENT_KEY, json!(null)),
        ] {
            let mut changed = good.clone();
            changed[key] = value;
            changed
                .as_object_mut()
                .unwrap()
                .retain(|_, value| !value.is_null());
            store(&api, &changed);
            let healed = pinned(api.client()).ensure(NOW).await.unwrap();
            assert_eq!(healed.set, first.set, "{key}");
            let stored = pinned(api.client()).stored().await.unwrap();
            assert_eq!(stored.as_ref(), Some(&healed), "{key}");
            assert_eq!(api.get(PATH).unwrap()["data"][BUNDLE], good[BUNDLE]);
            let client = healed.client.unwrap().certificate_pem;
            assert!(Validity::of(&client).unwrap().contains(NOW), "{key}");
        }
        // As where the authorities alone were restored.
        let other = FakeApi::default();
        let of_other = pinned(other.client()).ensure(NOW).await.unwrap();
        let mut changed = good.clone();
        changed[AUTHORITIES] = other.get(PATH).unwrap()["data"][AUTHORITIES].clone();
        store(&api, &changed);
        let healed = pinned(api.client()).ensure(NOW).await.unwrap();
        assert_eq!(healed.set, of_other.set);
        let client = healed.client.unwrap().certificate_pem;
        assert!(healed.set.vouches_for(&client) && !first.set.vouches_for(&client));
        store(&api, &good);
        // Ten years later both have expired.
        let late = NOW + Policy::PINNED.authority_seconds;
        let healed = pinned(api.client()).ensure(late).await.unwrap();
        assert_eq!(healed.set.authorities().len(), 2);
        let client = healed.client.unwrap().certificate_pem;
        assert!(Validity::of(&client).unwrap().contains(late));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_certificate_of_a_clock_that_is_a_month_ahead_is_made_anew_by_who_is_right_and_that_once()
     {
        let api = FakeApi::default();
        let extender = AuthoritySecret {
            policy: Policy::PINNED,
            ..secret(api.client())
        }
        .with_client("scheduler");
        let ahead = NOW + 30 * 24 * 60 * 60;
        extender.ensure(ahead).await.unwrap();
        let healed = extender.ensure(NOW).await.unwrap();
        let client = healed.client.as_ref().unwrap();
        let validity = Validity::of(&client.certificate_pem).unwrap();
        for clock in [NOW, ahead] {
            assert!(validity.contains(clock), "{clock}");
            assert_eq!(extender.ensure(clock).await.unwrap(), healed, "{clock}");
        }
        assert_eq!(api.writes(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_secret_that_was_deleted_is_asked_for_where_it_may_not_be_created() {
        let api = FakeApi::default();
        api.forbid_creation();
        let known = secret(FakeApi::default().client())
            .ensure(NOW)
            .await
            .unwrap();
        for error in [
            secret(api.client()).ensure(NOW).await.unwrap_err(),
            secret(api.client()).keep(&known, NOW).await.unwrap_err(),
        ] {
            let message = error.to_string();
            assert!(message.contains("does not exist"), "{message}");
            let command = "`kubectl create secret generic webhook-ca --namespace muster`";
            assert!(message.contains(command), "{message}");
        }
        // As that command, or the chart, creates it.
        store(&api, &json!(null));
        let kept = secret(api.client()).keep(&known, NOW).await.unwrap();
        assert_eq!(kept, known);
    }
}
