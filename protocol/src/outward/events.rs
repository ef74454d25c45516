//! One Event per change of reason, on the Gang, its owner and up to eight of its pods.
//!
//! What was told is remembered in memory only: a new leader takes what it finds as told, so a change that
//! happened during the takeover may be silent. It stands in the Gang's conditions all the same.

use std::collections::{BTreeMap, BTreeSet};

use muster_api::{Gang, GangPhase, GangStatus, Reason, conditions as condition_types};

use crate::{
    ApiRequest, effect::EventNote, outward::conditions::truncate, poll_context::PollContext,
};
use muster_cluster::formed::GangKey;

/// Most pods of a gang that are told.
const PODS_TOLD: usize = 8;
/// Longest note; the API takes 1,024 bytes.
const NOTE_BYTES: usize = 1_024;

/// What was told already.
#[derive(Debug, Default)]
pub(crate) struct EventTracker {
    reasons: BTreeMap<String, Reason>,
    excess: BTreeSet<String>,
    begun: bool,
}

impl EventTracker {
    /// Events that are owed. The first call takes what it finds as told.
    pub(crate) fn owed(&mut self, picture: PollContext<'_>) -> Vec<ApiRequest> {
        let mut notes = Vec::new();
        let before = std::mem::take(&mut self.reasons);
        for (key, gang) in picture.index.gangs() {
            let (Some(uid), Some((reason, note))) = (
                gang.metadata.uid.clone(),
                gang.status.as_ref().and_then(news),
            ) else {
                continue;
            };
            if self.begun && before.get(&uid) != Some(&reason) {
                notes.extend(to_all(picture, key, gang, reason, &note));
            }
            self.reasons.insert(uid, reason);
        }
        let excess_before = std::mem::take(&mut self.excess);
        for formed in picture.index.formed_gangs() {
            for pod in &formed.excess {
                if self.begun && !excess_before.contains(&pod.uid) {
                    let text = format!(
                        "gang {} has its {} pods; this one waits",
                        formed.key, formed.spec.size
                    );
                    notes.push(note_of_pod(
                        &formed.key.namespace,
                        &pod.name,
                        &pod.uid,
                        Reason::ExcessPod,
                        &text,
                    ));
                }
                self.excess.insert(pod.uid.clone());
            }
        }
        self.begun = true;
        notes.into_iter().map(ApiRequest::PublishEvent).collect()
    }
}

/// The reason that a status stands for, and its text.
fn news(status: &GangStatus) -> Option<(Reason, String)> {
    let condition = |type_: &str, value: &str| {
        status
            .conditions
            .iter()
            .find(|condition| condition.type_ == type_ && condition.status == value)
    };
    if status.phase == GangPhase::Finished {
        return Some((Reason::Completed, "the gang finished".to_owned()));
    }
    if status.phase == GangPhase::Failed {
        let message = condition(condition_types::FINISHED, "False")
            .map_or_else(String::new, |condition| condition.message.clone());
        return Some((Reason::PodFailed, message));
    }
    if let Some(degraded) = condition(condition_types::DEGRADED, "True") {
        let reason = [
            Reason::StartTimeout,
            Reason::PlaceLost,
            Reason::MembersChanged,
        ]
        .into_iter()
        .find(|reason| reason.as_str() == degraded.reason)?;
        return Some((reason, degraded.message.clone()));
    }
    if let Some(admission) = &status.admission {
        let reason = match (status.phase, admission.adopted) {
            (_, true) => Reason::Adopted,
            (GangPhase::Running, _) => Reason::Running,
            _ => Reason::Admitted,
        };
        let message = condition(condition_types::ADMITTED, "True")
            .map_or_else(String::new, |condition| condition.message.clone());
        return Some((reason, message));
    }
    let queue = status.queue.as_ref()?;
    Some((queue.reason, queue.details.clone()))
}

fn is_warning(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::PodFailed
            | Reason::StartTimeout
            | Reason::PlaceLost
            | Reason::MembersChanged
            | Reason::Bypass
            | Reason::ExceedsMaxQuota
            | Reason::PlacementImpossible
            | Reason::RequestNotUnderstood
            | Reason::GangTooLarge
    )
}

fn to_all(
    picture: PollContext<'_>,
    key: &GangKey,
    gang: &Gang,
    reason: Reason,
    text: &str,
) -> Vec<EventNote> {
    let mut notes = vec![note(
        (
            &format!("{}/{}", muster_api::GROUP, muster_api::VERSION),
            "Gang",
        ),
        &key.namespace,
        &key.name,
        gang.metadata.uid.as_deref().unwrap_or_default(),
        reason,
        text,
    )];
    for owner in gang.metadata.owner_references.iter().flatten().take(1) {
        notes.push(note(
            (&owner.api_version, &owner.kind),
            &key.namespace,
            &owner.name,
            &owner.uid,
            reason,
            text,
        ));
    }
    for pod in picture.index.pods_of_gang(key).into_iter().take(PODS_TOLD) {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        notes.push(note_of_pod(&key.namespace, name, uid, reason, text));
    }
    notes
}

fn note_of_pod(namespace: &str, name: &str, uid: &str, reason: Reason, text: &str) -> EventNote {
    note(("v1", "Pod"), namespace, name, uid, reason, text)
}

fn note(
    (api_version, kind): (&str, &str),
    namespace: &str,
    name: &str,
    uid: &str,
    reason: Reason,
    text: &str,
) -> EventNote {
    let mut note = text.to_owned();
    truncate(&mut note, NOTE_BYTES);
    EventNote {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        warning: is_warning(reason),
        reason,
        note,
    }
}
