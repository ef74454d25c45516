//! Gangs that hold something: by which pods, and what preemption goes by.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    model::Running,
    names::{GangUid, PodUid, TeamName, Timestamp},
};

/// See the module. What was told and what is held come apart: either may come first.
#[derive(Clone, Debug, Default)]
pub(super) struct RunningGangs {
    told: BTreeMap<GangUid, Running>,
    /// The same gangs by Team.
    of_team: BTreeMap<TeamName, BTreeSet<GangUid>>,
    /// Of those, the ones that end; they are forgotten with the last of what they hold.
    ending: BTreeSet<GangUid>,
    pods: BTreeMap<GangUid, BTreeSet<PodUid>>,
    ends: BTreeMap<GangUid, Timestamp>,
}

impl RunningGangs {
    /// What was told of a gang, whoever may preempt it.
    pub(super) fn told(&self, gang: &GangUid) -> Option<&Running> {
        self.told.get(gang)
    }

    pub(super) fn set(&mut self, running: Running) {
        self.remove(&running.uid);
        let of_team = self.of_team.entry(running.team.clone()).or_default();
        of_team.insert(running.uid.clone());
        self.told.insert(running.uid.clone(), running);
    }

    /// The gangs of a Team of which anything was told.
    pub(super) fn told_of(&self, team: &TeamName) -> Option<&BTreeSet<GangUid>> {
        self.of_team.get(team)
    }

    /// A gang ends; whether that is news.
    pub(super) fn note_ending(&mut self, gang: &GangUid) -> bool {
        if self.is_released(gang) {
            self.remove(gang);
        }
        self.told.contains_key(gang) && self.ending.insert(gang.clone())
    }

    /// Whether a gang ends, whoever might have preempted it.
    pub(super) fn ends(&self, gang: &GangUid) -> bool {
        self.ending.contains(gang)
    }

    /// All that end and hold something still.
    pub(super) fn all_ending(&self) -> impl Iterator<Item = &GangUid> {
        self.ending.iter()
    }

    /// Whether a gang ends by itself that others might preempt.
    pub(super) fn is_ending(&self, gang: &GangUid) -> bool {
        self.ending.contains(gang) && self.get(gang).is_some()
    }

    pub(super) fn remove(&mut self, gang: &GangUid) {
        self.ending.remove(gang);
        let Some(told) = self.told.remove(gang) else {
            return;
        };
        if let Some(of_team) = self.of_team.get_mut(&told.team) {
            of_team.remove(gang);
            if of_team.is_empty() {
                self.of_team.remove(&told.team);
            }
        }
    }

    /// What was told of a gang that others may preempt.
    pub(super) fn get(&self, gang: &GangUid) -> Option<&Running> {
        self.told.get(gang).filter(|told| told.may_be_preempted)
    }

    /// A gang ends by then, or nobody knows when.
    pub(super) fn set_end(&mut self, gang: GangUid, at: Option<Timestamp>) {
        match at {
            Some(at) => self.ends.insert(gang, at),
            None => self.ends.remove(&gang),
        };
    }

    /// By when a gang ends, as was told.
    pub(super) fn end_of(&self, gang: &GangUid) -> Option<Timestamp> {
        self.ends.get(gang).copied()
    }

    /// The pods by which a gang holds something.
    pub(super) fn pods_of(&self, gang: &GangUid) -> impl Iterator<Item = &PodUid> {
        self.pods.get(gang).into_iter().flatten()
    }

    /// Whether a gang holds nothing.
    pub(super) fn is_released(&self, gang: &GangUid) -> bool {
        !self.pods.contains_key(gang)
    }

    pub(super) fn note_hold(&mut self, gang: &GangUid, pod: &PodUid) {
        let pods = self.pods.entry(gang.clone()).or_default();
        pods.insert(pod.clone());
    }

    pub(super) fn note_hold_gone(&mut self, gang: &GangUid, pod: &PodUid) {
        if let Some(pods) = self.pods.get_mut(gang) {
            pods.remove(pod);
            if pods.is_empty() {
                self.pods.remove(gang);
            }
        }
    }

    /// A gang holds nothing any more. Of one whose only pod is charged otherwise from now on that is not so: it ends still, if it did.
    pub(super) fn note_released(&mut self, gang: &GangUid) {
        if self.ending.contains(gang) {
            self.remove(gang);
        }
    }
}
