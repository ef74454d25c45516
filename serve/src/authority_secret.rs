//! Authorities in a Secret, shared by all replicas that issue from them.
//!
//! Who starts first makes them. Two that start at once both try; creation (or the replacement of an empty Secret
//! that the installer made) carries a precondition, so one wins and the other reads what the winner wrote. The
//! same holds for every step of a rotation. A write whose answer is lost is settled by reading again.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};

use crate::{
    certificates::{Authority, AuthoritySet, IssueError, Policy, Subject},
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
    /// The Secret holds something else.
    #[error("{reference}, key {key}: {details}; delete the Secret to have it created again")]
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
        for _ in 0..ATTEMPTS {
            let stored = self.read().await?;
            let written = match stored {
                None => {
                    let fresh = self.fresh(now)?;
                    self.create(&fresh).await?
                }
                Some(secret) => match self.changed(&secret, now)? {
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

    fn fresh(&self, now: i64) -> Result<Authorities, AuthorityError> {
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

    fn changed(&self, secret: &Secret, now: i64) -> Result<Changed, AuthorityError> {
        let Some(mut authorities) = self.parse(secret)? else {
            return Ok(Changed::To(self.fresh(now)?));
        };
        let mut changed = false;
        if let Some(advanced) = authorities
            .set
            .advanced(&self.reference.name, &self.policy, now)?
        {
            authorities.set = advanced;
            changed = true;
        }
        if authorities.client.is_none() && self.client_name.is_some() {
            authorities.client = self.issue_client(&authorities.set, now)?;
            changed = true;
        }
        Ok(if changed {
            Changed::To(authorities)
        } else {
            Changed::No(authorities)
        })
    }

    fn parse(&self, secret: &Secret) -> Result<Option<Authorities>, AuthorityError> {
        let invalid = |key, details: String| AuthorityError::Content {
            reference: self.reference.clone(),
            key,
            details,
        };
        let data = secret.data.as_ref();
        let value = |key: &'static str| data.and_then(|data| data.get(key)).map(|value| &value.0);
        let Some(stored) = value(AUTHORITIES) else {
            return Ok(None);
        };
        let authorities: Vec<Authority> = serde_json::from_slice(stored)
            .map_err(|error| invalid(AUTHORITIES, error.to_string()))?;
        let set = AuthoritySet::from_stored(authorities)
            .ok_or_else(|| invalid(AUTHORITIES, "no authority".to_owned()))?;
        let text = |key: &'static str| {
            value(key)
                .map(|bytes| String::from_utf8(bytes.clone()))
                .transpose()
                .map_err(|error| invalid(key, error.to_string()))
        };
        let client = match (text(CLIENT_CERTIFICATE)?, text(CLIENT_KEY)?) {
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
        self.written(within(CALL_LIMIT, call).await)
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
        // base64 of "not JSON" and of "[]".
        for content in ["bm90IEpTT04=", "W10="] {
            store(&api, &json!({AUTHORITIES: content}));
            let error = secret(api.client()).ensure(NOW).await.unwrap_err();
            let message = error.to_string();
            assert!(
                message.contains("Secret muster/webhook-ca, key authorities.json"),
                "{message}"
            );
            assert_eq!(api.get(PATH).unwrap()["data"][AUTHORITIES], content);
        }
    }
}
