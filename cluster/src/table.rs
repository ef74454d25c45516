//! A map that is never walked.

use std::{
    borrow::Borrow,
    collections::{HashMap, hash_map::Entry},
    hash::Hash,
};

use ahash::RandomState;

/// Values by key, for keys whose order means nothing. What is looked up in tables of a hundred thousand gangs or pods costs
/// one hash instead of twenty comparisons of texts that lie far apart.
///
/// Nothing walks a table in the order of its hashes, which is another in each process, so that this order reaches no
/// decision and no write; [`Table::in_order`] and [`Table::keys_where`] are for whoever looks at everything. Names are chosen by users: the seed is
/// random, so that nobody can choose such that all of them meet.
#[derive(Clone, Debug)]
pub struct Table<K, V>(HashMap<K, V, RandomState>);

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}

impl<K: Eq + Hash, V> Table<K, V> {
    /// The value of a key.
    pub fn get<Q>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.0.get(key)
    }

    /// The key as it is held, and its value.
    pub fn get_key_value<Q>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.0.get_key_value(key)
    }

    /// The value of a key, to be changed.
    pub fn get_mut<Q>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.0.get_mut(key)
    }

    /// Whether the key has a value.
    pub fn contains_key<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.0.contains_key(key)
    }

    /// Keeps a value; returns the one before.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.0.insert(key, value)
    }

    /// Takes a value out.
    pub fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.0.remove(key)
    }

    /// The place of a key.
    pub fn entry(&mut self, key: K) -> Entry<'_, K, V> {
        self.0.entry(key)
    }

    /// How many keys have a value.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no key has a value.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes everything out.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// The keys that are meant, in order. Looks at all and sorts these: for a few of many.
    pub fn keys_where(&self, is_meant: impl Fn(&K) -> bool) -> Vec<&K>
    where
        K: Ord,
    {
        let mut keys: Vec<&K> = self.0.keys().filter(|key| is_meant(key)).collect();
        keys.sort_unstable();
        keys
    }

    /// All keys and values in the order of the keys. Sorts them: for takeovers, oracles and tests.
    pub fn in_order(&self) -> impl DoubleEndedIterator<Item = (&K, &V)>
    where
        K: Ord,
    {
        let mut all: Vec<(&K, &V)> = self.0.iter().collect();
        all.sort_unstable_by_key(|(key, _)| *key);
        all.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, cmp::Ordering};

    use super::*;

    thread_local! {
        static COMPARISONS: Cell<usize> = const { Cell::new(0) };
    }

    /// A key that counts how often keys are compared for their order.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    struct Counting(u32);

    impl Ord for Counting {
        fn cmp(&self, other: &Self) -> Ordering {
            COMPARISONS.set(COMPARISONS.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrd for Counting {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    #[test]
    fn a_few_keys_of_many_are_found_in_order_and_only_these_are_sorted() {
        let mut table = Table::default();
        for number in 0..10_000 {
            table.insert(Counting(number), ());
        }
        let found = table.keys_where(|key| key.0 % 2_500 == 7);
        let found: Vec<u32> = found.into_iter().map(|key| key.0).collect();
        assert_eq!(found, [7, 2_507, 5_007, 7_507]);
        assert!(COMPARISONS.get() < 20, "{} comparisons", COMPARISONS.get());
    }

    #[test]
    fn a_table_is_walked_in_the_order_of_its_keys_alone() {
        let mut table = Table::default();
        for number in (0..100).rev() {
            table.insert(number, number * 2);
        }
        table.remove(&50);
        let walked: Vec<(i32, i32)> = table
            .in_order()
            .map(|(key, value)| (*key, *value))
            .collect();
        let expected: Vec<(i32, i32)> = (0..100)
            .filter(|number| *number != 50)
            .map(|number| (number, number * 2))
            .collect();
        assert_eq!(walked, expected);
        assert_eq!(table.len(), 99);
    }
}
