//! The watch-fed picture of the cluster.
//!
//! The index holds every observed object and derives from them what the engine and the protocol work
//! with: formed gangs and engine updates. It is change-driven: [`Index::observe`] only notes what a
//! change may touch; [`Index::refresh`] derives that anew, and nothing else.
//!
//! **Invariant (S10): what is derived is a function of the objects that are held**, never of the order
//! in which they came or how often. The one exception is deliberate and bounded in time: devices of a
//! Ready node whose slices vanished count as last seen for [`SLICES_GRACE_SECONDS`].

mod changes;
mod docket;
mod flavor_census;
mod judging;
mod look_up;
mod membership;
mod nodes;
mod observe;
mod pods;
mod references;
mod refresh;
mod requests;
mod rollout;
mod shorthand;
mod store;
#[cfg(test)]
mod tests;
mod tiers;
mod touch;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    mem,
    sync::Arc,
};

use k8s_openapi::{
    api::{batch::v1::Job, core::v1::Namespace},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use muster_api::{Gang, keys};
use muster_engine as engine;

pub use self::{changes::Changes, flavor_census::FlavorCount, references::References};
use self::{
    docket::Docket,
    flavor_census::FlavorCensus,
    membership::Membership,
    nodes::NodeViews,
    observe::Objects,
    pods::{OurPod, PodLinks},
    requests::Requests,
    rollout::Rollout,
    tiers::TierUses,
    touch::Dirty,
};
use crate::{
    claims::{ClaimSpecs, ObservedClaim},
    devices::DeviceKinds,
    formed::{FormedGang, GangKey},
    gangs::{GangFinder, NamespaceTeam},
    judgement::Rule,
    links::{Links, OrderedLinks},
    managed::ManagedPods,
    node_filter::NodeFilters,
    object::{Change, Kind, ObjectKey},
    pod::{self, PodFields},
    pod_terms::PodTerms,
    pools::Pools,
    selectors::{Selectors, Subject},
    shares::Shares,
    table::Table,
    taint_rules::TaintRules,
};

/// How long the devices of a Ready node count as last seen after its slices vanished, in seconds
/// (its kubelet or driver restarts). Nothing new is planned there meanwhile.
pub const SLICES_GRACE_SECONDS: i64 = 120;

/// How long a start may take without progress where nobody says otherwise, in seconds: images are large.
pub const START_TIMEOUT_SECONDS: u32 = 600;

/// What the installation says about pods and namespaces.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which pods are managed.
    pub managed: ManagedPods,
    /// Namespaces whose pods are none of our business (kube-system, our own, the chart's list). A pod
    /// there that carries our gate or a gang name all the same is treated like any other.
    pub excluded_namespaces: BTreeSet<String>,
    /// DeviceClasses that are not charged (network cards, say): a gang whose claims name only these
    /// is ungated at once.
    pub excepted_device_classes: BTreeSet<String>,
    /// The Team of namespaces that name none.
    pub default_team: Option<String>,
    /// How long a start may take without progress where neither pods nor their Job say, in seconds: what a Gang is made with.
    pub start_timeout_seconds: u32,
}

/// `namespace/name` of a namespaced object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespacedName {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl NamespacedName {
    /// The name of an object in a namespace.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// The name of an object of a namespaced kind.
    pub(crate) fn of_object(key: &ObjectKey) -> Self {
        Self::new(&key.namespace, &key.name)
    }

    /// The name of a pod.
    pub fn of_pod(pod: &impl PodFields) -> Self {
        Self::new(pod.namespace(), pod.name())
    }

    /// The name that metadata says.
    pub fn of(metadata: &ObjectMeta) -> Self {
        Self::new(
            metadata.namespace.clone().unwrap_or_default(),
            metadata.name.clone().unwrap_or_default(),
        )
    }
}

impl From<GangKey> for NamespacedName {
    fn from(key: GangKey) -> Self {
        Self::new(&key.namespace, &key.name)
    }
}

impl From<NamespacedName> for GangKey {
    fn from(NamespacedName { namespace, name }: NamespacedName) -> Self {
        Self::new(namespace, name)
    }
}

/// The watch-fed picture of the cluster. See the module's invariants.
#[derive(Debug)]
pub struct Index {
    config: Config,
    objects: Objects,
    synced: BTreeSet<Kind>,

    // Found again by something else than their key. UIDs have no order that means anything: tables by UID are never walked.
    links: PodLinks,
    membership: Membership,
    claim_specs: ClaimSpecs,
    claims_by_uid: Table<Box<str>, Arc<ObservedClaim>>,
    /// Claims that say that kube-scheduler made them, by what they are permitted as: several may say it of one pod.
    claims_by_name: Links<Box<str>, NamespacedName>,
    /// Claims by the devices that they are allocated.
    allocations: OrderedLinks<String, engine::ClaimUid>,
    gangs_by_uid: Table<String, Arc<Gang>>,
    /// Gangs by namespace and the label that their pods were declared by.
    gangs_by_group: Links<(String, String), GangKey>,
    /// Gang objects by their namespace.
    gangs_by_namespace: Links<String, GangKey>,
    /// Gangs by the UIDs of their owners.
    gangs_by_owner: Links<String, GangKey>,
    /// Gangs by the tier that they use.
    tier_uses: TierUses,
    /// Gangs that name a level of a Topology.
    gangs_with_level: BTreeSet<GangKey>,
    /// Claims by the DeviceClasses that they name, existing or not.
    claims_by_class: Links<String, NamespacedName>,
    /// Claims by the selectors that they use.
    claims_by_selector: Links<engine::SelectorId, NamespacedName>,
    /// Pods by the filter that they use.
    pods_by_filter: Links<engine::NodeFilterId, String>,
    /// Namespaces by the Team that they name, existing or not.
    namespaces_by_team: Links<String, String>,
    /// Queues by their Team.
    queues_by_team: Links<String, NamespacedName>,
    device_kinds: DeviceKinds,
    pools: Pools,
    /// The rules that taint devices.
    taint_rules: TaintRules,
    pod_terms: PodTerms,
    /// Pods that the engine knows a hold of, by UID.
    held: HashSet<String>,
    /// Nodes whose drivers have not answered for too long, as it was said.
    silent_drivers: HashSet<String>,
    /// Pods whose claim template the API server refuses, with its answer.
    refused_templates: BTreeMap<NamespacedName, String>,

    // Derived.
    selectors: Selectors,
    filters: NodeFilters,
    rollout: Rollout,
    /// Nodes that wait for what selectors say of a kind or a device.
    nodes_waiting: Links<Subject, String>,
    docket: Docket,
    /// Rules that were given up, and when they are tried again.
    try_again: BTreeMap<Rule, engine::Timestamp>,
    derived_at: engine::Timestamp,
    judges_inline: bool,
    filter_shares: Shares<engine::NodeFilterId, NamespacedName>,
    selector_shares: Shares<engine::SelectorId, NamespacedName>,
    requests: Requests,
    /// Boxed: nodes of the map are half empty.
    formed: Table<GangKey, Box<FormedGang>>,
    views: NodeViews,
    flavor_census: FlavorCensus,
    faults: BTreeMap<String, String>,
    /// Names of the levels of all Topologies.
    levels: BTreeSet<String>,
    visits: Visits,

    // To be derived, and to be told.
    touched: Dirty,
    changes: Changes,
    /// By node.
    updates: BTreeMap<String, engine::Update>,
}

/// How much has been derived since the index was made: the measure of "work follows change".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Visits {
    /// Gangs that were formed.
    pub gangs: u64,
    /// Pods that were looked at while gangs were formed.
    pub pods: u64,
    /// Nodes that were made.
    pub nodes: u64,
    /// Pods of which it was read what they ask for.
    pub requests: u64,
}

impl Objects {
    fn job(&self, namespace: &str, name: &str, uid: &str) -> Option<&Job> {
        let job = self.jobs.get(&NamespacedName::new(namespace, name))?;
        (job.metadata.uid.as_deref() == Some(uid)).then_some(job)
    }
}

impl GangFinder for Objects {
    fn find(&self, key: &GangKey) -> Option<&Gang> {
        self.gangs.get(key).map(AsRef::as_ref)
    }
}

/// The Team that a namespace names.
fn team_label(namespace: &Namespace) -> Option<&str> {
    let label = namespace.metadata.labels.as_ref()?.get(keys::TEAM)?;
    (!label.is_empty()).then_some(label)
}

impl Index {
    /// An index that has observed nothing.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            objects: Objects::default(),
            synced: BTreeSet::new(),
            links: PodLinks::default(),
            membership: Membership::default(),
            claim_specs: ClaimSpecs::default(),
            claims_by_uid: Table::default(),
            claims_by_name: Links::default(),
            allocations: OrderedLinks::default(),
            gangs_by_uid: Table::default(),
            gangs_by_group: Links::default(),
            gangs_by_namespace: Links::default(),
            gangs_by_owner: Links::default(),
            tier_uses: TierUses::default(),
            gangs_with_level: BTreeSet::new(),
            claims_by_class: Links::default(),
            claims_by_selector: Links::default(),
            pods_by_filter: Links::default(),
            namespaces_by_team: Links::default(),
            queues_by_team: Links::default(),
            device_kinds: DeviceKinds::default(),
            pools: Pools::default(),
            taint_rules: TaintRules::default(),
            pod_terms: PodTerms::default(),
            held: HashSet::new(),
            silent_drivers: HashSet::new(),
            refused_templates: BTreeMap::new(),
            selectors: Selectors::default(),
            filters: NodeFilters::default(),
            rollout: Rollout::default(),
            nodes_waiting: Links::default(),
            docket: Docket::default(),
            try_again: BTreeMap::new(),
            derived_at: engine::Timestamp(0),
            judges_inline: true,
            filter_shares: Shares::default(),
            selector_shares: Shares::default(),
            requests: Requests::default(),
            formed: Table::default(),
            views: NodeViews::default(),
            flavor_census: FlavorCensus::default(),
            faults: BTreeMap::new(),
            levels: BTreeSet::new(),
            visits: Visits::default(),
            touched: Dirty::default(),
            changes: Changes::default(),
            updates: BTreeMap::new(),
        }
    }

    /// What the installation says.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Takes in a change. Cheap; nothing is derived before [`Index::refresh`]. Twice, or late, does no
    /// harm: a resourceVersion that is not newer than the one held changes nothing, and an object
    /// whose UID was told gone does not come back (but one that a list lacked may).
    ///
    /// To be told is what the watches tell, kind by kind in their order, and never the answer of a
    /// write: of an object that was made anew under the same name, the end of its predecessor would
    /// be told after it, and be taken for its own.
    pub fn observe(&mut self, change: Change) {
        self.take_in(change);
    }

    /// Kinds that have not been listed yet ([`Change::Listed`]). While there are any, what is absent here
    /// may exist, and nothing must be concluded from its absence.
    pub fn unsynced(&self) -> Vec<Kind> {
        Kind::ALL
            .into_iter()
            .filter(|kind| !self.synced.contains(kind))
            .collect()
    }

    /// Whether every kind has been listed once.
    pub fn is_synced(&self) -> bool {
        self.unsynced().is_empty()
    }

    /// Derives what the changes since the last call touched, and returns what may differ from then. Idempotent: a
    /// second call without a change between returns nothing. `now` decides only which vanished slices still count
    /// ([`SLICES_GRACE_SECONDS`]).
    pub fn refresh(&mut self, now: engine::Timestamp) -> Changes {
        self.derive(now);
        mem::take(&mut self.changes)
    }

    /// When [`Index::refresh`] has something to derive by time alone; `None`: not before the next change.
    pub fn next_due(&self) -> Option<engine::Timestamp> {
        let try_again = self.try_again.values().min().copied();
        self.views.next_due().into_iter().chain(try_again).min()
    }

    /// Whether [`Index::refresh`] has something left to derive, without a change or the time.
    /// What [`Index::engine_updates`] derived of gangs, Flavors and faults, and which pods changed, is left for the next refresh to return.
    pub fn has_more(&self) -> bool {
        let Changes {
            gangs,
            pods,
            flavors,
            faulted,
            ..
        } = &self.changes;
        let is_untold =
            !gangs.is_empty() || !pods.is_empty() || !flavors.is_empty() || !faulted.is_empty();
        is_untold || self.is_unfinished()
    }

    /// Whether there is something left to derive.
    fn is_unfinished(&self) -> bool {
        self.has_rollout() || self.touched.has_any()
    }

    /// How much has been derived since the index was made.
    pub fn visits(&self) -> Visits {
        self.visits
    }

    /// Refreshes, and returns what the engine has to be told about Teams, Cohorts, Flavors, Topologies
    /// and nodes since the last call: only what differs from what was returned before. Gangs and
    /// holds are the protocol's to tell. Gangs that this refresh touched are returned by the next
    /// [`Index::refresh`].
    pub fn engine_updates(&mut self, now: engine::Timestamp) -> Vec<engine::Update> {
        self.derive(now);
        self.take_updates()
    }

    /// Says whether the engine knows a [`engine::Hold`] of the pod. What bound pods without a hold use
    /// counts as [`engine::Node::used`]; forgetting to say so counts them twice. Idempotent.
    pub fn set_hold(&mut self, pod: &engine::PodUid, held: bool) {
        let changed = if held {
            self.held.insert(pod.as_str().to_owned())
        } else {
            self.held.remove(pod.as_str())
        };
        let node = self.pod_by_uid(pod.as_str()).and_then(pod::bound_to);
        if let (true, Some(node)) = (changed, node.map(str::to_owned)) {
            self.touched.nodes.insert(node);
        }
    }

    /// Says whether the driver of a node has not answered for too long: then nothing new is planned there. Idempotent.
    pub fn set_driver_silent(&mut self, node: &str, is_silent: bool) {
        let changed = if is_silent {
            self.silent_drivers.insert(node.to_owned())
        } else {
            self.silent_drivers.remove(node)
        };
        if changed {
            self.touched.nodes.insert(node.to_owned());
        }
    }

    /// Whether the engine knows a hold of the pod, as far as it was said.
    pub fn has_hold(&self, pod: &str) -> bool {
        self.held.contains(pod)
    }

    /// The pod, if it is one that Muster admits.
    fn our_pod(&self, key: &NamespacedName) -> Option<&OurPod> {
        self.objects.pods.get(key)?.ours()
    }

    /// The pod of that UID, if it is one that Muster admits.
    fn our_pod_by_uid(&self, uid: &str) -> Option<&OurPod> {
        self.links.by_uid.get(uid)?.ours()
    }

    /// The name of the Team that a namespace names, existing or not.
    fn team_named_by<'a>(&'a self, namespace: &'a Namespace) -> Option<&'a str> {
        team_label(namespace).or(self.config.default_team.as_deref())
    }

    fn namespace_team(&self, namespace: &str) -> NamespaceTeam {
        let object = self.objects.namespaces.get(namespace);
        let label = object.and_then(|object| team_label(object));
        let Some(name) = label.or(self.config.default_team.as_deref()) else {
            return NamespaceTeam::Unnamed;
        };
        match self.objects.teams.get(name) {
            Some(team) => NamespaceTeam::Is(Arc::clone(team)),
            None => NamespaceTeam::Unknown(name.to_owned()),
        }
    }
}
