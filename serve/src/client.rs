//! Clients of the API server with the limits that kube does not set by itself.
//!
//! kube's defaults retry 429, 503 and 504 for *every* method up to 15 times and set no read limit. For a
//! write that is wrong twice: one that was applied but answered 504 is sent again, and reports a conflict with
//! itself; and a silent server holds the caller for ever. So both flavours retry nothing (the watcher and the
//! callers back off themselves), and both have an end.

use std::{future::Future, path::Path, time::Duration};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};

/// Longest time until a connection stands.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Longest silence on a connection that watches. Above the 295 s after which a watcher gives up a watch by
/// itself, so that this one only ends lists that are never answered.
const WATCH_READ_LIMIT: Duration = Duration::from_secs(310);
/// Longest silence while a single call is answered. Below the lease's renew deadline (10 s).
const CALL_READ_LIMIT: Duration = Duration::from_secs(8);
/// Longest time for sending a request.
const SEND_LIMIT: Duration = Duration::from_secs(8);
/// Longest time for one call by [`within`], where the caller has no reason for another.
pub const CALL_LIMIT: Duration = Duration::from_secs(10);

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The kubeconfig file is of no use.
    #[error("kubeconfig {file}: {source}")]
    Kubeconfig {
        /// The file.
        file: String,
        /// What is wrong with it.
        source: Box<KubeconfigError>,
    },
    /// Neither a kubeconfig nor a ServiceAccount.
    #[error("not running in a pod, and no --kubeconfig is given: {0}")]
    InCluster(#[from] kube::config::InClusterError),
    /// The client could not be built from the configuration.
    #[error("client of the API server: {0}")]
    Build(#[source] Box<kube::Error>),
}

/// Why a call gave no result.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No answer in time: whether it was done is unknown.
    #[error("no answer of the API server in {} s", .0.as_secs())]
    Timeout(Duration),
    /// The answer, or the failure of the connection.
    #[error("{}", described(.0))]
    Api(#[from] Box<kube::Error>),
}

/// A client for watches and lists: long reads, no retry of its own.
pub async fn watch_client(kubeconfig: Option<&Path>) -> Result<Client, ClientError> {
    build(load(kubeconfig).await?, WATCH_READ_LIMIT)
}

/// A client for single calls, writes above all: short reads, nothing is ever sent twice.
pub async fn write_client(kubeconfig: Option<&Path>) -> Result<Client, ClientError> {
    build(load(kubeconfig).await?, CALL_READ_LIMIT)
}

/// A client for single calls to whatever a kubeconfig describes: an address, whom to trust there, and as whom to call. `name` is
/// told if it describes none.
pub async fn described_client(kubeconfig: Kubeconfig, name: &str) -> Result<Client, ClientError> {
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let config = config.map_err(|source| ClientError::Kubeconfig {
        file: name.to_owned(),
        source: Box::new(source),
    })?;
    build(config, CALL_READ_LIMIT)
}

/// Ends a call after `limit`. A call that is ended may still have been carried out.
pub async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, CallError> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer.map_err(|error| CallError::Api(Box::new(error))),
        Err(_) => Err(CallError::Timeout(limit)),
    }
}

impl CallError {
    /// The HTTP status that the API server answered with, if it answered.
    pub fn status_code(&self) -> Option<u16> {
        match self {
            Self::Api(error) => match error.as_ref() {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            Self::Timeout(_) => None,
        }
    }
}

/// An answer in its own words; kube adds its whole structure.
fn described(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} (HTTP {})", status.message, status.code),
        other => other.to_string(),
    }
}

async fn load(kubeconfig: Option<&Path>) -> Result<Config, ClientError> {
    let Some(path) = kubeconfig else {
        return Ok(Config::incluster()?);
    };
    let failed = |source| ClientError::Kubeconfig {
        file: path.display().to_string(),
        source: Box::new(source),
    };
    let file = Kubeconfig::read_from(path).map_err(failed)?;
    Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .map_err(failed)
}

fn build(mut config: Config, read_limit: Duration) -> Result<Client, ClientError> {
    config.connect_timeout = Some(CONNECT_LIMIT);
    config.read_timeout = Some(read_limit);
    // Else the time that a pooled connection lay idle counts against the next answer on it.
    config.reset_reader_on_write = true;
    config.write_timeout = Some(SEND_LIMIT);
    config.default_retry = false;
    Client::try_from(config).map_err(|error| ClientError::Build(Box::new(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_kubeconfig_that_does_not_exist_is_named() {
        let error = write_client(Some(Path::new("/nonexistent/kubeconfig")))
            .await
            .err()
            .unwrap();
        assert!(
            error.to_string().contains("/nonexistent/kubeconfig"),
            "{error}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_never_answered_ends() {
        let call = std::future::pending::<Result<(), kube::Error>>();
        let error = within(CALL_LIMIT, call).await.unwrap_err();
        assert!(matches!(error, CallError::Timeout(limit) if limit == CALL_LIMIT));
        assert_eq!(error.status_code(), None);
    }
}
