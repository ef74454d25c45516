//! Facts of objects that the protocol decides by, and the keys under which they are written.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use muster_api::{Gang, Intent, LedgerSpec, keys};

use muster_cluster::{
    formed::GangKey,
    index::{Index, NamespacedName},
    object::{Kind, Object, ObjectKey},
    pod::{self, ObservedPod, PodFields},
};

pub(crate) use muster_cluster::pod::{
    bound_to as bound_node, is_deleting, is_gated, is_terminal, is_unschedulable, phase, stamp,
    uid, waits_for_sandbox,
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
    Some(GangKey::new(
        gang.metadata.namespace.as_deref()?,
        gang.metadata.name.as_deref()?,
    ))
}

/// The Gang that a pod belongs to.
pub(crate) fn gang_key_of<'a>(index: &'a Index, pod: &ObservedPod) -> Option<&'a GangKey> {
    index.gang_of_pod(&NamespacedName::of_pod(pod))
}

/// The Gang that the pod of that UID belongs to.
pub(crate) fn gang_key_of_uid<'a>(index: &'a Index, pod_uid: &str) -> Option<&'a GangKey> {
    gang_key_of(index, index.pod_by_uid(pod_uid)?)
}

/// The key of the Gang that an intent is about.
pub(crate) fn gang_key(intent: &Intent) -> GangKey {
    GangKey::new(&intent.namespace, &intent.name)
}

/// The key of a Node.
pub(crate) fn node_object(node: &str) -> ObjectKey {
    ObjectKey {
        kind: Kind::Node,
        namespace: String::new(),
        name: node.to_owned(),
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
pub(crate) fn pod_object(pod: &ObservedPod) -> ObjectKey {
    ObjectKey {
        kind: Kind::Pod,
        namespace: pod.namespace().to_owned(),
        name: pod.name().to_owned(),
    }
}

/// The key of a Job.
pub(crate) fn job_object(job: &Job) -> ObjectKey {
    ObjectKey::of(Kind::Job, &job.metadata)
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
            let key = GangKey::new(&key.namespace, &key.name);
            &index.gang(&key)?.metadata
        }
        Kind::NodeDevices => &index.node_devices(&key.name)?.metadata,
        Kind::Pod => return index.pod(&namespaced)?.resource_version(),
        Kind::Job => &index.job(&namespaced)?.metadata,
        Kind::Queue => &index.queue(&namespaced)?.metadata,
        Kind::Cohort => &index.cohort(&key.name)?.metadata,
        Kind::Flavor => &index.flavor(&key.name)?.metadata,
        Kind::Team => &index.team(&key.name)?.metadata,
        Kind::PriorityTier => &index.tier(&key.name)?.metadata,
        _ => return None,
    };
    metadata.resource_version.as_deref()
}

/// An object that the protocol writes, of a kind whose definition could lack a field of what is written, as it is seen.
pub(crate) fn stored(index: &Index, key: &ObjectKey) -> Option<Object> {
    let name = &key.name;
    Some(match key.kind {
        Kind::Ledger => Object::Ledger(Arc::clone(index.ledger()?)),
        Kind::Gang => {
            let key = GangKey::new(&key.namespace, name);
            Object::Gang(Arc::clone(index.gang(&key)?))
        }
        Kind::NodeDevices => Object::NodeDevices(Arc::clone(index.node_devices(name)?)),
        Kind::Queue => {
            let key = NamespacedName::new(&key.namespace, name);
            Object::Queue(Arc::clone(index.queue(&key)?))
        }
        Kind::Cohort => Object::Cohort(Arc::clone(index.cohort(name)?)),
        Kind::Flavor => Object::Flavor(Arc::clone(index.flavor(name)?)),
        Kind::Team => Object::Team(Arc::clone(index.team(name)?)),
        Kind::PriorityTier => Object::PriorityTier(Arc::clone(index.tier(name)?)),
        _ => return None,
    })
}

/// The content of the Ledger.
pub(crate) fn ledger(index: &Index) -> Option<&LedgerSpec> {
    index.ledger().map(|ledger| &ledger.spec)
}

/// Whether the pod carries a gate that is not Muster's.
pub(crate) fn has_foreign_gate(pod: &ObservedPod) -> bool {
    pod::foreign_gate(pod).is_some()
}

/// Whether the pod ended or is gone: nothing it does can hold devices for long.
pub(crate) fn is_over(index: &Index, uid: &str) -> bool {
    index.pod_by_uid(uid).is_none_or(is_terminal)
}
