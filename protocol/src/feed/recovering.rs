//! Which gangs recover, as the engine is told.
//!
//! What the attempt held is read from the proposal that its Gang carries on ([`crate::outward::recovery`]), with what is known of its claims at that
//! moment. It is told once for each attempt: claims and pods go, and nothing that is known later says more.
//!
//! **A new leader may find that the next attempt has begun**, in two places:
//!
//! | what it finds | what it tells |
//! |---|---|
//! | the next attempt's proposal, in place of that of the ended one | that is what is kept: nobody has it yet, and it is no more than was held |
//! | an intent that admits the next attempt, which the Gang does not carry | nothing: what it holds it holds by the intent. That is taken back, and the Gang recovers from that attempt then ([`crate::admission::void`]) |

use muster_api::{Gang, TierPreemption};
use muster_cluster::formed::GangKey;
use muster_engine as engine;

use crate::{
    admission::record,
    feed::holds,
    objects::key_of,
    outward::{gang_status, recovery},
    poll_context::PollContext,
};

/// The Gang, and the attempt from which it recovers, if it does.
pub(crate) fn which(context: PollContext<'_>, gang: &Gang) -> Option<(engine::GangUid, i64)> {
    let recovery = recovery::of(context, gang)?;
    let uid = gang.metadata.uid.as_deref()?;
    let intent = key_of(gang).and_then(|key| context.intent_of(&key));
    let is_admitted = intent.is_some_and(|intent| {
        let plan = &intent.plan;
        intent.lost.is_none() && plan.gang_uid == uid && plan.attempt > recovery.attempt
    });
    (!is_admitted).then(|| (uid.into(), recovery.attempt))
}

/// What is to be kept for it. `None`: it does not say what its attempt held.
pub(crate) fn recovering(
    context: PollContext<'_>,
    key: &GangKey,
    gang: &Gang,
) -> Option<engine::Recovering> {
    let status = gang.status.as_ref()?;
    let recovery = recovery::of(context, gang)?;
    let plan = record::of_proposed_attempt(key, gang, recovery.attempt)
        .or_else(|| record::of_proposed_attempt(key, gang, recovery.attempt + 1))?;
    let formed = context.formed(key);
    let tier = |name: Option<&String>| Some(&context.index.tier(name?)?.spec);
    let own = tier(status.tier.as_ref());
    let when = formed.map(|formed| formed.preemptible.when);
    let when = when.or_else(|| own.map(|tier| tier.preemption));
    let admitted_by = tier(plan.tier.as_ref()).map(|tier| tier.preemption);
    let mut whens = when.into_iter().chain(admitted_by);
    let priority = formed.map(|formed| formed.priority);
    let priority = priority.or_else(|| own.map(|tier| tier.value));
    // By the clock that the engine goes by: the time of day may have been set since this leader began.
    let until = context
        .began
        .engine_time(recovery::over_at(context, recovery));
    let (first, last) = (recovery.since.0.as_second(), recovery.until.0.as_second());
    let since = engine::Timestamp(until.0.saturating_sub(last.saturating_sub(first)));
    let queued_at = status.queued_at.as_ref();
    let held = holds::of_plan(context, &plan);
    let left = gang_status::avoided_nodes(context, status);
    Some(engine::Recovering {
        gang: plan.gang_uid.as_str().into(),
        attempt: recovery.attempt,
        priority: priority.unwrap_or(0),
        queued_at: queued_at.map_or(since, |at| engine::Timestamp(at.0.as_second())),
        may_be_preempted: whens.any(|when| when != TierPreemption::Never),
        since,
        until,
        held: held.holds().cloned().collect(),
        left: left.map(|(node, _)| node.into()).collect(),
        domain: plan.domain,
    })
}
