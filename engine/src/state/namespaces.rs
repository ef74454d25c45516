//! What the namespaces of Teams used, and what that moves: see [`crate::fairness`].
//!
//! A namespace moves by an admission of one of its gangs, when that is undone, and with each sample. Then the classes move in which it
//! has gangs, and none of these gangs ([`super::namespace_line`]). Samples are taken of the Teams that ask for it, and of their
//! namespaces that hold or used something.

use std::collections::{BTreeMap, BTreeSet};

use super::{State, ids::TeamId, namespace_line::NamespaceLine};
use crate::{
    decision::Admission,
    fairness::{Accounts, AdmissionFairness, Held, NamespaceUse, WeightedUse},
    names::{GangUid, NamespaceName, TeamName, Timestamp},
    quota::charges::Delta,
};

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Namespaces {
    teams: BTreeMap<TeamName, Accounts>,
    /// When the next sample of each Team is due that holds or used something.
    due: BTreeSet<(Timestamp, TeamName)>,
    due_of: BTreeMap<TeamName, Timestamp>,
    /// Teams that may have something to begin with.
    beginning: BTreeSet<TeamName>,
    /// What whoever decided before recorded, until the next decision.
    told: BTreeMap<TeamName, BTreeMap<NamespaceName, NamespaceUse>>,
    /// The Teams of gangs whose admission is not committed yet.
    uncommitted: BTreeMap<GangUid, TeamName>,
    /// Teams of which some namespace used something else by now than when somebody asked last.
    changed: BTreeSet<TeamName>,
}

impl Namespaces {
    pub(super) fn note_told(&mut self, told: NamespaceUse) {
        let of_team = self.told.entry(told.team.clone()).or_default();
        of_team.insert(told.namespace.clone(), told);
    }

    /// Something is charged: where nothing was held before, time begins to count.
    pub(super) fn note_held(&mut self, deltas: &[Delta]) {
        for delta in deltas {
            let accounts = self.teams.get(&delta.team);
            if accounts.is_some_and(Accounts::is_to_begin) {
                self.beginning.insert(delta.team.clone());
            }
        }
    }

    /// The admission of a gang cannot be taken back any more.
    pub(super) fn commit(&mut self, gang: &GangUid) {
        if let Some(team) = self.uncommitted.remove(gang)
            && let Some(accounts) = self.teams.get_mut(&team)
        {
            accounts.commit(gang);
        }
    }

    pub(super) fn take_changed(&mut self) -> Vec<TeamName> {
        std::mem::take(&mut self.changed).into_iter().collect()
    }

    /// When the next sample is due.
    pub(super) fn due_next(&self) -> Option<Timestamp> {
        self.due.first().map(|(at, _)| *at)
    }

    /// The clock went back by so much: no sample is taken later by that.
    pub(super) fn count_from_earlier(&mut self, seconds: i64) {
        let sampled: Vec<TeamName> = self.due_of.keys().cloned().collect();
        for team in &sampled {
            if let Some(accounts) = self.teams.get_mut(team) {
                accounts.count_from_earlier(seconds);
            }
            self.note_due(team);
        }
    }

    fn note_due(&mut self, team: &TeamName) {
        if let Some(before) = self.due_of.remove(team) {
            self.due.remove(&(before, team.clone()));
        }
        if let Some(at) = self.teams.get(team).and_then(Accounts::due_at) {
            self.due_of.insert(team.clone(), at);
            self.due.insert((at, team.clone()));
        }
    }

    fn set_policy(&mut self, team: &TeamName, policy: Option<AdmissionFairness>) {
        match (self.teams.get_mut(team), policy) {
            (Some(accounts), Some(policy)) => accounts.set_policy(policy),
            (None, Some(policy)) => {
                self.teams.insert(team.clone(), Accounts::new(policy));
            }
            (_, None) => {
                self.teams.remove(team);
                self.uncommitted.retain(|_, of| of != team);
            }
        }
        self.beginning.insert(team.clone());
        self.changed.insert(team.clone());
        self.note_due(team);
    }
}

impl State {
    /// What a namespace of a Team used lately, as it is to be shown and recorded ([`NamespaceUse`]). `None` where the order of the
    /// Team's gangs does not go by that, and for a namespace that used nothing. One that holds something and used too little to be shown is
    /// recorded with nothing: of whom nothing is recorded is taken to have held for ever what it holds.
    pub fn namespace_use(
        &self,
        team: &TeamName,
        namespace: &NamespaceName,
    ) -> Option<NamespaceUse> {
        let (used, as_of) = self.namespaces.teams.get(team)?.shown(namespace)?;
        let holds = self.charges.by_namespace(team);
        if used.is_empty() && !holds.is_some_and(|holds| holds.contains_key(namespace)) {
            return None;
        }
        Some(NamespaceUse {
            team: team.clone(),
            namespace: namespace.clone(),
            used,
            as_of,
        })
    }

    /// Where a namespace stands among those of a Team: the first before the others. Nothing where the order does not go by that.
    pub fn weighted_use(&self, team: &TeamName, namespace: &NamespaceName) -> WeightedUse {
        self.used_by(team, namespace)
    }

    pub(super) fn used_by(&self, team: &TeamName, namespace: &NamespaceName) -> WeightedUse {
        let accounts = self.namespaces.teams.get(team);
        accounts.map_or(WeightedUse::NOTHING, |accounts| accounts.use_of(namespace))
    }

    /// The order of a Team's gangs goes by what its namespaces used, or does so no longer. Nobody of it may be seated.
    pub(super) fn set_fairness(&mut self, id: TeamId, policy: Option<AdmissionFairness>) {
        let Some(name) = self.teams.get(id).map(|entry| entry.name.clone()) else {
            return;
        };
        if policy.is_none() && !self.namespaces.teams.contains_key(&name) {
            return;
        }
        let is_by_use = policy.is_some();
        self.namespaces.set_policy(&name, policy);
        let mut line = is_by_use.then(NamespaceLine::default);
        if let (Some(line), Some(entry)) = (&mut line, self.teams.get(id)) {
            for (place, gang) in &entry.line {
                if let Some(waiting) = self.waiting.get(*gang) {
                    let used = self.used_by(&name, &waiting.namespace);
                    line.insert(&waiting.namespace, used, place.clone(), *gang);
                }
            }
        }
        if let Some(entry) = self.teams.get_mut(id) {
            entry.namespaces = line;
        }
    }

    /// Takes in what was recorded before, and what is held now where that is due.
    pub(super) fn sample_namespaces(&mut self, now: Timestamp) {
        self.begin_namespaces(now);
        let nobody = BTreeMap::new();
        while let Some((at, team)) = self.namespaces.due.first().cloned()
            && at <= now
        {
            let held = self.charges.by_namespace(&team).unwrap_or(&nobody);
            let changed = match self.namespaces.teams.get_mut(&team) {
                Some(accounts) => accounts.sample(held, now),
                None => BTreeSet::new(),
            };
            self.cluster.note_visits(changed.len() as u64);
            self.move_namespaces(&team, &changed);
        }
    }

    /// Takes in what was before, of Teams that have not begun. It is asked at the end of a decision, too: whoever is the first to hold
    /// something was admitted by that.
    pub(super) fn begin_namespaces(&mut self, now: Timestamp) {
        let told = std::mem::take(&mut self.namespaces.told);
        let nobody = BTreeMap::new();
        for team in std::mem::take(&mut self.namespaces.beginning) {
            let held = self.charges.by_namespace(&team).unwrap_or(&nobody);
            let Some(accounts) = self.namespaces.teams.get_mut(&team) else {
                continue;
            };
            let changed = accounts.begin(held, told.get(&team), now);
            self.move_namespaces(&team, &changed);
        }
    }

    fn move_namespaces(&mut self, team: &TeamName, changed: &BTreeSet<NamespaceName>) {
        for namespace in changed {
            self.move_by_use(team, namespace);
        }
        self.namespaces.note_due(team);
    }

    fn move_by_use(&mut self, team: &TeamName, namespace: &NamespaceName) {
        self.namespaces.changed.insert(team.clone());
        let used = self.used_by(team, namespace);
        if let Some(id) = self.team_ids.get(team).copied() {
            self.move_namespace(id, namespace, used);
        }
    }

    /// A gang was admitted: part of its charge counts at once.
    pub(super) fn note_admitted_use(&mut self, admission: &Admission, namespace: &NamespaceName) {
        let (team, gang) = (&admission.team, &admission.gang);
        let Some(accounts) = self.namespaces.teams.get_mut(team) else {
            return;
        };
        let mut held = Held::new();
        for charge in self.charges.of_gang(team, gang) {
            *held.entry(charge.of.resource).or_default() += i128::from(charge.amount.0);
        }
        accounts.admit(gang, namespace.clone(), held);
        self.namespaces
            .uncommitted
            .insert(gang.clone(), team.clone());
        self.move_by_use(team, namespace);
    }

    /// An admission is taken back, and what it added to what its namespace used.
    pub(super) fn undo_use(&mut self, gang: &GangUid) {
        if let Some(team) = self.namespaces.uncommitted.remove(gang)
            && let Some(accounts) = self.namespaces.teams.get_mut(&team)
            && let Some(namespace) = accounts.undo(gang)
        {
            self.move_by_use(&team, &namespace);
        }
    }

    /// Where the namespace of a gang that runs stands in its Team.
    pub(super) fn use_of_running(&self, team: &TeamName, gang: &GangUid) -> WeightedUse {
        if !self.namespaces.teams.contains_key(team) {
            return WeightedUse::NOTHING;
        }
        let pod = self.running.pods_of(gang).next();
        let hold = pod.and_then(|pod| self.holds.get(pod));
        hold.map_or(WeightedUse::NOTHING, |hold| {
            self.used_by(team, &crate::model::namespace_of(&hold.gang_name))
        })
    }
}
