//! What a gang is charged, and each of its pods.
//!
//! A gang's charge is the set of its claims, each once, by UID; what is charged besides claims is a sum
//! over its pods. A permit carries the part of its pod, so that it can be charged after Gang and pod are
//! gone.

use std::collections::{BTreeMap, BTreeSet};

use muster_api::{Charge, ClaimsCharge, Permit, ResourceCharge};
use muster_cluster::quantity::resource;
use muster_engine as engine;

/// What a claim costs.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClaimCost {
    /// The Flavor that is charged; empty where none is known.
    pub(crate) flavor: String,
    /// Thousandths of a GPU.
    pub(crate) gpus_milli: i64,
    /// Bytes of device memory.
    pub(crate) vram_bytes: i64,
}

impl ClaimCost {
    /// What each claim of a group costs.
    pub(crate) fn of(group: &ClaimsCharge) -> Self {
        Self {
            flavor: group.flavor.clone(),
            gpus_milli: group.gpus_milli,
            vram_bytes: group.vram_bytes,
        }
    }
}

/// A charge that is being added up. Claims that cost the same stand together in it.
#[derive(Debug, Default)]
pub(crate) struct ChargeSum {
    claims: BTreeMap<ClaimCost, BTreeSet<String>>,
    /// By Flavor and resource.
    resources: BTreeMap<(String, String), i64>,
}

impl ChargeSum {
    /// Adds a claim, by its UID. Twice is once.
    pub(crate) fn add_claim(&mut self, cost: ClaimCost, claim: &str) {
        self.claims
            .entry(cost)
            .or_default()
            .insert(claim.to_owned());
    }

    /// Adds what one pod is charged besides its claims.
    pub(crate) fn add_resource(&mut self, flavor: &str, resource: &str, amount: i64) {
        let of = (flavor.to_owned(), resource.to_owned());
        let sum = self.resources.entry(of).or_default();
        *sum = sum.saturating_add(amount);
    }

    /// The charge, in order.
    pub(crate) fn into_charge(self) -> Charge {
        let claims = self.claims.into_iter();
        let claims = claims.map(|(cost, uids)| ClaimsCharge {
            flavor: cost.flavor,
            gpus_milli: cost.gpus_milli,
            vram_bytes: cost.vram_bytes,
            uids: uids.into_iter().collect(),
        });
        let resources = self.resources.into_iter();
        let resources = resources.map(|((flavor, resource), amount)| ResourceCharge {
            flavor,
            resource,
            amount,
        });
        Charge {
            claims: claims.collect(),
            resources: resources.collect(),
        }
    }
}

/// Groups what the engine charges a gang's pods.
pub(crate) fn of_admission(pods: &[engine::AdmittedPod]) -> Charge {
    let mut sum = ChargeSum::default();
    for pod in pods {
        for claim in &pod.claims {
            let cost = ClaimCost {
                flavor: claim.flavor.to_string(),
                gpus_milli: claim.gpus.0,
                vram_bytes: claim.vram.0,
            };
            sum.add_claim(cost, claim.uid.as_str());
        }
        for charge in &pod.charged {
            let of = &charge.of;
            sum.add_resource(
                &of.flavor.to_string(),
                &of.resource.to_string(),
                charge.amount.0,
            );
        }
    }
    sum.into_charge()
}

/// The part of one rank: its claims, and an even share of what is charged besides. Shares of all ranks
/// add up to the whole exactly.
pub(crate) fn of_rank(whole: &Charge, claims: &[String], rank: usize, ranks: usize) -> Charge {
    Charge {
        claims: whole
            .claims
            .iter()
            .filter_map(|group| {
                let uids: Vec<String> = group
                    .uids
                    .iter()
                    .filter(|uid| claims.contains(uid))
                    .cloned()
                    .collect();
                (!uids.is_empty()).then(|| ClaimsCharge {
                    uids,
                    ..group.clone()
                })
            })
            .collect(),
        resources: resources_of_rank(whole, rank, ranks),
    }
}

/// The even share of one rank in what is charged besides claims.
pub(crate) fn resources_of_rank(whole: &Charge, rank: usize, ranks: usize) -> Vec<ResourceCharge> {
    let parts = whole.resources.iter().map(|part| ResourceCharge {
        amount: share(part.amount, rank, ranks),
        ..part.clone()
    });
    parts.collect()
}

fn share(amount: i64, rank: usize, ranks: usize) -> i64 {
    let ranks = i64::try_from(ranks.max(1)).unwrap_or(i64::MAX);
    let rank = i64::try_from(rank).unwrap_or(i64::MAX);
    amount / ranks + i64::from(rank < amount % ranks)
}

/// What is charged, as the engine's holds tell it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Charged {
    /// Its claims.
    pub(crate) claims: Vec<engine::HeldClaim>,
    /// What is charged besides.
    pub(crate) resources: Vec<engine::ResourceCharge>,
}

/// Reads a charge.
pub(crate) fn read(charge: &Charge) -> Charged {
    let claims = charge.claims.iter().flat_map(|group| {
        group.uids.iter().map(|uid| engine::HeldClaim {
            uid: uid.as_str().into(),
            flavor: group.flavor.as_str().into(),
            gpus: engine::Amount(group.gpus_milli),
            vram: engine::Amount(group.vram_bytes),
            request: None,
            devices: None,
        })
    });
    Charged {
        claims: claims.collect(),
        resources: read_resources(&charge.resources),
    }
}

/// The claims that a permit names and charges to nobody: that they are held there its node's driver alone says.
pub(crate) fn uncharged(permit: &Permit) -> impl Iterator<Item = &String> {
    permit.claim_uids.iter().filter(move |uid| {
        let mut groups = permit.charge.claims.iter();
        !groups.any(|group| group.uids.contains(uid))
    })
}

/// Reads what is charged besides claims.
pub(crate) fn read_resources(parts: &[ResourceCharge]) -> Vec<engine::ResourceCharge> {
    let parts = parts.iter().map(|part| {
        let flavor = part.flavor.as_str().into();
        let amount = engine::Amount(part.amount);
        engine::ResourceCharge::new(flavor, resource(&part.resource), amount)
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_of_all_ranks_add_up_to_the_whole() {
        for (amount, ranks) in [(10, 3), (0, 4), (7, 7), (2, 5), (i64::MAX, 3)] {
            let sum: i64 = (0..ranks).map(|rank| share(amount, rank, ranks)).sum();
            assert_eq!(sum, amount, "{amount} over {ranks}");
        }
    }

    #[test]
    fn a_rank_is_charged_its_own_claims_only() {
        let whole = Charge {
            claims: vec![ClaimsCharge {
                flavor: "h100".into(),
                gpus_milli: 8_000,
                vram_bytes: 1,
                uids: vec!["a".into(), "b".into()],
            }],
            resources: Vec::new(),
        };
        let part = of_rank(&whole, &["b".into()], 1, 2);
        assert_eq!(part.claims[0].uids, ["b"]);
        assert_eq!(part.claims[0].gpus_milli, 8_000, "the amount is per claim");
    }
}
