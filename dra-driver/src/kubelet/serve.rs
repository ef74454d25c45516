//! Serves the sockets: the DRA socket first, and only then the one by which the kubelet finds it.

use std::path::Path;

use anyhow::Context;
use muster_kubelet_api::{
    dra::{
        v1::dra_plugin_server::DraPluginServer,
        v1beta1::dra_plugin_server::DraPluginServer as DraPluginServerV1beta1,
    },
    health::{
        v1::dra_resource_health_server::DraResourceHealthServer,
        v1alpha1::dra_resource_health_server::DraResourceHealthServer as HealthServerV1alpha1,
    },
    registration::registration_server::RegistrationServer,
};
use muster_serve::{Condition, Shutdown};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Server, server::Router};

use super::{
    calls::Calls,
    health::Health,
    liveness,
    registration::{Registrar, SOCKET_NAME},
    sockets::{self, Socket},
};
use crate::driver::Handle;

/// Name of the DRA socket in the plugin directory.
pub const DRA_SOCKET_NAME: &str = "dra.sock";

/// Where the sockets are.
#[derive(Clone, Copy, Debug)]
pub struct Paths<'a> {
    /// Where the kubelet looks for registrations.
    pub registration_dir: &'a Path,
    /// Where the DRA socket is.
    pub plugin_dir: &'a Path,
}

/// Serves until shutdown: no new calls then, those under way are answered, the sockets are removed.
pub async fn spawn(
    paths: Paths<'_>,
    driver: Handle,
    health: Health,
    registered: Condition,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    let dra_path = paths.plugin_dir.join(DRA_SOCKET_NAME);
    let endpoint = dra_path
        .to_str()
        .with_context(|| format!("--plugin-dir {} is not UTF-8", paths.plugin_dir.display()))?
        .to_owned();
    let calls = Calls {
        driver: driver.clone(),
    };
    let (socket, listener) = sockets::bind(&dra_path).await?;
    let router = Server::builder()
        .add_service(DraPluginServer::new(calls.clone()))
        .add_service(DraPluginServerV1beta1::new(calls))
        .add_service(DraResourceHealthServer::new(health.clone()))
        .add_service(HealthServerV1alpha1::new(health));
    serve("DRA socket", router, socket, listener, shutdown);

    let registrar = Registrar {
        endpoint,
        registered,
    };
    let path = paths.registration_dir.join(SOCKET_NAME);
    let (socket, listener) = sockets::bind(&path).await?;
    let router = Server::builder().add_service(RegistrationServer::new(registrar));
    serve("registration socket", router, socket, listener, shutdown);
    let sockets = liveness::Sockets {
        registration: path,
        dra: dra_path,
    };
    liveness::spawn(sockets, driver, shutdown);
    Ok(())
}

fn serve(
    name: &'static str,
    router: Router,
    socket: Socket,
    listener: UnixListener,
    shutdown: &Shutdown,
) {
    let token = shutdown.token().clone();
    shutdown.spawn_essential(name, async move {
        let stopped = async move {
            token.cancelled().await;
            // Gone before the last call is answered, so that a successor can bind.
            drop(socket);
        };
        let incoming = UnixListenerStream::new(listener);
        router.serve_with_incoming_shutdown(incoming, stopped).await
    });
}
