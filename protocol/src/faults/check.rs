//! What the store says about the faults of a node's devices, read uncached, before an attempt is evicted for one.
//!
//! Claims and slices come by watches of their own, and one of them may stand still. So a claim may be seen on a device whose fault
//! was over before it was given to anybody. A read that was **begun after fault and claim were seen together** cannot be from before
//! the claim: the fault that it shows is one that the gang has.
//!
//! Reads are few at a time, and go beside the writes that carry out a commit ([`crate::lanes`]). One that is not answered, or does not show the fault, is repeated
//! after twice the pause: until the watch shows the same, or the fault is there after all. Without an answer nothing is done (S18).
//!
//! So many answers come one after the other. Where they may add up to more nodes than may be evacuated, they are waited for
//! before anybody is evicted ([`super::breaker::awaits_answers`]): else a false alarm would cost as many nodes as may be, and not none. One that
//! is repeated is not waited for: where some are never answered, whoever has a fault for certain would never be moved.

use std::collections::{BTreeMap, BTreeSet};

use muster_cluster::{
    device_faults,
    object::{Kind, Object, ObjectKey},
};
use muster_engine::recovery::Answered;

use crate::{ApiRequest, Effect, EffectId, Machine, Now, Outcome, faults::held::Found};

/// Most seconds between two reads of a slice.
const MOST_PAUSE_SECONDS: u64 = 32;

/// A read under way.
#[derive(Debug)]
struct Question {
    slice: String,
    node: String,
    begun_at: u64,
    /// Whether the slice was read in vain a short while ago.
    is_repeated: bool,
}

/// What the last read of a slice showed.
#[derive(Debug)]
struct Answer {
    node: String,
    begun_at: u64,
    faults: BTreeSet<Answered>,
}

/// When a slice is read again at the earliest.
#[derive(Clone, Copy, Debug)]
struct Pause {
    not_before: u64,
    seconds: u64,
}

/// Reads under way, and what the last ones showed.
#[derive(Debug, Default)]
pub(crate) struct FaultChecks {
    under_way: BTreeMap<EffectId, Question>,
    /// The slices that those are about.
    being_read: BTreeSet<String>,
    found: BTreeMap<String, Answer>,
    pauses: BTreeMap<String, Pause>,
}

impl FaultChecks {
    /// Whether the store said, when it was asked in that second or later, that the device has the fault.
    pub(crate) fn confirms(&self, slice: &str, fault: &Answered, since_seconds: u64) -> bool {
        let answer = self.found.get(slice);
        let answer = answer.filter(|answer| answer.begun_at >= since_seconds);
        answer.is_some_and(|answer| answer.faults.contains(fault))
    }

    /// The second from which on the slice may be read; `None`: it is being read.
    pub(crate) fn may_ask_at(&self, slice: &str) -> Option<u64> {
        if self.being_read.contains(slice) {
            return None;
        }
        let pause = self.pauses.get(slice);
        Some(pause.map_or(0, |pause| pause.not_before))
    }

    /// The nodes of the slices that are being read for the first time.
    pub(crate) fn nodes_being_asked(&self) -> impl Iterator<Item = &String> {
        let questions = self.under_way.values();
        let first = questions.filter(|question| !question.is_repeated);
        first.map(|question| &question.node)
    }

    /// No device of the node has a fault any more.
    pub(crate) fn forget(&mut self, node: &str) {
        let pauses = &mut self.pauses;
        self.found.retain(|slice, answer| {
            let stays = answer.node != node;
            if !stays {
                pauses.remove(slice);
            }
            stays
        });
    }

    /// Notes that a slice is read; whether it was a short while ago.
    fn note_pause(&mut self, slice: &str, shortest_seconds: u64, now: u64) -> bool {
        let last = self.pauses.get(slice);
        let last = last.filter(|pause| now <= pause.not_before + MOST_PAUSE_SECONDS);
        let is_repeated = last.is_some();
        let seconds = last.map_or(shortest_seconds, |pause| {
            (pause.seconds * 2).min(MOST_PAUSE_SECONDS)
        });
        let pause = Pause {
            not_before: now + seconds,
            seconds,
        };
        self.pauses.insert(slice.to_owned(), pause);
        is_repeated
    }
}

impl Machine {
    /// The read that says whether the fault stands.
    pub(crate) fn check_fault(&mut self, found: &Found, now: Now) -> Effect {
        let id = self.flights.number();
        let begun_at = now.monotonic_seconds;
        let shortest = self.config.retry_seconds;
        let is_repeated = self
            .fault_checks
            .note_pause(&found.slice, shortest, begun_at);
        let question = Question {
            slice: found.slice.clone(),
            node: found.node.clone(),
            begun_at,
            is_repeated,
        };
        self.fault_checks.under_way.insert(id, question);
        self.fault_checks.being_read.insert(found.slice.clone());
        let key = ObjectKey {
            kind: Kind::ResourceSlice,
            namespace: String::new(),
            name: found.slice.clone(),
        };
        Effect::new(id, ApiRequest::ReadObject { key })
    }

    /// Takes the answer of such a read; whether it was one.
    pub(crate) fn take_fault_check(&mut self, effect: EffectId, outcome: &Outcome) -> bool {
        let Some(question) = self.fault_checks.under_way.remove(&effect) else {
            return false;
        };
        let Question {
            slice,
            node,
            begun_at,
            ..
        } = question;
        self.fault_checks.being_read.remove(&slice);
        let faults = match outcome {
            Outcome::Done(Some(Object::ResourceSlice(stored))) => {
                Some(device_faults::of_slice(stored))
            }
            // It says nothing any more.
            Outcome::NotFound => Some(BTreeSet::new()),
            _ => None,
        };
        for key in self.plans.on_node(&node) {
            self.agenda.gang(key);
        }
        if let Some(faults) = faults {
            let answer = Answer {
                node,
                begun_at,
                faults,
            };
            self.fault_checks.found.insert(slice, answer);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_engine::recovery::{DeviceFault, FaultClass, FaultKind};

    fn fault() -> Answered {
        let fault = DeviceFault {
            kind: FaultKind::Device(FaultClass::Reset),
            since_unix_seconds: 7,
        };
        ("gpu.muster.dev/n0/gpu-0".into(), fault)
    }

    #[test]
    fn an_answer_from_before_the_fault_was_seen_with_the_claim_confirms_nothing() {
        let mut checks = FaultChecks::default();
        let answer = Answer {
            node: "n0".to_owned(),
            begun_at: 100,
            faults: std::iter::once(fault()).collect(),
        };
        checks.found.insert("slice".to_owned(), answer);
        assert!(checks.confirms("slice", &fault(), 100));
        assert!(!checks.confirms("slice", &fault(), 101));
        assert!(!checks.confirms("other", &fault(), 100));
        let mut again = fault();
        again.1.since_unix_seconds += 1;
        assert!(!checks.confirms("slice", &again, 100), "another fault");
        checks.forget("n1");
        assert!(checks.confirms("slice", &fault(), 100));
        checks.forget("n0");
        assert!(!checks.confirms("slice", &fault(), 100));
    }

    #[test]
    fn a_read_in_vain_is_repeated_after_twice_the_pause_up_to_half_a_minute() {
        let mut checks = FaultChecks::default();
        let (mut now, mut pauses) = (100, Vec::new());
        for _ in 0..7 {
            assert_eq!(checks.note_pause("slice", 1, now), now > 100);
            let at = checks.may_ask_at("slice").unwrap();
            pauses.push(at - now);
            now = at;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 32]);
        checks.being_read.insert("slice".to_owned());
        assert_eq!(checks.may_ask_at("slice"), None);
    }
}
