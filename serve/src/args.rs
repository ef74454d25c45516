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

/// The flag of every program that has to know which pods may hold devices, to be flattened into its own.
#[derive(Args, Clone, Debug)]
pub struct ExtendedResourcesArgs {
    /// Extended resources that stand for devices; a name, or the beginning of one and `*`.
    #[arg(
        long = "extended-resource",
        env = "MUSTER_EXTENDED_RESOURCES",
        value_delimiter = ',',
        default_value = "nvidia.com/gpu,nvidia.com/mig-*",
        value_name = "NAME"
    )]
    extended_resources: Vec<String>,
}

impl ExtendedResourcesArgs {
    /// What is listed. The chart writes an empty list as one empty entry.
    pub fn listed(&self) -> impl Iterator<Item = &str> {
        let entries = self.extended_resources.iter().map(String::as_str);
        entries.filter(|entry| !entry.is_empty())
    }
}

/// How log records are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object per line, for machines.
    Json,
    /// One line of text, for people.
    Text,
}
