//! Pods, Gangs and nodes as they are received: what the filter reads of them, and nothing else.
//!
//! A watch keeps a whole list until it is complete. Of a hundred thousand pods, or of nodes with their lists of images,
//! that is gigabytes; what is needed of them is kilobytes. So they are cut down as they are decoded, one by one.

use std::borrow::Cow;

use k8s_openapi::{
    ClusterResourceScope, Metadata, NamespaceResourceScope,
    api::core::v1::{Affinity, Node, NodeCondition, Pod, PodSchedulingGate, Taint, Toleration},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::Resource;
use muster_api::{Gang, keys};
use serde::Deserialize;

use crate::{
    cache::{GangView, MemberView},
    pin::pinned_node,
    place::NodeView,
};

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "ReceivedPod")]
pub struct SlimPod {
    /// Name, namespace, UID and resourceVersion.
    pub metadata: ObjectMeta,
    /// What decides about its gang's places; none where the pod carries neither our gate nor our annotations.
    pub member: Option<MemberView>,
}

/// A Gang.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(from = "Gang")]
pub struct SlimGang {
    /// Name, namespace, UID and resourceVersion.
    pub metadata: ObjectMeta,
    /// Its plan.
    pub view: GangView,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(from = "ReceivedNode")]
pub struct SlimNode {
    /// Name, UID and resourceVersion.
    pub metadata: ObjectMeta,
    /// What decides about places.
    pub view: NodeView,
}

/// What is read of a pod before it is cut down; everything else is skipped by the decoder.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ReceivedPod {
    metadata: ObjectMeta,
    spec: ReceivedPodSpec,
    status: ReceivedPodStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ReceivedPodSpec {
    node_name: Option<String>,
    affinity: Option<Affinity>,
    tolerations: Option<Vec<Toleration>>,
    scheduling_gates: Option<Vec<PodSchedulingGate>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ReceivedPodStatus {
    phase: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ReceivedNode {
    metadata: ObjectMeta,
    spec: ReceivedNodeSpec,
    status: ReceivedNodeStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ReceivedNodeSpec {
    unschedulable: Option<bool>,
    taints: Option<Vec<Taint>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ReceivedNodeStatus {
    conditions: Option<Vec<NodeCondition>>,
}

impl From<ReceivedPod> for SlimPod {
    fn from(pod: ReceivedPod) -> Self {
        let member = member(&pod);
        Self {
            metadata: identity(pod.metadata),
            member,
        }
    }
}

impl From<Gang> for SlimGang {
    fn from(gang: Gang) -> Self {
        Self {
            view: GangView::from(&gang),
            metadata: identity(gang.metadata),
        }
    }
}

impl From<ReceivedNode> for SlimNode {
    fn from(node: ReceivedNode) -> Self {
        let view = NodeView::new(
            &node.metadata,
            node.spec.unschedulable.unwrap_or_default(),
            node.spec.taints.unwrap_or_default(),
            &node.status.conditions.unwrap_or_default(),
        );
        Self {
            metadata: identity(node.metadata),
            view,
        }
    }
}

/// What a watch needs of metadata.
fn identity(metadata: ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace,
        uid: metadata.uid,
        resource_version: metadata.resource_version,
        ..ObjectMeta::default()
    }
}

fn member(pod: &ReceivedPod) -> Option<MemberView> {
    let spec = &pod.spec;
    let annotation = |key: &str| pod.metadata.annotations.as_ref()?.get(key).cloned();
    let gang = annotation(keys::GANG_NAME);
    let mut gates = spec.scheduling_gates.iter().flatten();
    if gang.is_none() && !gates.any(|gate| gate.name == keys::ADMISSION_GATE) {
        return None;
    }
    let ended = matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed"));
    let bound = spec.node_name.as_ref().is_some_and(|node| !node.is_empty());
    Some(MemberView {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        gang,
        attempt: annotation(keys::ATTEMPT).and_then(|text| text.parse().ok()),
        pinned: pinned_node(spec.affinity.as_ref()).map(str::to_owned),
        settled: ended || bound || pod.metadata.deletion_timestamp.is_some(),
        tolerations: spec.tolerations.clone().unwrap_or_default(),
    })
}

/// Says that a type is decoded from the objects of a Kubernetes kind.
macro_rules! received_as {
    ($slim:ty, $kind:ty, $scope:ty) => {
        impl k8s_openapi::Resource for $slim {
            const API_VERSION: &'static str = <$kind as k8s_openapi::Resource>::API_VERSION;
            const GROUP: &'static str = <$kind as k8s_openapi::Resource>::GROUP;
            const KIND: &'static str = <$kind as k8s_openapi::Resource>::KIND;
            const VERSION: &'static str = <$kind as k8s_openapi::Resource>::VERSION;
            const URL_PATH_SEGMENT: &'static str =
                <$kind as k8s_openapi::Resource>::URL_PATH_SEGMENT;
            type Scope = $scope;
        }

        impl Metadata for $slim {
            type Ty = ObjectMeta;

            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

/// It is decoded from Gangs.
impl Resource for SlimGang {
    type DynamicType = ();
    type Scope = <Gang as Resource>::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        Gang::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Gang::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Gang::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Gang::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

received_as!(SlimPod, Pod, NamespaceResourceScope);
received_as!(SlimNode, Node, ClusterResourceScope);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The heap and the stack of what is kept, roughly: its debug output names all of it.
    fn weight(value: &impl std::fmt::Debug) -> usize {
        format!("{value:?}").len()
    }

    #[test]
    fn what_is_kept_of_a_pod_does_not_grow_with_the_pod() {
        let large = json!({"metadata": {"name": "p", "namespace": "ml", "uid": "u", "resourceVersion": "7",
                "labels": {"l": "x".repeat(10_000)},
                "annotations": {"muster.dev/gang-name": "g", "note": "x".repeat(100_000)}},
            "spec": {"containers": [{"name": "c", "env": [{"name": "E", "value": "x".repeat(100_000)}]}]},
            "status": {"conditions": [{"type": "Ready", "status": "True", "message": "x".repeat(10_000)}]}});
        let pod: SlimPod = serde_json::from_value(large).unwrap();
        assert!(weight(&pod) < 2_000, "{}", weight(&pod));
        assert_eq!(pod.metadata.resource_version.as_deref(), Some("7"));
        assert_eq!(pod.member.unwrap().gang.as_deref(), Some("g"));
    }

    #[test]
    fn what_is_kept_of_a_node_does_not_grow_with_its_images() {
        let image = json!({"names": ["x".repeat(1000)], "sizeBytes": 1});
        let large = json!({"metadata": {"name": "n", "uid": "u", "labels": {"l": "x".repeat(10_000)}},
            "spec": {"unschedulable": true},
            "status": {"images": vec![image; 50], "conditions": [{"type": "Ready", "status": "True"}]}});
        let node: SlimNode = serde_json::from_value(large).unwrap();
        assert!(weight(&node) < 2_000, "{}", weight(&node));
        assert!(node.view.cordoned && node.view.not_ready_since.is_none());
    }

    #[test]
    fn what_is_kept_of_a_gang_does_not_grow_with_what_it_tells() {
        let condition = json!({"type": "QuotaReserved", "status": "False", "reason": "NoQuota",
            "message": "x".repeat(10_000), "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let large = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "Gang",
            "metadata": {"name": "g", "namespace": "ml", "uid": "u", "resourceVersion": "7",
                "annotations": {"note": "x".repeat(100_000)}},
            "spec": {"size": 1, "tier": "standard"},
            "status": {"attempt": 3, "conditions": [condition]}});
        let gang: SlimGang = serde_json::from_value(large).unwrap();
        assert!(weight(&gang) < 2_000, "{}", weight(&gang));
        assert_eq!(gang.metadata.resource_version.as_deref(), Some("7"));
        assert_eq!(gang.view.attempt, 3);
    }

    #[test]
    fn what_is_slim_is_watched_where_the_whole_is() {
        assert_eq!(
            SlimGang::url_path(&(), Some("ml")),
            Gang::url_path(&(), Some("ml"))
        );
        assert_eq!(
            SlimPod::url_path(&(), Some("ml")),
            Pod::url_path(&(), Some("ml"))
        );
        assert_eq!(SlimNode::url_path(&(), None), Node::url_path(&(), None));
    }
}
