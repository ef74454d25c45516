//! Observed objects of one kind.

use std::{
    borrow::Borrow,
    collections::{BTreeSet, VecDeque},
    hash::Hash,
    marker::PhantomData,
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::{claims::ObservedClaim, devices::SliceView, links::ByKey, object::types};

/// How many UIDs of gone objects are remembered. What is told twice is late by seconds; so many
/// objects of one kind do not go meanwhile.
const REMEMBERED_GONE: usize = 16_384;

/// Objects of one kind by key.
#[derive(Debug)]
pub(super) struct Store<K, V, M> {
    items: M,
    gone: BTreeSet<String>,
    gone_order: VecDeque<String>,
    of: PhantomData<(K, V)>,
}

impl<K, V, M: Default> Default for Store<K, V, M> {
    fn default() -> Self {
        Self {
            items: M::default(),
            gone: BTreeSet::new(),
            gone_order: VecDeque::new(),
            of: PhantomData,
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
        self.object_uid()
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

impl<K: Ord + Hash + Clone, V: Versioned, M: ByKey<K, Arc<V>>> Store<K, V, M> {
    /// Takes an object in. `None`: it is what is held already, or older, or was told gone.
    ///
    /// resourceVersions are compared as numbers, which Kubernetes allows within a kind; one that is no
    /// number is taken as newer.
    pub(super) fn put(&mut self, key: K, new: Arc<V>) -> Option<Changed<V>> {
        if self.knows(&key, new.uid(), new.version()) {
            return None;
        }
        let old = self.items.get(&key).cloned();
        self.items.put(key, Arc::clone(&new));
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
        let old = self.items.get(key).cloned()?;
        self.items.drop(key);
        Some(Changed {
            old: Some(old),
            new: None,
        })
    }

    pub(super) fn get<Q>(&self, key: &Q) -> Option<&Arc<V>>
    where
        K: Borrow<Q>,
        Q: Ord + Hash + ?Sized,
    {
        self.items.get(key)
    }

    pub(super) fn items(&self) -> &M {
        &self.items
    }

    /// The keys that are meant, in order.
    pub(super) fn keys_where(&self, is_meant: impl Fn(&K) -> bool) -> Vec<&K> {
        self.items.keys_where(is_meant)
    }

    /// All of them, in the order of their keys.
    pub(super) fn iter<'a>(&'a self) -> impl Iterator<Item = (&'a K, &'a Arc<V>)>
    where
        K: 'a,
        V: 'a,
    {
        self.items.in_order()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::*;
    use crate::table::Table;

    fn pod(number: usize) -> Arc<Pod> {
        Arc::new(Pod {
            metadata: ObjectMeta {
                uid: Some(format!("uid-{number}")),
                ..ObjectMeta::default()
            },
            ..Pod::default()
        })
    }

    #[test]
    fn what_went_does_not_come_back_unless_so_many_others_went_since() {
        let comes_back = |others: usize| {
            let mut store: Store<usize, Pod, Table<usize, Arc<Pod>>> = Store::default();
            for number in 0..=others {
                assert!(store.put(number, pod(number)).is_some());
                assert!(store.remove(&number).is_some());
            }
            assert!(store.gone.len() <= REMEMBERED_GONE);
            assert_eq!(store.gone.len(), store.gone_order.len());
            store.put(0, pod(0)).is_some()
        };
        assert!(!comes_back(0));
        assert!(!comes_back(REMEMBERED_GONE - 1));
        assert!(comes_back(REMEMBERED_GONE));
    }
}
