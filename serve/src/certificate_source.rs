//! Where a server's certificate comes from, and how it stays fresh.
//!
//! Everything is looked at again every 30 s, by content. File watches are no alternative: a mounted Secret is
//! changed by swapping a symlink, which a watch of the file misses; and neither wakes a process whose machine slept
//! over an expiry.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use crate::{
    authority_secret::{AuthorityError, AuthoritySecret},
    certificates::{Authority, IssueError, Subject},
    readiness::Readiness,
    shutdown::Shutdown,
    tls::{CertificateAndKey, ServingCertificate, TlsError},
};

/// How often the source is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);
/// How often it is looked at until there is a first certificate.
const FIRST_LOOK_INTERVAL: Duration = Duration::from_secs(2);

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
    /// The program was told to stop before there was a certificate.
    #[error("stopped before there was a certificate")]
    Stopped,
}

impl CertificateSource {
    /// Waits for the first certificate and keeps it fresh until the shutdown. Until then the condition
    /// `certificate` does not hold. A renewal that fails keeps the certificate that is there.
    pub async fn spawn(
        self,
        readiness: &Readiness,
        shutdown: &Shutdown,
    ) -> Result<Arc<ServingCertificate>, SourceError> {
        let condition = readiness.condition("certificate");
        let mut state = self.first(shutdown).await?;
        let serving = ServingCertificate::new(&state.pair)?;
        condition.set(true);
        let kept = Arc::clone(&serving);
        // A certificate that nobody renews would end the service weeks later, without a word.
        shutdown.spawn_until_stopped("keeper of the serving certificate", async move {
            loop {
                tokio::time::sleep(LOOK_INTERVAL).await;
                match self.look(Some(&state)).await {
                    Ok(None) => {}
                    Ok(Some(renewed)) => match kept.replace(&renewed.pair) {
                        Ok(()) => {
                            tracing::info!("the serving certificate was renewed");
                            state = renewed;
                        }
                        Err(error) => tracing::warn!(%error, "the new certificate cannot be used"),
                    },
                    Err(error) => tracing::warn!(%error, "the certificate cannot be renewed now"),
                }
            }
        });
        Ok(serving)
    }

    async fn first(&self, shutdown: &Shutdown) -> Result<Loaded, SourceError> {
        loop {
            match self.look(None).await {
                Ok(Some(loaded)) => return Ok(loaded),
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "there is no certificate yet"),
            }
            let pause = tokio::time::sleep(FIRST_LOOK_INTERVAL);
            if shutdown.token().run_until_cancelled(pause).await.is_none() {
                return Err(SourceError::Stopped);
            }
        }
    }

    /// The certificate, if it is another than the loaded one should be.
    async fn look(&self, loaded: Option<&Loaded>) -> Result<Option<Loaded>, SourceError> {
        match self {
            Self::Issued { secret, names } => {
                let now = jiff::Timestamp::now().as_second();
                let authorities = secret.ensure(now).await?;
                let issuer = authorities.set.issuer(&secret.policy, now);
                let fresh = loaded.is_some_and(|loaded| {
                    loaded.issuer.as_ref() == Some(issuer)
                        && now < loaded.renew_at
                        && now >= loaded.issued_at
                });
                if fresh {
                    return Ok(None);
                }
                let leaf_seconds = secret.policy.leaf_seconds;
                let pair = issuer.issue(&Subject::Server(names.clone()), now, leaf_seconds)?;
                Ok(Some(Loaded {
                    pair,
                    issuer: Some(issuer.clone()),
                    issued_at: now,
                    renew_at: now.saturating_add(leaf_seconds / 3 * 2),
                }))
            }
            Self::Files { certificate, key } => {
                let pair = CertificateAndKey {
                    certificate_pem: read(certificate).await?,
                    key_pem: read(key).await?,
                };
                let unchanged = loaded.is_some_and(|loaded| loaded.pair == pair);
                Ok((!unchanged).then_some(Loaded {
                    pair,
                    issuer: None,
                    issued_at: 0,
                    renew_at: i64::MAX,
                }))
            }
        }
    }
}

struct Loaded {
    pair: CertificateAndKey,
    issuer: Option<Authority>,
    /// A clock that was set back below this asks for a new one.
    issued_at: i64,
    renew_at: i64,
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
        certificates::{AuthoritySet, Policy},
        fake_api::{FakeApi, Passage},
        tls,
    };

    fn der(pair: &CertificateAndKey) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(pair.certificate_pem.as_bytes()).unwrap()
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
        std::fs::write(&certificate, &first.certificate_pem).unwrap();
        std::fs::write(&key, &first.key_pem).unwrap();

        let (readiness, shutdown) = (Readiness::default(), Shutdown::default());
        let source = CertificateSource::Files {
            certificate: certificate.clone(),
            key: key.clone(),
        };
        let serving = source.spawn(&readiness, &shutdown).await.unwrap();
        assert_eq!(serving.leaf(), der(&first));
        std::fs::write(&certificate, &second.certificate_pem).unwrap();
        tokio::time::sleep(LOOK_INTERVAL * 2).await;
        assert_eq!(serving.leaf(), der(&first), "the key is still the old one");
        std::fs::write(&key, &second.key_pem).unwrap();
        until(|| serving.leaf() == der(&second)).await;
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
        let reference = SecretReference {
            namespace: "muster".to_owned(),
            name: "ca".to_owned(),
        };
        let source = CertificateSource::Issued {
            secret: AuthoritySecret::new(client, reference, Policy::ROTATED),
            names: vec!["localhost".to_owned()],
        };
        let (readiness, shutdown) = (Readiness::default(), Shutdown::default());
        let (seen, stop) = (readiness.clone(), shutdown.clone());
        let serving = tokio::spawn(async move { source.spawn(&seen, &stop).await });
        tokio::time::sleep(FIRST_LOOK_INTERVAL).await;
        assert_eq!(readiness.missing(), ["certificate"]);
        serving.await.unwrap().unwrap();
        assert!(readiness.is_ready());
    }
}
