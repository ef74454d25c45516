//! Claims that a node still has prepared for pods of another attempt.
//!
//! A claim that its user made outlives its pods: it is deallocated with the last of them, and allocated again for the next, perhaps
//! on the same node, and perhaps other devices, under the same UID. A kubelet asks for nothing where it has the claim prepared already, and
//! gives the container what it was told then (`claimInfo.isPrepared` in `pkg/kubelet/cm/dra/manager.go`): devices that are somebody
//! else's by now. No driver can see to that, since it is not called. So no pod that names such a claim is let go to that node before the
//! release is proved ([`super::release`]): it gets no permit until then.
//!
//! Mostly the engine sees to it, which plans no gang while another attempt is charged for a claim that it names. But what a driver lists and no
//! permit names is charged to nobody, unless the API server says that the claim has devices there
//! ([`crate::admission::adopt`]): nobody but that driver says so, and the claim may be planned on any other node. Where there is room,
//! it is; that is asked of the engine as it is asked of it to avoid a node that failed.
//!
//! What the API server calls deallocated is still prepared where a pod was deleted by force, its container lives, and the object that
//! named its permit is gone, or its Node was made again.
//!
//! **Whoever has the token of a node** can list what it likes. That keeps gangs that are planned on this very node from starting there, which it can do
//! in any case.
//!
//! **Who else writes**: nobody but leaders, with the resourceVersion of the object that this is read from. What the driver lists may be old: it is
//! looked at again with each answer. A permit that stands already is not taken back for that.

use std::collections::{BTreeMap, BTreeSet};

use muster_api::{NodeDevices, Permit};
use muster_engine as engine;

use crate::{
    admission::plan::{Plan, Rank},
    outward::release,
    poll_context::PollContext,
};

/// Claims that a node has prepared without a live permit, as far as anybody says.
#[derive(Debug)]
pub(crate) struct StillPrepared<'a> {
    /// Withdrawn permits by the UIDs of the claims that they name: UID of the Gang, and the attempt.
    withdrawn: BTreeMap<&'a str, BTreeSet<(&'a str, i64)>>,
    /// What the driver lists, by UID of the claim, each with the pod that it was prepared for.
    held: BTreeMap<&'a str, Option<&'a str>>,
}

impl<'a> StillPrepared<'a> {
    /// What is prepared on a node with these permits, of which the driver says what is in `devices`.
    pub(crate) fn on(permits: &'a [Permit], devices: Option<&'a NodeDevices>) -> Self {
        let mut withdrawn: BTreeMap<&str, BTreeSet<(&str, i64)>> = BTreeMap::new();
        for permit in permits.iter().filter(|permit| permit.withdrawn) {
            for claim in &permit.claim_uids {
                let attempts = withdrawn.entry(claim).or_default();
                attempts.insert((permit.gang_uid.as_str(), permit.attempt));
            }
        }
        // Of two entries for a claim the first counts.
        let held = release::held(devices).rev();
        let held = held.map(|held| (held.claim_uid.as_str(), held.pod_uid.as_deref()));
        Self {
            withdrawn,
            held: held.collect(),
        }
    }

    /// The first claim of a rank that is prepared for pods of another attempt than the plan's, by its UID. What was prepared for
    /// pods of that very attempt is what their claim has now.
    pub(crate) fn claim_of<'r>(&self, plan: &Plan, rank: &'r Rank) -> Option<&'r str> {
        let own = (plan.gang_uid.as_str(), plan.attempt);
        let is_own_pod = |pod: &str| plan.ranks.iter().any(|rank| rank.pod == pod);
        let mut claims = rank.claims.iter().map(String::as_str);
        claims.find(|claim| {
            let attempts = self.withdrawn.get(*claim);
            let is_withdrawn =
                attempts.is_some_and(|attempts| attempts.iter().any(|attempt| *attempt != own));
            let held = self.held.get(*claim);
            is_withdrawn || held.is_some_and(|pod| pod.is_none_or(|pod| !is_own_pod(pod)))
        })
    }
}

/// The claim of a rank for which it is not permitted on its node yet, if it is one that is prepared there for pods of another attempt.
pub(crate) fn claim_of<'r>(
    context: PollContext<'_>,
    plan: &Plan,
    rank: &'r Rank,
) -> Option<&'r str> {
    let devices: &NodeDevices = context.index.node_devices(&rank.node.name)?;
    StillPrepared::on(&devices.spec.permits, Some(devices)).claim_of(plan, rank)
}

/// Nodes that have a claim of these pods prepared, as nobody but their drivers says.
pub(crate) fn nodes_of(
    context: PollContext<'_>,
    pods: &[engine::Pod],
) -> BTreeSet<engine::NodeName> {
    let claims = pods.iter().flat_map(|pod| &pod.claims);
    let nodes = claims.flat_map(move |claim| context.permits.of_claim(claim.uid.as_str()));
    nodes.map(|node| node.as_str().into()).collect()
}
