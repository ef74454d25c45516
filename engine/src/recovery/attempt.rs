//! Whether an attempt is to be evicted for the faults that reach what it holds.

use std::collections::BTreeSet;

use super::fault::{Consequence, DeviceFault, consequence};
use crate::names::{DeviceName, NodeName};

/// A fault of a device that an attempt holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldFault {
    /// The rank that holds the device, by its place in the plan.
    pub rank: usize,
    /// The node.
    pub node: NodeName,
    /// The device.
    pub device: DeviceName,
    /// What is wrong with it.
    pub fault: DeviceFault,
    /// Whether the rank uses the NVLinks of the device.
    pub needs_links: bool,
    /// Since which second it is seen that this attempt holds it.
    pub seen_at_seconds: u64,
    /// Whether the store itself said so since.
    pub is_confirmed: bool,
}

/// A fault that an earlier attempt was evicted for, as it was recorded.
pub type Answered = (DeviceName, DeviceFault);

/// All that the decision goes by.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The faults that reach what the attempt holds.
    pub faults: &'a [HeldFault],
    /// Those for which the gang was evicted before.
    pub answered: &'a BTreeSet<Answered>,
    /// Whether anything is to be ended at all, or is only to be told.
    pub acts: bool,
    /// Now.
    pub now_seconds: u64,
}

/// What is to be done about a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The attempt is evicted.
    Restart,
    /// The store is asked first.
    Confirm,
    /// Nothing before that second.
    Wait {
        /// The second.
        until_seconds: u64,
    },
    /// Nothing.
    Spare(Spared),
}

/// Why an attempt goes on though it holds something that is faulty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spared {
    /// It is only told what would be done.
    Observed,
    /// It was evicted for that very fault before, and was given the device again.
    AnsweredBefore,
    /// Such a fault costs nobody its attempt.
    GoesOn,
}

impl Spared {
    /// Why, for people.
    pub fn text(self) -> &'static str {
        match self {
            Self::Observed => "it would be started anew elsewhere, but recovery only observes",
            Self::AnsweredBefore => "an earlier attempt was evicted for that fault already",
            Self::GoesOn => "it goes on, and nothing new is placed there",
        }
    }
}

/// What is to be done, and about which of the faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision<'a> {
    /// What.
    pub action: Action,
    /// About which fault: the first of those that ask for most.
    pub about: &'a HeldFault,
}

/// What is to be done about the faults that reach what an attempt holds; `None`: there are none.
///
/// The first of those that ask for most decides. Once for each fault: one that an eviction of the gang names asks for nothing more.
pub fn decide(facts: Facts<'_>) -> Option<Decision<'_>> {
    let decisions = facts.faults.iter().map(|about| Decision {
        action: action(&facts, about),
        about,
    });
    // Of several that ask for as much the first by rank: `min_by_key` takes the first.
    decisions.min_by_key(|decision| order(decision.action))
}

/// What asks for most comes first.
fn order(action: Action) -> (u8, u64) {
    match action {
        Action::Restart => (0, 0),
        Action::Confirm => (1, 0),
        Action::Wait { until_seconds } => (2, until_seconds),
        Action::Spare(Spared::Observed) => (3, 0),
        Action::Spare(Spared::AnsweredBefore) => (4, 0),
        Action::Spare(Spared::GoesOn) => (5, 0),
    }
}

fn action(facts: &Facts<'_>, held: &HeldFault) -> Action {
    let Consequence::RestartAfter(seconds) = consequence(held.fault.kind, held.needs_links) else {
        return Action::Spare(Spared::GoesOn);
    };
    let identity = (held.device.clone(), held.fault);
    if facts.answered.contains(&identity) {
        return Action::Spare(Spared::AnsweredBefore);
    }
    let until_seconds = held.seen_at_seconds.saturating_add(seconds);
    if facts.now_seconds < until_seconds {
        return Action::Wait { until_seconds };
    }
    if !facts.acts {
        return Action::Spare(Spared::Observed);
    }
    if held.is_confirmed {
        Action::Restart
    } else {
        Action::Confirm
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recovery::fault::{FaultClass, FaultKind, GONE_SECONDS};

    fn held(rank: usize, kind: FaultKind) -> HeldFault {
        HeldFault {
            rank,
            node: "n0".into(),
            device: format!("gpu.muster.dev/n0/gpu-{rank}").into(),
            fault: DeviceFault {
                kind,
                since_unix_seconds: 7,
            },
            needs_links: false,
            seen_at_seconds: 100,
            is_confirmed: true,
        }
    }

    fn decided(faults: &[HeldFault], acts: bool, now_seconds: u64) -> Option<(Action, usize)> {
        let answered = BTreeSet::new();
        let facts = Facts {
            faults,
            answered: &answered,
            acts,
            now_seconds,
        };
        decide(facts).map(|decision| (decision.action, decision.about.rank))
    }

    #[test]
    fn s8_without_a_fault_of_what_it_holds_nothing_is_decided() {
        assert_eq!(decided(&[], true, 100), None);
    }

    #[test]
    fn the_fault_that_asks_for_most_decides_whichever_comes_first() {
        let reset = FaultKind::Device(FaultClass::Reset);
        let unknown = FaultKind::Device(FaultClass::Unknown);
        let goes_on = Action::Spare(Spared::GoesOn);
        for (kinds, expected) in [
            (vec![unknown], (goes_on, 0)),
            (vec![unknown, reset], (Action::Restart, 1)),
            (vec![reset, reset], (Action::Restart, 0)),
            (
                vec![unknown, FaultKind::Gone],
                (
                    Action::Wait {
                        until_seconds: 100 + GONE_SECONDS,
                    },
                    1,
                ),
            ),
            (vec![FaultKind::Gone, reset], (Action::Restart, 1)),
        ] {
            let faults: Vec<HeldFault> = kinds
                .iter()
                .enumerate()
                .map(|(rank, kind)| held(rank, *kind))
                .collect();
            assert_eq!(decided(&faults, true, 100), Some(expected), "{kinds:?}");
        }
    }

    #[test]
    fn s18_nothing_is_ended_before_the_store_has_confirmed_it() {
        let mut fault = held(0, FaultKind::Device(FaultClass::Reset));
        fault.is_confirmed = false;
        assert_eq!(decided(&[fault], true, 100), Some((Action::Confirm, 0)));
    }

    #[test]
    fn who_only_observes_asks_nobody_and_ends_nothing() {
        let fault = held(0, FaultKind::Device(FaultClass::Reset));
        let observed = Action::Spare(Spared::Observed);
        assert_eq!(decided(&[fault], false, 100), Some((observed, 0)));
    }

    #[test]
    fn a_device_that_is_gone_is_waited_for_until_the_last_second() {
        let gone = held(0, FaultKind::Gone);
        let until_seconds = 100 + GONE_SECONDS;
        let wait = Action::Wait { until_seconds };
        assert_eq!(
            decided(std::slice::from_ref(&gone), true, until_seconds - 1),
            Some((wait, 0))
        );
        assert_eq!(
            decided(&[gone], true, until_seconds),
            Some((Action::Restart, 0))
        );
    }

    #[test]
    fn s10_the_same_fault_costs_a_gang_one_attempt_and_a_new_one_another() {
        let fault = held(0, FaultKind::Device(FaultClass::Reset));
        let answered: BTreeSet<Answered> =
            std::iter::once((fault.device.clone(), fault.fault)).collect();
        let facts = |faults| Facts {
            faults,
            answered: &answered,
            acts: true,
            now_seconds: 100,
        };
        let same = [fault.clone()];
        let spared = Action::Spare(Spared::AnsweredBefore);
        assert_eq!(decide(facts(&same)).map(|it| it.action), Some(spared));
        // The same device broke again, or worse.
        let mut again = fault.clone();
        again.fault.since_unix_seconds += 1;
        let mut worse = fault;
        worse.fault.kind = FaultKind::Device(FaultClass::Reboot);
        for other in &[[again], [worse]] {
            let action = decide(facts(other)).map(|it| it.action);
            assert_eq!(action, Some(Action::Restart), "{other:?}");
        }
    }
}
