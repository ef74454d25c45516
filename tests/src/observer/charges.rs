//! Who is charged for what: the union by claim UID over everything that names a claim.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use muster_api::Charge;

use super::world::World;

/// A claim that somebody is charged for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ChargedClaim {
    pub(super) team: String,
    pub(super) flavor: String,
    pub(super) gpus_milli: i64,
    pub(super) vram_bytes: i64,
    /// UIDs of the pods that hold it.
    pub(super) pods: BTreeSet<String>,
    /// Where it is named: `Ledger`, `Gang ns/name`, `permit on NODE`.
    pub(super) named_by: BTreeSet<String>,
}

/// All charges at one revision.
#[derive(Debug, Default)]
pub(super) struct Charges {
    /// By claim UID.
    pub(super) claims: BTreeMap<String, ChargedClaim>,
    /// cpu, memory and the like: by gang UID, then by what names it; the largest statement counts.
    pub(super) resources: BTreeMap<(String, String, String), BTreeMap<String, i64>>,
}

impl Charges {
    /// Works them out.
    pub(super) fn of(world: &World) -> Self {
        let mut charges = Self::default();
        for intent in world.ledger.iter().flat_map(|ledger| &ledger.spec.intents) {
            charges.add("Ledger", &intent.team, &intent.gang_uid, &intent.charge);
            for pod in &intent.pods {
                charges.hold(&pod.claims, &pod.uid);
            }
        }
        for (uid, gang) in &world.gangs {
            let Some(admission) = gang
                .status
                .as_ref()
                .and_then(|status| status.admission.as_ref())
            else {
                continue;
            };
            let place = format!(
                "Gang {}/{}",
                gang.namespace().unwrap_or_default(),
                gang.name_any()
            );
            charges.add(&place, &admission.team, uid, &admission.charge);
            for pod in &admission.pods {
                charges.hold(&pod.claims, &pod.uid);
            }
        }
        for (node, devices) in &world.node_devices {
            for permit in &devices.spec.permits {
                charges.add(
                    &format!("permit on {node}"),
                    &permit.team,
                    &permit.gang_uid,
                    &permit.charge,
                );
                charges.hold(&permit.claim_uids, &permit.pod_uid);
            }
        }
        charges
    }

    /// What a Team uses of a resource of a Flavor.
    pub(super) fn used(&self, team: &str, flavor: &str, resource: &str) -> i128 {
        let claims = self
            .claims
            .values()
            .filter(|claim| claim.team == team && claim.flavor == flavor);
        match resource {
            "gpus" => claims.map(|claim| i128::from(claim.gpus_milli)).sum(),
            "vram" => claims.map(|claim| i128::from(claim.vram_bytes)).sum(),
            _ => self
                .resources
                .iter()
                .filter(|((_, of, what), _)| of == flavor && what == resource)
                .filter_map(|(_, teams)| teams.get(team))
                .map(|amount| i128::from(*amount))
                .sum(),
        }
    }

    fn add(&mut self, place: &str, team: &str, gang: &str, charge: &Charge) {
        for group in &charge.claims {
            for uid in &group.uids {
                let claim = self.claims.entry(uid.clone()).or_default();
                team.clone_into(&mut claim.team);
                claim.flavor.clone_from(&group.flavor);
                claim.gpus_milli = claim.gpus_milli.max(group.gpus_milli);
                claim.vram_bytes = claim.vram_bytes.max(group.vram_bytes);
                claim.named_by.insert(place.to_owned());
            }
        }
        for resource in &charge.resources {
            let key = (
                gang.to_owned(),
                resource.flavor.clone(),
                resource.resource.clone(),
            );
            let amount = self
                .resources
                .entry(key)
                .or_default()
                .entry(team.to_owned())
                .or_default();
            *amount = (*amount).max(resource.amount);
        }
    }

    fn hold(&mut self, claims: &[String], pod: &str) {
        for claim in claims {
            if let Some(claim) = self.claims.get_mut(claim) {
                claim.pods.insert(pod.to_owned());
            }
        }
    }
}
