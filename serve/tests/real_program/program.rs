//! The process.

use std::{net::SocketAddr, ops::Deref, process::Stdio, time::Duration};

use muster_serve::tls;
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines},
    net::TcpStream,
    process::{Child, ChildStderr, Command},
};

use super::{
    api_server::{self, Objects},
    client::Client,
};

/// Longest time until the program serves.
const START_LIMIT: Duration = Duration::from_secs(30);

/// A running program. It ends with this.
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
    /// Starts the binary on free ports of loopback, and waits until it is ready.
    pub(crate) async fn start(binary: &str) -> Self {
        Self::start_beside(binary, &Objects::default()).await
    }

    /// The same for one of several that share their Secret.
    pub(crate) async fn start_beside(binary: &str, objects: &Objects) -> Self {
        let starting = Starting::spawn(binary, objects).await;
        let program = starting.serves(objects).await;
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
        terminate(&self.child).await;
    }

    /// Waits for its end; whether that was a good one.
    pub(crate) async fn ends_well(self) -> bool {
        ends_well(self.child).await
    }

    /// Whether it still runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

/// A program that does not serve yet. It ends with this.
pub(crate) struct Starting {
    child: Child,
    log: Lines<BufReader<ChildStderr>>,
    _kubeconfig: TempDir,
}

impl Starting {
    /// Starts the binary on free ports of loopback.
    pub(crate) async fn spawn(binary: &str, objects: &Objects) -> Self {
        tls::install_provider();
        let address = api_server::serve(objects.clone()).await;
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = directory.path().join("kubeconfig");
        std::fs::write(&kubeconfig, api_server::kubeconfig_of(address)).unwrap();
        let mut child = Command::new(binary)
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .args(["--admin-addr=127.0.0.1:0", "--listen-addr=127.0.0.1:0"])
            .args(["--tls-names=127.0.0.1", "--log-format=json"])
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap()).lines();
        Self {
            child,
            log,
            _kubeconfig: directory,
        }
    }

    /// Waits for an entry of its log, and returns what is wanted of it.
    pub(crate) async fn logs<T>(&mut self, mut wanted: impl FnMut(&Value) -> Option<T>) -> T {
        let logged = async {
            loop {
                let line = self.log.next_line().await.unwrap();
                let line = line.expect("the program goes on");
                let entry: Value = serde_json::from_str(&line).unwrap();
                if let Some(found) = wanted(&entry) {
                    return found;
                }
            }
        };
        let logged = tokio::time::timeout(START_LIMIT, logged).await;
        logged.expect("the program logs it")
    }

    /// Waits until it serves.
    pub(crate) async fn serves(mut self, objects: &Objects) -> Program {
        let (mut admin, mut served) = (None, None);
        let addresses = self.logs(|entry| {
            let address = |name: &str| entry[name].as_str()?.parse::<SocketAddr>().ok();
            admin = admin.or_else(|| address("admin"));
            served = served.or_else(|| address("address"));
            admin.zip(served)
        });
        let (admin, address) = addresses.await;
        let Self { child, mut log, .. } = self;
        // A pipe that nobody reads would stop it.
        tokio::spawn(async move { while let Ok(Some(_)) = log.next_line().await {} });
        Program {
            client: Client {
                address,
                bundle_pem: objects.bundle_pem(),
                identity: objects.identity(),
            },
            admin,
            child,
        }
    }

    /// Tells it to stop; whether it then comes to a good end.
    pub(crate) async fn stops_well(self) -> bool {
        terminate(&self.child).await;
        ends_well(self.child).await
    }
}

async fn terminate(child: &Child) {
    let id = child.id().unwrap().to_string();
    let sent = Command::new("kill").args(["-TERM", &id]).status().await;
    assert!(sent.unwrap().success());
}

async fn ends_well(mut child: Child) -> bool {
    let ended = tokio::time::timeout(START_LIMIT, child.wait()).await;
    ended.expect("it ends").unwrap().success()
}
