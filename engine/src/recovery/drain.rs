//! Whether a gang is moved away from what is drained by hand.
//!
//! A person asked for it, so no circuit breaker counts it. But while the breaker is open nothing is ended at all, and nobody is moved who would
//! have no place: a drain costs a gang a restart, not its work. The gangs of one node are moved after those of another, so that no more is
//! disturbed at once than one node.

use crate::{names::NodeName, state::Elsewhere};

/// All that the decision goes by.
#[derive(Clone, Copy, Debug)]
pub struct DrainFacts<'a> {
    /// Whether anything is to be ended at all, or is only to be told.
    pub acts: bool,
    /// Whether nothing is ended now: the circuit breaker is open, say.
    pub is_halted: bool,
    /// Another node whose gangs are being moved; `None`: it is this one's turn.
    pub turn_of: Option<&'a NodeName>,
    /// Whether the gang has a place without the nodes that are drained, and those where others go that are being moved; `None`: nobody looked
    /// yet, or that was long ago.
    pub elsewhere: Option<&'a Elsewhere>,
    /// Whether the store itself said that it is drained, since that was seen.
    pub is_confirmed: bool,
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
    /// Gangs of another node are moved first.
    Later,
    /// It has no place elsewhere.
    NoPlace,
}

/// What is to be done about a drain that concerns a gang.
pub fn drain(facts: DrainFacts<'_>) -> DrainAction {
    if !facts.acts {
        return DrainAction::Stay(Stays::Observed);
    }
    if facts.is_halted {
        return DrainAction::Stay(Stays::Halted);
    }
    if facts.turn_of.is_some() {
        return DrainAction::Stay(Stays::Later);
    }
    match facts.elsewhere {
        None => DrainAction::Look,
        Some(Elsewhere::Nowhere(_)) => DrainAction::Stay(Stays::NoPlace),
        Some(Elsewhere::On(_)) if facts.is_confirmed => DrainAction::Move,
        Some(Elsewhere::On(_)) => DrainAction::Confirm,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Nowhere;

    #[test]
    fn a_gang_is_moved_once_it_may_be_has_a_place_and_the_store_says_that_it_is_asked_for() {
        let other = NodeName::from("n1");
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
        for (acts, is_halted, turn_of, elsewhere, is_confirmed, expected) in [
            (true, false, None, on, true, DrainAction::Move),
            (true, false, None, on, false, DrainAction::Confirm),
            (true, false, None, None, true, DrainAction::Look),
            (
                true,
                false,
                None,
                nowhere,
                true,
                DrainAction::Stay(Stays::NoPlace),
            ),
            (
                true,
                false,
                Some(&other),
                on,
                true,
                DrainAction::Stay(Stays::Later),
            ),
            (true, true, None, on, true, DrainAction::Stay(Stays::Halted)),
            (
                false,
                true,
                Some(&other),
                on,
                true,
                DrainAction::Stay(Stays::Observed),
            ),
        ] {
            let facts = DrainFacts {
                acts,
                is_halted,
                turn_of,
                elsewhere,
                is_confirmed,
            };
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
