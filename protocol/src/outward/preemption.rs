//! What a gang that is to give way is told, and its pods.
//!
//! The Gang's status first: it decides ([`crate::admission::preempt`]). Its pods follow it; the annotation is for the workload,
//! which reads it through the downward API, and nobody decides by it. Each pod is told by one patch, which is repeated until it
//! shows what the Gang says; told twice or late it does no harm.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use muster_api::{Gang, GangStatus, gang::PreemptionNotice, keys};
use muster_cluster::pod;

use crate::{
    ApiRequest, Mode,
    admission::{plan::Plan, preempt, stage::View},
    effect::Refusable,
    objects::{is_deleting, is_gated, is_terminal, pod_object},
    outward::patch,
    poll_context::PollContext,
};

/// Writes into the status that the attempt is to give way, or that it is not any more.
pub(crate) fn tell(context: PollContext<'_>, gang: &Gang, plan: &Plan, status: &mut GangStatus) {
    let view = context.views.of(&plan.key);
    let gives_way = context.gives_way(&plan.gang_uid);
    let gives_way = gives_way.filter(|_| view.is_some_and(View::is_under_way));
    let says = gives_way.map(|it| {
        let message = format!("it gives way to {}, {}", it.preemptor, it.reason);
        (it.preemptor.to_owned(), message)
    });
    status.preemption = preempt::notice(gang, plan)
        .filter(|_| !preempt::is_void(context, plan))
        .cloned();
    match (&mut status.preemption, says) {
        // Its time stands, whoever it is for by now.
        (Some(notice), Some(says)) => (notice.preemptor, notice.message) = says,
        (None, Some(says)) => status.preemption = new_notice(context, plan, says),
        (_, None) => {}
    }
}

fn new_notice(
    context: PollContext<'_>,
    plan: &Plan,
    (preemptor, message): (String, String),
) -> Option<PreemptionNotice> {
    let formed = context.formed(&plan.key);
    let seconds = formed.map_or(0, |formed| formed.preemptible.notice_seconds);
    // The API server keeps whole seconds.
    let now = Timestamp::from_second(context.now.wall.as_second()).ok()?;
    Some(PreemptionNotice {
        attempt: plan.attempt,
        preemptor,
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
