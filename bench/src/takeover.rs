//! How long it takes until a new leader decides, and what memory: a cluster behind real HTTP, from a process beside this one.

use std::{pin::pin, time::Duration};

use anyhow::{Context, Result};
use kube::{Api, api::PostParams};
use muster_api::{Ledger, keys};
use serde::{Deserialize, Serialize};

#[path = "../../controller/tests/fake_cluster/mod.rs"]
pub(crate) mod fake_cluster;
#[path = "../../controller/tests/fake_cluster/leading.rs"]
mod leading;

use leading::take_over;

use crate::{cluster::ledger_spec, progress::Progress, serving::Serving};

const LIMIT: Duration = Duration::from_mins(10);
const TELL_EVERY: Duration = Duration::from_secs(5);

/// What was measured.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Takeover {
    pub(crate) seconds: f64,
    pub(crate) peak_memory_mib: f64,
}

/// Takes a cluster of that size over. The peak of its memory is the process's.
pub(crate) async fn measure(
    nodes: usize,
    gangs: usize,
    progress: &mut Progress,
) -> Result<Takeover> {
    let serving = Serving::start(nodes, gangs)?;
    let url = serving.url.clone();
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
         {:.1} s of CPU, and {:.1} s of the process that serves",
        took.as_secs_f64(),
        phase("raise-epoch"),
        phase("read-all"),
        phase("first-decision"),
        leading::value(&metrics, "process_cpu_seconds_total").unwrap_or_default(),
        serving.end()?,
    ));
    Ok(Takeover {
        seconds: took.as_secs_f64(),
        peak_memory_mib: peak_memory_mib()?,
    })
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
