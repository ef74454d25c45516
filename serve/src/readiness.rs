//! Whether a program may be sent work: all its named conditions hold.
//!
//! A program registers a condition for everything that it cannot work without (a watch that has delivered
//! its first list, a certificate), and holds on to the handle. Readiness is the conjunction; `/readyz` names
//! what is missing. A condition can be lost again (`set(false)`).

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// All conditions of a program. Cheap to clone; clones share the conditions.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    conditions: Arc<Mutex<BTreeMap<String, Arc<AtomicBool>>>>,
}

/// One condition of readiness. Dropping the handle leaves the condition as it is.
#[derive(Clone, Debug)]
pub struct Condition {
    holds: Arc<AtomicBool>,
}

impl Readiness {
    /// Adds a condition that does not hold yet. The same name gives the same condition.
    pub fn condition(&self, name: &str) -> Condition {
        let mut conditions = self
            .conditions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let holds = conditions.entry(name.to_owned()).or_default();
        Condition {
            holds: Arc::clone(holds),
        }
    }

    /// Names of the conditions that do not hold, in order; empty: ready.
    pub fn missing(&self) -> Vec<String> {
        let conditions = self
            .conditions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        conditions
            .iter()
            .filter(|(_, holds)| !holds.load(Ordering::Acquire))
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// The same without one condition: what a request needs to know is there although, for a moment, the server has
    /// not answered itself ([`crate::server::ANSWERS_CONDITION`]).
    pub fn missing_besides(&self, condition: &str) -> Vec<String> {
        let mut missing = self.missing();
        missing.retain(|name| name != condition);
        missing
    }

    /// Whether every condition holds.
    pub fn is_ready(&self) -> bool {
        self.missing().is_empty()
    }
}

impl Condition {
    /// Says whether the condition holds from now on.
    pub fn set(&self, holds: bool) {
        self.holds.store(holds, Ordering::Release);
    }

    /// Whether the condition holds.
    pub fn holds(&self) -> bool {
        self.holds.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_is_the_conjunction_and_names_what_is_missing() {
        let readiness = Readiness::default();
        assert!(readiness.is_ready(), "nothing is asked for");
        let pods = readiness.condition("watch pods");
        let nodes = readiness.condition("watch nodes");
        assert_eq!(readiness.missing(), ["watch nodes", "watch pods"]);
        pods.set(true);
        assert_eq!(readiness.missing(), ["watch nodes"]);
        nodes.set(true);
        assert!(readiness.is_ready());
        pods.set(false);
        assert_eq!(
            readiness.missing(),
            ["watch pods"],
            "a condition can be lost"
        );
    }
}
