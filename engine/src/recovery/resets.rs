//! Which nodes may have GPUs reset, so that no more are at it at a time than may be.
//!
//! A node that wants a reset waits for a while, so that a false alarm on many nodes is seen as one before the first of them has leave; whether so
//! many may be reset at all is the breaker's to say ([`super::breaker`]). Then it has a **place**, in the order of waiting, and with it leave. It
//! has its place for as long as a reset may be under way there: until nothing is wrong any more that a reset would mend, or until what was begun
//! before its leave was taken must have ended. Leave is taken of a node on which nothing comes of it once others wait. It waits anew then.
//!
//! **A node that would reset nothing**, whatever it may, since a monitor has its GPUs open, say, has no leave, does not wait, and is not counted: two of
//! them would use up for ever what may be reset in a small cluster. Its word is believed in one direction alone. It frees no place: what was begun under
//! leave may be under way, whatever the node says. And once it would, it waits as one that begins to want a reset, so it is judged, and counted, before it
//! has leave. A word that changes each second never has the patience of a node that waits; one that comes late counts a node for longer, or lets it wait
//! longer. Without leave nothing is reset, so a word that is false lets nobody reset more.
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

/// Whether a node wants a GPU reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResetWish {
    /// Nobody can tell, nor whether a reset that was begun has ended.
    #[default]
    Unknown,
    /// No GPU of it has a fault that a reset may mend.
    Nothing,
    /// Some have, and none of these would be reset now, whatever the node may.
    Hindered,
    /// Some have, and one of these would be reset, as far as anybody knows.
    Reset,
}

impl ResetWish {
    /// Whether a reset may mend a GPU of the node, whether or not it would be made.
    pub const fn is_wanted(self) -> bool {
        matches!(self, Self::Hindered | Self::Reset)
    }
}

/// What is seen of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResetSeen {
    /// Whether it wants a GPU reset.
    pub wish: ResetWish,
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
    /// It would reset nothing now, and has no turn.
    is_hindered: bool,
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
            self.seen.wish == ResetWish::Nothing
                || since.saturating_add(limits.run_out_seconds) <= now
        })
    }

    fn note(&mut self, seen: ResetSeen, now: u64) {
        self.seen = seen;
        self.has_leave &= seen.wish == ResetWish::Reset;
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
    /// Those of them that have turns, by since when.
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
            return;
        }
        let is_hindered = match seen.wish {
            ResetWish::Unknown | ResetWish::Nothing => {
                self.stop_waiting(node);
                return;
            }
            ResetWish::Hindered => true,
            ResetWish::Reset => false,
        };
        let before = self.waiting.get(node).copied();
        if before.is_some_and(|before| before.is_hindered == is_hindered) {
            return;
        }
        self.stop_waiting(node);
        let waiting = Waiting {
            since: now_seconds,
            is_hindered,
            was_told: before.map_or_else(|| seen.leave.is_some(), |before| before.was_told),
        };
        self.wait(node, waiting);
        self.is_unjudged |= !is_hindered;
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
            // Its word may be another since it was chosen.
            if !is_off && is_recorded(&node) && self.has_turns(&node) {
                self.stop_waiting(&node);
                self.give_place(node.clone(), true, ResetWish::Reset, now_seconds);
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
            let wish = place.map_or(ResetWish::Unknown, |place| place.seen.wish);
            if wish.is_wanted() {
                let waiting = Waiting {
                    since: now_seconds,
                    is_hindered: wish == ResetWish::Hindered,
                    was_told: true,
                };
                self.wait(node, waiting);
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

    /// The nodes that want a reset, and would do it.
    pub fn wanting(&self) -> impl Iterator<Item = &NodeName> {
        let waiting = self.in_order.iter().map(|(_, node)| node);
        let places = self.places.iter();
        let places = places.filter(|(_, place)| place.seen.wish == ResetWish::Reset);
        waiting.chain(places.map(|(node, _)| node))
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
        let wish = |waiting: &Waiting| {
            if waiting.is_hindered {
                ResetWish::Hindered
            } else {
                ResetWish::Reset
            }
        };
        let left = left.map(|(node, waiting)| (node.clone(), wish(waiting)));
        let left: Vec<(NodeName, ResetWish)> = left.collect();
        for (node, wish) in left {
            self.stop_waiting(&node);
            self.give_place(node, false, wish, now);
        }
    }

    fn give_place(&mut self, node: NodeName, has_leave: bool, wish: ResetWish, now: u64) {
        let seen = ResetSeen { wish, leave: None };
        let mut place = Place {
            begun_at: now,
            has_leave,
            withheld_since: None,
            seen,
        };
        place.note(seen, now);
        self.places.insert(node, place);
    }

    /// Whether it waits, and has turns.
    fn has_turns(&self, node: &NodeName) -> bool {
        let waiting = self.waiting.get(node);
        waiting.is_some_and(|waiting| !waiting.is_hindered)
    }

    fn wait(&mut self, node: &NodeName, waiting: Waiting) {
        if !waiting.is_hindered {
            self.in_order.insert((waiting.since, node.clone()));
        }
        self.waiting.insert(node.clone(), waiting);
    }

    fn stop_waiting(&mut self, node: &NodeName) {
        if let Some(waiting) = self.waiting.remove(node) {
            self.in_order.remove(&(waiting.since, node.clone()));
        }
    }
}

#[cfg(test)]
mod tests;
