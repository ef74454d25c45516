//! Who is charged for what: the union by claim UID over everything that names a claim.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kube::ResourceExt;
use muster_api::{Charge, Gang, Intent, Permit, Proposal};

use super::world::World;

/// A claim that somebody is charged for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ChargedClaim {
    pub(super) team: String,
    pub(super) flavor: String,
    pub(super) gpus_milli: i64,
    pub(super) vram_bytes: i64,
    /// Whether its node is marked as lost: then no Team bears it.
    pub(super) is_lost: bool,
    /// UIDs of the pods that hold it.
    pub(super) pods: BTreeSet<String>,
    /// Where it is named (`Ledger`, `Gang ns/name`, `permit on NODE`), and the UIDs of the pods by which it stands there: all of the attempt
    /// where a gang is charged as a whole, its own where a permit is.
    pub(super) named_by: BTreeMap<String, Arc<BTreeSet<String>>>,
}

/// What one object says that one gang is charged.
#[derive(Debug)]
pub(super) struct Statement<'a> {
    /// Where it is said: `Ledger`, `Gang ns/name`, `permit on NODE`.
    pub(super) place: String,
    /// Namespace of the gang.
    pub(super) namespace: &'a str,
    pub(super) gang_uid: &'a str,
    /// The Team that is said to be charged.
    pub(super) team: &'a str,
    charge: &'a Charge,
    /// Each pod with its claims.
    pods: Vec<(&'a str, &'a [String])>,
}

/// What is said by a Gang.
pub(super) fn place_of(gang: &Gang) -> String {
    let namespace = gang.metadata.namespace.as_deref().unwrap_or_default();
    format!("Gang {namespace}/{}", gang.name_any())
}

/// Everything that is said about charges at one revision.
pub(super) fn statements(world: &World) -> Vec<Statement<'_>> {
    let mut statements = Vec::new();
    for intent in world.ledger.iter().flat_map(|ledger| &ledger.spec.intents) {
        let pods = intent.pods.iter();
        let mut statement = Statement {
            place: "Ledger".to_owned(),
            namespace: &intent.namespace,
            gang_uid: &intent.gang_uid,
            team: &intent.team,
            charge: &intent.charge,
            pods: pods.map(|pod| (&*pod.uid, &*pod.claims)).collect(),
        };
        if let Some(proposal) = proposal(world, intent) {
            let pods = proposal.admission.pods.iter();
            statement.charge = &proposal.admission.charge;
            statement.pods = pods.map(|pod| (&*pod.uid, &*pod.claims)).collect();
        }
        statements.push(statement);
    }
    for (uid, gang) in &world.gangs {
        let status = gang.status.as_ref();
        let Some(admission) = status.and_then(|status| status.admission.as_ref()) else {
            continue;
        };
        let namespace = gang.metadata.namespace.as_deref().unwrap_or_default();
        let pods = admission.pods.iter();
        statements.push(Statement {
            place: place_of(gang),
            namespace,
            gang_uid: uid,
            team: &admission.team,
            charge: &admission.charge,
            pods: pods.map(|pod| (&*pod.uid, &*pod.claims)).collect(),
        });
    }
    for (node, devices) in &world.node_devices {
        let charging = devices.spec.permits.iter();
        for permit in charging.filter(|permit| !charges_nobody(permit)) {
            statements.push(Statement {
                place: format!("permit on {node}"),
                namespace: permit.gang.split('/').next().unwrap_or_default(),
                gang_uid: &permit.gang_uid,
                team: &permit.team,
                charge: &permit.charge,
                pods: vec![(&permit.pod_uid, &permit.claim_uids)],
            });
        }
    }
    statements
}

/// UIDs of the claims that are permitted on nodes that are marked as lost: all that these hold, since nothing is released there.
pub(super) fn lost_claims(world: &World) -> BTreeSet<&str> {
    let nodes = world.node_devices.values();
    let permits = nodes
        .filter(|node| node.spec.lost)
        .flat_map(|node| &node.spec.permits);
    permits
        .flat_map(|permit| permit.claim_uids.iter().map(String::as_str))
        .collect()
}

/// What a driver holds for a claim that the API server has forgotten is only kept from others.
fn charges_nobody(permit: &Permit) -> bool {
    let charge = &permit.charge;
    permit.withdrawn
        && permit.team.is_empty()
        && charge.claims.is_empty()
        && charge.resources.is_empty()
}

/// What an intent names by its digest: it stands on its Gang, until that carries it as its admission.
fn proposal<'a>(world: &'a World, intent: &Intent) -> Option<&'a Proposal> {
    let gang = world.gangs.get(&intent.gang_uid)?;
    let proposal = gang.status.as_ref()?.proposal.as_ref()?;
    (Some(&proposal.digest) == intent.digest.as_ref()).then_some(proposal)
}

/// All charges at one revision.
#[derive(Debug, Default)]
pub(super) struct Charges {
    /// By claim UID.
    pub(super) claims: BTreeMap<String, ChargedClaim>,
    /// cpu, memory and the like: by gang UID, then by what names it; the largest statement counts.
    resources: BTreeMap<(String, String, String), BTreeMap<String, i64>>,
}

impl Charges {
    /// Adds up what is stated. `team_of` tells the Team that a gang belongs to, whatever is stated of it; `lost` are the claims whose
    /// nodes are lost.
    pub(super) fn of<'a>(
        statements: &'a [Statement<'a>],
        team_of: impl Fn(&Statement<'a>) -> &'a str,
        lost: &BTreeSet<&str>,
    ) -> Self {
        let mut charges = Self::default();
        for statement in statements {
            charges.add(statement, team_of(statement));
        }
        for (uid, claim) in &mut charges.claims {
            claim.is_lost = lost.contains(&**uid);
        }
        charges
    }

    /// What a Team uses of a resource of a Flavor. What its gangs take of nodes that are lost counts as long as it is not a claim: no
    /// scenario has both.
    pub(super) fn used(&self, team: &str, flavor: &str, resource: &str) -> i128 {
        let claims = self
            .claims
            .values()
            .filter(|claim| claim.team == team && claim.flavor == flavor && !claim.is_lost);
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

    fn add(&mut self, statement: &Statement<'_>, team: &str) {
        let pods = statement.pods.iter().map(|(pod, _)| (*pod).to_owned());
        let pods: Arc<BTreeSet<String>> = Arc::new(pods.collect());
        for group in &statement.charge.claims {
            for uid in &group.uids {
                let claim = self.claims.entry(uid.clone()).or_default();
                team.clone_into(&mut claim.team);
                claim.flavor.clone_from(&group.flavor);
                claim.gpus_milli = claim.gpus_milli.max(group.gpus_milli);
                claim.vram_bytes = claim.vram_bytes.max(group.vram_bytes);
                // Of several permits of a node each stands by its own pod.
                claim
                    .named_by
                    .entry(statement.place.clone())
                    .and_modify(|known| Arc::make_mut(known).extend(pods.iter().cloned()))
                    .or_insert_with(|| Arc::clone(&pods));
            }
        }
        for resource in &statement.charge.resources {
            let key = (
                statement.gang_uid.to_owned(),
                resource.flavor.clone(),
                resource.resource.clone(),
            );
            let teams = self.resources.entry(key).or_default();
            let amount = teams.entry(team.to_owned()).or_default();
            *amount = (*amount).max(resource.amount);
        }
        for (pod, claims) in &statement.pods {
            for claim in *claims {
                if let Some(claim) = self.claims.get_mut(claim) {
                    claim.pods.insert((*pod).to_owned());
                }
            }
        }
    }
}
