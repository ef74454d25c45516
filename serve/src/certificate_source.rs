//! Where a server's certificate comes from, and how it stays fresh.
//!
//! Everything is looked at again every 2 s, by content. File watches are no alternative: a mounted Secret is
//! changed by swapping a symlink, which a watch of the file misses; and neither wakes a process whose machine slept
//! over an expiry. The leader compares the webhooks' CA bundle every 4 s: a server that looked less often than that would go on
//! with a certificate that nobody trusts any more, and GPU pods would be refused so long.
//!
//! Nothing that is found there takes a certificate away that a server has: what cannot be used is told, in the log and,
//! as time goes by, by the metric of the certificate's end. A server that has none yet waits, is not ready, and says why.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use prometheus_client::metrics::gauge::Gauge;
use tokio::{sync::watch, time::Instant};

use crate::{
    authority_secret::{Authorities, AuthorityError, AuthoritySecret},
    certificates::{Authority, IssueError, Policy, Subject, Validity},
    metrics::Metrics,
    readiness::Readiness,
    shutdown::Shutdown,
    tls::{CertificateAndKey, Clients, ServingCertificate, TlsError},
};

/// How often the source is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// How often the same trouble is told.
const TELL_INTERVAL: Duration = Duration::from_secs(30);
/// For how long before the end of an authority that clients have read once it is told with each certificate that it issues.
const TOLD_BEFORE_SECONDS: i64 = 180 * 24 * 60 * 60;

/// Where a server's certificate comes from.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one of it in a process")]
pub enum CertificateSource {
    /// Issued by authorities of our own; the key never leaves the process.
    Issued {
        /// The Secret of the authorities.
        secret: AuthoritySecret,
        /// DNS names and IP addresses that clients use.
        names: Vec<String>,
    },
    /// Files that somebody else renews (cert-manager, a mounted Secret).
    Files {
        /// PEM chain, leaf first.
        certificate: PathBuf,
        /// PEM key.
        key: PathBuf,
    },
}

/// Why there is no (new) certificate.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The Secret of the authorities.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The certificate could not be issued.
    #[error(transparent)]
    Issue(#[from] IssueError),
    /// A file cannot be read.
    #[error("{file}: {source}")]
    File {
        /// Which file.
        file: String,
        /// Why.
        source: std::io::Error,
    },
    /// What is there is of no use.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// A server's certificate, and what it came with.
#[derive(Debug)]
pub struct Kept {
    /// The certificate, kept fresh until the shutdown.
    pub serving: Arc<ServingCertificate>,
    /// Clients that show a certificate of the authorities, as they are stored at the time; if they are our own.
    pub clients: Option<watch::Receiver<Clients>>,
}

impl CertificateSource {
    /// Waits for the first certificate and keeps it fresh until the shutdown. Until then the condition
    /// `certificate` does not hold. A renewal that fails keeps the certificate that is there. `None`: the program was told to
    /// stop before there was a certificate.
    pub async fn spawn(
        self,
        readiness: &Readiness,
        metrics: &Metrics,
        shutdown: &Shutdown,
    ) -> Option<Kept> {
        let condition = readiness.condition("certificate");
        let end = CertificateEnd::register(metrics);
        let first = shutdown.token().run_until_cancelled(self.first()).await;
        let (serving, mut state) = first?;
        end.show(&state.pair);
        condition.set(true);
        let kept = Arc::clone(&serving);
        let vouched_for = state.clients().map(watch::Sender::new);
        let clients = vouched_for.as_ref().map(watch::Sender::subscribe);
        // A certificate that nobody renews would end the service weeks later, without a word.
        shutdown.spawn_until_stopped("keeper of the serving certificate", async move {
            let mut trouble = Trouble::default();
            loop {
                tokio::time::sleep(LOOK_INTERVAL).await;
                let looked = self.look(Some(&mut state)).await;
                trouble.tell(looked.as_ref().err());
                match looked {
                    Ok(None) | Err(_) => {}
                    Ok(Some(renewed)) => match kept.replace(&renewed.pair) {
                        Ok(()) => {
                            tracing::info!("the serving certificate was renewed");
                            end.show(&renewed.pair);
                            state = renewed;
                        }
                        Err(error) => tracing::warn!(%error, "the new certificate cannot be used"),
                    },
                }
                if let (Some(told), Some(current)) = (&vouched_for, state.clients()) {
                    told.send_if_modified(|known| {
                        let changed = *known != current;
                        *known = current;
                        changed
                    });
                }
            }
        });
        Some(Kept { serving, clients })
    }

    /// Waits for something that can be served with: files may be halves of two certificates for a moment.
    async fn first(&self) -> (Arc<ServingCertificate>, Loaded) {
        loop {
            match self.look(None).await {
                Ok(Some(loaded)) => match ServingCertificate::new(&loaded.pair) {
                    Ok(serving) => return (serving, loaded),
                    Err(error) => tracing::warn!(%error, "there is no certificate yet"),
                },
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "there is no certificate yet"),
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// The certificate, if it is another than the loaded one should be.
    async fn look(&self, loaded: Option<&mut Loaded>) -> Result<Option<Loaded>, SourceError> {
        match self {
            Self::Issued { secret, names } => {
                let now = jiff::Timestamp::now().as_second();
                let issued = loaded.and_then(|loaded| loaded.issued.as_mut());
                let authorities = match &issued {
                    Some(issued) => secret.keep(&issued.authorities, now).await?,
                    None => secret.ensure(now).await?,
                };
                let issuer = authorities.set.issuer(&secret.policy, now).clone();
                if let Some(issued) = issued
                    && issued.issuer == issuer
                    && (issued.at..issued.renew_at).contains(&now)
                {
                    // What is put back if the Secret is emptied is what was in it last.
                    issued.authorities = authorities;
                    return Ok(None);
                }
                let leaf_seconds = secret.policy.leaf_seconds;
                let pair = issuer.issue(&Subject::Server(names.clone()), now, leaf_seconds)?;
                tell_end(secret, &issuer, now);
                let issued = Issued {
                    authorities,
                    issuer,
                    at: now,
                    renew_at: now.saturating_add(leaf_seconds / 3 * 2),
                };
                Ok(Some(Loaded {
                    pair,
                    issued: Some(issued),
                }))
            }
            Self::Files { certificate, key } => {
                let pair = CertificateAndKey {
                    certificate_pem: read(certificate).await?,
                    key_pem: read(key).await?,
                };
                let unchanged = loaded.is_some_and(|loaded| loaded.pair == pair);
                Ok((!unchanged).then_some(Loaded { pair, issued: None }))
            }
        }
    }
}

/// Why there was no renewal at the last look, and when that was told.
#[derive(Default)]
struct Trouble {
    told: Option<(String, Instant)>,
}

impl Trouble {
    /// Tells what is new at once, and what lasts now and then.
    fn tell(&mut self, error: Option<&SourceError>) {
        let Some(error) = error.map(ToString::to_string) else {
            self.told = None;
            return;
        };
        let is_told = self
            .told
            .as_ref()
            .is_some_and(|(told, at)| *told == error && at.elapsed() < TELL_INTERVAL);
        if !is_told {
            tracing::warn!(%error, "the certificate cannot be renewed now");
            self.told = Some((error, Instant::now()));
        }
    }
}

/// Whoever has read an authority once has to be given another one before it ends.
fn tell_end(secret: &AuthoritySecret, issuer: &Authority, now: i64) {
    let Policy {
        overlap_seconds: None,
        ..
    } = secret.policy
    else {
        return;
    };
    let remaining_seconds = issuer.remaining_seconds(&secret.policy, now);
    if remaining_seconds < TOLD_BEFORE_SECONDS {
        tracing::warn!(
            secret = %secret.reference,
            days = remaining_seconds / (24 * 60 * 60),
            "the authority expires: start over with a new one, and give it to its clients"
        );
    }
}

/// A certificate that is served, and where it came from.
struct Loaded {
    pair: CertificateAndKey,
    /// If it was issued here.
    issued: Option<Issued>,
}

struct Issued {
    authorities: Authorities,
    issuer: Authority,
    /// A clock that was set back below this asks for a new certificate.
    at: i64,
    renew_at: i64,
}

impl Loaded {
    fn clients(&self) -> Option<Clients> {
        let authorities = &self.issued.as_ref()?.authorities;
        Some(Clients::Verified {
            ca_bundle_pem: authorities.set.bundle_pem(),
            own: authorities.client.clone(),
        })
    }
}

/// When the certificate that is served begins and ends to be valid.
struct CertificateEnd {
    not_before: Gauge,
    not_after: Gauge,
}

impl CertificateEnd {
    fn register(metrics: &Metrics) -> Self {
        let end = Self {
            not_before: Gauge::default(),
            not_after: Gauge::default(),
        };
        metrics.register(|registry| {
            registry.register(
                "serving_certificate_not_before_timestamp_seconds",
                "When the certificate that the server shows began to be valid, in seconds since the Unix epoch",
                end.not_before.clone(),
            );
            registry.register(
                "serving_certificate_not_after_timestamp_seconds",
                "When it ends to be valid",
                end.not_after.clone(),
            );
        });
        end
    }

    fn show(&self, pair: &CertificateAndKey) {
        let Some(validity) = Validity::of(&pair.certificate_pem) else {
            return;
        };
        self.not_before.set(validity.not_before);
        self.not_after.set(validity.not_after);
        if !validity.contains(jiff::Timestamp::now().as_second()) {
            tracing::warn!(
                not_before = validity.not_before,
                not_after = validity.not_after,
                "the certificate is not valid now, so clients refuse it"
            );
        }
    }
}

async fn read(path: &Path) -> Result<String, SourceError> {
    tokio::fs::read_to_string(path)
        .await
        .map_err(|source| SourceError::File {
            file: path.display().to_string(),
            source,
        })
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::{CertificateDer, pem::PemObject};

    use super::*;
    use crate::{
        authority_secret::SecretReference,
        certificates::AuthoritySet,
        fake_api::{FakeApi, Passage},
        tls,
    };

    fn der(pair: &CertificateAndKey) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(pair.certificate_pem.as_bytes()).unwrap()
    }

    fn issued(client: kube::Client) -> CertificateSource {
        let reference = SecretReference {
            namespace: "muster".to_owned(),
            name: "ca".to_owned(),
        };
        CertificateSource::Issued {
            secret: AuthoritySecret::new(client, reference, Policy::ROTATED),
            names: vec!["localhost".to_owned()],
        }
    }

    async fn until(condition: impl Fn() -> bool) {
        let wait = async {
            while !condition() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        let limit = Duration::from_mins(2);
        tokio::time::timeout(limit, wait)
            .await
            .expect("in two minutes");
    }

    #[tokio::test(start_paused = true)]
    async fn files_that_are_exchanged_are_noticed_and_halves_are_not_used() {
        tls::install_provider();
        let directory = tempfile::tempdir().unwrap();
        let (certificate, key) = (
            directory.path().join("tls.crt"),
            directory.path().join("tls.key"),
        );
        let set = AuthoritySet::generate("test", &Policy::PINNED, 1_800_000_000).unwrap();
        let subject = Subject::Server(vec!["localhost".to_owned()]);
        let issue = || {
            set.authorities()[0]
                .issue(&subject, 1_800_000_000, 600)
                .unwrap()
        };
        let (first, second) = (issue(), issue());
        // Halves of two, until a moment after the start.
        std::fs::write(&certificate, &first.certificate_pem).unwrap();
        std::fs::write(&key, &second.key_pem).unwrap();
        let (late_key, late_pem) = (key.clone(), first.key_pem.clone());
        tokio::spawn(async move {
            tokio::time::sleep(LOOK_INTERVAL * 2).await;
            std::fs::write(&late_key, &late_pem).unwrap();
        });

        let (readiness, shutdown) = (Readiness::default(), Shutdown::default());
        let source = CertificateSource::Files {
            certificate: certificate.clone(),
            key: key.clone(),
        };
        let metrics = Metrics::new("test", "0");
        let serving = source.spawn(&readiness, &metrics, &shutdown);
        let serving = serving.await.unwrap().serving;
        let end = 1_800_000_000 + 600;
        let shown = format!("muster_serving_certificate_not_after_timestamp_seconds {end}\n");
        assert!(metrics.encode().unwrap().contains(&shown));
        assert_eq!(serving.leaf(), der(&first));
        std::fs::write(&certificate, &second.certificate_pem).unwrap();
        tokio::time::sleep(LOOK_INTERVAL * 2).await;
        assert_eq!(serving.leaf(), der(&first), "the key is still the old one");
        std::fs::write(&key, &second.key_pem).unwrap();
        until(|| serving.leaf() == der(&second)).await;
        // A Secret that is emptied or filled with garbage takes nothing away.
        for (file, content) in [(&key, "garbage"), (&certificate, "")] {
            std::fs::write(file, content).unwrap();
            tokio::time::sleep(LOOK_INTERVAL * 2).await;
            std::fs::remove_file(file).unwrap();
            tokio::time::sleep(LOOK_INTERVAL * 2).await;
            assert_eq!(serving.leaf(), der(&second), "{content}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_waits_for_its_first_certificate_and_is_not_ready_meanwhile() {
        tls::install_provider();
        let api = FakeApi::default();
        let mut failures = 3;
        let client = api.client_over(move || {
            failures -= 1;
            if failures >= 0 {
                Passage::Refused
            } else {
                Passage::Through(Duration::ZERO)
            }
        });
        let source = issued(client);
        let (readiness, shutdown) = (Readiness::default(), Shutdown::default());
        let (seen, stop) = (readiness.clone(), shutdown.clone());
        let metrics = Metrics::new("test", "0");
        let serving = tokio::spawn(async move { source.spawn(&seen, &metrics, &stop).await });
        tokio::time::sleep(LOOK_INTERVAL).await;
        assert_eq!(readiness.missing(), ["certificate"]);
        serving.await.unwrap().unwrap();
        assert!(readiness.is_ready());
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_that_is_told_to_stop_does_not_wait_for_a_certificate() {
        let links: [fn() -> Passage; 2] = [|| Passage::Lost, || Passage::Refused];
        for link in links {
            let (readiness, shutdown) = (Readiness::default(), Shutdown::default());
            let source = issued(FakeApi::default().client_over(link));
            let stop = shutdown.clone();
            tokio::spawn(async move {
                tokio::time::sleep(LOOK_INTERVAL * 2).await;
                stop.request();
            });
            let begun = tokio::time::Instant::now();
            let metrics = Metrics::new("test", "0");
            let kept = source.spawn(&readiness, &metrics, &shutdown).await;
            assert!(kept.is_none());
            assert_eq!(begun.elapsed(), LOOK_INTERVAL * 2);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_secret_that_is_emptied_while_a_server_runs_is_filled_with_what_was_in_it() {
        const PATH: &str = "/api/v1/namespaces/muster/secrets/ca";
        tls::install_provider();
        let api = FakeApi::default();
        let (readiness, shutdown) = (Readiness::default(), Shutdown::default());
        let source = issued(api.client());
        let metrics = Metrics::new("test", "0");
        let kept = source.spawn(&readiness, &metrics, &shutdown).await.unwrap();
        let (before, leaf) = (api.get(PATH).unwrap(), kept.serving.leaf());
        let mut emptied = before.clone();
        emptied["data"] = serde_json::Value::Null;
        api.put(PATH, emptied);
        until(|| api.get(PATH).unwrap()["data"] == before["data"]).await;
        tokio::time::sleep(LOOK_INTERVAL * 2).await;
        assert_eq!(kept.serving.leaf(), leaf, "there was no reason for another");
    }

    #[tokio::test(start_paused = true)]
    async fn whom_the_authorities_vouch_for_is_told_anew_when_they_are_others() {
        const PATH: &str = "/api/v1/namespaces/muster/secrets/ca";
        tls::install_provider();
        let api = FakeApi::default();
        let (readiness, shutdown) = (Readiness::default(), Shutdown::default());
        let metrics = Metrics::new("test", "0");
        let kept = issued(api.client()).spawn(&readiness, &metrics, &shutdown);
        let mut clients = kept.await.unwrap().clients.unwrap();
        let before = clients.borrow_and_update().clone();
        tokio::time::sleep(LOOK_INTERVAL * 3).await;
        assert!(!clients.has_changed().unwrap(), "nothing has changed");

        // As from a backup.
        let other = FakeApi::default();
        let CertificateSource::Issued { secret, .. } = issued(other.client()) else {
            panic!("it is issued");
        };
        let now = jiff::Timestamp::now().as_second();
        let restored = secret.ensure(now).await.unwrap();
        api.put(PATH, other.get(PATH).unwrap());
        let told = tokio::time::timeout(LOOK_INTERVAL * 3, clients.changed()).await;
        told.expect("it is told").unwrap();
        let after = clients.borrow_and_update().clone();
        assert_ne!(after, before);
        let expected = Clients::Verified {
            ca_bundle_pem: restored.set.bundle_pem(),
            own: None,
        };
        assert_eq!(after, expected);
    }
}
