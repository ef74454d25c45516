//! Which Teams have to be looked at again: those for whose gangs a decision or an explanation may come out
//! differently than last time. With thousands of gangs that wait, most of what is observed concerns few of them.

use std::collections::BTreeSet;

use crate::{names::TeamName, quota::QuotaTree};

/// What changed since the last decision.
#[derive(Clone, Debug, Default)]
pub(super) struct Unsettled {
    everything: bool,
    /// What is free on some node.
    nodes: bool,
    /// Teams whose queue changed, or a claim that a gang of theirs names.
    teams: BTreeSet<TeamName>,
    /// Teams that are charged something else: it concerns their whole tree.
    charged: BTreeSet<TeamName>,
    /// Not a change, but what the last explanations rest on: Teams with a gang whose reason depends on
    /// what is free on nodes, whoever holds it.
    waiting_for_nodes: BTreeSet<TeamName>,
}

impl Unsettled {
    pub(super) fn everything(&mut self) {
        self.everything = true;
    }

    pub(super) fn nodes(&mut self) {
        self.nodes = true;
    }

    pub(super) fn team(&mut self, team: &TeamName) {
        if !self.teams.contains(team) {
            self.teams.insert(team.clone());
        }
    }

    pub(super) fn charged(&mut self, team: &TeamName) {
        if !self.charged.contains(team) {
            self.charged.insert(team.clone());
        }
    }

    /// Remembers whether a Team has a gang whose reason depends on nodes.
    pub(super) fn waits_for_nodes(&mut self, team: &TeamName, waits: bool) {
        if waits {
            self.waiting_for_nodes.insert(team.clone());
        } else {
            self.waiting_for_nodes.remove(team);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.everything && !self.nodes && self.teams.is_empty() && self.charged.is_empty()
    }

    /// Of these Teams, those that are concerned.
    pub(super) fn among<'a>(
        &self,
        teams: impl Iterator<Item = &'a TeamName>,
        tree: &QuotaTree,
    ) -> Vec<TeamName> {
        let roots: BTreeSet<usize> = self
            .charged
            .iter()
            .filter_map(|team| tree.root_of(team))
            .collect();
        let concerned = teams.filter(|team| {
            self.everything
                || self.teams.contains(*team)
                || (self.nodes && self.waiting_for_nodes.contains(*team))
                || tree.root_of(team).is_some_and(|root| roots.contains(&root))
        });
        concerned.cloned().collect()
    }

    /// Everything was looked at.
    pub(super) fn settle(&mut self) {
        let waiting_for_nodes = std::mem::take(&mut self.waiting_for_nodes);
        *self = Self {
            waiting_for_nodes,
            ..Self::default()
        };
    }
}
