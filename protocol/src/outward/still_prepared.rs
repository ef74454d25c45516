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
//! ([`crate::admission::adopt`]): nobody but that driver says so, and the claim may be planned on any other node. On this one it is not: the
//! node is closed to gangs that wait and name the claim ([`closed_nodes`]), however many there are. Where there is no room elsewhere they
//! wait in the queue, and hold nothing.
//!
//! A driver may list a claim only once a gang is planned there. Then the gang waits for its permit for as long as its start may take, as for
//! anything else that a start waits for; after that its attempt is taken back
//! ([`crate::admission::intent_state::obstacle`]). By then the node is closed to it, so it is not planned there again until the
//! release is proved: it goes elsewhere, or waits in the queue. A driver that lists it, and does not, again and again costs the gang one such limit
//! each time.
//!
//! What the API server calls deallocated is still prepared where a pod was deleted by force, its container lives, and the object that
//! named its permit is gone, or its Node was made again.
//!
//! **Whoever has the token of a node** can list what it likes. That keeps gangs that are planned on this very node from starting there, which it can do
//! in any case.
//!
//! **Who else writes**: nobody but leaders, with the resourceVersion of the object that this is read from. What the driver lists may be old: it is
//! looked at again with each answer. A permit that stands already is not taken back for that.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use muster_api::{NodeDevices, Permit};
use muster_cluster::formed::FormedGang;
use muster_engine as engine;

use crate::{
    admission::plan::{Plan, Rank},
    objects::is_gated,
    outward::{permits::is_permitted, release},
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
    /// pods of that very attempt is what their claim has now, unless all that it was reserved for were deleted by force: the others were
    /// let go together with them, and no permit that is withheld keeps them out (`docs/adr/0015-a-record-answers-for-its-allocation.md`).
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

/// A rank that gets no permit, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Withheld<'a> {
    /// Its place.
    pub(crate) place: usize,
    node: &'a str,
    /// UID of the claim that the node still has prepared.
    claim: &'a str,
}

impl fmt::Display for Withheld<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, claim, .. } = self;
        write!(
            formatter,
            "node {node} still has claim {claim} prepared for a pod that was there before"
        )
    }
}

/// The first gated rank that gets no permit since its node has a claim of it prepared for pods of another attempt, node by node. It costs the
/// ranks of the plan without a permit, and what stands on their nodes.
pub(crate) fn withheld<'a>(context: PollContext<'a>, plan: &'a Plan) -> Option<Withheld<'a>> {
    let mut nodes = plan.places.iter();
    nodes.find_map(|(node, places)| withheld_on(context, plan, node, places))
}

/// The same of the rank in one place.
pub(crate) fn withheld_of<'a>(
    context: PollContext<'a>,
    plan: &'a Plan,
    place: usize,
) -> Option<Withheld<'a>> {
    let node = &plan.ranks.get(place)?.node.name;
    withheld_on(context, plan, node, &[place])
}

/// The first of some ranks that are planned on a node.
fn withheld_on<'a>(
    context: PollContext<'a>,
    plan: &'a Plan,
    node: &'a str,
    places: &[usize],
) -> Option<Withheld<'a>> {
    let ranks = places
        .iter()
        .filter_map(|place| Some((*place, plan.ranks.get(*place)?)));
    let mut lacking = ranks
        .filter(|(_, rank)| {
            let pod = context.index.pod_by_uid(&rank.pod);
            pod.is_some_and(is_gated)
                && plan.needs_permit(rank)
                && !is_permitted(context, plan, rank, true)
        })
        .peekable();
    lacking.peek()?;
    let devices: &NodeDevices = context.index.node_devices(node)?;
    let prepared = StillPrepared::on(&devices.spec.permits, Some(devices));
    lacking.find_map(|(place, rank)| {
        let claim = prepared.claim_of(plan, rank)?;
        Some(Withheld { place, node, claim })
    })
}

/// Nodes that these pods are not to be planned on: they have a claim of theirs prepared, as nobody but their drivers says.
pub(crate) fn closed_nodes(
    context: PollContext<'_>,
    pods: &[engine::Pod],
) -> BTreeSet<engine::NodeName> {
    let claims = pods.iter().flat_map(|pod| &pod.claims);
    let nodes = claims.flat_map(move |claim| context.permits.of_claim(claim.uid.as_str()));
    nodes.map(|node| node.as_str().into()).collect()
}

/// What is told of a gang that waits for a place, if nodes are closed to it: the first by name, and how many more.
pub(crate) fn told(context: PollContext<'_>, formed: &FormedGang) -> Option<String> {
    let pods = formed.pods.iter();
    let pods = pods.filter_map(|member| member.request.as_deref());
    let mut closed: BTreeMap<&str, &str> = BTreeMap::new();
    for claim in pods.flat_map(|pod| &pod.claims) {
        for node in context.permits.of_claim(claim.uid.as_str()) {
            closed.entry(node.as_str()).or_insert(claim.uid.as_str());
        }
    }
    let (node, claim) = closed.first_key_value()?;
    let more = match closed.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more like it)"),
    };
    Some(format!(
        "it does not get node {node}, which still has claim {claim} prepared for a pod that was there before{more}"
    ))
}
