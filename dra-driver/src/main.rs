//! Starts the DRA driver; see the library.

use clap::Parser;
use muster_dra_driver::program;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    muster_serve::tls::install_provider();
    program::run(program::Args::parse()).await
}
