//! What a gang takes from quota.
//!
//! A gang's charge is the **set of its claims, each once**, that an intent of it, its Gang's
//! admission or any of its permits names; the union is taken by claim UID. Whoever adds up charges
//! must therefore never add two records of the same claim.
//!
//! GPUs that a device plugin hands out belong to no ResourceClaim. A pod that asks for them has one **claim by name** for them,
//! [`ClaimByName`]: there is no such object, and it is charged, permitted and released like one. So has a pod that asks for devices of a
//! DeviceClass by the name of a resource: kube-scheduler makes its ResourceClaim only when it binds the pod.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a gang, or one pod of it, takes from quota.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Charge {
    /// Claims, grouped by what each of them costs, so that a gang of 1,024 equal claims stays small.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<ClaimsCharge>,
    /// Resources that are not claimed devices (cpu, memory); only those that a quota names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<ResourceCharge>,
}

/// Claims that cost the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimsCharge {
    /// The Flavor that is charged.
    pub flavor: String,
    /// Thousandths of a GPU that **each** claim takes; a whole GPU is 1000.
    #[schemars(range(min = 0))]
    pub gpus_milli: i64,
    /// Bytes of device memory that **each** claim takes.
    #[schemars(range(min = 0))]
    pub vram_bytes: i64,
    /// UIDs of the ResourceClaims, ascending; `POD_UID/RESOURCE` for what a device plugin hands out.
    pub uids: Vec<String>,
}

/// The claim of a pod for what a device plugin hands out to it. No ResourceClaim is called so: its UID holds no slash, and where one is
/// made up of its namespace and name, namespaces have no dot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimByName<'a> {
    /// UID of the pod.
    pub pod_uid: &'a str,
    /// The extended resource, such as `nvidia.com/gpu`.
    pub resource: &'a str,
}

impl<'a> ClaimByName<'a> {
    /// Reads what stands where a claim's UID does; `None`: it is the UID of a ResourceClaim.
    pub fn parse(uid: &'a str) -> Option<Self> {
        let (before, _) = uid.rsplit_once('/')?;
        let (pod_uid, domain) = before.rsplit_once('/')?;
        let resource = uid.get(pod_uid.len() + 1..)?;
        domain.contains('.').then_some(Self { pod_uid, resource })
    }

    /// Whether a driver prepares, and proves to be released, what stands there where a claim's UID does: a ResourceClaim, or what
    /// kube-scheduler makes one for. Of what a device plugin hands out no driver of ours has a say.
    pub fn driver_prepares(uid: &'a str) -> bool {
        Self::parse(uid).is_none_or(|name| name.device_class().is_some())
    }

    /// The DeviceClass whose devices it stands for: those of a claim that kube-scheduler makes once the pod is let go. `None`: a device
    /// plugin hands out what it stands for, and no driver has a say about it.
    ///
    /// Whatever name the pod asks by, such a claim is called by the class
    /// ([`DEVICE_CLASS_RESOURCE_PREFIX`](crate::keys::DEVICE_CLASS_RESOURCE_PREFIX)): a class may be given another name at any time, and
    /// a permit that is written stands.
    pub fn device_class(&self) -> Option<&'a str> {
        self.resource
            .strip_prefix(crate::keys::DEVICE_CLASS_RESOURCE_PREFIX)
    }
}

impl fmt::Display for ClaimByName<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.pod_uid, self.resource)
    }
}

/// An amount of a resource that is not a claimed device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceCharge {
    /// The Flavor that is charged.
    pub flavor: String,
    /// `cpu` (thousandths of a core), `memory` (bytes) or an extended resource (units).
    pub resource: String,
    /// The amount, in the unit that `resource` says.
    #[schemars(range(min = 0))]
    pub amount: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_by_name_is_told_from_the_uid_of_a_resource_claim() {
        let pod_uid = "6f1d0c5e-5e0a-4c5e-9d0b-1c2f3a4b5c6d";
        let claim = ClaimByName {
            pod_uid,
            resource: "nvidia.com/gpu",
        };
        let text = claim.to_string();
        assert_eq!(ClaimByName::parse(&text), Some(claim));
        assert_eq!(ClaimByName::parse(pod_uid), None);
        // What a node alone knows of a ResourceClaim is called after the node; and whoever makes UIDs up may use paths.
        for uid in [
            format!("node-1.example.com/{pod_uid}"),
            "resourceclaim/ml/train-0.gpus".to_owned(),
            "node-1.example.com/resourceclaim/ml/train".to_owned(),
        ] {
            assert_eq!(ClaimByName::parse(&uid), None, "{uid}");
        }
        let pod_uid = "pod/ml/train";
        let claim = ClaimByName { pod_uid, ..claim };
        assert_eq!(ClaimByName::parse(&claim.to_string()), Some(claim));
    }

    #[test]
    fn a_driver_prepares_every_resource_claim() {
        assert!(ClaimByName::driver_prepares(
            "6f1d0c5e-5e0a-4c5e-9d0b-1c2f3a4b5c6d"
        ));
    }

    #[test]
    fn a_claim_by_the_name_of_a_class_is_told_from_what_a_device_plugin_hands_out() {
        for (resource, class) in [
            (
                "deviceclass.resource.kubernetes.io/gpu.muster.dev",
                Some("gpu.muster.dev"),
            ),
            ("nvidia.com/gpu", None),
        ] {
            let name = ClaimByName {
                pod_uid: "6f1d0c5e",
                resource,
            };
            let text = name.to_string();
            let read = ClaimByName::parse(&text).unwrap();
            assert_eq!((read, read.device_class()), (name, class));
            assert_eq!(ClaimByName::driver_prepares(&text), class.is_some());
        }
    }
}
