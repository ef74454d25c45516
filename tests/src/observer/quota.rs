//! S1: no quota node over its limit; every charge for the Team, the Flavor and the amount that the cluster shows.
//!
//! Whom a gang is charged to follows from the label of its namespace, and which Flavor from the devices that its
//! claims were allocated. What Muster says about either is compared, never believed.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::ResourceExt;
use muster_api::{ClaimByName, FlavorSpec, keys};

use super::{
    charges::{ChargedClaim, Charges, Statement, lost_claims, statements},
    claim_names::ClaimNames,
    findings::{Findings, Invariant::S1},
    limits,
    published::Published,
    world::{self, World},
};

/// What S1 has to remember.
#[derive(Debug, Default)]
pub(super) struct Quota {
    /// What each quota node used, to tell a rise from a limit that was lowered.
    used: BTreeMap<String, i128>,
    /// The Team that each charged gang belongs to, by the gang's UID: the one that its namespace had when the gang
    /// was charged first. A namespace that joins another Team takes no running gang with it.
    owners: BTreeMap<String, Option<String>>,
    /// Claims whose Flavor was compared with their devices.
    compared: BTreeSet<String>,
}

impl Quota {
    /// The charges at this state of the world. Each gang that is charged for the first time gets its owner here.
    pub(super) fn charges(&mut self, world: &World, findings: &mut Findings) -> Charges {
        let statements = statements(world);
        let charged: BTreeSet<&str> = statements.iter().map(|s| s.gang_uid).collect();
        self.owners.retain(|gang, _| charged.contains(&**gang));
        for statement in &statements {
            let owner = self
                .owners
                .entry(statement.gang_uid.to_owned())
                .or_insert_with(|| world.team_of(statement.namespace).map(str::to_owned));
            let is_right = owner.as_deref() == Some(statement.team);
            findings.check(
                S1,
                (!is_right).then(|| {
                    format!(
                        "{} charges a gang of namespace {} to Team {:?}; the namespace belongs to {owner:?}",
                        statement.place, statement.namespace, statement.team
                    )
                }),
            );
        }
        let owner = |statement: &Statement<'_>| self.owners.get(statement.gang_uid).cloned();
        let owners: BTreeMap<&str, String> = statements
            .iter()
            .filter_map(|statement| Some((statement.gang_uid, owner(statement)??)))
            .collect();
        Charges::of(
            &statements,
            |statement| {
                owners
                    .get(statement.gang_uid)
                    .map_or(statement.team, String::as_str)
            },
            &lost_claims(world),
        )
    }

    /// No quota node over its limit. A limit that was lowered below the use, or a lost node that is back with what it holds, is no
    /// violation while the use only falls from there on.
    pub(super) fn check_limits(
        &mut self,
        world: &World,
        charges: &Charges,
        may_have_risen: bool,
        findings: &mut Findings,
    ) {
        for node in limits::uses(world, charges) {
            let before = self.used.insert(node.of.clone(), node.used).unwrap_or(0);
            let over = node
                .over
                .filter(|_| may_have_risen && node.used > before)
                .map(|most| format!("{} rose to {}, more than {most}", node.of, node.used));
            findings.check(S1, over);
        }
    }

    /// Every charge is as large as the claim, and for a Flavor that has its devices. `known` are the devices that were ever published, and
    /// what claims are charged as.
    pub(super) fn check_claims(
        &mut self,
        world: &World,
        charges: &Charges,
        known: (&Published, &ClaimNames),
        findings: &mut Findings,
    ) {
        let (published, names) = known;
        self.compared
            .retain(|claim| charges.claims.contains_key(claim));
        for (uid, charged) in &charges.claims {
            let name = ClaimByName::parse(uid);
            let of_plugin = name.filter(|name| name.device_class().is_none());
            if let Some(name) = of_plugin {
                let wrong = mismatch_by_name(world, name, charged);
                let wrong = wrong.map(|why| format!("{uid} is charged {charged:?}, but {why}"));
                findings.check(S1, wrong);
                continue;
            }
            let claim = match name {
                Some(_) => names.uid_of(uid).and_then(|made| world.claims.get(made)),
                None => world.claims.get(uid),
            };
            let Some(claim) = claim else {
                continue;
            };
            let wrong = wrong_amount(world, claim, charged, published);
            let wrong = wrong.map(|why| format!("claim {} {why}", claim.name_any()));
            findings.check(S1, wrong);
            if world::allocated_devices(claim) > 0 && self.compared.insert(uid.clone()) {
                let flavor = world.flavors.get(&charged.flavor);
                let wrong = match flavor {
                    None => Some("which does not exist".to_owned()),
                    Some(flavor) => mismatch(world, &flavor.spec, claim),
                };
                findings.check(
                    S1,
                    wrong.map(|why| {
                        format!(
                            "claim {} is charged to Flavor {:?}, {why}",
                            claim.name_any(),
                            charged.flavor
                        )
                    }),
                );
            }
        }
    }
}

/// Why a claim is charged too little or too much, if it is: by what it was allocated, or before that by what it asks for.
///
/// A claim with alternatives may have found a cheaper device than the one that was planned, which came free meanwhile. And one that was
/// found running while its devices were not published is charged whole GPUs and no memory.
fn wrong_amount(
    world: &World,
    claim: &ResourceClaim,
    charged: &ChargedClaim,
    published: &Published,
) -> Option<String> {
    let (gpus, vram) = (charged.gpus_milli, charged.vram_bytes);
    let Some(cost) = published.cost_of(claim) else {
        let asked = world::requested_gpus(claim)? * 1000;
        return (asked != gpus)
            .then(|| format!("asks for {asked} thousandths of a GPU and is charged {gpus}"));
    };
    // What was allocated beyond what was asked for is no wrong charge: nobody prepares it (S3).
    let asked = world::requested_gpus(claim).map(|asked| asked * 1000);
    if asked == Some(gpus) && cost.gpus_milli > gpus {
        return None;
    }
    let may_be_more = world::has_alternatives(claim);
    let fits = |charged: i64, cost: i64| charged == cost || (charged > cost && may_be_more);
    let was_unknown = vram == 0 && gpus == cost.devices * 1000;
    if !fits(gpus, cost.gpus_milli) && !was_unknown {
        return Some(format!(
            "has {} thousandths of a GPU and is charged {gpus}",
            cost.gpus_milli
        ));
    }
    // Memory is charged where the Team's quota of the Flavor names it.
    let is_counted = vram > 0 || counts_memory(world, charged);
    let has = cost.vram_bytes.filter(|_| is_counted && !was_unknown)?;
    (!fits(vram, has)).then(|| format!("has {has} bytes of memory and is charged {vram}"))
}

/// Whether the Team that is charged has quota for memory of GPUs of the Flavor.
fn counts_memory(world: &World, charged: &ChargedClaim) -> bool {
    let quota = world.teams.get(&charged.team).map(|team| &team.spec.quota);
    let of_flavor = quota
        .into_iter()
        .flatten()
        .filter(|of| of.flavor == charged.flavor);
    let mut resources = of_flavor.flat_map(|of| &of.resources);
    resources.any(|resource| resource.name == "vram")
}

/// Why what a pod gets of a device plugin is charged wrongly, if it is. Of a pod that is gone nothing is known.
fn mismatch_by_name(
    world: &World,
    name: ClaimByName<'_>,
    charged: &ChargedClaim,
) -> Option<String> {
    let pod = world.pods.get(name.pod_uid)?;
    let Some(flavor) = world.flavors.get(&charged.flavor) else {
        return Some("the Flavor does not exist".to_owned());
    };
    let counts = flavor.spec.extended_resource.as_deref();
    if counts != Some(name.resource) {
        return Some(format!("the Flavor counts {counts:?}"));
    }
    let asked = world::asked_of_plugins(world, pod).into_iter();
    let asked: i64 = asked
        .filter_map(|(resource, units)| (resource == name.resource).then_some(units))
        .sum();
    if charged.gpus_milli != asked * 1000 {
        return Some(format!("pod {} asks for {asked}", pod.name_any()));
    }
    let node = world.nodes.get(world::node_of(pod)?)?;
    let missing = flavor
        .spec
        .node_selector
        .iter()
        .find(|(key, value)| node.labels().get(*key) != Some(value));
    missing.map(|(key, value)| {
        format!(
            "the Flavor asks for {key}={value}, which {} lacks",
            node.name_any()
        )
    })
}

/// Why the devices that the claim was allocated do not belong to the Flavor, if they do not. A CEL selector is not
/// judged: node and driver are.
fn mismatch(world: &World, flavor: &FlavorSpec, claim: &ResourceClaim) -> Option<String> {
    let driver = flavor
        .devices
        .as_ref()
        .map_or(keys::DRIVER, |of| &of.driver);
    world::allocation(claim).find_map(|device| {
        if device.driver != driver {
            return Some(format!(
                "which counts devices of {driver}, not of {}",
                device.driver
            ));
        }
        let slice = world.slices.values().find(|slice| {
            slice.spec.driver == device.driver && slice.spec.pool.name == device.pool
        });
        let node = slice.and_then(|slice| slice.spec.node_name.as_deref())?;
        let labels = world.nodes.get(node)?.labels();
        let missing = flavor
            .node_selector
            .iter()
            .find(|(key, value)| labels.get(*key) != Some(value));
        missing.map(|(key, value)| format!("which asks for {key}={value}, which {node} lacks"))
    })
}
