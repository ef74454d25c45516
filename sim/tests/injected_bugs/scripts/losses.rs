//! Objects of ours that are deleted by others.

use muster_sim::{invariants::Violation, script::Script, world::Steps};

use super::{
    GPUS, TEAM, attempt, first_pod, gang, is_stamped, permits_arrive_after_another_admission,
    script, the_leader_dies_as_it_lets_go,
};

/// The Ledger is deleted while the permits of a gang are on the network, and then the gang's pods: nothing tells the
/// next leader that they may still arrive, when it gives the quota to another gang.
pub(crate) fn a_permit_outlives_the_ledger_that_it_was_for() -> Script {
    script(&[("a", 2, 1), ("b", 1, GPUS)], |world| {
        permits_arrive_after_another_admission(world, |world| {
            world.delete_ledger();
            world.delete_pod(TEAM, "a-0", false);
            world.delete_pod(TEAM, "a-1", false);
        })?;
        world.let_go(Steps::Permits);
        Ok(())
    })
}

/// The Ledger is deleted when a Gang carries its admission, and then a pod of the gang: the next leader finds an
/// admission that cannot be completed, and no intent that says so.
pub(crate) fn an_admission_outlives_its_intent() -> Script {
    script(&[("a", 2, 1)], |world| {
        world.hold(Steps::Permits);
        world.submit("a");
        world.until("the leader would permit a", |world| {
            world.offers(Steps::Permits)
        })?;
        world.hold(Steps::Late);
        world.delete_ledger();
        world.until("the leader has gone", |world| world.offers(Steps::Late))?;
        world.delete_pod(TEAM, "a-1", false);
        world.let_go(Steps::Permits);
        let lost_at = world.now;
        world.until("the next leader has done what it can", |world| {
            world.now >= lost_at + 20_000
        })?;
        if attempt(world, "a") > 1 {
            return Ok(());
        }
        // Nobody but the user would end this, who gives up after ten minutes.
        Err(Violation {
            invariant: "S6",
            what: "a keeps the charge of an attempt that can never be completed".to_owned(),
        })
    })
}

/// A leader dies with the admission of a Gang on the network, and a pod of the gang is deleted: the next leader begins to
/// take the attempt back, and stamps the pod that is left. Before it raises the Gang it dies too, and the Ledger, the only
/// object that said why, is deleted. The stamp says that no pod of the gang may be let go in the attempt that the Gang
/// is in.
pub(crate) fn a_stamp_outlives_the_ledger_that_it_was_for() -> Script {
    script(&[("a", 2, 1)], |world| {
        world.hold(Steps::Admissions);
        world.submit("a");
        world.until("the leader would admit a", |world| {
            world.offers(Steps::Admissions)
        })?;
        world.hold(Steps::Late);
        world.crash_leader();
        world.delete_pod(TEAM, "a-1", false);
        world.until(
            "the next leader begins to take the attempt back",
            is_stamped,
        )?;
        world.crash_leader();
        world.delete_ledger();
        world.let_go(Steps::Admissions);
        let lost_at = world.now;
        world.until("the leader after it has done what it can", |world| {
            world.now >= lost_at + 60_000
        })?;
        world.have(Steps::Late)
    })
}

/// An attempt is taken back, and before its permits are all that tells of it is lost: the Ledger, the Gang, and the
/// pod that the Gang's name came from. The Gang is made again under another name.
pub(crate) fn a_permit_outlives_the_name_of_its_gang() -> Script {
    script(&[("a", 2, 1)], |world| {
        the_leader_dies_as_it_lets_go(world, "a")?;
        let first = first_pod(world);
        world.delete_pod(TEAM, &first, false);
        world.until(
            "the next leader begins to take the attempt back",
            is_stamped,
        )?;
        world.crash_leader();
        world.delete_ledger();
        world.delete_gangs();
        world.until("the Gang is made again", |world| gang(world, "a").is_some())
    })
}
