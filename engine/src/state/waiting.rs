//! The gangs that wait, and who of them names which pod and claim.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    backfill::Looked,
    ids::{ClassId, GangId, ShapeId, Slab, TeamId},
};
use crate::{
    model::Gang,
    names::{ClaimUid, GangUid, NamespaceName, NodeName, PodUid, Timestamp},
    placement::Demand,
    queue::Place,
};

/// A gang that was told as waiting.
#[derive(Clone, Debug)]
pub(super) struct WaitingGang {
    pub(super) gang: Gang,
    pub(super) demand: Demand,
    pub(super) shape: ShapeId,
    pub(super) team: TeamId,
    pub(super) namespace: NamespaceName,
    pub(super) place: Place,
    /// Where it is judged with others; `None` while it is not judged.
    pub(super) class: Option<ClassId>,
    /// Since when it lacked a place, and not quota, while it was judged before.
    pub(super) lacked_place_since: Option<Timestamp>,
    /// How often a place was looked for, and when again, for whom it was judged with before.
    pub(super) looked: Looked,
    /// How many of its pods hold something: with any, it is admitted, whoever says that it waits.
    pub(super) pods_that_hold: usize,
    /// How many of the claims that it names are held, whatever is free.
    pub(super) held_claims: HeldClaims,
    /// How many pods of an earlier attempt hold something.
    pub(super) earlier_pods: usize,
    /// Others give way to it, and what they free is kept for it, or what an attempt of it held is, since it recovers: it is not judged
    /// with others.
    pub(super) is_reserved_for: bool,
    /// It is judged for what it was charged ahead, which was within its Team's nominal quota then: whoever of the Team was admitted
    /// since borrows, not it. So those cannot keep it from what others gave way for.
    pub(super) was_charged_ahead: bool,
    /// It is judged for what an attempt of it held, since it recovers.
    pub(super) has_again: Option<HasAgain>,
    /// No commit can carry it.
    pub(super) too_large: bool,
}

/// How a gang is judged for what an attempt of it held: in no line, so that it is not held up by those before it where the order is strict.
#[derive(Clone, Debug)]
pub(super) struct HasAgain {
    /// Where its place is kept. It may be planned there though another gang, which waits for it to leave, has a place kept there as well:
    /// would it wait for that one in turn, both waited until the time is over.
    pub(super) nodes: BTreeSet<NodeName>,
}

/// How many of the claims that a gang names are held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HeldClaims {
    /// By other gangs.
    pub(super) by_others: usize,
    /// By an earlier attempt of the gang itself.
    pub(super) by_itself: usize,
}

impl HeldClaims {
    /// Whether a claim stands in the way of the gang.
    fn obstacle(self) -> Option<Obstacle> {
        if self.by_others > 0 {
            return Some(Obstacle::Shared);
        }
        (self.by_itself > 0).then_some(Obstacle::OwnRelease)
    }
}

impl WaitingGang {
    /// Whether it waits for the same as it was told before, whatever its pods are called and for how long they run.
    pub(super) fn asks_as_before(&self, before: &Self) -> bool {
        self.gang.team == before.gang.team
            && self.gang.topology.required == before.gang.topology.required
            && self.demand.asks_as(&before.demand)
    }

    /// Whether its Team may borrow for it.
    pub(super) fn may_borrow(&self) -> bool {
        self.gang.may_borrow || self.was_charged_ahead
    }

    /// What stands in its way, whatever is free: a claim by name, or what it holds itself since an earlier attempt.
    pub(super) fn obstacle(&self) -> Option<Obstacle> {
        let earlier = (self.earlier_pods > 0).then_some(Obstacle::OwnRelease);
        self.held_claims.obstacle().or(earlier)
    }
}

/// What keeps a gang from being judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// Another gang holds a claim that it names.
    Shared,
    /// An earlier attempt of the gang itself holds a claim that it names, or something else.
    OwnRelease,
}

impl Obstacle {
    /// Whether those behind it wait for it where the order is strict.
    pub(super) fn holds_up(self) -> bool {
        self == Self::OwnRelease
    }
}

/// All gangs that were told as waiting.
#[derive(Clone, Debug, Default)]
pub(super) struct WaitingRoom {
    gangs: Slab<GangId, WaitingGang>,
    by_uid: BTreeMap<GangUid, GangId>,
    by_pod: BTreeMap<PodUid, GangId>,
    by_claim: BTreeMap<ClaimUid, BTreeSet<GangId>>,
}

impl WaitingRoom {
    pub(super) fn id(&self, uid: &GangUid) -> Option<GangId> {
        self.by_uid.get(uid).copied()
    }

    pub(super) fn get(&self, id: GangId) -> Option<&WaitingGang> {
        self.gangs.get(id)
    }

    pub(super) fn get_mut(&mut self, id: GangId) -> Option<&mut WaitingGang> {
        self.gangs.get_mut(id)
    }

    /// Takes in a gang that is not known.
    pub(super) fn enter(&mut self, waiting: WaitingGang) -> GangId {
        let uid = waiting.gang.uid.clone();
        let id = self.gangs.insert(waiting);
        if let Some(waiting) = self.gangs.get(id) {
            for pod in &waiting.gang.pods {
                self.by_pod.insert(pod.uid.clone(), id);
                for claim in &pod.claims {
                    let gangs = self.by_claim.entry(claim.uid.clone()).or_default();
                    gangs.insert(id);
                }
            }
        }
        self.by_uid.insert(uid, id);
        id
    }

    /// Lets a gang go.
    pub(super) fn leave(&mut self, id: GangId) -> Option<WaitingGang> {
        let waiting = self.gangs.remove(id)?;
        self.by_uid.remove(&waiting.gang.uid);
        for pod in &waiting.gang.pods {
            if self.by_pod.get(&pod.uid) == Some(&id) {
                self.by_pod.remove(&pod.uid);
            }
            for claim in &pod.claims {
                if let Some(gangs) = self.by_claim.get_mut(&claim.uid) {
                    gangs.remove(&id);
                    if gangs.is_empty() {
                        self.by_claim.remove(&claim.uid);
                    }
                }
            }
        }
        Some(waiting)
    }

    /// The gang that a pod belongs to.
    pub(super) fn of_pod(&self, pod: &PodUid) -> Option<GangId> {
        self.by_pod.get(pod).copied()
    }

    /// The gangs that name a claim.
    pub(super) fn naming(&self, claim: &ClaimUid) -> impl Iterator<Item = GangId> + '_ {
        self.by_claim.get(claim).into_iter().flatten().copied()
    }
}
