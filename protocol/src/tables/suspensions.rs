//! Jobs that Muster suspended, by the gang that was evicted.

use std::collections::{BTreeMap, BTreeSet};

use muster_cluster::{formed::GangKey, index::NamespacedName};

/// Jobs that say that Muster suspended them.
#[derive(Debug, Default)]
pub(crate) struct Suspensions {
    of_job: BTreeMap<NamespacedName, GangKey>,
    of_gang: BTreeMap<GangKey, BTreeSet<NamespacedName>>,
    none: BTreeSet<NamespacedName>,
}

impl Suspensions {
    /// Says for which gang a Job is suspended, if it is; returns what was said before.
    pub(crate) fn set(&mut self, job: &NamespacedName, gang: Option<GangKey>) -> Option<GangKey> {
        let before = self.of_job.remove(job);
        if let Some(before) = &before
            && let Some(jobs) = self.of_gang.get_mut(before)
        {
            jobs.remove(job);
            if jobs.is_empty() {
                self.of_gang.remove(before);
            }
        }
        if let Some(gang) = gang {
            let jobs = self.of_gang.entry(gang.clone()).or_default();
            jobs.insert(job.clone());
            self.of_job.insert(job.clone(), gang);
        }
        before
    }

    /// The Jobs that are suspended for a gang.
    pub(crate) fn of(&self, gang: &GangKey) -> &BTreeSet<NamespacedName> {
        self.of_gang.get(gang).unwrap_or(&self.none)
    }

    /// The gangs for which Jobs are suspended.
    pub(crate) fn gangs(&self) -> impl Iterator<Item = &GangKey> {
        self.of_gang.keys()
    }

    /// All of them.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = &NamespacedName> {
        self.of_job.keys()
    }
}
