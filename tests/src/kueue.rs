//! Kueue, as a peer to measure beside: its own program, unchanged, on a control plane without Muster.
//!
//! It runs as a process with all rights, like Muster's programs at this level. What differs from its own install, each in its
//! favour or of no weight for what it costs: only Jobs are integrated (an installation watches every pod as well), its webhooks and its
//! visibility API are not registered (so Jobs have to be created suspended, as its webhook would leave them), and it does not
//! renew a lease.

use std::{collections::BTreeMap, fs, path::PathBuf};

use anyhow::{Context, Result};
use futures::StreamExt;
use jiff::Timestamp;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, PostParams},
    core::GroupVersionKind,
    runtime::{WatchStreamExt, watcher},
};
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    cluster::Cluster,
    control_plane::ControlPlane,
    http_get, kube_binaries,
    kubernetes::{LIMIT, Progress, eventually},
    loopback,
    process::Launch,
    service::{Probe, Service},
};

/// Name of the program's process.
pub const PROGRAM: &str = "kueue";
/// Label by which a Job names its `LocalQueue`.
pub const QUEUE_LABEL: &str = "kueue.x-k8s.io/queue-name";
/// Label by which a Job names its `WorkloadPriorityClass`.
pub const PRIORITY_LABEL: &str = "kueue.x-k8s.io/priority-class";

/// Where Kueue looks for the certificate of its metrics: nothing can tell it another place.
const METRICS_CERTIFICATE: &str = "/etc/kueue/metrics/certs";
/// Runs the words after the first with an `/etc` in which there is nothing but that certificate, which lies in the directory that the
/// first one names.
const WITH_CERTIFICATE: &str = r#"from=$1; shift
mkdir "$from/etc" && mount --bind "$from/etc" /etc && mkdir -p "$0" && cp "$from"/tls.crt "$from"/tls.key "$0"/ && exec "$@""#;

/// Who reads its metrics, which it shows to nobody else: a `ServiceAccount` in the namespace `default`.
const METRICS_READER: &str = "kueue-metrics-reader";
/// Methods of HTTP that write.
const WRITES: [&str; 4] = ["POST", "PUT", "PATCH", "DELETE"];

/// A Kueue that runs.
#[derive(Debug)]
pub struct Kueue {
    service: Service,
    metrics_url: String,
    /// Speaks for [`METRICS_READER`].
    token: String,
}

impl Kueue {
    /// Where its program and its definitions are; built where that has not been done yet, which takes minutes.
    pub async fn find() -> Result<PathBuf> {
        kube_binaries::build("kueue").await
    }

    /// Defines its objects and starts it. It sends at most so many calls to the API server in a second; without a number there is
    /// no bound.
    pub async fn start(cluster: &Cluster, calls_per_second: Option<u32>) -> Result<Self> {
        let found = Self::find().await?;
        let control_plane = &cluster.control_plane;
        let definitions = found.join("crd");
        let directory = format!("--filename={}", definitions.display());
        control_plane
            .kubectl(&["apply", "--server-side", &directory])
            .await
            .context("defining Kueue's objects")?;
        let wait = ["wait", "--for=condition=Established", "--timeout=60s"];
        let mut wait = wait.to_vec();
        wait.push(&directory);
        control_plane.kubectl(&wait).await?;
        let own = cluster.directory().join("kueue");
        fs::create_dir_all(&own)?;
        let names = [
            control_plane.address().to_string(),
            "kueue-webhook-service.kueue-system.svc".to_owned(),
        ];
        let identity = control_plane.pki().server("kueue", &names)?;
        fs::copy(&identity.certificate, own.join("tls.crt"))?;
        fs::copy(&identity.key, own.join("tls.key"))?;
        let [health, metrics, webhook] = loopback::free_ports(control_plane.address())?;
        let configuration = configuration(
            control_plane,
            &own.display().to_string(),
            [health, metrics, webhook],
            calls_per_second,
        );
        let file = own.join("configuration.yaml");
        fs::write(&file, configuration.to_string())?;
        let mut launch = Launch::new(PROGRAM, found.join(PROGRAM))
            .arg(format!("--config={}", file.display()))
            .arg("--feature-gates=VisibilityOnDemand=false")
            .arg("--zap-log-level=2")
            .env("KUBECONFIG", control_plane.admin_kubeconfig());
        launch.inside = [
            "unshare",
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
        ]
        .map(Into::into)
        .to_vec();
        launch
            .inside
            .extend([WITH_CERTIFICATE.into(), METRICS_CERTIFICATE.into()]);
        launch.inside.push(own.into_os_string());
        let health = format!("http://{}:{health}", control_plane.address());
        let logs = cluster.directory().join("logs");
        let mut service = Service::new(launch, logs, Probe::Http(health, "/readyz"));
        service.start().await?;
        Ok(Self {
            service,
            metrics_url: format!("https://{}:{metrics}", control_plane.address()),
            token: metrics_token(control_plane).await?,
        })
    }

    /// How often it has written to the API server so far, by method and whatever was answered: what its client counts. Events are among it.
    pub async fn writes(&self) -> Result<BTreeMap<String, f64>> {
        // It asks the API server whether the reader may, and keeps in mind for 30 s that it may not.
        eventually("Kueue shows its metrics", LIMIT, async || {
            let text = http_get::get_as(&self.metrics_url, "/metrics", &self.token).await?;
            Ok(Progress::Done(writes_of(&text)))
        })
        .await
    }

    /// Fails if it has ended.
    pub fn ensure_running(&mut self) -> Result<()> {
        self.service.ensure_running()
    }

    /// Ends it.
    pub async fn stop(mut self) {
        self.service.stop().await;
    }
}

/// A token of somebody who may read metrics and nothing else, for longer than anything is measured.
async fn metrics_token(control_plane: &ControlPlane) -> Result<String> {
    let account = format!("--serviceaccount=default:{METRICS_READER}");
    let create: [&[&str]; 2] = [
        &["serviceaccount", METRICS_READER, "--namespace=default"],
        &[
            "clusterrolebinding",
            METRICS_READER,
            "--clusterrole=system:monitoring",
            &account,
        ],
    ];
    for what in create {
        let arguments = [&["create"][..], what].concat();
        let created = control_plane.kubectl(&arguments).await;
        created.context("making a reader of Kueue's metrics")?;
    }
    let token = [
        "create",
        "token",
        METRICS_READER,
        "--namespace=default",
        "--duration=24h",
    ];
    let token = control_plane.kubectl(&token).await?;
    Ok(token.trim().to_owned())
}

/// Calls that write, by method, as the client of Kueue's controllers counts them. Numbers may be written as `1.5e+06`.
fn writes_of(metrics: &str) -> BTreeMap<String, f64> {
    let mut writes = BTreeMap::new();
    for line in metrics.lines() {
        let Some(rest) = line.strip_prefix("rest_client_requests_total{") else {
            continue;
        };
        let Some((labels, value)) = rest.split_once("} ") else {
            continue;
        };
        let method = labels
            .split(',')
            .find_map(|label| label.strip_prefix("method=\"")?.strip_suffix('"'));
        let method = method.filter(|method| WRITES.contains(method));
        if let (Some(method), Ok(value)) = (method, value.trim().parse::<f64>()) {
            *writes.entry(method.to_owned()).or_default() += value;
        }
    }
    writes
}

/// As it ships, but for addresses, what is integrated, and how often it may call.
fn configuration(
    control_plane: &ControlPlane,
    certificates: &str,
    [health, metrics, webhook]: [u16; 3],
    calls_per_second: Option<u32>,
) -> Value {
    let address = control_plane.address();
    let (calls, burst) = match calls_per_second {
        // A negative number is no bound.
        None => (-1, -1),
        Some(calls) => (i64::from(calls), 2 * i64::from(calls)),
    };
    json!({
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": "kueue-system",
        "health": {"healthProbeBindAddress": format!("{address}:{health}")},
        "metrics": {"bindAddress": format!("{address}:{metrics}")},
        "webhook": {"host": address, "port": webhook, "certDir": certificates},
        "leaderElection": {"leaderElect": false},
        "internalCertManagement": {"enable": false},
        "controller": {"groupKindConcurrency": {
            "Job.batch": 5,
            "Pod": 5,
            "Workload.kueue.x-k8s.io": 10,
            "LocalQueue.kueue.x-k8s.io": 5,
            "Cohort.kueue.x-k8s.io": 1,
            "ClusterQueue.kueue.x-k8s.io": 5,
            "ResourceFlavor.kueue.x-k8s.io": 1,
        }},
        "clientConnection": {"qps": calls, "burst": burst},
        "integrations": {"frameworks": ["batch/job"]},
    })
}

/// Kinds of Kueue's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `ResourceFlavor`.
    ResourceFlavor,
    /// `ClusterQueue`.
    ClusterQueue,
    /// `LocalQueue`.
    LocalQueue,
    /// `WorkloadPriorityClass`.
    WorkloadPriorityClass,
    /// `Workload`.
    Workload,
}

impl Kind {
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::ResourceFlavor => ("ResourceFlavor", "resourceflavors"),
            Self::ClusterQueue => ("ClusterQueue", "clusterqueues"),
            Self::LocalQueue => ("LocalQueue", "localqueues"),
            Self::WorkloadPriorityClass => ("WorkloadPriorityClass", "workloadpriorityclasses"),
            Self::Workload => ("Workload", "workloads"),
        }
    }

    fn resource(self) -> ApiResource {
        let (kind, plural) = self.names();
        let kind = GroupVersionKind::gvk("kueue.x-k8s.io", "v1beta2", kind);
        ApiResource::from_gvk_with_plural(&kind, plural)
    }
}

/// Creates an object of Kueue's; its kind is filled in.
pub async fn create(
    client: &Client,
    kind: Kind,
    namespace: Option<&str>,
    mut object: Value,
) -> Result<()> {
    let resource = kind.resource();
    object["apiVersion"] = json!(resource.api_version);
    object["kind"] = json!(resource.kind);
    let object: DynamicObject = serde_json::from_value(object)?;
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let created = api.create(&PostParams::default(), &object).await;
    created.with_context(|| format!("creating {} {}", resource.kind, object.name_any()))?;
    Ok(())
}

/// Waits until Kueue says of a `ClusterQueue` that it is active.
pub async fn wait_until_active(client: &Client, queue: &str) -> Result<()> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &Kind::ClusterQueue.resource());
    let what = format!("ClusterQueue {queue} is active");
    eventually(&what, LIMIT, async || {
        let object = api.get(queue).await?;
        let is_active = condition_since(&object, "Active").is_some();
        Ok(Progress::when(is_active, || {
            object.data["status"].to_string()
        }))
    })
    .await
}

/// What a `Workload` shows of a Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenWorkload {
    /// Namespace and name of the Job.
    pub job: (String, String),
    /// Since when it holds quota, if it does.
    pub admitted_since: Option<Timestamp>,
    /// Whether its Job has ended.
    pub has_finished: bool,
}

impl SeenWorkload {
    fn of(object: &DynamicObject) -> Option<Self> {
        let owner = object
            .owner_references()
            .iter()
            .find(|owner| owner.kind == "Job")?;
        let has_finished = condition_since(object, "Finished").is_some();
        Some(Self {
            job: (object.namespace()?, owner.name.clone()),
            admitted_since: condition_since(object, "QuotaReserved").filter(|_| !has_finished),
            has_finished,
        })
    }
}

/// Tells every `Workload` that there is, and each that changes, until what is returned is dropped.
pub fn watch_workloads(
    client: Client,
    mut note: impl FnMut(SeenWorkload) + Send + 'static,
) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        let resource = Kind::Workload.resource();
        let api: Api<DynamicObject> = Api::all_with(client, &resource);
        let config = watcher::Config::default();
        let mut workloads = watcher(api, config)
            .default_backoff()
            .touched_objects()
            .boxed();
        while let Some(event) = workloads.next().await {
            match event {
                Ok(object) => {
                    if let Some(seen) = SeenWorkload::of(&object) {
                        note(seen);
                    }
                }
                Err(error) => tracing::warn!(%error, "watch of Workloads"),
            }
        }
    }))
}

/// Since when a condition is true.
fn condition_since(object: &DynamicObject, kind: &str) -> Option<Timestamp> {
    let conditions = object.data["status"]["conditions"].as_array()?;
    let holds = |condition: &&Value| condition["type"] == kind && condition["status"] == "True";
    let condition = conditions.iter().find(holds)?;
    condition["lastTransitionTime"].as_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(conditions: &Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "Workload",
            "metadata": {
                "name": "job-a", "namespace": "team",
                "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "1"}],
            },
            "status": {"conditions": conditions},
        }))
        .unwrap()
    }

    #[test]
    fn calls_that_write_are_summed_over_what_was_answered_and_others_are_left_out() {
        let text = r#"# TYPE rest_client_requests_total counter
rest_client_requests_total{code="200",host="127.0.0.1:6443",method="GET"} 31
rest_client_requests_total{code="200",host="127.0.0.1:6443",method="PATCH"} 1.2345678e+07
rest_client_requests_total{code="409",host="127.0.0.1:6443",method="PATCH"} 2
rest_client_requests_total{code="201",host="127.0.0.1:6443",method="POST"} 7
rest_client_request_duration_seconds_count{host="127.0.0.1:6443",verb="POST"} 9
"#;
        let expected = [("PATCH", 12_345_680.0), ("POST", 7.0)];
        let expected = expected.map(|(method, count)| (method.to_owned(), count));
        assert_eq!(writes_of(text), BTreeMap::from(expected));
    }

    #[test]
    fn a_workload_holds_quota_from_its_reservation_until_it_has_finished() {
        let at = "2026-11-27T12:00:00Z";
        let condition = |kind: &str, status: &str| json!({"type": kind, "status": status, "lastTransitionTime": at});
        let reserved = condition("QuotaReserved", "True");
        let table = [
            (json!([]), None, false),
            (json!([condition("QuotaReserved", "False")]), None, false),
            (json!([reserved]), Some(at.parse().unwrap()), false),
            (json!([reserved, condition("Finished", "True")]), None, true),
        ];
        for (conditions, admitted_since, has_finished) in table {
            let expected = SeenWorkload {
                job: ("team".to_owned(), "a".to_owned()),
                admitted_since,
                has_finished,
            };
            assert_eq!(SeenWorkload::of(&workload(&conditions)), Some(expected));
        }
    }
}
