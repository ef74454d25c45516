//! Registration: tells the kubelet who we are and where our calls are served.

use muster_api::keys;
use muster_kubelet_api::{
    PLUGIN_TYPE, SUPPORTED_VERSIONS,
    registration::{
        InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
        registration_server::Registration,
    },
};
use muster_serve::Condition;
use tonic::{Request, Response, Status};

/// Name of the registration socket.
///
/// The `@` is deliberate. The kubelet dials the bare path, and its gRPC library then sends the percent-encoded path as
/// `:authority`. Rust's h2 refuses percent escapes in a host name, but not before an `@`, where a URI has its user
/// information. Without the `@` the kubelet tries for ever and never gets an answer.
pub const SOCKET_NAME: &str = "gpu.muster.dev@reg.sock";

/// The registration service.
#[derive(Debug)]
pub struct Registrar {
    /// Full path of the DRA socket, the same inside and outside of the container.
    pub endpoint: String,
    /// Holds once the kubelet has said that we are registered.
    pub registered: Condition,
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(
        &self,
        _request: Request<InfoRequest>,
    ) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: PLUGIN_TYPE.to_owned(),
            name: keys::DRIVER.to_owned(),
            endpoint: self.endpoint.clone(),
            supported_versions: SUPPORTED_VERSIONS.map(str::to_owned).to_vec(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        self.registered.set(status.plugin_registered);
        if status.plugin_registered {
            tracing::info!("registered with the kubelet");
            return Ok(Response::new(RegistrationStatusResponse {}));
        }
        tracing::error!(error = status.error, "the kubelet refuses to register us");
        Err(Status::failed_precondition(status.error))
    }
}
