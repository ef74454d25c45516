//! Plays many GPU nodes. `muster-fake-nodes --help` says how.

use anyhow::Result;
use clap::Parser;
use muster_fake_nodes::{Arguments, run};

fn main() -> Result<()> {
    // An error means that a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env()
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info,kube_client=off")),
        )
        .with_writer(std::io::stderr)
        .init();
    run(Arguments::parse())
}
