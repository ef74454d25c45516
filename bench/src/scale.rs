//! What the core costs, by the size of the cluster: `cargo xtask bench scale --nodes N --gangs G --report FILE`.
//!
//! The index, the protocol's machine and the engine that ship work on a cluster that does not exist ([`cluster`](crate::cluster)); the
//! world around them answers at once ([`world`](crate::world)) and is not counted. The takeover is that of the whole controller, over HTTP
//! ([`takeover`]). The benchmark checks what it claims: how full the cluster is, how many gangs wait for what, how many
//! events let somebody in; it fails rather than measure something else.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
    sync::Arc,
};

use anyhow::{Context, Result, ensure};

use crate::{
    ALLOCATOR,
    cluster::{Cluster, NODES_OF_MIXTURE},
    drain,
    events::{self, Events},
    plans,
    progress::Progress,
    report::{mebibytes, write},
    scale_report::Report,
    serving,
    takeover::{self, Takeover},
    writes,
};

/// Fewer gangs do not make two Teams of each kind.
const LEAST_GANGS: usize = 200;
/// The size that others are compared with.
const SMALL: (usize, usize) = (1_000, 1_000);

/// What the core costs, by the size of the cluster.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Nodes, each with 8 GPUs, nine tenths of them held.
    #[arg(long, default_value_t = 10_000, value_parser = nodes)]
    nodes: usize,
    /// Gangs that wait, in a fiftieth as many Teams.
    #[arg(long, default_value_t = 50_000, value_parser = gangs)]
    gangs: usize,
    /// Writes what was measured as JSON.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Measures the takeover only, and prints what the measurement of everything needs of it.
    #[arg(long, hide = true)]
    takeover: bool,
    /// Serves the cluster of the takeover until standard input ends.
    #[arg(long, hide = true, conflicts_with = "takeover")]
    serve: bool,
}

fn nodes(text: &str) -> Result<usize, String> {
    within(
        text,
        NODES_OF_MIXTURE,
        100_000,
        "full, half full and empty nodes are mixed",
    )
}

fn gangs(text: &str) -> Result<usize, String> {
    within(
        text,
        LEAST_GANGS,
        500_000,
        "the Teams that they wait in are a fiftieth as many",
    )
}

fn within(text: &str, least: usize, most: usize, why: &str) -> Result<usize, String> {
    let number: usize = text
        .parse()
        .map_err(|_| "is not a whole number".to_owned())?;
    if (least..=most).contains(&number) {
        return Ok(number);
    }
    Err(format!("must be from {least} to {most}: {why}"))
}

/// Measures what the arguments ask for.
pub(crate) async fn run(arguments: Arguments) -> Result<()> {
    if arguments.takeover {
        take_over(arguments).await
    } else if arguments.serve {
        let cluster = Cluster::busy(arguments.nodes, arguments.gangs);
        serving::serve(Arc::new(cluster)).await
    } else {
        measure(arguments)
    }
}

/// The takeover alone.
async fn take_over(Arguments { nodes, gangs, .. }: Arguments) -> Result<()> {
    let mut progress = Progress::of(&format!("takeover of {nodes} nodes and {gangs} gangs"));
    let takeover = takeover::measure(nodes, gangs, &mut progress).await?;
    println!("{}", serde_json::to_string(&takeover)?);
    Ok(())
}

/// The takeover in a process of its own, whose highest memory is the takeover's.
fn take_over_apart(nodes: usize, gangs: usize) -> Result<Takeover> {
    let output = Command::new(std::env::current_exe()?)
        .args(["scale", "--takeover"])
        .arg(format!("--nodes={nodes}"))
        .arg(format!("--gangs={gangs}"))
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(
        output.status.success(),
        "the takeover failed ({})",
        output.status
    );
    serde_json::from_slice(&output.stdout).context("what the takeover measured")
}

fn measure(
    Arguments {
        nodes,
        gangs,
        report: path,
        ..
    }: Arguments,
) -> Result<()> {
    let cluster = Cluster::busy(nodes, gangs);
    let takeover = take_over_apart(nodes, gangs)?;

    let (small_nodes, small_gangs) = SMALL;
    let is_larger = nodes >= small_nodes && gangs >= small_gangs && (nodes, gangs) != SMALL;
    let small = if is_larger {
        let mut progress = Progress::of(&format!(
            "events at {small_nodes} nodes and {small_gangs} gangs"
        ));
        let cluster = Cluster::busy(small_nodes, small_gangs);
        let mut world = events::at_rest(&cluster, &mut progress)?;
        Some(events::measure(&cluster, &mut world, &mut progress)?)
    } else {
        None
    };

    let mut progress = Progress::of(&format!("events at {nodes} nodes and {gangs} gangs"));
    let mut world = events::at_rest(&cluster, &mut progress)?;
    let plans = plans::measure(world.machine().engine(), &mut progress)?;
    let events = events::measure(&cluster, &mut world, &mut progress)?;
    let machine = world.into_machine();
    let with_machine = ALLOCATOR.allocated();
    drop(machine);
    let memory_mib = mebibytes(with_machine.saturating_sub(ALLOCATOR.allocated()));
    progress.say(&format!("{memory_mib:.0} MiB of heap"));

    let mut progress = Progress::of(&format!(
        "gangs of one pod from an idle cluster of {nodes} nodes"
    ));
    let drain = drain::measure(nodes, cluster.teams, &mut progress)?;
    let mut progress = Progress::of("the life of a gang");
    let writes = writes::measure(&mut progress)?;

    if let Some(small) = small {
        compare(&events, &small);
    }
    let report = Report {
        nodes,
        gangs,
        event_micros: events.micros,
        event_whole_micros: events.whole_micros,
        event_visited: events.visited.into(),
        idle_poll_micros: events.idle_poll_micros,
        plan_micros: plans.known,
        new_shape_micros: plans.new_shape_micros,
        new_request_micros: plans.new_request_micros,
        infeasible_micros: plans.infeasible_micros,
        drain_seconds: drain,
        takeover_seconds: takeover.seconds,
        memory_mib,
        peak_memory_mib: takeover.peak_memory_mib,
        writes_per_gang: writes,
    };
    println!("{}", serde_json::to_string_pretty(&report)?);
    write(&report, path.as_deref())
}

/// An event is to look at no more than twice as much, and take no more than four times the time, as in the small cluster.
fn compare(large: &Events, small: &Events) {
    let (nodes, gangs) = SMALL;
    println!("compared with {nodes} nodes and {gangs} gangs in this run:");
    for (what, large, small, most) in [
        (
            "looks of an event, p50",
            large.visited.p50,
            small.visited.p50,
            2.0,
        ),
        (
            "looks of an event, p99",
            large.visited.p99,
            small.visited.p99,
            2.0,
        ),
        (
            "time of an event, p50",
            large.micros.p50,
            small.micros.p50,
            4.0,
        ),
        (
            "time of an event, p99",
            large.micros.p99,
            small.micros.p99,
            4.0,
        ),
    ] {
        let ratio = large / small.max(f64::MIN_POSITIVE);
        let verdict = if ratio <= most { "within" } else { "ABOVE" };
        println!("  {what}: {large:.0} to {small:.0}, {ratio:.2} times; {verdict} {most} times");
    }
}
