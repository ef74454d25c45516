//! The order of a gang's pods.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{completion_index, name, uid};
use crate::pod::{ObservedPod, pod_index};

/// Sorts by the first of these that every pod has and that tells them apart: completion index,
/// pod-index label, name.
pub(super) fn sort<P: AsRef<ObservedPod>>(pods: &mut [P]) {
    if distinct(pods, completion_index).is_some() {
        pods.sort_by_key(|pod| completion_index(pod.as_ref()));
    } else if distinct(pods, pod_index).is_some() {
        pods.sort_by_key(|pod| pod_index(pod.as_ref()));
    } else {
        pods.sort_by(|a, b| {
            let (a, b) = (a.as_ref(), b.as_ref());
            natural_order(name(a), name(b)).then_with(|| uid(a).cmp(uid(b)))
        });
    }
}

/// The rank of each pod by UID: by the first of completion index and pod index that every pod has and that tells them
/// apart, otherwise the position in the natural order of their names. `pods` are the members and those that succeeded, so
/// that a rank that is done changes no other.
pub(super) fn of(pods: &[&Arc<ObservedPod>]) -> BTreeMap<String, u32> {
    for index in [completion_index, pod_index] {
        if let Some(indexes) = distinct(pods, index) {
            let uids = pods.iter().map(|pod| uid(pod).to_owned());
            return uids.zip(indexes).collect();
        }
    }
    let mut by_name = pods.to_vec();
    by_name.sort_by(|a, b| natural_order(name(a), name(b)).then_with(|| uid(a).cmp(uid(b))));
    let ranks = (0..).zip(by_name);
    ranks
        .map(|(rank, pod)| (uid(pod).to_owned(), rank))
        .collect()
}

fn distinct<P: AsRef<ObservedPod>>(
    pods: &[P],
    index: impl Fn(&ObservedPod) -> Option<u32>,
) -> Option<Vec<u32>> {
    let all: Vec<u32> = pods
        .iter()
        .map(|pod| index(pod.as_ref()))
        .collect::<Option<_>>()?;
    let different: BTreeSet<_> = all.iter().collect();
    (different.len() == all.len()).then_some(all)
}

/// The order in which people read names: `w-2` before `w-10`. Total: equal only if the texts are.
pub fn natural_order(a: &str, b: &str) -> Ordering {
    tokens(a).cmp(tokens(b)).then_with(|| a.cmp(b))
}

/// A part of a name. Numbers compare by length without leading zeros, then digit by digit, so that no
/// number is too large.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Token<'a> {
    Number(usize, &'a str),
    Other(char),
}

fn tokens(text: &str) -> impl Iterator<Item = Token<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        if !first.is_ascii_digit() {
            rest = &rest[first.len_utf8()..];
            return Some(Token::Other(first));
        }
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let digits = rest[..end].trim_start_matches('0');
        rest = &rest[end..];
        Some(Token::Number(digits.len(), digits))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_ordered_as_people_read_them() {
        let mut names = vec![
            "w-10",
            "w-2",
            "w-1",
            "w",
            "v-99",
            "w-02",
            "w-1-x",
            "w-18446744073709551616",
        ];
        names.sort_by(|a, b| natural_order(a, b));
        assert_eq!(
            names,
            [
                "v-99",
                "w",
                "w-1",
                "w-1-x",
                "w-02",
                "w-2",
                "w-10",
                "w-18446744073709551616"
            ]
        );
    }

    proptest! {
        #[test]
        fn the_natural_order_is_total(
            a in "[a-c0-2é-]{0,8}", b in "[a-c0-2é-]{0,8}", c in "[a-c0-2é-]{0,8}",
        ) {
            prop_assert_eq!(natural_order(&a, &b), natural_order(&b, &a).reverse());
            prop_assert_eq!(natural_order(&a, &b) == Ordering::Equal, a == b);
            if natural_order(&a, &b).is_le() && natural_order(&b, &c).is_le() {
                prop_assert!(natural_order(&a, &c).is_le());
            }
        }
    }
}
