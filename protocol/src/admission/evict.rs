//! Which attempts are evicted, why, and the intent that says so.
//!
//! An attempt of which any pod was let go is never taken back in part. It is evicted whole, and its gang keeps its place in the
//! queue. What is found has to last for a while first ([`due`]): pods are deleted one by one though all of them are meant, and
//! watches of several kinds come in any order.
//!
//! **The intent** replaces what the Ledger has of the gang, in place. It names the Gang, the attempt and the cause, the nodes of
//! the plan, and the rest by its digest: that the Gang carries, as its admission before it is raised and as a proposal
//! afterwards. So a successor knows what is charged until the intent leaves the Ledger, and where permits are to be taken
//! back though the Gang was deleted. A fault is named whole ([`EvictionFault`]): what it was decided by may be gone before the Gang is raised, as the claims
//! of a rank that died are, and so may this leader. It is never taken back itself: whoever leads completes it, in the order in which
//! attempts are voided ([`super::void`]). Twice or late it changes nothing: it concerns one attempt of one Gang.

use k8s_openapi::api::batch::v1::Job;
use muster_api::{Charge, Gang, Intent, IntentKind, Reason, gang::EvictionFault, team::Stop};

use crate::{
    Mode,
    admission::intent_state::{IntentState, is_obstacle_for_good, obstacle},
    admission::plan::Plan,
    admission::preempt,
    admission::stage::{Stage, View},
    drains,
    faults::{self, held::Found},
    feed::running,
    jobs,
    nodes::loss,
    objects::{is_deleting, is_terminal, stamp},
    outward::{gang_status, restarts},
    poll_context::PollContext,
    stalls,
};
use muster_cluster::{
    formed::{GangKey, PendingReason, has_ended},
    gangs::failed_ranks,
    object::ObjectKey,
    rank_state::RankState,
};
use muster_engine::recovery::Action;

/// How long what stands for good in the way of an attempt has to last, in seconds: pods that are all to be deleted are so
/// one by one.
pub(crate) const FOR_GOOD_SECONDS: u64 = 5;

/// Why the attempt that a Gang carries is to be evicted now, if it is. `view`: where it is, and what is wrong with it.
pub(crate) fn due(
    context: PollContext<'_>,
    gang: &Gang,
    plan: &Plan,
    view: &View,
) -> Option<PendingReason> {
    if is_out_of_question(context, gang, plan, view) {
        return None;
    }
    let jobs = jobs::of_plan(context, plan);
    let is_kept = |job: &&Job| jobs::is_ending(job) || jobs::is_drained_queue(context.index, job);
    // Whose pods are being ended anyway, and nobody waits for their places, is left alone. A Job that lives on waits for them
    // though it has made no others: it may be told not to before the last ones are gone, which on a lost node they never are.
    let goes_on = has_living(context, plan) || has_successors(context, plan);
    if (goes_on || !jobs.is_empty())
        && !jobs.iter().any(is_kept)
        && let Some(lost) = loss::due(context, plan)
    {
        return Some(lost);
    }
    if !goes_on {
        return None;
    }
    if has_living(context, plan)
        && !jobs.iter().any(is_kept)
        && let Some(faulty) = faults::held::due(context, gang, plan)
    {
        return Some(faulty);
    }
    if has_living(context, plan)
        && !jobs.iter().any(is_kept)
        && let Some(stalled) = stalls::due(context, gang, plan)
    {
        return Some(stalled);
    }
    if has_living(context, plan)
        && !jobs.iter().any(is_kept)
        && let Some(moved) = drains::due(context, plan)
    {
        return Some(moved);
    }
    if let Some(drained) = drained(context, plan, &jobs) {
        return Some(drained);
    }
    if has_living(context, plan)
        && let Some(preempted) = preempt::due(context, gang, plan)
    {
        return Some(preempted);
    }
    if jobs.iter().any(|job| jobs::is_ending(job)) {
        return None;
    }
    if has_living(context, plan)
        && let Some(ran_out) = ran_out(context, gang, plan)
    {
        return Some(ran_out);
    }
    // Before any pod was let go, what stands in its way has it taken back without more ado. A start that is late then waits for its
    // permits, as an eviction would, and is told only; unless a node withholds one, which stands in its way (`obstacle`).
    let wrong = view
        .reason
        .as_ref()
        .filter(|_| view.stage > Stage::Carried)?;
    let delay_seconds = delay_seconds(context, gang, plan, &jobs, wrong.reason)?;
    let noted = context.clocks.is_reason_since(&plan.gang_uid, wrong.reason);
    let since = noted.unwrap_or(context.now.monotonic_seconds);
    context
        .has_come(since.saturating_add(delay_seconds))
        .then(|| wrong.clone())
}

/// The fault for which the attempt would be evicted, and of which the store is to be asked first, if there is one and it may be
/// asked now.
pub(crate) fn to_confirm(context: PollContext<'_>, key: &GangKey) -> Option<Found> {
    let (gang, plan) = in_question(context, key)?;
    let found = faults::held::find(context, gang, plan)?;
    if found.action != Action::Confirm || is_left_to_its_jobs(context, plan) {
        return None;
    }
    let may_ask_at = context.fault_checks.may_ask_at(&found.slice)?;
    context.has_come(may_ask_at).then_some(found)
}

/// The pod that is to be read before the attempt is evicted for making no progress, if one is and may be read now.
pub(crate) fn stalled_to_confirm(context: PollContext<'_>, key: &GangKey) -> Option<ObjectKey> {
    let (gang, plan) = in_question(context, key)?;
    let pod = stalls::to_confirm(context, gang, plan)?;
    (!is_left_to_its_jobs(context, plan)).then_some(pod)
}

/// What is to be read before the attempt is moved away from what is drained, if it may be read now.
pub(crate) fn drained_to_confirm(context: PollContext<'_>, key: &GangKey) -> Option<ObjectKey> {
    let (_, plan) = in_question(context, key)?;
    let object = drains::to_confirm(context, plan)?;
    (!is_left_to_its_jobs(context, plan)).then_some(object)
}

/// The attempt that a Gang carries, if it may be evicted without proof.
fn in_question<'a>(context: PollContext<'a>, key: &GangKey) -> Option<(&'a Gang, &'a Plan)> {
    let gang: &Gang = context.index.gang(key)?;
    let plan: &Plan = context.plans.carried(key)?;
    let view = context.views.of(key)?;
    let is_complete = view
        .intent
        .is_none_or(|intent| intent == IntentState::Complete);
    let may_be = is_complete
        && !is_out_of_question(context, gang, plan, view)
        && has_living(context, plan)
        && faults::held_back(context).is_none();
    may_be.then_some((gang, plan))
}

/// Whether its pods are being ended by their Jobs anyway, or would not be made again.
pub(crate) fn is_left_to_its_jobs(context: PollContext<'_>, plan: &Plan) -> bool {
    let jobs = jobs::of_plan(context, plan);
    let mut jobs = jobs.iter();
    jobs.any(|job| jobs::is_ending(job) || jobs::is_drained_queue(context.index, job))
}

/// Whether the attempt is not to be evicted, whatever is wrong with it.
fn is_out_of_question(context: PollContext<'_>, gang: &Gang, plan: &Plan, view: &View) -> bool {
    !view.is_under_way()
        || context.config.mode == Mode::Observe
        || has_ended(gang)
        || gang.metadata.deletion_timestamp.is_some()
        || is_as_found(context, plan)
            && (has_living(context, plan) || !has_successors(context, plan))
}

/// That an attempt has run for as long as its gang may. The time of its admission is stored, so a new leader counts on. It is counted by
/// the monotonic clock from when the admission is seen: a clock that is set ends no gang, and lets none run for longer.
fn ran_out(context: PollContext<'_>, gang: &Gang, plan: &Plan) -> Option<PendingReason> {
    let ends_at = running::ends_at(context, gang, plan)?;
    if !context.has_come(ends_at) {
        return None;
    }
    let spec = gang_status::limits(context, &plan.key, gang);
    let most = spec.max_runtime_seconds.unwrap_or_default();
    Some(PendingReason {
        reason: Reason::MaxRuntimeExceeded,
        details: format!(
            "attempt {} ran for {most} s since its admission, as long as it may by its max-runtime-seconds",
            plan.attempt
        ),
    })
}

/// How long a reason has to last until it costs the attempt, in seconds; `None`: it never does.
fn delay_seconds(
    context: PollContext<'_>,
    gang: &Gang,
    plan: &Plan,
    jobs: &[&Job],
    reason: Reason,
) -> Option<u64> {
    let has_ended = || {
        let formed = context.formed(&plan.key);
        formed.is_some_and(|formed| formed.ended.is_some())
    };
    // Its pods go on without what they lack: started anew, they would not have it either.
    let goes_on = || jobs.iter().any(|job| !failed_ranks(job).is_empty());
    let is_queue = |job: &&Job| jobs::is_drained_queue(context.index, job);
    match reason {
        // Its pods would not be made again.
        _ if jobs.iter().any(is_queue) => None,
        Reason::PodFailed | Reason::MembersChanged | Reason::PodDisrupted if goes_on() => None,
        // That limit has passed.
        Reason::StartTimeout => Some(0),
        // Whoever takes one may be about to take all.
        Reason::PodDisrupted => Some(FOR_GOOD_SECONDS),
        Reason::PodFailed if has_ended() => None,
        Reason::PodFailed if died_of_a_fault(context, plan) => Some(0),
        Reason::PodFailed => {
            let spec = gang_status::limits(context, &plan.key, gang);
            let grace = match spec.restart.failure_grace_seconds {
                Some(grace) => u64::try_from(grace).ok()?,
                None => context.config.recovery.failure_grace_seconds,
            };
            Some(grace.max(restarts::doubted_for_seconds(context, gang, plan)))
        }
        _ if obstacle(context, plan).is_none() => None,
        _ if has_living(context, plan) && is_obstacle_for_good(context, plan) => {
            Some(FOR_GOOD_SECONDS)
        }
        // There are no others that could still be deleted.
        _ if plan.ranks.len() == 1 && has_successors(context, plan) => Some(FOR_GOOD_SECONDS),
        _ => Some(context.config.not_ready_seconds),
    }
}

/// Whether a rank failed that may have died of a fault: the others wait for it for ever, and each that fails as well costs its Job. It shortens
/// the grace and nothing else.
fn died_of_a_fault(context: PollContext<'_>, plan: &Plan) -> bool {
    let mut states = plan.states(context);
    faults::held_back(context).is_none()
        && states.any(|(rank, state)| {
            state == RankState::Failed && faults::held::may_have_ended(context, plan, rank)
        })
}

/// Whether any of its pods goes on as far as anybody knows.
fn has_living(context: PollContext<'_>, plan: &Plan) -> bool {
    let mut pods = plan.ranks.iter();
    pods.any(|rank| {
        let pod = context.index.pod_by_uid(&rank.pod);
        pod.is_some_and(|pod| !is_terminal(pod) && !is_deleting(pod))
    })
}

/// Whether it was found running and not let go by any controller: it is charged as it is, and left alone as long as any of its pods
/// lives.
pub(crate) fn is_as_found(context: PollContext<'_>, plan: &Plan) -> bool {
    plan.adopted
        && plan.ranks.iter().any(|rank| {
            let pod = context.index.pod_by_uid(&rank.pod);
            pod.is_some_and(|pod| stamp(pod) == 0)
        })
}

/// Whether pods wait that were made since, in place of its own.
fn has_successors(context: PollContext<'_>, plan: &Plan) -> bool {
    let formed = context.formed(&plan.key);
    formed.is_some_and(|formed| !formed.excess.is_empty())
}

/// That an administrator wants the Team's gangs ended, if so, and what that costs where more than a start is lost.
fn drained(context: PollContext<'_>, plan: &Plan, jobs: &[&Job]) -> Option<PendingReason> {
    let team = context.index.team(&plan.team)?;
    if team.spec.stop != Stop::HoldAndDrain || !has_living(context, plan) {
        return None;
    }
    let mut details = format!("Team {} says stop: HoldAndDrain", plan.team);
    let mut jobs = jobs.iter();
    if let Some(job) = jobs.find(|job| jobs::is_drained_queue(context.index, job)) {
        let name = job.metadata.name.as_deref().unwrap_or_default();
        details = format!(
            "{details}; Job {name} has no completions and a pod of it succeeded, so Kubernetes takes it for complete without \
             its other pods, whatever work is left"
        );
    }
    Some(PendingReason {
        reason: Reason::TeamStopped,
        details,
    })
}

impl Plan {
    /// The intent that evicts it, committed by a write of that sequence.
    pub(crate) fn to_eviction(
        &self,
        context: PollContext<'_>,
        cause: Reason,
        sequence: i64,
    ) -> Intent {
        Intent {
            sequence,
            leader_epoch: context.epoch,
            kind: IntentKind::Evict,
            namespace: self.key.namespace.clone(),
            name: self.key.name.clone(),
            gang_uid: self.gang_uid.clone(),
            attempt: self.attempt,
            cause: Some(cause),
            fault: self.fault_of(context, cause),
            digest: Some(self.digest()),
            nodes: self.nodes().cloned().collect(),
            team: self.team.clone(),
            team_generation: self.team_generation,
            charge: Charge::default(),
            pods: Vec::new(),
            gang_size: None,
            done_before: None,
            tier: None,
            plan: Vec::new(),
            level: None,
            domain: Vec::new(),
        }
    }

    /// The fault for which it is evicted, if that is why: what the decision found, since a gang is looked at after each change of what is seen, and before
    /// anything is committed.
    fn fault_of(&self, context: PollContext<'_>, cause: Reason) -> Option<EvictionFault> {
        if cause != Reason::DeviceFault {
            return None;
        }
        let gang = context.gang_of(self)?;
        faults::held::find(context, gang, self)?.record()
    }
}
