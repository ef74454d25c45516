//! How much work a search may still do, counted in steps, since the engine knows no clock.

/// Work that is left to one decision. A step is one look at a node or domain; to put a unit on a node takes several.
/// A step takes about 40 nanoseconds of a current server core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effort {
    steps: u64,
    /// Whether more steps were asked for than there were.
    spent: bool,
    /// Whether something was left undone on purpose.
    overlooked: bool,
}

impl Effort {
    /// What one decision may take: about two milliseconds. It suffices to look at every node of a cluster of 20,000
    /// once for each of two kinds of pods.
    pub(crate) const ONE_DECISION: u64 = 50_000;

    /// A number of steps.
    pub(crate) const fn of(steps: u64) -> Self {
        Self {
            steps,
            spent: false,
            overlooked: false,
        }
    }

    /// Takes steps; `false`, from then on, if there were fewer left.
    pub(crate) fn spend(&mut self, steps: u64) -> bool {
        match self.steps.checked_sub(steps) {
            Some(left) if !self.spent => self.steps = left,
            _ => self.spent = true,
        }
        !self.spent
    }

    /// Whether steps ran out: nothing more is to be done.
    pub(crate) fn is_spent(&self) -> bool {
        self.spent
    }

    /// Whether anything was left undone, so that a failure proves nothing.
    pub(crate) fn gave_up(&self) -> bool {
        self.spent || self.overlooked
    }

    /// Stops, whatever steps are left.
    pub(crate) fn stop(&mut self) {
        self.spent = true;
    }

    /// Goes on, but remembers that something was left undone.
    pub(crate) fn overlook(&mut self) {
        self.overlooked = true;
    }

    /// The same steps, of which none were asked for in vain yet.
    pub(crate) fn fresh(&self) -> Self {
        Self::of(self.steps)
    }

    /// Takes over what a search left of [fresh](Self::fresh) steps.
    pub(crate) fn settle(&mut self, left: Self) {
        self.steps = left.steps;
        self.spent |= left.spent;
        self.overlooked |= left.overlooked;
    }

    /// Splits off everything but one of so many equal shares.
    #[must_use]
    pub(crate) fn keep_back(&mut self, shares: u64) -> Self {
        let share = self.steps / shares.max(1);
        let rest = Self {
            steps: self.steps - share,
            ..*self
        };
        self.steps = share;
        rest
    }

    /// Takes back what is left of a share. That it was spent counts as something left undone.
    pub(crate) fn take_back(&mut self, share: Self) {
        self.steps = self.steps.saturating_add(share.steps);
        self.overlooked |= share.gave_up();
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
        assert!(!effort.gave_up());
        assert!(!effort.spend(1));
        assert!(effort.is_spent() && effort.gave_up());
    }

    #[test]
    fn who_ran_out_once_does_not_go_on_with_smaller_steps() {
        let mut effort = Effort::of(3);
        assert!(!effort.spend(4));
        assert!(!effort.spend(1));
    }

    #[test]
    fn a_spent_share_leaves_the_others_whole() {
        let mut effort = Effort::of(90);
        let mut rest = effort.keep_back(3);
        assert!(effort.spend(30) && !effort.spend(1));
        rest.take_back(effort);
        assert!(rest.gave_up() && !rest.is_spent());
        assert!(rest.spend(60) && !rest.spend(1));
    }
}
