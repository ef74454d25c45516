//! What a Team, a Cohort and a Flavor name that does not exist, and what of them is not understood.

use std::collections::BTreeSet;

use muster_api::FlavorQuota;

use super::Index;

/// What an object names in vain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    /// Flavors of its quota that do not exist.
    pub missing_flavors: BTreeSet<String>,
    /// Whether its quota names any Flavor that exists.
    pub has_flavor: bool,
    /// The Cohort right above it, if that does not exist.
    pub missing_cohort: Option<String>,
    /// PriorityTiers that do not exist.
    pub missing_tiers: BTreeSet<String>,
    /// The Topology, if that does not exist.
    pub missing_topology: Option<String>,
    /// The Cohorts of the cycle above it, if there is one, each with its parent next; the first by name comes first.
    pub cycle: Vec<String>,
    /// What is not understood; such an entry grants nothing.
    pub faults: Vec<String>,
}

/// The Cohorts above a Team or Cohort, upwards.
struct Above<'a> {
    names: Vec<&'a String>,
    /// Where the cycle begins, if they never end.
    cycle_from: Option<usize>,
}

impl Index {
    /// What a Team names in vain, and what of it, of the Cohorts above it and of the Flavors in its quota is not understood.
    pub fn references_of_team(&self, team: &str) -> References {
        let Some(object) = self.objects.teams.get(team) else {
            return References::default();
        };
        let tiers = object.spec.tiers.iter();
        let tiers = tiers.flat_map(|tiers| tiers.allowed.iter().chain(&tiers.default));
        let missing = tiers.filter(|tier| self.objects.priority_tiers.get(*tier).is_none());
        References {
            missing_tiers: missing.cloned().collect(),
            faults: self.faults_of_team(team),
            ..self.references_of(&object.spec.quota, object.spec.cohort.as_ref())
        }
    }

    /// What a Cohort names in vain, and what of it is not understood.
    pub fn references_of_cohort(&self, cohort: &str) -> References {
        let Some(object) = self.objects.cohorts.get(cohort) else {
            return References::default();
        };
        let flavors = object.spec.quota.iter();
        let flavors = flavors.map(|quota| format!("Flavor/{}", quota.flavor));
        let named = std::iter::once(format!("Cohort/{cohort}")).chain(flavors);
        let mut references = self.references_of(&object.spec.quota, object.spec.parent.as_ref());
        references.faults = self.faults_of(named);
        references
    }

    /// What a Flavor names in vain, and what of it is not understood.
    pub fn references_of_flavor(&self, flavor: &str) -> References {
        let Some(object) = self.objects.flavors.get(flavor) else {
            return References::default();
        };
        let topology = object.spec.topology.as_ref();
        let missing = topology.filter(|name| self.objects.topologies.get(*name).is_none());
        let failure = self.failure_of_flavor(flavor);
        let failure =
            failure.map(|cause| format!("Flavor/{flavor}: spec.devices.selector: {cause}"));
        let faults = self.faults_of([format!("Flavor/{flavor}")]);
        References {
            missing_topology: missing.cloned(),
            faults: faults.into_iter().chain(failure).collect(),
            ..References::default()
        }
    }

    fn references_of(&self, quota: &[FlavorQuota], above: Option<&String>) -> References {
        let exists = |flavor: &String| self.objects.flavors.get(flavor).is_some();
        let flavors = || quota.iter().map(|quota| &quota.flavor);
        let missing = flavors().filter(|flavor| !exists(flavor));
        References {
            missing_flavors: missing.cloned().collect(),
            has_flavor: flavors().any(exists),
            missing_cohort: above
                .filter(|name| self.objects.cohorts.get(*name).is_none())
                .cloned(),
            cycle: self.cohorts_above(above).cycle(),
            ..References::default()
        }
    }

    /// What of a Team, of the Cohorts above it and of the Flavors in its quota is not understood. Such an entry grants
    /// nothing.
    pub fn faults_of_team(&self, team: &str) -> Vec<String> {
        let Some(object) = self.objects.teams.get(team) else {
            return Vec::new();
        };
        let mut named = vec![format!("Team/{team}")];
        let mut quotas = vec![&object.spec.quota];
        for cohort in self.cohorts_above(object.spec.cohort.as_ref()).names {
            named.push(format!("Cohort/{cohort}"));
            let object = self.objects.cohorts.get(cohort);
            quotas.extend(object.map(|cohort| &cohort.spec.quota));
        }
        let flavors = quotas.into_iter().flatten();
        named.extend(flavors.map(|quota| format!("Flavor/{}", quota.flavor)));
        named.dedup();
        self.faults_of(named)
    }

    fn faults_of(&self, objects: impl IntoIterator<Item = String>) -> Vec<String> {
        let faults = objects.into_iter().filter_map(|object| {
            let fault = self.faults.get(&object)?;
            Some(format!("{object}: {fault}"))
        });
        faults.collect()
    }

    fn cohorts_above<'a>(&'a self, first: Option<&'a String>) -> Above<'a> {
        let mut names: Vec<&String> = Vec::new();
        let mut seen = BTreeSet::new();
        let mut above = first;
        while let Some(cohort) = above {
            if !seen.insert(cohort) {
                let cycle_from = names.iter().position(|name| *name == cohort);
                return Above { names, cycle_from };
            }
            names.push(cohort);
            let object = self.objects.cohorts.get(cohort);
            above = object.and_then(|cohort| cohort.spec.parent.as_ref());
        }
        Above {
            names,
            cycle_from: None,
        }
    }
}

impl Above<'_> {
    fn cycle(self) -> Vec<String> {
        let on_it = self.cycle_from.map(|from| &self.names[from..]);
        let mut cycle: Vec<String> = on_it
            .unwrap_or_default()
            .iter()
            .map(|name| (*name).clone())
            .collect();
        let first = cycle.iter().enumerate().min_by_key(|(_, name)| *name);
        if let Some((first, _)) = first {
            cycle.rotate_left(first);
        }
        cycle
    }
}
