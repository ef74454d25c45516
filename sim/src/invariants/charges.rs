//! What is charged, worked out from the API server alone.

use std::collections::BTreeMap;

use muster_api::{Charge, Gang, Ledger, NodeDevices};

use super::Violation;
use crate::{api_server::ApiServer, scenario::Scenario};

/// Thousandths of a GPU by claim UID and Team.
#[derive(Debug, Default)]
pub struct Charges {
    claims: BTreeMap<String, (String, i64)>,
}

impl Charges {
    /// The union of what intents, admissions and permits, live or withdrawn, name.
    pub fn of(api: &ApiServer) -> Self {
        let mut charges = Self::default();
        for intent in api.list::<Ledger>().flat_map(|ledger| &ledger.spec.intents) {
            charges.add(&intent.team, &intent.charge);
            // One that is named by its digest says itself what it charges on its Gang; once the Gang carries it, as below.
            let gang = api.get::<Gang>(&intent.namespace, &intent.name);
            let proposal = gang
                .filter(|gang| gang.metadata.uid.as_ref() == Some(&intent.gang_uid))
                .and_then(|gang| gang.status.as_ref()?.proposal.as_ref())
                .filter(|proposal| Some(&proposal.digest) == intent.digest.as_ref());
            if let Some(proposal) = proposal {
                charges.add(&intent.team, &proposal.admission.charge);
            }
        }
        let admissions = api
            .list::<Gang>()
            .filter_map(|gang| gang.status.as_ref()?.admission.as_ref());
        for admission in admissions {
            charges.add(&admission.team, &admission.charge);
        }
        for permit in api
            .list::<NodeDevices>()
            .flat_map(|object| &object.spec.permits)
        {
            charges.add(&permit.team, &permit.charge);
        }
        charges
    }

    fn add(&mut self, team: &str, charge: &Charge) {
        for group in &charge.claims {
            for uid in &group.uids {
                let entry = (team.to_owned(), group.gpus_milli);
                self.claims.insert(uid.clone(), entry);
            }
        }
    }

    /// Whether the claim is charged.
    pub fn names(&self, claim: &str) -> bool {
        self.claims.contains_key(claim)
    }

    /// Thousandths of a GPU that a Team is charged.
    pub(super) fn used_milli(&self, team: &str) -> i64 {
        let of_team = self.claims.values().filter(|(name, _)| name == team);
        of_team.map(|(_, gpus)| gpus).sum()
    }

    /// Whether nothing is charged.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// S1 of what is charged.
    pub(super) fn check(&self, scenario: &Scenario) -> Result<(), Violation> {
        let milli = |gpus: usize| i64::try_from(gpus).unwrap_or(i64::MAX) * 1_000;
        for team in &scenario.teams {
            let used = self.used_milli(&team.name);
            let most = milli(scenario.most_gpus(team));
            if used > most {
                let what = format!("team {} is charged {used} of {most}", team.name);
                return Err(Violation::new("S1", what));
            }
        }
        let used: i64 = self.claims.values().map(|(_, gpus)| gpus).sum();
        let most = milli(scenario.cohort_gpus());
        if used > most {
            let what = format!("the cohort is charged {used} of {most}");
            return Err(Violation::new("S1", what));
        }
        Ok(())
    }
}
