//! The TLS side of our servers: a certificate that is replaced while the server runs, and, where wanted,
//! clients that must show a certificate of theirs.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::{
    RootCertStore, ServerConfig,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier},
    sign::CertifiedKey,
};
use tokio::sync::watch;

/// Why certificates are of no use.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Not PEM, or not what it should contain.
    #[error("{what} is no PEM that can be read: {source}")]
    Pem {
        /// Which input.
        what: &'static str,
        /// What is wrong with it.
        source: rustls::pki_types::pem::Error,
    },
    /// A PEM without any certificate.
    #[error("{0} contains no certificate")]
    Empty(&'static str),
    /// Key and certificate do not belong together, or are of an unknown kind.
    #[error("the certificate cannot be used: {0}")]
    Rustls(#[from] rustls::Error),
    /// The bundle cannot serve as trust anchors for clients.
    #[error("the client CA bundle cannot be used: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
    /// `main` has not called [`install_provider`].
    #[error("no cryptography provider is installed in this process")]
    NoProvider,
}

/// Installs ring as the cryptography of this process. The first act of every `main`: with none, or two
/// candidates, rustls panics at its first use.
pub fn install_provider() {
    // An error says that one is installed already, which is all that is wanted.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// A certificate chain and its key, both PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct CertificateAndKey {
    /// The chain, leaf first.
    pub certificate_pem: String,
    /// The private key (PKCS #8).
    pub key_pem: String,
}

impl std::fmt::Debug for CertificateAndKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Keys do not belong into logs.
        formatter
            .debug_struct("CertificateAndKey")
            .field("certificate_pem", &self.certificate_pem)
            .finish_non_exhaustive()
    }
}

/// The certificate that a server shows, replaced without touching its listener: connections that stand keep
/// the old one, new handshakes get the new one.
#[derive(Debug)]
pub struct ServingCertificate {
    current: ArcSwap<CertifiedKey>,
}

impl ServingCertificate {
    /// A server's first certificate.
    pub fn new(pair: &CertificateAndKey) -> Result<Arc<Self>, TlsError> {
        Ok(Arc::new(Self {
            current: ArcSwap::from_pointee(certified(pair)?),
        }))
    }

    /// Shows another certificate from now on. On an error the current one stays.
    pub fn replace(&self, pair: &CertificateAndKey) -> Result<(), TlsError> {
        self.current.store(Arc::new(certified(pair)?));
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn leaf(&self) -> CertificateDer<'static> {
        self.current.load().cert[0].clone()
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load_full())
    }
}

/// Who may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clients {
    /// Anyone who reaches the port.
    Anyone,
    /// Only who shows a certificate that this PEM bundle of CAs vouches for. Others fail in the handshake.
    Verified {
        /// PEM bundle.
        ca_bundle_pem: String,
        /// What the server itself shows when it asks itself; without it that question fails.
        own: Option<CertificateAndKey>,
    },
}

impl Clients {
    /// These, as long as the server runs.
    pub fn always(self) -> watch::Receiver<Self> {
        watch::Sender::new(self).subscribe()
    }
}

/// The rustls configuration of a server: TLS 1.2 and 1.3, HTTP/2 and HTTP/1.1.
pub fn server_config(
    certificate: Arc<ServingCertificate>,
    clients: &Clients,
) -> Result<ServerConfig, TlsError> {
    let provider = provider()?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?;
    let builder = match clients {
        Clients::Anyone => builder.with_no_client_auth(),
        Clients::Verified { ca_bundle_pem, .. } => {
            let roots = Arc::new(root_store(ca_bundle_pem, "the client CA bundle")?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build()?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_cert_resolver(certificate);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// The CAs of a PEM bundle as trust anchors. `what` names the bundle in errors.
pub fn root_store(bundle_pem: &str, what: &'static str) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(bundle_pem, what)? {
        roots.add(certificate)?;
    }
    Ok(roots)
}

/// The chain, leaf first, and the key, decoded.
pub(crate) fn decoded(
    pair: &CertificateAndKey,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let chain = certificates(&pair.certificate_pem, "the certificate")?;
    let key =
        PrivateKeyDer::from_pem_slice(pair.key_pem.as_bytes()).map_err(|source| TlsError::Pem {
            what: "the private key",
            source,
        })?;
    Ok((chain, key))
}

fn certified(pair: &CertificateAndKey) -> Result<CertifiedKey, TlsError> {
    let (chain, key) = decoded(pair)?;
    let provider = provider()?;
    // Also checks that key and certificate belong together.
    Ok(CertifiedKey::from_der(chain, key, &provider)?)
}

fn certificates(pem: &str, what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let chain = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|source| TlsError::Pem { what, source })?;
    if chain.is_empty() {
        return Err(TlsError::Empty(what));
    }
    Ok(chain)
}

fn provider() -> Result<Arc<CryptoProvider>, TlsError> {
    CryptoProvider::get_default()
        .cloned()
        .ok_or(TlsError::NoProvider)
}
