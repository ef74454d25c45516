//! A relation that is kept in one direction and asked in the other.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, BTreeSet},
    hash::Hash,
    marker::PhantomData,
    mem,
};

use crate::table::Table;

/// Many values by key, each once, in order. A key without values takes no memory. Keys have no order, unless they are
/// [`OrderedLinks`].
#[derive(Clone, Debug)]
pub struct Links<K, V, M = Table<K, Linked<V>>>(M, PhantomData<(K, V)>);

/// Links whose keys can be walked in order.
pub type OrderedLinks<K, V> = Links<K, V, BTreeMap<K, Linked<V>>>;

/// What is kept by key: a [`Table`], or a map whose keys can be walked.
pub trait ByKey<K, V>: Default {
    /// The value of a key.
    fn get<Q>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Ord + Hash + ?Sized;
    /// The key as it is held.
    fn held_key<Q>(&self, key: &Q) -> Option<&K>
    where
        K: Borrow<Q>,
        Q: Ord + Hash + ?Sized;
    /// The value of a key, to be changed.
    fn get_mut<Q>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
        Q: Ord + Hash + ?Sized;
    /// Keeps a value.
    fn put(&mut self, key: K, value: V);
    /// Drops a value.
    fn drop<Q>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
        Q: Ord + Hash + ?Sized;
    /// All keys and values in the order of the keys.
    fn in_order<'a>(&'a self) -> impl Iterator<Item = (&'a K, &'a V)>
    where
        K: 'a,
        V: 'a;
    /// The keys that are meant, in order; no others are put in order.
    fn keys_where(&self, is_meant: impl Fn(&K) -> bool) -> Vec<&K>;
}

macro_rules! by_key {
    ($map:ident, $in_order:ident, |$held:ident, $is_meant:ident| $keys_where:expr) => {
        impl<K: Ord + Hash, V> ByKey<K, V> for $map<K, V> {
            fn get<Q>(&self, key: &Q) -> Option<&V>
            where
                K: Borrow<Q>,
                Q: Ord + Hash + ?Sized,
            {
                self.get(key)
            }

            fn held_key<Q>(&self, key: &Q) -> Option<&K>
            where
                K: Borrow<Q>,
                Q: Ord + Hash + ?Sized,
            {
                self.get_key_value(key).map(|(key, _)| key)
            }

            fn get_mut<Q>(&mut self, key: &Q) -> Option<&mut V>
            where
                K: Borrow<Q>,
                Q: Ord + Hash + ?Sized,
            {
                self.get_mut(key)
            }

            fn put(&mut self, key: K, value: V) {
                self.insert(key, value);
            }

            fn drop<Q>(&mut self, key: &Q)
            where
                K: Borrow<Q>,
                Q: Ord + Hash + ?Sized,
            {
                self.remove(key);
            }

            fn in_order<'a>(&'a self) -> impl Iterator<Item = (&'a K, &'a V)>
            where
                K: 'a,
                V: 'a,
            {
                self.$in_order()
            }

            fn keys_where(&self, $is_meant: impl Fn(&K) -> bool) -> Vec<&K> {
                let $held = self;
                $keys_where
            }
        }
    };
}
by_key!(Table, in_order, |held, is_meant| held.keys_where(is_meant));
by_key!(BTreeMap, iter, |held, is_meant| held
    .keys()
    .filter(|key| is_meant(key))
    .collect());

/// The values of a key, in order. Nearly always there is one, and a set of one would have room for eleven.
#[derive(Clone, Debug)]
pub enum Linked<V> {
    /// The only one.
    One(V),
    /// Two or more.
    Many(BTreeSet<V>),
}

impl<V: Ord> Linked<V> {
    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = &V> {
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

impl<K, V, M: Default> Default for Links<K, V, M> {
    fn default() -> Self {
        Self(M::default(), PhantomData)
    }
}

impl<K: Ord + Hash, V: Ord, M: ByKey<K, Linked<V>>> Links<K, V, M> {
    /// Links a value to a key. Twice is once.
    pub fn link(&mut self, from: K, to: V) {
        match self.0.get_mut(&from) {
            None => self.0.put(from, Linked::One(to)),
            Some(linked) => linked.insert(to),
        }
    }

    /// Takes a link away, if it exists.
    pub fn unlink<Q>(&mut self, from: &Q, to: &V)
    where
        K: Borrow<Q>,
        Q: Ord + Hash + ?Sized,
    {
        if let Some(linked) = self.0.get_mut(from)
            && linked.remove(to)
        {
            self.0.drop(from);
        }
    }

    /// The values of a key, in order.
    pub fn of<'a, Q>(&'a self, from: &Q) -> impl Iterator<Item = &'a V> + use<'a, Q, K, V, M>
    where
        K: Borrow<Q>,
        Q: Ord + Hash + ?Sized,
    {
        self.0.get(from).into_iter().flat_map(Linked::iter)
    }

    /// The key as it is held, if it has any value.
    pub fn key<Q>(&self, key: &Q) -> Option<&K>
    where
        K: Borrow<Q>,
        Q: Ord + Hash + ?Sized,
    {
        self.0.held_key(key)
    }

    /// Whether the key has any value.
    pub fn has<Q>(&self, from: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Ord + Hash + ?Sized,
    {
        self.0.get(from).is_some()
    }

    /// Takes all links away.
    pub fn clear(&mut self) {
        self.0 = M::default();
    }
}

impl<K: Ord, V> OrderedLinks<K, V> {
    /// Keys from that one on, in order, each with its values.
    pub fn starting_at(&self, from: K) -> impl Iterator<Item = (&K, &Linked<V>)> {
        self.0.range(from..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<M: ByKey<u8, Linked<u8>>>(links: &Links<u8, u8, M>, from: u8) -> Vec<u8> {
        links.of(&from).copied().collect()
    }

    #[test]
    fn links_are_as_sets_whether_they_hold_none_one_or_many() {
        let mut links = OrderedLinks::default();
        let mut hashed: Links<u8, u8> = Links::default();
        let mut sets: BTreeMap<u8, BTreeSet<u8>> = BTreeMap::new();
        // Each step links or unlinks one of four values: every way from none to four and back occurs.
        let mut state = 7_u32;
        for _ in 0..10_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let [_, _, third, fourth] = state.to_le_bytes();
            let (from, to) = (third % 3, fourth % 4);
            if fourth < 128 {
                links.link(from, to);
                hashed.link(from, to);
                sets.entry(from).or_default().insert(to);
            } else {
                links.unlink(&from, &to);
                hashed.unlink(&from, &to);
                sets.entry(from).or_default().remove(&to);
            }
            for from in 0..3 {
                let expected = sets.get(&from).into_iter().flatten().copied();
                let expected: Vec<u8> = expected.collect();
                assert_eq!(of(&links, from), expected);
                assert_eq!(of(&hashed, from), expected);
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
        let mut links: Links<u8, u8> = Links::default();
        let is_one = |links: &Links<u8, u8>| matches!(links.0.get(&1), Some(Linked::One(_)));
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

    #[test]
    fn a_link_is_found_by_its_key_until_it_is_taken_away() {
        let mut links: Links<String, u8> = Links::default();
        links.link("n1".to_owned(), 2);
        links.link("n1".to_owned(), 1);
        links.link("n1".to_owned(), 2);
        assert_eq!(links.of("n1").collect::<Vec<_>>(), [&1, &2]);
        links.unlink("n1", &2);
        links.unlink("n1", &7);
        assert_eq!(links.of("n1").collect::<Vec<_>>(), [&1]);
        links.unlink("n1", &1);
        assert!(!links.has("n1"), "nothing stays of a key without values");
    }
}
