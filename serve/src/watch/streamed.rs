//! A watch whose lists are passed on object by object.
//!
//! Nothing of a list is kept but its names, so a list of any length costs what is kept of its objects and no more. Each
//! object is passed on as soon as it is received, which says nothing about others; what is gone is concluded at the end of
//! the list only. A list that is broken off (an expired continue token, say) is begun again, and what was passed on of it by
//! then is judged by the names of the next one.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Resource,
    runtime::watcher::{self, Event},
};

use super::{Decode, Decoded, ObjectName, WatchHealth, is_not_served, name};

/// What is seen of a kind.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamEvent<T> {
    /// The object as it is now: of a list, added or modified.
    Seen(T),
    /// The object with this metadata is gone.
    Deleted(Box<ObjectMeta>),
    /// A list is complete: what is not named (by namespace and name) is gone. First of all, and after every gap of the
    /// watch. Objects that are left out are named: they exist.
    ListEnded(BTreeSet<ObjectName>),
}

/// What becomes of an object that was received.
#[derive(Clone, Debug, PartialEq)]
pub enum Taken<T> {
    /// It is passed on.
    Whole(T),
    /// It cannot be decoded as it should be; this is passed on in its place.
    StandIn(T),
    /// It cannot be decoded, and nothing is passed on: if it was passed on before, it counts as last seen.
    LeftOut,
}

pub(super) struct StreamDecoder<F> {
    take_over: F,
    /// The names of the list that is being received.
    incoming: Option<BTreeSet<ObjectName>>,
    /// What exists and cannot be decoded.
    undecodable: BTreeSet<ObjectName>,
    listed: bool,
    /// Whether the API server may do without the kind.
    is_optional: bool,
    /// Whether it was passed on that the kind is not served.
    is_absent: bool,
    health: WatchHealth,
}

impl<F> StreamDecoder<F> {
    pub(super) fn new(take_over: F, health: WatchHealth) -> Self {
        Self {
            take_over,
            incoming: None,
            undecodable: BTreeSet::new(),
            listed: false,
            is_optional: false,
            is_absent: false,
            health,
        }
    }

    /// The same for a kind that the API server may do without.
    pub(super) fn of_optional_kind(self) -> Self {
        Self {
            is_optional: true,
            ..self
        }
    }

    fn receive<K, T>(&mut self, mut object: Decoded<K>) -> Option<StreamEvent<T>>
    where
        K: Resource<DynamicType = ()>,
        F: Fn(Decoded<K>) -> Taken<T>,
    {
        object.reduce_managed_fields();
        let name = name(object.meta());
        if let Some(names) = &mut self.incoming {
            names.insert(name.clone());
        }
        let (told, is_undecodable) = match (self.take_over)(object) {
            Taken::Whole(told) => (Some(told), false),
            Taken::StandIn(told) => (Some(told), true),
            Taken::LeftOut => (None, true),
        };
        if is_undecodable {
            self.undecodable.insert(name);
        } else {
            self.undecodable.remove(&name);
        }
        told.map(StreamEvent::Seen)
    }
}

impl<K, T, F> Decode<K> for StreamDecoder<F>
where
    K: Resource<DynamicType = ()>,
    F: Fn(Decoded<K>) -> Taken<T>,
{
    type Told = StreamEvent<T>;

    fn take(&mut self, event: Event<Decoded<K>>) -> Vec<StreamEvent<T>> {
        self.health.took(&event);
        let told = match event {
            Event::Init => {
                self.incoming = Some(BTreeSet::new());
                return Vec::new();
            }
            Event::InitApply(object) | Event::Apply(object) => self.receive(object),
            Event::Delete(mut object) => {
                let metadata = std::mem::take(object.meta_mut());
                self.undecodable.remove(&name(&metadata));
                Some(StreamEvent::Deleted(Box::new(metadata)))
            }
            Event::InitDone => {
                let names = self.incoming.take().unwrap_or_default();
                self.undecodable.retain(|name| names.contains(name));
                self.listed = true;
                self.is_absent = false;
                Some(StreamEvent::ListEnded(names))
            }
        };
        self.health.undecodable(self.undecodable.len());
        told.into_iter().collect()
    }

    fn failed(&mut self, error: &watcher::Error) -> Vec<StreamEvent<T>> {
        if !(self.is_optional && is_not_served(error)) {
            self.health.failed(error);
            return Vec::new();
        }
        self.health.works();
        if std::mem::replace(&mut self.is_absent, true) {
            return Vec::new();
        }
        self.incoming = None;
        self.undecodable.clear();
        self.health.undecodable(0);
        self.listed = true;
        vec![StreamEvent::ListEnded(BTreeSet::new())]
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
