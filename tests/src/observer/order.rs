//! Puts events of several watches into the order in which they happened.

use std::collections::BTreeMap;

/// How long an event waits for earlier ones of other watches, in milliseconds. On a loaded machine with two
/// cores watches were seen to lag each other by a few hundred.
const WAIT_MILLIS: u64 = 1_500;

/// Events that wait, by revision.
#[derive(Debug)]
pub(super) struct Order<T> {
    waiting: BTreeMap<u64, Vec<(u64, T)>>,
}

impl<T> Default for Order<T> {
    fn default() -> Self {
        Self {
            waiting: BTreeMap::new(),
        }
    }
}

impl<T> Order<T> {
    /// An event of a revision, received now.
    pub(super) fn push(&mut self, revision: u64, now_millis: u64, event: T) {
        self.waiting
            .entry(revision)
            .or_default()
            .push((now_millis, event));
    }

    /// The events before which nothing can come any more, in order.
    pub(super) fn take_ripe(&mut self, now_millis: u64) -> Vec<T> {
        let mut ripe = Vec::new();
        while let Some(entry) = self.waiting.first_entry() {
            if entry
                .get()
                .iter()
                .any(|(received, _)| received + WAIT_MILLIS > now_millis)
            {
                break;
            }
            ripe.extend(entry.remove().into_iter().map(|(_, event)| event));
        }
        ripe
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::{Order, WAIT_MILLIS};

    #[test]
    fn a_late_event_of_an_earlier_revision_comes_first() {
        let mut order = Order::default();
        order.push(7, 0, "second");
        order.push(5, 900, "first");
        assert!(
            order.take_ripe(WAIT_MILLIS).is_empty(),
            "the first one is not ripe and holds up the second"
        );
        assert_eq!(order.take_ripe(900 + WAIT_MILLIS), ["first", "second"]);
        assert!(order.is_empty());
    }
}
