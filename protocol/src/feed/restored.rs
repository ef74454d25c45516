//! Preemptions that a former leader decided, as the Gangs say, and what namespaces used, as Queues say.
//!
//! Both sides are recorded: the gang that waits says since when something is kept for it and names the first of its victims
//! (`status.reservation`), and each victim says to whom it gives way (`status.preemption`), until what it held is proved released.
//! One Gang need not name thousands of victims by that. A crash between these writes loses nothing that counts: nobody is evicted before
//! both are seen ([`crate::admission::preempt::due`]).
//!
//! The engine is told once in a leadership, before it decides for the first time. Late or stale it does no harm: what it says of is
//! charged and placed anew, and its time is over ten minutes after the longest notice, whoever leads. Records name attempts, and none is told of
//! that is over: from the first decision on the engine itself says which attempts begin, and forgets what was recorded of earlier ones.

use std::collections::BTreeMap;

use muster_api::{
    Gang, PriorityTierSpec,
    gang::{PreemptionRight, Reservation},
};
use muster_engine::{self as engine, quota::PreemptionReason};

use muster_cluster::{index::Index, namespace_use};

use crate::{Mode, objects::key_of, poll_context::PollContext};

/// What the engine is to be told. In Observe nobody is made to go, so nothing is kept for anybody.
pub(crate) fn recorded(context: PollContext<'_>) -> Vec<engine::Reserved> {
    if context.config.mode == Mode::Observe {
        return Vec::new();
    }
    let statuses = || {
        let gangs = context.index.gangs();
        gangs.filter_map(|(_, gang)| Some((gang.metadata.uid.as_deref()?, gang.status.as_ref()?)))
    };
    let mut recorded: BTreeMap<&str, engine::Reserved> = BTreeMap::new();
    for (uid, status) in statuses() {
        let waits = status.admission.is_none() && status.finished_at.is_none();
        let Some(reservation) = status.reservation.as_ref().filter(|_| waits) else {
            continue;
        };
        let named = reservation.victims.iter();
        let named = named.filter(|victim| gives_way_still(context, &victim.uid, victim.attempt));
        let victims =
            named.filter_map(|victim| Some((victim.uid.as_str().into(), reason(victim.right)?)));
        let reserved = engine::Reserved {
            gang: uid.into(),
            flavor: reservation.flavor.as_str().into(),
            victims: victims.collect(),
            since: engine::Timestamp(reservation.since.0.as_second()),
            until: until(reservation),
        };
        recorded.insert(uid, reserved);
    }
    for (uid, status) in statuses() {
        let Some(notice) = &status.preemption else {
            continue;
        };
        if let Some(reserved) = recorded.get_mut(notice.preemptor_uid.as_str())
            && let Some(reason) = reason(notice.right)
            && gives_way_still(context, uid, notice.attempt)
        {
            reserved.victims.insert(uid.into(), reason);
        }
    }
    recorded.into_values().collect()
}

/// Until when something is kept, as it was recorded; not for longer than anybody would have kept it.
fn until(reservation: &Reservation) -> engine::Timestamp {
    const MOST_SECONDS: i64 =
        PriorityTierSpec::MOST_NOTICE_SECONDS + engine::MOST_SECONDS_AFTER_NOTICE;
    let most = reservation.since.0.as_second().saturating_add(MOST_SECONDS);
    engine::Timestamp(reservation.until.0.as_second().min(most))
}

/// What Queues say of what namespaces used. It is recorded with each sample and each other change of a Queue, so it lacks at most what
/// was admitted since; where it is lost, a namespace counts as having held for ever what it holds.
pub(crate) fn namespace_use(index: &Index) -> Vec<engine::NamespaceUse> {
    let recorded = index.queues().filter_map(|(key, queue)| {
        let recorded = queue.status.as_ref()?.namespace_use.as_ref()?;
        Some(namespace_use::read(&key.name, &key.namespace, recorded))
    });
    recorded.collect()
}

/// Whether a Gang says anything of a preemption that its next status is to go by once the engine has decided.
pub(crate) fn is_recorded(gang: &Gang) -> bool {
    let status = gang.status.as_ref();
    status.is_some_and(|status| status.reservation.is_some() || status.preemption.is_some())
}

/// Whether a victim has not begun another attempt since. If its Gang is gone, what it holds is on its way.
///
/// An attempt begins in the Ledger, and its Gang carries it later; what a former leader committed is seen before anything is decided.
fn gives_way_still(context: PollContext<'_>, uid: &str, attempt: i64) -> bool {
    let Some(gang) = context.index.gang_by_uid(uid) else {
        return true;
    };
    let intent = key_of(gang).and_then(|key| context.intent_of(&key));
    let is_later_committed =
        intent.is_some_and(|intent| intent.plan.gang_uid == uid && intent.plan.attempt > attempt);
    let status = gang.status.as_ref();
    !is_later_committed
        && status.is_none_or(|status| status.attempt == attempt || status.admission.is_none())
}

/// By what right one gang preempts another; none where no gang does.
fn reason(right: PreemptionRight) -> Option<PreemptionReason> {
    Some(match right {
        PreemptionRight::InTeam => PreemptionReason::InTeam,
        PreemptionRight::Reclaimed => PreemptionReason::Reclaimed,
        PreemptionRight::FairShare => PreemptionReason::FairShare,
        PreemptionRight::ReclaimedWhileBorrowing => PreemptionReason::ReclaimedWhileBorrowing,
        PreemptionRight::QuotaShrunk => return None,
    })
}
