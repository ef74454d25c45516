//! Deriving anew what changes touched, in one order: groups, gangs, nodes, and once more the gangs
//! whose selectors turned out not to be understood (or to be, after all).

use std::{collections::BTreeSet, mem, sync::Arc};

use muster_engine::{self as engine, SelectorId, Timestamp};

use super::{Index, NamespacedName, rollout::NODES_PER_REFRESH};
use crate::{
    formed::{FormedGang, GangKey},
    gangs::{self, GangInputs, Group, Incarnations},
    limits,
    object::Kind,
    pod::{self, ObservedPod},
};

impl Index {
    pub(super) fn derive(&mut self, now: Timestamp) {
        self.try_again(now);
        let mut looks = NODES_PER_REFRESH;
        loop {
            let of_classes = mem::take(&mut self.touched.class_resources);
            if mem::take(&mut self.touched.flavors) {
                self.read_flavors();
            } else if of_classes {
                self.count_resources();
            }
            self.read_claims();
            self.resolve_groups();
            self.form_gangs();
            self.retire_filters();
            let changed = self.make_nodes(now, &mut looks);
            if !changed.is_empty() {
                self.forget_requests_with(&changed);
                self.note_flavors_with(&changed);
            }
            self.form_gangs();
            if self.judges_inline && self.docket.has_next() {
                self.judge_inline();
            } else if looks == 0 || !self.has_rollout() {
                break;
            }
        }
        self.wake_shares();
        self.changes.more = self.is_unfinished();
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
        let pods: Vec<&ObservedPod> = self
            .membership
            .in_group(group)
            .filter_map(|pod| self.pod(pod))
            .map(AsRef::as_ref)
            .collect();
        if pods.is_empty() {
            return None;
        }
        let gangs = match group {
            Group::Label { namespace, label } => {
                let of_group = self.gangs_by_group.of(&(namespace.clone(), label.clone()));
                let named = self
                    .membership
                    .in_group(group)
                    .filter_map(|pod| self.named_gang(pod));
                let keys: BTreeSet<GangKey> = of_group.cloned().chain(named).collect();
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
        let object = self.pod(pod)?;
        let name = pod::annotation(object, muster_api::keys::GANG_NAME)?;
        Some(GangKey::new(pod.namespace.clone(), name.to_owned()))
    }

    fn form_gangs(&mut self) {
        for key in mem::take(&mut self.touched.gangs) {
            self.form_gang(&key);
            self.changes.gangs.insert(key);
        }
    }

    fn form_gang(&mut self, key: &GangKey) {
        let mut names: Vec<NamespacedName> = self.membership.in_gang(key).cloned().collect();
        names.sort_unstable();
        names.dedup();
        let pods: Vec<Arc<ObservedPod>> = names
            .iter()
            .filter_map(|name| self.pod(name))
            .cloned()
            .collect();
        self.visits.gangs += 1;
        self.visits.pods += u64::try_from(pods.len()).unwrap_or(u64::MAX);
        for (name, pod) in names.iter().zip(&pods) {
            self.understand(name, pod);
        }
        let oldest = names
            .iter()
            .min_by_key(|name| self.pod(name).map(pod::age_order));
        let group = oldest
            .and_then(|name| self.membership.group_of(name))
            .cloned();
        let gang = self.objects.gangs.get(key).cloned();
        // A Gang that is named after a pod is that pod's, even where its Job would be one gang by now.
        let group = gangs::group_of_pods_gang(key)
            .or(group)
            .or_else(|| gangs::group_of_gang(key, gang.as_deref()));
        let inputs = GangInputs {
            key,
            gang: gang.as_deref(),
            pods: &pods,
            group: group.as_ref(),
            jobs: &|namespace, name, uid| self.objects.job(namespace, name, uid),
            team: self.namespace_team(&key.namespace),
            tiers: self.objects.priority_tiers.items(),
            levels: &self.levels,
            start_timeout_seconds: self.config.start_timeout_seconds.into(),
            requests: &self.requests.of_pods,
            is_settled: &|request| self.is_settled(request),
        };
        let mut formed = gangs::form(&inputs);
        if let Some(formed) = &mut formed {
            self.require_memory(formed, gang.as_deref(), &pods);
        }
        self.note_tier_use(key, formed.as_ref());
        let names_level = |formed: &FormedGang| formed.spec.topology.is_some();
        if formed.as_ref().is_some_and(names_level) {
            self.gangs_with_level.insert(key.clone());
        } else {
            self.gangs_with_level.remove(key);
        }
        match formed {
            Some(formed) => self.formed.insert(key.clone(), Box::new(formed)),
            None => self.formed.remove(key),
        };
    }

    /// Makes the touched nodes anew; returns the selectors that became understood or ceased to be.
    fn make_nodes(&mut self, now: Timestamp, looks: &mut usize) -> BTreeSet<SelectorId> {
        let mut names = mem::take(&mut self.touched.nodes);
        names.extend(self.views.overdue(now));
        if mem::take(&mut self.touched.all_nodes) {
            names.extend(self.objects.nodes.items().keys().cloned());
        }
        names.extend(self.advance_rollout(looks));
        let mut changed = BTreeSet::new();
        for name in names {
            changed.extend(self.make_node(&name, now));
            self.changes.nodes.insert(name);
        }
        for pool in self.views.take_moved() {
            self.touch_homeless(&pool);
        }
        self.finish_rollout();
        changed
    }

    /// Pods whose claims use the selectors are read again.
    pub(super) fn forget_requests_with(&mut self, selectors: &BTreeSet<SelectorId>) {
        let claims = selectors
            .iter()
            .flat_map(|selector| self.claims_by_selector.of(selector));
        let claims: BTreeSet<NamespacedName> = claims.cloned().collect();
        for claim in &claims {
            self.touch_users(claim);
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
        updates.extend(mem::take(&mut self.updates).into_values());
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
