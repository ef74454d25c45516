//! Names of Gang objects, and which Gang a label means now.

use muster_api::{Gang, keys};

use super::{Group, age_order, annotation, controller, is_active, uid};
use crate::{
    formed::{GangKey, has_ended},
    pod::ObservedPod,
    stable_suffix,
};

/// Longest name: that of a label value, so that the name can be one.
const MAX_NAME_LENGTH: usize = 63;

/// How names of gangs of one begin.
const SINGLE: &str = "pod-";

/// What is known about Gangs of one label.
pub(crate) struct Incarnations<'a> {
    /// Gang objects of that group, and those that the pods name, in the order of their keys.
    pub(crate) gangs: Vec<(&'a GangKey, &'a Gang)>,
    /// Finds any Gang object.
    pub(crate) find: &'a dyn GangFinder,
}

/// Finds Gang objects.
pub(crate) trait GangFinder {
    /// The Gang of that key.
    fn find(&self, key: &GangKey) -> Option<&Gang>;
}

/// The Gang that a group of pods means. `pods` are all pods of the group that exist.
///
/// A label may be used again: it means the Gang that is under way, and a new one once that has ended
/// or all its pods are gone.
pub(crate) fn gang_key(
    group: &Group,
    pods: &[&ObservedPod],
    incarnations: &Incarnations<'_>,
) -> GangKey {
    match group {
        Group::Job {
            namespace,
            name,
            uid,
        } => key(namespace, "job", name, uid),
        Group::Single {
            namespace,
            name,
            uid,
        } => key(namespace, "pod", name, uid),
        Group::Label { namespace, label } => under_way(namespace, pods, incarnations)
            .unwrap_or_else(|| next(namespace, label, pods, incarnations)),
    }
}

/// The Gang of the label that has not ended and still is that of these pods: the oldest, if several.
fn under_way(
    namespace: &str,
    pods: &[&ObservedPod],
    incarnations: &Incarnations<'_>,
) -> Option<GangKey> {
    let mut known: Vec<_> = incarnations
        .gangs
        .iter()
        .filter(|(_, gang)| !has_ended(gang) && is_theirs(gang, pods))
        .collect();
    known.sort_by_key(|(key, gang)| {
        let created = gang.metadata.creation_timestamp.as_ref();
        (created.map_or(i64::MIN, |time| time.0.as_second()), *key)
    });
    if let Some((key, _)) = known.first() {
        return Some((*key).clone());
    }
    // Its Gang was deleted while its pods live: it is made again under the name that they carry.
    let named = pods
        .iter()
        .filter(is_active)
        .filter_map(|pod| annotation(pod, keys::GANG_NAME));
    let lost = named
        .map(|name| GangKey::new(namespace, name))
        .filter(|key| incarnations.find.find(key).is_none());
    lost.min()
}

/// Whether these are the Gang's pods: it has not been admitted yet, or one of them was admitted with
/// it, or its owner made one of them.
fn is_theirs(gang: &Gang, pods: &[&ObservedPod]) -> bool {
    let Some(admission) = gang
        .status
        .as_ref()
        .and_then(|status| status.admission.as_ref())
    else {
        return true;
    };
    pods.iter().any(|pod| {
        let is_admitted = admission
            .pods
            .iter()
            .any(|admitted| admitted.uid == uid(pod));
        let is_owned = controller(pod).is_some_and(|owner| {
            gang.metadata
                .owner_references
                .iter()
                .flatten()
                .any(|of_gang| of_gang.uid == owner.uid)
        });
        is_admitted || is_owned
    })
}

/// A name that no ended Gang has: by the owner that all pods have in common, else by the oldest pod.
fn next(
    namespace: &str,
    label: &str,
    pods: &[&ObservedPod],
    incarnations: &Incarnations<'_>,
) -> GangKey {
    let mut oldest_first = pods.to_vec();
    oldest_first.sort_by_key(|&pod| (!is_active(pod), age_order(pod)));
    let owner = common_controller(pods);
    let mut names = owner
        .into_iter()
        .chain(oldest_first.iter().map(uid))
        // The label is part of what is told apart: `A` and `a` are written alike in a name.
        .map(|origin| key(namespace, "group", label, &format!("{label}/{origin}")));
    let first = names.next();
    let is_free = |key: &GangKey| {
        incarnations
            .find
            .find(key)
            .is_none_or(|gang| !has_ended(gang))
    };
    match first {
        Some(first) if is_free(&first) => first,
        // All ended: these are the pods of the ended Gang.
        Some(first) => names.find(is_free).unwrap_or(first),
        None => key(namespace, "group", label, label),
    }
}

/// Whether a Gang of that name is that of one pod, and is named after it.
pub fn is_named_after_pod(gang: &str) -> bool {
    gang.starts_with(SINGLE)
}

/// The group of a Gang that is named after one pod. Nobody else makes such names; which pod it was matters to nobody any more.
pub(crate) fn group_of_pods_gang(key: &GangKey) -> Option<Group> {
    let pod = key.name.strip_prefix(SINGLE)?;
    Some(Group::Single {
        namespace: key.namespace.clone(),
        name: pod.to_owned(),
        uid: String::new(),
    })
}

/// What the pods of another Gang were declared as, as far as the Gang alone shows it; for one whose pods
/// are gone, or whose Job is not known.
pub(crate) fn group_of_gang(key: &GangKey, gang: Option<&Gang>) -> Option<Group> {
    let namespace = key.namespace.clone();
    let label = gang?.spec.group.clone()?;
    Some(Group::Label { namespace, label })
}

/// UID of the owner that controls all of the pods.
fn common_controller<'a>(pods: &[&'a ObservedPod]) -> Option<&'a str> {
    let mut owners = pods
        .iter()
        .map(|&pod| controller(pod).map(|owner| owner.uid.as_str()));
    let first = owners.next()??;
    owners.all(|owner| owner == Some(first)).then_some(first)
}

fn key(namespace: &str, kind: &str, name: &str, origin: &str) -> GangKey {
    let mut text: String = format!("{kind}-{name}")
        .chars()
        .map(|c| c.to_ascii_lowercase())
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '.' {
                c
            } else {
                '-'
            }
        })
        .take(MAX_NAME_LENGTH - stable_suffix::LENGTH - 1)
        .collect();
    // A part of a DNS name may not end with either.
    text.truncate(text.trim_end_matches(['-', '.']).len());
    GangKey::new(namespace, format!("{text}-{}", stable_suffix::of(origin)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_to_63_and_told_apart_by_their_origin() {
        let long = "x".repeat(200);
        for (kind, name, origin) in [
            ("job", "train", "uid-1"),
            ("job", "train", "uid-2"),
            ("group", "Under_Score", "uid-1"),
            ("pod", long.as_str(), "uid-1"),
            (
                "pod",
                "ends.with.a.dot.................................................",
                "uid-1",
            ),
        ] {
            let key = key("ml", kind, name, origin);
            assert!(key.name.len() <= 63, "{key}");
            assert!(key.name.starts_with(kind), "{key}");
            assert!(
                !key.name.contains("..-") && !key.name.contains(".-") && !key.name.contains("--"),
                "{key}"
            );
            assert!(
                key.name
                    .chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.'),
                "{key}"
            );
        }
        assert_ne!(
            key("ml", "job", "train", "1"),
            key("ml", "job", "train", "2")
        );
    }

    #[test]
    fn a_name_never_changes_between_releases() {
        assert_eq!(key("ml", "job", "train", "5f8c").name, "job-train-7fkcz");
    }
}
