//! How much work a search may still do, counted in steps, since the engine knows no clock.

/// Work that is left to one decision. A step is one look at a node or domain, or one unit that is tried on a node:
/// between 10 and 100 nanoseconds of a current server core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effort {
    steps: u64,
    gave_up: bool,
}

impl Effort {
    /// What one decision may take: about two milliseconds.
    pub(crate) const ONE_DECISION: u64 = 40_000;

    /// A number of steps.
    pub(crate) const fn of(steps: u64) -> Self {
        Self {
            steps,
            gave_up: false,
        }
    }

    /// Takes steps; `false`, from then on, if there were fewer left.
    pub(crate) fn spend(&mut self, steps: u64) -> bool {
        match self.steps.checked_sub(steps) {
            Some(left) if !self.gave_up => self.steps = left,
            _ => self.gave_up = true,
        }
        !self.gave_up
    }

    /// Whether something was left undone for want of steps.
    pub(crate) fn is_spent(&self) -> bool {
        self.gave_up
    }
}

impl Default for Effort {
    fn default() -> Self {
        Self::of(Self::ONE_DECISION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_step_can_be_taken_and_none_after_it() {
        let mut effort = Effort::of(3);
        assert!(effort.spend(2) && effort.spend(1));
        assert!(!effort.is_spent());
        assert!(!effort.spend(1));
        assert!(effort.is_spent());
    }

    #[test]
    fn who_gave_up_once_does_not_go_on_with_smaller_steps() {
        let mut effort = Effort::of(3);
        assert!(!effort.spend(4));
        assert!(!effort.spend(1));
    }
}
