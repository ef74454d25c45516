//! The plan of one attempt, as an intent or a Gang's admission records it, and whether its pods match.

use k8s_openapi::api::core::v1::Pod;
use muster_api::{Charge, Gang, GangPlacement, Intent, NodeRanks, Reason};

use crate::{
    objects::{bound_node, is_deleting, is_gated, is_over, is_terminal, stamp},
    poll_context::PollContext,
};
use muster_cluster::formed::{GangKey, PendingReason};

/// The plan of one attempt.
#[derive(Clone, Debug)]
pub(crate) struct Plan<'a> {
    /// The Gang.
    pub(crate) key: GangKey,
    /// Its UID.
    pub(crate) gang_uid: &'a str,
    /// The attempt.
    pub(crate) attempt: i64,
    /// The Team that is charged.
    pub(crate) team: &'a str,
    /// What is charged.
    pub(crate) charge: &'a Charge,
    /// Its pods, rank by rank.
    pub(crate) ranks: Vec<Rank<'a>>,
    /// Whether it was found running and charged as it was: its pods carry no stamp.
    pub(crate) adopted: bool,
}

/// One pod of a plan; its rank is its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rank<'a> {
    /// UID of the pod.
    pub(crate) pod: &'a str,
    /// UIDs of its claims, ascending.
    pub(crate) claims: &'a [String],
    /// Where it is planned.
    pub(crate) node: &'a NodeRanks,
}

impl<'a> Plan<'a> {
    /// The plan that an intent commits.
    pub(crate) fn of_intent(intent: &'a Intent) -> Self {
        let pods = intent
            .pods
            .iter()
            .map(|pod| (pod.uid.as_str(), pod.claims.as_slice()));
        Self {
            key: crate::objects::gang_key(intent),
            gang_uid: &intent.gang_uid,
            attempt: intent.attempt,
            team: &intent.team,
            charge: &intent.charge,
            ranks: lay_out(pods, &intent.plan),
            adopted: false,
        }
    }

    /// The plan that a Gang carries, if it is admitted.
    pub(crate) fn of_gang(key: &GangKey, gang: &'a Gang) -> Option<Self> {
        let status = gang.status.as_ref()?;
        let admission = status.admission.as_ref()?;
        let placement: &GangPlacement = status.placement.as_ref()?;
        let pods = admission
            .pods
            .iter()
            .map(|pod| (pod.uid.as_str(), pod.claims.as_slice()));
        Some(Self {
            key: key.clone(),
            gang_uid: gang.metadata.uid.as_deref()?,
            attempt: status.attempt,
            team: &admission.team,
            charge: &admission.charge,
            ranks: lay_out(pods, &placement.nodes),
            adopted: admission.adopted,
        })
    }

    /// Names of its nodes, each once.
    pub(crate) fn nodes(&self) -> Vec<&'a NodeRanks> {
        let mut nodes: Vec<&NodeRanks> = self.ranks.iter().map(|rank| rank.node).collect();
        nodes.sort_by(|left, right| left.node.cmp(&right.node));
        nodes.dedup_by(|left, right| left.node == right.node);
        nodes
    }

    /// Whether every pod ended or is gone: whatever a leader concludes from that stays true, since a
    /// pod's UID never comes back.
    pub(crate) fn is_over(&self, picture: PollContext<'_>) -> bool {
        self.ranks
            .iter()
            .all(|rank| is_over(picture.index, rank.pod))
    }

    /// Whether every pod is there and succeeded.
    pub(crate) fn has_succeeded(&self, picture: PollContext<'_>) -> bool {
        let succeeded = |uid: &str| {
            let pod = picture.index.pod_by_uid(uid)?;
            Some(pod.status.as_ref()?.phase.as_deref() == Some("Succeeded"))
        };
        self.ranks
            .iter()
            .all(|rank| succeeded(rank.pod) == Some(true))
    }

    /// Whether no pod of it was ungated yet.
    pub(crate) fn is_untouched(&self, picture: PollContext<'_>) -> bool {
        self.ranks.iter().all(|rank| {
            picture
                .index
                .pod_by_uid(rank.pod)
                .is_none_or(|pod| is_gated(pod))
        })
    }

    /// The first rank whose pod no longer is what was planned, and how.
    pub(crate) fn mismatch(&self, picture: PollContext<'_>) -> Option<(usize, PendingReason)> {
        self.ranks.iter().enumerate().find_map(|(number, rank)| {
            let details = self.mismatch_of(picture, rank)?;
            let wait = PendingReason {
                reason: Reason::MembersChanged,
                details: format!("rank {number}: {details}"),
            };
            Some((number, wait))
        })
    }

    fn mismatch_of(&self, picture: PollContext<'_>, rank: &Rank<'_>) -> Option<String> {
        let Some(pod) = picture.index.pod_by_uid(rank.pod) else {
            return Some(format!("pod with UID {} is gone", rank.pod));
        };
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        if is_terminal(pod) {
            return None;
        }
        if is_deleting(pod) {
            return Some(format!("pod {name} is being deleted"));
        }
        if !has_claims(picture, pod, rank.claims) {
            return Some(format!(
                "pod {name} names other claims than those it was admitted with"
            ));
        }
        if self.adopted {
            return None;
        }
        let stamp = stamp(pod);
        if is_gated(pod) {
            return (stamp > self.attempt)
                .then(|| format!("pod {name} belongs to attempt {stamp} already"));
        }
        if stamp != self.attempt {
            return Some(format!("pod {name} was not released by this attempt"));
        }
        match bound_node(pod) {
            Some(node) if node != rank.node.node => Some(format!(
                "pod {name} is bound to node {node} instead of {}",
                rank.node.node
            )),
            _ => None,
        }
    }
}

/// Whether the pod still names every claim that it was admitted with. It may name others that are not charged
/// (network cards, say); it cannot get new ones, since `resourceClaims` are fixed, but a claim may be deleted
/// and another made under its name.
fn has_claims(picture: PollContext<'_>, pod: &Pod, expected: &[String]) -> bool {
    let Some(claims) = picture.index.claim_uids_of_pod(pod) else {
        return false;
    };
    expected
        .iter()
        .all(|uid| claims.iter().any(|claim| claim.as_str() == uid))
}

fn lay_out<'a>(
    pods: impl Iterator<Item = (&'a str, &'a [String])>,
    nodes: &'a [NodeRanks],
) -> Vec<Rank<'a>> {
    let places = nodes
        .iter()
        .flat_map(|run| std::iter::repeat_n(run, usize::try_from(run.ranks).unwrap_or(0)));
    pods.zip(places)
        .map(|((pod, claims), node)| Rank { pod, claims, node })
        .collect()
}

/// Runs of consecutive ranks on one node.
pub(crate) fn run_lengths<'a>(places: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<NodeRanks> {
    let mut runs: Vec<NodeRanks> = Vec::new();
    for (node, node_uid) in places {
        match runs.last_mut() {
            Some(run) if run.node == node => run.ranks += 1,
            _ => runs.push(NodeRanks {
                node: node.to_owned(),
                node_uid: node_uid.to_owned(),
                ranks: 1,
            }),
        }
    }
    runs
}
