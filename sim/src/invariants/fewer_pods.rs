//! S4 of gangs that may start with fewer pods than they have: which of them, and how many, an attempt has.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use muster_api::{Gang, gang::Admission, keys};

use super::Violation;
use crate::{
    api_server::{ApiServer, has_ended},
    fixtures,
    owners::is_gated,
};

/// The sizes of the last attempt of each Gang, by its UID: how many pods were admitted, and of how many.
#[derive(Debug, Default)]
pub(super) struct FewerPods {
    last: BTreeMap<String, (i64, usize, usize)>,
}

/// What happened that is worth to be counted.
pub(super) type Happened = Vec<&'static str>;

impl FewerPods {
    /// Judges an admission that is stored for the first time. What was found running is charged as it is.
    pub(super) fn check(
        &mut self,
        api: &ApiServer,
        gang: &Gang,
        admission: &Admission,
    ) -> Result<Happened, Violation> {
        let mut happened = Happened::new();
        let name = gang.metadata.name.as_deref().unwrap_or_default();
        let uid = gang.metadata.uid.clone().unwrap_or_default();
        let attempt = gang.status.as_ref().map_or(0, |status| status.attempt);
        let admitted = admission.pods.len();
        let broken = |what: String| Err(Violation::new("S4", format!("{name}: {what}")));
        let size = admission
            .gang_size
            .and_then(|all| usize::try_from(all).ok());
        let now = (attempt, admitted, size.unwrap_or(admitted));
        if let Some((before, part, all)) = self.last.insert(uid, now)
            && before < attempt
            && part < all
        {
            if now.2 < all {
                happened.push("the rest of a gang admitted in a later attempt");
            } else if admitted != part {
                happened.push("admitted again with another number of pods");
            }
        }
        let Some(all) = size else {
            return Ok(happened);
        };
        if admitted >= all {
            return broken(format!("{admitted} pods are admitted as fewer than {all}"));
        }
        let least = least_of(api, gang);
        if least.is_none_or(|least| admitted < least.min(all)) && !admission.adopted {
            return broken(format!(
                "{admitted} pods of {all} are admitted, and it starts with {least:?} at the least"
            ));
        }
        if let Some((index, other)) = passed_over(api, gang, admission) {
            return broken(format!(
                "its pod {other} of index {index} is passed over for one of a higher index"
            ));
        }
        happened.push(if admission.adopted {
            "adopted with fewer pods than all"
        } else {
            "admitted with fewer pods than all"
        });
        Ok(happened)
    }

    /// Judges what a pod that is let go is told of its attempt.
    pub(super) fn check_told(pod: &Pod, admitted: usize) -> Result<(), Violation> {
        let annotations = pod.metadata.annotations.as_ref();
        let told = annotations.and_then(|annotations| annotations.get(keys::ADMITTED_COUNT));
        if told.is_none_or(|told| *told == admitted.to_string()) {
            return Ok(());
        }
        let what = format!(
            "{:?} is told that it is one of {told:?}, and its attempt has {admitted} pods",
            pod.metadata.name
        );
        Err(Violation::new("S4", what))
    }
}

/// With how many pods the Job of a gang lets it start.
fn least_of(api: &ApiServer, gang: &Gang) -> Option<usize> {
    let owner = gang.metadata.owner_references.as_ref()?.first()?;
    let namespace = gang.metadata.namespace.as_deref()?;
    let job = api.get::<Job>(namespace, &owner.name);
    let Some(job) = job.filter(|job| job.metadata.uid.as_ref() == Some(&owner.uid)) else {
        // It was deleted since.
        return Some(1);
    };
    let annotations = job.metadata.annotations.as_ref()?;
    annotations.get(keys::MIN_COUNT)?.parse().ok()
}

/// A pod that waits though it is of a lower index than one that is admitted, and was there before the last of these: its index and name.
fn passed_over(api: &ApiServer, gang: &Gang, admission: &Admission) -> Option<(usize, String)> {
    let owner = gang.metadata.owner_references.as_ref()?.first()?;
    let of_job = api.list::<Pod>().filter(|pod| {
        let mut owners = pod.metadata.owner_references.iter().flatten();
        owners.any(|it| it.uid == owner.uid)
    });
    let uids: BTreeSet<&str> = admission.pods.iter().map(|pod| pod.uid.as_str()).collect();
    let is_admitted = |pod: &&Pod| {
        let uid = pod.metadata.uid.as_deref();
        uid.is_some_and(|uid| uids.contains(uid))
    };
    let (admitted, others): (Vec<&Pod>, Vec<&Pod>) = of_job.partition(is_admitted);
    if admitted.len() < uids.len() {
        return None;
    }
    let highest = admitted
        .iter()
        .filter_map(|pod| fixtures::index_of(pod))
        .max()?;
    let last_made = admitted.iter().filter_map(|pod| number_of(pod)).max()?;
    others.into_iter().find_map(|pod| {
        let waits = is_gated(pod) && !has_ended(pod) && pod.metadata.deletion_timestamp.is_none();
        let was_there = number_of(pod).is_some_and(|number| number < last_made);
        let index = fixtures::index_of(pod).filter(|index| *index < highest)?;
        (waits && was_there).then(|| (index, pod.metadata.name.clone().unwrap_or_default()))
    })
}

/// The how manieth object it is that was made: whoever saw a later pod saw it, too.
fn number_of(pod: &Pod) -> Option<u64> {
    let (_, number) = pod.metadata.uid.as_deref()?.rsplit_once('-')?;
    number.parse().ok()
}
