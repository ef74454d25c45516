//! Whether a gang is moved away from what is drained by hand.
//!
//! A person asked for it, so no circuit breaker counts it. But while the breaker is open nothing is ended at all, and nobody is moved who would
//! have no place: a drain costs a gang a restart, not its work. The gangs of one node are moved after those of another, so that no more is
//! disturbed at once than one node.

use crate::state::Elsewhere;

/// All that the decision goes by.
#[derive(Clone, Copy, Debug)]
pub struct DrainFacts<'a> {
    /// Whether anything is ended.
    pub ends: Ends,
    /// Whether the gang would not start again, wherever there is room: nobody would make its pods, say.
    pub is_left: bool,
    /// Whether the gangs of another node are being moved.
    pub is_others_turn: bool,
    /// Whether the gang has a place without the nodes that are drained, and those where others go that are being moved; `None`: nobody looked
    /// yet, or that was long ago.
    pub elsewhere: Option<&'a Elsewhere>,
    /// Whether the store itself said that it is drained, since that was seen.
    pub is_confirmed: bool,
}

/// Whether anything is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// It is.
    Acts,
    /// Nothing at all: it is only told.
    Observes,
    /// Nothing now: the circuit breaker is open, say.
    Halted,
}

/// What is to be done about a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainAction {
    /// The gang is moved: its attempt is evicted.
    Move,
    /// The store is asked first.
    Confirm,
    /// It is to be looked for a place.
    Look,
    /// It stays.
    Stay(Stays),
}

/// Why a gang stays on what is drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stays {
    /// It is only told what would be done.
    Observed,
    /// Nothing is ended now.
    Halted,
    /// It would not start again.
    Left,
    /// Gangs of another node are moved first.
    Later,
    /// It has no place elsewhere.
    NoPlace,
}

/// What is to be done about a drain that concerns a gang.
pub fn drain(facts: DrainFacts<'_>) -> DrainAction {
    if facts.is_left {
        return DrainAction::Stay(Stays::Left);
    }
    match facts.ends {
        Ends::Observes => return DrainAction::Stay(Stays::Observed),
        Ends::Halted => return DrainAction::Stay(Stays::Halted),
        Ends::Acts => {}
    }
    match facts.elsewhere {
        // Whose turn it is makes no difference to it.
        Some(Elsewhere::Nowhere(_)) => DrainAction::Stay(Stays::NoPlace),
        _ if facts.is_others_turn => DrainAction::Stay(Stays::Later),
        None => DrainAction::Look,
        Some(Elsewhere::On(_)) if facts.is_confirmed => DrainAction::Move,
        Some(Elsewhere::On(_)) => DrainAction::Confirm,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{names::NodeName, state::Nowhere};

    #[test]
    fn a_gang_is_moved_once_it_may_be_has_a_place_and_the_store_says_that_it_is_asked_for() {
        let on = Elsewhere::On([NodeName::from("n2")].into());
        let nowhere = Elsewhere::Nowhere(Nowhere {
            pods: 2,
            fit: 1,
            is_fit_partial: false,
            gave_up: false,
            level: None,
            nodes: 3,
            excluded: Vec::new(),
        });
        let (on, nowhere) = (Some(&on), Some(&nowhere));
        let may = DrainFacts {
            ends: Ends::Acts,
            is_left: false,
            is_others_turn: false,
            elsewhere: on,
            is_confirmed: true,
        };
        let later = DrainFacts {
            is_others_turn: true,
            ..may
        };
        let halted = DrainFacts {
            ends: Ends::Halted,
            ..later
        };
        let observed = DrainFacts {
            ends: Ends::Observes,
            ..halted
        };
        let none_yet = DrainFacts {
            elsewhere: None,
            ..may
        };
        let no_place = DrainFacts {
            elsewhere: nowhere,
            ..may
        };
        for (facts, expected) in [
            (may, DrainAction::Move),
            (
                DrainFacts {
                    is_confirmed: false,
                    ..may
                },
                DrainAction::Confirm,
            ),
            (none_yet, DrainAction::Look),
            (no_place, DrainAction::Stay(Stays::NoPlace)),
            (
                DrainFacts {
                    is_others_turn: true,
                    ..no_place
                },
                DrainAction::Stay(Stays::NoPlace),
            ),
            (later, DrainAction::Stay(Stays::Later)),
            (
                DrainFacts {
                    elsewhere: None,
                    ..later
                },
                DrainAction::Stay(Stays::Later),
            ),
            (halted, DrainAction::Stay(Stays::Halted)),
            (observed, DrainAction::Stay(Stays::Observed)),
            (
                DrainFacts {
                    is_left: true,
                    ..may
                },
                DrainAction::Stay(Stays::Left),
            ),
            (
                DrainFacts {
                    is_left: true,
                    ..observed
                },
                DrainAction::Stay(Stays::Left),
            ),
        ] {
            assert_eq!(drain(facts), expected, "{facts:?}");
        }
    }

    #[test]
    fn what_a_gang_lacks_elsewhere_is_told_with_numbers() {
        let nowhere = |fit, gave_up| Nowhere {
            pods: 2,
            fit,
            is_fit_partial: false,
            gave_up,
            level: None,
            nodes: 3,
            excluded: vec![("cordoned".to_owned(), 1)],
        };
        let text = nowhere(1, false).to_string();
        assert!(
            text.starts_with("there is a place for only 1 of 2 pods; of 3 nodes"),
            "{text}"
        );
        assert!(text.contains("cordoned"), "{text}");
        let text = nowhere(1, true).to_string();
        assert!(text.contains("met its bound"), "{text}");
    }
}
