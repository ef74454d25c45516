//! A webhook behind its real server, the whole program, and what kube-apiserver asks both.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "each test program uses what it needs and fails by panicking"
)]

#[path = "../../../serve/tests/real_program/mod.rs"]
pub(crate) mod real_program;

use std::{net::Ipv4Addr, ops::Deref, sync::Arc};

use k8s_openapi::jiff::Timestamp;
use muster_cluster::managed::ManagedPods;
use muster_serve::{
    Readiness, Shutdown,
    certificates::{AuthoritySet, Policy, Subject},
    server::{ANSWERS_CONDITION, HttpsServer, Limits},
    tls::{self, Clients, ServingCertificate},
};
use muster_webhook::{
    feed::SharedCache,
    metrics::Reviews,
    pod::PodRules,
    routes::{Webhook, router},
};
pub(crate) use real_program::client::{Client, JSON};
use serde_json::{Value, json};

/// The whole program.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_muster-webhook");

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
            void_devices: true,
            excepted_namespaces: [].into(),
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
            clients: Clients::Anyone.always(),
            limits: Limits::OBJECTS,
            answers: readiness.condition(ANSWERS_CONDITION),
        }
        .spawn(&shutdown)
        .await
        .unwrap();
        Self {
            client: Client {
                address,
                bundle_pem: authority.bundle_pem(),
                identity: None,
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
