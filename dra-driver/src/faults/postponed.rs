//! XIDs of which the kernel's log says more than NVML's event: whether they are fatal, and which sub-code they have.
//!
//! NVML is heard first, by a moment. An event of such an XID waits for the line of the log, which then counts in its place; if none comes in
//! time, the event counts as what it says alone, which is never milder. Nothing waits while the log cannot be read.
//!
//! Bounded: one event waits for each GPU and code. Of events of several slices it is one of the whole GPU, as if nobody knew where.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use muster_device::faults::{Catalogue, GpuEvent, GpuEventKind};

/// For how long an event waits. A fault is to be published within two seconds.
const WAIT: Duration = Duration::from_secs(1);
/// For how long after a line of the log an event of the same XID is the same.
const SAME: Duration = Duration::from_secs(2);

/// UUID and XID.
type Key = (String, u32);

/// What waits.
#[derive(Debug, Default)]
pub(super) struct Postponed {
    waiting: BTreeMap<Key, (Instant, GpuEvent)>,
    /// When the log last told of each.
    told: BTreeMap<Key, Instant>,
    is_log_read: bool,
}

impl Postponed {
    /// Whether the log can be read. What waits for it no longer does if not.
    pub(super) fn log_is_read(&mut self, is_so: bool, now: Instant) {
        self.is_log_read = is_so;
        if !is_so {
            for (until, _) in self.waiting.values_mut() {
                *until = now;
            }
            // What comes now may have had a line that is lost.
            self.told.clear();
        }
    }

    /// Whether the log can be read.
    pub(super) fn is_log_read(&self) -> bool {
        self.is_log_read
    }

    /// The log told of this XID.
    pub(super) fn told(&mut self, gpu: &str, xid: u32, now: Instant) {
        let key = (gpu.to_owned(), xid);
        self.waiting.remove(&key);
        self.told
            .retain(|_, told| now.saturating_duration_since(*told) < SAME);
        self.told.insert(key, now);
    }

    /// The events that count now: of these, and of those that waited.
    pub(super) fn due(
        &mut self,
        events: Vec<GpuEvent>,
        catalogue: &Catalogue,
        now: Instant,
    ) -> Vec<GpuEvent> {
        let mut due = Vec::with_capacity(events.len());
        for event in events {
            let key = self.key(&event, catalogue);
            match key {
                None => due.push(event),
                Some(key) => {
                    let told = self.told.get(&key);
                    let is_told =
                        told.is_some_and(|told| now.saturating_duration_since(*told) < SAME);
                    if !is_told {
                        let waits = self.waiting.entry(key);
                        let (_, waits) = waits.or_insert_with(|| (now + WAIT, event.clone()));
                        if waits.gpu_instance != event.gpu_instance {
                            (waits.gpu_instance, waits.compute_instance) = (None, None);
                        }
                    }
                }
            }
        }
        let over = self.waiting.iter().filter(|(_, (until, _))| *until <= now);
        let over: Vec<Key> = over.map(|(key, _)| key.clone()).collect();
        let over = over.iter().filter_map(|key| self.waiting.remove(key));
        due.extend(over.map(|(_, event)| event));
        due
    }

    /// What a line of the log about it would be found by; `None`: it waits for none.
    fn key(&self, event: &GpuEvent, catalogue: &Catalogue) -> Option<Key> {
        let GpuEventKind::Xid(xid) = event.kind else {
            return None;
        };
        let waits = self.is_log_read && catalogue.has_details(xid);
        let gpu = event.gpu.clone().filter(|_| waits)?;
        Some((gpu, xid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(gpu: &str, xid: u32) -> GpuEvent {
        GpuEvent {
            gpu: Some(gpu.to_owned()),
            kind: GpuEventKind::Xid(xid),
            gpu_instance: None,
            compute_instance: None,
        }
    }

    struct Node {
        postponed: Postponed,
        catalogue: Catalogue,
        start: Instant,
    }

    impl Node {
        fn new() -> Self {
            let start = Instant::now();
            let mut postponed = Postponed::default();
            postponed.log_is_read(true, start);
            Self {
                postponed,
                catalogue: Catalogue::shipped(),
                start,
            }
        }

        fn at(&self, milliseconds: u64) -> Instant {
            self.start + Duration::from_millis(milliseconds)
        }

        /// How many events count at that time.
        fn due(&mut self, milliseconds: u64, events: Vec<GpuEvent>) -> usize {
            let now = self.at(milliseconds);
            self.postponed.due(events, &self.catalogue, now).len()
        }
    }

    #[test]
    fn an_event_waits_for_the_log_and_counts_by_itself_if_none_comes() {
        let mut node = Node::new();
        assert_eq!(
            node.due(0, vec![event("GPU-a", 149), event("GPU-a", 79)]),
            1
        );
        assert_eq!(node.due(999, vec![event("GPU-a", 149)]), 0);
        assert_eq!(node.due(1_000, Vec::new()), 1, "once");
        assert_eq!(node.due(5_000, Vec::new()), 0);
    }

    #[test]
    fn of_an_event_and_its_line_the_line_counts_whichever_comes_first() {
        let mut node = Node::new();
        assert_eq!(node.due(0, vec![event("GPU-a", 149)]), 0);
        let now = node.at(200);
        node.postponed.told("GPU-a", 149, now);
        assert_eq!(node.due(300, vec![event("GPU-a", 149)]), 0);
        assert_eq!(node.due(2_199, Vec::new()), 0);
        // Of another GPU, or another XID, nothing was told.
        let others = vec![event("GPU-b", 149), event("GPU-a", 150)];
        assert_eq!(node.due(2_199, others), 0);
        assert_eq!(node.due(3_199, Vec::new()), 2);
        // Nor is what comes much later the same.
        assert_eq!(node.due(4_000, vec![event("GPU-a", 149)]), 0);
        assert_eq!(node.due(5_000, Vec::new()), 1);
    }

    #[test]
    fn nothing_waits_for_a_log_that_cannot_be_read() {
        let mut node = Node::new();
        assert_eq!(node.due(0, vec![event("GPU-a", 149)]), 0);
        let now = node.at(1);
        node.postponed.log_is_read(false, now);
        assert_eq!(node.due(1, Vec::new()), 1);
        assert_eq!(node.due(2, vec![event("GPU-a", 149)]), 1);
        let nameless = GpuEvent {
            gpu: None,
            ..event("", 149)
        };
        assert_eq!(node.due(3, vec![nameless]), 1);
    }

    #[test]
    fn what_waits_of_two_slices_is_of_all_of_their_gpu() {
        let mut node = Node::new();
        let of = |instance| GpuEvent {
            gpu_instance: Some(instance),
            compute_instance: Some(0),
            ..event("GPU-a", 149)
        };
        for (instances, expected) in [([1, 1], Some(1_u32)), ([1, 2], None)] {
            let start = node.at(0);
            let events = instances.map(of).to_vec();
            let waits = node.postponed.due(events, &node.catalogue, start);
            assert!(waits.is_empty());
            let end = node.at(1_000);
            let due = node.postponed.due(Vec::new(), &node.catalogue, end);
            let found: Vec<_> = due.iter().map(|event| event.gpu_instance).collect();
            assert_eq!(found, [expected], "{instances:?}");
        }
    }

    #[test]
    fn once_lines_are_lost_an_event_is_not_the_same_as_an_earlier_line() {
        let mut node = Node::new();
        let now = node.at(0);
        node.postponed.told("GPU-a", 149, now);
        for is_read in [false, true] {
            let now = node.at(100);
            node.postponed.log_is_read(is_read, now);
        }
        assert_eq!(node.due(300, vec![event("GPU-a", 149)]), 0);
        assert_eq!(node.due(1_300, Vec::new()), 1);
    }

    #[test]
    fn a_storm_of_events_waits_as_one() {
        let mut node = Node::new();
        let storm = vec![event("GPU-a", 149); 10_000];
        assert_eq!(node.due(0, storm), 0);
        assert_eq!(node.postponed.waiting.len(), 1);
        assert_eq!(node.due(1_000, Vec::new()), 1);
    }
}
