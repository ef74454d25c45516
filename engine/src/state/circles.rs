//! Who went for whom, so that nobody goes round (S15).
//!
//! By Kueue's rules alone two gangs, or more, may preempt each other for ever: each finds that it has a right to what the other
//! holds, as long as the other holds it. So it is remembered who was told to go for whom, and a gang does not preempt one for
//! which it went itself, be it through others. Only who stays within its Team's own quota always may: what was lent comes back.
//! Then the memory is the other way round from then on.
//!
//! Why that ends is argued in the record of decisions about preemption in circles. It is remembered for the priorities that
//! both had then: with a higher one, or against a lower one, a gang has another claim. At most [`MOST_REMEMBERED`] are
//! remembered, the last ones; and nothing once somebody changed limits, since then rights are others, too. That quota follows the
//! inventory changes nothing: nodes come and go all the time.

use std::collections::{BTreeMap, BTreeSet};

use crate::names::GangUid;

/// How many pairs of gangs are remembered.
const MOST_REMEMBERED: usize = 10_000;

/// That one gang went for another one, with the priorities that they had.
#[derive(Clone, Copy, Debug)]
struct Went {
    loser_priority: i32,
    winner_priority: i32,
    number: u64,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Circles {
    winners: BTreeMap<GangUid, BTreeMap<GangUid, Went>>,
    by_number: BTreeMap<u64, (GangUid, GangUid)>,
    last: u64,
}

impl Circles {
    /// A gang is told to go for another one; whether something else is remembered no longer, so that somebody may preempt whom
    /// it left alone before.
    pub(super) fn note(&mut self, loser: (&GangUid, i32), winner: (&GangUid, i32)) -> bool {
        let mut forgets = self.forget_ways(winner.0, loser.0);
        self.forget(loser.0, winner.0);
        self.last += 1;
        let went = Went {
            loser_priority: loser.1,
            winner_priority: winner.1,
            number: self.last,
        };
        let winners = self.winners.entry(loser.0.clone()).or_default();
        winners.insert(winner.0.clone(), went);
        let pair = (loser.0.clone(), winner.0.clone());
        self.by_number.insert(self.last, pair);
        if self.by_number.len() > MOST_REMEMBERED
            && let Some((_, (loser, winner))) = self.by_number.pop_first()
        {
            self.forget(&loser, &winner);
            forgets = true;
        }
        forgets
    }

    /// That a gang went for another one, through others perhaps and with whatever priority, counts no more. It looks at each
    /// gang on the way once.
    fn forget_ways(&mut self, from: &GangUid, to: &GangUid) -> bool {
        let first: Vec<GangUid> = self
            .winners
            .get(from)
            .into_iter()
            .flatten()
            .map(|(uid, _)| uid.clone())
            .collect();
        let mut leads_elsewhere = BTreeSet::new();
        let mut forgets = false;
        for first in first {
            let mut seen = BTreeSet::new();
            if self.leads_to(&first, to, &leads_elsewhere, &mut seen) {
                self.forget(from, &first);
                forgets = true;
            } else {
                leads_elsewhere.append(&mut seen);
            }
        }
        forgets
    }

    fn leads_to(
        &self,
        from: &GangUid,
        to: &GangUid,
        elsewhere: &BTreeSet<GangUid>,
        seen: &mut BTreeSet<GangUid>,
    ) -> bool {
        let mut rest = vec![from];
        while let Some(gang) = rest.pop() {
            if gang == to {
                return true;
            }
            if !elsewhere.contains(gang) && seen.insert(gang.clone()) {
                rest.extend(self.winners.get(gang).into_iter().flat_map(BTreeMap::keys));
            }
        }
        false
    }

    /// Somebody changed limits.
    pub(super) fn forget_all(&mut self) {
        *self = Self::default();
    }

    fn forget(&mut self, loser: &GangUid, winner: &GangUid) {
        if let Some(winners) = self.winners.get_mut(loser) {
            if let Some(went) = winners.remove(winner) {
                self.by_number.remove(&went.number);
            }
            if winners.is_empty() {
                self.winners.remove(loser);
            }
        }
    }

    /// All for whom a gang of this priority went, through others perhaps. The priorities of those between do not matter: they
    /// went as they were.
    pub(super) fn above(&self, gang: &GangUid, priority: i32) -> BTreeSet<&GangUid> {
        let mut above = BTreeSet::new();
        let first = self.winners.get(gang).into_iter().flatten();
        let first = first.filter(|(_, went)| priority <= went.loser_priority);
        let mut rest: Vec<&GangUid> = first.map(|(winner, _)| winner).collect();
        while let Some(gang) = rest.pop() {
            if above.insert(gang) {
                rest.extend(self.winners.get(gang).into_iter().flat_map(BTreeMap::keys));
            }
        }
        above
    }

    /// Whether the gang for which one went, not through others, has a lower priority by now than it had then.
    pub(super) fn has_sunk(&self, loser: &GangUid, winner: &GangUid, priority: i32) -> bool {
        let went = self.winners.get(loser).and_then(|it| it.get(winner));
        went.is_some_and(|went| priority < went.winner_priority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gang(name: &str) -> GangUid {
        name.into()
    }

    #[test]
    fn a_gang_is_below_all_for_whom_it_went_until_it_comes_back_by_right() {
        let mut circles = Circles::default();
        let (a, b, c) = (gang("a"), gang("b"), gang("c"));
        circles.note((&a, 0), (&b, 1));
        circles.note((&b, 1), (&c, 2));
        assert_eq!(circles.above(&a, 0), BTreeSet::from([&b, &c]));
        assert_eq!(circles.above(&a, 1), BTreeSet::new(), "another priority");
        assert!(circles.has_sunk(&a, &b, 0) && !circles.has_sunk(&a, &b, 1));
        circles.note((&c, 2), (&a, 0));
        assert_eq!(circles.above(&a, 0), BTreeSet::new());
        assert_eq!(circles.above(&b, 1), BTreeSet::from([&c, &a]));
        assert_eq!(circles.above(&c, 2), BTreeSet::from([&a]));
        circles.forget_all();
        assert_eq!(circles.above(&b, 1), BTreeSet::new());
    }

    /// Those below it may preempt those on the way then, and are to be asked again.
    #[test]
    fn who_comes_back_by_right_sets_those_free_for_whom_it_went_whatever_its_priority_by_now() {
        for priority in [0, 9] {
            let mut circles = Circles::default();
            let (a, b, c, d) = (gang("a"), gang("b"), gang("c"), gang("d"));
            assert!(!circles.note((&a, 0), (&b, 0)));
            assert!(!circles.note((&b, 0), (&c, 0)));
            assert!(!circles.note((&d, 0), (&a, 0)));
            let above = BTreeSet::from([&a, &b, &c]);
            assert_eq!(circles.above(&d, 0), above);
            assert!(circles.note((&c, 0), (&a, priority)));
            assert_eq!(circles.above(&d, 0), BTreeSet::from([&a]));
        }
    }

    #[test]
    fn so_many_pairs_are_remembered_and_no_more() {
        let mut circles = Circles::default();
        let winner = gang("winner");
        for number in 0..=MOST_REMEMBERED {
            circles.note((&gang(&number.to_string()), 0), (&winner, 1));
        }
        assert_eq!(circles.by_number.len(), MOST_REMEMBERED);
        assert_eq!(circles.winners.len(), MOST_REMEMBERED);
        assert!(circles.above(&gang("0"), 0).is_empty());
        assert!(!circles.above(&gang("1"), 0).is_empty());
    }
}
