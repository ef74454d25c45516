//! Which nodes may have GPUs reset, so that no more are at it at a time than may be.
//!
//! A node that wants a reset waits for a while, so that a false alarm on many nodes is seen as one before the first of them has leave; whether so
//! many may be reset at all is the breaker's to say ([`super::breaker`]). Then it has a **place**, in the order of waiting, and with it leave. It
//! has its place for as long as a reset may be under way there: until nothing is wrong any more that a reset would mend, or until what was begun
//! before its leave was taken must have ended. Leave is taken of a node on which nothing comes of it once others wait: somebody has its GPUs open,
//! say. It waits anew then.
//!
//! Nothing here reads a clock: seconds are those of the caller's monotonic clock.

use std::collections::{BTreeMap, BTreeSet};

use crate::names::NodeName;

/// How many nodes may have GPUs reset at the same time, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResetLimits {
    /// So many nodes at the same time. With 0 none ever is.
    pub most_nodes: usize,
    /// How long a node wants a reset before it has leave, in seconds.
    pub patience_seconds: u64,
    /// How long a node has its leave while others wait for theirs, in seconds: enough for two resets, and for the GPU to be found in order after
    /// each.
    pub turn_seconds: u64,
    /// How long a reset may go on that was begun before leave was taken, in seconds.
    pub run_out_seconds: u64,
}

impl ResetLimits {
    /// What ships, for a command that takes two minutes at most.
    pub const SHIPPED: Self = Self {
        most_nodes: 5,
        patience_seconds: 30,
        turn_seconds: 900,
        run_out_seconds: Self::run_out_seconds(120),
    };

    /// How long a reset may go on whose command may take so many seconds: between the last look whether there is leave and the beginning of the
    /// command lie calls that take some seconds each, and a command that takes too long has 15 s to end.
    pub const fn run_out_seconds(deadline_seconds: u64) -> u64 {
        deadline_seconds.saturating_add(60)
    }
}

/// What is seen of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResetSeen {
    /// Whether a GPU of it has a fault that a reset may mend; `None`: nobody can tell, nor whether a reset that was begun has ended.
    pub wants: Option<bool>,
    /// Whether it is told that it may reset GPUs (true), or that it may not any more; `None`: it was never told.
    pub leave: Option<bool>,
}

/// What [`ResetTurns::advance`] changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResetNews {
    /// Nodes that have leave by now, or have it no more.
    pub changed: Vec<NodeName>,
    /// Nodes on which no reset is under way any more.
    pub ended: Vec<NodeName>,
}

/// A node that wants a reset and has no place.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    since: u64,
    /// It was told something by whoever led before.
    was_told: bool,
}

/// A node on which a reset may be under way.
#[derive(Clone, Copy, Debug)]
struct Place {
    begun_at: u64,
    has_leave: bool,
    /// Since when it is seen that it has no leave, if that was taken.
    withheld_since: Option<u64>,
    seen: ResetSeen,
}

impl Place {
    /// Whether a reset that was begun may be under way still.
    fn has_ended(&self, limits: ResetLimits, now: u64) -> bool {
        self.withheld_since.is_some_and(|since| {
            self.seen.wants == Some(false) || since.saturating_add(limits.run_out_seconds) <= now
        })
    }

    fn note(&mut self, seen: ResetSeen, now: u64) {
        self.seen = seen;
        self.has_leave &= seen.wants == Some(true);
        if self.has_leave || seen.leave == Some(true) {
            self.withheld_since = None;
        } else {
            self.withheld_since.get_or_insert(now);
        }
    }

    fn take_leave(&mut self, now: u64) {
        self.has_leave = false;
        self.note(self.seen, now);
    }
}

/// The nodes that want a reset, and those that may be at it.
#[derive(Clone, Debug, Default)]
pub struct ResetTurns {
    waiting: BTreeMap<NodeName, Waiting>,
    /// The same by since when.
    in_order: BTreeSet<(u64, NodeName)>,
    places: BTreeMap<NodeName, Place>,
    /// Nodes that get a place once that is recorded.
    chosen: BTreeSet<NodeName>,
    /// Whether more nodes want a reset than were judged.
    is_unjudged: bool,
    has_taken_over: bool,
}

impl ResetTurns {
    /// Whether nothing is known of any node.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.places.is_empty()
    }

    /// Notes what is seen of a node now.
    pub fn note(&mut self, node: &NodeName, seen: ResetSeen, now_seconds: u64) {
        if let Some(place) = self.places.get_mut(node) {
            place.note(seen, now_seconds);
            return;
        }
        let wants = seen.wants == Some(true);
        if seen.leave == Some(true) {
            // Whoever led before gave it leave.
            self.stop_waiting(node);
            let mut place = Place {
                begun_at: now_seconds,
                has_leave: true,
                withheld_since: None,
                seen,
            };
            place.note(seen, now_seconds);
            self.places.insert(node.clone(), place);
            self.is_unjudged = true;
        } else if !wants {
            self.stop_waiting(node);
        } else if !self.waiting.contains_key(node) {
            self.wait(node, seen.leave.is_some(), now_seconds);
            self.is_unjudged = true;
        }
    }

    /// Time goes on. Nodes that were chosen have a place, if that is recorded; who has it for long while others wait, or whoever has it while all is
    /// held back, loses its leave; so do those beyond as many as may be, which whoever led before gave leave, under another limit perhaps; and where
    /// nothing can be under way any more, the place is free.
    ///
    /// At first, nodes that wait and are recorded, or were told anything, have a place without leave: whoever led before may have given them leave a
    /// moment ago.
    pub fn advance(
        &mut self,
        limits: ResetLimits,
        is_held_back: bool,
        is_recorded: impl Fn(&NodeName) -> bool,
        now_seconds: u64,
    ) -> ResetNews {
        let mut news = ResetNews::default();
        let is_off = is_held_back || limits.most_nodes == 0;
        if !std::mem::replace(&mut self.has_taken_over, true) {
            self.take_over(&is_recorded, now_seconds);
        }
        for node in std::mem::take(&mut self.chosen) {
            if !is_off && is_recorded(&node) && self.stop_waiting(&node) {
                self.give_place(node.clone(), true, now_seconds);
                news.changed.push(node);
            }
        }
        let mut ending = self.longest_turns(limits, now_seconds);
        ending.extend(self.too_many(limits));
        for (node, place) in &mut self.places {
            if place.has_leave && (is_off || ending.contains(node)) {
                place.take_leave(now_seconds);
                news.changed.push(node.clone());
            }
        }
        let ended = self.places.iter();
        let ended = ended.filter(|(_, place)| place.has_ended(limits, now_seconds));
        news.ended = ended.map(|(node, _)| node.clone()).collect();
        for node in &news.ended {
            let place = self.places.remove(node);
            if place.is_some_and(|place| place.seen.wants == Some(true)) {
                self.wait(node, true, now_seconds);
            }
        }
        news
    }

    /// The nodes that are next to have a place, as far as there are any free.
    pub fn due(&self, limits: ResetLimits, now_seconds: u64) -> BTreeSet<NodeName> {
        let free = limits.most_nodes.saturating_sub(self.places.len());
        let patient = self.patient(limits, now_seconds);
        patient.take(free).cloned().collect()
    }

    /// All that want a reset were judged, and may have it; these of them have a place as soon as that is recorded.
    pub fn choose(&mut self, nodes: BTreeSet<NodeName>) {
        self.chosen = nodes;
        self.is_unjudged = false;
    }

    /// Whether it is to be judged now how many nodes want a reset: one has waited long enough, and there is a place, or more want it than were judged.
    /// Not before: a false alarm comes from one node after the other, and how many they are is known once all have told.
    pub fn is_to_be_judged(&self, limits: ResetLimits, now_seconds: u64) -> bool {
        let may_be_given = self.places.len() < limits.most_nodes;
        let has_patient = || self.patient(limits, now_seconds).next().is_some();
        limits.most_nodes > 0 && (may_be_given || self.is_unjudged) && has_patient()
    }

    /// Whether a node has leave.
    pub fn has_leave(&self, node: &NodeName) -> bool {
        self.places.get(node).is_some_and(|place| place.has_leave)
    }

    /// The nodes that want a reset.
    pub fn wanting(&self) -> impl Iterator<Item = &NodeName> {
        let places = self.places.iter();
        let places = places.filter(|(_, place)| place.seen.wants == Some(true));
        self.waiting.keys().chain(places.map(|(node, _)| node))
    }

    /// The nodes that have leave.
    pub fn with_leave(&self) -> impl Iterator<Item = &NodeName> {
        let places = self.places.iter();
        let places = places.filter(|(_, place)| place.has_leave);
        places.map(|(node, _)| node)
    }

    /// The nodes on which a reset may be under way.
    pub fn under_way(&self) -> impl Iterator<Item = &NodeName> {
        self.places.keys()
    }

    /// The next second in which time alone changes anything, after this one.
    pub fn next_due(&self, limits: ResetLimits, now_seconds: u64) -> Option<u64> {
        let first = self.in_order.first().filter(|_| limits.most_nodes > 0);
        let patient = first.map(|(since, _)| since.saturating_add(limits.patience_seconds));
        let places = self.places.values().flat_map(|place| {
            let withheld = place.withheld_since;
            let turn = first.filter(|_| place.has_leave);
            [
                withheld.map(|since| since.saturating_add(limits.run_out_seconds)),
                turn.map(|_| place.begun_at.saturating_add(limits.turn_seconds)),
            ]
        });
        let all = places.chain([patient]).flatten();
        all.filter(|second| *second > now_seconds).min()
    }

    /// Those that have waited long enough, in order.
    fn patient(&self, limits: ResetLimits, now: u64) -> impl Iterator<Item = &NodeName> {
        let in_order = self.in_order.iter();
        let patient = in_order
            .take_while(move |(since, _)| since.saturating_add(limits.patience_seconds) <= now);
        patient.map(|(_, node)| node)
    }

    /// As many of those whose turn is over as others wait for, the longest first.
    fn longest_turns(&self, limits: ResetLimits, now: u64) -> BTreeSet<NodeName> {
        let places = self.places.values();
        let ending = places.filter(|place| !place.has_leave).count();
        let free = limits.most_nodes.saturating_sub(self.places.len());
        let waiting = self.patient(limits, now).take(limits.most_nodes).count();
        let wanted = waiting.saturating_sub(free.saturating_add(ending));
        if wanted == 0 {
            return BTreeSet::new();
        }
        let over = self.places.iter().filter(|(_, place)| {
            place.has_leave && place.begun_at.saturating_add(limits.turn_seconds) <= now
        });
        let over: BTreeSet<(u64, &NodeName)> =
            over.map(|(node, place)| (place.begun_at, node)).collect();
        let longest = over.into_iter().take(wanted);
        longest.map(|(_, node)| node.clone()).collect()
    }

    /// Those beyond as many as may have leave, the latest of all.
    fn too_many(&self, limits: ResetLimits) -> BTreeSet<NodeName> {
        let may = self.places.iter().filter(|(_, place)| place.has_leave);
        let may: BTreeSet<(u64, &NodeName)> =
            may.map(|(node, place)| (place.begun_at, node)).collect();
        let beyond = may.into_iter().skip(limits.most_nodes);
        beyond.map(|(_, node)| node.clone()).collect()
    }

    fn take_over(&mut self, is_recorded: impl Fn(&NodeName) -> bool, now: u64) {
        let waiting = self.waiting.iter();
        let left = waiting.filter(|(node, waiting)| waiting.was_told || is_recorded(node));
        let left: Vec<NodeName> = left.map(|(node, _)| node.clone()).collect();
        for node in left {
            self.stop_waiting(&node);
            self.give_place(node, false, now);
        }
    }

    fn give_place(&mut self, node: NodeName, has_leave: bool, now: u64) {
        let seen = ResetSeen {
            wants: Some(true),
            leave: None,
        };
        let mut place = Place {
            begun_at: now,
            has_leave,
            withheld_since: None,
            seen,
        };
        place.note(seen, now);
        self.places.insert(node, place);
    }

    fn wait(&mut self, node: &NodeName, was_told: bool, since: u64) {
        self.in_order.insert((since, node.clone()));
        self.waiting
            .insert(node.clone(), Waiting { since, was_told });
    }

    /// Whether it waited.
    fn stop_waiting(&mut self, node: &NodeName) -> bool {
        let Some(waiting) = self.waiting.remove(node) else {
            return false;
        };
        self.in_order.remove(&(waiting.since, node.clone()));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ResetLimits = ResetLimits {
        most_nodes: 2,
        patience_seconds: 30,
        turn_seconds: 900,
        run_out_seconds: 180,
    };

    fn name(number: usize) -> NodeName {
        format!("n{number}").into()
    }

    fn names(numbers: &[usize]) -> BTreeSet<NodeName> {
        numbers.iter().map(|number| name(*number)).collect()
    }

    fn seen(wants: Option<bool>, leave: Option<bool>) -> ResetSeen {
        ResetSeen { wants, leave }
    }

    fn wanting(nodes: std::ops::Range<usize>, now: u64) -> ResetTurns {
        let mut turns = ResetTurns::default();
        turns.advance(LIMITS, false, |_| false, 0);
        for node in nodes {
            turns.note(&name(node), seen(Some(true), None), now);
        }
        turns
    }

    /// What is due is recorded at once, and told.
    fn give(turns: &mut ResetTurns, now: u64) -> BTreeSet<NodeName> {
        let due = turns.due(LIMITS, now);
        turns.choose(due.clone());
        let news = turns.advance(LIMITS, false, |_| true, now);
        assert_eq!(news.changed.iter().cloned().collect::<BTreeSet<_>>(), due);
        for node in &due {
            turns.note(node, seen(Some(true), Some(true)), now);
        }
        due
    }

    #[test]
    fn as_many_as_may_be_have_leave_after_a_while_in_the_order_in_which_they_wanted_it() {
        let mut turns = wanting(0..1, 100);
        for node in [5, 3, 4] {
            turns.note(&name(node), seen(Some(true), None), 101);
        }
        assert_eq!(turns.due(LIMITS, 129), names(&[]));
        assert!(!turns.is_to_be_judged(LIMITS, 129));
        assert!(turns.is_to_be_judged(LIMITS, 130));
        assert_eq!(turns.next_due(LIMITS, 129), Some(130));
        assert_eq!(turns.due(LIMITS, 130), names(&[0]));
        assert_eq!(give(&mut turns, 131), names(&[0, 3]));
        assert!(!turns.is_to_be_judged(LIMITS, 131), "no place is free");
        turns.note(&name(6), seen(Some(true), None), 131);
        assert!(turns.is_to_be_judged(LIMITS, 131), "one more wants it");
        turns.note(&name(6), seen(Some(false), None), 131);
        turns.choose(names(&[]));
        assert!(!turns.is_to_be_judged(LIMITS, 131));
        assert!(turns.has_leave(&name(0)) && !turns.has_leave(&name(4)));
        assert_eq!(turns.wanting().count(), 4);
        assert_eq!(turns.under_way().count(), 2);
        assert_eq!(turns.due(LIMITS, 200), names(&[]));
        // One is in order, and hears that it may not any more.
        turns.note(&name(3), seen(Some(false), Some(true)), 200);
        assert!(!turns.has_leave(&name(3)));
        assert_eq!(
            turns.due(LIMITS, 200),
            names(&[]),
            "it is told that it may, still"
        );
        turns.note(&name(3), seen(Some(false), None), 201);
        let news = turns.advance(LIMITS, false, |_| true, 201);
        assert_eq!(news.ended, [name(3)]);
        assert_eq!(turns.due(LIMITS, 201), names(&[4]));
    }

    #[test]
    fn what_is_not_recorded_or_is_held_back_gives_no_leave() {
        for (is_recorded, is_held_back, most_nodes, is_given) in [
            (true, false, 2, true),
            (false, false, 2, false),
            (true, true, 2, false),
            (true, false, 0, false),
        ] {
            let mut turns = wanting(0..1, 100);
            turns.choose(turns.due(LIMITS, 130));
            let limits = ResetLimits {
                most_nodes,
                ..LIMITS
            };
            turns.advance(limits, is_held_back, |_| is_recorded, 130);
            let case = format!("{is_recorded} {is_held_back} {most_nodes}");
            assert_eq!(turns.has_leave(&name(0)), is_given, "{case}");
            let may_be_due = !is_given && most_nodes > 0;
            assert_eq!(turns.due(limits, 131).len(), usize::from(may_be_due));
        }
    }

    #[test]
    fn whoever_makes_nothing_of_its_leave_gives_way_once_others_wait_and_when_a_reset_must_have_ended()
     {
        let mut turns = wanting(0..2, 100);
        give(&mut turns, 130);
        let news = turns.advance(LIMITS, false, |_| true, 5_000);
        assert_eq!(news, ResetNews::default(), "nobody else wants any");
        turns.note(&name(2), seen(Some(true), None), 5_000);
        let news = turns.advance(LIMITS, false, |_| true, 5_029);
        assert_eq!(news, ResetNews::default(), "for a while");
        let news = turns.advance(LIMITS, false, |_| true, 5_030);
        assert_eq!(news.changed, [name(0)], "no more than others wait for");
        let again = turns.advance(LIMITS, false, |_| true, 5_031);
        assert_eq!(again, ResetNews::default());
        // It is told so at 5,040; what it began before may go on until 5,220.
        turns.advance(LIMITS, false, |_| true, 5_039);
        turns.note(&name(0), seen(Some(true), Some(false)), 5_040);
        turns.advance(LIMITS, false, |_| true, 5_219);
        assert_eq!(turns.due(LIMITS, 5_219), names(&[]));
        assert_eq!(turns.next_due(LIMITS, 5_219), Some(5_220));
        let news = turns.advance(LIMITS, false, |_| true, 5_220);
        assert_eq!(news.ended, [name(0)]);
        assert_eq!(give(&mut turns, 5_220), names(&[2]));
        assert_eq!(turns.wanting().count(), 3, "it waits anew");
    }

    #[test]
    fn whoever_takes_over_counts_what_may_be_under_way_and_gives_no_leave_beside_it() {
        for (leave, is_recorded, has_leave, may_be_under_way) in [
            (Some(true), false, true, true),
            (Some(false), false, false, true),
            (None, true, false, true),
            (None, false, false, false),
        ] {
            let mut turns = ResetTurns::default();
            turns.note(&name(0), seen(Some(true), leave), 100);
            turns.advance(LIMITS, false, |_| is_recorded, 100);
            let case = format!("{leave:?} {is_recorded}");
            assert_eq!(turns.has_leave(&name(0)), has_leave, "{case}");
            let under_way = turns.under_way().count();
            assert_eq!(under_way, usize::from(may_be_under_way), "{case}");
            turns.note(&name(0), seen(Some(true), leave), 279);
            turns.advance(LIMITS, false, |_| is_recorded, 279);
            assert_eq!(turns.under_way().count(), under_way, "{case}");
            turns.advance(LIMITS, false, |_| is_recorded, 280);
            let under_way = turns.under_way().count();
            assert_eq!(under_way, usize::from(has_leave), "{case}");
        }
    }

    #[test]
    fn s9_of_those_that_were_given_leave_before_no_more_keep_it_than_may_be_now() {
        let mut turns = ResetTurns::default();
        for node in 0..4 {
            turns.note(&name(node), seen(Some(true), Some(true)), 100);
        }
        let news = turns.advance(LIMITS, false, |_| true, 100);
        assert_eq!(news.changed, [name(2), name(3)]);
        assert!(turns.has_leave(&name(0)) && turns.has_leave(&name(1)));
        // What they have begun is waited for all the same.
        for node in [2, 3] {
            turns.note(&name(node), seen(Some(true), Some(false)), 101);
        }
        // A late write gives one more leave, that wants it by now.
        turns.note(&name(4), seen(Some(true), Some(true)), 102);
        let news = turns.advance(LIMITS, false, |_| true, 102);
        assert_eq!(news.changed, [name(4)]);
        assert_eq!(turns.under_way().count(), 5);
        let again = turns.advance(LIMITS, false, |_| true, 103);
        assert_eq!(again, ResetNews::default());
        assert_eq!(turns.due(LIMITS, 200), names(&[]));
    }

    #[test]
    fn whoever_falls_silent_keeps_its_place_for_as_long_as_a_reset_may_go_on() {
        let mut turns = wanting(0..1, 100);
        give(&mut turns, 130);
        turns.note(&name(0), seen(None, Some(true)), 140);
        assert!(!turns.has_leave(&name(0)));
        turns.note(&name(0), seen(None, None), 141);
        turns.advance(LIMITS, false, |_| true, 320);
        assert_eq!(turns.under_way().count(), 1);
        let news = turns.advance(LIMITS, false, |_| true, 321);
        assert_eq!(news.ended, [name(0)]);
        assert!(turns.is_empty());
    }

    /// Whatever is seen, recorded and held back, in any order.
    #[test]
    fn s9_never_do_more_nodes_have_a_place_than_may_be() {
        for seed in 0..200_u64 {
            let mut random = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let mut draw = |below: u64| {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) % below
            };
            let mut turns = ResetTurns::default();
            let mut told: BTreeMap<NodeName, bool> = BTreeMap::new();
            turns.advance(LIMITS, false, |_| false, 0);
            for step in 0..400 {
                let now = step * 13;
                let node = name(usize::try_from(draw(6)).unwrap());
                let wants = [Some(true), Some(true), Some(false), None];
                let wants = wants[usize::try_from(draw(4)).unwrap()];
                let leave = told.get(&node).copied();
                turns.note(&node, seen(wants, leave), now);
                turns.choose(turns.due(LIMITS, now));
                let (is_held_back, is_recorded) = (draw(9) == 0, draw(3) > 0);
                turns.advance(LIMITS, is_held_back, |_| is_recorded, now);
                let places = turns.under_way().count();
                assert!(places <= LIMITS.most_nodes, "seed {seed}, step {step}");
                // The leader tells a node, sooner or later.
                let has_leave = turns.has_leave(&node);
                if draw(2) == 0 && (has_leave || told.contains_key(&node)) {
                    told.insert(node.clone(), has_leave);
                    turns.note(&node, seen(wants, Some(has_leave)), now);
                }
                let may = told.iter().filter(|(_, may)| **may);
                let places: BTreeSet<&NodeName> = turns.under_way().collect();
                for (node, _) in may {
                    assert!(places.contains(node), "seed {seed}, step {step}: {node}");
                }
            }
        }
    }
}
