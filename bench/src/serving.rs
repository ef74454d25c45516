//! The API server of the takeover as a process of its own, so that memory and CPU of the process that takes over are the
//! controller's.
//!
//! The process is this very program, started with `scale --serve`. It writes its URL as the first line of its standard output,
//! serves until its standard input ends, which it does with the parent however that ends, and then writes the seconds of CPU
//! that it took as the second.

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::Arc,
};

use anyhow::{Context, Result};
use axum::http::Uri;
use muster_cluster::object::Kind;
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, LEDGERS},
    stopwatch,
    takeover::fake_cluster::{FakeCluster, Make},
};

/// Environment variables of a container.
const VARIABLES: usize = 20;

/// Serves the cluster until standard input ends.
pub(crate) async fn serve(cluster: Arc<Cluster>) -> Result<()> {
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
    say(&FakeCluster::new(collections).serve().await)?;
    // Reading blocks, so it has a thread of its own.
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    say(&stopwatch::of_process().as_secs_f64())
}

fn say(what: &impl std::fmt::Display) -> Result<()> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{what}")?;
    Ok(output.flush()?)
}

/// A pod as a framework makes it: it has a few KiB, most of which nobody here reads.
fn with_environment(mut pod: Value) -> Value {
    let variables = (0..VARIABLES)
        .map(|number| json!({"name": format!("VARIABLE_{number}"), "value": "x".repeat(40)}));
    pod["spec"]["containers"][0]["env"] = variables.collect();
    pod
}

/// The serving process, as its parent sees it.
pub(crate) struct Serving {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pub(crate) url: Uri,
}

impl Serving {
    /// Starts one for a cluster of that size, and waits for its URL.
    pub(crate) fn start(nodes: usize, gangs: usize) -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["scale", "--serve"])
            .arg(format!("--nodes={nodes}"))
            .arg(format!("--gangs={gangs}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = process.stdin.take().context("no pipe to it")?;
        let mut output = BufReader::new(process.stdout.take().context("no pipe from it")?);
        let url = line(&mut output)?.parse().context("its URL")?;
        Ok(Self {
            process,
            input,
            output,
            url,
        })
    }

    /// Ends it. Returns the seconds of CPU that it took.
    pub(crate) fn end(mut self) -> Result<f64> {
        drop(self.input);
        let cpu_seconds = line(&mut self.output)?.parse().context("its CPU time")?;
        self.process.wait()?;
        Ok(cpu_seconds)
    }
}

fn line(output: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    output.read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}
