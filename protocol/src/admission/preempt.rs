//! When an attempt that is to give way to another gang is evicted, or that is to go since its Team uses more than it may.
//!
//! The engine decides who gives way to whom, and who goes for a limit ([`Goes`]). Nothing is done to the attempt before its Gang says so (`status.preemption`): that is the
//! notice, which its pods are then told by an annotation ([`crate::outward::preemption`]). It changes nothing that is held,
//! so it is no intent. The intent to evict comes when the notice ends, or, for a tier that says `AfterCheckpoint`, once a pod of
//! the gang says that it wrote a checkpoint since ([`super::checkpoints`]).
//!
//! **Clocks**: the notice ends on the monotonic clock of whoever leads, and starts anew with each leader: a gang may get more
//! notice than it was told, never less. Whether a checkpoint is newer than the notice is told by the order in which its pod said both, and by no
//! clock: that of the workload may be hours from the leader's.
//!
//! **Takeover**: both sides say what was decided, the gang that waits and those that give way, and a new leader goes on with it
//! ([`crate::feed::restored`]). Nobody is evicted before both are seen, nor unless the engine wants it at the moment of the commit. So
//! whatever is lost between the two writes is lost while nothing is freed yet. A notice that the engine does not want for
//! [`UNWANTED_SECONDS`] is taken back: a gang that waits, and blinks, costs its victims no writes.
//!
//! **Who goes for a limit** is decided by what the engine knows of now, so nothing is recorded but the notice: a new leader's engine decides
//! it again, and whoever was told so already is chosen first and at once. The notice says for which of the two reasons it is, and its time
//! stands whichever it becomes; nobody is evicted for one while the Gang says the other. Two leaders: both write the Gang with its
//! resourceVersion as precondition, and the eviction is an intent of the Ledger, which only the one with the higher epoch commits. A limit
//! that is raised between the decision and the commit is seen by then or is not: what is committed is carried out once, and the gang
//! queues with its age. Twice or late an intent to evict concerns one attempt, which is over by then.
//!
//! **A tier that changes** during the notice changes nothing: the notice was given under the rules of then.

use muster_api::{
    Gang, Reason, TierPreemption,
    gang::{PreemptionNotice, PreemptionRight},
    keys,
};
use muster_cluster::{formed::PendingReason, pod};
use muster_engine as engine;

use crate::{admission::plan::Plan, injected_bug::InjectedBug, poll_context::PollContext};

/// How long a notice stands that nobody wants any more, in seconds.
const UNWANTED_SECONDS: u64 = 30;

/// For what an attempt is to go, as the engine has it now.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goes<'a> {
    /// Another gang has its place.
    For(engine::GivesWay<'a>),
    /// Its Team uses more than it may.
    OverQuota(&'a engine::OverQuota),
}

/// For what a Gang is to go, if it is.
pub(crate) fn goes<'a>(engine: &'a engine::State, gang_uid: &str) -> Option<Goes<'a>> {
    let uid = gang_uid.into();
    let gives_way = engine.gives_way_to(&uid).map(Goes::For);
    gives_way.or_else(|| engine.over_quota(&uid).map(Goes::OverQuota))
}

/// Whether an attempt that is to be evicted for that reason is not any more, as the engine has it now.
pub(crate) fn is_spared(context: PollContext<'_>, reason: Reason, gang_uid: &str) -> bool {
    match (reason, context.goes(gang_uid)) {
        (Reason::Preempted, goes) => !matches!(goes, Some(Goes::For(_))),
        (Reason::QuotaShrunk, goes) => !matches!(goes, Some(Goes::OverQuota(_))),
        _ => false,
    }
}

/// The notice of the attempt that a Gang carries.
pub(crate) fn notice<'a>(gang: &'a Gang, plan: &Plan) -> Option<&'a PreemptionNotice> {
    let notice = gang.status.as_ref()?.preemption.as_ref()?;
    (notice.attempt == plan.attempt).then_some(notice)
}

/// Whether the notice is to be taken back: its gang may stay.
pub(crate) fn is_void(context: PollContext<'_>, plan: &Plan) -> bool {
    let since = context.clocks.unwanted_since(&plan.gang_uid);
    since.is_some_and(|since| context.has_come(since + UNWANTED_SECONDS))
}

/// Why the attempt is to be evicted now, if the time has come.
pub(crate) fn due(context: PollContext<'_>, gang: &Gang, plan: &Plan) -> Option<PendingReason> {
    let notice = notice(gang, plan)?;
    let for_quota = notice.right == PreemptionRight::QuotaShrunk;
    let reason = match context.goes(&plan.gang_uid)? {
        Goes::For(gives_way) => {
            let preemptor = gives_way.preemptor_uid.as_str();
            let is_said = !for_quota && context.is_reservation_recorded(preemptor);
            is_said.then_some(Reason::Preempted)?
        }
        Goes::OverQuota(_) => for_quota.then_some(Reason::QuotaShrunk)?,
    };
    let formed = context.formed(&plan.key);
    let when = formed.map_or(TierPreemption::Immediate, |formed| formed.preemptible.when);
    let checkpoint = if context.bugs.has(InjectedBug::CheckpointByTimeOfDay) {
        let noticed_at = notice.noticed_at.0.as_second();
        checkpointed_at(context, plan).filter(|at| at.as_second() > noticed_at)
    } else {
        context.checkpoints.since_told(context.index, plan)
    };
    let checkpoint = checkpoint.filter(|_| when == TierPreemption::AfterCheckpoint);
    let seconds = notice.preempt_at.0.as_second() - notice.noticed_at.0.as_second();
    let seen = context.clocks.notice_seen_at(&plan.gang_uid)?;
    // Whole seconds: the one in which it was seen had begun before.
    let end = seen.saturating_add(u64::try_from(seconds).unwrap_or(0) + 1);
    let waited = match checkpoint {
        Some(at) => format!("; it wrote a checkpoint at {at}"),
        None if context.bugs.has(InjectedBug::NoticeIgnored) => String::new(),
        None if context.bugs.has(InjectedBug::NoticeByTimeOfDay) => {
            if context.now.wall < notice.preempt_at.0 {
                // So that nothing but the clock is wrong about it: it is looked at again in time.
                context.has_come(context.now.monotonic_seconds + 1);
                return None;
            }
            String::new()
        }
        None if !context.has_come(end) => return None,
        None if when == TierPreemption::AfterCheckpoint => {
            format!("; it wrote no checkpoint for {seconds} s")
        }
        None => String::new(),
    };
    Some(PendingReason {
        reason,
        details: format!("{}{waited}", notice.message),
    })
}

/// When any pod of the attempt wrote a checkpoint last, as it says itself, by a clock that nobody knows. The engine goes by it where of several gangs
/// one has to go: one that is ahead costs nobody but its gang, and one that is behind gains nothing, since its admission counts as well.
pub(crate) fn checkpointed_at(context: PollContext<'_>, plan: &Plan) -> Option<jiff::Timestamp> {
    let pods = plan.ranks.iter();
    let pods = pods.filter_map(|rank| context.index.pod_by_uid(&rank.pod));
    let said = pods.filter_map(|pod| {
        let at = pod::annotation(pod, keys::CHECKPOINTED_AT)?;
        at.parse::<jiff::Timestamp>().ok()
    });
    said.max()
}
