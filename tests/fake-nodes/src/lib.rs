//! One process that plays many GPU nodes against a real kube-apiserver and kube-scheduler.
//!
//! Of each node it plays three parts, each with the identity that it has in a real cluster, so that the node
//! authorizer, NodeRestriction and the admission policies are in force:
//!
//! * the **Node object** ([`registration`]): Ready, with labels of a fabric tree, and a lease that is renewed;
//! * the **driver** ([`driver`]): the machine of [`muster_dra_driver::prepare`] that ships, on a disk in memory, and
//!   the slices that the driver would publish;
//! * the **kubelet** ([`kubelet`]): pods that are bound to the node have their claims prepared, run, end and go.
//!
//! What it does not play: containers, images, volumes, probes, the kubelet's gRPC. Those are the business of the test
//! nodes with real kubelets; here only numbers matter.
//!
//! One task owns each node ([`node`]). Two watches feed all of them ([`feed`]), because a watch per node would measure
//! the API server's fan-out and not Muster.

mod arguments;
pub mod client;
pub mod driver;
pub mod feed;
pub mod hardware;
pub mod kubelet;
pub mod node;
pub mod registration;
pub mod statistics;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use futures::{StreamExt, stream};
use tokio::task::JoinSet;

pub use arguments::Arguments;
use client::Clients;
use node::FakeNode;
use statistics::Statistics;

/// Nodes that are registered at the same time.
const REGISTERED_AT_ONCE: usize = 16;

/// Plays the nodes until the process is told to end, or a part that must not end does.
pub fn run(arguments: Arguments) -> Result<()> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(play(arguments))
}

async fn play(arguments: Arguments) -> Result<()> {
    let clients = Clients::new(&arguments).await?;
    let statistics = Arc::new(Statistics::default());
    let shapes = arguments.shapes();
    let count = shapes.len();
    let has_driver = !arguments.without_driver;
    let registered: Vec<_> = stream::iter(shapes)
        .map(|shape| registration::register(&clients, shape, has_driver))
        .buffer_unordered(REGISTERED_AT_ONCE)
        .collect()
        .await;
    let mut nodes = BTreeMap::new();
    let mut tasks = JoinSet::new();
    for registered in registered {
        let node = FakeNode::new(registered?, &arguments, &clients, Arc::clone(&statistics))?;
        nodes.insert(node.name().to_owned(), node.inbox());
        tasks.spawn(node.run());
    }
    tracing::info!(nodes = count, "all nodes are registered");
    tasks.spawn(registration::renew_leases(
        clients.clone(),
        nodes.keys().cloned().collect(),
        Duration::from_secs(arguments.lease_renewal_seconds),
    ));
    tasks.spawn(feed::feed(clients.admin(), nodes, has_driver));
    tasks.spawn(statistics::print(
        statistics,
        Duration::from_secs(arguments.report_seconds),
    ));
    tokio::select! {
        ended = tasks.join_next() => {
            let ended = ended.context("no part is running")?;
            ended.context("a part panicked")?.context("a part ended")
        }
        signalled = tokio::signal::ctrl_c() => Ok(signalled?),
    }
}
