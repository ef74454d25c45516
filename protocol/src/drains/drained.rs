//! What is drained under an attempt, and whether it may be moved for that.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Toleration;
use muster_api::{Gang, Reason};
use muster_cluster::{
    claims::ObservedClaim,
    drains,
    formed::{FormedGang, PendingReason, has_ended},
    object::{Kind, Object, ObjectKey},
    pod::controller,
    pools::device_name,
    rank_state::RankState,
};
use muster_engine::NodeName;

use crate::{
    Mode, OnCordon,
    admission::evict,
    admission::plan::{Plan, Rank},
    injected_bug::InjectedBug,
    objects::{is_terminal, node_object},
    outward::recovery,
    poll_context::PollContext,
};

/// What is drained of the node of a rank.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Part {
    /// All of it, for a pod that tolerates this.
    All(Box<[Toleration]>),
    /// A device, by its driver, pool and name.
    Device([Box<str>; 3]),
}

/// A rank on what is drained.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DrainedRank {
    pub(super) node: NodeName,
    pub(super) part: Part,
    /// What says so.
    pub(super) object: ObjectKey,
    /// Which rank, and how, for people.
    pub(super) says: String,
}

/// What is drained under an attempt.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Drained {
    /// The rank on the first node by name.
    pub(super) first: DrainedRank,
    /// The nodes of which all is drained.
    pub(super) nodes: BTreeSet<NodeName>,
    /// Why the attempt is not moved wherever there is room, for people, if it is not.
    pub(super) left: Option<&'static str>,
}

impl Part {
    /// Whether the object says, as it is stored, that this is drained.
    pub(super) fn is_drained_by(&self, stored: &Object) -> bool {
        match (self, stored) {
            (Self::All(tolerations), Object::Node(node)) => {
                drains::of_node(node, tolerations).is_some()
            }
            (Self::Device([driver, pool, device]), Object::DeviceTaintRule(rule)) => {
                drains::of_device(rule, driver, pool, device).is_some()
            }
            _ => false,
        }
    }
}

/// What is drained under an attempt all of which runs. While it starts others see to it: who is not bound yet loses its place.
pub(super) fn under(context: PollContext<'_>, gang: &Gang, plan: &Plan) -> Option<Drained> {
    let moves = context.config.recovery.on_cordon == OnCordon::Move
        || context.bugs.has(InjectedBug::MovedWithNothing);
    let may_be_moved = moves
        && context.config.mode == Mode::Enforce
        && !has_ended(gang)
        && gang.metadata.deletion_timestamp.is_none()
        && !evict::is_as_found(context, plan);
    if !may_be_moved {
        return None;
    }
    let mut ranks = Vec::new();
    for (place, (rank, state)) in plan.states(context).enumerate() {
        match state {
            RankState::Succeeded => {}
            RankState::Running => ranks.extend(drained_rank(context, place, rank)),
            _ => return None,
        }
    }
    let whole = ranks
        .iter()
        .filter(|rank| matches!(rank.part, Part::All(_)));
    let nodes = whole.map(|rank| rank.node.clone()).collect();
    // Of several on one node the first by rank: `min_by` takes the first.
    let first = ranks
        .into_iter()
        .min_by(|one, other| one.node.cmp(&other.node))?;
    Some(Drained {
        first,
        nodes,
        left: left(context, gang, plan),
    })
}

/// Why an attempt all of which runs is not moved wherever there is room, for people: a drain costs a gang a restart, not its work.
fn left(context: PollContext<'_>, gang: &Gang, plan: &Plan) -> Option<&'static str> {
    if recovery::is_held_back(context, gang, &plan.team) {
        return Some("its Team or its Gang is on hold, and it would not start again");
    }
    if evict::is_left_to_its_jobs(context, plan) {
        return Some("its Job would not make its pods again");
    }
    let pods = plan.ranks.iter();
    let mut pods = pods.filter_map(|rank| context.index.pod_by_uid(&rank.pod));
    let is_nobodys = pods.any(|pod| !is_terminal(pod) && controller(pod).is_none());
    is_nobodys.then_some("nobody would make its pods again")
}

fn drained_rank(context: PollContext<'_>, place: usize, rank: &Rank) -> Option<DrainedRank> {
    let name = &rank.node.name;
    let pod = context.index.pod_by_uid(&rank.pod)?;
    let tolerations = pod.node_rules().map(|rules| &*rules.tolerations);
    let node = context.index.node(name);
    let by_node = node.and_then(|node| drains::of_node(node, tolerations.unwrap_or_default()));
    if let Some(how) = by_node {
        return Some(DrainedRank {
            node: name.as_str().into(),
            part: Part::All(tolerations.unwrap_or_default().into()),
            object: node_object(name),
            says: format!("rank {place}: node {name} {how}"),
        });
    }
    let claims = rank.claims.iter();
    let mut claims = claims.filter_map(|uid| context.index.claim_by_uid(uid));
    let found = claims.find_map(|claim| drained_device(context, claim))?;
    let (device, how) = (found.name(), &found.how);
    Some(DrainedRank {
        node: name.as_str().into(),
        says: format!("rank {place}: device {device} of node {name} {how}"),
        part: Part::Device(found.device),
        object: ObjectKey {
            kind: Kind::DeviceTaintRule,
            namespace: String::new(),
            name: found.rule,
        },
    })
}

/// A device that is drained by a rule.
struct DrainedDevice {
    /// Its driver, pool and name.
    device: [Box<str>; 3],
    rule: String,
    how: String,
}

impl DrainedDevice {
    /// `driver/pool/device`.
    fn name(&self) -> String {
        let [driver, pool, device] = &self.device;
        device_name(driver, pool, device)
    }
}

/// The first drained device that a claim is allocated, but for an administrator's look at it.
fn drained_device(context: PollContext<'_>, claim: &ObservedClaim) -> Option<DrainedDevice> {
    let devices = claim.allocated.iter().flatten();
    let mut own = devices.filter(|device| !device.for_admin);
    own.find_map(|device| {
        let (driver, pool) = (&*device.driver, &*device.pool);
        let beside = devices_beside(context, &device.device);
        let mut names = std::iter::once(&*device.device).chain(beside.iter().map(String::as_str));
        names.find_map(|device| {
            let (rule, how) = context.index.rule_draining(driver, pool, device)?;
            Some(DrainedDevice {
                device: [driver, pool, device].map(Box::from),
                rule: rule.clone(),
                how,
            })
        })
    })
}

/// That a gang waits for a claim whose device is drained, if it does. kube-scheduler would take what is allocated for what it is, drained or not: the gang would begin on
/// what it was moved away from, if others who use the claim are still about to end. It is given free once they have. Of a pod that was gone before it was bound Kubernetes leaves what its claim is
/// allocated, until kube-scheduler finds that out of reach for another pod; it sees none that waits here, so whoever owns the claim is told what would help.
pub(crate) fn keeps_waiting(
    context: PollContext<'_>,
    formed: &FormedGang,
) -> Option<PendingReason> {
    let requests = formed.pods.iter().filter_map(|pod| pod.request.as_ref());
    let allocated = requests
        .flat_map(|request| &request.claims)
        .filter(|claim| claim.allocated.is_some());
    let mut claims = allocated.filter_map(|claim| context.index.claim_by_uid(claim.uid.as_str()));
    let (claim, found) = claims.find_map(|claim| Some((claim, drained_device(context, claim)?)))?;
    Some(PendingReason {
        reason: Reason::WaitingForRelease,
        details: format!(
            "claim {} has device {}, which {}: the gang waits until the claim is released by all who use it, or the drain is over. If no pod \
             uses it, delete the claim and make it anew: Kubernetes leaves what it is allocated",
            claim.name,
            found.name(),
            found.how
        ),
    })
}

/// Other devices of the node by which whoever holds this one is drained, where the rule is broken that none are.
fn devices_beside(context: PollContext<'_>, device: &str) -> Vec<String> {
    const MOST: usize = 16;
    let numbered = device.trim_end_matches(|digit: char| digit.is_ascii_digit());
    let is_broken = context.bugs.has(InjectedBug::NodeForDrainedDevice);
    let numbers = 0..if is_broken { MOST } else { 0 };
    numbers
        .map(|number| format!("{numbered}{number}"))
        .collect()
}
