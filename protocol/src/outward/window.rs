//! How many pods kube-scheduler is given at a time, and whose.
//!
//! Gangs go in the order of the Ledger, so that a large gang at the head drains the window and goes alone. One Team fills
//! at most half of it while others want it. A pod counts until it is bound, but not for longer than
//! [`crate::Config::window_seconds`]: what nobody schedules must not stop those behind it.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use muster_cluster::{formed::GangKey, table::Table};

/// A gang that waits for room, in the order of the Ledger: the sequence of its commit and its key.
pub(crate) type Waiting = (i64, GangKey);

/// The pods that count, and the gangs that wait for room.
#[derive(Debug, Default)]
pub(crate) struct Window {
    /// The Team of each pod that counts, by UID.
    counted: BTreeMap<String, String>,
    by_team: BTreeMap<String, usize>,
    /// Pods that counted for as long as a pod may and still wait.
    expired: BTreeSet<String>,
    until: BTreeMap<u64, Vec<String>>,
    /// Gangs whose pods may be ungated.
    waiting: BTreeSet<Waiting>,
    /// How many of them each Team has.
    waiting_of_team: BTreeMap<String, usize>,
    place_of: Table<GangKey, (String, i64)>,
    /// Whether anything changed since it was looked at last.
    is_stirred: bool,
}

impl Window {
    /// Notes whether a pod is under way, and for which Team.
    pub(crate) fn note_pod(&mut self, uid: &str, under_way: Option<&str>, until: u64) {
        let Some(team) = under_way else {
            self.expired.remove(uid);
            self.uncount(uid);
            return;
        };
        if self.counted.contains_key(uid) || self.expired.contains(uid) {
            return;
        }
        self.counted.insert(uid.to_owned(), team.to_owned());
        *self.by_team.entry(team.to_owned()).or_default() += 1;
        self.until.entry(until).or_default().push(uid.to_owned());
    }

    fn uncount(&mut self, uid: &str) {
        let Some(team) = self.counted.remove(uid) else {
            return;
        };
        self.is_stirred = true;
        if let Some(count) = self.by_team.get_mut(&team) {
            *count -= 1;
            if *count == 0 {
                self.by_team.remove(&team);
            }
        }
    }

    /// Lets go of the pods that have counted for as long as a pod may.
    pub(crate) fn come_due(&mut self, second: u64) {
        while let Some(entry) = self.until.first_entry().filter(|it| *it.key() <= second) {
            for uid in entry.remove() {
                if self.counted.contains_key(&uid) {
                    self.uncount(&uid);
                    self.expired.insert(uid);
                }
            }
        }
    }

    /// When a pod ceases to count by time alone.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.until.keys().next().copied()
    }

    /// Notes whether a gang has pods that may be ungated: its Team and the sequence of its commit, if so.
    pub(crate) fn note_gang(&mut self, key: &GangKey, waits: Option<(&str, i64)>) {
        self.is_stirred |= waits.is_some();
        let known = self.place_of.get(key);
        if known.map(|(team, sequence)| (team.as_str(), *sequence)) == waits {
            return;
        }
        if let Some((team, sequence)) = self.place_of.remove(key) {
            self.waiting.remove(&(sequence, key.clone()));
            if let Some(count) = self.waiting_of_team.get_mut(&team) {
                *count -= 1;
                if *count == 0 {
                    self.waiting_of_team.remove(&team);
                }
            }
        }
        if let Some((team, sequence)) = waits {
            self.waiting.insert((sequence, key.clone()));
            *self.waiting_of_team.entry(team.to_owned()).or_default() += 1;
            self.place_of
                .insert(key.clone(), (team.to_owned(), sequence));
        }
    }

    /// There may be more room, or another wish for it.
    pub(crate) fn stir(&mut self) {
        self.is_stirred = true;
    }

    /// Whether anything changed since this was asked last, and any gang waits for room.
    pub(crate) fn take_stirred(&mut self) -> bool {
        std::mem::take(&mut self.is_stirred) && !self.waiting.is_empty()
    }

    /// The pods that count, or did for as long as a pod may.
    pub(crate) fn pods(&self) -> impl Iterator<Item = &String> {
        self.counted.keys().chain(&self.expired)
    }

    /// Whether no Team may have another pod under way.
    pub(crate) fn is_full(&self, limit: usize) -> bool {
        self.counted.len() >= limit
    }

    /// How many more pods a Team may have under way.
    pub(crate) fn room(&self, team: &str, limit: usize) -> usize {
        let room = limit.saturating_sub(self.counted.len());
        let alone = self.waiting_of_team.keys().all(|other| other == team);
        if alone {
            return room;
        }
        let own = self.by_team.get(team).copied().unwrap_or(0);
        // A window of one goes to whoever is first.
        room.min((limit / 2).max(1).saturating_sub(own))
    }

    /// The gang that waits behind another one, or at the head, and how many of its pods there is room for. None while no
    /// Team may have another pod under way: a full window looks at nobody.
    pub(crate) fn next(&self, last: Option<&Waiting>, limit: usize) -> Option<(Waiting, usize)> {
        if self.is_full(limit) {
            return None;
        }
        let behind = last.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.waiting.range((behind, Bound::Unbounded)).next()?;
        let (team, _) = self.place_of.get(&next.1)?;
        Some((next.clone(), self.room(team, limit)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> GangKey {
        GangKey::new("ml", name)
    }

    #[test]
    fn one_team_fills_at_most_half_of_the_window_while_another_wants_it() {
        let mut window = Window::default();
        window.note_gang(&key("a"), Some(("vision", 1)));
        assert_eq!(window.room("vision", 8), 8, "alone, it has all of it");
        window.note_gang(&key("b"), Some(("speech", 2)));
        assert_eq!(window.room("vision", 8), 4);
        for pod in ["1", "2", "3", "4"] {
            window.note_pod(pod, Some("vision"), 30);
        }
        assert_eq!((window.room("vision", 8), window.room("speech", 8)), (0, 4));
        window.note_gang(&key("b"), None);
        assert_eq!(window.room("vision", 8), 4);
    }

    #[test]
    fn a_pod_counts_once_and_until_its_time_is_up() {
        let mut window = Window::default();
        window.note_pod("1", Some("vision"), 30);
        window.note_pod("1", Some("vision"), 35);
        assert_eq!(window.room("vision", 8), 7);
        window.come_due(29);
        assert_eq!(window.room("vision", 8), 7);
        window.come_due(30);
        assert_eq!(window.room("vision", 8), 8);
        window.note_pod("1", Some("vision"), 60);
        assert_eq!(window.room("vision", 8), 8, "it counted long enough");
        window.note_pod("1", None, 60);
        window.note_pod("1", Some("vision"), 90);
        assert_eq!(window.room("vision", 8), 7, "it is another time");
    }

    #[test]
    fn gangs_go_in_the_order_of_the_ledger_whatever_their_team() {
        let mut window = Window::default();
        window.note_gang(&key("b"), Some(("vision", 2)));
        window.note_gang(&key("a"), Some(("vision", 3)));
        window.note_gang(&key("c"), Some(("speech", 1)));
        assert_eq!(order(&window, 8), ["c", "b", "a"]);
        window.note_gang(&key("b"), None);
        window.note_gang(&key("a"), Some(("vision", 0)));
        assert_eq!(order(&window, 8), ["a", "c"]);
    }

    #[test]
    fn a_full_window_looks_at_no_gang_that_waits() {
        let mut window = Window::default();
        window.note_gang(&key("a"), Some(("vision", 1)));
        window.note_gang(&key("b"), Some(("speech", 2)));
        window.note_pod("1", Some("vision"), 30);
        window.note_pod("2", Some("speech"), 30);
        assert_eq!(order(&window, 2), [] as [&str; 0]);
        assert_eq!(order(&window, 3), ["a", "b"]);
    }

    /// The gangs that are looked at while room is left.
    fn order(window: &Window, limit: usize) -> Vec<String> {
        let (mut order, mut last) = (Vec::new(), None);
        while let Some((next, _)) = window.next(last.as_ref(), limit) {
            order.push(next.1.name.clone());
            last = Some(next);
        }
        order
    }
}
