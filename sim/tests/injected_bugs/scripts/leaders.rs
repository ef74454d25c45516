//! Leaders that follow each other, and what an old one still has on the network or in its view.

use std::collections::BTreeSet;

use muster_api::{Gang, GangPhase};
use muster_cluster::object::Kind;
use muster_sim::{
    invariants::Violation,
    script::Script,
    world::{Steps, World},
};

use super::{
    GPUS, NODE, TEAM, attempt, gang, has_acknowledged, is_committed,
    permits_arrive_after_another_admission, script, the_leader_dies_as_it_lets_go,
};

/// A leader dies with the patches that let its gang go on the network. A pod of the gang is deleted, so that the next
/// leader takes the attempt back; then they arrive.
pub(crate) fn a_pod_is_let_go_late() -> Script {
    script(&[("a", 2, 1)], |world| {
        the_leader_dies_as_it_lets_go(world, "a")?;
        world.delete_pod(TEAM, "a-1", false);
        world.until("the gang is in its second attempt", |world| {
            attempt(world, "a") == 2
        })?;
        world.have(Steps::Late)
    })
}

/// A leader dies with the permits of its gang on the network. A pod of the gang is deleted, so that the next leader
/// takes the attempt back, and gives the quota to another gang; then they arrive.
pub(crate) fn a_permit_is_written_late() -> Script {
    script(&[("a", 2, 1), ("b", 1, GPUS)], |world| {
        write_permits_late(world, "a-1")
    })
}

/// The same with a gang of one: nothing is left that an attempt could be taken back for.
pub(crate) fn a_permit_is_written_late_for_a_pod_that_is_gone() -> Script {
    script(&[("a", 1, GPUS), ("b", 1, GPUS)], |world| {
        write_permits_late(world, "a-0")
    })
}

fn write_permits_late(world: &mut World, deleted: &str) -> Result<(), Violation> {
    permits_arrive_after_another_admission(world, |world| {
        world.crash_leader();
        world.delete_pod(TEAM, deleted, false);
    })
}

/// `NodeDevices` are lost while a gang is about to be permitted, and its leader dies with their creation on the network. The next
/// leader makes them, takes the attempt back and gives the quota to another gang. They are lost once more; then the creation arrives.
pub(crate) fn node_devices_are_made_late() -> Script {
    script(&[("a", 1, GPUS), ("b", 1, GPUS)], |world| {
        world.until("the driver has acknowledged its object", |world| {
            has_acknowledged(world)
        })?;
        world.hold(Steps::Permits);
        world.submit("a");
        world.until("the leader would permit a", |world| {
            world.offers(Steps::Permits)
        })?;
        world.submit("b");
        world.until("b waits", |world| gang(world, "b").is_some())?;
        world.hold(Steps::Owners);
        world.hold(Steps::Late);
        world.hold(Steps::Creations);
        world.delete_node_devices(NODE);
        // In vain: there is none.
        world.let_go(Steps::Permits);
        world.until("the leader would make the object anew", |world| {
            world.offers(Steps::Creations)
        })?;
        world.crash_leader();
        world.delete_pod(TEAM, "a-0", false);
        // So that nothing is permitted that would keep the next object.
        world.hold(Steps::Admissions);
        world.let_go(Steps::Creations);
        world.until("b is admitted", |world| is_committed(world, "b"))?;
        world.hold(Steps::Creations);
        world.delete_node_devices(NODE);
        world.have(Steps::Late)
    })
}

/// A new leader reads the pods; then a pod is made, and its Gang by the old leader; then the new one reads the Gangs.
/// It sees a Gang without pods and without owner, and its watch of the pods is slow.
pub(crate) fn a_gang_is_taken_for_ended() -> Script {
    script(&[("a", 1, 1)], |world| {
        world.until("somebody leads", |world| has_acknowledged(world))?;
        world.hold(Steps::Recovery);
        for replica in 0..2 {
            world.hold(Steps::Lists(replica, Kind::Gang));
        }
        let frozen = BTreeSet::from([Kind::Ledger, Kind::NodeDevices]);
        let Some(new) = world.supersede_leader(frozen) else {
            return Ok(());
        };
        world.until("the new leader has read the pods, but no Gangs", |world| {
            world.offers(Steps::Lists(new, Kind::Gang))
                && !world.offers(Steps::Lists(new, Kind::Pod))
        })?;
        world.hold(Steps::Watches(new, Kind::Pod));
        world.submit("a");
        world.until("the old leader has made the Gang", |world| {
            world.api.list::<Gang>().next().is_some()
        })?;
        world.let_go(Steps::Lists(new, Kind::Gang));
        world.until("the new leader takes it for ended", |world| {
            gang(world, "a").is_some_and(|status| status.phase == GangPhase::Failed)
        })
    })
}
