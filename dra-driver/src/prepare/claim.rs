//! A ResourceClaim, reduced to what this driver needs of it.

use k8s_openapi::api::resource::v1::{DeviceAllocationResult, DeviceToleration, ResourceClaim};
use muster_cluster::{device_config, device_plugin};
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
    /// What it is permitted as, if kube-scheduler made it for what a pod asks for by the name of a resource: it had no UID yet when the pod
    /// was admitted.
    pub by_name: Option<String>,
    /// Why parameters that it, or its DeviceClass, has for this driver cannot be used; `None`: they can, or there are none.
    pub invalid_config: Option<String>,
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
    /// Taints that it was allocated in spite of, of those that keep what is new off a device.
    pub tolerations: Vec<Toleration>,
}

/// A taint that is tolerated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toleration {
    /// Its key; `None`: whatever its key.
    pub key: Option<String>,
    /// Its value; `None`: whatever its value.
    pub value: Option<String>,
}

impl Toleration {
    /// As kube-scheduler reads it (`resource.k8s.io/v1`); `None` of one that is about other effects, or says what nobody knows.
    fn read(toleration: &DeviceToleration) -> Option<Self> {
        let about = toleration.effect.as_deref().unwrap_or_default();
        if !matches!(about, "" | "NoSchedule") {
            return None;
        }
        let key = toleration.key.clone().filter(|key| !key.is_empty());
        let value = match toleration.operator.as_deref().unwrap_or("Equal") {
            "Exists" => None,
            "Equal" if key.is_some() => Some(toleration.value.clone().unwrap_or_default()),
            _ => return None,
        };
        Some(Self { key, value })
    }

    /// Whether it is about this taint.
    pub(super) fn tolerates(&self, key: &str, value: &str) -> bool {
        self.key.as_deref().is_none_or(|own| own == key)
            && self.value.as_deref().is_none_or(|own| own == value)
    }
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
                        tolerations: result
                            .tolerations
                            .iter()
                            .flatten()
                            .filter_map(Toleration::read)
                            .collect(),
                    })
                    .collect()
            });
        let allocation = status.and_then(|status| status.allocation.as_ref());
        let allocated = allocation.and_then(|allocation| allocation.devices.as_ref());
        Ok(Self {
            reference,
            by_name: device_plugin::made_by_scheduler(object),
            invalid_config: allocated.and_then(invalid_config),
            pods,
            devices,
        })
    }

    /// What stands for it in permits and charges: its UID, or the name that it is permitted by.
    pub(super) fn permitted_as(&self) -> &str {
        self.by_name.as_deref().unwrap_or(&self.reference.uid)
    }
}

/// The first thing that is wrong with parameters for our driver. The webhook says it when the claim is created, if it is asked.
fn invalid_config(allocated: &DeviceAllocationResult) -> Option<String> {
    let config = allocated.config.iter().flatten().enumerate();
    let mut ours = config.filter_map(|(index, one)| {
        let field = format!("status.allocation.devices.config[{index}].opaque.parameters");
        Some((field, device_config::of_ours(one.opaque.as_ref()?)?))
    });
    ours.find_map(|(field, parameters)| {
        let errors = device_config::read(parameters, &field).err()?;
        errors.first().map(ToString::to_string)
    })
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
    fn parameters_that_are_not_known_are_told_and_those_of_other_drivers_are_not_read() {
        let of = |driver: &str, parameters: serde_json::Value| {
            let config = serde_json::json!({"source": "FromClaim", "opaque": {"driver": driver, "parameters": parameters}});
            let object = claim(serde_json::json!({
                "metadata": {"uid": "c-1", "namespace": "ml", "name": "train"}, "spec": {},
                "status": {"allocation": {"devices": {"config": [config], "results": []}}},
            }));
            Claim::read(&object, "gpu.muster.dev")
                .unwrap()
                .invalid_config
        };
        let good =
            serde_json::json!({"apiVersion": "gpu.muster.dev/v1alpha1", "kind": "DeviceConfig"});
        let mut bad = good.clone();
        bad["sharing"] = serde_json::json!("MPS");
        assert_eq!(of("gpu.muster.dev", good), None);
        assert_eq!(of("gpu.example.com", bad.clone()), None);
        let told = of("gpu.muster.dev", bad).unwrap();
        let field = "status.allocation.devices.config[0].opaque.parameters.sharing: ";
        assert!(told.starts_with(field), "{told}");
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
    fn tolerations_are_read_as_kube_scheduler_reads_them() {
        let read = |toleration: serde_json::Value| {
            let toleration: DeviceToleration = serde_json::from_value(toleration).unwrap();
            Toleration::read(&toleration)
        };
        let is_about = |toleration: serde_json::Value, key: &str, value: &str| {
            read(toleration).is_some_and(|it| it.tolerates(key, value))
        };
        for (toleration, key, value, tolerates) in [
            (serde_json::json!({"operator": "Exists"}), "a", "x", true),
            (
                serde_json::json!({"key": "a", "operator": "Exists"}),
                "a",
                "x",
                true,
            ),
            (
                serde_json::json!({"key": "a", "operator": "Exists"}),
                "b",
                "x",
                false,
            ),
            (
                serde_json::json!({"key": "a", "value": "x"}),
                "a",
                "x",
                true,
            ),
            (
                serde_json::json!({"key": "a", "value": "x"}),
                "a",
                "y",
                false,
            ),
            (serde_json::json!({"key": "a"}), "a", "x", false),
            (
                serde_json::json!({"key": "a", "operator": "Exists", "effect": "NoSchedule"}),
                "a",
                "x",
                true,
            ),
            (
                serde_json::json!({"key": "a", "operator": "Exists", "effect": "NoExecute"}),
                "a",
                "x",
                false,
            ),
            (
                serde_json::json!({"key": "a", "operator": "Near"}),
                "a",
                "x",
                false,
            ),
            (serde_json::json!({}), "", "", false),
        ] {
            let found = is_about(toleration.clone(), key, value);
            assert_eq!(found, tolerates, "{toleration} {key}={value}");
        }
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
