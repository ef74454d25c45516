//! The log of changes, kind by kind, and places in it.

use std::collections::BTreeMap;

use muster_cluster::object::{Change, Kind, Object, ObjectKey};

/// One change of one object.
#[derive(Clone, Debug)]
pub struct Event {
    /// The resourceVersion that it was made with.
    pub revision: u64,
    /// Which object.
    pub key: ObjectKey,
    /// As it is from then on; `None` if it is gone.
    pub object: Option<Object>,
}

impl Event {
    /// As a client is told.
    pub fn change(&self) -> Change {
        match &self.object {
            Some(object) => Change::Applied(object.clone()),
            None => Change::Deleted(self.key.clone()),
        }
    }
}

/// A place in the log of a kind: what comes next to a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The kind.
    pub kind: Kind,
    next: usize,
}

impl Place {
    /// The beginning of the log.
    pub fn start(kind: Kind) -> Self {
        Self { kind, next: 0 }
    }

    /// One event further.
    #[must_use]
    pub fn after(self) -> Self {
        Self {
            next: self.next + 1,
            ..self
        }
    }

    /// One event back; `None` at the beginning.
    pub fn before(self) -> Option<Self> {
        let next = self.next.checked_sub(1)?;
        Some(Self { next, ..self })
    }
}

#[derive(Debug, Default)]
pub(super) struct Log {
    events: BTreeMap<Kind, Vec<Event>>,
    /// How many events of each kind are compacted. They are kept here for those who check.
    compacted: BTreeMap<Kind, usize>,
}

impl Log {
    pub(super) fn append(&mut self, revision: u64, key: ObjectKey, object: Option<Object>) {
        self.events.entry(key.kind).or_default().push(Event {
            revision,
            key,
            object,
        });
    }

    pub(super) fn compact(&mut self) {
        let ends = self.events.iter();
        self.compacted = ends.map(|(kind, events)| (*kind, events.len())).collect();
    }

    pub(super) fn is_compacted(&self, place: Place) -> bool {
        let compacted = self.compacted.get(&place.kind).copied();
        place.next < compacted.unwrap_or_default()
    }

    pub(super) fn end(&self, kind: Kind) -> Place {
        let next = self.events.get(&kind).map_or(0, Vec::len);
        Place { kind, next }
    }

    pub(super) fn from(&self, place: Place) -> impl Iterator<Item = &Event> {
        let events = self.events.get(&place.kind);
        events
            .and_then(|events| events.get(place.next..))
            .unwrap_or_default()
            .iter()
    }

    pub(super) fn at(&self, place: Place) -> Option<&Event> {
        self.events.get(&place.kind)?.get(place.next)
    }
}
