//! What the extender has seen: the members of gangs, the gangs, the nodes.
//!
//! **Everything here may be late**, each kind by its own amount, and kube-scheduler's own view is usually
//! ahead. So nothing follows from what is missing here but one thing: a Node that a synced cache does
//! not show is gone. A pod is stopped on positive evidence only; the guarantee is carried by gate, pins
//! and permits, this is the last look before a bind.
//!
//! Written by one watch task per kind, read by requests; a whole list replaces its kind at once, so a
//! reader sees the old list or the new one. Applying anything twice changes nothing (S10).

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{api::core::v1::Toleration, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use muster_api::{Gang, GangPlacement, NodeRanks};
use muster_cluster::formed::GangKey;

use crate::{
    place::NodeView,
    slim::{SlimGang, SlimNode, SlimPod},
};

/// A pod that Muster manages, as far as it decides about its gang's places.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemberView {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Name of its Gang, once the controller has written it.
    pub gang: Option<String>,
    /// Its attempt, once the controller has written it.
    pub attempt: Option<i64>,
    /// The node it is pinned to.
    pub pinned: Option<String>,
    /// Whether it needs its place no more: bound, ended, or being deleted.
    pub settled: bool,
    /// What it tolerates.
    pub tolerations: Vec<Toleration>,
}

/// A Gang, as far as the extender needs it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GangView {
    /// Its current attempt.
    pub attempt: i64,
    /// Where its pods are to run, while it holds anything.
    pub placement: Option<GangPlacement>,
    /// UIDs of its pods, in the order of the placement, while it is admitted.
    pub pods: Vec<String>,
}

impl GangView {
    /// The place of a pod in the plan: where the admission lists it.
    pub fn place_of(&self, uid: &str) -> Option<usize> {
        self.pods.iter().position(|pod| pod == uid)
    }

    /// The node that is planned for a place.
    pub fn planned_node(&self, place: usize) -> Option<&NodeRanks> {
        self.placement.as_ref()?.node_of(place)
    }
}

impl From<&Gang> for GangView {
    fn from(gang: &Gang) -> Self {
        let status = gang.status.clone().unwrap_or_default();
        Self {
            attempt: status.attempt,
            placement: status.placement,
            pods: status
                .admission
                .map(|admission| admission.pods.into_iter().map(|pod| pod.uid).collect())
                .unwrap_or_default(),
        }
    }
}

/// The whole cache.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    members: BTreeMap<String, MemberView>,
    members_of: BTreeMap<GangKey, BTreeSet<String>>,
    gangs: BTreeMap<GangKey, GangView>,
    nodes: BTreeMap<String, NodeView>,
}

impl Cache {
    /// A pod is as given.
    pub fn pod_is(&mut self, pod: &SlimPod) {
        let Some(uid) = pod.metadata.uid.clone() else {
            return;
        };
        self.forget_member(&uid);
        let Some(member) = pod.member.clone() else {
            return;
        };
        if let Some(gang) = &member.gang {
            self.members_of
                .entry(GangKey::new(member.namespace.clone(), gang.clone()))
                .or_default()
                .insert(uid.clone());
        }
        self.members.insert(uid, member);
    }

    /// A pod is gone.
    pub fn pod_gone(&mut self, pod: &ObjectMeta) {
        if let Some(uid) = &pod.uid {
            self.forget_member(uid);
        }
    }

    /// These are all pods.
    pub fn pods_are(&mut self, pods: &[SlimPod]) {
        self.members.clear();
        self.members_of.clear();
        for pod in pods {
            self.pod_is(pod);
        }
    }

    /// A Gang is as given.
    pub fn gang_is(&mut self, gang: &SlimGang) {
        self.gangs
            .insert(gang_key(&gang.metadata), gang.view.clone());
    }

    /// A Gang is gone.
    pub fn gang_gone(&mut self, gang: &ObjectMeta) {
        self.gangs.remove(&gang_key(gang));
    }

    /// These are all Gangs.
    pub fn gangs_are(&mut self, gangs: &[SlimGang]) {
        self.gangs = gangs
            .iter()
            .map(|gang| (gang_key(&gang.metadata), gang.view.clone()))
            .collect();
    }

    /// A Node is as given.
    pub fn node_is(&mut self, node: &SlimNode) {
        self.nodes
            .insert(node_name(&node.metadata), node.view.clone());
    }

    /// A Node is gone.
    pub fn node_gone(&mut self, node: &ObjectMeta) {
        self.nodes.remove(&node_name(node));
    }

    /// These are all Nodes.
    pub fn nodes_are(&mut self, nodes: &[SlimNode]) {
        self.nodes = nodes
            .iter()
            .map(|node| (node_name(&node.metadata), node.view.clone()))
            .collect();
    }

    /// The member with this pod UID.
    pub fn member(&self, uid: &str) -> Option<&MemberView> {
        self.members.get(uid)
    }

    /// The members that carry the name of this gang, by UID.
    pub fn members_of(&self, gang: &GangKey) -> impl Iterator<Item = (&str, &MemberView)> {
        self.members_of
            .get(gang)
            .into_iter()
            .flatten()
            .filter_map(|uid| Some((uid.as_str(), self.members.get(uid)?)))
    }

    /// The Gang of this name.
    pub fn gang(&self, gang: &GangKey) -> Option<&GangView> {
        self.gangs.get(gang)
    }

    /// The node of this name.
    pub fn node(&self, name: &str) -> Option<&NodeView> {
        self.nodes.get(name)
    }

    fn forget_member(&mut self, uid: &str) {
        let Some(MemberView {
            namespace,
            gang: Some(name),
            ..
        }) = self.members.remove(uid)
        else {
            return;
        };
        let gang = GangKey::new(namespace, name);
        if let Some(uids) = self.members_of.get_mut(&gang) {
            uids.remove(uid);
            if uids.is_empty() {
                self.members_of.remove(&gang);
            }
        }
    }
}

fn gang_key(gang: &ObjectMeta) -> GangKey {
    GangKey::new(
        gang.namespace.as_deref().unwrap_or_default(),
        gang.name.as_deref().unwrap_or_default(),
    )
}

fn node_name(node: &ObjectMeta) -> String {
    node.name.clone().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(value: Value) -> SlimPod {
        serde_json::from_value(value).unwrap()
    }

    fn member(uid: &str, gang: &str) -> SlimPod {
        pod(
            json!({"metadata": {"namespace": "ml", "name": uid, "uid": uid,
            "annotations": {"muster.dev/gang-name": gang, "muster.dev/attempt": "1", "muster.dev/rank": "0"}},
            "spec": {"containers": []}}),
        )
    }

    fn uids(cache: &Cache, gang: &str) -> Vec<String> {
        cache
            .members_of(&GangKey::new("ml", gang))
            .map(|(_, member)| member.name.clone())
            .collect()
    }

    #[test]
    fn a_pod_that_is_told_twice_late_or_under_another_gang_stands_once() {
        let mut cache = Cache::default();
        cache.pod_is(&member("a", "g"));
        cache.pod_is(&member("a", "g"));
        cache.pod_is(&member("b", "g"));
        assert_eq!(uids(&cache, "g"), ["a", "b"]);
        cache.pod_is(&member("a", "h"));
        assert_eq!(uids(&cache, "g"), ["b"]);
        cache.pod_gone(&member("b", "g").metadata);
        cache.pod_gone(&member("b", "g").metadata);
        assert!(cache.members_of.len() == 1 && uids(&cache, "h") == ["a"]);
        cache.pods_are(&[member("c", "g")]);
        assert!(cache.member("a").is_none(), "a whole list replaces all");
        assert_eq!(uids(&cache, "g"), ["c"]);
    }

    #[test]
    fn a_pod_that_muster_does_not_manage_is_not_kept() {
        let mut cache = Cache::default();
        cache.pod_is(&pod(
            json!({"metadata": {"uid": "x"}, "spec": {"containers": []}}),
        ));
        assert!(cache.member("x").is_none());
        cache.pod_is(&pod(json!({"metadata": {"uid": "x"},
            "spec": {"containers": [], "schedulingGates": [{"name": "muster.dev/admission"}]}})));
        assert!(cache.member("x").is_some());
    }

    #[test]
    fn a_member_needs_its_place_until_it_is_bound_ended_or_deleted() {
        for (pod_value, settled) in [
            (json!({"spec": {"containers": []}}), false),
            (json!({"spec": {"containers": [], "nodeName": "n"}}), true),
            (
                json!({"spec": {"containers": []}, "status": {"phase": "Failed"}}),
                true,
            ),
            (
                json!({"spec": {"containers": []}, "status": {"phase": "Pending"}}),
                false,
            ),
        ] {
            let mut value = pod_value.clone();
            value["metadata"] = json!({"uid": "u", "annotations": {"muster.dev/gang-name": "g"}});
            assert_eq!(pod(value).member.unwrap().settled, settled, "{pod_value}");
        }
    }
}
