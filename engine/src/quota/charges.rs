//! What is charged to whom, as the holds say.
//!
//! Invariant: a claim is charged once on each node that it is held on, however many holds there name it: to the hold with the
//! smallest pod UID among those whose Team bears the charge. So the sum does not depend on the order of updates (S10).
//! What a node's account bears (`charged_to_node`) is charged to no Team.
//!
//! The devices of a claim are those of one node, and so is every hold of it, but for one case: a node was lost, the claim of a user was
//! allocated elsewhere for other pods meanwhile, and the node is back with what it held. Those are devices of two nodes, perhaps of
//! two Flavors or two Teams, under one UID. Were one of the two charged, the other would be given to somebody above a limit (S1).

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use crate::{
    amount::{Amount, FlavorResource, Resource, ResourceCharge},
    decision::Blocker,
    fairness::HeldByNamespace,
    model::{Claim, Hold, namespace_of},
    names::{ClaimUid, FlavorName, GangUid, NamespaceName, NodeName, PodUid, TeamName},
};

/// How many gangs an explanation names.
const BLOCKERS_NAMED: usize = 3;

/// A change of what one Team is charged for one resource of one gang; negative when it is taken back.
#[derive(Clone, Debug)]
pub(crate) struct Delta {
    pub(crate) gang: GangUid,
    pub(crate) team: TeamName,
    pub(crate) of: FlavorResource,
    pub(crate) amount: i128,
}

/// What takes these changes back.
pub(crate) fn undoing(deltas: &[Delta]) -> Vec<Delta> {
    let undoing = |delta: &Delta| Delta {
        amount: -delta.amount,
        ..delta.clone()
    };
    deltas.iter().map(undoing).collect()
}

/// A gang began or ceased to hold a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HolderChange {
    pub(crate) claim: ClaimUid,
    pub(crate) gang: GangUid,
    /// Whether it holds the claim now.
    pub(crate) holds: bool,
    /// How many gangs hold the claim now.
    pub(crate) holders: usize,
}

/// What a hold that came or went changes.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChargeChanges {
    pub(crate) deltas: Vec<Delta>,
    pub(crate) holders: Vec<HolderChange>,
}

/// Who holds a claim.
#[derive(Clone, Debug, Default)]
struct Holders {
    by_pod: BTreeMap<PodUid, ClaimCharge>,
    /// By gang, how many of its pods name it.
    pods_of: BTreeMap<GangUid, usize>,
}

impl Holders {
    /// The charge that counts on a node.
    fn charged_on(&self, node: &NodeName) -> Option<&ClaimCharge> {
        let mut charges = self.by_pod.values();
        charges.find(|charge| charge.is_borne_on(node))
    }

    /// Counts a pod of a gang in or out; whether the gang began or ceased to hold the claim by that.
    fn count(&mut self, gang: &GangUid, comes: bool) -> bool {
        if comes {
            let pods = self.pods_of.entry(gang.clone()).or_default();
            *pods += 1;
            return *pods == 1;
        }
        match self.pods_of.get_mut(gang) {
            Some(pods) if *pods > 1 => {
                *pods -= 1;
                false
            }
            _ => self.pods_of.remove(gang).is_some(),
        }
    }
}

/// What one hold contributes for one claim.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ClaimCharge {
    gang: GangUid,
    gang_name: String,
    team: TeamName,
    node: NodeName,
    charged_to_node: bool,
    flavor: FlavorName,
    gpus: Amount,
    vram: Amount,
}

impl ClaimCharge {
    /// Whether a Team bears it, and it is held on that node.
    fn is_borne_on(&self, node: &NodeName) -> bool {
        !self.charged_to_node && self.node == *node
    }

    fn amounts(&self) -> [(Resource, Amount); 2] {
        [(Resource::Gpus, self.gpus), (Resource::Vram, self.vram)]
    }
}

/// What the gangs of one Team hold of one resource.
#[derive(Clone, Debug, Default)]
struct Shares {
    by_gang: BTreeMap<GangUid, Share>,
    /// Largest first, then by name.
    in_order: BTreeSet<(Reverse<i128>, String, GangUid)>,
}

/// What the gangs of all Teams hold of one resource.
#[derive(Clone, Debug, Default)]
struct TeamShares {
    by_team: BTreeMap<TeamName, Shares>,
    /// Teams by their largest gang.
    in_order: BTreeSet<(Largest, TeamName)>,
    gangs: usize,
}

/// The largest gang of a Team: how much it holds, and its name.
type Largest = (Reverse<i128>, String);

impl TeamShares {
    fn change(&mut self, team: &TeamName, gang: &GangUid, name: &str, amount: i128) {
        let shares = self.by_team.entry(team.clone()).or_default();
        let (largest, gangs) = (shares.largest(), shares.in_order.len());
        shares.change(gang, name, amount);
        self.gangs = self.gangs - gangs + shares.in_order.len();
        let after = shares.largest();
        if after.is_none() {
            self.by_team.remove(team);
        }
        if largest != after {
            if let Some(largest) = largest {
                self.in_order.remove(&(largest, team.clone()));
            }
            self.in_order
                .extend(after.map(|after| (after, team.clone())));
        }
    }
}

#[derive(Clone, Debug)]
struct Share {
    name: String,
    amount: i128,
}

impl Shares {
    fn largest(&self) -> Option<Largest> {
        let (amount, name, _) = self.in_order.first()?;
        Some((*amount, name.clone()))
    }

    fn change(&mut self, gang: &GangUid, name: &str, amount: i128) {
        let share = self.by_gang.entry(gang.clone()).or_insert_with(|| Share {
            name: name.to_owned(),
            amount: 0,
        });
        let before = (Reverse(share.amount), share.name.clone(), gang.clone());
        self.in_order.remove(&before);
        share.amount += amount;
        if share.amount == 0 {
            self.by_gang.remove(gang);
        } else {
            let after = (Reverse(share.amount), share.name.clone(), gang.clone());
            self.in_order.insert(after);
        }
    }
}

/// All charges.
#[derive(Clone, Debug, Default)]
pub(crate) struct Charges {
    claims: BTreeMap<ClaimUid, Holders>,
    /// How many claims several gangs hold.
    shared_claims: usize,
    /// Sums in 128 bits: no number of 64-bit charges that fits into memory overflows them.
    teams: BTreeMap<TeamName, BTreeMap<FlavorResource, i128>>,
    shares: BTreeMap<FlavorResource, TeamShares>,
    /// What is charged to a Team by namespace, of all Flavors together.
    namespaces: BTreeMap<TeamName, HeldByNamespace>,
}

impl Charges {
    /// Counts a hold.
    pub(crate) fn add(&mut self, hold: &Hold) -> ChargeChanges {
        let mut changes = ChargeChanges::default();
        for claim in &hold.claims {
            let charge = ClaimCharge {
                gang: hold.gang.clone(),
                gang_name: hold.gang_name.clone(),
                team: hold.team.clone(),
                node: hold.node.clone(),
                charged_to_node: hold.charged_to_node,
                flavor: claim.flavor.clone(),
                gpus: claim.gpus,
                vram: claim.vram,
            };
            self.change_claim(&claim.uid, hold, &mut changes, Some(charge));
        }
        self.change_rest(hold, 1, &mut changes.deltas);
        changes
    }

    /// Counts a hold no longer. It must be the value that was added.
    pub(crate) fn remove(&mut self, hold: &Hold) -> ChargeChanges {
        let mut changes = ChargeChanges::default();
        for claim in &hold.claims {
            self.change_claim(&claim.uid, hold, &mut changes, None);
        }
        self.change_rest(hold, -1, &mut changes.deltas);
        changes
    }

    fn change_claim(
        &mut self,
        uid: &ClaimUid,
        hold: &Hold,
        changes: &mut ChargeChanges,
        charge: Option<ClaimCharge>,
    ) {
        let holders = self.claims.entry(uid.clone()).or_default();
        let old = holders.charged_on(&hold.node).cloned();
        let was_shared = holders.pods_of.len() > 1;
        let comes = charge.is_some();
        let known = match charge {
            Some(charge) => holders.by_pod.insert(hold.pod.clone(), charge),
            None => holders.by_pod.remove(&hold.pod),
        };
        // A hold may name a claim twice.
        if known.is_some() != comes && holders.count(&hold.gang, comes) {
            changes.holders.push(HolderChange {
                claim: uid.clone(),
                gang: hold.gang.clone(),
                holds: comes,
                holders: holders.pods_of.len(),
            });
        }
        match (was_shared, holders.pods_of.len() > 1) {
            (false, true) => self.shared_claims += 1,
            (true, false) => self.shared_claims -= 1,
            _ => {}
        }
        let new = holders.charged_on(&hold.node).cloned();
        if holders.by_pod.is_empty() {
            self.claims.remove(uid);
        }
        let deltas = &mut changes.deltas;
        if old == new {
            return;
        }
        for (sign, counted) in [(-1, old), (1, new)] {
            let Some(counted) = counted else { continue };
            for (resource, amount) in counted.amounts() {
                let of = FlavorResource {
                    flavor: counted.flavor.clone(),
                    resource,
                };
                let signed = amount.0.saturating_mul(sign);
                self.change_sum(
                    &counted.gang,
                    &counted.gang_name,
                    &counted.team,
                    of,
                    signed,
                    deltas,
                );
            }
        }
    }

    fn change_rest(&mut self, hold: &Hold, sign: i64, deltas: &mut Vec<Delta>) {
        if hold.charged_to_node {
            return;
        }
        for ResourceCharge { of, amount } in &hold.charged {
            let signed = amount.0.saturating_mul(sign);
            let of = of.clone();
            self.change_sum(&hold.gang, &hold.gang_name, &hold.team, of, signed, deltas);
        }
    }

    fn change_sum(
        &mut self,
        gang: &GangUid,
        gang_name: &str,
        team: &TeamName,
        of: FlavorResource,
        amount: i64,
        deltas: &mut Vec<Delta>,
    ) {
        if amount == 0 {
            return;
        }
        let sums = self.teams.entry(team.clone()).or_default();
        let sum = sums.entry(of.clone()).or_default();
        *sum += i128::from(amount);
        if *sum == 0 {
            sums.remove(&of);
        }
        if sums.is_empty() {
            self.teams.remove(team);
        }
        let teams = self.shares.entry(of.clone()).or_default();
        teams.change(team, gang, gang_name, i128::from(amount));
        if teams.by_team.is_empty() {
            self.shares.remove(&of);
        }
        self.change_namespace(team, &namespace_of(gang_name), &of.resource, amount);
        deltas.push(Delta {
            gang: gang.clone(),
            team: team.clone(),
            of,
            amount: i128::from(amount),
        });
    }

    fn change_namespace(
        &mut self,
        team: &TeamName,
        namespace: &NamespaceName,
        resource: &Resource,
        amount: i64,
    ) {
        let namespaces = self.namespaces.entry(team.clone()).or_default();
        let held = namespaces.entry(namespace.clone()).or_default();
        let sum = held.entry(resource.clone()).or_default();
        *sum += i128::from(amount);
        if *sum == 0 {
            held.remove(resource);
        }
        if held.is_empty() {
            namespaces.remove(namespace);
        }
        if namespaces.is_empty() {
            self.namespaces.remove(team);
        }
    }

    /// What a Team is charged, by namespace.
    pub(crate) fn by_namespace(&self, team: &TeamName) -> Option<&HeldByNamespace> {
        self.namespaces.get(team)
    }

    /// The gangs for which a Team is charged a resource.
    pub(crate) fn holding(
        &self,
        of: &FlavorResource,
        team: &TeamName,
    ) -> impl Iterator<Item = &GangUid> {
        let teams = self.shares.get(of);
        let shares = teams.and_then(|teams| teams.by_team.get(team));
        shares.into_iter().flat_map(|shares| shares.by_gang.keys())
    }

    /// How many gangs these are.
    pub(crate) fn count_holding(&self, of: &FlavorResource, team: &TeamName) -> usize {
        let teams = self.shares.get(of);
        let shares = teams.and_then(|teams| teams.by_team.get(team));
        shares.map_or(0, |shares| shares.by_gang.len())
    }

    /// Whether a gang is one of them.
    pub(crate) fn is_holding(&self, of: &FlavorResource, team: &TeamName, gang: &GangUid) -> bool {
        let teams = self.shares.get(of);
        let shares = teams.and_then(|teams| teams.by_team.get(team));
        shares.is_some_and(|shares| shares.by_gang.contains_key(gang))
    }

    /// What a Team is charged for one gang.
    pub(crate) fn of_gang(&self, team: &TeamName, gang: &GangUid) -> Vec<ResourceCharge> {
        let resources = self.teams.get(team).into_iter().flat_map(BTreeMap::keys);
        let charges = resources.filter_map(|of| {
            let share = self.shares.get(of)?.by_team.get(team)?.by_gang.get(gang)?;
            Some(ResourceCharge {
                of: of.clone(),
                amount: Amount(i64::try_from(share.amount).unwrap_or(i64::MAX)),
            })
        });
        charges.collect()
    }

    /// Whether some claim is held by several gangs.
    pub(crate) fn are_claims_shared(&self) -> bool {
        self.shared_claims > 0
    }

    /// How many gangs hold a claim.
    pub(crate) fn holders(&self, uid: &ClaimUid) -> usize {
        let holders = self.claims.get(uid);
        holders.map_or(0, |holders| holders.pods_of.len())
    }

    /// The gang that holds a claim, if it is the only one.
    pub(crate) fn only_holder(&self, uid: &ClaimUid) -> Option<&GangUid> {
        let mut gangs = self.claims.get(uid)?.pods_of.keys();
        gangs.next().filter(|_| gangs.next().is_none())
    }

    /// Whether a gang holds a claim.
    pub(crate) fn is_held_by(&self, uid: &ClaimUid, gang: &GangUid) -> bool {
        let holders = self.claims.get(uid);
        holders.is_some_and(|holders| holders.pods_of.contains_key(gang))
    }

    /// How many pods of a gang hold one of these claims.
    pub(crate) fn pods_holding<'a>(
        &self,
        gang: &GangUid,
        claims: impl Iterator<Item = &'a Claim>,
    ) -> usize {
        let uids: BTreeSet<&ClaimUid> = claims.map(|claim| &claim.uid).collect();
        let held = uids.into_iter().filter_map(|uid| self.claims.get(uid));
        let pods: BTreeSet<&PodUid> = held
            .flat_map(|holders| &holders.by_pod)
            .filter(|(_, charge)| charge.gang == *gang)
            .map(|(pod, _)| pod)
            .collect();
        pods.len()
    }

    /// `namespace/name` of another gang that holds a claim: of the hold with the smallest pod UID.
    pub(crate) fn other_holder(&self, uid: &ClaimUid, than: &GangUid) -> Option<&str> {
        let mut charges = self.claims.get(uid)?.by_pod.values();
        let other = charges.find(|charge| charge.gang != *than)?;
        Some(other.gang_name.as_str())
    }

    /// What would change if these holds were gone already: what the proofs of their release will give back.
    pub(crate) fn without(&self, gone: &BTreeMap<PodUid, &Hold>) -> Vec<Delta> {
        let mut deltas = Vec::new();
        let mut claims: BTreeSet<(&ClaimUid, &NodeName)> = BTreeSet::new();
        for hold in gone.values() {
            claims.extend(hold.claims.iter().map(|claim| (&claim.uid, &hold.node)));
            if hold.charged_to_node {
                continue;
            }
            for ResourceCharge { of, amount } in &hold.charged {
                deltas.push(Delta {
                    gang: hold.gang.clone(),
                    team: hold.team.clone(),
                    of: of.clone(),
                    amount: -i128::from(amount.0),
                });
            }
        }
        for (uid, node) in claims {
            let Some(holders) = self.claims.get(uid) else {
                continue;
            };
            let stays = holders
                .by_pod
                .iter()
                .any(|(pod, charge)| charge.is_borne_on(node) && !gone.contains_key(pod));
            if stays {
                continue;
            }
            let Some(charge) = holders.charged_on(node) else {
                continue;
            };
            for (resource, amount) in charge.amounts() {
                deltas.push(Delta {
                    gang: charge.gang.clone(),
                    team: charge.team.clone(),
                    of: FlavorResource {
                        flavor: charge.flavor.clone(),
                        resource,
                    },
                    amount: -i128::from(amount.0),
                });
            }
        }
        deltas
    }

    /// Every sum, for building the tree anew.
    pub(crate) fn sums(&self) -> impl Iterator<Item = (&TeamName, &FlavorResource, i128)> {
        self.teams
            .iter()
            .flat_map(|(team, sums)| sums.iter().map(move |(of, sum)| (team, of, *sum)))
    }

    /// What one Team is charged, also while its tree has a fault.
    pub(crate) fn of_team(
        &self,
        team: &TeamName,
    ) -> impl Iterator<Item = (&FlavorResource, Amount)> {
        self.teams.get(team).into_iter().flatten().map(|(of, sum)| {
            let sum = i64::try_from(*sum).unwrap_or(i64::MAX);
            (of, Amount(sum))
        })
    }

    /// The gangs that hold most of a resource, of these Teams or of all, whoever holds most first; and whether they are all. It looks
    /// at each of these Teams once; of all, only at those to which the gangs belong.
    pub(crate) fn largest_gangs(
        &self,
        of: &FlavorResource,
        among: Option<&[&TeamName]>,
        most: usize,
    ) -> (Vec<GangUid>, bool) {
        let Some(teams) = self.shares.get(of) else {
            return (Vec::new(), true);
        };
        let by_team = |team: &TeamName| teams.by_team.get(team);
        let counted: Vec<&Shares> = if let Some(among) = among {
            among.iter().filter_map(|team| by_team(team)).collect()
        } else {
            let first = teams.in_order.iter().take(most);
            first.filter_map(|(_, team)| by_team(team)).collect()
        };
        let count = match among {
            Some(_) => counted.iter().map(|shares| shares.in_order.len()).sum(),
            None => teams.gangs,
        };
        let first = counted
            .iter()
            .flat_map(|shares| shares.in_order.iter().take(most));
        let mut first: Vec<_> = first.collect();
        first.sort_unstable();
        first.truncate(most);
        let gangs = first.into_iter().map(|(_, _, gang)| gang.clone());
        (gangs.collect(), count <= most)
    }

    /// The gangs that hold most of a resource, of these Teams or of all. It looks at each of these Teams once; of all,
    /// only at those to which the gangs belong.
    pub(crate) fn blocker(&self, of: &FlavorResource, among: Option<&[&TeamName]>) -> Blocker {
        let Some(teams) = self.shares.get(of) else {
            return Blocker::default();
        };
        let by_team = |team: &TeamName| teams.by_team.get(team);
        let (counted, count): (Vec<&Shares>, usize) = if let Some(among) = among {
            let counted: Vec<&Shares> = among.iter().filter_map(|team| by_team(team)).collect();
            let count = counted.iter().map(|shares| shares.in_order.len()).sum();
            (counted, count)
        } else {
            let first = teams.in_order.iter().take(BLOCKERS_NAMED);
            let counted = first.filter_map(|(_, team)| by_team(team)).collect();
            (counted, teams.gangs)
        };
        let first = counted
            .iter()
            .flat_map(|shares| shares.in_order.iter().take(BLOCKERS_NAMED))
            .map(|(Reverse(amount), name, _)| (*amount, name.as_str()));
        let named = largest(first);
        Blocker {
            more: count.saturating_sub(named.gangs.len()),
            ..named
        }
    }
}

/// The largest by amount, then by name.
pub(crate) fn largest<'a>(shares: impl Iterator<Item = (i128, &'a str)>) -> Blocker {
    let mut named: Vec<(Reverse<i128>, &str)> = Vec::with_capacity(BLOCKERS_NAMED + 1);
    let mut count = 0_usize;
    for (amount, name) in shares {
        count += 1;
        let share = (Reverse(amount), name);
        let at = named.partition_point(|known| *known <= share);
        if at < BLOCKERS_NAMED {
            named.insert(at, share);
            named.truncate(BLOCKERS_NAMED);
        }
    }
    Blocker {
        more: count - named.len(),
        gangs: named.into_iter().map(|(_, name)| name.to_owned()).collect(),
        is_partial: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_who_stand_in_the_way_are_named_and_the_others_counted() {
        let names: Vec<String> = (0..=BLOCKERS_NAMED).map(|at| format!("ml/g{at}")).collect();
        let told = |count: usize| largest((0..).zip(names.iter().map(String::as_str)).take(count));
        let all = told(BLOCKERS_NAMED);
        assert_eq!((all.gangs.len(), all.more), (BLOCKERS_NAMED, 0));
        let more = told(BLOCKERS_NAMED + 1);
        assert_eq!((more.gangs.len(), more.more), (BLOCKERS_NAMED, 1));
        assert!(!more.gangs.contains(&names[0]), "the one that holds least");
    }

    /// A node is back with what it held of a claim that has devices of another Flavor elsewhere by now.
    #[test]
    fn what_a_claim_has_on_two_nodes_is_charged_on_both_in_whatever_order_it_comes_and_goes() {
        let hold = |pod: &str, node: &str, flavor: &str| Hold {
            pod: pod.into(),
            gang: "g".into(),
            gang_name: "ml/g".to_owned(),
            team: "a".into(),
            node: node.into(),
            charged_to_node: false,
            resources: crate::model::PodResources::default(),
            charged: Vec::new(),
            claims: vec![crate::model::HeldClaim {
                uid: "shared".into(),
                flavor: flavor.into(),
                gpus: Amount(2 * Amount::ONE_GPU.0),
                vram: Amount::ZERO,
                request: None,
                devices: None,
            }],
            releasing: false,
        };
        let team = TeamName::from("a");
        let charged = |charges: &Charges| {
            let of_team = charges.of_team(&team);
            let of_team = of_team.map(|(of, amount)| (of.flavor.to_string(), amount.0));
            of_team.collect::<Vec<_>>()
        };
        let both = [("a100".to_owned(), 2_000), ("h100".to_owned(), 2_000)];
        let on_n1 = [hold("q", "n1", "h100"), hold("r", "n1", "h100")];
        for back in ["p", "s"] {
            let back = hold(back, "n0", "a100");
            for comes_at in 0..=on_n1.len() {
                let mut charges = Charges::default();
                let mut in_order: Vec<&Hold> = on_n1.iter().collect();
                in_order.insert(comes_at, &back);
                for hold in in_order {
                    charges.add(hold);
                }
                assert_eq!(charged(&charges), both, "{} comes {comes_at}.", back.pod);
                let gone = BTreeMap::from([(back.pod.clone(), &back)]);
                let given_back = charges.without(&gone);
                let given_back = given_back.iter().filter(|delta| delta.amount != 0);
                let given_back: Vec<_> = given_back
                    .map(|delta| (delta.of.flavor.to_string(), delta.amount))
                    .collect();
                assert_eq!(given_back, [("a100".to_owned(), -2_000)]);
                let gone = on_n1.iter().take(1);
                let gone = gone.map(|hold| (hold.pod.clone(), hold)).collect();
                assert!(
                    charges.without(&gone).is_empty(),
                    "another pod has it still"
                );
                charges.remove(&back);
                assert_eq!(charged(&charges), both[1..]);
                charges.remove(&on_n1[0]);
                assert_eq!(charged(&charges), both[1..]);
                charges.remove(&on_n1[1]);
                assert!(charged(&charges).is_empty() && charges.claims.is_empty());
            }
        }
    }

    /// Gangs of several Teams come, grow, shrink and go; whoever holds most is named, of all Teams as of each of them.
    #[test]
    fn who_holds_most_of_all_is_found_without_asking_every_team() {
        let of = FlavorResource {
            flavor: "h100".into(),
            resource: Resource::Gpus,
        };
        let hold = |number: i64| Hold {
            pod: format!("p{number}").into(),
            gang: format!("g{}", number % 17).into(),
            gang_name: format!("team/g{}", number % 17),
            team: format!("t{}", number % 17 % 7).into(),
            node: "n".into(),
            charged_to_node: false,
            resources: crate::model::PodResources::default(),
            charged: vec![ResourceCharge {
                of: of.clone(),
                amount: Amount(1 + number * 7 % 5),
            }],
            claims: Vec::new(),
            releasing: false,
        };
        let teams: Vec<TeamName> = (0..7).map(|team| format!("t{team}").into()).collect();
        let all: Vec<&TeamName> = teams.iter().collect();
        let mut charges = Charges::default();
        let check = |charges: &Charges| {
            let told = charges.blocker(&of, None);
            assert_eq!(told, charges.blocker(&of, Some(&all)));
            told
        };
        for number in 0..60 {
            charges.add(&hold(number));
            check(&charges);
            if number % 3 == 2 {
                charges.remove(&hold(number / 3));
                check(&charges);
            }
        }
        assert_eq!(check(&charges).more, 17 - BLOCKERS_NAMED);
        for number in 20..60 {
            charges.remove(&hold(number));
            check(&charges);
        }
        assert_eq!(check(&charges), Blocker::default());
        assert!(charges.shares.is_empty());
    }
}
