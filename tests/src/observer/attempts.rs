//! S4 and S16 of what a Gang says of itself: an attempt has one plan from its admission to its end, and no attempt follows a
//! later one.

use kube::ResourceExt;
use muster_api::{Gang, GangStatus};

use super::{
    findings::{
        Findings,
        Invariant::{S4, S16},
    },
    world::{self, World},
};

/// Judges a Gang that was written, by the world before it.
pub(super) fn check(world: &World, gang: &Gang, findings: &mut Findings) {
    let before = world.gangs.get(&world::uid(gang));
    let before = before.and_then(|gang| gang.status.as_ref());
    let (Some(before), Some(after)) = (before, &gang.status) else {
        return;
    };
    let name = gang.name_any();
    let (earlier, later) = (before.attempt, after.attempt);
    let went_back =
        (later < earlier).then(|| format!("gang {name} went from attempt {earlier} to {later}"));
    findings.check(S16, went_back);
    if earlier == later && before.admission.is_some() && after.admission.is_some() {
        let differs = plan(before) != plan(after);
        let two = || format!("gang {name} got another plan within attempt {later}");
        findings.check(S4, differs.then(two));
    }
}

/// What is planned: pods, each with its claims, in the order of ranks, and the nodes of these.
fn plan(status: &GangStatus) -> (Vec<(&str, &[String])>, Vec<&str>) {
    let pods = status.admission.iter().flat_map(|it| &it.pods);
    let pods: Vec<(&str, &[String])> = pods.map(|pod| (&*pod.uid, &*pod.claims)).collect();
    let placement = status.placement.as_ref();
    let nodes = (0..pods.len()).filter_map(|rank| placement?.node_of(rank));
    let nodes = nodes.map(|node| &*node.node).collect();
    (pods, nodes)
}
