//! Pods that are being ended, since when, and what the store says of them and their nodes, read uncached, before one is deleted by force.
//!
//! Reads are few at a time. One that is not answered, or says something else than the watches, is repeated half a minute later.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    mem,
};

use k8s_openapi::api::core::v1::Pod;
use muster_api::Gang;
use muster_cluster::{
    formed::GangKey,
    object::{Kind, Object, ObjectKey},
    pod::PodFields,
};

use super::{consents, deleting};
use crate::{
    ApiRequest, Effect, EffectId, Machine, Now, Outcome,
    nodes::loss::{self, NodeState},
    objects::{is_deleting, is_terminal, uid},
};

/// Most objects that are read at a time.
const MOST_READS: usize = 16;

/// A pod that is being deleted.
#[derive(Debug)]
pub(super) struct Hanging {
    /// When its grace period is over.
    pub(super) ends_at: u64,
    /// When it was begun last to read it and its node.
    pub(super) asked_at: Option<u64>,
    pub(super) read: Read,
}

/// What was read of a pod and its node.
#[derive(Debug)]
pub(super) enum Read {
    /// Nothing yet, or in vain.
    Nothing,
    /// The pod is being read; or its node, and the pod was.
    UnderWay(Option<StoredPod>),
    /// The pod.
    Pod(StoredPod),
    /// The pod, and then its node.
    PodAndNode(StoredPod, NodeState),
}

/// A pod that is being deleted, as the store has it.
#[derive(Debug)]
pub(super) struct StoredPod {
    pub(super) resource_version: String,
    pub(super) owner_consents: bool,
}

/// A read under way.
#[derive(Debug)]
struct Question {
    key: GangKey,
    gang_uid: String,
    pod_uid: String,
    /// When the first of the two reads was begun.
    asked_at: u64,
}

/// Pods that are being deleted, and reads under way.
#[derive(Debug, Default)]
pub(crate) struct Forcing {
    /// By the UIDs of Gang and pod.
    pub(super) hanging: BTreeMap<String, BTreeMap<String, Hanging>>,
    under_way: BTreeMap<EffectId, Question>,
    /// Gangs of which something is to be read once another read is answered: a thousand nodes may be gone at once, and none of their gangs
    /// is looked at before its turn.
    waiting: BTreeSet<GangKey>,
}

impl Forcing {
    /// Notes which pods of a Gang are being deleted, each with the seconds that it was given.
    fn note(&mut self, gang_uid: &str, deleting: Vec<(String, u64)>, now: u64) {
        let mut before = self.hanging.remove(gang_uid).unwrap_or_default();
        let after: BTreeMap<String, Hanging> = deleting
            .into_iter()
            .map(|(pod, grace_seconds)| {
                let ends_at = now.saturating_add(grace_seconds);
                let hanging = match before.remove(&pod) {
                    // Whoever deletes it once more may shorten what it was given.
                    Some(known) => Hanging {
                        ends_at: known.ends_at.min(ends_at),
                        ..known
                    },
                    None => Hanging {
                        ends_at,
                        asked_at: None,
                        read: Read::Nothing,
                    },
                };
                (pod, hanging)
            })
            .collect();
        if !after.is_empty() {
            self.hanging.insert(gang_uid.to_owned(), after);
        }
    }

    /// A pod is being deleted by force: what was read of it says nothing any more about a second time.
    pub(crate) fn note_sent(&mut self, pod_uid: &str) {
        let mut gangs = self.hanging.values_mut();
        if let Some(hanging) = gangs.find_map(|pods| pods.get_mut(pod_uid)) {
            hanging.read = Read::Nothing;
        }
    }

    /// Whether so many more can be read at once.
    pub(super) fn has_room_for(&self, reads: usize) -> bool {
        self.under_way.len() + reads <= MOST_READS
    }

    /// UIDs of the Gangs of which pods are being deleted.
    pub(crate) fn gangs(&self) -> impl Iterator<Item = &String> {
        self.hanging.keys()
    }

    /// A Gang is gone.
    pub(crate) fn forget(&mut self, gang_uid: &str) {
        self.hanging.remove(gang_uid);
    }
}

/// What is to be read before a pod is deleted by force: the pod, or its node once the pod was read.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(super) pod_uid: String,
    pub(super) object: ObjectKey,
}

/// What the store says of a pod that is to be deleted by force; `None`: it is another one, or needs no force.
fn stored_pod(stored: &Pod, pod_uid: &str) -> Option<StoredPod> {
    let is_meant = stored.uid() == pod_uid && is_deleting(stored) && !is_terminal(stored);
    Some(StoredPod {
        resource_version: stored.metadata.resource_version.clone()?,
        owner_consents: consents(stored),
    })
    .filter(|_| is_meant)
}

impl Machine {
    /// Notes which pods of attempts of a Gang that are over are being ended.
    pub(crate) fn note_hanging(
        &mut self,
        key: &GangKey,
        gang: Option<&Gang>,
        epoch: i64,
        now: Now,
        wake: &Cell<Option<u64>>,
    ) {
        let Some(gang) = gang else { return };
        let context = self.context(epoch, now, wake);
        let deleting: Vec<(String, u64)> = deleting(context, key, gang)
            .map(|pod| (uid(pod).to_owned(), pod.ends_within_seconds().into()))
            .collect();
        let gang_uid = gang.metadata.uid.as_deref().unwrap_or_default();
        self.forcing.note(gang_uid, deleting, now.monotonic_seconds);
    }

    /// The read that says how a pod, or its node, is; `None` where too many are under way, and the gang waits for one of them.
    pub(crate) fn check_forced(&mut self, key: &GangKey, ask: Ask, now: Now) -> Option<Effect> {
        if !self.forcing.has_room_for(1) {
            self.forcing.waiting.insert(key.clone());
            return None;
        }
        let gang_uid = self.index.gang(key)?.metadata.uid.clone()?;
        let hanging = self.forcing.hanging.get_mut(&gang_uid)?;
        let hanging = hanging.get_mut(&ask.pod_uid)?;
        let pod = match mem::replace(&mut hanging.read, Read::Nothing) {
            Read::Pod(pod) if ask.object.kind == Kind::Node => Some(pod),
            _ => None,
        };
        let begun_before = hanging.asked_at.filter(|_| pod.is_some());
        let asked_at = begun_before.unwrap_or(now.monotonic_seconds);
        hanging.asked_at = Some(asked_at);
        hanging.read = Read::UnderWay(pod);
        let id = self.flights.number();
        let question = Question {
            key: key.clone(),
            gang_uid,
            pod_uid: ask.pod_uid,
            asked_at,
        };
        self.forcing.under_way.insert(id, question);
        Some(Effect::new(id, ApiRequest::ReadObject { key: ask.object }))
    }

    /// Takes the answer of such a read; whether it was one.
    pub(crate) fn take_force_check(&mut self, effect: EffectId, outcome: &Outcome) -> bool {
        let Some(question) = self.forcing.under_way.remove(&effect) else {
            return false;
        };
        self.agenda.gang(&question.key);
        for _ in self.forcing.under_way.len()..MOST_READS {
            let Some(next) = self.forcing.waiting.pop_first() else {
                break;
            };
            self.agenda.gang(&next);
        }
        let hanging = self.forcing.hanging.get_mut(&question.gang_uid);
        let hanging = hanging.and_then(|pods| pods.get_mut(&question.pod_uid));
        let Some(hanging) = hanging.filter(|it| it.asked_at == Some(question.asked_at)) else {
            return true;
        };
        let before = mem::replace(&mut hanging.read, Read::Nothing);
        hanging.read = match (before, outcome) {
            (Read::UnderWay(None), Outcome::Done(Some(Object::Pod(stored)))) => {
                stored_pod(stored, &question.pod_uid).map_or(Read::Nothing, Read::Pod)
            }
            (Read::UnderWay(Some(pod)), Outcome::Done(Some(Object::Node(stored)))) => {
                Read::PodAndNode(pod, loss::state_by_name(Some(stored.as_ref())))
            }
            (Read::UnderWay(Some(pod)), Outcome::NotFound) => {
                Read::PodAndNode(pod, NodeState::Gone)
            }
            _ => Read::Nothing,
        };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_from_the_first_sight_and_is_shortened_by_whoever_gives_less() {
        let mut forcing = Forcing::default();
        let mut ends_at = |deleting: &[(&str, u64)], now| {
            let deleting = deleting
                .iter()
                .map(|(pod, grace)| ((*pod).to_owned(), *grace));
            forcing.note("gang", deleting.collect(), now);
            let pods = forcing.hanging.get("gang")?;
            Some(pods.get("pod")?.ends_at)
        };
        assert_eq!(ends_at(&[("pod", 30)], 100), Some(130));
        assert_eq!(ends_at(&[("pod", 30), ("other", 30)], 110), Some(130));
        assert_eq!(ends_at(&[("pod", 5)], 110), Some(115), "deleted once more");
        assert_eq!(ends_at(&[("pod", 600)], 112), Some(115));
        assert_eq!(ends_at(&[], 120), None);
        assert_eq!(ends_at(&[("pod", 30)], 130), Some(160));
        assert_eq!(ends_at(&[("pod", u64::MAX)], 130), Some(160));
        assert!(forcing.gangs().eq(["gang"]));
        forcing.forget("gang");
        assert_eq!(forcing.gangs().count(), 0);
    }
}
