//! Which pods belong to which gang.

use std::sync::Arc;

use super::NamespacedName;
use crate::{
    formed::GangKey,
    gangs::{Belonging, Group},
    links::{Links, OrderedLinks},
    table::Table,
};

/// Which pods belong to which gang.
#[derive(Debug, Default)]
pub(super) struct Membership {
    of_pod: Table<NamespacedName, Place>,
    by_group: Links<Arc<Group>, NamespacedName>,
    by_name: OrderedLinks<GangKey, NamespacedName>,
    /// The Gang that each group means, as of the last refresh.
    keys: Table<Arc<Group>, GangKey>,
    groups: OrderedLinks<GangKey, Arc<Group>>,
}

/// Where a pod belongs ([`Belonging`]), shared by the pods that belong there.
#[derive(Debug)]
struct Place {
    named: Option<GangKey>,
    group: Option<Arc<Group>>,
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
            touches.note(&old);
        }
        if let Some(Belonging { named, group }) = belonging {
            let new = Place {
                named: named.map(|named| self.by_name.key(&named).cloned().unwrap_or(named)),
                group: group.map(|group| self.shared(group)),
            };
            if let Some(named) = &new.named {
                self.by_name.link(named.clone(), pod.clone());
            }
            if let Some(group) = &new.group {
                self.by_group.link(Arc::clone(group), pod.clone());
            }
            touches.note(&new);
            self.of_pod.insert(pod.clone(), new);
        }
        touches
    }

    /// A group as it is held already, if it is.
    fn shared(&self, group: Group) -> Arc<Group> {
        let known = self.by_group.key(&group).cloned();
        known.unwrap_or_else(|| Arc::new(group))
    }

    fn unlink(&mut self, pod: &NamespacedName, place: &Place) {
        if let Some(named) = &place.named {
            self.by_name.unlink(named, pod);
        }
        if let Some(group) = &place.group {
            self.by_group.unlink(group, pod);
        }
    }

    /// Says which Gang a group means; returns the Gangs that this touches.
    pub(super) fn resolve(&mut self, group: &Group, key: Option<GangKey>) -> Vec<GangKey> {
        let group = self.shared(group.clone());
        let old = self.keys.remove(&group);
        if let Some(old) = &old {
            self.groups.unlink(old, &group);
        }
        if let Some(key) = &key {
            self.groups.link(key.clone(), Arc::clone(&group));
            self.keys.insert(group, key.clone());
        }
        old.into_iter().chain(key).collect()
    }

    pub(super) fn gang_of(&self, pod: &NamespacedName) -> Option<&GangKey> {
        let place = self.of_pod.get(pod)?;
        let named = place.named.as_ref();
        named.or_else(|| self.keys.get(place.group.as_deref()?))
    }

    pub(super) fn group_of(&self, pod: &NamespacedName) -> Option<&Group> {
        self.of_pod.get(pod)?.group.as_deref()
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
                .is_some_and(|place| place.named.is_none())
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
        let groups = self.groups.of(key).map(AsRef::as_ref);
        groups.chain(named).cloned().collect()
    }

    /// Keys of the Gangs of a namespace that have pods.
    pub(super) fn gangs_in<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a GangKey> {
        let first = || GangKey::new(namespace, "");
        let by_name = self.by_name.starting_at(first()).map(|(key, _)| key);
        let by_group = self.groups.starting_at(first()).map(|(key, _)| key);
        by_name
            .take_while(move |key| key.namespace == namespace)
            .chain(by_group.take_while(move |key| key.namespace == namespace))
    }
}

impl Touches {
    fn note(&mut self, place: &Place) {
        self.groups.extend(place.group.as_deref().cloned());
        self.gangs.extend(place.named.clone());
    }
}
