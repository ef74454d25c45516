//! Whose turn it is where shares are fair.

use std::{cmp::Ordering, collections::BTreeMap};

use super::{Name, Pair, Share, Tree};

/// A gang that waits.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub(crate) uid: u32,
    pub(crate) team: Name,
    pub(crate) priority: i32,
    pub(crate) queued_at: i64,
    pub(crate) charges: Vec<(Pair, i128)>,
}

impl Waiting {
    fn request(&self) -> BTreeMap<Pair, i128> {
        let mut request = BTreeMap::new();
        for (pair, amount) in &self.charges {
            *request.entry(*pair).or_default() += amount;
        }
        request
    }

    /// Higher priority first, then who waits longest, then the smaller UID.
    fn compare(&self, other: &Self) -> Ordering {
        let priority = other.priority.cmp(&self.priority);
        let age = self.queued_at.cmp(&other.queued_at);
        priority.then(age).then(self.uid.cmp(&other.uid))
    }
}

/// The positions of the gangs below a root in the order of their turns, each charged before the next one is chosen. Of each Team the
/// first takes part.
pub(crate) fn order(mut tree: Tree<'_>, root: Name, waiting: &[Waiting]) -> Vec<usize> {
    let mut left: Vec<usize> = (0..waiting.len())
        .filter(|one| {
            let is_before = |other: &Waiting| {
                other.team == waiting[*one].team && other.compare(&waiting[*one]).is_lt()
            };
            !waiting.iter().any(is_before)
        })
        .collect();
    let mut order = Vec::new();
    while let Some(winner) = winner(&tree, root, waiting, &left) {
        left.retain(|position| *position != winner);
        for (pair, amount) in &waiting[winner].charges {
            tree.charge(waiting[winner].team, *pair, *amount);
        }
        order.push(winner);
    }
    order
}

/// The winner at a node: of a Team its own gang, of a Cohort the best of its children's winners.
pub(crate) fn winner(
    tree: &Tree<'_>,
    node: Name,
    waiting: &[Waiting],
    left: &[usize],
) -> Option<usize> {
    if tree.is_team(node) {
        return left
            .iter()
            .copied()
            .find(|position| waiting[*position].team == node);
    }
    let mut best: Option<(Name, usize)> = None;
    for child in tree.children(node) {
        let Some(candidate) = winner(tree, child, waiting, left) else {
            continue;
        };
        let wins = best.is_none_or(|(other, known)| {
            compare(tree, (child, &waiting[candidate]), (other, &waiting[known])).is_lt()
        });
        if wins {
            best = Some((child, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

fn compare(tree: &Tree<'_>, one: (Name, &Waiting), other: (Name, &Waiting)) -> Ordering {
    let (borrows, share) = with(tree, one.0, one.1);
    let (other_borrows, other_share) = with(tree, other.0, other.1);
    borrows
        .cmp(&other_borrows)
        .then(share.compare(&other_share))
        .then(one.1.compare(other.1))
}

/// Whether a node borrows some of what the gang asks for, and its share, both once the gang is charged.
fn with(tree: &Tree<'_>, node: Name, gang: &Waiting) -> (bool, Share) {
    let mut tree = tree.clone();
    for (pair, amount) in &gang.charges {
        tree.charge(gang.team, *pair, *amount);
    }
    let request = gang.request();
    let mut pairs = request.keys();
    let borrows = pairs.any(|pair| tree.is_borrowing_with(node, *pair, 0));
    (borrows, tree.share(node))
}
