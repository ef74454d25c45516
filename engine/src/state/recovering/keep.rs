//! What is kept for one gang, and how much that is.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::turns::Judged;
use crate::{
    amount::{Amount, FlavorResource, Resource},
    model::{HeldClaim, Hold, PodResources, Recovering, Running},
    names::{ClaimUid, NodeName, PodUid, TeamName, Timestamp},
    queue::Place,
};

/// What is kept for one gang.
#[derive(Clone, Debug)]
pub(super) struct Keep {
    /// As it was told, without what was held.
    pub(super) told: Recovering,
    pub(super) until: Timestamp,
    /// What each pod of the attempt held, as it was told.
    pub(super) parts: BTreeMap<PodUid, Hold>,
    /// Pods that hold theirs still.
    pub(super) held: BTreeSet<PodUid>,
    /// Pods that held nothing any more when it was told, and for which nobody looked yet.
    pub(super) missing: BTreeSet<PodUid>,
    /// What is kept, by the pod that held it.
    pub(super) kept: BTreeMap<PodUid, Arc<Hold>>,
    /// The same of a gang whose admission was taken back, and for which nobody looked yet.
    pub(super) to_keep_again: BTreeMap<PodUid, Arc<Hold>>,
    /// How many pods that name a claim have not released it yet: it is charged once.
    pub(super) claims: BTreeMap<ClaimUid, usize>,
    /// What came of judging it last, in vain.
    pub(super) judged: Option<Judged>,
}

impl Keep {
    pub(super) fn of(mut told: Recovering) -> Self {
        let parts = std::mem::take(&mut told.held).into_iter();
        let parts: BTreeMap<PodUid, Hold> = parts.map(|hold| (hold.pod.clone(), hold)).collect();
        let mut claims: BTreeMap<ClaimUid, usize> = BTreeMap::new();
        for claim in parts.values().flat_map(|part| &part.claims) {
            *claims.entry(claim.uid.clone()).or_default() += 1;
        }
        Self {
            until: told.until,
            told,
            parts,
            held: BTreeSet::new(),
            missing: BTreeSet::new(),
            kept: BTreeMap::new(),
            to_keep_again: BTreeMap::new(),
            claims,
            judged: None,
        }
    }

    pub(super) fn team(&self) -> Option<&TeamName> {
        self.parts.values().next().map(|part| &part.team)
    }

    /// Where the gang stands among those that recover: who comes last gives up first.
    pub(super) fn place(&self) -> Place {
        let told = &self.told;
        Place::new(told.priority, told.queued_at, told.gang.clone())
    }

    /// The nodes on which a place is kept.
    pub(super) fn nodes(&self) -> BTreeSet<NodeName> {
        let placed = self.kept.values().filter(|hold| has_place(hold));
        placed.map(|hold| hold.node.clone()).collect()
    }

    /// `namespace/name` of the gang.
    pub(super) fn gang_name(&self) -> Option<&str> {
        let part = self.parts.values().next();
        part.map(|part| part.gang_name.as_str())
    }

    /// Whether its attempt held as much of each resource.
    pub(super) fn held_as_much(&self, asked: &BTreeMap<Resource, i128>) -> bool {
        let held = sum_by_resource(self.parts.values());
        let mut asked = asked.iter();
        asked.all(|(resource, amount)| *amount <= held.get(resource).copied().unwrap_or(0))
    }

    /// The gang as if it ran: by this others may preempt it.
    pub(super) fn running(&self) -> Option<Running> {
        Some(Running {
            uid: self.told.gang.clone(),
            team: self.team()?.clone(),
            priority: self.told.priority,
            queued_at: self.told.queued_at,
            admitted_at: self.told.since,
            checkpointed_at: None,
            is_made_again: true,
            protected_until: None,
            ending_since: None,
            notice_seconds: 0,
            may_be_preempted: self.told.may_be_preempted,
            is_told_over_quota: false,
        })
    }
}

/// What a hold is charged, claim by claim.
fn charges_of(hold: &Hold) -> impl Iterator<Item = (FlavorResource, i128)> {
    let claims = hold.claims.iter().flat_map(|claim: &HeldClaim| {
        let of = |resource| FlavorResource {
            flavor: claim.flavor.clone(),
            resource,
        };
        [
            (of(Resource::Gpus), claim.gpus),
            (of(Resource::Vram), claim.vram),
        ]
    });
    let besides = hold.charged.iter().map(|it| (it.of.clone(), it.amount));
    let charged = claims.chain(besides);
    charged
        .filter(|(_, amount)| *amount > Amount::ZERO)
        .map(|(of, amount)| (of, i128::from(amount.0)))
}

/// What holds are charged, by Flavor and resource.
pub(super) fn sum_of<'a>(holds: impl Iterator<Item = &'a Hold>) -> BTreeMap<FlavorResource, i128> {
    let mut sums: BTreeMap<FlavorResource, i128> = BTreeMap::new();
    for (of, amount) in holds.flat_map(charges_of) {
        *sums.entry(of).or_default() += amount;
    }
    sums
}

/// What holds are charged in all, each claim once, whatever Flavors that is of.
pub(super) fn sum_by_resource<'a>(
    holds: impl Iterator<Item = &'a Hold>,
) -> BTreeMap<Resource, i128> {
    let mut sums: BTreeMap<Resource, i128> = BTreeMap::new();
    let mut seen: BTreeSet<&ClaimUid> = BTreeSet::new();
    for hold in holds {
        let claims = hold.claims.iter();
        let claims = claims.filter(|claim| seen.insert(&claim.uid));
        let claims =
            claims.flat_map(|claim| [(Resource::Gpus, claim.gpus), (Resource::Vram, claim.vram)]);
        let besides = hold.charged.iter();
        let besides = besides.map(|it| (it.of.resource.clone(), it.amount));
        for (resource, amount) in claims.chain(besides) {
            *sums.entry(resource).or_default() += i128::from(amount.0);
        }
    }
    sums
}

/// Whether it is known where something is kept.
pub(super) fn has_place(hold: &Hold) -> bool {
    !hold.node.as_str().is_empty()
}

/// What is kept is quota alone.
pub(super) fn take_place(hold: &mut Hold) {
    hold.node = "".into();
    hold.resources = PodResources::default();
    for claim in &mut hold.claims {
        claim.request = None;
        claim.devices = Some(Vec::new());
    }
}
