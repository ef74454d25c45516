//! What is charged, worked out from the API server alone.

use std::collections::BTreeMap;

use muster_api::{Charge, Gang, Intent, Ledger, NodeDevices};

use super::Violation;
use crate::{
    api_server::ApiServer,
    scenario::{Product, Scenario},
};

/// What each claim is charged, by its UID.
#[derive(Debug, Default)]
pub struct Charges {
    claims: BTreeMap<String, ClaimCharge>,
    /// A claim that is charged to two gangs, and the names of these. A Gang that was deleted and made again under its name
    /// is the same gang.
    charged_twice: Option<(String, String, String)>,
}

#[derive(Debug)]
struct ClaimCharge {
    gang: String,
    team: String,
    flavor: String,
    gpus_milli: i64,
}

impl Charges {
    /// The union of what intents, admissions and permits, live or withdrawn, name.
    pub fn of(api: &ApiServer) -> Self {
        let mut charges = Self::default();
        for intent in api.list::<Ledger>().flat_map(|ledger| &ledger.spec.intents) {
            for charge in of_intent(api, intent) {
                let gang = format!("{}/{}", intent.namespace, intent.name);
                charges.add(&gang, &intent.team, charge);
            }
        }
        for gang in api.list::<Gang>() {
            let status = gang.status.as_ref();
            let admission = status.and_then(|status| status.admission.as_ref());
            if let Some(admission) = admission {
                let namespace = gang.metadata.namespace.as_deref().unwrap_or_default();
                let name = gang.metadata.name.as_deref().unwrap_or_default();
                let gang = format!("{namespace}/{name}");
                charges.add(&gang, &admission.team, &admission.charge);
            }
        }
        for permit in api
            .list::<NodeDevices>()
            .flat_map(|object| &object.spec.permits)
        {
            charges.add(&permit.gang, &permit.team, &permit.charge);
        }
        charges
    }

    fn add(&mut self, gang: &str, team: &str, charge: &Charge) {
        for group in &charge.claims {
            for uid in &group.uids {
                let entry = ClaimCharge {
                    gang: gang.to_owned(),
                    team: team.to_owned(),
                    flavor: group.flavor.clone(),
                    gpus_milli: group.gpus_milli,
                };
                let before = self.claims.insert(uid.clone(), entry);
                if let Some(before) = before.filter(|before| before.gang != gang) {
                    self.charged_twice = Some((uid.clone(), before.gang, gang.to_owned()));
                }
            }
        }
    }

    /// The Flavor that the claim is charged to; `None` if it is not charged.
    pub fn flavor_of(&self, claim: &str) -> Option<&str> {
        let charge = self.claims.get(claim)?;
        Some(&charge.flavor)
    }

    /// Thousandths of a GPU of a Flavor that a Team is charged.
    pub(super) fn used_milli(&self, team: &str, flavor: &str) -> i64 {
        let of_team = self.of_flavor(flavor).filter(|charge| charge.team == team);
        of_team.map(|charge| charge.gpus_milli).sum()
    }

    /// UIDs of the claims for which a Team is charged a Flavor.
    pub(super) fn claims_of(&self, team: &str, flavor: &str) -> impl Iterator<Item = &String> {
        let claims = self.claims.iter();
        let charged =
            claims.filter(move |(_, charge)| charge.team == team && charge.flavor == flavor);
        charged.map(|(claim, _)| claim)
    }

    /// Thousandths of a GPU of a Flavor that all are charged.
    pub(super) fn all_used_milli(&self, flavor: &str) -> i64 {
        self.of_flavor(flavor).map(|charge| charge.gpus_milli).sum()
    }

    fn of_flavor(&self, flavor: &str) -> impl Iterator<Item = &ClaimCharge> {
        let all = self.claims.values();
        all.filter(move |charge| charge.flavor == flavor)
    }

    /// Whether nothing is charged.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// S1 of what is charged, Flavor by Flavor.
    pub(super) fn check(&self, scenario: &Scenario) -> Result<(), Violation> {
        let milli = |gpus: usize| i64::try_from(gpus).unwrap_or(i64::MAX) * 1_000;
        for product in Product::ALL {
            let flavor = product.flavor();
            for team in &scenario.teams {
                let used = self.used_milli(&team.name, flavor);
                let most = milli(scenario.most_gpus(team, product));
                if used > most {
                    let what = format!("team {} is charged {used} of {most} {flavor}", team.name);
                    return Err(Violation::new("S1", what));
                }
            }
            let used = self.all_used_milli(flavor);
            let most = milli(scenario.cohort_gpus(product));
            if used > most {
                let what = format!("the cohort is charged {used} of {most} {flavor}");
                return Err(Violation::new("S1", what));
            }
        }
        if let Some((claim, one, other)) = &self.charged_twice {
            let what = format!("claim {claim} is charged to {one} and to {other}");
            return Err(Violation::new("S1", what));
        }
        let is_known = |flavor: &str| {
            let mut products = Product::ALL.into_iter();
            products.any(|product| product.flavor() == flavor)
        };
        let mut charges = self.claims.values();
        if let Some(charge) = charges.find(|charge| !is_known(&charge.flavor)) {
            let what = format!("{} is charged, which is no Flavor", charge.flavor);
            return Err(Violation::new("S1", what));
        }
        Ok(())
    }
}

/// What an intent charges. One that is named by its digest says itself what it charges on its Gang; once the Gang
/// carries it, by its admission.
pub(super) fn of_intent<'a>(
    api: &'a ApiServer,
    intent: &'a Intent,
) -> impl Iterator<Item = &'a Charge> {
    let gang = api.get::<Gang>(&intent.namespace, &intent.name);
    let proposal = gang
        .filter(|gang| gang.metadata.uid.as_ref() == Some(&intent.gang_uid))
        .and_then(|gang| gang.status.as_ref()?.proposal.as_ref())
        .filter(|proposal| Some(&proposal.digest) == intent.digest.as_ref());
    let proposed = proposal.map(|proposal| &proposal.admission.charge);
    [Some(&intent.charge), proposed].into_iter().flatten()
}
