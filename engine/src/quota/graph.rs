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
        let mut depths: BTreeMap<&CohortName, usize> = BTreeMap::new();
        for name in self.parents.keys() {
            if !self.endless.contains_key(name) {
                self.note_depths(name, &mut depths);
            }
        }
        let mut by_depth: Vec<(usize, &CohortName)> = depths
            .into_iter()
            .map(|(name, depth)| (depth, name))
            .collect();
        by_depth.sort();
        by_depth.into_iter().map(|(_, name)| name).collect()
    }

    /// Walks up as far as nothing is known: each Cohort is passed once, however deep the tree.
    fn note_depths<'a>(
        &'a self,
        name: &'a CohortName,
        depths: &mut BTreeMap<&'a CohortName, usize>,
    ) {
        let mut way = Vec::new();
        let mut at = Some(name);
        while let Some(name) = at.filter(|name| !depths.contains_key(*name)) {
            way.push(name);
            at = self.parents.get(name).and_then(Option::as_ref);
        }
        let above = at.and_then(|known| depths.get(known)).copied();
        let first = above.map_or(0, |above| above + 1);
        for (depth, name) in (first..).zip(way.into_iter().rev()) {
            depths.insert(name, depth);
        }
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
