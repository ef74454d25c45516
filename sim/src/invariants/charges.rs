//! What is charged, worked out from the API server alone.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use muster_api::{Charge, Gang, Intent, Ledger, NodeDevices, Permit};
use muster_cluster::pod::{phase, stamp};

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
                let given_back = given_back(api, gang);
                let gang = format!("{namespace}/{name}");
                let mut charge = admission.charge.clone();
                for group in &mut charge.claims {
                    group.uids.retain(|uid| !given_back.contains(uid.as_str()));
                }
                charges.add(&gang, &admission.team, &charge);
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
            let used: i64 = self.of_flavor(flavor).map(|charge| charge.gpus_milli).sum();
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

/// Claims of an admitted gang whose pods succeeded and were released: they are charged no more. Released is a pod of which
/// no permit is left once its intent is carried out, since every rank has one before the first starts.
fn given_back<'a>(api: &ApiServer, gang: &'a Gang) -> BTreeSet<&'a str> {
    let (uid, name) = (&gang.metadata.uid, &gang.metadata.name);
    let Some(status) = &gang.status else {
        return BTreeSet::new();
    };
    let (Some(admission), Some(placement)) = (&status.admission, &status.placement) else {
        return BTreeSet::new();
    };
    let mut intents = api.list::<Ledger>().flat_map(|ledger| &ledger.spec.intents);
    let is_own = |intent: &Intent| {
        Some(&intent.name) == name.as_ref()
            && Some(&intent.namespace) == gang.metadata.namespace.as_ref()
    };
    if admission.adopted || intents.any(is_own) {
        return BTreeSet::new();
    }
    let nodes = placement.nodes.iter().flat_map(|run| {
        let ranks = usize::try_from(run.ranks).unwrap_or(0);
        std::iter::repeat_n(run.node.as_str(), ranks)
    });
    let has_given_back = |pod_uid: &str, node: &str| {
        let has_succeeded = |pod: &Pod| {
            pod.metadata.uid.as_deref() == Some(pod_uid)
                && phase(pod) == "Succeeded"
                && stamp(pod) == status.attempt
        };
        let is_permit = |permit: &Permit| {
            permit.pod_uid == pod_uid
                && Some(&permit.gang_uid) == uid.as_ref()
                && permit.attempt == status.attempt
        };
        api.list::<Pod>().any(has_succeeded)
            && api
                .get::<NodeDevices>("", node)
                .is_some_and(|devices| !devices.spec.permits.iter().any(is_permit))
    };
    let ranks = admission.pods.iter().zip(nodes);
    let (done, others): (Vec<_>, Vec<_>) =
        ranks.partition(|(pod, node)| has_given_back(&pod.uid, node));
    // A claim that they share is charged for the others.
    let is_shared = |claim: &&str| {
        others
            .iter()
            .any(|(pod, _)| pod.claims.iter().any(|it| it == claim))
    };
    let claims = done
        .iter()
        .flat_map(|(pod, _)| pod.claims.iter().map(String::as_str));
    claims.filter(|claim| !is_shared(claim)).collect()
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
