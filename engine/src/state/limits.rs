//! Limits, and what a change of them or of the inventory has judged again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    State,
    ids::{ClassId, TeamId},
    share_waits::ShareWaits,
    team::TeamEntry,
};
use crate::{
    model::{Cohort, Quota, Stop, Team, Topology},
    names::{CohortName, FlavorName, TeamName, TopologyName},
    quota::{
        Weight,
        automatic::{Automatic, Owner},
        request::{Assignment, assignments},
    },
};

/// What was told of Teams, Cohorts and Topologies.
#[derive(Clone, Debug, Default)]
pub(super) struct Limits {
    pub(super) teams: BTreeMap<TeamName, Team>,
    pub(super) cohorts: BTreeMap<CohortName, Cohort>,
    pub(super) topologies: BTreeMap<TopologyName, Topology>,
    /// Whose nominal quota follows the inventory. Teams and Cohorts above have it as it was divided last.
    pub(super) automatic: Automatic,
}

impl Limits {
    /// Takes in a Cohort; whether that changes anything.
    pub(super) fn set_cohort(&mut self, cohort: Cohort) -> bool {
        let changes = self.cohorts.get(&cohort.name) != Some(&cohort);
        self.cohorts.insert(cohort.name.clone(), cohort);
        changes
    }

    /// A Team as it was told, with its part of what follows the inventory.
    pub(super) fn resolved_team(&mut self, mut team: Team) -> Team {
        let owner = Owner::Team(team.name.clone());
        self.automatic.note_quota(&owner, &team.quota, team.weight);
        self.automatic.resolve(&owner, &mut team.quota);
        team
    }

    /// A Cohort as it was told, with its part of what follows the inventory.
    pub(super) fn resolved_cohort(&mut self, mut cohort: Cohort) -> Cohort {
        let owner = Owner::Cohort(cohort.name.clone());
        self.automatic
            .note_quota(&owner, &cohort.quota, cohort.weight);
        self.automatic.resolve(&owner, &mut cohort.quota);
        cohort
    }

    /// Takes in a Topology; whether that changes anything.
    pub(super) fn set_topology(&mut self, topology: &Topology) -> bool {
        let changes = self.topologies.get(&topology.name) != Some(topology);
        self.topologies
            .insert(topology.name.clone(), topology.clone());
        changes
    }
}

impl State {
    pub(super) fn set_team(&mut self, team: Team) {
        let id = self.team_id(&team.name);
        let queueing = team.queueing;
        let name = team.name.clone();
        let before = self.limits.teams.insert(name.clone(), team);
        let Some(team) = self.limits.teams.get(&name) else {
            return;
        };
        if before.as_ref() == Some(team) {
            return;
        }
        let same = |same: fn(&Team, &Team) -> bool| {
            before.as_ref().is_some_and(|before| same(before, team))
        };
        self.tree_is_stale |= !same(|one, other| {
            one.quota == other.quota
                && one.cohort == other.cohort
                && one.preemption == other.preemption
                && one.weight == other.weight
                && one.shrink == other.shrink
        });
        let has_other_discipline = !same(|one, other| one.queueing == other.queueing);
        let has_other_order =
            before.as_ref().and_then(|it| it.fairness.as_ref()) != team.fairness.as_ref();
        if has_other_discipline || has_other_order {
            let fairness = team.fairness.clone();
            self.change_discipline(id, has_other_discipline.then_some(queueing), fairness);
        }
        self.stale_teams.insert(id);
    }

    pub(super) fn remove_team(&mut self, name: &TeamName) {
        let owner = Owner::Team(name.clone());
        let nothing = Quota::new();
        self.limits
            .automatic
            .note_quota(&owner, &nothing, Weight::default());
        if let Some(before) = self.limits.teams.remove(name) {
            self.tree_is_stale = true;
            if let Some(id) = self.team_ids.get(name).copied() {
                if before.fairness.is_some() {
                    self.change_discipline(id, None, None);
                }
                self.stale_teams.insert(id);
                self.forget_team_if_unused(id);
            }
        }
    }

    pub(super) fn remove_cohort(&mut self, name: &CohortName) {
        let owner = Owner::Cohort(name.clone());
        let nothing = Quota::new();
        self.limits
            .automatic
            .note_quota(&owner, &nothing, Weight::default());
        self.tree_is_stale |= self.limits.cohorts.remove(name).is_some();
    }

    /// Divides anew what follows the inventory, as far as that changed: once for all changes.
    fn divide_inventory(&mut self) {
        for owner in self.limits.automatic.divide_again() {
            match owner {
                Owner::Team(name) => {
                    if let Some(team) = self.limits.teams.get(&name).cloned() {
                        let team = self.limits.resolved_team(team);
                        self.set_team(team);
                    }
                }
                Owner::Cohort(name) => {
                    if let Some(cohort) = self.limits.cohorts.get(&name).cloned() {
                        let cohort = self.limits.resolved_cohort(cohort);
                        self.tree_is_stale |= self.limits.set_cohort(cohort);
                    }
                }
            }
        }
    }

    fn change_discipline(
        &mut self,
        id: TeamId,
        queueing: Option<crate::model::Queueing>,
        fairness: Option<crate::AdmissionFairness>,
    ) {
        let Some(entry) = self.teams.get(id) else {
            return;
        };
        let line: Vec<_> = entry.line.values().copied().collect();
        let given_way: Vec<_> = entry.given_way.values().copied().collect();
        for gang in &line {
            self.unseat(*gang);
        }
        for gang in &given_way {
            self.stand_aside(*gang, false);
        }
        if let Some(entry) = self.teams.get_mut(id)
            && let Some(queueing) = queueing
        {
            entry.set_discipline(queueing);
        }
        self.set_fairness(id, fairness);
        for gang in line {
            self.seat(gang);
        }
        for gang in given_way {
            self.stand_aside(gang, true);
        }
    }

    /// The number of a Team; a new one where it is not known.
    pub(super) fn team_id(&mut self, name: &TeamName) -> TeamId {
        if let Some(id) = self.team_ids.get(name) {
            return *id;
        }
        let id = self.teams.insert(TeamEntry::new(name.clone()));
        self.team_ids.insert(name.clone(), id);
        id
    }

    /// A Team without an object and without gangs is as good as unknown.
    pub(super) fn forget_team_if_unused(&mut self, id: TeamId) {
        let Some(entry) = self.teams.get(id) else {
            return;
        };
        if entry.gangs > 0 || self.limits.teams.contains_key(&entry.name) {
            return;
        }
        if let Some(entry) = self.teams.remove(id) {
            self.team_ids.remove(&entry.name);
            self.backfill.forget_team(id);
        }
        self.served.remove(&id);
        self.stale_teams.remove(&id);
        self.strict_by_inventory.remove(&id);
        self.changed_teams.remove(&id);
    }

    /// Brings everything that is derived up to date.
    pub(super) fn refresh(&mut self) {
        let are_limits_told = self.tree_is_stale;
        self.divide_inventory();
        let kinds = self.cluster.kinds_version();
        if std::mem::replace(&mut self.kinds, kinds) != kinds {
            self.wake_all();
        }
        if std::mem::take(&mut self.inventory_changed) {
            self.note_placement_reasons();
        }
        let is_rebuilt = std::mem::take(&mut self.tree_is_stale);
        if is_rebuilt {
            self.rebuild_tree();
        }
        // A node that comes and goes is no reason to go round once more.
        if are_limits_told {
            self.circles.forget_all();
        }
        let stale_teams = std::mem::take(&mut self.stale_teams);
        let limits_changed = is_rebuilt || !stale_teams.is_empty();
        for id in stale_teams {
            self.bring_up_to_date(id);
            self.changed_teams.insert(id);
            self.wake_team(id);
        }
        self.settle_aside();
        if limits_changed {
            self.naming.note_may_be_for_others();
            self.reservations.judge_all_again();
            self.trim_keeps();
            self.end_vain_reservations();
        }
    }

    /// Limits changed: once for all changes, in time linear in the tree and in the classes that wait for quota.
    fn rebuild_tree(&mut self) {
        let mut waiting: BTreeSet<ClassId> = self.waits.for_quota();
        waiting.extend(&self.waits.change);
        waiting.extend(self.hopes.everybody());
        for class in waiting {
            self.wake(class);
        }
        (self.tree, self.moments) = self.built_trees();
        self.share_waits = ShareWaits::of(&self.moments.afterwards);
        self.note_limits_of_shrinking();
        self.limits_version += 1;
        self.charge_version += 1;
        let ids: Vec<TeamId> = self.team_ids.values().copied().collect();
        for id in ids {
            let was_active = self.teams.get(id).is_some_and(|team| team.node.is_some());
            self.bring_up_to_date(id);
            let Some(entry) = self.teams.get(id) else {
                continue;
            };
            let (is_active, listed) = (entry.node.is_some(), entry.listed);
            if is_active == was_active {
                self.list(id, listed);
            } else {
                self.changed_teams.insert(id);
                self.wake_team(id);
            }
        }
    }

    /// Whether gangs of a Team may be admitted, and what they are charged to.
    fn bring_up_to_date(&mut self, id: TeamId) {
        let Some(entry) = self.teams.get_mut(id) else {
            return;
        };
        let team = self.limits.teams.get(&entry.name);
        let active = team.is_some_and(|team| team.stop == Stop::None);
        entry.node = self.tree.node_of(&entry.name).filter(|_| active);
        entry.fungibility = team.map_or_else(Default::default, |team| team.fungibility);
        let assignments = team.map(|team| assignments(team, &mut self.tree));
        let assignments = assignments.unwrap_or_default();
        let flavors = |all: &[Assignment]| -> Vec<FlavorName> {
            all.iter().map(|it| it.flavor.clone()).collect()
        };
        let are_same = flavors(&entry.assignments) == flavors(&assignments);
        entry.assignments = Arc::from(assignments);
        if !are_same {
            self.change_flavors(id);
        }
        self.line_up_anew(id);
    }

    /// A Flavor or a Topology is another one: what was found out about places does not hold any more.
    pub(super) fn judge_all_again(&mut self) {
        self.inventory_changed();
        self.shapes.forget();
        self.reservations.judge_all_again();
        self.keeps.judge_all_again();
        self.wake_all();
    }

    fn wake_all(&mut self) {
        let all: Vec<ClassId> = self.classes.iter().map(|(id, _)| id).collect();
        for class in all {
            self.wake(class);
        }
    }

    /// What the empty cluster could hold may be another answer, and what devices of claims are charged to.
    pub(super) fn inventory_changed(&mut self) {
        self.inventory += 1;
        self.inventory_changed = true;
        for team in std::mem::take(&mut self.strict_by_inventory) {
            self.line_up_anew(team);
        }
        for class in self.with_allocated_claims.clone() {
            self.wake(class);
        }
    }

    /// A gang that is told that there is no place may be told something else about it.
    fn note_placement_reasons(&mut self) {
        let teams: BTreeSet<TeamId> = self
            .waits
            .groups()
            .flat_map(|(_, group)| group.teams())
            .collect();
        self.changed_teams.extend(teams);
    }
}
