//! The engine's memory of the cluster, and the one place where a decision is made.
//!
//! Invariants: what was admitted counts as held, and charged, before anything else is decided. Whether a
//! gang may be admitted is derived from what is known, never remembered: a gang that is told as waiting
//! takes part as long as none of its pods holds anything. So updates may come twice, late and in any
//! order (S10), and asking again decides nothing again.

mod admit;
mod explain;
mod judge;
mod unsettled;
mod waiting;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use unsettled::Unsettled;
use waiting::{WaitingGang, WaitingRoom};

use crate::{
    amount::{Amount, FlavorResource},
    decision::{Decision, Explanation},
    model::{Cohort, Flavor, Gang, Hold, Team, Update},
    names::{CohortName, FlavorName, GangUid, PodUid, TeamName, Timestamp},
    placement::{Cluster, NodeChange},
    quota::{
        QuotaTree,
        charges::{Charges, Delta},
    },
};

/// What a Team has and uses of one resource of one Flavor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The Flavor and resource.
    pub of: FlavorResource,
    /// Guaranteed to the Team.
    pub nominal: Amount,
    /// Charged to the Team, releasing holds included.
    pub used: Amount,
    /// Of `used`, what lies above `nominal`.
    pub borrowed: Amount,
    /// What the Team could get in addition now, borrowing included; nothing while its tree has a fault.
    pub available: Amount,
}

/// The engine's picture of the cluster.
#[derive(Clone, Debug, Default)]
pub struct State {
    teams: BTreeMap<TeamName, Team>,
    cohorts: BTreeMap<CohortName, Cohort>,
    flavors: BTreeMap<FlavorName, Flavor>,
    cluster: Cluster,
    holds: BTreeMap<PodUid, Arc<Hold>>,
    /// Pods of gangs that were admitted here and whose holds were not told yet.
    provisional: BTreeMap<GangUid, BTreeSet<PodUid>>,
    charges: Charges,
    tree: QuotaTree,
    /// Whether limits changed since `tree` was built.
    tree_is_stale: bool,
    /// Pods whose holds only wait for the proof of release.
    releasing: BTreeSet<PodUid>,
    waiting: WaitingRoom,
    told: BTreeMap<GangUid, Explanation>,
    unsettled: Unsettled,
}

impl State {
    /// A state that has observed nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in what was observed. Level-triggered: twice or late does no harm.
    pub fn apply(&mut self, update: Update) {
        match update {
            Update::Team(team) => {
                self.teams.insert(team.name.clone(), team);
                self.limits_changed();
            }
            Update::TeamGone(name) => {
                self.teams.remove(&name);
                self.limits_changed();
            }
            Update::Cohort(cohort) => {
                self.cohorts.insert(cohort.name.clone(), cohort);
                self.limits_changed();
            }
            Update::CohortGone(name) => {
                self.cohorts.remove(&name);
                self.limits_changed();
            }
            Update::Flavor(flavor) => {
                self.flavors.insert(flavor.name.clone(), flavor);
                self.unsettled.everything();
            }
            Update::FlavorGone(name) => {
                self.flavors.remove(&name);
                self.unsettled.everything();
            }
            Update::Topology(topology) => {
                self.cluster.set_topology(topology);
                self.unsettled.everything();
            }
            Update::TopologyGone(name) => {
                self.cluster.remove_topology(&name);
                self.unsettled.everything();
            }
            Update::Node(node) => match self.cluster.set_node(node) {
                NodeChange::None => {}
                NodeChange::Free => self.unsettled.nodes(),
                NodeChange::Inventory => self.unsettled.everything(),
            },
            Update::NodeGone(name) => {
                self.cluster.remove_node(&name);
                self.unsettled.everything();
            }
            Update::Waiting(gang) => self.set_waiting(gang),
            Update::NotWaiting(uid) => self.remove_waiting(&uid),
            Update::Hold(hold) => {
                self.no_longer_provisional(&hold.gang, &hold.pod);
                self.set_hold(hold);
            }
            Update::HoldGone(pod) => self.remove_told_hold(&pod),
        }
    }

    /// Decides all that can be decided now. What it admits it counts as held from then on; asked
    /// again without new observations, it says nothing. (Nothing that is decided so far depends on the time.)
    pub fn decide(&mut self, _now: Timestamp) -> Vec<Decision> {
        if self.unsettled.is_empty() {
            return Vec::new();
        }
        self.refresh();
        let admissions = self.admit_all().into_iter().map(Decision::Admit);
        let mut decisions: Vec<Decision> = admissions.collect();
        // What was admitted unsettled others: their numbers are those of the end.
        decisions.extend(self.explain_all().into_iter().map(Decision::Explain));
        self.unsettled.settle();
        decisions
    }

    /// Takes back an admission that could not be committed: what no hold was told for is held no longer,
    /// and the gang waits again, unless it was told that it does not.
    pub fn undo(&mut self, gang: &GangUid) {
        for pod in self.provisional.remove(gang).unwrap_or_default() {
            self.remove_hold(&pod);
        }
    }

    /// What a Team has and uses, by Flavor and resource: first what its quota names, in its order, then
    /// what it is charged besides. Empty for an unknown Team.
    pub fn usage(&self, team: &TeamName) -> Vec<Usage> {
        let Some(known) = self.teams.get(team) else {
            return Vec::new();
        };
        let tree = self.current_tree();
        let used: BTreeMap<&FlavorResource, Amount> = self.charges.of_team(team).collect();
        let named: Vec<(FlavorResource, Amount)> = known
            .quota
            .iter()
            .flat_map(|(flavor, resources)| {
                resources.iter().map(|(resource, limit)| {
                    let of = FlavorResource {
                        flavor: flavor.clone(),
                        resource: resource.clone(),
                    };
                    (of, limit.nominal)
                })
            })
            .collect();
        let unnamed: Vec<(FlavorResource, Amount)> = used
            .keys()
            .filter(|of| !named.iter().any(|(known, _)| known == **of))
            .map(|of| ((*of).clone(), Amount::ZERO))
            .collect();
        named
            .into_iter()
            .chain(unnamed)
            .map(|(of, nominal)| {
                let used = used.get(&of).copied().unwrap_or_default();
                Usage {
                    nominal,
                    used,
                    borrowed: Amount(used.0.saturating_sub(nominal.0).max(0)),
                    available: tree.available(team, &of).unwrap_or_default(),
                    of,
                }
            })
            .collect()
    }

    /// The gangs of a Team that wait, first to be served first.
    pub fn queue(&self, team: &TeamName) -> Vec<&Gang> {
        self.waiting
            .queued(team)
            .map(|waiting| &waiting.gang)
            .collect()
    }

    /// Why a gang waits, as [`State::decide`] last told it.
    pub fn explanation(&self, gang: &GangUid) -> Option<&Explanation> {
        self.told.get(gang)
    }

    fn limits_changed(&mut self) {
        self.tree_is_stale = true;
        self.unsettled.everything();
    }

    fn set_waiting(&mut self, gang: Gang) {
        if self
            .waiting
            .get(&gang.uid)
            .is_some_and(|known| known.gang == gang)
        {
            return;
        }
        if let Some(team) = self.waiting.leave(&gang.uid) {
            self.unsettled.team(&team);
        }
        self.unsettled.team(&gang.team);
        self.waiting.enter(gang, |pod| self.holds.contains_key(pod));
    }

    fn remove_waiting(&mut self, uid: &GangUid) {
        if let Some(team) = self.waiting.leave(uid) {
            self.unsettled.team(&team);
        }
        self.told.remove(uid);
    }

    fn no_longer_provisional(&mut self, gang: &GangUid, pod: &PodUid) {
        if let Some(pods) = self.provisional.get_mut(gang) {
            pods.remove(pod);
            if pods.is_empty() {
                self.provisional.remove(gang);
            }
        }
    }

    fn set_hold(&mut self, hold: Hold) {
        if self
            .holds
            .get(&hold.pod)
            .is_some_and(|known| **known == hold)
        {
            return;
        }
        self.remove_hold(&hold.pod.clone());
        let hold = Arc::new(hold);
        let deltas = self.charges.add(&hold);
        self.change_tree(&deltas);
        self.cluster.add_hold(&hold);
        if hold.releasing && !hold.charged_to_node {
            self.releasing.insert(hold.pod.clone());
        }
        if let Some(gang) = self.waiting.pod_holds(&hold.pod, true) {
            self.unsettled.team(&gang.team);
            self.told.remove(&gang.uid);
        }
        self.unsettle_by(&hold);
        self.holds.insert(hold.pod.clone(), hold);
    }

    /// A hold came or went.
    fn unsettle_by(&mut self, hold: &Hold) {
        self.unsettled.nodes();
        self.unsettled.charged(&hold.team);
        for team in hold
            .claims
            .iter()
            .flat_map(|claim| self.waiting.naming(&claim.uid))
        {
            self.unsettled.team(team);
        }
    }

    /// A hold is gone. One that only this engine knows of cannot be: that word is of an earlier one.
    fn remove_told_hold(&mut self, pod: &PodUid) {
        let gang = self.holds.get(pod).map(|hold| &hold.gang);
        let provisional = gang.and_then(|gang| self.provisional.get(gang));
        if !provisional.is_some_and(|pods| pods.contains(pod)) {
            self.remove_hold(pod);
        }
    }

    fn remove_hold(&mut self, pod: &PodUid) {
        let Some(hold) = self.holds.remove(pod) else {
            return;
        };
        let deltas = self.charges.remove(&hold);
        self.change_tree(&deltas);
        self.cluster.remove_hold(&hold);
        self.releasing.remove(pod);
        if let Some(gang) = self.waiting.pod_holds(pod, false) {
            self.unsettled.team(&gang.team);
        }
        self.unsettle_by(&hold);
    }

    fn change_tree(&mut self, deltas: &[Delta]) {
        for delta in deltas {
            self.unsettled.charged(&delta.team);
        }
        if !self.tree_is_stale {
            change_tree(&mut self.tree, deltas);
            // A sum that did not fit left the tree half changed.
            if self.tree.is_overflowed() {
                self.limits_changed();
            }
        }
    }

    fn current_tree(&self) -> Cow<'_, QuotaTree> {
        if self.tree_is_stale {
            Cow::Owned(QuotaTree::new(
                &self.teams,
                &self.cohorts,
                self.charges.sums(),
            ))
        } else {
            Cow::Borrowed(&self.tree)
        }
    }

    /// Brings everything that is derived up to date.
    fn refresh(&mut self) {
        if self.tree_is_stale {
            self.tree = QuotaTree::new(&self.teams, &self.cohorts, self.charges.sums());
            self.tree_is_stale = false;
        }
        self.cluster.refresh();
    }
}

fn change_tree(tree: &mut QuotaTree, deltas: &[Delta]) {
    for delta in deltas {
        let amount = Amount(delta.amount.saturating_abs());
        if delta.amount < 0 {
            tree.discharge(&delta.team, &delta.of, amount);
        } else {
            tree.charge(&delta.team, &delta.of, amount);
        }
    }
}
