//! Schedules that are steered, not drawn.
//!
//! Some moments are too rare for chance: an instance of a driver that sleeps with a permit in its view while another
//! acknowledges that it is gone, or a request that arrives after everything was taken back. A [`Script`] brings them
//! about. It runs on the same [`World`], by the same steps; it only says which of them have to wait, waits for
//! moments, and does what users and faults do ([`steering`](crate::world::steering)). All that it does not speak of
//! is still drawn from the seed, so that one script is many schedules.

use crate::{invariants::Violation, scenario::Scenario, world::World};

/// A schedule that is steered: what it begins with, and what is done, moment by moment.
///
/// When it has ended nothing is held back any more, and everything must come to rest as in any run.
#[derive(Clone, Debug)]
pub struct Script {
    /// The cluster. Gangs that are submitted [only by the script](crate::scenario::BY_SCRIPT) are its to submit.
    pub scenario: Scenario,
    /// What is done. It ends early with what is wrong, which may be that a moment of its own never came.
    pub play: fn(&mut World) -> Result<(), Violation>,
}
