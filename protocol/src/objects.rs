//! Facts of objects that the protocol decides by, and the keys under which they are written.

use k8s_openapi::api::core::v1::Pod;
use muster_api::{Gang, Intent, LedgerSpec, keys};

use muster_cluster::{
    formed::GangKey,
    index::{Index, NamespacedName},
    object::{Kind, ObjectKey},
};

/// The key of a Gang.
pub(crate) fn gang_object(key: &GangKey) -> ObjectKey {
    ObjectKey {
        kind: Kind::Gang,
        namespace: key.namespace.clone(),
        name: key.name.clone(),
    }
}

/// Namespace and name of a Gang.
pub(crate) fn key_of(gang: &Gang) -> Option<GangKey> {
    Some(GangKey {
        namespace: gang.metadata.namespace.clone()?,
        name: gang.metadata.name.clone()?,
    })
}

/// The Gang that a pod belongs to.
pub(crate) fn gang_key_of<'a>(index: &'a Index, pod: &Pod) -> Option<&'a GangKey> {
    index.gang_of_pod(&NamespacedName::of(&pod.metadata))
}

/// The key of the Gang that an intent is about.
pub(crate) fn gang_key(intent: &Intent) -> GangKey {
    GangKey {
        namespace: intent.namespace.clone(),
        name: intent.name.clone(),
    }
}

/// The key of a node's `NodeDevices`.
pub(crate) fn node_devices_object(node: &str) -> ObjectKey {
    ObjectKey {
        kind: Kind::NodeDevices,
        namespace: String::new(),
        name: node.to_owned(),
    }
}

/// The key of a pod.
pub(crate) fn pod_object(pod: &Pod) -> ObjectKey {
    ObjectKey {
        kind: Kind::Pod,
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
    }
}

/// The key of the Ledger.
pub(crate) fn ledger_object() -> ObjectKey {
    ObjectKey {
        kind: Kind::Ledger,
        namespace: String::new(),
        name: keys::LEDGER_NAME.to_owned(),
    }
}

/// The resourceVersion of an object that the protocol writes, if it exists.
pub(crate) fn resource_version<'a>(index: &'a Index, key: &ObjectKey) -> Option<&'a str> {
    let namespaced = NamespacedName {
        namespace: key.namespace.clone(),
        name: key.name.clone(),
    };
    let metadata = match key.kind {
        Kind::Ledger => &index.ledger()?.metadata,
        Kind::Gang => {
            let key = GangKey {
                namespace: key.namespace.clone(),
                name: key.name.clone(),
            };
            &index.gang(&key)?.metadata
        }
        Kind::NodeDevices => &index.node_devices(&key.name)?.metadata,
        Kind::Pod => &index.pod(&namespaced)?.metadata,
        Kind::Queue => &index.queue(&namespaced)?.metadata,
        _ => return None,
    };
    metadata.resource_version.as_deref()
}

/// The content of the Ledger.
pub(crate) fn ledger(index: &Index) -> Option<&LedgerSpec> {
    index.ledger().map(|ledger| &ledger.spec)
}

/// The attempt that the pod is stamped with; 0 if it never was.
pub(crate) fn stamp(pod: &Pod) -> i64 {
    pod.metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(keys::ATTEMPT))
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

/// UID of a pod.
pub(crate) fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// Whether the pod carries our gate.
pub(crate) fn is_gated(pod: &Pod) -> bool {
    gates(pod).any(|gate| gate == keys::ADMISSION_GATE)
}

/// Whether the pod carries a gate that is not ours.
pub(crate) fn has_foreign_gate(pod: &Pod) -> bool {
    gates(pod).any(|gate| gate != keys::ADMISSION_GATE)
}

fn gates(pod: &Pod) -> impl Iterator<Item = &str> {
    pod.spec
        .iter()
        .filter_map(|spec| spec.scheduling_gates.as_ref())
        .flatten()
        .map(|gate| gate.name.as_str())
}

/// Whether the pod ended for good.
pub(crate) fn is_terminal(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Whether the pod is being deleted.
pub(crate) fn is_deleting(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Phase of a pod; empty if nobody said.
pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

/// The node that the pod is bound to.
pub(crate) fn bound_node(pod: &Pod) -> Option<&str> {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.node_name.as_deref())
        .filter(|node| !node.is_empty())
}

/// Whether the kubelet has the pod and could not make its sandbox yet, which comes after its claims are prepared.
pub(crate) fn waits_for_sandbox(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| &status.conditions);
    let says_so = conditions.flatten().any(|condition| {
        condition.type_ == "PodReadyToStartContainers" && condition.status == "False"
    });
    says_so && bound_node(pod).is_some() && phase(pod) == "Pending" && !is_deleting(pod)
}

/// The scheduler that is to bind the pod.
pub(crate) fn scheduler(pod: &Pod) -> &str {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.scheduler_name.as_deref())
        .filter(|name| !name.is_empty())
        .unwrap_or("default-scheduler")
}

/// Whether kube-scheduler says that the pod fits nowhere at the moment.
pub(crate) fn is_unschedulable(pod: &Pod) -> bool {
    pod.status
        .iter()
        .filter_map(|status| status.conditions.as_ref())
        .flatten()
        .any(|condition| {
            condition.type_ == "PodScheduled"
                && condition.status == "False"
                && condition.reason.as_deref() == Some("Unschedulable")
        })
}

/// Whether the pod ended or is gone: nothing it does can hold devices for long.
pub(crate) fn is_over(index: &Index, uid: &str) -> bool {
    index.pod_by_uid(uid).is_none_or(|pod| is_terminal(pod))
}
