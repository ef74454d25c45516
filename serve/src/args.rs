//! Flags that every program has.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, ValueEnum};

/// Flags that every program has, to be flattened into its own.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// Kubeconfig file; without it the ServiceAccount of the pod is used.
    #[arg(long, env = "MUSTER_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Address of the plain HTTP server for /healthz, /readyz and /metrics.
    #[arg(
        long,
        env = "MUSTER_ADMIN_ADDR",
        default_value = "0.0.0.0:8080",
        value_name = "IP:PORT"
    )]
    pub admin_addr: SocketAddr,

    /// What is logged, as `tracing` filter directives.
    #[arg(
        long,
        env = "MUSTER_LOG_LEVEL",
        default_value = "info",
        value_name = "FILTER"
    )]
    pub log_level: String,

    /// How it is logged (to standard error).
    #[arg(
        long,
        env = "MUSTER_LOG_FORMAT",
        default_value = "json",
        value_name = "FORMAT"
    )]
    pub log_format: LogFormat,
}

/// How log records are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object per line, for machines.
    Json,
    /// One line of text, for people.
    Text,
}
