//! The shape of the quota tree: who hangs below whom, and which trees are cut off by a cycle.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    model::{Cohort, Team},
    names::{CohortName, TeamName},
};

/// Which Cohort is whose parent, Cohorts without an object included.
pub(super) struct Graph {
    /// Every Cohort that has an object or is named, with its parent.
    pub(super) parents: BTreeMap<CohortName, Option<CohortName>>,
    /// Cohorts from which the way up never ends, each with the first Cohort by name on its cycle.
    pub(super) endless: BTreeMap<CohortName, CohortName>,
}

impl Graph {
    pub(super) fn new(
        teams: &BTreeMap<TeamName, Team>,
        cohorts: &BTreeMap<CohortName, Cohort>,
    ) -> Self {
        let mut parents: BTreeMap<CohortName, Option<CohortName>> = BTreeMap::new();
        let named = teams
            .values()
            .filter_map(|team| team.cohort.clone())
            .chain(cohorts.values().filter_map(|cohort| cohort.parent.clone()));
        for name in named {
            parents.insert(name, None);
        }
        for cohort in cohorts.values() {
            parents.insert(cohort.name.clone(), cohort.parent.clone());
        }
        let endless = endless(&parents);
        Self { parents, endless }
    }

    /// Cohorts that hang in a tree that ends, parents before children.
    pub(super) fn parents_first(&self) -> Vec<&CohortName> {
        let mut by_depth: Vec<(usize, &CohortName)> = self
            .parents
            .keys()
            .filter(|name| !self.endless.contains_key(*name))
            .map(|name| (self.depth(name), name))
            .collect();
        by_depth.sort();
        by_depth.into_iter().map(|(_, name)| name).collect()
    }

    fn depth(&self, name: &CohortName) -> usize {
        let mut depth = 0;
        let mut at = name;
        while let Some(Some(parent)) = self.parents.get(at) {
            depth += 1;
            at = parent;
        }
        depth
    }
}

/// Walks up from every Cohort once; what was walked before is known to end or not.
fn endless(parents: &BTreeMap<CohortName, Option<CohortName>>) -> BTreeMap<CohortName, CohortName> {
    let mut ends: BTreeSet<&CohortName> = BTreeSet::new();
    let mut endless: BTreeMap<CohortName, CohortName> = BTreeMap::new();
    for start in parents.keys() {
        let mut path: Vec<&CohortName> = Vec::new();
        let mut seen: BTreeSet<&CohortName> = BTreeSet::new();
        let mut at = Some(start);
        let cycle = loop {
            let Some(name) = at else { break None };
            if ends.contains(name) {
                break None;
            }
            if let Some(known) = endless.get(name) {
                break Some(known.clone());
            }
            if !seen.insert(name) {
                let from = path.iter().position(|step| *step == name).unwrap_or(0);
                break path
                    .get(from..)
                    .and_then(|cycle| cycle.iter().min())
                    .map(|first| (*first).clone());
            }
            path.push(name);
            at = parents.get(name).and_then(Option::as_ref);
        };
        match cycle {
            None => ends.extend(path),
            Some(first) => {
                endless.extend(path.into_iter().map(|name| (name.clone(), first.clone())));
            }
        }
    }
    endless
}
