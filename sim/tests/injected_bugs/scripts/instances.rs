//! Instances of a driver that sleep, or die, at the wrong moment.

use muster_sim::{script::Script, world::Steps};

use super::{
    GPUS, NODE, TEAM, has_acknowledged, has_answered, has_no_permits, has_no_records, is_permitted,
    node, script, uid,
};

/// A driver is updated. The old instance is about to record a claim, and does nothing for a while; the new one
/// acknowledges that the permit is withdrawn, and dies before it does anything else.
pub(crate) fn an_instance_sleeps_over_a_withdrawal() -> Script {
    script(&[("a", 1, GPUS)], |world| {
        world.hold(Steps::Recovery);
        world.hold(Steps::Records(1));
        world.submit("a");
        world.until(
            "instance 1 has read the claim, and acknowledged its permit",
            |world| {
                world.offers(Steps::Records(1)) && has_acknowledged(world) && is_permitted(world)
            },
        )?;
        world.hold(Steps::Instance(1));
        world.hold(Steps::Kubelets);
        world.start_instance(NODE);
        world.delete_pod(TEAM, "a-0", true);
        world.until(
            "instance 2 says that it has heard of the withdrawal",
            |world| !is_permitted(world) && has_answered(world),
        )?;
        world.crash_instance(NODE, 2);
        world.until("the release counts as proved", |world| {
            has_no_permits(world)
        })?;
        world.hold(Steps::InstanceWatch(1));
        world.let_go(Steps::Records(1));
        world.let_go(Steps::Instance(1));
        world.until("instance 1 gives up", |world| has_no_records(world))
    })
}

/// The same, but `NodeDevices` is lost and made anew in between: the sleeper has seen an object that is gone, and
/// generations of the two say nothing about each other.
pub(crate) fn an_instance_sleeps_over_the_loss_of_its_object() -> Script {
    script(&[("a", 1, GPUS)], |world| {
        world.hold(Steps::Recovery);
        world.until("the driver has acknowledged its object", |world| {
            has_acknowledged(world)
        })?;
        let lost = uid(world);
        world.hold(Steps::InstanceWatch(1));
        world.hold(Steps::Reads(1));
        world.submit("a");
        world.until("instance 1 looks past its watch for the permit", |world| {
            world.offers(Steps::Reads(1)) && !world.offers(Steps::Turns(1))
        })?;
        world.have(Steps::Reads(1))?;
        world.hold(Steps::Instance(1));
        world.hold(Steps::Kubelets);
        world.start_instance(NODE);
        world.delete_pod(TEAM, "a-0", true);
        world.until("the release is proved", |world| has_no_permits(world))?;
        world.delete_node_devices(NODE);
        world.until("instance 2 has acknowledged the new object", |world| {
            has_acknowledged(world) && uid(world) != lost
        })?;
        world.crash_instance(NODE, 2);
        // A status about the lost object is refused, which would lead instance 1 to the new one while it looks at its GPUs.
        world.hold(Steps::StatusWrites(1));
        world.let_go(Steps::Instance(1));
        world.until("instance 1 gives up", |world| has_no_records(world))
    })
}

/// A driver dies with a status on the network. Then its object is lost; the status, of a high generation and with
/// nothing held, arrives when the successor is at a low one and something is held.
pub(crate) fn a_status_arrives_at_the_successor_of_its_object() -> Script {
    script(&[("a", 1, GPUS), ("b", 1, GPUS)], |world| {
        world.submit("a");
        world.until("a came and went", |world| {
            world.owners.is_complete("a", &world.api) && has_no_permits(world)
        })?;
        world.hold(Steps::StatusWrites(1));
        world.until("instance 1 would say so", |world| {
            world.offers(Steps::StatusWrites(1))
        })?;
        world.hold(Steps::Late);
        world.crash_instance(NODE, 1);
        let lost = uid(world);
        world.delete_node_devices(NODE);
        world.until(
            "the next instance has acknowledged the new object",
            |world| has_acknowledged(world) && uid(world) != lost,
        )?;
        world.submit("b");
        world.until("b runs", |world| !node(world).containers.is_empty())?;
        world.hold(Steps::Kubelets);
        world.hold(Steps::StatusWrites(2));
        world.delete_pod(TEAM, "b-0", true);
        world.until("the permit of b is withdrawn", |world| !is_permitted(world))?;
        world.have(Steps::Late)?;
        world.until("the controller has looked at what arrived", |world| {
            world.controllers.is_at_rest(world.now, &world.api)
        })
    })
}
