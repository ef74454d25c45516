//! What gangs are told of preemptions: those that are to give way, with their pods, and those to which others do. Whoever goes since its
//! Team uses more than it may is told in the same way.
//!
//! The Gang's status first: it decides ([`crate::admission::preempt`]). Its pods follow it; the annotation is for the workload,
//! which reads it through the downward API, and nobody decides by it. Each pod is told by one patch, which is repeated until it
//! shows what the Gang says; told twice or late it does no harm.
//!
//! Both sides are written by the leader alone, each conditional on its own resourceVersion, in either order. A write that is not answered
//! is settled by reading, and repeated until both say what the engine has.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use muster_api::{
    Gang, GangStatus,
    gang::{PreemptionNotice, PreemptionRight, Reservation, ReservationVictim},
    keys,
};
use muster_cluster::pod;
use muster_engine::{self as engine, quota::PreemptionReason};

use crate::{
    ApiRequest, Mode,
    admission::{
        plan::Plan,
        preempt::{self, Goes},
        stage::View,
    },
    effect::Refusable,
    objects::{is_deleting, is_gated, is_terminal, key_of, pod_object},
    outward::patch,
    poll_context::{PollContext, attempt},
};

/// Writes into the status that the attempt is to give way, or that it is not any more.
pub(crate) fn tell(context: PollContext<'_>, gang: &Gang, plan: &Plan, status: &mut GangStatus) {
    let view = context.views.of(&plan.key);
    let goes = context.goes(&plan.gang_uid);
    let goes = goes.filter(|_| view.is_some_and(View::is_under_way));
    status.preemption = preempt::notice(gang, plan)
        .filter(|_| !preempt::is_void(context, plan))
        .cloned();
    let Some(goes) = goes else { return };
    let Some(notice) = new_notice(context, plan, &goes) else {
        return;
    };
    status.preemption = Some(match status.preemption.take() {
        // What was too much when it was told stands.
        Some(known)
            if known.right == PreemptionRight::QuotaShrunk && known.right == notice.right =>
        {
            known
        }
        // Its time stands, whoever it is for by now.
        Some(known) => PreemptionNotice {
            noticed_at: known.noticed_at,
            preempt_at: known.preempt_at,
            ..notice
        },
        None => notice,
    });
}

/// Writes into the status of a gang that holds nothing what is kept for it; and whether another one still waits for what it held.
pub(crate) fn tell_waiting(context: PollContext<'_>, gang: &Gang, status: &mut GangStatus) {
    // Until then what a former leader recorded stands.
    if !context.has_decided {
        return;
    }
    let uid = gang.metadata.uid.as_deref().unwrap_or_default();
    if context.gives_way(uid).is_none() {
        status.preemption = None;
    }
    let kept = context.engine.kept_for(&uid.into());
    let waits = key_of(gang).and_then(|key| context.views.of(&key)?.reason.as_ref());
    status.reservation = match (kept, status.reservation.take()) {
        (Some(kept), Some(known)) if says(context, &known, &kept) => Some(known),
        (Some(kept), _) => reservation(context, kept),
        // Between the decision and the commit it waits for no reason.
        (None, known) => known.filter(|_| waits.is_none()),
    };
}

/// Whether what a Gang says of its victims is of what is kept for it now, and not of something that was given up. Two may have been
/// decided in the same second. Victims leave one by one, and are not taken off; nobody joins. Beyond the names each victim's own notice says
/// for whom it is.
pub(crate) fn says(context: PollContext<'_>, known: &Reservation, kept: &engine::Kept<'_>) -> bool {
    let victims = usize::try_from(known.victim_count).unwrap_or(0);
    let last = known.victims.last().map(|victim| victim.uid.as_str());
    let are_all_named = known.victims.len() < Reservation::VICTIMS_NAMED;
    let is_known = |uid: &engine::GangUid| {
        let uid = uid.as_str();
        // They are named in the order of their UIDs; whose Gang is gone is not named.
        let is_beyond = !are_all_named && last.is_some_and(|last| uid > last);
        is_beyond
            || known.victims.iter().any(|victim| victim.uid == uid)
            || context.index.gang_by_uid(uid).is_none()
    };
    known.since.0.as_second() == kept.since.0
        && known.until.0.as_second() == kept.until.0
        && known.flavor == kept.flavor.as_str()
        && kept.victims.len() <= victims
        && kept.victims.keys().all(is_known)
}

fn reservation(context: PollContext<'_>, kept: engine::Kept<'_>) -> Option<Reservation> {
    let victims = kept.victims.iter().take(Reservation::VICTIMS_NAMED);
    let victims = victims.filter_map(|(uid, reason)| {
        let gang = context.index.gang_by_uid(uid.as_str())?;
        Some(ReservationVictim {
            gang: key_of(gang)?.to_string(),
            uid: uid.to_string(),
            attempt: held_attempt(gang),
            right: right(*reason),
        })
    });
    Some(Reservation {
        flavor: kept.flavor.to_string(),
        victim_count: i32::try_from(kept.victims.len()).unwrap_or(i32::MAX),
        victims: victims.collect(),
        since: Time(Timestamp::from_second(kept.since.0).ok()?),
        until: Time(Timestamp::from_second(kept.until.0).ok()?),
    })
}

/// The attempt that holds what a Gang is to free. One that is over was followed by the next.
fn held_attempt(gang: &Gang) -> i64 {
    let status = gang.status.as_ref();
    let is_carried = status.is_some_and(|status| status.admission.is_some());
    attempt(gang) - i64::from(!is_carried)
}

fn right(reason: PreemptionReason) -> PreemptionRight {
    match reason {
        PreemptionReason::InTeam => PreemptionRight::InTeam,
        PreemptionReason::Reclaimed => PreemptionRight::Reclaimed,
        PreemptionReason::FairShare => PreemptionRight::FairShare,
        PreemptionReason::ReclaimedWhileBorrowing => PreemptionRight::ReclaimedWhileBorrowing,
    }
}

fn new_notice(context: PollContext<'_>, plan: &Plan, goes: &Goes<'_>) -> Option<PreemptionNotice> {
    let formed = context.formed(&plan.key);
    let seconds = formed.map_or(0, |formed| formed.preemptible.notice_seconds);
    // The API server keeps whole seconds.
    let now = Timestamp::from_second(context.now.wall.as_second()).ok()?;
    let (preemptor, preemptor_uid, right, message) = match goes {
        Goes::For(gives_way) => (
            gives_way.preemptor.to_owned(),
            gives_way.preemptor_uid.to_string(),
            right(gives_way.reason),
            format!(
                "it gives way to {}, {}",
                gives_way.preemptor, gives_way.reason
            ),
        ),
        Goes::OverQuota(over) => (
            String::new(),
            String::new(),
            PreemptionRight::QuotaShrunk,
            format!("it is to go, since {over}"),
        ),
    };
    Some(PreemptionNotice {
        attempt: plan.attempt,
        preemptor,
        preemptor_uid,
        right,
        message,
        noticed_at: Time(now),
        preempt_at: Time(now + SignedDuration::from_secs(seconds)),
    })
}

/// What pods of the attempt that a Gang carries are to be told.
pub(crate) fn writes(context: PollContext<'_>, gang: &Gang, plan: &Plan) -> Vec<ApiRequest> {
    // In Observe nobody is made to go; what pods were told before is taken back.
    let notice = preempt::notice(gang, plan).filter(|_| context.config.mode == Mode::Enforce);
    let preempt_at = notice.map(|notice| notice.preempt_at.0.to_string());
    let pods = plan.ranks.iter();
    let pods = pods.filter_map(|rank| context.index.pod_by_uid(&rank.pod));
    // What the API server does not let be written is not tried for a while: it is for the workload alone.
    let is_refused = |pod| {
        let refused = context.flights.refused(&pod_object(pod), Refusable::Pod);
        refused.is_some_and(|(_, until)| !context.has_come(until))
    };
    let untold = pods.filter(|pod| {
        let is_ending = is_gated(*pod) || is_terminal(*pod) || is_deleting(*pod);
        let is_told = pod::annotation(*pod, keys::PREEMPT_AT) == preempt_at.as_deref();
        !is_ending && !is_told && !is_refused(pod)
    });
    untold
        .map(|pod| patch::preempt_at(pod, preempt_at.as_deref()))
        .collect()
}
