//! Starts the admission server; see the library.

use clap::Parser;
use muster_webhook::program;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    muster_serve::tls::install_provider();
    program::run(program::Args::parse()).await
}
