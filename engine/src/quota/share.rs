//! The dominant resource share of a node of the quota tree: how much it borrows of what its parent can lend.
//!
//! For each resource, what the node uses above its own quota (its *subtree quota*), in all Flavors together, is set
//! against all that its parent could ever have of it. The largest of these ratios, divided by the node's weight, is the
//! share. A node that borrows nothing, or has no parent, has none.
//!
//! Shares are compared exactly, as fractions of whole numbers: no rounding makes two of them equal, or an order of three
//! of them go round in a circle.

use std::{
    cmp::{Ordering, Reverse},
    collections::BTreeMap,
};

use super::{
    policy::Weight,
    tree::{NodeId, PairId, QuotaTree},
};
use crate::{
    amount::Resource,
    names::{CohortName, TeamName},
};

/// How much of what could be lent to it a Team or Cohort borrows, by its weight.
#[derive(Clone, Debug)]
pub struct Share {
    borrowed: u64,
    lendable: u64,
    weight: Weight,
    dominant: Option<Resource>,
    is_borrowing: bool,
}

impl Share {
    /// The share of one that borrows nothing.
    pub(super) const fn none(weight: Weight) -> Self {
        Self {
            borrowed: 0,
            lendable: 1,
            weight,
            dominant: None,
            is_borrowing: false,
        }
    }

    /// Whether anything is borrowed, even of a resource of which nothing can be lent.
    pub fn is_borrowing(&self) -> bool {
        self.is_borrowing
    }

    /// The resource that decides; the first by name of several. `None` if nothing is borrowed that could be lent.
    pub fn dominant(&self) -> Option<&Resource> {
        self.dominant.as_ref()
    }

    /// In thousandths, by weight, rounded up; `None` if it is beyond all measure: something is borrowed at weight zero.
    pub fn thousandths(&self) -> Option<u128> {
        if self.is_infinite() {
            return None;
        }
        if self.borrowed == 0 {
            return Some(0);
        }
        let share = u128::from(self.borrowed) * 1000;
        let one = u128::from(Weight::ONE.0);
        let whole = u128::from(self.lendable) * u128::from(self.weight.0);
        // As 128 bits hold: what is lost beyond them is far below one thousandth of the whole.
        Some(match share.checked_mul(one) {
            Some(share) => share.div_ceil(whole),
            None => share.div_ceil((whole / one).max(1)),
        })
    }

    /// Which of two shares is larger.
    pub fn compare(&self, other: &Self) -> Ordering {
        let infinite = self.is_infinite().cmp(&other.is_infinite());
        infinite.then_with(|| compare_fractions(self.fraction(), other.fraction()))
    }

    fn is_infinite(&self) -> bool {
        self.weight == Weight::ZERO && self.is_borrowing
    }

    /// Among those beyond all measure the ratio decides as it is; elsewhere by weight.
    fn fraction(&self) -> (u128, u128) {
        let weight = match self.weight {
            Weight::ZERO => Weight::ONE,
            weight => weight,
        };
        let whole = u128::from(self.lendable) * u128::from(weight.0);
        (u128::from(self.borrowed), whole)
    }
}

/// A share by its size.
#[derive(Clone, Debug)]
pub(crate) struct InOrder(pub(crate) Share);

impl Ord for InOrder {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.compare(&other.0)
    }
}

impl PartialOrd for InOrder {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for InOrder {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for InOrder {}

/// Compares two fractions without a product: by their whole parts, then, upside down, by what is left. Denominators are
/// above zero.
fn compare_fractions(mut left: (u128, u128), mut right: (u128, u128)) -> Ordering {
    let mut is_reversed = false;
    loop {
        let wholes = (left.0 / left.1).cmp(&(right.0 / right.1));
        let (left_rest, right_rest) = (left.0 % left.1, right.0 % right.1);
        let order = match (wholes, left_rest, right_rest) {
            (Ordering::Equal, 0, 0) => return Ordering::Equal,
            (Ordering::Equal, 0, _) => Ordering::Less,
            (Ordering::Equal, _, 0) => Ordering::Greater,
            (Ordering::Equal, _, _) => {
                left = (left.1, left_rest);
                right = (right.1, right_rest);
                is_reversed = !is_reversed;
                continue;
            }
            (order, _, _) => order,
        };
        return if is_reversed { order.reverse() } else { order };
    }
}

/// What can ever be lent to the children of a node, by resource. It does not depend on use.
pub(crate) type Lendable = BTreeMap<Resource, i128>;

impl QuotaTree {
    /// How much of what could be lent to it a Team borrows; `None` if it is unknown or cut off by a cycle.
    pub fn team_share(&self, team: &TeamName) -> Option<Share> {
        self.node_of(team).map(|node| self.share(node))
    }

    /// How much of what could be lent to it a Cohort borrows; `None` if nobody names it, or it is cut off by a cycle.
    pub fn cohort_share(&self, cohort: &CohortName) -> Option<Share> {
        self.node_of_cohort(cohort).map(|node| self.share(node))
    }

    fn share(&self, node: NodeId) -> Share {
        let lendable = self.parent_of(node).map(|parent| self.lendable_of(parent));
        self.share_of(node, lendable.as_ref())
    }

    /// What a parent could have of each resource that its root's tree knows.
    pub(crate) fn lendable_of(&self, parent: NodeId) -> Lendable {
        let mut lendable = Lendable::new();
        for pair in self.pairs_at(self.root_of(parent)) {
            let resource = self.named(pair).resource.clone();
            let potential = self.potential_from(parent, pair);
            *lendable.entry(resource).or_default() += potential;
        }
        lendable
    }

    /// The share of a node below a parent of whom so much could be lent.
    pub(super) fn share_of(&self, node: NodeId, lendable: Option<&Lendable>) -> Share {
        self.share_with(node, lendable, &BTreeMap::new())
    }

    /// The same, as if the node used so much more.
    pub(crate) fn share_with(
        &self,
        node: NodeId,
        lendable: Option<&Lendable>,
        added: &BTreeMap<PairId, i128>,
    ) -> Share {
        let weight = self.weight_of(node);
        let mut share = Share::none(weight);
        let Some(lendable) = lendable else {
            return share;
        };
        let mut borrowed: BTreeMap<&Resource, i128> = BTreeMap::new();
        let mut borrow = |pair: PairId, above: i128| {
            if above > 0 {
                *borrowed.entry(&self.named(pair).resource).or_default() += above;
            }
        };
        for (pair, account) in self.accounts_of(node) {
            let added = added.get(&pair).copied().unwrap_or_default();
            borrow(pair, added - account.headroom());
        }
        for (pair, added) in added {
            if !self.has_account(node, *pair) {
                borrow(*pair, *added);
            }
        }
        share.is_borrowing = !borrowed.is_empty();
        let ratios = borrowed.into_iter().filter_map(|(resource, borrowed)| {
            let lendable = *lendable.get(resource)?;
            (lendable > 0).then(|| (unsigned(borrowed), unsigned(lendable), resource))
        });
        let dominant = ratios.max_by(|left, right| {
            let by_ratio = compare_fractions(wide(left), wide(right));
            by_ratio.then_with(|| Reverse(name(left.2)).cmp(&Reverse(name(right.2))))
        });
        if let Some((borrowed, lendable, resource)) = dominant {
            share.borrowed = borrowed;
            share.lendable = lendable;
            share.dominant = Some(resource.clone());
        }
        share
    }
}

fn wide((borrowed, lendable, _): &(u64, u64, &Resource)) -> (u128, u128) {
    (u128::from(*borrowed), u128::from(*lendable))
}

fn name(resource: &Resource) -> String {
    resource.to_string()
}

/// The closest 64-bit number; never below zero.
fn unsigned(amount: i128) -> u64 {
    u64::try_from(amount.max(0)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn share(borrowed: u64, lendable: u64, weight: u64) -> Share {
        Share {
            borrowed,
            lendable,
            weight: Weight(weight),
            dominant: None,
            is_borrowing: borrowed > 0,
        }
    }

    #[test]
    fn what_is_borrowed_at_weight_zero_is_beyond_all_else_and_compared_as_it_is() {
        for (larger, smaller) in [
            (share(1, u64::MAX, 0), share(u64::MAX, 1, 1)),
            (share(2, 10, 0), share(1, 10, 0)),
        ] {
            assert_eq!(larger.compare(&smaller), Ordering::Greater, "{larger:?}");
            assert_eq!(smaller.compare(&larger), Ordering::Less, "{larger:?}");
        }
        assert_eq!(share(0, 10, 0).compare(&share(0, 3, 7)), Ordering::Equal);
        // Of a resource of which nothing can be lent: the ratio says nothing, the weight does.
        let unlendable = Share {
            is_borrowing: true,
            ..Share::none(Weight::ZERO)
        };
        assert_eq!(
            unlendable.compare(&share(u64::MAX, 1, 1)),
            Ordering::Greater
        );
        assert_eq!(unlendable.compare(&share(1, 10, 0)), Ordering::Less);
        assert_eq!(unlendable.thousandths(), None);
        assert_eq!(share(1, 10, 0).thousandths(), None);
        assert_eq!(share(0, 10, 0).thousandths(), Some(0));
    }

    #[test]
    fn thousandths_are_rounded_up_and_never_wrap() {
        let one = Weight::ONE.0;
        for (of, expected) in [
            (share(1, 3, one), 334),
            (share(25, 100, one), 250),
            (share(25, 100, 2 * one), 125),
            (share(25, 100, one / 2), 500),
            (share(u64::MAX, u64::MAX, one), 1000),
        ] {
            assert_eq!(of.thousandths(), Some(expected), "{of:?}");
        }
        assert!(share(u64::MAX, 1, 1).thousandths() > Some(1 << 70));
    }

    proptest! {
        #[test]
        fn small_fractions_compare_as_their_products(
            left in (0..50_u128, 1..50_u128), right in (0..50_u128, 1..50_u128),
        ) {
            let by_product = (left.0 * right.1).cmp(&(right.0 * left.1));
            prop_assert_eq!(compare_fractions(left, right), by_product);
            prop_assert_eq!(compare_fractions(right, left), by_product.reverse());
        }

        #[test]
        fn large_fractions_have_an_order(
            borrowed in any::<u64>(), lendable in 1..u64::MAX, weight in 1..u64::MAX,
        ) {
            let of = share(borrowed, lendable, weight);
            prop_assert_eq!(of.compare(&of), Ordering::Equal);
            if borrowed < u64::MAX {
                prop_assert!(share(borrowed + 1, lendable, weight).compare(&of).is_gt());
            }
            if borrowed > 0 {
                prop_assert!(share(borrowed, lendable + 1, weight).compare(&of).is_lt());
            }
        }
    }
}
