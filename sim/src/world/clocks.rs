//! Clocks that go wrong: those of the controllers' machines, and of nodes, by which drivers store times.

use super::World;
use crate::clock::Skew;

/// Of so many faults of clocks one is of a node.
const OF_NODES: u64 = 4;

impl World {
    /// The clocks of the controllers' machines, or of a node, are wrong from now on: ahead or behind, and too fast or too slow.
    pub(super) fn skew_clocks(&mut self) -> Option<String> {
        if !self.random.one_in(OF_NODES) {
            let skews = self.controllers.skew_clocks(self.now, &mut self.random);
            for skew in skews {
                self.invariants.note_clock_rate(skew.rate);
            }
            return Some(format!(
                "the clocks of the controllers' machines go wrong: {skews:?}"
            ));
        }
        let name = self.pick_node()?;
        let skew = Skew::draw(&mut self.random);
        // Nothing that is checked counts by it, so that no check needs a margin for it.
        skew.befall(&mut self.nodes.get_mut(&name)?.clock, self.now);
        Some(format!("{name}: its clocks go wrong: {skew:?}"))
    }

    /// Somebody sets the time of day of a machine forwards, or backwards.
    pub(super) fn jump_clock(&mut self) -> Option<String> {
        if !self.random.one_in(OF_NODES) {
            let told = self.controllers.jump_clock(self.now, &mut self.random);
            return Some(told);
        }
        let name = self.pick_node()?;
        let node = self.nodes.get_mut(&name)?;
        let by = node.clock.jump(self.now, &mut self.random);
        Some(format!("{name}: its time of day is set by {by} s"))
    }

    /// All clocks count true seconds from now on.
    pub(super) fn mend_clocks(&mut self) {
        self.controllers.mend_clocks(self.now);
        for node in self.nodes.values_mut() {
            node.clock.mend(self.now);
        }
    }
}
