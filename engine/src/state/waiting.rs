//! The gangs that wait, their order, and who of them names which pod and claim.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    model::Gang,
    names::{ClaimUid, GangUid, PodUid, TeamName},
    placement::{Demand, Signature},
    queue::Queues,
};

/// A gang that was told as waiting.
#[derive(Clone, Debug)]
pub(super) struct WaitingGang {
    pub(super) gang: Gang,
    pub(super) demand: Demand,
    pub(super) signature: Signature,
    /// How many of its pods hold something: with any, it is admitted, whoever says that it waits.
    pods_that_hold: usize,
}

/// All gangs that were told as waiting.
#[derive(Clone, Debug, Default)]
pub(super) struct WaitingRoom {
    gangs: BTreeMap<GangUid, WaitingGang>,
    queues: Queues,
    by_pod: BTreeMap<PodUid, GangUid>,
    by_claim: BTreeMap<ClaimUid, BTreeSet<GangUid>>,
}

impl WaitingRoom {
    pub(super) fn get(&self, uid: &GangUid) -> Option<&WaitingGang> {
        self.gangs.get(uid)
    }

    /// The Teams with gangs that wait.
    pub(super) fn teams(&self) -> impl Iterator<Item = &TeamName> {
        self.queues.teams()
    }

    /// The gangs of a Team that wait for admission, first to be served first.
    pub(super) fn queued<'a>(&'a self, team: &TeamName) -> impl Iterator<Item = &'a WaitingGang> {
        self.queues
            .of(team)
            .filter_map(|place| self.gangs.get(&place.gang))
            .filter(|waiting| waiting.pods_that_hold == 0)
    }

    /// Takes a gang in, in the place of what was known of it.
    pub(super) fn enter(&mut self, gang: Gang, holds: impl Fn(&PodUid) -> bool) {
        self.leave(&gang.uid);
        self.queues.enter(&gang);
        for pod in &gang.pods {
            self.by_pod.insert(pod.uid.clone(), gang.uid.clone());
            for claim in &pod.claims {
                let gangs = self.by_claim.entry(claim.uid.clone()).or_default();
                gangs.insert(gang.uid.clone());
            }
        }
        let demand = Demand::new(&gang);
        let waiting = WaitingGang {
            signature: demand.signature(&gang.topology),
            demand,
            pods_that_hold: gang.pods.iter().filter(|pod| holds(&pod.uid)).count(),
            gang,
        };
        self.gangs.insert(waiting.gang.uid.clone(), waiting);
    }

    /// Lets a gang go; its Team, if it was there.
    pub(super) fn leave(&mut self, uid: &GangUid) -> Option<TeamName> {
        let WaitingGang { gang, .. } = self.gangs.remove(uid)?;
        self.queues.leave(&gang);
        for pod in &gang.pods {
            if self.by_pod.get(&pod.uid) == Some(uid) {
                self.by_pod.remove(&pod.uid);
            }
            for claim in &pod.claims {
                if let Some(gangs) = self.by_claim.get_mut(&claim.uid) {
                    gangs.remove(uid);
                    if gangs.is_empty() {
                        self.by_claim.remove(&claim.uid);
                    }
                }
            }
        }
        Some(gang.team)
    }

    /// A pod holds something from now on, or nothing any more; the gang whose pod it is.
    pub(super) fn pod_holds(&mut self, pod: &PodUid, holds: bool) -> Option<&Gang> {
        let waiting = self.gangs.get_mut(self.by_pod.get(pod)?)?;
        waiting.pods_that_hold = if holds {
            waiting.pods_that_hold + 1
        } else {
            waiting.pods_that_hold.saturating_sub(1)
        };
        Some(&waiting.gang)
    }

    /// The Teams of the gangs that name a claim.
    pub(super) fn naming(&self, claim: &ClaimUid) -> impl Iterator<Item = &TeamName> {
        let gangs = self.by_claim.get(claim).into_iter().flatten();
        gangs.filter_map(|uid| Some(&self.gangs.get(uid)?.gang.team))
    }
}
