//! A mutating webhook of another vendor: it answers every review with the same patch.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::{Context, Result};
use k8s_openapi::{ByteString, api::admissionregistration::v1::MutatingWebhookConfiguration};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

use crate::pki::Pki;

/// A server that runs until it is dropped.
#[derive(Debug)]
pub struct VendorWebhook {
    url: String,
    authority: ByteString,
    reviews: Arc<AtomicUsize>,
    _serves: AbortOnDropHandle<()>,
}

impl VendorWebhook {
    /// Starts one that gives this JSON patch to every object. `name` is that of its certificate's files.
    pub async fn start(pki: &Pki, name: &str, patch: &Value) -> Result<Self> {
        let identity = pki.server(name, &[Ipv4Addr::LOCALHOST.to_string()])?;
        let certificate = CertificateDer::from_pem_file(&identity.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&identity.key)?;
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let url = format!("https://{}/", listener.local_addr()?);
        let patch = Arc::new(ByteString(serde_json::to_vec(patch)?));
        let reviews = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&reviews);
        let serves = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, patch) = (acceptor.clone(), Arc::clone(&patch));
                let counted = Arc::clone(&counted);
                connections.spawn(async move {
                    if let Err(error) = answer(&acceptor, stream, &patch, &counted).await {
                        tracing::warn!(%error, "a review of the other webhook failed");
                    }
                });
            }
        });
        Ok(Self {
            url,
            authority: ByteString(std::fs::read(&pki.cluster.certificate)?),
            reviews,
            _serves: AbortOnDropHandle::new(serves),
        })
    }

    /// How many reviews it has been asked for.
    pub fn reviews(&self) -> usize {
        self.reviews.load(Ordering::Relaxed)
    }

    /// A configuration of this name that has the API server ask it once about each pod that is created in a namespace.
    pub fn configuration(
        &self,
        name: &str,
        namespace: &str,
    ) -> Result<MutatingWebhookConfiguration> {
        let configuration = json!({
            "metadata": {"name": name},
            "webhooks": [{
                "name": "pods.vendor.example",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "reinvocationPolicy": "Never",
                "clientConfig": {"url": self.url, "caBundle": self.authority},
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "rules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"],
                }],
            }],
        });
        Ok(serde_json::from_value(configuration)?)
    }
}

/// Answers the one request of a connection.
async fn answer(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
    patch: &ByteString,
    reviews: &AtomicUsize,
) -> Result<()> {
    let mut stream = BufReader::new(acceptor.accept(stream).await?);
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let Some((name, value)) = line.split_once(':') else {
            // The line of the request has no colon, and the last one nothing at all.
            if line.trim_end().is_empty() {
                break;
            }
            continue;
        };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse()?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    let review: Value = serde_json::from_slice(&body).context("a review")?;
    let answer = json!({
        "apiVersion": review["apiVersion"],
        "kind": review["kind"],
        "response": {
            "uid": review["request"]["uid"],
            "allowed": true,
            "patchType": "JSONPatch",
            "patch": patch,
        },
    })
    .to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        answer.len()
    );
    // Before whoever asked has the answer.
    reviews.fetch_add(1, Ordering::Relaxed);
    let stream = stream.get_mut();
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    Ok(())
}
