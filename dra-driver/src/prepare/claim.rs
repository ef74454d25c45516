//! A ResourceClaim, reduced to what this driver needs of it.

use k8s_openapi::api::resource::v1::ResourceClaim;
use serde::{Deserialize, Serialize};

/// Which claim, as the kubelet names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClaimRef {
    /// UID.
    pub uid: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl std::fmt::Display for ClaimRef {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "{}/{} (UID {})",
            self.namespace, self.name, self.uid
        )
    }
}

/// A claim as it was read from the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Which claim it is.
    pub reference: ClaimRef,
    /// UIDs of the pods that it is reserved for.
    pub pods: Vec<String>,
    /// The part of its allocation that this driver handles, in the order of the allocation; `None` while it is not allocated.
    pub devices: Option<Vec<AllocatedDevice>>,
}

/// One result of an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatedDevice {
    /// Name of the main request: the kubelet does not know sub-requests.
    pub request: String,
    /// Pool.
    pub pool: String,
    /// Name in the pool.
    pub device: String,
    /// Whether it was allocated for administrative access.
    pub admin_access: bool,
}

/// A claim without the fields that every stored object has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the ResourceClaim has no metadata.{0}")]
pub struct MalformedClaim(&'static str);

impl Claim {
    /// Reads what concerns `driver`.
    pub fn read(object: &ResourceClaim, driver: &str) -> Result<Self, MalformedClaim> {
        let metadata = &object.metadata;
        let reference = ClaimRef {
            uid: metadata.uid.clone().ok_or(MalformedClaim("uid"))?,
            namespace: metadata
                .namespace
                .clone()
                .ok_or(MalformedClaim("namespace"))?,
            name: metadata.name.clone().ok_or(MalformedClaim("name"))?,
        };
        let status = object.status.as_ref();
        let pods = status
            .and_then(|status| status.reserved_for.as_ref())
            .into_iter()
            .flatten()
            .filter(|consumer| {
                consumer.resource == "pods"
                    && consumer.api_group.as_deref().unwrap_or_default().is_empty()
            })
            .map(|consumer| consumer.uid.clone())
            .collect();
        let devices = status
            .and_then(|status| status.allocation.as_ref())
            .map(|allocation| {
                allocation
                    .devices
                    .as_ref()
                    .and_then(|devices| devices.results.as_ref())
                    .into_iter()
                    .flatten()
                    .filter(|result| result.driver == driver)
                    .map(|result| AllocatedDevice {
                        request: main_request(&result.request).to_owned(),
                        pool: result.pool.clone(),
                        device: result.device.clone(),
                        admin_access: result.admin_access.unwrap_or(false),
                    })
                    .collect()
            });
        Ok(Self {
            reference,
            pods,
            devices,
        })
    }
}

/// `gpu/large` is an alternative of the request `gpu`.
fn main_request(request: &str) -> &str {
    request.split_once('/').map_or(request, |(main, _)| main)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(json: serde_json::Value) -> ResourceClaim {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn only_our_results_and_only_pods_count_and_sub_requests_are_stripped() {
        let object = claim(serde_json::json!({
            "metadata": {"uid": "c-1", "namespace": "ml", "name": "train"},
            "spec": {},
            "status": {
                "reservedFor": [
                    {"resource": "pods", "name": "p", "uid": "p-1"},
                    {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "g-1"},
                ],
                "allocation": {"devices": {"results": [
                    {"request": "gpu/large", "driver": "gpu.muster.dev", "pool": "node-0", "device": "gpu-3"},
                    {"request": "nic", "driver": "nic.example.com", "pool": "node-0", "device": "nic-0"},
                    {"request": "look", "driver": "gpu.muster.dev", "pool": "node-0", "device": "gpu-4", "adminAccess": true},
                ]}},
            },
        }));
        let read = Claim::read(&object, "gpu.muster.dev").unwrap();
        assert_eq!(read.pods, ["p-1"]);
        let devices: Vec<_> = read
            .devices
            .unwrap()
            .into_iter()
            .map(|device| (device.request, device.device, device.admin_access))
            .collect();
        assert_eq!(
            devices,
            [
                ("gpu".to_owned(), "gpu-3".to_owned(), false),
                ("look".to_owned(), "gpu-4".to_owned(), true)
            ]
        );
    }

    #[test]
    fn a_claim_without_allocation_is_told_from_one_without_devices_of_ours() {
        let metadata = serde_json::json!({"uid": "c-1", "namespace": "ml", "name": "train"});
        let waiting = claim(serde_json::json!({"metadata": metadata, "spec": {}}));
        assert_eq!(
            Claim::read(&waiting, "gpu.muster.dev").unwrap().devices,
            None
        );
        let foreign = claim(serde_json::json!({
            "metadata": metadata, "spec": {}, "status": {"allocation": {"devices": {"results": []}}},
        }));
        assert_eq!(
            Claim::read(&foreign, "gpu.muster.dev").unwrap().devices,
            Some(vec![])
        );
    }
}
