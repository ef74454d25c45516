//! Pods by what they are looked up by, and which gang each belongs to.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::Pod;

use super::{NamespacedName, store::Links};
use crate::{
    formed::GangKey,
    gangs::{self, Belonging, Group},
};

/// Where pods are found by node, claim and Job.
#[derive(Debug, Default)]
pub(super) struct PodLinks {
    /// Names by UID.
    pub(super) names: BTreeMap<String, NamespacedName>,
    pub(super) of_node: Links<String, NamespacedName>,
    /// By the claims that they name, existing or not.
    pub(super) of_claim: Links<NamespacedName, NamespacedName>,
    /// By the UID of the Job that controls them.
    pub(super) of_job: Links<String, NamespacedName>,
}

impl PodLinks {
    pub(super) fn replace(&mut self, key: &NamespacedName, old: Option<&Pod>, new: Option<&Pod>) {
        if let Some(old) = old {
            self.names.remove(gangs::uid(old));
            if let Some(node) = gangs::bound_to(old) {
                self.of_node.unlink(&node.to_owned(), key);
            }
            for claim in named_claims(old) {
                self.of_claim.unlink(&claim, key);
            }
            if let Some(job) = gangs::controlling_job(old) {
                self.of_job.unlink(&job.uid, key);
            }
        }
        if let Some(new) = new {
            self.names.insert(gangs::uid(new).to_owned(), key.clone());
            if let Some(node) = gangs::bound_to(new) {
                self.of_node.link(node.to_owned(), key.clone());
            }
            for claim in named_claims(new) {
                self.of_claim.link(claim, key.clone());
            }
            if let Some(job) = gangs::controlling_job(new) {
                self.of_job.link(job.uid.clone(), key.clone());
            }
        }
    }
}

/// The claims that a pod names, itself or by its status for generated ones.
fn named_claims(pod: &Pod) -> Vec<NamespacedName> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let by_name = pod
        .spec
        .iter()
        .flat_map(|spec| spec.resource_claims.iter().flatten())
        .filter_map(|claim| claim.resource_claim_name.as_deref());
    let generated = pod
        .status
        .iter()
        .flat_map(|status| status.resource_claim_statuses.iter().flatten())
        .filter_map(|status| status.resource_claim_name.as_deref());
    by_name
        .chain(generated)
        .map(|name| NamespacedName::new(namespace, name))
        .collect()
}

/// Which pods belong to which gang.
#[derive(Debug, Default)]
pub(super) struct Membership {
    of_pod: BTreeMap<NamespacedName, Belonging>,
    by_group: Links<Group, NamespacedName>,
    by_name: Links<GangKey, NamespacedName>,
    /// The Gang that each group means, as of the last refresh.
    keys: BTreeMap<Group, GangKey>,
    groups: Links<GangKey, Group>,
}

/// What a change of membership touches.
#[derive(Debug, Default)]
pub(super) struct Touches {
    pub(super) groups: Vec<Group>,
    pub(super) gangs: Vec<GangKey>,
}

impl Membership {
    /// Says where a pod belongs; `None`: nowhere, or it is gone.
    pub(super) fn set(&mut self, pod: &NamespacedName, belonging: Option<Belonging>) -> Touches {
        let mut touches = Touches::default();
        if let Some(old) = self.of_pod.remove(pod) {
            self.unlink(pod, &old);
            touches.extend(old);
        }
        if let Some(new) = belonging {
            if let Some(named) = &new.named {
                self.by_name.link(named.clone(), pod.clone());
            }
            if let Some(group) = &new.group {
                self.by_group.link(group.clone(), pod.clone());
            }
            touches.extend(new.clone());
            self.of_pod.insert(pod.clone(), new);
        }
        touches
    }

    fn unlink(&mut self, pod: &NamespacedName, belonging: &Belonging) {
        if let Some(named) = &belonging.named {
            self.by_name.unlink(named, pod);
        }
        if let Some(group) = &belonging.group {
            self.by_group.unlink(group, pod);
        }
    }

    /// Says which Gang a group means; returns the Gangs that this touches.
    pub(super) fn resolve(&mut self, group: &Group, key: Option<GangKey>) -> Vec<GangKey> {
        let old = self.keys.remove(group);
        if let Some(old) = &old {
            self.groups.unlink(old, group);
        }
        if let Some(key) = &key {
            self.groups.link(key.clone(), group.clone());
            self.keys.insert(group.clone(), key.clone());
        }
        old.into_iter().chain(key).collect()
    }

    pub(super) fn gang_of(&self, pod: &NamespacedName) -> Option<&GangKey> {
        let belonging = self.of_pod.get(pod)?;
        belonging
            .named
            .as_ref()
            .or_else(|| self.keys.get(belonging.group.as_ref()?))
    }

    pub(super) fn group_of(&self, pod: &NamespacedName) -> Option<&Group> {
        self.of_pod.get(pod)?.group.as_ref()
    }

    /// Pods of a group, whatever gang they are named to be of.
    pub(super) fn in_group(&self, group: &Group) -> impl Iterator<Item = &NamespacedName> {
        self.by_group.of(group)
    }

    /// Pods of a gang: those that are named so, and the unnamed ones of its groups.
    pub(super) fn in_gang(&self, key: &GangKey) -> impl Iterator<Item = &NamespacedName> {
        let unnamed = |pod: &&NamespacedName| {
            self.of_pod
                .get(*pod)
                .is_some_and(|belonging| belonging.named.is_none())
        };
        let of_groups = self
            .groups
            .of(key)
            .flat_map(|group| self.by_group.of(group))
            .filter(unnamed);
        self.by_name.of(key).chain(of_groups)
    }

    /// Groups that mean the Gang, and those of pods that are named to be of it.
    pub(super) fn groups_of(&self, key: &GangKey) -> Vec<Group> {
        let named = self.by_name.of(key).filter_map(|pod| self.group_of(pod));
        self.groups.of(key).chain(named).cloned().collect()
    }

    /// Keys of all Gangs that have pods.
    pub(super) fn gangs(&self) -> impl Iterator<Item = &GangKey> {
        self.by_name
            .iter()
            .map(|(key, _)| key)
            .chain(self.groups.iter().map(|(key, _)| key))
    }
}

impl Touches {
    fn extend(&mut self, belonging: Belonging) {
        self.groups.extend(belonging.group);
        self.gangs.extend(belonging.named);
    }
}

/// What a bound pod uses of its node, as far as a change of it matters to the node.
pub(super) fn usage(pod: Option<&Arc<Pod>>) -> Option<(String, crate::index::nodes::Usage)> {
    let pod = pod?;
    let node = gangs::bound_to(pod)?;
    Some((node.to_owned(), crate::index::nodes::usage_of(pod)))
}
