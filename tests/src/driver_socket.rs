//! The driver of a node, called on its DRA socket as that node's kubelet calls it.
//!
//! The kubelet repeats calls only after faults that take it a minute, so what a repeated call does is asked here.

use std::path::Path;

use anyhow::{Context, Result};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::ResourceExt;
use muster_kubelet_api::dra::v1::{
    Claim, NodePrepareResourceResponse, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest,
    dra_plugin_client::DraPluginClient,
};
use tonic::transport::{Channel, Endpoint};

/// A connection to a driver. It ends with the driver, and a new one has to be made then.
#[derive(Clone, Debug)]
pub struct DriverSocket {
    client: DraPluginClient<Channel>,
}

impl DriverSocket {
    /// Connects to the socket that [`crate::node::Node::driver_socket`] names.
    pub async fn connect(socket: &Path) -> Result<Self> {
        let channel = Endpoint::try_from(format!("unix:{}", socket.display()))?
            .connect()
            .await
            .with_context(|| format!("cannot connect to {}", socket.display()))?;
        Ok(Self {
            client: DraPluginClient::new(channel),
        })
    }

    /// Has a claim prepared; its entry of the answer, devices or error.
    pub async fn prepare(&mut self, claim: &ResourceClaim) -> Result<NodePrepareResourceResponse> {
        let claim = named(claim);
        let request = NodePrepareResourcesRequest {
            claims: vec![claim.clone()],
        };
        let answer = self.client.node_prepare_resources(request).await?;
        let entry = answer.into_inner().claims.remove(&claim.uid);
        entry.context("the answer has no entry for the claim")
    }

    /// Has a claim given back; the error of its entry, empty if there is none.
    pub async fn unprepare(&mut self, claim: &ResourceClaim) -> Result<String> {
        let claim = named(claim);
        let request = NodeUnprepareResourcesRequest {
            claims: vec![claim.clone()],
        };
        let answer = self.client.node_unprepare_resources(request).await?;
        let entry = answer.into_inner().claims.remove(&claim.uid);
        Ok(entry
            .context("the answer has no entry for the claim")?
            .error)
    }
}

/// All that the kubelet says of a claim.
fn named(claim: &ResourceClaim) -> Claim {
    Claim {
        namespace: claim.namespace().unwrap_or_default(),
        uid: claim.uid().unwrap_or_default(),
        name: claim.name_any(),
    }
}
