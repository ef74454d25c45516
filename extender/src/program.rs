//! The program: flags, start, end.

use std::{net::SocketAddr, time::Duration};

use anyhow::Context;
use clap::Parser;
use muster_serve::{
    Program, ServeArgs,
    authority_secret::{AuthoritySecret, SecretReference},
    certificate_source::CertificateSource,
    certificates::Policy,
    server::{ANSWERS_CONDITION, HttpsServer, Limits},
};

use crate::{
    feed,
    metrics::Requests,
    routes::{self, Extender},
};

/// Common name of the client certificate that kube-scheduler is given.
pub const CLIENT_NAME: &str = "muster-scheduler";

/// The kube-scheduler extender of Muster.
#[derive(Parser, Clone, Debug)]
#[command(name = "muster-extender", version)]
pub struct Args {
    /// What every program has.
    #[command(flatten)]
    pub serve: ServeArgs,

    /// Address of the HTTPS server.
    #[arg(long, default_value = "0.0.0.0:8444", value_name = "IP:PORT")]
    pub listen_addr: SocketAddr,

    /// Namespace that Muster runs in.
    #[arg(
        long,
        env = "MUSTER_NAMESPACE",
        default_value = "muster-system",
        value_name = "NAMESPACE"
    )]
    pub namespace: String,

    /// Secret with the CA and kube-scheduler's client certificate; made by who starts first.
    #[arg(long, default_value = "muster-extender-ca", value_name = "NAME")]
    pub extender_ca_secret: String,

    /// DNS names and IP addresses that kube-scheduler reaches this program by.
    #[arg(long, value_delimiter = ',', required = true, value_name = "NAME,...")]
    pub tls_names: Vec<String>,
}

/// Where the extender's certificates are kept: one authority for ten years, because kube-scheduler reads it
/// once, at its start. `muster-controller scheduler-config` prints what is in it.
pub fn authority(client: kube::Client, namespace: &str, secret: &str) -> AuthoritySecret {
    let reference = SecretReference {
        namespace: namespace.to_owned(),
        name: secret.to_owned(),
    };
    AuthoritySecret::new(client, reference, Policy::PINNED).with_client(CLIENT_NAME)
}

/// Starts the program and runs it until it is told to stop.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let program = Program::start("muster-extender", env!("CARGO_PKG_VERSION"), &args.serve).await?;
    let answers = program.readiness.condition(ANSWERS_CONDITION);
    let cache = feed::spawn(&program, program.watch_client().await?);
    let extender = Extender {
        cache,
        readiness: program.readiness.clone(),
        requests: Requests::register(&program.metrics),
    };
    let authority = authority(
        program.write_client().await?,
        &args.namespace,
        &args.extender_ca_secret,
    );
    let source = CertificateSource::Issued {
        secret: authority,
        names: args.tls_names,
    };
    let kept = source.spawn(&program.readiness, &program.metrics, &program.shutdown);
    let Some(kept) = kept.await else {
        return Ok(program.finish().await?);
    };
    let clients = kept.clients.context("the CA of the clients")?;
    let address = HttpsServer {
        name: "extender",
        address: args.listen_addr,
        router: routes::router(extender),
        certificate: kept.serving,
        clients,
        limits: LIMITS,
        answers,
    }
    .spawn(&program.shutdown)
    .await?;
    tracing::info!(%address, "serving kube-scheduler");
    program.finish().await?;
    Ok(())
}

/// What kube-scheduler is granted. 5,000 node names are 150 KB; a preemption request lists every candidate
/// with its victims and may be far larger. The scheduler is serial and gives up after 1 s: an answer that takes
/// longer than 300 ms is worth less than the next attempt.
pub const LIMITS: Limits = Limits {
    body_bytes: 32 * 1024 * 1024,
    body_limit: Duration::from_millis(250),
    buffered_bytes: 128 * 1024 * 1024,
    request_limit: Duration::from_millis(300),
    connections: 64,
};
