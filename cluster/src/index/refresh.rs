//! Deriving anew what changes touched, in one order: groups, gangs, nodes, and once more the gangs
//! whose selectors turned out not to be understood (or to be, after all).

use std::{collections::BTreeSet, mem, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use muster_engine::{self as engine, NodeFilterId, SelectorId, Timestamp};

use super::{Index, NamespacedName};
use crate::{
    claims::ClaimRequest,
    formed::GangKey,
    gangs::{self, GangInputs, Group, Incarnations},
    limits,
    object::Kind,
};

/// Interned rules that nobody uses are swept when they are this many more than twice those in use:
/// sweeping costs a look at every pod.
const SWEEP_SLACK: usize = 64;

impl Index {
    pub(super) fn derive(&mut self, now: Timestamp) {
        if mem::take(&mut self.touched.flavors) {
            self.read_flavors();
        }
        self.read_claims();
        self.resolve_groups();
        self.form_gangs();
        self.sweep();
        let changed = self.make_nodes(now);
        if !changed.is_empty() {
            self.forget_requests_with(&changed);
            self.form_gangs();
        }
    }

    fn resolve_groups(&mut self) {
        for group in mem::take(&mut self.touched.groups) {
            let key = self.meaning_of(&group);
            let touched = self.membership.resolve(&group, key);
            self.touched.gangs.extend(touched);
        }
    }

    /// The Gang that a group means now; `None`: it has no pods.
    fn meaning_of(&self, group: &Group) -> Option<GangKey> {
        let pods: Vec<&Pod> = self
            .membership
            .in_group(group)
            .filter_map(|pod| self.objects.pods.get(pod))
            .map(AsRef::as_ref)
            .collect();
        if pods.is_empty() {
            return None;
        }
        let gangs = match group {
            Group::Label { namespace, label } => {
                let labelled = self.gangs_by_label.of(&(namespace.clone(), label.clone()));
                let named = self
                    .membership
                    .in_group(group)
                    .filter_map(|pod| self.named_gang(pod));
                let keys: BTreeSet<GangKey> = labelled.cloned().chain(named).collect();
                keys.into_iter().collect()
            }
            Group::Job { .. } | Group::Single { .. } => Vec::new(),
        };
        let gangs = gangs
            .iter()
            .filter_map(|key| Some((key, self.objects.gangs.get(key)?.as_ref())));
        let incarnations = Incarnations {
            gangs: gangs.collect(),
            find: &self.objects,
        };
        Some(gangs::gang_key(group, &pods, &incarnations))
    }

    fn named_gang(&self, pod: &NamespacedName) -> Option<GangKey> {
        let object = self.objects.pods.get(pod)?;
        let name = gangs::annotation(object, muster_api::keys::GANG_NAME)?;
        Some(GangKey {
            namespace: pod.namespace.clone(),
            name: name.to_owned(),
        })
    }

    fn form_gangs(&mut self) {
        let mut keys = mem::take(&mut self.touched.gangs);
        if mem::take(&mut self.touched.all_gangs) {
            keys.extend(self.membership.gangs().cloned());
            keys.extend(self.objects.gangs.items().keys().cloned());
            keys.extend(self.formed.keys().cloned());
        }
        for key in keys {
            self.form_gang(&key);
            self.changed_gangs.insert(key);
        }
    }

    fn form_gang(&mut self, key: &GangKey) {
        let names: BTreeSet<NamespacedName> = self.membership.in_gang(key).cloned().collect();
        let pods: Vec<Arc<Pod>> = names
            .iter()
            .filter_map(|name| self.objects.pods.get(name))
            .cloned()
            .collect();
        for pod in &pods {
            self.understand(pod);
        }
        let oldest = names
            .iter()
            .min_by_key(|name| self.objects.pods.get(name).map(|pod| gangs::age_order(pod)));
        let group = oldest
            .and_then(|name| self.membership.group_of(name))
            .cloned();
        let gang = self.objects.gangs.get(key).cloned();
        let group = group.or_else(|| gangs::group_of_gang(key, gang.as_deref()));
        let facts = GangInputs {
            key,
            gang: gang.as_deref(),
            pods: &pods,
            group: group.as_ref(),
            jobs: &|namespace, name, uid| self.objects.job(namespace, name, uid),
            team: self.namespace_team(&key.namespace),
            tiers: self.objects.tiers.items(),
            levels: &self.levels(),
            requests: &self.requests.of_pods,
            managed: &self.config.managed,
        };
        match gangs::form(&facts) {
            Some(formed) => self.formed.insert(key.clone(), formed),
            None => self.formed.remove(key),
        };
    }

    /// Names of the levels of all Topologies.
    fn levels(&self) -> BTreeSet<String> {
        let topologies = self.objects.topologies.iter();
        topologies
            .flat_map(|(_, topology)| &topology.spec.fabric)
            .map(|level| level.name.clone())
            .collect()
    }

    /// Makes the touched nodes anew; returns the selectors that became understood or ceased to be.
    fn make_nodes(&mut self, now: Timestamp) -> BTreeSet<SelectorId> {
        let mut names = mem::take(&mut self.touched.nodes);
        names.extend(self.views.overdue(now));
        if mem::take(&mut self.touched.all_nodes) {
            names.extend(self.objects.nodes.items().keys().cloned());
        }
        names
            .iter()
            .flat_map(|name| self.make_node(name, now))
            .collect()
    }

    /// Pods whose claims use the selectors are to be understood anew.
    fn forget_requests_with(&mut self, selectors: &BTreeSet<SelectorId>) {
        let claims = self
            .requests
            .of_claims
            .iter()
            .filter(|(_, request)| match request {
                Ok(ClaimRequest::Charged { requests, .. }) => requests
                    .iter()
                    .any(|request| selectors.contains(&request.selector)),
                Ok(ClaimRequest::Excepted) | Err(_) => false,
            });
        let claims: Vec<NamespacedName> = claims.map(|(claim, _)| claim.clone()).collect();
        for claim in &claims {
            self.touch_users(claim);
        }
    }

    /// Forgets interned rules that no pod, claim or Flavor uses any more. Ids are never used twice, so
    /// what still carries a forgotten one matches nothing by it.
    fn sweep(&mut self) {
        if self.filters.len() > self.sweep_above.filters {
            let used: BTreeSet<NodeFilterId> = self
                .requests
                .of_pods
                .values()
                .filter_map(|request| request.as_ref().ok())
                .map(|request| request.pod.filter)
                .collect();
            self.filters.retain(&used);
            self.sweep_above.filters = used.len() * 2 + SWEEP_SLACK;
        }
        if self.selectors.len() > self.sweep_above.selectors {
            let of_claims = self
                .requests
                .of_claims
                .values()
                .filter_map(|request| match request {
                    Ok(ClaimRequest::Charged { requests, .. }) => Some(requests),
                    Ok(ClaimRequest::Excepted) | Err(_) => None,
                });
            let of_claims = of_claims.flatten().map(|request| request.selector);
            let of_flavors = self
                .views
                .flavors
                .iter()
                .filter_map(|flavor| flavor.selector);
            let used: BTreeSet<SelectorId> = of_claims.chain(of_flavors).collect();
            self.selectors.retain(&used);
            self.sweep_above.selectors = used.len() * 2 + SWEEP_SLACK;
        }
    }

    /// Takes what the engine has to be told: Topologies, Flavors, Cohorts and Teams before nodes, so
    /// that what a node names exists.
    pub(super) fn take_updates(&mut self) -> Vec<engine::Update> {
        let mut limits: Vec<_> = mem::take(&mut self.touched.limits).into_iter().collect();
        limits.sort_by_key(|(kind, name)| {
            let order = match kind {
                Kind::Topology => 0,
                Kind::Flavor => 1,
                Kind::Cohort => 2,
                _ => 3,
            };
            (order, name.clone())
        });
        let mut updates: Vec<engine::Update> = limits
            .into_iter()
            .filter_map(|(kind, name)| self.limit_update(kind, &name))
            .collect();
        updates.append(&mut self.updates);
        updates
    }

    fn limit_update(&mut self, kind: Kind, name: &String) -> Option<engine::Update> {
        let objects = &self.objects;
        let mut faults = Vec::new();
        let update = match kind {
            Kind::Topology => match objects.topologies.get(name) {
                Some(topology) => engine::Update::Topology(limits::topology(topology)),
                None => engine::Update::TopologyGone(name.as_str().into()),
            },
            Kind::Flavor => match objects.flavors.get(name) {
                Some(flavor) => engine::Update::Flavor(limits::flavor(flavor)),
                None => engine::Update::FlavorGone(name.as_str().into()),
            },
            Kind::Cohort => match objects.cohorts.get(name) {
                Some(cohort) => {
                    let (cohort, found) = limits::cohort(cohort);
                    faults = found;
                    engine::Update::Cohort(cohort)
                }
                None => engine::Update::CohortGone(name.as_str().into()),
            },
            Kind::Team => match objects.teams.get(name) {
                Some(team) => {
                    let (team, found) = limits::team(team);
                    faults = found;
                    engine::Update::Team(team)
                }
                None => engine::Update::TeamGone(name.as_str().into()),
            },
            _ => return None,
        };
        if matches!(kind, Kind::Team | Kind::Cohort) {
            let object = format!("{kind:?}/{name}");
            match faults.first() {
                Some(fault) => self.faults.insert(object, fault.to_string()),
                None => self.faults.remove(&object),
            };
        }
        Some(update)
    }
}
