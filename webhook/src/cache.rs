//! What the webhook knows of other objects, from its watches.
//!
//! **It may be late.** So nothing is refused because something is missing here that a user may have made a
//! moment ago and that the engine judges again: an unknown Team, Flavor or Cohort is no error. The
//! exceptions (a tier, a topology level, a GPU with that much memory that does not exist) are things that an
//! administrator makes long before, and a second try succeeds.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::{
        core::v1::Namespace,
        resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use muster_api::{Cohort, Flavor, FlavorSpec, PriorityTier, Team, TeamSpec, Topology, keys};
use muster_cluster::shorthand::{ClassMemory, MemoryDeclaration};

use crate::{claims::Asked, gpus::Gpus};

/// The level that every Topology ends with.
pub const NODE_LEVEL: &str = "node";

/// Everything that checks look at besides the object itself.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    /// Team of each namespace that is labelled with one.
    pub team_of_namespace: BTreeMap<String, String>,
    /// Teams.
    pub teams: BTreeMap<String, TeamSpec>,
    /// Parent of each Cohort.
    pub parent_of_cohort: BTreeMap<String, Option<String>>,
    /// Flavors.
    pub flavors: BTreeMap<String, FlavorSpec>,
    /// PriorityTiers.
    pub tiers: BTreeSet<String>,
    /// Levels of each Topology, outermost first.
    pub levels_of_topology: BTreeMap<String, Vec<String>>,
    /// GPUs of our driver.
    pub gpus: Gpus,
    /// What DeviceClasses say about memory.
    pub device_classes: BTreeMap<String, ClassMemory>,
    /// What does not say how much GPU memory it needs, of ResourceClaimTemplates.
    pub silent_templates: SilentClaims,
    /// The same of ResourceClaims that were made from no template.
    pub silent_claims: SilentClaims,
}

/// Claims, or templates of them, that do not say how much GPU memory they need, by namespace and name. All others are left out: they are
/// nothing to anybody here.
#[derive(Clone, Debug, Default)]
pub struct SilentClaims(BTreeMap<String, BTreeMap<String, MemoryDeclaration>>);

impl SilentClaims {
    /// What does not say it in the claim of that name, if that is known.
    pub fn get(&self, namespace: &str, name: &str) -> Option<&MemoryDeclaration> {
        self.0.get(namespace)?.get(name)
    }

    fn put<K>(&mut self, asked: &Asked<K>) {
        if asked.memory.is_whole() {
            self.remove(&asked.metadata);
            return;
        }
        let namespace = asked.metadata.namespace.clone().unwrap_or_default();
        let of_namespace = self.0.entry(namespace).or_default();
        of_namespace.insert(name(&asked.metadata), asked.memory.clone());
    }

    fn remove(&mut self, metadata: &ObjectMeta) {
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        if let Some(of_namespace) = self.0.get_mut(namespace) {
            of_namespace.remove(&name(metadata));
            if of_namespace.is_empty() {
                self.0.remove(namespace);
            }
        }
    }
}

impl Cache {
    /// The Team of a namespace, if its label names one that exists.
    pub fn team_of(&self, namespace: &str) -> Option<(&str, &TeamSpec)> {
        let name = self.team_of_namespace.get(namespace)?;
        Some((name, self.teams.get(name)?))
    }

    /// The names of all levels of all Topologies, innermost `node` included.
    pub fn levels(&self) -> BTreeSet<&str> {
        self.levels_of_topology
            .values()
            .flatten()
            .map(String::as_str)
            .chain([NODE_LEVEL])
            .collect()
    }
}

/// A kind that [`Cache`] remembers something of.
pub trait Cached: Sized {
    /// The object is as given.
    fn is(&self, facts: &mut Cache);
    /// The object with this metadata is gone.
    fn gone(facts: &mut Cache, metadata: &ObjectMeta);
    /// Everything of this kind is forgotten, because a whole list follows.
    fn none(facts: &mut Cache);
}

impl Cached for Namespace {
    fn is(&self, facts: &mut Cache) {
        let team = self
            .metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get(keys::TEAM));
        match team {
            Some(team) => facts
                .team_of_namespace
                .insert(name(&self.metadata), team.clone()),
            None => facts.team_of_namespace.remove(&name(&self.metadata)),
        };
    }
    fn gone(facts: &mut Cache, metadata: &ObjectMeta) {
        facts.team_of_namespace.remove(&name(metadata));
    }
    fn none(facts: &mut Cache) {
        facts.team_of_namespace.clear();
    }
}

impl Cached for Team {
    fn is(&self, facts: &mut Cache) {
        facts.teams.insert(name(&self.metadata), self.spec.clone());
    }
    fn gone(facts: &mut Cache, metadata: &ObjectMeta) {
        facts.teams.remove(&name(metadata));
    }
    fn none(facts: &mut Cache) {
        facts.teams.clear();
    }
}

impl Cached for Cohort {
    fn is(&self, facts: &mut Cache) {
        facts
            .parent_of_cohort
            .insert(name(&self.metadata), self.spec.parent.clone());
    }
    fn gone(facts: &mut Cache, metadata: &ObjectMeta) {
        facts.parent_of_cohort.remove(&name(metadata));
    }
    fn none(facts: &mut Cache) {
        facts.parent_of_cohort.clear();
    }
}

impl Cached for Flavor {
    fn is(&self, facts: &mut Cache) {
        facts
            .flavors
            .insert(name(&self.metadata), self.spec.clone());
    }
    fn gone(facts: &mut Cache, metadata: &ObjectMeta) {
        facts.flavors.remove(&name(metadata));
    }
    fn none(facts: &mut Cache) {
        facts.flavors.clear();
    }
}

impl Cached for PriorityTier {
    fn is(&self, facts: &mut Cache) {
        facts.tiers.insert(name(&self.metadata));
    }
    fn gone(facts: &mut Cache, metadata: &ObjectMeta) {
        facts.tiers.remove(&name(metadata));
    }
    fn none(facts: &mut Cache) {
        facts.tiers.clear();
    }
}

impl Cached for Topology {
    fn is(&self, facts: &mut Cache) {
        let levels = self.spec.fabric.iter().map(|level| level.name.clone());
        facts
            .levels_of_topology
            .insert(name(&self.metadata), levels.collect());
    }
    fn gone(facts: &mut Cache, metadata: &ObjectMeta) {
        facts.levels_of_topology.remove(&name(metadata));
    }
    fn none(facts: &mut Cache) {
        facts.levels_of_topology.clear();
    }
}

impl Cached for ResourceSlice {
    fn is(&self, facts: &mut Cache) {
        facts.gpus.put(self);
    }
    fn gone(facts: &mut Cache, metadata: &ObjectMeta) {
        facts.gpus.remove(&name(metadata));
    }
    fn none(facts: &mut Cache) {
        facts.gpus = Gpus::default();
    }
}

impl Cached for DeviceClass {
    fn is(&self, facts: &mut Cache) {
        let class = self.spec.as_ref().map(ClassMemory::of);
        match class {
            Some(class) => facts.device_classes.insert(name(&self.metadata), class),
            None => facts.device_classes.remove(&name(&self.metadata)),
        };
    }
    fn gone(facts: &mut Cache, metadata: &ObjectMeta) {
        facts.device_classes.remove(&name(metadata));
    }
    fn none(facts: &mut Cache) {
        facts.device_classes.clear();
    }
}

impl Cached for Asked<ResourceClaimTemplate> {
    fn is(&self, facts: &mut Cache) {
        facts.silent_templates.put(self);
    }
    fn gone(facts: &mut Cache, metadata: &ObjectMeta) {
        facts.silent_templates.remove(metadata);
    }
    fn none(facts: &mut Cache) {
        facts.silent_templates = SilentClaims::default();
    }
}

impl Cached for Asked<ResourceClaim> {
    fn is(&self, facts: &mut Cache) {
        facts.silent_claims.put(self);
    }
    fn gone(facts: &mut Cache, metadata: &ObjectMeta) {
        facts.silent_claims.remove(metadata);
    }
    fn none(facts: &mut Cache) {
        facts.silent_claims = SilentClaims::default();
    }
}

fn name(metadata: &ObjectMeta) -> String {
    metadata.name.clone().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_namespace_that_leaves_its_team_is_forgotten() {
        let mut facts = Cache::default();
        let mut namespace: Namespace = serde_json::from_value(
            json!({"metadata": {"name": "ml", "labels": {"muster.dev/team": "red"}}}),
        )
        .unwrap();
        namespace.is(&mut facts);
        assert!(facts.team_of("ml").is_none(), "the Team does not exist yet");
        Team::new("red", TeamSpec::default()).is(&mut facts);
        assert_eq!(facts.team_of("ml").unwrap().0, "red");
        namespace.metadata.labels = None;
        namespace.is(&mut facts);
        assert!(facts.team_of("ml").is_none());
    }

    #[test]
    fn of_claims_only_those_are_kept_that_do_not_say_how_much_memory_they_need() {
        let template = |capacity: &serde_json::Value| -> Asked<ResourceClaimTemplate> {
            let request = json!({"name": "gpu", "exactly": {"deviceClassName": "gpu.muster.dev", "capacity": capacity}});
            serde_json::from_value(json!({"metadata": {"name": "t", "namespace": "ml"},
                "spec": {"spec": {"devices": {"requests": [request]}}}}))
            .unwrap()
        };
        let (silent, saying) = (
            template(&json!(null)),
            template(&json!({"requests": {"memory": "10Gi"}})),
        );
        let mut facts = Cache::default();
        silent.is(&mut facts);
        assert!(facts.silent_templates.get("ml", "t").is_some());
        assert!(facts.silent_templates.get("other", "t").is_none());
        saying.is(&mut facts);
        assert!(facts.silent_templates.0.is_empty());
        silent.is(&mut facts);
        Asked::<ResourceClaimTemplate>::gone(&mut facts, &silent.metadata);
        assert!(facts.silent_templates.0.is_empty());
    }

    #[test]
    fn what_was_made_from_a_template_is_judged_by_the_template() {
        let claim = |annotations: serde_json::Value| -> Asked<ResourceClaim> {
            serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "ml", "annotations": annotations},
                "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.muster.dev"}}]}}}))
            .unwrap()
        };
        let mut facts = Cache::default();
        claim(json!({"resource.kubernetes.io/pod-claim-name": "gpu"})).is(&mut facts);
        assert!(facts.silent_claims.get("ml", "c").is_none());
        claim(json!({})).is(&mut facts);
        assert!(facts.silent_claims.get("ml", "c").is_some());
    }

    #[test]
    fn the_node_is_a_level_without_any_topology() {
        let mut facts = Cache::default();
        assert_eq!(facts.levels(), [NODE_LEVEL].into());
        let topology: Topology = serde_json::from_value(
            json!({"apiVersion": "muster.dev/v1alpha1", "kind": "Topology",
            "metadata": {"name": "t"}, "spec": {"fabric": [{"name": "leaf", "nodeLabel": "l"}]}}),
        )
        .unwrap();
        topology.is(&mut facts);
        assert_eq!(facts.levels(), ["leaf", NODE_LEVEL].into());
    }
}
