//! Clocks of the controllers' machines that go wrong.

use super::{Controllers, REPLICAS};
use crate::{clock::Skew, random::Random};

impl Controllers {
    /// The clocks of both machines are wrong from now on, each the other way round than the other. How wrong they are.
    pub(crate) fn skew_clocks(&mut self, now: u64, random: &mut Random) -> [Skew; REPLICAS] {
        let one = Skew::draw(random);
        let skews = [one, one.mirrored()];
        for (replica, skew) in self.replicas.iter_mut().zip(skews) {
            skew.befall(&mut replica.clock, now);
            replica.is_clock_set = true;
        }
        skews
    }

    /// Somebody sets the time of day of a machine: mostly of the leader's.
    pub(crate) fn jump_clock(&mut self, now: u64, random: &mut Random) -> String {
        let any = random.index(self.replicas.len());
        let number = self.holder.filter(|_| !random.one_in(4)).unwrap_or(any);
        let replica = &mut self.replicas[number];
        let by = replica.clock.jump(now, random);
        replica.is_clock_set = true;
        format!("the time of day of controller {number} is set by {by} s")
    }

    /// All clocks count true seconds from now on. Times of day are as wrong as they were.
    pub(crate) fn mend_clocks(&mut self, now: u64) {
        for replica in &mut self.replicas {
            replica.clock.mend(now);
        }
    }
}
