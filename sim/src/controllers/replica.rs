//! One replica of the controller: the machine that ships, what it is told, and what it wants done.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use muster_api::NodeDevices;
use muster_cluster::{judgement::JudgementRequest, object::Kind};
use muster_protocol::{ApiRequest, Effect, Machine, Outcome};

use crate::{
    api_server::{ApiServer, Place},
    clock::Clock,
    controller_writes::describe,
    listing::Listing,
};

/// Between two looks at everything while nothing is told and nothing is due.
const LOOK_MILLISECONDS: u64 = 10_000;
/// Rules that a replica has judged apart at a time.
const JUDGED_AT_ONCE: usize = 2;
/// Polls at one moment after which a machine that still asks for another is reported.
const MOST_POLLS: usize = 64;

/// A process of the controller: its machine while it leads, and what it waits for.
#[derive(Debug, Default)]
pub(super) struct Replica {
    pub(super) machine: Option<Machine>,
    pub(super) watches: BTreeMap<Kind, Place>,
    /// Lists that it is receiving, before it watches: of a follower, as they were when it started.
    pub(super) lists: BTreeMap<Kind, Listing>,
    pub(super) frozen: BTreeSet<Kind>,
    pub(super) under_way: Vec<Effect>,
    /// Rules that are being judged apart.
    pub(super) judging: Vec<JudgementRequest>,
    pub(super) stirred: bool,
    /// Whether it ends nothing without proof.
    pub(super) observes: bool,
    pub(super) polled_at: u64,
    /// The clocks of its machine.
    pub(super) clock: Clock,
    /// Whether its time of day was set since it looked at everything.
    pub(super) is_clock_set: bool,
    /// What a look at everything found to do right after a poll.
    pub(super) overlooked: Option<String>,
}

/// A request on its way.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) write: Arc<ApiRequest>,
    /// The NodeDevices that it replaces, as its sender saw it.
    pub(super) seen: Option<Arc<NodeDevices>>,
}

impl Replica {
    /// What an effect sends, as things are seen now.
    pub(super) fn send(&self, effect: &Effect) -> Sent {
        let seen = match &*effect.write {
            ApiRequest::ReplaceNodeDevices { node, .. } => {
                let machine = self.machine.as_ref();
                machine.and_then(|machine| machine.index().node_devices(node).cloned())
            }
            _ => None,
        };
        Sent {
            write: Arc::clone(&effect.write),
            seen,
        }
    }

    /// Whether it is polled by time alone: the machine asked for it, or it is time for the oracle to see that it forgot
    /// to.
    pub(super) fn is_to_poll(&self, now: u64) -> bool {
        let is_due = |machine: &Machine| {
            let due = machine.next_due();
            due.is_some_and(|due| due <= self.clock.second(now))
        };
        self.polled_at + LOOK_MILLISECONDS <= now
            || (self.polled_at + 1_000 <= now && self.machine.as_ref().is_some_and(is_due))
    }

    /// Polls as its executor does: when it was told something, and when the machine asked to be polled; again at once as
    /// long as it says that something is left over. Then the oracle looks at everything, and must find nothing more: what
    /// it finds has no wakeup of its own, and would be done by chance only.
    ///
    /// But once the time of day is set forwards, what waits for a time of that has come sooner than its wakeup, which is by the monotonic clock. To notice at that
    /// one is soon enough: it is later by no more than the clock was set. So the first look at everything after that finds what it may, and sets all
    /// wakeups anew.
    pub(super) fn poll(&mut self, now: u64) -> Option<String> {
        let was_told = std::mem::take(&mut self.stirred);
        self.polled_at = now;
        let now = self.clock.now(now);
        let machine = self.machine.as_mut()?;
        let asks = |machine: &Machine| {
            let due = machine.next_due();
            due.is_some_and(|due| due <= now.monotonic_seconds)
        };
        let mut effects = Vec::new();
        let mut polls = 0;
        while (was_told && polls == 0) || (asks(machine) && polls < MOST_POLLS) {
            effects.extend(machine.poll(now));
            polls += 1;
        }
        let mut late = machine.full_poll(now);
        while late.is_empty() && asks(machine) && polls < MOST_POLLS {
            late = machine.poll(now);
            polls += 1;
        }
        if polls == MOST_POLLS {
            self.overlooked = Some(format!("still asks to be polled after {MOST_POLLS} polls"));
        }
        let is_clock_set = std::mem::take(&mut self.is_clock_set);
        if !late.is_empty() && !is_clock_set {
            let overlooked: Vec<String> =
                late.iter().map(|effect| describe(&effect.write)).collect();
            self.overlooked = Some(overlooked.join(" | "));
        }
        effects.extend(late);
        let room = JUDGED_AT_ONCE.saturating_sub(self.judging.len());
        self.judging.extend(machine.take_judgements(room));
        if effects.is_empty() {
            return None;
        }
        let told: Vec<String> = effects
            .iter()
            .map(|effect| describe(&effect.write))
            .collect();
        for effect in &effects {
            if let ApiRequest::ReadAll { kind } = *effect.write {
                // The watch is closed at once; what it had still to say is never told.
                self.watches.remove(&kind);
                self.lists.remove(&kind);
                self.frozen.remove(&kind);
            }
        }
        self.under_way.extend(effects);
        Some(format!("wants {}", told.join(" | ")))
    }

    /// What came of judging a rule. It takes no time here, so that none is given up.
    pub(super) fn judge(&mut self, request: usize) -> Option<String> {
        if request >= self.judging.len() {
            return None;
        }
        let judgement = self.judging.swap_remove(request).judge(&|| Duration::ZERO);
        self.stirred = true;
        self.machine.as_mut()?.give_judgements([judgement]);
        None
    }

    pub(super) fn receive(&mut self, kind: Kind, api: &ApiServer) -> Option<String> {
        let listing = self.lists.get_mut(&kind)?;
        let (changes, watches_from) = listing.receive(api);
        let asked_by = listing.asked_by;
        self.stirred = true;
        let machine = self.machine.as_mut()?;
        for change in changes {
            machine.observe(change);
        }
        let place = watches_from?;
        self.lists.remove(&kind);
        self.watches.insert(kind, place);
        let asked_by = asked_by?;
        machine.settle(asked_by, Outcome::Done(None));
        Some(format!("has received the list of {kind:?}"))
    }

    pub(super) fn watch(&mut self, kind: Kind, api: &ApiServer) -> Option<String> {
        let place = self.watches.get_mut(&kind)?;
        let event = api.next_event(*place)?;
        *place = place.after();
        self.stirred = true;
        self.machine.as_mut()?.observe(event.change());
        None
    }

    /// A watch that broke off is connected again: it goes on where it was, or lists again where that is compacted. A list
    /// that was late comes.
    pub(super) fn thaw(&mut self, kind: Kind, api: &ApiServer) -> String {
        self.frozen.remove(&kind);
        if self.lists.contains_key(&kind) {
            return format!("list of {kind:?} comes");
        }
        let is_gone = |place: &Place| api.is_gone(*place);
        if self.watches.get(&kind).is_some_and(is_gone) {
            self.watches.remove(&kind);
            self.lists.insert(kind, Listing::read(kind, api, None));
            return format!("watch of {kind:?} is answered 410 Gone, and lists again");
        }
        format!("watch of {kind:?} moves again")
    }
}
