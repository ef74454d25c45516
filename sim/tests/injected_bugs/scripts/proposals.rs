//! Admissions that the Ledger names by their digest, and whose Gangs are deleted.

use muster_sim::{
    invariants::Violation,
    script::Script,
    world::{Steps, World},
};

use super::{GPUS, TEAM, gang, is_committed, proposing};

/// A leader dies with the permits of its gang on the network, and the Gang is deleted: nobody knows any more what was
/// committed. The next leader takes it back, and gives the quota to another gang; then the permits arrive.
pub(crate) fn a_permit_is_written_late_for_a_gang_that_is_gone() -> Script {
    proposing(&[("a", 1, GPUS), ("b", 1, GPUS)], |world| {
        lose_the_proposal(world)?;
        world.until("b is admitted", |world| is_committed(world, "b"))?;
        world.have(Steps::Late)
    })
}

/// The same, but the permits arrive before the next leader has written a `NodeDevices`.
pub(crate) fn a_permit_is_written_before_anybody_could_refuse_it() -> Script {
    proposing(&[("a", 1, GPUS), ("b", 1, GPUS)], |world| {
        lose_the_proposal(world)?;
        world.hold(Steps::Fences);
        world.until("the next leader would take the attempt back", |world| {
            world.offers(Steps::Fences)
        })?;
        let begun_at = world.now;
        world.until("the next leader has done what it can", |world| {
            world.now >= begun_at + 20_000
        })?;
        world.have(Steps::Late)?;
        world.let_go(Steps::Fences);
        Ok(())
    })
}

fn lose_the_proposal(world: &mut World) -> Result<(), Violation> {
    world.hold(Steps::Permits);
    world.submit("a");
    world.until("the leader would permit a", |world| {
        world.offers(Steps::Permits)
    })?;
    world.submit("b");
    world.until("b waits", |world| gang(world, "b").is_some())?;
    world.hold(Steps::Late);
    world.hold(Steps::Owners);
    world.crash_leader();
    world.delete_gang("a");
    world.delete_pod(TEAM, "a-0", false);
    Ok(())
}
