//! How long it takes until a new leader decides, and what memory: a cluster behind real HTTP, from this very process.

use std::{pin::pin, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use kube::{Api, api::PostParams};
use muster_api::{Ledger, keys};
use muster_cluster::object::Kind;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[path = "../../controller/tests/fake_cluster/mod.rs"]
mod fake_cluster;
#[path = "../../controller/tests/fake_cluster/leading.rs"]
mod leading;

use fake_cluster::{FakeCluster, Make};
use leading::take_over;

use crate::{
    cluster::{Cluster, LEDGERS, ledger_spec},
    progress::Progress,
};

const LIMIT: Duration = Duration::from_mins(10);
/// Environment variables of a container.
const VARIABLES: usize = 20;
const TELL_EVERY: Duration = Duration::from_secs(5);

/// What was measured.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Takeover {
    pub(crate) seconds: f64,
    pub(crate) peak_memory_mib: f64,
}

/// Takes the cluster over. The peak of its memory is the process's.
pub(crate) async fn measure(cluster: Arc<Cluster>, progress: &mut Progress) -> Result<Takeover> {
    let collections = cluster.collections().into_iter();
    let collections = collections.filter(|collection| collection.path != LEDGERS);
    let collections = collections.map(|collection| {
        let (cluster, make) = (Arc::clone(&cluster), collection.make);
        let make: Make = match collection.kind {
            Kind::Pod => Box::new(move |number| with_environment(make(&cluster, number))),
            _ => Box::new(move |number| make(&cluster, number)),
        };
        (collection.path, collection.count, make)
    });
    let url = FakeCluster::new(collections).serve().await;
    let client = kube::Client::try_from(kube::Config::new(url.clone()))?;
    let ledger = Ledger::new(keys::LEDGER_NAME, ledger_spec());
    Api::<Ledger>::all(client)
        .create(&PostParams::default(), &ledger)
        .await?;
    let mut taking_over = pin!(take_over(url, LIMIT));
    let (took, metrics) = loop {
        tokio::select! {
            taken = &mut taking_over => break taken,
            () = tokio::time::sleep(TELL_EVERY) => progress.say("reading"),
        }
    };
    let phase = |name: &str| {
        let name = format!("muster_takeover_seconds{{phase=\"{name}\"}}");
        leading::value(&metrics, &name).unwrap_or_default()
    };
    progress.say(&format!(
        "{:.1} s: {:.1} s to raise the epoch, {:.1} s to read everything, {:.1} s to the first decision; \
         {:.1} s of CPU, the serving side included",
        took.as_secs_f64(),
        phase("raise-epoch"),
        phase("read-all"),
        phase("first-decision"),
        leading::value(&metrics, "process_cpu_seconds_total").unwrap_or_default(),
    ));
    Ok(Takeover {
        seconds: took.as_secs_f64(),
        peak_memory_mib: peak_memory_mib()?,
    })
}

/// A pod as a framework makes it: it has a few KiB, most of which nobody here reads.
fn with_environment(mut pod: Value) -> Value {
    let variables = (0..VARIABLES)
        .map(|number| json!({"name": format!("VARIABLE_{number}"), "value": "x".repeat(40)}));
    pod["spec"]["containers"][0]["env"] = variables.collect();
    pod
}

/// The most memory that this process ever had, in MiB.
fn peak_memory_mib() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let mut lines = status.lines();
    let peak = lines.find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB"));
    let kib: f64 = peak
        .context("no VmHWM in /proc/self/status")?
        .trim()
        .parse()?;
    Ok(kib / 1024.0)
}
