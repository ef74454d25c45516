//! The DRA calls, in both versions that kubelets speak.
//!
//! Each claim of a call is handled for itself, side by side: what goes wrong with one is in its entry, and
//! none waits for another.

use std::{collections::BTreeMap, future::Future};

use futures::future::join_all;
use muster_kubelet_api::dra::{v1, v1beta1};
use tonic::{Request, Response, Status};

use crate::{
    driver::{CallKind, Handle},
    prepare::{Answer, ClaimRef, PreparedDevice},
};

/// Longest UID that is accepted. UIDs go into file names.
const MAX_UID_BYTES: usize = 64;

/// The DRA service.
#[derive(Clone, Debug)]
pub struct Calls {
    /// The machine.
    pub driver: Handle,
}

/// What a claim of a call came to.
type Outcome = Result<Vec<PreparedDevice>, String>;

impl Calls {
    /// Handles every claim, and answers for every one.
    async fn each(
        &self,
        kind: CallKind,
        claims: impl Iterator<Item = ClaimRef>,
    ) -> BTreeMap<String, Outcome> {
        let one = |claim: ClaimRef| async move {
            let uid = claim.uid.clone();
            (uid, self.one(kind, claim).await)
        };
        join_all(claims.map(one)).await.into_iter().collect()
    }

    fn one(&self, kind: CallKind, claim: ClaimRef) -> impl Future<Output = Outcome> + Send {
        let driver = self.driver.clone();
        async move {
            if !is_uid(&claim.uid) {
                return Err(format!("claim {claim}: that is no UID"));
            }
            match driver.call(kind, claim).await {
                Some(Answer::Prepared(devices)) => Ok(devices),
                Some(Answer::Unprepared) => Ok(Vec::new()),
                Some(Answer::Refused(refusal)) => Err(refusal.to_string()),
                None => Err("the driver is stopping".to_owned()),
            }
        }
    }
}

/// Letters, digits and dashes: nothing that means something in a path.
pub(crate) fn is_uid(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    !text.is_empty() && text.len() <= MAX_UID_BYTES && text.bytes().all(plain)
}

macro_rules! serve {
    ($version:ident, |$device:ident| $convert:expr) => {
        #[tonic::async_trait]
        impl $version::dra_plugin_server::DraPlugin for Calls {
            async fn node_prepare_resources(
                &self,
                request: Request<$version::NodePrepareResourcesRequest>,
            ) -> Result<Response<$version::NodePrepareResourcesResponse>, Status> {
                let claims = request.into_inner().claims.into_iter();
                let named = claims.map(|claim| ClaimRef {
                    uid: claim.uid,
                    namespace: claim.namespace,
                    name: claim.name,
                });
                let outcomes = self.each(CallKind::Prepare, named).await;
                let entry = |outcome: Outcome| match outcome {
                    Ok(devices) => $version::NodePrepareResourceResponse {
                        devices: devices.into_iter().map(|$device| $convert).collect(),
                        error: String::new(),
                    },
                    Err(error) => $version::NodePrepareResourceResponse {
                        devices: Vec::new(),
                        error,
                    },
                };
                Ok(Response::new($version::NodePrepareResourcesResponse {
                    claims: outcomes
                        .into_iter()
                        .map(|(uid, outcome)| (uid, entry(outcome)))
                        .collect(),
                }))
            }

            async fn node_unprepare_resources(
                &self,
                request: Request<$version::NodeUnprepareResourcesRequest>,
            ) -> Result<Response<$version::NodeUnprepareResourcesResponse>, Status> {
                let claims = request.into_inner().claims.into_iter();
                let named = claims.map(|claim| ClaimRef {
                    uid: claim.uid,
                    namespace: claim.namespace,
                    name: claim.name,
                });
                let outcomes = self.each(CallKind::Unprepare, named).await;
                let entry = |outcome: Outcome| $version::NodeUnprepareResourceResponse {
                    error: outcome.err().unwrap_or_default(),
                };
                Ok(Response::new($version::NodeUnprepareResourcesResponse {
                    claims: outcomes
                        .into_iter()
                        .map(|(uid, outcome)| (uid, entry(outcome)))
                        .collect(),
                }))
            }
        }
    };
}

serve!(v1, |device| v1::Device {
    request_names: vec![device.request],
    pool_name: device.pool,
    device_name: device.device,
    cdi_device_ids: vec![device.cdi_id],
    share_id: None,
});

serve!(v1beta1, |device| v1beta1::Device {
    request_names: vec![device.request],
    pool_name: device.pool,
    device_name: device.device,
    cdi_device_ids: vec![device.cdi_id],
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_cannot_mean_a_path_is_a_uid() {
        for good in ["0d9a1f4e-1111-2222-3333-444455556666", "A1"] {
            assert!(is_uid(good), "{good}");
        }
        let long = "a".repeat(65);
        for bad in ["", "../x", "a/b", "a.b", "a b", "ä", &long] {
            assert!(!is_uid(bad), "{bad}");
        }
    }
}
