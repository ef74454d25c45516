//! Asks our own sockets, as the kubelet would.
//!
//! A program that runs is not one that answers: its task may hang, or somebody may have removed its socket. Each look asks the
//! registration socket who is there, the DRA socket to prepare nothing, and the task that owns the machine for a sign of life. None
//! of it takes the lock, and none waits for hardware or for the API server: those may be silent without any harm that a restart
//! would mend.
//!
//! What does not answer several times in a row ends the program, and the kubelet starts it anew.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use muster_kubelet_api::{
    dra::v1::{NodePrepareResourcesRequest, dra_plugin_client::DraPluginClient},
    registration::{InfoRequest, registration_client::RegistrationClient},
};
use muster_serve::Shutdown;
use tonic::transport::{Channel, Endpoint};

use crate::driver::Handle;

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Longest time that an answer may take.
const LIMIT: Duration = Duration::from_secs(5);
/// Looks without an answer, one after the other, that end the program.
const MOST_FAILURES: u32 = 3;

/// What is asked.
#[derive(Clone, Debug)]
pub struct Sockets {
    /// The registration socket.
    pub registration: PathBuf,
    /// The DRA socket.
    pub dra: PathBuf,
}

/// Starts to look, until shutdown.
pub fn spawn(sockets: Sockets, driver: Handle, shutdown: &Shutdown) {
    let token = shutdown.token().clone();
    shutdown.spawn_essential("liveness", async move {
        tokio::select! {
            () = token.cancelled() => Ok(()),
            failed = watch(&sockets, &driver, LOOK_EVERY) => Err(failed),
        }
    });
}

/// Returns once it has not answered too often.
async fn watch(sockets: &Sockets, driver: &Handle, every: Duration) -> String {
    let mut failures = 0;
    loop {
        tokio::time::sleep(every).await;
        match look(sockets, driver).await {
            Ok(()) => failures = 0,
            Err(error) => {
                failures += 1;
                tracing::warn!(failures, error = format!("{error:#}"), "no sign of life");
                if failures >= MOST_FAILURES {
                    return format!("no sign of life {failures} times in a row: {error:#}");
                }
            }
        }
    }
}

/// An error says what did not answer.
async fn look(sockets: &Sockets, driver: &Handle) -> anyhow::Result<()> {
    let registered = async {
        let channel = connect(&sockets.registration).await?;
        RegistrationClient::new(channel)
            .get_info(InfoRequest {})
            .await?;
        anyhow::Ok(())
    };
    within("registration socket", registered).await?;
    let prepared = async {
        let channel = connect(&sockets.dra).await?;
        DraPluginClient::new(channel)
            .node_prepare_resources(NodePrepareResourcesRequest { claims: Vec::new() })
            .await?;
        anyhow::Ok(())
    };
    within("DRA socket", prepared).await?;
    let alive = async {
        let answered = driver.is_alive().await;
        anyhow::ensure!(answered, "its task is gone");
        anyhow::Ok(())
    };
    within("preparation", alive).await
}

async fn connect(socket: &Path) -> anyhow::Result<Channel> {
    let endpoint = Endpoint::try_from(format!("unix:{}", socket.display()))?;
    let channel = endpoint.connect().await;
    channel.with_context(|| socket.display().to_string())
}

async fn within(
    what: &'static str,
    answer: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let answer = tokio::time::timeout(LIMIT, answer).await;
    answer
        .context("no answer in time")
        .and_then(|answer| answer)
        .context(what)
}

#[cfg(test)]
mod tests {
    use muster_kubelet_api::registration::registration_server::RegistrationServer;
    use muster_serve::Readiness;
    use tokio::net::UnixListener;
    use tokio_stream::wrappers::UnixListenerStream;
    use tonic::transport::Server;

    use super::*;
    use crate::kubelet::registration::Registrar;

    #[tokio::test]
    async fn a_socket_that_nobody_serves_ends_it_and_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let sockets = Sockets {
            registration: directory.path().join("reg.sock"),
            dra: directory.path().join("dra.sock"),
        };
        // Nobody listens there.
        drop(std::os::unix::net::UnixListener::bind(&sockets.registration).unwrap());
        let (handle, _messages) = Handle::unconnected();
        let failed = watch(&sockets, &handle, Duration::from_millis(1)).await;
        assert!(failed.contains("registration socket"), "{failed}");
        assert!(failed.contains("reg.sock"), "{failed}");
    }

    #[tokio::test]
    async fn a_dra_socket_that_accepts_and_never_answers_is_named_within_its_limit() {
        let directory = tempfile::tempdir().unwrap();
        let sockets = Sockets {
            registration: directory.path().join("reg.sock"),
            dra: directory.path().join("dra.sock"),
        };
        let registrar = Registrar {
            endpoint: sockets.dra.display().to_string(),
            registered: Readiness::default().condition("registered"),
        };
        let incoming = UnixListenerStream::new(UnixListener::bind(&sockets.registration).unwrap());
        let router = Server::builder().add_service(RegistrationServer::new(registrar));
        let served = tokio::spawn(router.serve_with_incoming(incoming));
        let listener = UnixListener::bind(&sockets.dra).unwrap();
        let accepted = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            // By now registration has answered. Nothing happens any more but that time passes, and nobody need wait for that.
            tokio::time::pause();
            stream
        });
        // The task that owns the machine is there, and would not answer either.
        let (handle, _messages) = Handle::unconnected();
        let begin = tokio::time::Instant::now();
        let failed = look(&sockets, &handle).await.unwrap_err();
        let failed = format!("{failed:#}");
        assert_eq!(
            failed,
            "DRA socket: no answer in time: deadline has elapsed"
        );
        let waited = begin.elapsed();
        assert!((LIMIT..2 * LIMIT).contains(&waited), "{waited:?}");
        // The connection was there to the end.
        drop(accepted.await.unwrap());
        served.abort();
    }

    #[tokio::test]
    async fn a_task_that_is_gone_shows_no_sign_of_life() {
        let (handle, messages) = Handle::unconnected();
        drop(messages);
        assert!(!handle.is_alive().await);
    }
}
