//! A relation that is kept in one direction and asked in the other.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, BTreeSet},
};

/// Many values by key, each once, in order. A key without values takes no memory.
#[derive(Clone, Debug)]
pub(crate) struct Links<K, V>(BTreeMap<K, BTreeSet<V>>);

impl<K, V> Default for Links<K, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord, V: Ord> Links<K, V> {
    /// Links a value to a key. Twice is once.
    pub(crate) fn link(&mut self, key: K, value: V) {
        self.0.entry(key).or_default().insert(value);
    }

    /// Takes a link away, if it exists.
    pub(crate) fn unlink<Q>(&mut self, key: &Q, value: &V)
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        if let Some(values) = self.0.get_mut(key) {
            values.remove(value);
            if values.is_empty() {
                self.0.remove(key);
            }
        }
    }

    /// The values of a key, in order.
    pub(crate) fn of<Q>(&self, key: &Q) -> impl Iterator<Item = &V>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        self.0.get(key).into_iter().flatten()
    }

    /// Whether the key has any value.
    pub(crate) fn has<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        self.0.contains_key(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_found_by_its_key_until_it_is_taken_away() {
        let mut links = Links::default();
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
