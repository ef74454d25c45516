//! Observed objects of one kind, and links between them.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, BTreeSet, VecDeque, btree_map::Entry},
    mem,
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::{devices::SliceView, object::types};

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
    metadata.resource_version.as_deref()?.parse().ok()
}

impl<K: Ord + Clone, V: Versioned> Store<K, V> {
    /// Takes an object in. `None`: it is what is held already, or older, or was told gone.
    ///
    /// resourceVersions are compared as numbers, which Kubernetes allows within a kind; one that is no
    /// number is taken as newer.
    pub(super) fn put(&mut self, key: K, new: Arc<V>) -> Option<Changed<V>> {
        if self.gone.contains(new.uid()) {
            return None;
        }
        let old = self.items.get(&key).cloned();
        if let Some(old) = &old
            && let (Some(held), Some(told)) = (old.version(), new.version())
            && told <= held
        {
            return None;
        }
        self.items.insert(key, Arc::clone(&new));
        Some(Changed {
            old,
            new: Some(new),
        })
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

/// Many-to-many links, both sides ordered.
#[derive(Debug)]
pub(super) struct Links<K, V>(BTreeMap<K, Linked<V>>);

/// What something is linked to, in order. Nearly always that is one thing, and a set of one would have room for eleven.
#[derive(Debug)]
pub(super) enum Linked<V> {
    One(V),
    /// Two or more.
    Many(BTreeSet<V>),
}

impl<V: Ord> Linked<V> {
    pub(super) fn iter(&self) -> impl Iterator<Item = &V> {
        let (one, many) = match self {
            Self::One(one) => (Some(one), None),
            Self::Many(many) => (None, Some(many)),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    fn insert(&mut self, value: V) {
        match self {
            Self::Many(many) => {
                many.insert(value);
            }
            Self::One(one) if *one == value => {}
            Self::One(_) => {
                let many = Self::Many(BTreeSet::from([value]));
                if let (Self::One(one), Self::Many(many)) = (mem::replace(self, many), self) {
                    many.insert(one);
                }
            }
        }
    }

    /// Returns whether nothing is left: then this is to be dropped.
    fn remove(&mut self, value: &V) -> bool {
        match self {
            Self::One(one) => one == value,
            Self::Many(many) => {
                many.remove(value);
                if many.len() == 1
                    && let Some(last) = many.pop_first()
                {
                    *self = Self::One(last);
                }
                false
            }
        }
    }
}

impl<K, V> Default for Links<K, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord, V: Ord> Links<K, V> {
    pub(super) fn link(&mut self, from: K, to: V) {
        match self.0.entry(from) {
            Entry::Vacant(vacant) => {
                vacant.insert(Linked::One(to));
            }
            Entry::Occupied(mut linked) => linked.get_mut().insert(to),
        }
    }

    pub(super) fn unlink(&mut self, from: &K, to: &V) {
        if let Some(linked) = self.0.get_mut(from)
            && linked.remove(to)
        {
            self.0.remove(from);
        }
    }

    pub(super) fn of<'a, Q>(&'a self, from: &Q) -> impl Iterator<Item = &'a V> + use<'a, Q, K, V>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        self.0.get(from).into_iter().flat_map(Linked::iter)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn starting_at(&self, from: K) -> impl Iterator<Item = (&K, &Linked<V>)> {
        self.0.range(from..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(links: &Links<u8, u8>, from: u8) -> Vec<u8> {
        links.of(&from).copied().collect()
    }

    #[test]
    fn links_are_as_sets_whether_they_hold_none_one_or_many() {
        let mut links = Links::default();
        let mut sets: BTreeMap<u8, BTreeSet<u8>> = BTreeMap::new();
        // Each step links or unlinks one of four values: every way from none to four and back occurs.
        let mut state = 7_u32;
        for _ in 0..10_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let [_, _, third, fourth] = state.to_le_bytes();
            let (from, to) = (third % 3, fourth % 4);
            if fourth < 128 {
                links.link(from, to);
                sets.entry(from).or_default().insert(to);
            } else {
                links.unlink(&from, &to);
                sets.entry(from).or_default().remove(&to);
            }
            for from in 0..3 {
                let expected = sets.get(&from).into_iter().flatten().copied();
                assert_eq!(of(&links, from), expected.collect::<Vec<_>>());
            }
            let linked = sets.iter().filter(|(_, set)| !set.is_empty());
            let keys = links.starting_at(0).map(|(key, _)| *key);
            assert!(
                keys.eq(linked.map(|(key, _)| *key)),
                "what links to nothing is gone"
            );
        }
    }

    #[test]
    fn one_link_takes_no_set_of_its_own() {
        let mut links = Links::default();
        let is_one = |links: &Links<u8, u8>| matches!(links.0[&1], Linked::One(_));
        links.link(1, 1);
        links.link(1, 1);
        assert!(is_one(&links));
        links.link(1, 2);
        assert!(!is_one(&links));
        links.unlink(&1, &1);
        assert!(is_one(&links));
        assert_eq!(of(&links, 1), [2]);
        links.unlink(&1, &9);
        assert_eq!(of(&links, 1), [2]);
        links.unlink(&1, &2);
        assert!(links.0.is_empty());
    }
}
