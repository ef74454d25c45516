//! Who went for whom (ADR 18): a gang does not preempt one for which it went itself, be it through others.

use std::collections::BTreeSet;

use super::model::Uid;

#[derive(Clone, Debug)]
struct Went {
    loser: Uid,
    winner: Uid,
    loser_priority: i32,
    winner_priority: i32,
}

/// A list of who was told to go for whom, with the priorities that both had.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory(Vec<Went>);

impl Memory {
    /// One is told to go for another: what led the other way round counts no more.
    pub(super) fn note(&mut self, loser: (Uid, i32), winner: (Uid, i32)) {
        let before = self.clone();
        self.0.retain(|went| {
            let leads_back =
                went.winner == loser.0 || before.reached(went.winner).contains(&loser.0);
            let is_back = went.loser == winner.0 && leads_back;
            let is_same = went.loser == loser.0 && went.winner == winner.0;
            !is_back && !is_same
        });
        self.0.push(Went {
            loser: loser.0,
            winner: winner.0,
            loser_priority: loser.1,
            winner_priority: winner.1,
        });
    }

    /// All to whom the way leads from a gang.
    fn reached(&self, from: Uid) -> BTreeSet<Uid> {
        let mut reached = BTreeSet::from([from]);
        loop {
            let steps = self.0.iter().filter(|went| reached.contains(&went.loser));
            let new: Vec<Uid> = steps
                .map(|went| went.winner)
                .filter(|winner| !reached.contains(winner))
                .collect();
            if new.is_empty() {
                reached.remove(&from);
                return reached;
            }
            reached.extend(new);
        }
    }

    /// Whether a gang of this priority leaves another one of that priority alone. The first step counts only for a priority that is
    /// not higher than it was; and nothing against one that has sunk since the gang went for it.
    pub(super) fn spares(&self, gang: (Uid, i32), other: (Uid, i32)) -> bool {
        let mine = self.0.iter().filter(|went| went.loser == gang.0);
        let mut first = mine.clone().filter(|went| gang.1 <= went.loser_priority);
        let is_above = first
            .any(|went| went.winner == other.0 || self.reached(went.winner).contains(&other.0));
        let mut direct = mine.filter(|went| went.winner == other.0);
        let has_sunk = direct.any(|went| other.1 < went.winner_priority);
        is_above && !has_sunk
    }

    pub(super) fn forget(&mut self) {
        self.0.clear();
    }
}
