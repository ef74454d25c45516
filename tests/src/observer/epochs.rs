//! S16: a stale leader commits nothing. Ledger, Gang status and NodeDevices carry the epoch of their last writer, and
//! no epoch is ever written over by a lower one.

use kube::ResourceExt;

use super::{
    findings::{Findings, Invariant::S16},
    world::{self, Object, World},
};

/// Judges an object that was written, by the world before it.
pub(super) fn check(world: &World, object: &Object, findings: &mut Findings) {
    let (who, before, after) = match object {
        Object::Ledger(ledger) => {
            let before = world.ledger.as_ref();
            let before = before.filter(|known| world::uid(*known) == world::uid(&**ledger));
            (
                "the Ledger".to_owned(),
                before.map(|ledger| ledger.spec.leader_epoch),
                ledger.spec.leader_epoch,
            )
        }
        Object::NodeDevices(node) => {
            let before = world.node_devices.get(&node.name_any());
            let before = before.filter(|known| world::uid(*known) == world::uid(&**node));
            (
                format!("NodeDevices {}", node.name_any()),
                before.map(|node| node.spec.leader_epoch),
                node.spec.leader_epoch,
            )
        }
        Object::Gang(gang) => {
            let before = world.gangs.get(&world::uid(&**gang));
            let epoch = |gang: &muster_api::Gang| Some(gang.status.as_ref()?.leader_epoch);
            let Some(after) = epoch(gang) else { return };
            (
                format!("Gang {}", gang.name_any()),
                before.and_then(epoch),
                after,
            )
        }
        _ => return,
    };
    let Some(before) = before else { return };
    let went_back = (after < before)
        .then(|| format!("{who} of epoch {before} was written over by epoch {after}"));
    findings.check(S16, went_back);
}
