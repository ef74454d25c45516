//! A webhook behind its real server, the whole program, and a client of both.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "each test program uses what it needs and fails by panicking"
)]

pub(crate) mod program;

use std::{
    net::{Ipv4Addr, SocketAddr},
    ops::Deref,
    sync::Arc,
};

use k8s_openapi::jiff::Timestamp;
use muster_cluster::managed::ManagedPods;
use muster_serve::{
    Readiness, Shutdown,
    certificates::{AuthoritySet, Policy, Subject},
    server::{ANSWERS_CONDITION, HttpsServer, Limits, SelfCheck},
    tls::{self, Clients, ServingCertificate},
};
use muster_webhook::{
    feed::SharedCache,
    metrics::Reviews,
    pod::PodRules,
    routes::{Webhook, router},
};
use rustls::{ClientConfig, pki_types::ServerName};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// The media type of reviews.
pub(crate) const JSON: &str = "application/json";

/// What it takes to talk to a webhook.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    bundle_pem: String,
}

/// The webhook within this process, so that a test can change what it knows.
pub(crate) struct Running {
    client: Client,
    pub(crate) facts: SharedCache,
    pub(crate) readiness: Readiness,
    _shutdown: Shutdown,
}

impl Running {
    /// Starts it on a free port of loopback.
    pub(crate) async fn start() -> Self {
        tls::install_provider();
        let now = Timestamp::now().as_second();
        let authority = AuthoritySet::generate("webhook", &Policy::ROTATED, now).unwrap();
        let subject = Subject::Server(vec!["127.0.0.1".into()]);
        let server = authority.authorities()[0]
            .issue(&subject, now, 600)
            .unwrap();
        let (facts, readiness, shutdown) = (
            SharedCache::default(),
            Readiness::default(),
            Shutdown::default(),
        );
        let rules = PodRules {
            managed: ManagedPods::new(["nvidia.com/gpu"]).unwrap(),
            extender: true,
            scheduler_name: None,
        };
        let webhook = Webhook {
            facts: Arc::clone(&facts),
            readiness: readiness.clone(),
            rules: Arc::new(rules),
            reviews: Reviews::default(),
        };
        let address = HttpsServer {
            name: "webhook",
            address: (Ipv4Addr::LOCALHOST, 0).into(),
            router: router(webhook),
            certificate: ServingCertificate::new(&server).unwrap(),
            clients: Clients::Anyone,
            limits: Limits::OBJECTS,
            self_check: SelfCheck {
                answers: readiness.condition(ANSWERS_CONDITION),
                identity: None,
            },
        }
        .spawn(&shutdown)
        .await
        .unwrap();
        Self {
            client: Client {
                address,
                bundle_pem: authority.bundle_pem(),
            },
            facts,
            readiness,
            _shutdown: shutdown,
        }
    }
}

impl Deref for Running {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Client {
    /// A TCP connection from this loopback address. It has little room for answers: those that nobody reads are soon the
    /// server's to keep.
    pub(crate) async fn dial(&self, source: [u8; 4]) -> std::io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(16 * 1024)?;
        socket.bind((Ipv4Addr::from(source), 0).into())?;
        socket.connect(self.address).await
    }

    /// A TLS connection from this loopback address, over which HTTP/1 is spoken.
    pub(crate) async fn connect(&self, source: [u8; 4]) -> std::io::Result<TlsStream<TcpStream>> {
        self.connect_speaking(source, &[]).await
    }

    /// A TLS connection over which one of these protocols is spoken.
    pub(crate) async fn connect_speaking(
        &self,
        source: [u8; 4],
        protocols: &[&[u8]],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let roots = tls::root_store(&self.bundle_pem, "bundle").unwrap();
        let mut config = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let tcp = self.dial(source).await?;
        TlsConnector::from(Arc::new(config))
            .connect(name, tcp)
            .await
    }

    /// Sends a request and reads until the server closes: status and body.
    pub(crate) async fn send(&self, request: &[u8]) -> (u16, String) {
        let mut stream = self.connect([127, 0, 0, 1]).await.unwrap();
        // A server that refuses a large body answers, and closes, before it has read all of it.
        let _ = stream.write_all(request).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        (status.expect("an HTTP status"), body.to_owned())
    }

    /// Posts a body, and asks for the end of the connection.
    pub(crate) async fn post(&self, path: &str, content_type: &str, body: &str) -> (u16, String) {
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: webhook\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        self.send(request.as_bytes()).await
    }

    /// Sends a review; the response of the answer.
    pub(crate) async fn review(&self, path: &str, review: &Value) -> Value {
        let (status, body) = self.post(path, JSON, &review.to_string()).await;
        assert_eq!(status, 200, "{body}");
        let answer: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(answer["apiVersion"], "admission.k8s.io/v1");
        assert_eq!(answer["kind"], "AdmissionReview");
        assert_eq!(
            answer["response"]["uid"], review["request"]["uid"],
            "the uid is echoed"
        );
        answer["response"].clone()
    }
}

pub(crate) fn review(kind: &str, object: &Value) -> Value {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": kind},
        "resource": {"group": "", "version": "v1", "resource": "x"},
        "name": "", "namespace": "ml", "operation": "CREATE", "userInfo": {"username": "user"},
        "object": object, "oldObject": null, "dryRun": false, "options": null}})
}

pub(crate) fn claiming_pod(annotations: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "annotations": annotations},
        "spec": {"containers": [{"name": "c", "resources": {}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]}})
}
