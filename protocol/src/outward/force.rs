//! Pods of attempts that are over and that do not die: they are deleted by force where that is safe, or borne by those whom it concerns, and
//! told of elsewhere (docs/adr/0042).
//!
//! **Which**: a pod that was let go for an attempt below its Gang's, is bound, is being deleted, and is still there `force_after_seconds` after the end of its
//! own grace period. Whether it may be forced is the engine's to decide ([`muster_engine::recovery::may_force`]), by what has become of its
//! node and who consents. On a node that is Ready nothing is, ever. While recovery only observes, or its circuit breaker is open, it is told
//! what would be done; so many nodes that are silent at once that it must be an outage are waited for.
//!
//! **Nothing on hearsay** (S18). The pod is read uncached, then its node: both reads begin after the time has come, and the node's is begun last,
//! since a node that comes back is what matters. What they say has to be what the watches show, and not older than [`FRESH_SECONDS`].
//! Without an answer nothing is done.
//!
//! **What it releases: nothing.** It takes an object out of the API server. Permits go by their proof as ever: the driver's answer, or a
//! machine that is off or gone. What is charged only as long as the pod is there, since no driver answers for it, is forced by a fence
//! alone.
//!
//! **Who else writes**: the pod's owner, its kubelet, the node life-cycle controller, the pod garbage collector, users. The deletion names UID and
//! resourceVersion of the pod as it was judged, so one that anybody has written since is judged again; and one that waits for its turn for longer than
//! [`FRESH_SECONDS`] is not sent ([`ApiRequest::expires_after_seconds`]). **Twice**: the second finds no such pod.
//! **Late**: it arrives for the pod as it was judged, or conflicts; a kubelet that is back writes the pod's status before long, and ends the pod itself in any
//! case. What lies between is what owner and administrator consented to, or whoever set the fence said is off. **Never answered**: it is not
//! sent again as it is, but judged anew. A leader that was superseded forces only pods of attempts below one that it saw: they are over whoever
//! leads. **Crash**: nothing is stored; the next leader counts anew, and so forces later, never sooner.
//!
//! **Time** is the leader's monotonic clock, from when it saw the deletion first.

mod check;

use muster_api::{Gang, Reason, keys};
use muster_cluster::{
    formed::GangKey,
    pod::{ObservedPod, PodFields},
};
use muster_engine::recovery::{ForceNode, ForceWord, HangingPod, may_force};

use crate::{
    ApiRequest, Mode,
    effect::Refusable,
    faults,
    injected_bug::InjectedBug,
    nodes::loss::{self, NodeState},
    objects::{bound_node, is_deleting, node_object, pod_object, uid},
    outward::{events, evict, release},
    poll_context::{PollContext, attempt},
};
pub(crate) use check::Forcing;
use check::{Ask, Hanging, Read};

/// How old what was read may be when it is decided that a pod is deleted, and for how long that may wait to be sent, in seconds.
pub(crate) const FRESH_SECONDS: u64 = 10;
/// Seconds between two times that a pod and its node are read.
const AGAIN_SECONDS: u64 = 30;

/// A pod that did not die in time.
struct Late<'a> {
    pod: &'a ObservedPod,
    node: &'a str,
    /// What has become of its node, as it is seen.
    state: NodeState,
    hanging: &'a Hanging,
}

impl Late<'_> {
    /// Whether what was read of it is new enough to be gone by.
    fn is_fresh(&self, context: PollContext<'_>) -> bool {
        let asked_at = self.hanging.asked_at;
        asked_at.is_some_and(|at| context.now.monotonic_seconds <= at + FRESH_SECONDS)
    }

    /// What may be done to it by what is seen, as far as that does not hang on the moment.
    fn as_seen(&self, context: PollContext<'_>) -> HangingPod {
        self.facts(context, self.state, consents(self.pod))
    }

    fn facts(
        &self,
        context: PollContext<'_>,
        state: NodeState,
        owner_consents: bool,
    ) -> HangingPod {
        let lasts = || loss::is_not_ready_for_long(context, self.node);
        let node = match state {
            NodeState::Ready if context.bugs.has(InjectedBug::ForcedWhileReady) => {
                ForceNode::OutOfService
            }
            NodeState::Ready => ForceNode::Ready,
            NodeState::NotReady => ForceNode::NotReady { lasts: lasts() },
            NodeState::OutOfService => ForceNode::OutOfService,
            // Where nobody knows since when, since no object of its permits is left, Kubernetes' own garbage collector takes the pod.
            NodeState::Gone => ForceNode::Gone { lasts: lasts() },
        };
        HangingPod {
            policy: context.config.recovery.force_deletion,
            node,
            owner_consents: owner_consents || context.bugs.has(InjectedBug::ConsentNotAsked),
            is_answered_for: self.is_answered_for(context),
        }
    }

    /// Whether a driver of ours has to give back all that it is permitted on its node. What it holds without a permit, since somebody deleted
    /// the object, nothing but the pod tells of.
    fn is_answered_for(&self, context: PollContext<'_>) -> bool {
        let devices = context.index.node_devices(self.node);
        let permits = devices.into_iter().flat_map(|it| &it.spec.permits);
        let mut own = permits
            .filter(|permit| permit.pod_uid == uid(self.pod))
            .peekable();
        own.peek().is_some() && own.all(|permit| !release::is_nothing_to_our_driver(permit))
    }

    /// Whether it may be deleted by force now by what is seen.
    fn may_be_forced(&self, context: PollContext<'_>) -> bool {
        // Proof is proof however many nodes it is of.
        let is_outage = self.state == NodeState::NotReady && context.health.is_in_outage(self.node);
        may_force(self.as_seen(context)).is_ok()
            && faults::held_back(context).is_none()
            && !is_outage
    }

    /// How long it did not die.
    fn told(&self, context: PollContext<'_>) -> String {
        format!(
            "pod {} on node {} did not die within {} s after its grace period of {} s",
            self.pod.name(),
            self.node,
            context.config.recovery.force_after_seconds,
            self.pod.ends_within_seconds()
        )
    }
}

fn consents(pod: &impl PodFields) -> bool {
    pod.annotation(keys::FORCE_DELETION) == Some(keys::FORCE_DELETION_CONSENTED)
}

/// Pods of attempts of a Gang that are over whose kubelets are ending them.
fn deleting<'a>(
    context: PollContext<'a>,
    key: &GangKey,
    gang: &Gang,
) -> impl Iterator<Item = &'a ObservedPod> {
    // In its first attempt it has none, and that is where most gangs are.
    let gang = Some(gang).filter(|gang| attempt(gang) > 1);
    let left = gang.map(|gang| evict::left(context, key, gang));
    let left = left.into_iter().flatten();
    left.filter(|pod| {
        // One that was given no time is kept by finalizers alone.
        is_deleting(pod) && bound_node(pod).is_some() && pod.ends_within_seconds() > 0
    })
}

fn late<'a>(context: PollContext<'a>, key: &GangKey, gang: &Gang) -> Vec<Late<'a>> {
    let gang_uid = gang.metadata.uid.as_deref().unwrap_or_default();
    let is_committed = context.intent_of(key).is_some() && !context.views.is_settled(key);
    let hanging = context.forcing.hanging.get(gang_uid);
    let Some(hanging) = hanging.filter(|_| context.config.mode == Mode::Enforce && !is_committed)
    else {
        return Vec::new();
    };
    let late = deleting(context, key, gang).filter_map(|pod| {
        let hanging = hanging.get(uid(pod))?;
        let after = context.config.recovery.force_after_seconds;
        if !context.has_come(hanging.ends_at.saturating_add(after)) {
            return None;
        }
        let node = bound_node(pod)?;
        Some(Late {
            pod,
            node,
            state: loss::state_by_name(context.index.node(node).map(AsRef::as_ref)),
            hanging,
        })
    });
    late.collect()
}

/// That a pod of an attempt that is over does not die, and what follows, for people.
pub(crate) fn told(context: PollContext<'_>, key: &GangKey, gang: &Gang) -> Option<String> {
    let late = late(context, key, gang);
    let first = late.first()?;
    let follows = match may_force(first.as_seen(context)) {
        Err(spared) => spared.text().to_owned(),
        Ok(word) => {
            let refused = context
                .flights
                .refused(&pod_object(first.pod), Refusable::ForcedPodDeletion);
            // Whether it is one is not asked: whoever waits is not looked at when an outage begins.
            let unless = if word == ForceWord::Consent {
                ", but not while many nodes are silent at once"
            } else {
                ""
            };
            let word = word.text();
            match (faults::held_back(context), refused) {
                (Some(held_back), _) => {
                    let why = held_back.text();
                    format!("{word}: it would be deleted by force, but {why}")
                }
                (None, Some((answer, _))) => {
                    format!("{word}, and the API server refuses to delete it by force: {answer}")
                }
                (None, None) => format!("{word}: it is deleted by force{unless}"),
            }
        }
    };
    let others = late.len() - 1;
    let others = if others > 0 {
        format!(" (nor did {others} others)")
    } else {
        String::new()
    };
    Some(format!("{}{others}; {follows}", first.told(context)))
}

/// What is to be read now.
pub(crate) fn to_read(context: PollContext<'_>, key: &GangKey, gang: &Gang) -> Vec<Ask> {
    let late = late(context, key, gang);
    let asks: Vec<Ask> = late.iter().filter_map(|late| ask(context, late)).collect();
    if !context.forcing.has_room_for(asks.len()) {
        // They come with answers; or by then, if those before them went otherwise.
        context.has_come(context.now.monotonic_seconds + AGAIN_SECONDS);
    }
    asks
}

fn ask(context: PollContext<'_>, late: &Late<'_>) -> Option<Ask> {
    if !late.may_be_forced(context) {
        return None;
    }
    let object = match &late.hanging.read {
        Read::UnderWay(_) => return None,
        Read::Pod(_) if late.is_fresh(context) => node_object(late.node),
        Read::Nothing | Read::Pod(_) | Read::PodAndNode(..) => {
            let asked_at = late.hanging.asked_at;
            let again_at = asked_at.map_or(0, |at| at + AGAIN_SECONDS);
            context.has_come(again_at).then(|| pod_object(late.pod))?
        }
    };
    Some(Ask {
        pod_uid: uid(late.pod).to_owned(),
        object,
    })
}

/// Pods that are deleted by force now, each with what is told of that.
pub(crate) fn writes(context: PollContext<'_>, key: &GangKey, gang: &Gang) -> Vec<ApiRequest> {
    let mut writes = Vec::new();
    for late in late(context, key, gang) {
        let Read::PodAndNode(stored, state) = &late.hanging.read else {
            continue;
        };
        let is_as_seen = *state == late.state
            && late.pod.resource_version() == Some(stored.resource_version.as_str());
        if !is_as_seen || !late.is_fresh(context) || !late.may_be_forced(context) {
            continue;
        }
        let Ok(word) = may_force(late.facts(context, *state, stored.owner_consents)) else {
            continue;
        };
        let object = pod_object(late.pod);
        let refused = context
            .flights
            .refused(&object, Refusable::ForcedPodDeletion);
        let is_refused = refused.is_some_and(|(_, until)| !context.has_come(until));
        if is_refused || context.busy(&object) {
            continue;
        }
        writes.push(ApiRequest::ForceDeletePod {
            key: object,
            uid: uid(late.pod).to_owned(),
            resource_version: stored.resource_version.clone(),
        });
        let text = format!(
            "{}; {}: it is deleted by force, and what it held stays charged until that is proved to be released",
            late.told(context),
            word.text()
        );
        let reason = Reason::ForcedDeletion;
        let notes = events::of_gang_and_pod(key, gang, late.pod, reason, &text);
        writes.extend(notes.map(ApiRequest::PublishEvent));
    }
    writes
}
