//! The plan of one attempt, whichever object records it, and whether its pods match.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use muster_api::{Charge, Reason};

use crate::{
    objects::{bound_node, is_deleting, is_gated, is_over, is_terminal, stamp},
    poll_context::PollContext,
};
use muster_cluster::{
    formed::{GangKey, PendingReason},
    gangs::succeeded_ranks,
    index::NamespacedName,
    pod::{ObservedPod, PodFields, completion_index},
    rank_state::RankState,
};

/// The plan of one attempt. Intents, admissions and placements are made from it and read into it, in
/// [`super::record`] alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The Gang.
    pub(crate) key: GangKey,
    /// Its UID.
    pub(crate) gang_uid: String,
    /// The attempt.
    pub(crate) attempt: i64,
    /// Sequence of the Ledger write that committed it; 0 for an adopted gang.
    pub(crate) sequence: i64,
    /// The Team that is charged.
    pub(crate) team: String,
    /// Generation of the Team whose limits the decision was judged by.
    pub(crate) team_generation: i64,
    /// What is charged.
    pub(crate) charge: Charge,
    /// How many pods the gang had, where the plan is for fewer.
    pub(crate) gang_size: Option<i32>,
    /// How many indexes of its Job were done before, if an Indexed Job makes its pods.
    pub(crate) done_before: Option<i32>,
    /// The PriorityTier that the gang was admitted by.
    pub(crate) tier: Option<String>,
    /// Its pods, each in its place: the place is what the placement counts by. The number that a pod is told as its
    /// rank is its completion index, which may be another.
    pub(crate) ranks: Vec<Rank>,
    /// Places by node.
    pub(crate) places: BTreeMap<String, Vec<usize>>,
    /// The narrowest level whose one domain holds the plan; absent if none does.
    pub(crate) level: Option<String>,
    /// Path of label values of that domain, outermost first.
    pub(crate) domain: Vec<String>,
    /// Whether it was found running and charged as it was: its pods carry no stamp.
    pub(crate) adopted: bool,
}

/// One pod of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rank {
    /// UID of the pod.
    pub(crate) pod: String,
    /// UIDs of its claims, ascending.
    pub(crate) claims: Vec<String>,
    /// Where it is planned.
    pub(crate) node: Arc<PlannedNode>,
}

/// A node as it was when the plan was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlannedNode {
    /// Its name.
    pub(crate) name: String,
    /// Its UID.
    pub(crate) uid: String,
}

impl Plan {
    /// Whether a rank has a permit while it is let go: it has claims, which its driver prepares by it, or is charged for
    /// anything else, which its permit says once its Gang does not any more.
    pub(crate) fn needs_permit(&self, rank: &Rank) -> bool {
        !rank.claims.is_empty() || !self.charge.resources.is_empty()
    }

    /// Names of its nodes, each once, ascending.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &String> {
        self.places.keys()
    }

    /// Whether every pod ended or is gone: whatever a leader concludes from that stays true, since a
    /// pod's UID never comes back.
    pub(crate) fn is_over(&self, context: PollContext<'_>) -> bool {
        self.ranks
            .iter()
            .all(|rank| is_over(context.index, &rank.pod))
    }

    /// Whether a pod of it that is still gated belongs to a later attempt.
    pub(crate) fn is_given_up(&self, context: PollContext<'_>) -> bool {
        self.ranks.iter().any(|rank| {
            let pod = context.index.pod_by_uid(&rank.pod);
            pod.is_some_and(|pod| is_gated(pod) && stamp(pod) > self.attempt)
        })
    }

    /// What became of each of its ranks, in the order of their places. A rank that succeeded is done, whether or not its pod
    /// still exists.
    pub(crate) fn states(
        &self,
        context: PollContext<'_>,
    ) -> impl Iterator<Item = (&Rank, RankState)> {
        let missing_are_done = self.missing_are_done(context);
        self.ranks.iter().map(move |rank| {
            let pod = context.index.pod_by_uid(&rank.pod);
            match RankState::of(pod.map(AsRef::as_ref)) {
                RankState::Missing if missing_are_done => (rank, RankState::Succeeded),
                state => (rank, state),
            }
        })
    }

    /// Whether every rank whose pod is gone had succeeded before: beside what was done before this attempt, and the indexes of the pods
    /// that are there, so many are done. (Which index a pod had that is gone is not recorded. The Job may have other indexes besides: of
    /// pods that wait for the next attempt, or that it has not made yet.)
    fn missing_are_done(&self, context: PollContext<'_>) -> bool {
        let pods = || {
            let ranks = self.ranks.iter();
            ranks.map(|rank| context.index.pod_by_uid(&rank.pod))
        };
        let missing = pods().filter(Option::is_none).count();
        if missing == 0 {
            return false;
        }
        let present: BTreeSet<u32> = pods().flatten().filter_map(completion_index).collect();
        let gang = context.gang_of(self);
        let owners = gang.and_then(|gang| gang.metadata.owner_references.as_ref());
        let mut owners = owners.into_iter().flatten();
        owners.any(|owner| {
            let name = NamespacedName::new(self.key.namespace.clone(), owner.name.clone());
            let job = context.index.job(&name);
            job.filter(|job| job.metadata.uid.as_ref() == Some(&owner.uid))
                .is_some_and(|job| {
                    let done = succeeded_ranks(job, &[]);
                    if let Some(before) = self.done_before {
                        let before = usize::try_from(before).unwrap_or(0);
                        return done.difference(&present).count() >= before + missing;
                    }
                    // Recorded without that number.
                    let completions = job.spec.as_ref().and_then(|spec| spec.completions);
                    let completions = u32::try_from(completions.unwrap_or(0)).unwrap_or(0);
                    let is_there = |index: &u32| done.contains(index) || present.contains(index);
                    !done.is_empty() && (0..completions).all(|index| is_there(&index))
                })
        })
    }

    /// Whether every pod is there and succeeded.
    pub(crate) fn has_succeeded(&self, context: PollContext<'_>) -> bool {
        self.states(context)
            .all(|(_, state)| state == RankState::Succeeded)
    }

    /// Whether no pod of it was ungated yet.
    pub(crate) fn is_untouched(&self, context: PollContext<'_>) -> bool {
        self.ranks.iter().all(|rank| {
            let pod = context.index.pod_by_uid(&rank.pod);
            pod.is_none_or(is_gated)
        })
    }

    /// The first rank whose pod no longer is what was planned, and how.
    pub(crate) fn mismatch(&self, context: PollContext<'_>) -> Option<Mismatch> {
        let missing_are_done = self.missing_are_done(context);
        self.ranks.iter().enumerate().find_map(|(place, rank)| {
            if missing_are_done && context.index.pod_by_uid(&rank.pod).is_none() {
                return None;
            }
            let (details, for_good) = self.mismatch_of(context, rank)?;
            let reason = PendingReason {
                reason: Reason::MembersChanged,
                details: format!("rank {place}: {details}"),
            };
            Some(Mismatch { reason, for_good })
        })
    }

    fn mismatch_of(&self, context: PollContext<'_>, rank: &Rank) -> Option<(String, bool)> {
        let for_good = |details: String| Some((details, true));
        let Some(pod) = context.index.pod_by_uid(&rank.pod) else {
            return for_good(format!("pod with UID {} is gone", rank.pod));
        };
        let name = pod.name();
        if is_terminal(pod) {
            return None;
        }
        if is_deleting(pod) {
            return for_good(format!("pod {name} is being deleted"));
        }
        if !has_claims(context, pod, &rank.claims) {
            let details = format!("pod {name} names other claims than those it was admitted with");
            return Some((details, false));
        }
        if self.adopted {
            return None;
        }
        let stamp = stamp(pod);
        if is_gated(pod) {
            let details = || format!("pod {name} belongs to attempt {stamp} already");
            return (stamp > self.attempt).then(|| (details(), true));
        }
        if stamp != self.attempt {
            return for_good(format!("pod {name} was not released by this attempt"));
        }
        let node = bound_node(pod).filter(|node| *node != rank.node.name)?;
        let planned = &rank.node.name;
        for_good(format!(
            "pod {name} is bound to node {node} instead of {planned}"
        ))
    }
}

/// That a pod is not what was planned.
#[derive(Clone, Debug)]
pub(crate) struct Mismatch {
    /// Which rank, and how.
    pub(crate) reason: PendingReason,
    /// Whether it cannot heal. Claims come by another watch than the pods that name them, and may only be late.
    pub(crate) for_good: bool,
}

/// Whether the pod still names every claim that it was admitted with. It may name others that are not charged
/// (network cards, say); it cannot get new ones, since `resourceClaims` are fixed, but a claim may be deleted
/// and another made under its name.
fn has_claims(context: PollContext<'_>, pod: &ObservedPod, expected: &[String]) -> bool {
    let Some(claims) = context.index.claim_uids_of_pod(pod) else {
        return false;
    };
    expected
        .iter()
        .all(|uid| claims.iter().any(|claim| claim.as_str() == uid))
}
