//! The extender as kube-scheduler meets it: HTTPS with a client certificate, on a real socket.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use k8s_openapi::jiff::Timestamp;
use muster_extender::{
    feed::SharedCache,
    metrics::Requests,
    program::{CLIENT_NAME, LIMITS},
    routes::{Extender, router},
    slim::{SlimNode, SlimPod},
};
use muster_serve::{
    Readiness, Shutdown,
    certificates::{AuthoritySet, Policy, Subject},
    server::{ANSWERS_CONDITION, HttpsServer, Limits},
    tls::{self, CertificateAndKey, Clients, ServingCertificate},
};
use rustls::{
    ClientConfig,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// A running extender, and what it takes to talk to it.
struct Running {
    address: SocketAddr,
    authority: AuthoritySet,
    cache: SharedCache,
    readiness: Readiness,
    requests: Requests,
    _shutdown: Shutdown,
}

fn issue(authority: &AuthoritySet, subject: &Subject) -> CertificateAndKey {
    let now = Timestamp::now().as_second();
    authority.authorities()[0].issue(subject, now, 600).unwrap()
}

impl Running {
    async fn start() -> Self {
        // The deadlines would measure the machine that runs the tests.
        Self::start_with(Limits {
            request_limit: Duration::from_secs(10),
            body_limit: Duration::from_secs(10),
            ..LIMITS
        })
        .await
    }

    async fn start_with(limits: Limits) -> Self {
        tls::install_provider();
        let now = Timestamp::now().as_second();
        let authority = AuthoritySet::generate("extender", &Policy::PINNED, now).unwrap();
        let server = issue(&authority, &Subject::Server(vec!["127.0.0.1".into()]));
        let (cache, readiness, requests) = (
            SharedCache::default(),
            Readiness::default(),
            Requests::default(),
        );
        let extender = Extender {
            cache: Arc::clone(&cache),
            readiness: readiness.clone(),
            requests: requests.clone(),
        };
        let shutdown = Shutdown::default();
        let address = HttpsServer {
            name: "extender",
            address: (Ipv4Addr::LOCALHOST, 0).into(),
            router: router(extender),
            certificate: ServingCertificate::new(&server).unwrap(),
            clients: Clients::Verified {
                ca_bundle_pem: authority.bundle_pem(),
                own: Some(issue(&authority, &Subject::Client(CLIENT_NAME.into()))),
            }
            .always(),
            limits,
            answers: readiness.condition(ANSWERS_CONDITION),
        }
        .spawn(&shutdown)
        .await
        .unwrap();
        Self {
            address,
            authority,
            cache,
            readiness,
            requests,
            _shutdown: shutdown,
        }
    }

    fn scheduler(&self) -> CertificateAndKey {
        issue(&self.authority, &Subject::Client(CLIENT_NAME.into()))
    }

    /// Posts as kube-scheduler does, with its certificate.
    async fn post(&self, verb: &str, body: &str) -> (u16, String) {
        self.post_as(Some(&self.scheduler()), verb, body)
            .await
            .expect("the scheduler's certificate is accepted")
    }

    async fn post_as(
        &self,
        client: Option<&CertificateAndKey>,
        verb: &str,
        body: &str,
    ) -> std::io::Result<(u16, String)> {
        Self::ask(&mut self.connect(client).await?, verb, body).await
    }

    async fn connect(
        &self,
        client: Option<&CertificateAndKey>,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let roots = tls::root_store(&self.authority.bundle_pem(), "bundle").unwrap();
        let builder = ClientConfig::builder().with_root_certificates(roots);
        let config = match client {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let chain =
                    vec![CertificateDer::from_pem_slice(pair.certificate_pem.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(pair.key_pem.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        let tcp = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from("127.0.0.1").unwrap();
        TlsConnector::from(Arc::new(config))
            .connect(name, tcp)
            .await
    }

    async fn ask(
        stream: &mut TlsStream<TcpStream>,
        verb: &str,
        body: &str,
    ) -> std::io::Result<(u16, String)> {
        let head = format!(
            "POST /scheduler/{verb} HTTP/1.1\r\nHost: extender\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or(std::io::ErrorKind::InvalidData)?;
        Ok((status, body.to_owned()))
    }

    fn node(&self, name: &str, cordoned: bool) {
        let node: SlimNode = serde_json::from_value(json!({"metadata": {"name": name, "uid": name},
            "spec": {"unschedulable": cordoned}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}))
        .unwrap();
        self.cache.write().unwrap().node_is(&node);
    }

    fn pod(&self, pod: &Value) {
        let pod: SlimPod = serde_json::from_value(pod.clone()).unwrap();
        self.cache.write().unwrap().pod_is(&pod);
    }
}

fn pinned(rank: usize, node: &str) -> Value {
    json!({"metadata": {"namespace": "ml", "name": format!("w-{rank}"), "uid": format!("uid-{rank}"),
        "annotations": {"muster.dev/placement": "pinned", "muster.dev/gang-name": "g",
            "muster.dev/attempt": "1", "muster.dev/rank": rank.to_string()}},
        "spec": {"containers": null, "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]}}}},
        "status": {}})
}

fn filter_request(pod: &Value, nodes: &[&str]) -> String {
    json!({"Pod": pod, "Nodes": null, "NodeNames": nodes}).to_string()
}

#[tokio::test]
async fn a_gang_binds_rank_by_rank_until_a_node_is_cordoned() {
    let extender = Running::start().await;
    for name in ["n0", "n1", "n2"] {
        extender.node(name, false);
    }
    for rank in 0..3 {
        extender.pod(&pinned(rank, &format!("n{rank}")));
    }
    let request =
        |rank: usize| filter_request(&pinned(rank, &format!("n{rank}")), &["n0", "n1", "n2"]);

    let (status, answer) = extender.post("filter", &request(0)).await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((status, &answer["NodeNames"]), (200, &json!(["n0"])));
    assert_eq!(
        answer["FailedNodes"],
        json!({}),
        "nothing is left to preemption"
    );

    extender.node("n1", true);
    let (status, answer) = extender.post("filter", &request(2)).await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(
        (status, &answer["NodeNames"], &answer["Error"]),
        (200, &json!([]), &json!("")),
        "a rejection is a 200 without nodes and without error"
    );
    let texts = answer["FailedAndUnresolvableNodes"].as_object().unwrap();
    assert_eq!(texts.len(), 3);
    assert!(
        texts
            .values()
            .all(|text| text == "PlaceLost: a node that its gang is planned on is cordoned"),
        "{texts:?}"
    );
    assert_eq!(extender.requests.answered("filter", "planned"), 1);
    assert_eq!(extender.requests.answered("filter", "refused"), 1);
}

#[tokio::test]
async fn only_who_shows_a_certificate_of_our_authority_is_heard() {
    let extender = Running::start().await;
    let request = filter_request(&json!({}), &["n0"]);
    let now = Timestamp::now().as_second();
    let stranger = AuthoritySet::generate("stranger", &Policy::PINNED, now).unwrap();
    let stranger = issue(&stranger, &Subject::Client(CLIENT_NAME.into()));
    assert!(extender.post_as(None, "filter", &request).await.is_err());
    assert!(
        extender
            .post_as(Some(&stranger), "filter", &request)
            .await
            .is_err()
    );
    let scheduler = extender.scheduler();
    let heard = extender.post_as(Some(&scheduler), "filter", &request).await;
    assert_eq!(heard.unwrap().0, 200);
}

#[tokio::test]
async fn an_extender_that_has_not_seen_the_cluster_answers_with_an_error_and_not_with_a_verdict() {
    let extender = Running::start().await;
    let pods = extender.readiness.condition("pods");
    let request = filter_request(&json!({}), &["n0"]);
    assert_eq!(extender.post("filter", &request).await.0, 503);
    pods.set(true);
    let (status, answer) = extender.post("filter", &request).await;
    assert_eq!(status, 200);
    assert!(answer.contains("NotAdmitted"), "{answer}");
}

/// kube-scheduler gives up after 1 s, and serves nobody meanwhile.
#[tokio::test]
async fn an_extender_whose_cache_is_stuck_answers_with_an_error_within_300_milliseconds() {
    let extender = Running::start_with(LIMITS).await;
    let request = filter_request(&pinned(0, "n0"), &["n0"]);
    let cache = Arc::clone(&extender.cache);
    let (held, release) = (
        Arc::new(tokio::sync::Notify::new()),
        Arc::new(AtomicBool::new(false)),
    );
    let (is_held, released) = (Arc::clone(&held), Arc::clone(&release));
    let writer = std::thread::spawn(move || {
        let _writing = cache.write().unwrap();
        is_held.notify_one();
        while !released.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    held.notified().await;
    let client = extender.scheduler();
    let mut stream = extender.connect(Some(&client)).await.unwrap();
    let asked = Instant::now();
    let (status, answer) = Running::ask(&mut stream, "filter", &request).await.unwrap();
    let took = asked.elapsed();
    release.store(true, Ordering::SeqCst);
    writer.join().unwrap();
    // 300 ms by the server's clock; the rest is this test's machine.
    assert!(took < Duration::from_millis(900), "{took:?}");
    let is_error = status != 200 || answer.contains("busy: ask again");
    assert!(is_error, "{status} {answer}");
    eventually("it answers again", async || {
        extender.post("filter", &request).await.0 == 200
    })
    .await;
}

async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let waited = tokio::time::timeout(Duration::from_secs(15), async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    waited.await.expect(what);
}

#[tokio::test]
async fn scores_are_equal_and_nothing_is_preempted() {
    let extender = Running::start().await;
    let request = filter_request(&json!({}), &["n0", "n1", "n0"]);
    let (status, answer) = extender.post("prioritize", &request).await;
    assert_eq!(
        (status, answer.as_str()),
        (200, r#"[{"Host":"n0","Score":0},{"Host":"n1","Score":0}]"#)
    );
    let request = json!({"Pod": {}, "NodeNameToVictims": null,
        "NodeNameToMetaVictims": {"n0": {"Pods": [{"UID": "v"}], "NumPDBViolations": 0}}});
    let (status, answer) = extender.post("preempt", &request.to_string()).await;
    assert_eq!(
        (status, answer.as_str()),
        (200, r#"{"NodeNameToMetaVictims":{}}"#)
    );
}

#[tokio::test]
async fn t24_a_request_of_a_very_large_cluster_is_read_and_answered_in_full() {
    let extender = Running::start().await;
    let names: Vec<String> = (0..20_000)
        .map(|number| {
            format!(
                "a-node-with-a-rather-long-name-in-some-region-{number:05}.cluster.example.internal"
            )
        })
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (status, answer) = extender
        .post("filter", &filter_request(&json!({}), &names))
        .await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(status, 200);
    let refused = answer["FailedAndUnresolvableNodes"].as_object().unwrap();
    assert_eq!(refused.len(), 20_000);
    assert!(
        refused.values().all(|text| text == &refused[names[0]]),
        "one text"
    );

    let victims: serde_json::Map<String, Value> = names
        .iter()
        .map(|name| ((*name).to_owned(), json!({"Pods": [{"UID": "9d7e3b1c-0000-4000-8000-000000000000"}], "NumPDBViolations": 0})))
        .collect();
    let request = json!({"Pod": {}, "NodeNameToVictims": null, "NodeNameToMetaVictims": victims});
    assert_eq!(extender.post("preempt", &request.to_string()).await.0, 200);
}

#[tokio::test]
async fn malformed_and_misconfigured_requests_are_told_apart() {
    let extender = Running::start().await;
    for body in ["", "{", "[]", r#"{"NodeNames": 5}"#, &"[".repeat(100_000)] {
        assert_eq!(extender.post("filter", body).await.0, 400);
    }
    let placed = json!({"metadata": {"annotations": {"muster.dev/placement": "any"}}});
    let whole_nodes = json!({"Pod": placed, "Nodes": {"items": []}, "NodeNames": null}).to_string();
    let (status, answer) = extender.post("filter", &whole_nodes).await;
    assert_eq!(status, 200);
    assert!(answer.contains("nodeCacheCapable"), "{answer}");
    assert_eq!(
        extender.post("bind", "{}").await.0,
        404,
        "there is no bind verb"
    );
}
