//! What claims are charged and permitted as.
//!
//! It is their UID, but for those that kube-scheduler makes for a pod that asks for GPUs by the name of a resource: these exist only once
//! the pod is bound, so it is the pod and its DeviceClass (docs/adr/0028).

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::ResourceExt;

use super::world;

/// Annotation by which kube-scheduler marks a claim that it made.
const MADE_BY_SCHEDULER: &str = "resource.kubernetes.io/extended-resource-claim";
/// How the resource is called that stands for devices of a class, but for the class.
const OF_CLASS: &str = "deviceclass.resource.kubernetes.io/";

/// Every claim that kube-scheduler made, by UID, with what it is charged as. None is forgotten: a container is judged by its claim after
/// that is gone.
#[derive(Debug, Default)]
pub(super) struct ClaimNames {
    by_uid: BTreeMap<String, String>,
}

impl ClaimNames {
    /// A claim was written.
    pub(super) fn note(&mut self, claim: &ResourceClaim) {
        if let Some(name) = name(claim) {
            self.by_uid.insert(world::uid(claim), name);
        }
    }

    /// What the claim with this UID is charged as.
    pub(super) fn charged_as<'a>(&'a self, uid: &'a str) -> &'a str {
        self.by_uid.get(uid).map_or(uid, String::as_str)
    }

    /// UID of the claim that is charged as this; `None`: kube-scheduler made none so far.
    pub(super) fn uid_of(&self, charged_as: &str) -> Option<&str> {
        let mut named = self.by_uid.iter();
        named
            .find(|(_, name)| *name == charged_as)
            .map(|(uid, _)| uid.as_str())
    }
}

fn name(claim: &ResourceClaim) -> Option<String> {
    if claim.annotations().get(MADE_BY_SCHEDULER)? != "true" {
        return None;
    }
    let owner = claim.metadata.owner_references.as_ref()?;
    let pod = owner.iter().find(|owner| owner.kind == "Pod")?;
    let devices = claim.spec.as_ref()?.devices.as_ref()?;
    let request = devices.requests.as_ref()?.first()?;
    let class = &request.exactly.as_ref()?.device_class_name;
    Some(format!("{}/{OF_CLASS}{class}", pod.uid))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_claim_that_kube_scheduler_made_is_charged_as_its_pod_and_class() {
        let claim = |annotation: &str| -> ResourceClaim {
            serde_json::from_value(json!({
                "metadata": {"name": "claim", "uid": "c", "annotations": {MADE_BY_SCHEDULER: annotation},
                    "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "pod", "uid": "p", "controller": true}]},
                "spec": {"devices": {"requests": [{"name": "gpus", "exactly": {"deviceClassName": "gpu.muster.dev"}}]}}
            }))
            .unwrap()
        };
        let mut names = ClaimNames::default();
        names.note(&claim("false"));
        assert_eq!(names.charged_as("c"), "c");
        names.note(&claim("true"));
        let name = "p/deviceclass.resource.kubernetes.io/gpu.muster.dev";
        assert_eq!(names.charged_as("c"), name);
        assert_eq!(names.uid_of(name), Some("c"));
        assert_eq!(names.uid_of("c"), None);
    }
}
