//! How much work a decision may still do, counted in steps, since the engine knows no clock.

/// A search ended before it had looked at everything: that it found nothing proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GaveUp;

/// Work that is left to one decision. A step is one look at a node or domain; to choose among nodes, and to put a unit on
/// one, takes several. A step takes about 40 nanoseconds of a current server core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effort {
    steps: u64,
    /// How many there were in the beginning.
    whole: u64,
    /// Whether more steps were asked for than there were.
    spent: bool,
    /// Whether something was left undone on purpose.
    overlooked: bool,
}

impl Effort {
    /// What one decision may take as a whole, on all Flavors and with all kinds of devices that are tried: about two
    /// milliseconds. It suffices to place a gang of equal pods on all of 10,000 nodes, and one of four kinds of pods on as
    /// many that no Topology orders. So much is left for an explanation, too.
    ///
    /// What is not counted follows change and not the search: to bring an index up to date, and to write the place down
    /// that was found. For each index that is used a price is paid, kept or not; so a decision makes no more of them
    /// than it can pay.
    pub(crate) const ONE_DECISION: u64 = 50_000;

    /// A number of steps.
    pub(crate) const fn of(steps: u64) -> Self {
        Self {
            steps,
            whole: steps,
            spent: false,
            overlooked: false,
        }
    }

    /// How many are left.
    pub(crate) fn steps(&self) -> u64 {
        self.steps
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

    /// Does something with one of so many equal parts of the whole. What others leave of theirs does not come to it: what
    /// comes of one part does not depend on what was remembered of the others. A single part is what is left.
    pub(crate) fn part<T>(&mut self, parts: usize, work: impl FnOnce(&mut Self) -> T) -> T {
        if parts <= 1 {
            return work(self);
        }
        let mut part = Self::of(self.whole / parts as u64);
        let done = work(&mut part);
        self.overlooked |= part.gave_up();
        done
    }

    /// Does something with one of so many equal shares of what is left, and takes back what that leaves. That a share was spent counts as
    /// something left undone, and leaves the others whole.
    pub(crate) fn share<T>(&mut self, shares: usize, work: impl FnOnce(&mut Self) -> T) -> T {
        let steps = self.steps / (shares as u64).max(1);
        let mut share = Self {
            steps,
            whole: steps,
            ..*self
        };
        self.steps -= steps;
        let done = work(&mut share);
        self.steps += share.steps;
        self.overlooked |= share.gave_up();
        done
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
        assert!(effort.share(3, |share| share.spend(30) && !share.spend(1)));
        assert!(effort.gave_up() && !effort.is_spent());
        assert!(effort.spend(60) && !effort.spend(1));
    }

    #[test]
    fn a_part_is_as_large_whatever_the_others_leave() {
        let mut effort = Effort::of(90);
        for (used, left) in [(0, 30), (30, 0), (31, 0), (5, 25)] {
            let counted = effort.part(3, |part| {
                part.spend(used);
                (0..1_000).take_while(|_| part.spend(1)).count()
            });
            assert_eq!(counted, left);
        }
        assert!(effort.gave_up() && !effort.is_spent());
        assert!(effort.part(1, |all| all.spend(60)));
        assert!(
            !effort.part(1, |rest| rest.spend(31)),
            "a single part is what is left"
        );
    }

    #[test]
    fn what_a_share_leaves_is_for_the_others() {
        let mut effort = Effort::of(90);
        assert!(effort.share(3, |share| share.spend(10)));
        assert!(!effort.gave_up());
        assert!(effort.spend(80) && !effort.spend(1));
    }
}
