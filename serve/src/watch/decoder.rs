//! A watch whose lists are passed on whole, when they are complete, so that nobody decides on half of one.
//!
//! **Invariant: what exists is never reported as gone because it cannot be decoded.** A consumer may give back what a vanished
//! object held, so an object that was reported and cannot be decoded any more counts as last seen: its changes are not
//! reported, and a list that lacks it only for that reason is reported as changes instead. So the names of what was reported are
//! kept, never the objects.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, runtime::watcher::Event};

use super::{Decode, Decoded, ObjectName, WatchEvent, WatchHealth, name};

/// What one watch sees, and what was reported of it to its consumer.
pub(super) struct WatchDecoder<K> {
    /// Whether a list was reported.
    listed: bool,
    /// What the consumer believes to exist, with its UID.
    told: BTreeMap<ObjectName, Option<String>>,
    /// What exists and cannot be decoded.
    undecodable: BTreeSet<ObjectName>,
    /// The list that is being received.
    incoming: Vec<K>,
    health: WatchHealth,
}

impl<K: Resource<DynamicType = ()>> WatchDecoder<K> {
    pub(super) fn new(health: WatchHealth) -> Self {
        Self {
            listed: false,
            told: BTreeMap::new(),
            undecodable: BTreeSet::new(),
            incoming: Vec::new(),
            health,
        }
    }

    fn applied(&mut self, object: Decoded<K>) -> Vec<WatchEvent<K>> {
        let Some(object) = self.decode(object) else {
            return Vec::new();
        };
        self.told
            .insert(name(object.meta()), object.meta().uid.clone());
        vec![WatchEvent::Applied(object)]
    }

    fn deleted(&mut self, metadata: ObjectMeta) -> Vec<WatchEvent<K>> {
        let name = name(&metadata);
        self.undecodable.remove(&name);
        self.told.remove(&name);
        vec![WatchEvent::Deleted(Box::new(metadata))]
    }

    fn end_list(&mut self) -> Vec<WatchEvent<K>> {
        let objects = std::mem::take(&mut self.incoming);
        if self.listed && !self.undecodable.is_empty() {
            return self.changes(objects);
        }
        self.listed = true;
        self.told = objects
            .iter()
            .map(|object| (name(object.meta()), object.meta().uid.clone()))
            .collect();
        vec![WatchEvent::Listed(objects)]
    }

    /// A list as changes of what was reported: what cannot be decoded stays as it was.
    fn changes(&mut self, objects: Vec<K>) -> Vec<WatchEvent<K>> {
        let mut before = std::mem::take(&mut self.told);
        let mut seen = Vec::new();
        for object in objects {
            let (name, uid) = (name(object.meta()), object.meta().uid.clone());
            match before.remove(&name) {
                Some(told) if told != uid => seen.push(gone(name.clone(), told)),
                _ => {}
            }
            self.told.insert(name, uid);
            seen.push(WatchEvent::Applied(object));
        }
        for (name, uid) in before {
            if self.undecodable.contains(&name) {
                self.told.insert(name, uid);
            } else {
                seen.push(gone(name, uid));
            }
        }
        seen
    }

    fn decode(&mut self, mut decoded: Decoded<K>) -> Option<K> {
        decoded.reduce_managed_fields();
        let name = name(decoded.meta());
        match decoded {
            Decoded::Whole(object) => {
                self.undecodable.remove(&name);
                Some(object)
            }
            Decoded::Partial(partial) => {
                tracing::error!(
                    kind = &*K::kind(&()),
                    namespace = partial.metadata.namespace,
                    name = partial.metadata.name,
                    missing = ?partial.missing,
                    "an object cannot be decoded; it counts as it was last seen"
                );
                self.undecodable.insert(name);
                None
            }
        }
    }
}

impl<K: Resource<DynamicType = ()>> Decode<K> for WatchDecoder<K> {
    type Told = WatchEvent<K>;

    fn take(&mut self, event: Event<Decoded<K>>) -> Vec<WatchEvent<K>> {
        self.health.took(&event);
        match event {
            Event::Init => {
                self.incoming.clear();
                self.undecodable.clear();
                return Vec::new();
            }
            Event::InitApply(object) => {
                let decoded = self.decode(object);
                self.incoming.extend(decoded);
                return Vec::new();
            }
            Event::InitDone | Event::Apply(_) | Event::Delete(_) => {}
        }
        let seen = match event {
            Event::Apply(object) => self.applied(object),
            Event::Delete(mut object) => self.deleted(std::mem::take(object.meta_mut())),
            _ => self.end_list(),
        };
        self.health.undecodable(self.undecodable.len());
        seen
    }

    fn handed_over(&mut self) {
        if self.listed {
            self.health.synced();
        }
    }

    fn health(&mut self) -> &mut WatchHealth {
        &mut self.health
    }
}

fn gone<K>(object: ObjectName, uid: Option<String>) -> WatchEvent<K> {
    let ObjectName { namespace, name } = object;
    WatchEvent::Deleted(Box::new(ObjectMeta {
        namespace: (!namespace.is_empty()).then_some(namespace),
        name: Some(name),
        uid,
        ..ObjectMeta::default()
    }))
}
