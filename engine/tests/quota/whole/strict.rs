//! Who holds up whom in a Team whose order is strict: on every Flavor that it could use one day, nobody starts before who waits; be it
//! that others give way to it, or that an earlier attempt of it holds something still.

use super::{
    judge::{charges_on, exceeds_most},
    model::{Model, Trees, Uid},
};

impl Model {
    /// Whether nobody at the place of a gang is admitted on a Flavor of its Team, because another one waits before it. A Team without
    /// Flavors has one line.
    pub(super) fn is_held_up(&self, trees: &Trees<'_>, gang: Uid, flavor: Option<u8>) -> bool {
        let mine = &self.gangs[&gang];
        let is_strict = self.limits.strict.contains(&mine.asked.team);
        is_strict
            && self.waiting.iter().any(|other| {
                let known = &self.gangs[other];
                known.asked.team == mine.asked.team
                    && known.place() < mine.place()
                    && !self.admitted.contains(other)
                    && flavor.is_none_or(|flavor| self.could_use(trees, *other, flavor))
            })
    }

    /// Whether a gang could be admitted on a Flavor if nobody held anything.
    fn could_use(&self, trees: &Trees<'_>, gang: Uid, flavor: u8) -> bool {
        let (asked, nodes) = (&self.gangs[&gang].asked, &self.limits.nodes);
        let charges = charges_on(nodes, asked, asked.fewest(), flavor);
        !exceeds_most(&trees.larger, asked.team, &charges, asked.may_borrow)
    }
}
