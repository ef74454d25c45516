//! What is charged, worked out from the API server alone.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Node;
use muster_api::{Charge, Gang, Intent, Ledger, NodeDevices};

use super::{Violation, has_permit};
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
    /// Claims that something has on a node whose charges no Team bears: they may be let go elsewhere meanwhile.
    borne: BTreeSet<String>,
}

#[derive(Debug)]
struct ClaimCharge {
    gang: String,
    team: String,
    flavor: String,
    gpus_milli: i64,
    /// Whether all that names it does so on nodes whose charges no Team bears.
    borne_by_node: bool,
}

impl Charges {
    /// The union of what intents, admissions and permits, live or withdrawn, name.
    pub fn of(api: &ApiServer) -> Self {
        let mut charges = Self::default();
        let off = off_account(api);
        for intent in api.list::<Ledger>().flat_map(|ledger| &ledger.spec.intents) {
            for charge in of_intent(api, intent) {
                let gang = format!("{}/{}", intent.namespace, intent.name);
                let mut nodes = intent.plan.iter().map(|run| &run.node).chain(&intent.nodes);
                let borne = nodes.any(|node| off.contains(node));
                charges.add(&gang, &intent.team, charge, borne);
            }
        }
        for gang in api.list::<Gang>() {
            let status = gang.status.as_ref();
            let admission = status.and_then(|status| status.admission.as_ref());
            if let Some(admission) = admission {
                let namespace = gang.metadata.namespace.as_deref().unwrap_or_default();
                let name = gang.metadata.name.as_deref().unwrap_or_default();
                let gang = format!("{namespace}/{name}");
                let placement = status.and_then(|status| status.placement.as_ref());
                let mut runs = placement.iter().flat_map(|it| &it.nodes);
                let borne = runs.any(|run| off.contains(&run.node));
                charges.add(&gang, &admission.team, &admission.charge, borne);
            }
        }
        for object in api.list::<NodeDevices>() {
            let borne = object.spec.lost;
            for permit in &object.spec.permits {
                let mut charge = permit.charge.clone();
                if permit.withdrawn {
                    // What a node that was made again brought back, of devices that nobody published yet: nobody is charged.
                    charge.claims.retain(|group| !group.flavor.is_empty());
                }
                charges.add(&permit.gang, &permit.team, &charge, borne);
            }
        }
        charges
    }

    /// What a Team bears of a claim counts, whatever a lost node bears of the same one.
    fn add(&mut self, gang: &str, team: &str, charge: &Charge, borne_by_node: bool) {
        for group in &charge.claims {
            for uid in &group.uids {
                if borne_by_node {
                    self.borne.insert(uid.clone());
                }
                let known = self.claims.get(uid);
                if let Some(other) = known.filter(|known| known.gang != gang) {
                    self.charged_twice = Some((uid.clone(), other.gang.clone(), gang.to_owned()));
                }
                if known.is_none_or(|known| known.borne_by_node || !borne_by_node) {
                    let entry = ClaimCharge {
                        gang: gang.to_owned(),
                        team: team.to_owned(),
                        flavor: group.flavor.clone(),
                        gpus_milli: group.gpus_milli,
                        borne_by_node,
                    };
                    self.claims.insert(uid.clone(), entry);
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
        let charged = claims.filter(move |(_, charge)| {
            charge.team == team && charge.flavor == flavor && !charge.borne_by_node
        });
        charged.map(|(claim, _)| claim)
    }

    /// Thousandths of a GPU of a Flavor that all are charged.
    pub(super) fn all_used_milli(&self, flavor: &str) -> i64 {
        self.of_flavor(flavor).map(|charge| charge.gpus_milli).sum()
    }

    fn of_flavor(&self, flavor: &str) -> impl Iterator<Item = &ClaimCharge> {
        let all = self.claims.values();
        all.filter(move |charge| charge.flavor == flavor && !charge.borne_by_node)
    }

    /// Whether nothing is charged.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// S1 of what is charged, Flavor by Flavor.
    pub(super) fn check(
        &self,
        scenario: &Scenario,
        returns: &mut Returns,
    ) -> Result<(), Violation> {
        let milli = |gpus: usize| i64::try_from(gpus).unwrap_or(i64::MAX) * 1_000;
        for product in Product::ALL {
            let flavor = product.flavor();
            for team in &scenario.teams {
                let used = self.used_milli(&team.name, flavor);
                let most = milli(scenario.most_gpus(team, product));
                if !returns.allow(&format!("{} {flavor}", team.name), used, most) {
                    let what = format!("team {} is charged {used} of {most} {flavor}", team.name);
                    return Err(Violation::new("S1", what));
                }
            }
            let used = self.all_used_milli(flavor);
            let most = milli(scenario.cohort_gpus(product));
            if !returns.allow(flavor, used, most) {
                let what = format!("the cohort is charged {used} of {most} {flavor}");
                return Err(Violation::new("S1", what));
            }
        }
        returns.excused.extend(self.borne.iter().cloned());
        let twice = self.charged_twice.as_ref();
        if let Some((claim, one, other)) = twice.filter(|it| !returns.excused.contains(&it.0)) {
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

/// Nodes whose charges no Team bears: those that are lost, and those of which neither Node nor object is there.
pub(super) fn off_account(api: &ApiServer) -> BTreeSet<String> {
    let lost = api.list::<NodeDevices>().filter(|object| object.spec.lost);
    let lost = lost.filter_map(|object| object.metadata.name.clone());
    let mut off: BTreeSet<String> = lost.collect();
    let gangs = api.list::<Gang>().filter_map(|gang| gang.status.as_ref());
    let placements = gangs.filter_map(|status| status.placement.as_ref());
    let planned = placements.flat_map(|it| &it.nodes).map(|run| &run.node);
    let intents = api.list::<Ledger>().flat_map(|ledger| &ledger.spec.intents);
    let committed =
        intents.flat_map(|intent| intent.plan.iter().map(|run| &run.node).chain(&intent.nodes));
    for node in planned.chain(committed) {
        let is_there = |name: &str| {
            api.get::<Node>("", name).is_some() || api.get::<NodeDevices>("", name).is_some()
        };
        if !off.contains(node) && !is_there(node) {
            off.insert(node.clone());
        }
    }
    off
}

/// Whether the machine has no Node, or one for which its driver has yet to answer, as its object says.
fn has_no_node(api: &ApiServer, name: &str) -> bool {
    let Some(node) = api.get::<Node>("", name) else {
        return true;
    };
    let devices = api.get::<NodeDevices>("", name);
    devices.is_some_and(|devices| {
        let spec = &devices.spec;
        spec.awaits_driver || node.metadata.uid.as_ref() != Some(&spec.node_uid)
    })
}

/// Whether its driver has answered for the object that is there now.
fn has_answered(api: &ApiServer, name: &str) -> bool {
    api.get::<NodeDevices>("", name).is_some_and(|devices| {
        let uid = devices.metadata.uid.as_ref();
        let status = devices.status.as_ref();
        status.is_some_and(|status| Some(&status.uid) == uid && status.observed_generation > 0)
    })
}

/// The Flavor by which a permit of the node charges somebody for the claim.
fn charged_on<'a>(api: &'a ApiServer, node: &str, claim: &str) -> Option<&'a str> {
    let devices = api.get::<NodeDevices>("", node)?;
    let permits = devices.spec.permits.iter();
    let mut charged = permits.flat_map(|permit| &permit.charge.claims);
    let of_claim =
        charged.find(|group| !group.flavor.is_empty() && group.uids.iter().any(|uid| uid == claim));
    of_claim.map(|group| group.flavor.as_str())
}

/// How long after a node is back what was decided before may still be committed, in milliseconds.
const RETURN_MILLISECONDS: i64 = 10_000;

/// What nodes that came back brought with them: use that is above a limit by that, and only falls from there on.
#[derive(Debug, Default)]
pub(super) struct Returns {
    off_account: BTreeSet<String>,
    last: Option<i64>,
    now: i64,
    above: BTreeMap<String, i64>,
    /// Claims that were on a node's account once: when the node is back, another gang may have them as well.
    excused: BTreeSet<String>,
    /// Machines that have no Node, or one that was made again and whose driver has not answered since. Its object need not say so:
    /// it may have gone with its last permit, and be made anew, or not yet.
    unanswered: BTreeSet<String>,
    /// What machines without a Node hold and nobody is charged for: node and claim.
    left_behind: BTreeSet<(String, String)>,
}

impl Returns {
    /// Looks which nodes are back.
    pub(super) fn look<'a>(&mut self, api: &ApiServer, machines: impl Iterator<Item = &'a String>) {
        for name in machines {
            if has_no_node(api, name) {
                self.unanswered.insert(name.clone());
            } else if has_answered(api, name) {
                self.unanswered.remove(name);
            }
        }
        self.now = api.time().as_millisecond();
        let off = off_account(api);
        if !self.off_account.is_subset(&off) {
            self.last = Some(self.now);
        }
        self.off_account = off;
    }

    /// Whether nothing of the node is asked for now.
    pub(super) fn is_off_account(&self, node: &str) -> bool {
        self.off_account.contains(node)
    }

    /// Whether nobody need be charged for what the machine holds: that its Node is gone together with the pod proved the release, and
    /// the machine lives on all the same. Nobody counts it until that name has a Node again whose driver has answered. Then
    /// it comes back as a withdrawn permit of that node, and is charged there if the API server still knows the claim and its
    /// devices. What the claim is charged elsewhere meanwhile, where it was given to another attempt, is another matter.
    pub(super) fn is_left_behind(
        &mut self,
        api: &ApiServer,
        node: &str,
        claim: &str,
        is_charged: bool,
    ) -> bool {
        let what = (node.to_owned(), claim.to_owned());
        if charged_on(api, node, claim).is_some() {
            if self.left_behind.remove(&what) {
                self.last = Some(self.now);
            }
            return false;
        }
        // Its gang may bear it for as long as it is admitted, without a permit there.
        if self.unanswered.contains(node) && (!is_charged || !has_permit(api, node, claim)) {
            self.left_behind.insert(what);
            return true;
        }
        self.left_behind.contains(&what)
    }

    /// The Flavor by which a node that is, or was, on nobody's account bears what it holds of a claim. The claim may have been let go
    /// by the API server meanwhile, once its pods were deleted by force, and be charged by another Flavor elsewhere: one that its user
    /// made keeps its UID.
    pub(super) fn flavor_on<'a>(
        &self,
        api: &'a ApiServer,
        node: &str,
        claim: &str,
    ) -> Option<&'a str> {
        self.excused
            .contains(claim)
            .then(|| charged_on(api, node, claim))
            .flatten()
    }

    /// What is not held any more is not left behind.
    pub(super) fn forget_released(&mut self, node: &str, is_held: impl Fn(&str) -> bool) {
        self.left_behind
            .retain(|(of, claim)| of != node || is_held(claim));
    }

    /// Whether a node came back a short while ago.
    pub(super) fn is_recent(&self) -> bool {
        self.last
            .is_some_and(|last| self.now <= last + RETURN_MILLISECONDS)
    }

    /// Whether so much may be used of that.
    pub(super) fn allow(&mut self, of: &str, used: i64, most: i64) -> bool {
        if used <= most {
            self.above.remove(of);
            return true;
        }
        let before = self.above.get(of).copied().unwrap_or(most);
        let is_allowed = used <= before || self.is_recent();
        self.above.insert(of.to_owned(), used);
        is_allowed
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
