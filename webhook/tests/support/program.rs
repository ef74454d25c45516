//! The real program, in front of an API server on which nothing ever happens.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddr},
    ops::Deref,
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Json, Router,
    extract::{Request, State},
    http::{Method, StatusCode},
    response::{IntoResponse, Response},
};
use k8s_openapi::ByteString;
use muster_serve::{authority_secret, tls};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    process::{Child, Command},
};

use super::Client;

/// Longest time until the program serves.
const START_LIMIT: Duration = Duration::from_secs(30);

/// A running `muster-webhook`. It ends with this.
pub(crate) struct Program {
    client: Client,
    /// Where probes and metrics are answered.
    pub(crate) admin: SocketAddr,
    child: Child,
}

impl Deref for Program {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Program {
    /// Starts it on free ports of loopback, and waits until it is ready.
    pub(crate) async fn start() -> Self {
        tls::install_provider();
        let objects = Objects::default();
        let api_server = serve_objects(objects.clone()).await;
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = directory.path().join("kubeconfig");
        std::fs::write(&kubeconfig, kubeconfig_of(api_server)).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_muster-webhook"))
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .args(["--admin-addr=127.0.0.1:0", "--listen-addr=127.0.0.1:0"])
            .args(["--tls-names=127.0.0.1", "--log-format=json"])
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let started = tokio::time::timeout(START_LIMIT, async {
            let (mut admin, mut served) = (None, None);
            loop {
                let line = log.next_line().await.unwrap();
                let line = line.expect("the program goes on");
                let entry: Value = serde_json::from_str(&line).unwrap();
                let address = |name: &str| entry[name].as_str()?.parse::<SocketAddr>().ok();
                admin = admin.or_else(|| address("admin"));
                served = served.or_else(|| address("address"));
                if let (Some(admin), Some(served)) = (admin, served) {
                    return (admin, served);
                }
            }
        });
        let (admin, address) = started.await.expect("the program serves");
        // A pipe that nobody reads would stop it.
        tokio::spawn(async move { while let Ok(Some(_)) = log.next_line().await {} });
        let program = Self {
            client: Client {
                address,
                bundle_pem: objects.bundle_pem(),
            },
            admin,
            child,
        };
        let ready = async {
            while program.probe("/readyz").await.0 != 200 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(START_LIMIT, ready).await.unwrap();
        program
    }

    /// What it takes to talk to it from another task.
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Asks the port of probes and metrics: status and body.
    pub(crate) async fn probe(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.admin).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer).await;
        let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
        (status.unwrap_or_default(), answer)
    }

    /// Bytes of memory that it occupies.
    pub(crate) async fn resident_bytes(&self) -> u64 {
        let (_, metrics) = self.probe("/metrics").await;
        let mut lines = metrics.lines();
        let value = lines.find_map(|line| line.strip_prefix("process_resident_memory_bytes "));
        value.unwrap().parse().unwrap()
    }

    /// Tells it to stop, as the kubelet does.
    pub(crate) async fn terminate(&self) {
        let id = self.child.id().unwrap().to_string();
        let sent = Command::new("kill").args(["-TERM", &id]).status().await;
        assert!(sent.unwrap().success());
    }

    /// Waits for its end; whether that was a good one.
    pub(crate) async fn ends_well(mut self) -> bool {
        let ended = tokio::time::timeout(START_LIMIT, self.child.wait()).await;
        ended.expect("it ends").unwrap().success()
    }

    /// Whether it still runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

fn kubeconfig_of(api_server: SocketAddr) -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("http://{api_server}")}}],
        "users": [{"name": "c", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    })
    .to_string()
}

/// What was written, by path.
#[derive(Clone, Default)]
struct Objects(Arc<Mutex<HashMap<String, Value>>>);

impl Objects {
    /// The CA that the program has put into its Secret.
    fn bundle_pem(&self) -> String {
        let objects = self.0.lock().unwrap();
        let secret = objects.values().find(|object| object["kind"] == "Secret");
        let bundle = secret.unwrap()["data"][authority_secret::BUNDLE].clone();
        let bundle: ByteString = serde_json::from_value(bundle).unwrap();
        String::from_utf8(bundle.0).unwrap()
    }
}

async fn serve_objects(objects: Objects) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().fallback(answer).with_state(objects);
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// Lists are empty, watches silent; Secrets are kept.
async fn answer(State(objects): State<Objects>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let path = head.uri.path();
    if !path.contains("/secrets") {
        let query = head.uri.query().unwrap_or_default();
        if query.contains("watch=true") {
            std::future::pending::<()>().await;
        }
        let list = json!({"metadata": {"resourceVersion": "1"}, "items": []});
        return Json(list).into_response();
    }
    if head.method == Method::GET {
        let known = objects.0.lock().unwrap().get(path).cloned();
        let missing = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
            "status": "Failure", "reason": "NotFound", "code": 404, "message": "none"});
        return known.map_or_else(
            || (StatusCode::NOT_FOUND, Json(missing)).into_response(),
            |object| Json(object).into_response(),
        );
    }
    let body = axum::body::to_bytes(axum::body::Body::new(body), usize::MAX)
        .await
        .unwrap();
    let mut secret: Value = serde_json::from_slice(&body).unwrap();
    secret["kind"] = json!("Secret");
    secret["metadata"]["resourceVersion"] = json!("1");
    let name = secret["metadata"]["name"].as_str().unwrap();
    let kept_at = format!("{}/{name}", path.trim_end_matches(&format!("/{name}")));
    objects.0.lock().unwrap().insert(kept_at, secret.clone());
    Json(secret).into_response()
}
