//! The API server, as far as the driver needs it.

use std::{fmt, sync::Arc, time::Duration};

use backon::{ExponentialBuilder, Retryable};
use k8s_openapi::api::{core::v1::Node, events::v1::Event, resource::v1::ResourceClaim};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use muster_api::{GpuFault, NodeDevices, NodeDevicesStatus, keys};
use muster_serve::{
    client::{CALL_LIMIT, CallError, within},
    watch::Decoded,
};

use crate::{
    gone::is_gone,
    prepare::{Claim, ClaimRef, Read, StatusOutcome},
};

/// How long a claim is tried to be read inside a Prepare call: a failed call is repeated only after a minute.
const CLAIM_LIMIT: Duration = Duration::from_secs(25);
/// Claims per page of a list.
const PAGE: u32 = 500;

/// Calls of one node's driver.
#[derive(Clone)]
pub struct Kubernetes {
    client: Client,
    node: String,
}

impl fmt::Debug for Kubernetes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Kubernetes")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

impl Kubernetes {
    /// `client` is for single calls; nothing is sent twice by it.
    pub fn new(client: Client, node: String) -> Self {
        Self { client, node }
    }

    /// The node.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Reads a claim, and tries again while there is no answer.
    pub async fn claim(&self, reference: &ClaimRef) -> Read<Claim> {
        let read = || self.claim_once(reference);
        let backoff = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(100))
            .with_max_delay(Duration::from_secs(2))
            .without_max_times()
            .with_total_delay(Some(CLAIM_LIMIT));
        let attempts = read
            .retry(backoff)
            .when(|error| !is_final(error, &reference.name));
        match tokio::time::timeout(CLAIM_LIMIT, attempts).await {
            Ok(answer) => read_claim(answer, &reference.name),
            Err(_) => Read::Failed(format!("no answer in {} s", CLAIM_LIMIT.as_secs())),
        }
    }

    /// Reads the claim of that name, whatever its UID. It is not tried again.
    pub async fn claim_now(&self, reference: &ClaimRef) -> Read<Claim> {
        read_claim(self.claim_once(reference).await, &reference.name)
    }

    async fn claim_once(&self, reference: &ClaimRef) -> Result<ResourceClaim, CallError> {
        // One that cannot be read whole (parameters of some driver, nested as deep as the API server takes them) would else never be prepared, nor
        // given back.
        let api: Api<Decoded<ResourceClaim>> =
            Api::namespaced(self.client.clone(), &reference.namespace);
        // A GET without resourceVersion is a quorum read.
        let decoded = within(CALL_LIMIT, api.get(&reference.name)).await?;
        decoded.read().cloned().ok_or_else(|| unreadable(&decoded))
    }

    /// All claims that have devices of this node and are reserved for somebody, pods or not.
    pub async fn claims_here(&self) -> Result<Vec<Claim>, CallError> {
        self.claims(is_reserved).await
    }

    /// All claims that have devices of this node, whether anybody may use them now or not: whom one is reserved for next nobody asks.
    pub async fn allocated_here(&self) -> Result<Vec<Claim>, CallError> {
        self.claims(|_| true).await
    }

    async fn claims(
        &self,
        is_meant: impl Fn(&ResourceClaim) -> bool + Send + Sync,
    ) -> Result<Vec<Claim>, CallError> {
        // Anybody may create one that cannot be read whole, and it must not hide all others.
        let api: Api<Decoded<ResourceClaim>> = Api::all(self.client.clone());
        let mut params = ListParams::default().limit(PAGE);
        let mut claims = Vec::new();
        loop {
            let page = within(CALL_LIMIT, api.list(&params)).await?;
            let here = |claim: &Claim| {
                let devices = claim.devices.iter().flatten();
                devices.into_iter().any(|device| device.pool == self.node)
            };
            for decoded in &page.items {
                let object = decoded.read().ok_or_else(|| unreadable(decoded))?;
                if is_meant(object) {
                    claims.extend(Claim::read(object, keys::DRIVER).ok().filter(here));
                }
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(claims),
            }
        }
    }

    /// Reads this node's `NodeDevices` from the API server, not from a cache.
    pub async fn node_devices(&self) -> Read<Arc<NodeDevices>> {
        let api: Api<NodeDevices> = Api::all(self.client.clone());
        // A GET without resourceVersion is a quorum read.
        match within(CALL_LIMIT, api.get(&self.node)).await {
            Ok(object) => Read::Found(Arc::new(object)),
            Err(error) if is_gone::<NodeDevices>(&error, &self.node) => Read::Absent,
            Err(error) => Read::Failed(error.to_string()),
        }
    }

    /// UID of this node's Node.
    pub async fn node_uid(&self) -> Result<String, CallError> {
        let api: Api<Node> = Api::all(self.client.clone());
        let node = within(CALL_LIMIT, api.get(&self.node)).await?;
        Ok(node.metadata.uid.unwrap_or_default())
    }

    /// Creates an Event. Its name is its own, so nothing of anybody else is overwritten; one that is created twice, because an answer
    /// was lost, is read twice.
    pub async fn create_event(&self, event: &Event) -> Result<(), CallError> {
        let namespace = event.metadata.namespace.as_deref().unwrap_or("default");
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let params = PostParams {
            field_manager: Some(keys::FIELD_MANAGER_DRIVER.to_owned()),
            ..PostParams::default()
        };
        within(CALL_LIMIT, api.create(&params, event)).await?;
        Ok(())
    }

    /// Writes the status. The preconditions make a late or repeated write harmless: the first one that was applied
    /// has changed the version.
    pub async fn write_status(
        &self,
        uid: Option<String>,
        resource_version: Option<String>,
        status: &NodeDevicesStatus,
    ) -> StatusOutcome {
        let api: Api<NodeDevices> = Api::all(self.client.clone());
        let params = PatchParams {
            field_manager: Some(keys::FIELD_MANAGER_DRIVER.to_owned()),
            ..PatchParams::default()
        };
        // `held` is written also when it is empty: left out, a merge would keep the old list.
        let patch = serde_json::json!({
            "metadata": {"uid": uid, "resourceVersion": resource_version},
            "status": {
                "uid": status.uid,
                "observedGeneration": status.observed_generation,
                "bootId": status.boot_id,
                "held": status.held,
            },
        });
        let patch = Patch::Merge(&patch);
        let call = api.patch_status(&self.node, &params, &patch);
        match within(CALL_LIMIT, call).await {
            Ok(object) => StatusOutcome::Written(Arc::new(object)),
            Err(error) if error.status_code() == Some(409) => StatusOutcome::Conflict,
            Err(error) if is_gone::<NodeDevices>(&error, &self.node) => StatusOutcome::Conflict,
            Err(error) => StatusOutcome::Unknown(error.to_string()),
        }
    }

    /// Writes what is wrong with the GPUs into the status, and nothing else of it, if the object is the one of this UID. One that is gone, or
    /// another by now, is fine: the watch shows it, and what is true then is written.
    pub async fn write_faults(&self, uid: &str, faults: &[GpuFault]) -> Result<(), CallError> {
        let api: Api<NodeDevices> = Api::all(self.client.clone());
        let params = PatchParams {
            field_manager: Some(keys::FIELD_MANAGER_DRIVER.to_owned()),
            ..PatchParams::default()
        };
        let patch = serde_json::json!({
            "metadata": {"uid": uid},
            "status": {"faults": faults},
        });
        let patch = Patch::Merge(&patch);
        let call = api.patch_status(&self.node, &params, &patch);
        match within(CALL_LIMIT, call).await {
            Ok(_) => Ok(()),
            Err(error) if error.status_code() == Some(409) => Ok(()),
            Err(error) if is_gone::<NodeDevices>(&error, &self.node) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn is_reserved(claim: &ResourceClaim) -> bool {
    let status = claim.status.as_ref();
    let reserved = status.and_then(|status| status.reserved_for.as_ref());
    reserved.is_some_and(|consumers| !consumers.is_empty())
}

/// Of a claim that may have devices only the metadata can be read.
fn unreadable(claim: &Decoded<ResourceClaim>) -> CallError {
    let namespace = claim.namespace().unwrap_or_default();
    let text = format!(
        "ResourceClaim {namespace}/{} cannot be decoded",
        claim.name_any()
    );
    let error = <serde_json::Error as serde::de::Error>::custom(text);
    CallError::Api(Box::new(kube::Error::SerdeError(error)))
}

fn read_claim(answer: Result<ResourceClaim, CallError>, name: &str) -> Read<Claim> {
    match answer {
        Ok(object) => match Claim::read(&object, keys::DRIVER) {
            Ok(claim) => Read::Found(claim),
            Err(error) => Read::Failed(error.to_string()),
        },
        Err(error) if is_gone::<ResourceClaim>(&error, name) => Read::Absent,
        Err(error) => Read::Failed(error.to_string()),
    }
}

/// An answer that a repetition will not change.
fn is_final(error: &CallError, name: &str) -> bool {
    matches!(error.status_code(), Some(400 | 403 | 422)) || is_gone::<ResourceClaim>(error, name)
}

#[cfg(test)]
mod tests;
