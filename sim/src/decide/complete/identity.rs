//! UIDs, generations and creation times.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use muster_cluster::object::ObjectKey;

use super::Completed;
use crate::api_server::metadata_mut;

/// The time if no object names one: any, but always the same.
const UNTIMED_SECONDS: i64 = 1_790_000_000;

/// The latest creation time that an object names.
pub(super) fn latest(completed: &Completed<'_>) -> Timestamp {
    completed
        .objects
        .values()
        .filter_map(|object| object.metadata().creation_timestamp.as_ref())
        .map(|time| time.0)
        .max()
        .unwrap_or_else(|| Timestamp::from_second(UNTIMED_SECONDS).unwrap_or_default())
}

/// What others refer to by a UID and has none itself gets that one: a Job, say, whose pods were written by a cluster.
pub(super) fn adopt_referred_uids(completed: &mut Completed<'_>) {
    let mut referred: BTreeMap<(String, String, String), String> = BTreeMap::new();
    for object in completed.objects.values() {
        let metadata = object.metadata();
        for owner in metadata.owner_references.iter().flatten() {
            let namespace = metadata.namespace.clone().unwrap_or_default();
            referred
                .entry((owner.kind.clone(), namespace, owner.name.clone()))
                .or_insert_with(|| owner.uid.clone());
        }
    }
    for (key, object) in &mut completed.objects {
        let metadata = metadata_mut(object);
        let path = (
            format!("{:?}", key.kind),
            key.namespace.clone(),
            key.name.clone(),
        );
        if metadata.uid.is_none()
            && let Some(uid) = referred.get(&path)
        {
            metadata.uid = Some(uid.clone());
        }
    }
}

/// Fills in what is missing of each object's identity.
pub(super) fn fill(completed: &mut Completed<'_>, now: Timestamp) {
    for (key, object) in &mut completed.objects {
        let metadata = metadata_mut(object);
        metadata.uid.get_or_insert_with(|| uid(key));
        metadata.generation.get_or_insert(1);
        metadata.creation_timestamp.get_or_insert(Time(now));
    }
}

/// A UID that is made up: the object's own path.
pub(super) fn uid(key: &ObjectKey) -> String {
    format!("{:?}/{}/{}", key.kind, key.namespace, key.name).to_lowercase()
}
