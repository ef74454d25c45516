//! Dominant resource shares, as exact fractions.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BTreeMap, BTreeSet},
};

use super::{Name, Pair, Tree};

/// `borrowed / lendable / weight`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    borrowed: i128,
    lendable: i128,
    /// In billionths.
    weight: u64,
    pub(crate) dominant: Option<u8>,
    pub(crate) is_borrowing: bool,
}

const BILLION: i128 = 1_000_000_000;

impl Share {
    fn is_infinite(&self) -> bool {
        self.weight == 0 && self.is_borrowing
    }

    /// Rounded up; `None` is infinity.
    pub(crate) fn thousandths(&self) -> Option<i128> {
        if self.is_infinite() {
            return None;
        }
        if self.borrowed == 0 {
            return Some(0);
        }
        let divisor = self.lendable * i128::from(self.weight);
        Some((1000 * BILLION * self.borrowed + divisor - 1) / divisor)
    }

    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        match (self.is_infinite(), other.is_infinite()) {
            (true, true) => (self.borrowed * other.lendable).cmp(&(other.borrowed * self.lendable)),
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => self.compare_finite(other),
        }
    }

    fn compare_finite(&self, other: &Self) -> Ordering {
        if self.borrowed == 0 || other.borrowed == 0 {
            return self.borrowed.cmp(&other.borrowed);
        }
        let mine = self.borrowed * other.lendable * i128::from(other.weight);
        let theirs = other.borrowed * self.lendable * i128::from(self.weight);
        mine.cmp(&theirs)
    }
}

impl Tree<'_> {
    pub(crate) fn share(&self, node: Name) -> Share {
        let mut share = Share {
            borrowed: 0,
            lendable: 1,
            weight: self.weight(node),
            dominant: None,
            is_borrowing: false,
        };
        let Some(parent) = self.parent(node) else {
            return share;
        };
        let pairs = self.pairs();
        let borrowed = by_resource(&pairs, |pair| {
            (self.usage(node, pair) - self.subtree_quota(node, pair)).max(0)
        });
        let lendable = by_resource(&pairs, |pair| self.potentially_available(parent, pair));
        share.is_borrowing = borrowed.values().any(|amount| *amount > 0);
        let ratios = borrowed
            .into_iter()
            .map(|(resource, borrowed)| (resource, borrowed, lendable[&resource]))
            .filter(|(_, borrowed, lendable)| *borrowed > 0 && *lendable > 0);
        let largest = ratios.max_by_key(|(resource, borrowed, lendable)| {
            (Ratio(*borrowed, *lendable), Reverse(*resource))
        });
        if let Some((resource, borrowed, lendable)) = largest {
            share.borrowed = borrowed;
            share.lendable = lendable;
            share.dominant = Some(resource);
        }
        share
    }
}

fn by_resource(pairs: &BTreeSet<Pair>, amount: impl Fn(Pair) -> i128) -> BTreeMap<u8, i128> {
    let mut sums = BTreeMap::new();
    for pair in pairs {
        *sums.entry(pair.resource).or_default() += amount(*pair);
    }
    sums
}

struct Ratio(i128, i128);

impl Ord for Ratio {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.0 * other.1).cmp(&(other.0 * self.1))
    }
}

impl PartialOrd for Ratio {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ratio {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Ratio {}
