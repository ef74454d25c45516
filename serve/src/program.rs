//! One program: what is set up before its own work begins, and how it ends.

use std::{net::SocketAddr, time::Duration};

use kube::Client;

use crate::{
    admin,
    args::ServeArgs,
    client::{self, ClientError},
    metrics::Metrics,
    readiness::Readiness,
    shutdown::{Shutdown, ShutdownError},
    telemetry::{self, TelemetryError},
};

/// Longest time between the request to stop and the end of the process. Below the 30 s after which the
/// kubelet kills.
const FINISH_LIMIT: Duration = Duration::from_secs(20);

/// A started program: logs flow, signals are heeded, the admin server answers.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its metrics.
    pub metrics: Metrics,
    /// What it cannot work without.
    pub readiness: Readiness,
    /// How it stops.
    pub shutdown: Shutdown,
    /// Address of its admin server.
    pub admin_address: SocketAddr,
    args: ServeArgs,
}

/// Why a program did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Logs cannot be written.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// The signals cannot be listened to.
    #[error("signals: {0}")]
    Signals(#[source] std::io::Error),
    /// The admin server cannot be bound.
    #[error("--admin-addr {address}: {source}")]
    Admin {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
}

impl Program {
    /// Starts what every program has. Register the conditions of readiness right afterwards, before anything
    /// is awaited: a program without any is ready.
    pub async fn start(
        name: &'static str,
        version: &'static str,
        args: &ServeArgs,
    ) -> Result<Self, StartError> {
        telemetry::install(&args.log_level, args.log_format)?;
        let shutdown = Shutdown::on_signals().map_err(StartError::Signals)?;
        let metrics = Metrics::new(name, version);
        let readiness = Readiness::default();
        let starting = readiness.condition("start");
        let admin_address = admin::spawn(
            args.admin_addr,
            metrics.clone(),
            readiness.clone(),
            &shutdown,
        )
        .await
        .map_err(|source| StartError::Admin {
            address: args.admin_addr,
            source,
        })?;
        tracing::info!(program = name, version, admin = %admin_address, "started");
        starting.set(true);
        Ok(Self {
            metrics,
            readiness,
            shutdown,
            admin_address,
            args: args.clone(),
        })
    }

    /// A client for watches and lists.
    pub async fn watch_client(&self) -> Result<Client, ClientError> {
        client::watch_client(self.args.kubeconfig.as_deref()).await
    }

    /// A client for single calls.
    pub async fn write_client(&self) -> Result<Client, ClientError> {
        client::write_client(self.args.kubeconfig.as_deref()).await
    }

    /// Waits until the program is told to stop, then for its tasks to end.
    pub async fn finish(self) -> Result<(), ShutdownError> {
        let ended = self.shutdown.finish(FINISH_LIMIT).await;
        tracing::info!("stopped");
        ended
    }
}
