//! Ranks that somebody takes who is neither their workload nor Muster: kube-scheduler in favour of a pod of higher priority, the eviction
//! API (`kubectl drain`), kube-controller-manager for a taint of a node or a device, the kubelet of a node that runs out of something.
//!
//! Kubernetes takes single pods, and the others of a gang wait for them for ever. So the attempt is evicted whole, once, like any other of which a
//! member is gone; an administrator's `NoExecute` taint, of a node or by a DeviceTaintRule, is completed by that into one restart. It is no
//! failure of what runs in the pods, and counts for nothing against how often the gang may be started anew.
//!
//! **Who says so** is the pod itself, by its condition `DisruptionTarget`, which is written before the deletion. A pod without a grace period is gone right after,
//! and others that crash because of it would seem to be the cause: so what was seen is remembered as long as the attempt lasts. A new
//! leader knows of none that are gone: then the attempt is over since its members changed. Twice or late: the eviction concerns one attempt.

use std::{cell::Cell, collections::BTreeMap};

use muster_api::Reason;
use muster_cluster::{formed::PendingReason, pod::PodFields, rank_state::RankState};

use crate::{Machine, Now, admission::plan::Plan, poll_context::PollContext};

/// A rank of an attempt that somebody took.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Taken {
    attempt: i64,
    /// Its place in the plan.
    place: usize,
    details: String,
}

/// Ranks that somebody took, of attempts that are not over, by the UID of their Gang.
#[derive(Debug, Default)]
pub(crate) struct Disruptions {
    by_gang: BTreeMap<String, Taken>,
}

impl Disruptions {
    /// Notes what is seen of the attempt that a Gang carries; `None`: it carries none.
    fn note(&mut self, gang_uid: &str, attempt: Option<i64>, seen: Option<Taken>) {
        let known = self.by_gang.get(gang_uid);
        if known.is_some_and(|known| Some(known.attempt) == attempt) {
            return;
        }
        match seen {
            Some(taken) => self.by_gang.insert(gang_uid.to_owned(), taken),
            None => self.by_gang.remove(gang_uid),
        };
    }

    /// A Gang is gone.
    pub(crate) fn forget(&mut self, gang_uid: &str) {
        self.by_gang.remove(gang_uid);
    }
}

/// That a rank of the attempt was taken, if one was. A rank that came to its end all the same is done.
pub(crate) fn of_plan(context: PollContext<'_>, plan: &Plan) -> Option<PendingReason> {
    let taken = context.disruptions.by_gang.get(&plan.gang_uid)?;
    let (_, state) = plan.states(context).nth(taken.place)?;
    let is_meant = taken.attempt == plan.attempt && state != RankState::Succeeded;
    is_meant.then(|| PendingReason {
        reason: Reason::PodDisrupted,
        details: taken.details.clone(),
    })
}

/// The first rank that is being ended, or has failed, by somebody else's doing.
fn seen(context: PollContext<'_>, plan: &Plan) -> Option<Taken> {
    plan.states(context)
        .enumerate()
        .find_map(|(place, (rank, state))| {
            if !matches!(state, RankState::Terminating | RankState::Failed) {
                return None;
            }
            let pod = context.index.pod_by_uid(&rank.pod)?;
            let what = pod.disruption()?.text()?;
            Some(Taken {
                attempt: plan.attempt,
                place,
                details: format!("rank {place}: pod {} {what}", pod.name()),
            })
        })
}

impl Machine {
    /// Notes which rank of an attempt somebody took.
    pub(crate) fn note_disruption(
        &mut self,
        gang_uid: &str,
        plan: Option<&Plan>,
        epoch: i64,
        now: Now,
        wake: &Cell<Option<u64>>,
    ) {
        let context = self.context(epoch, now, wake);
        let seen = plan.and_then(|plan| seen(context, plan));
        let attempt = plan.map(|plan| plan.attempt);
        self.disruptions.note(gang_uid, attempt, seen);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rank_that_was_taken_is_remembered_until_the_attempt_is_over() {
        let taken = |attempt, place| Taken {
            attempt,
            place,
            details: String::new(),
        };
        let mut disruptions = Disruptions::default();
        let mut noted = |attempt, seen| {
            disruptions.note("gang", attempt, seen);
            let known = disruptions.by_gang.get("gang");
            known.map(|known| (known.attempt, known.place))
        };
        assert_eq!(noted(Some(1), None), None);
        assert_eq!(noted(Some(1), Some(taken(1, 3))), Some((1, 3)));
        assert_eq!(noted(Some(1), None), Some((1, 3)), "its pod is gone");
        assert_eq!(noted(Some(1), Some(taken(1, 0))), Some((1, 3)));
        assert_eq!(noted(None, None), None, "it carries none");
        assert_eq!(noted(Some(2), Some(taken(2, 0))), Some((2, 0)));
        assert_eq!(noted(Some(3), None), None);
    }
}
