//! From the events of kube's watcher to what a consumer is told.
//!
//! **Invariant: what exists is never told gone because it cannot be decoded.** A consumer may give back what a vanished
//! object held, so an object that was told and cannot be decoded any more counts as last seen: its changes are not
//! told, and a list that lacks it only for that is told as changes instead. For this the names of what was told are
//! kept, never the objects.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Resource,
    core::DeserializeGuard,
    runtime::watcher::{self, Event},
};
use prometheus_client::metrics::{counter::Counter, gauge::Gauge};
use tokio::time::Instant;

use super::{KindLabel, Undecodable, WatchEvent, WatchMetrics};
use crate::readiness::Condition;

/// Namespace and name.
type Name = (String, String);

/// What one watch sees, and what its consumer was told of it.
pub(super) struct WatchDecoder<K> {
    policy: Undecodable,
    /// Whether a list was told.
    listed: bool,
    /// What the consumer believes to exist, with its UID.
    told: BTreeMap<Name, Option<String>>,
    /// What exists and cannot be decoded.
    undecodable: BTreeSet<Name>,
    /// The list that is being received.
    incoming: Vec<K>,
    /// The first list, while it is held back.
    held_back: Option<BTreeMap<Name, K>>,

    kind: String,
    synced: Condition,
    stale_seconds: Gauge,
    errors: Counter,
    undecodable_now: Gauge,
    failing_since: Option<Instant>,
}

impl<K: Resource<DynamicType = ()>> WatchDecoder<K> {
    pub(super) fn new(policy: Undecodable, metrics: &WatchMetrics, synced: Condition) -> Self {
        let label = KindLabel {
            kind: K::kind(&()).into_owned(),
        };
        Self {
            policy,
            listed: false,
            told: BTreeMap::new(),
            undecodable: BTreeSet::new(),
            incoming: Vec::new(),
            held_back: None,
            synced,
            stale_seconds: metrics.stale_seconds.get_or_create_owned(&label),
            errors: metrics.errors.get_or_create_owned(&label),
            undecodable_now: metrics.undecodable.get_or_create_owned(&label),
            failing_since: None,
            kind: label.kind,
        }
    }

    /// The watch failed, and goes on.
    pub(super) fn failed(&mut self, error: &watcher::Error) {
        let since = *self.failing_since.get_or_insert_with(Instant::now);
        let seconds = since.elapsed().as_secs();
        self.stale_seconds
            .set(i64::try_from(seconds).unwrap_or(i64::MAX));
        self.errors.inc();
        tracing::warn!(kind = self.kind, seconds, %error, "watch fails");
    }

    /// What the consumer is to be told of an event.
    pub(super) fn take(&mut self, event: Event<DeserializeGuard<K>>) -> Vec<WatchEvent<K>> {
        self.failing_since = None;
        self.stale_seconds.set(0);
        match event {
            Event::Init => {
                self.incoming.clear();
                self.undecodable.clear();
                self.held_back = None;
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
        let undecodable = i64::try_from(self.undecodable.len()).unwrap_or(i64::MAX);
        self.undecodable_now.set(undecodable);
        seen
    }

    /// What was taken last is in the channel.
    pub(super) fn handed_over(&self) {
        if self.listed {
            self.synced.set(true);
        }
    }

    fn applied(&mut self, object: DeserializeGuard<K>) -> Vec<WatchEvent<K>> {
        let Some(object) = self.decode(object) else {
            return Vec::new();
        };
        let name = name(object.meta());
        self.undecodable.remove(&name);
        if let Some(held) = &mut self.held_back {
            held.insert(name, object);
            return self.release();
        }
        self.told.insert(name, object.meta().uid.clone());
        vec![WatchEvent::Applied(object)]
    }

    fn deleted(&mut self, metadata: ObjectMeta) -> Vec<WatchEvent<K>> {
        let name = name(&metadata);
        self.undecodable.remove(&name);
        if let Some(held) = &mut self.held_back {
            held.remove(&name);
            return self.release();
        }
        self.told.remove(&name);
        vec![WatchEvent::Deleted(Box::new(metadata))]
    }

    fn end_list(&mut self) -> Vec<WatchEvent<K>> {
        let objects = std::mem::take(&mut self.incoming);
        if self.undecodable.is_empty() {
            return self.list(objects);
        }
        if self.listed {
            return self.changes(objects);
        }
        if self.policy == Undecodable::IsLeftOut {
            return self.list(objects);
        }
        let named = objects.into_iter().map(|it| (name(it.meta()), it));
        self.held_back = Some(named.collect());
        self.synced.set(false);
        tracing::error!(
            kind = self.kind,
            objects = self.undecodable.len(),
            "nothing of this kind is known before all its objects can be decoded: mend or delete those, or run the \
             version that wrote them"
        );
        Vec::new()
    }

    fn list(&mut self, objects: Vec<K>) -> Vec<WatchEvent<K>> {
        self.listed = true;
        self.told = objects
            .iter()
            .map(|object| (name(object.meta()), object.meta().uid.clone()))
            .collect();
        vec![WatchEvent::Listed(objects)]
    }

    /// The list that was held back, once all of it can be told.
    fn release(&mut self) -> Vec<WatchEvent<K>> {
        let Some(held) = &mut self.held_back else {
            return Vec::new();
        };
        if !self.undecodable.iter().all(|name| held.contains_key(name)) {
            return Vec::new();
        }
        let objects = std::mem::take(held).into_values().collect();
        self.held_back = None;
        self.list(objects)
    }

    /// A list as changes of what was told: what cannot be decoded stays as it was.
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

    fn decode(&mut self, guarded: DeserializeGuard<K>) -> Option<K> {
        match guarded.0 {
            Ok(mut object) => {
                object.meta_mut().managed_fields = None;
                Some(object)
            }
            Err(invalid) => {
                tracing::error!(
                    kind = self.kind,
                    namespace = invalid.metadata.namespace,
                    name = invalid.metadata.name,
                    error = invalid.error,
                    "an object cannot be decoded; it counts as it was last seen"
                );
                self.undecodable.insert(name(&invalid.metadata));
                None
            }
        }
    }
}

fn name(metadata: &ObjectMeta) -> Name {
    (
        metadata.namespace.clone().unwrap_or_default(),
        metadata.name.clone().unwrap_or_default(),
    )
}

fn gone<K>((namespace, name): Name, uid: Option<String>) -> WatchEvent<K> {
    WatchEvent::Deleted(Box::new(ObjectMeta {
        namespace: (!namespace.is_empty()).then_some(namespace),
        name: Some(name),
        uid,
        ..ObjectMeta::default()
    }))
}
