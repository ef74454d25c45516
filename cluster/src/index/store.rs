//! Observed objects of one kind.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::{claims::ObservedClaim, devices::SliceView, object::types};

/// How many UIDs of gone objects are remembered. What is told twice is late by seconds; so many
/// objects of one kind do not go meanwhile.
const REMEMBERED_GONE: usize = 16_384;

/// Objects of one kind by key.
#[derive(Debug)]
pub(super) struct Store<K, V> {
    items: BTreeMap<K, Arc<V>>,
    gone: BTreeSet<String>,
    gone_order: VecDeque<String>,
}

impl<K, V> Default for Store<K, V> {
    fn default() -> Self {
        Self {
            items: BTreeMap::new(),
            gone: BTreeSet::new(),
            gone_order: VecDeque::new(),
        }
    }
}

/// An object changed: what it was and what it is.
pub(super) struct Changed<V> {
    pub(super) old: Option<Arc<V>>,
    pub(super) new: Option<Arc<V>>,
}

/// What tells one version of an object from another.
pub(super) trait Versioned {
    /// UID of the object; empty if it has none.
    fn uid(&self) -> &str;
    /// Its resourceVersion, if that is a number.
    fn version(&self) -> Option<u64>;
}

macro_rules! versioned {
    ($($kind:ident: $scope:ident $collection:ident $status:ident;)*) => {
        $(impl Versioned for types::$kind {
            fn uid(&self) -> &str {
                self.metadata.uid.as_deref().unwrap_or_default()
            }
            fn version(&self) -> Option<u64> {
                version_of(&self.metadata)
            }
        })*
    };
}
crate::for_each_kind!(versioned);

impl Versioned for ObservedClaim {
    fn uid(&self) -> &str {
        &self.uid
    }

    fn version(&self) -> Option<u64> {
        self.version
    }
}

impl Versioned for SliceView {
    fn uid(&self) -> &str {
        &self.uid
    }

    fn version(&self) -> Option<u64> {
        self.version
    }
}

/// The resourceVersion as a number, if it is one.
pub(super) fn version_of(metadata: &ObjectMeta) -> Option<u64> {
    parsed(metadata.resource_version.as_deref())
}

/// A resourceVersion as a number, if it is one.
pub(super) fn parsed(version: Option<&str>) -> Option<u64> {
    version?.parse().ok()
}

impl<K: Ord + Clone, V: Versioned> Store<K, V> {
    /// Takes an object in. `None`: it is what is held already, or older, or was told gone.
    ///
    /// resourceVersions are compared as numbers, which Kubernetes allows within a kind; one that is no
    /// number is taken as newer.
    pub(super) fn put(&mut self, key: K, new: Arc<V>) -> Option<Changed<V>> {
        if self.knows(&key, new.uid(), new.version()) {
            return None;
        }
        let old = self.items.get(&key).cloned();
        self.items.insert(key, Arc::clone(&new));
        Some(Changed {
            old,
            new: Some(new),
        })
    }

    /// Whether an object of that UID and version says nothing new.
    pub(super) fn knows(&self, key: &K, uid: &str, version: Option<u64>) -> bool {
        let held = self.items.get(key).and_then(|held| held.version());
        let is_as_new = held.zip(version).is_some_and(|(held, told)| told <= held);
        is_as_new || self.gone.contains(uid)
    }

    /// Removes an object that was told gone; it does not come back.
    pub(super) fn remove(&mut self, key: &K) -> Option<Changed<V>> {
        let changed = self.forget(key)?;
        let uid = changed
            .old
            .as_ref()
            .map(|old| old.uid().to_owned())
            .unwrap_or_default();
        if !uid.is_empty() && self.gone.insert(uid.clone()) {
            self.gone_order.push_back(uid);
            if self.gone_order.len() > REMEMBERED_GONE
                && let Some(oldest) = self.gone_order.pop_front()
            {
                self.gone.remove(&oldest);
            }
        }
        Some(changed)
    }

    /// Removes an object that a list lacks. It may come back: a list may be older than what a watch has
    /// told already.
    pub(super) fn forget(&mut self, key: &K) -> Option<Changed<V>> {
        let old = self.items.remove(key)?;
        Some(Changed {
            old: Some(old),
            new: None,
        })
    }

    pub(super) fn get<Q>(&self, key: &Q) -> Option<&Arc<V>>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        self.items.get(key)
    }

    pub(super) fn items(&self) -> &BTreeMap<K, Arc<V>> {
        &self.items
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &Arc<V>)> {
        self.items.iter()
    }
}
