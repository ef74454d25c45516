//! What the index answers. Nothing here derives anything; derived answers are as of the last refresh.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Namespace, Node},
};
use muster_api::{
    ClaimByName, Cohort, Flavor, Gang, Ledger, NodeDevices, PriorityTier, Queue, Team, Topology,
    keys,
};
use muster_engine as engine;

use super::{FlavorCount, Index, NamespacedName};
use crate::{
    claims::ObservedClaim,
    device_faults::FaultyDevice,
    device_plugin, drains,
    formed::{FormedGang, GangKey},
    gangs::{Group, NamespaceTeam, default_tier},
    pod::{self, ObservedPod},
    pools::device_name,
};

impl Index {
    /// The gang of that key as its pods declare it, as of the last refresh. `None`: no pod of it
    /// exists, and no Gang with an admission.
    pub fn formed_gang(&self, key: &GangKey) -> Option<&FormedGang> {
        self.formed.get(key).map(AsRef::as_ref)
    }

    /// All formed gangs as of the last refresh, in the order of their keys.
    pub fn formed_gangs(&self) -> impl Iterator<Item = &FormedGang> {
        let formed = self.formed.in_order();
        formed.map(|(_, formed)| formed.as_ref())
    }

    /// All pods of the gang that exist: members and excess, terminal and deleting ones included.
    pub fn pods_of_gang(&self, key: &GangKey) -> Vec<&Arc<ObservedPod>> {
        let mut names: Vec<&NamespacedName> = self.membership.in_gang(key).collect();
        names.sort_unstable();
        names.dedup();
        let pods = names.into_iter().filter_map(|name| self.our_pod(name));
        pods.map(|pod| &pod.object).collect()
    }

    /// The Gang of that key.
    pub fn gang_of_pod(&self, pod: &NamespacedName) -> Option<&GangKey> {
        self.membership.gang_of(pod)
    }

    /// Gangs of the pods of a namespace that say by that label that they belong together, as of the last refresh. They are several where some
    /// carry the name of an earlier Gang.
    pub fn gangs_of_label(&self, namespace: &str, label: &str) -> BTreeSet<&GangKey> {
        let group = Group::Label {
            namespace: namespace.to_owned(),
            label: label.to_owned(),
        };
        let pods = self.membership.in_group(&group);
        pods.filter_map(|pod| self.membership.gang_of(pod))
            .collect()
    }

    /// What a pod asks for as the engine sees it, whether or not its gang is complete. `None` while a
    /// claim does not exist or is not understood, or the pod does not exist.
    pub fn request_of_pod(&self, uid: &engine::PodUid) -> Option<&engine::Pod> {
        self.requests
            .of_pods
            .get(uid.as_str())?
            .as_ref()
            .ok()
            .map(|request| request.pod.as_ref())
    }

    /// What a pod takes of a node besides devices, whether or not its claims are understood. `None`:
    /// the pod does not exist, or its own requests cannot be read.
    pub fn resources_of_pod(&self, uid: &engine::PodUid) -> Option<engine::PodResources> {
        let pod = self.our_pod_by_uid(uid.as_str())?;
        pod.resources.clone().ok()
    }

    /// A pod that Muster admits: what is read of it.
    pub fn pod(&self, key: &NamespacedName) -> Option<&Arc<ObservedPod>> {
        self.our_pod(key).map(|pod| &pod.object)
    }

    /// A pod that Muster admits, by its UID.
    pub fn pod_by_uid(&self, uid: &str) -> Option<&Arc<ObservedPod>> {
        self.our_pod_by_uid(uid).map(|pod| &pod.object)
    }

    /// All pods that Muster admits. A walk over everything: for tests and oracles.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<ObservedPod>> {
        let pods = self.objects.pods.iter();
        pods.filter_map(|(_, pod)| Some(&pod.ours()?.object))
    }

    /// Whether the pod carries the marker, which only the webhook puts there.
    pub fn is_marked(&self, uid: &str) -> bool {
        let pod = self.our_pod_by_uid(uid);
        pod.is_some_and(|pod| pod.is_marked)
    }

    /// Pods that Muster admits and that are bound to the node, terminal ones included.
    pub fn pods_on_node(&self, node: &str) -> Vec<&Arc<ObservedPod>> {
        let names = self.links.of_node.of(node);
        names.filter_map(|name| self.pod(name)).collect()
    }

    /// A ResourceClaim.
    pub fn claim(&self, key: &NamespacedName) -> Option<&Arc<ObservedClaim>> {
        self.objects.resource_claims.get(key)
    }

    /// A ResourceClaim, by its UID, or by the name of a claim that kube-scheduler made for a pod.
    ///
    /// Whoever writes claims may write of one that it is such a claim of anybody's pod. So of a pod that exists only one in its own
    /// namespace counts, and only the one that its status names, once kube-scheduler has written that; of several that are left, none.
    pub fn claim_by_uid(&self, uid: &str) -> Option<&Arc<ObservedClaim>> {
        let Some(name) = ClaimByName::parse(uid) else {
            return self.claims_by_uid.get(uid);
        };
        let pod = self.our_pod_by_uid(name.pod_uid).map(|pod| &pod.object);
        let named = pod.and_then(|pod| pod.scheduler_claim());
        let mut claims = self.claims_by_name.of(uid).filter(|claim| {
            pod.is_none_or(|pod| *claim.namespace == *pod::namespace(pod))
                && named.is_none_or(|name| *claim.name == *name)
        });
        let only = claims.next()?;
        let is_only = claims.next().is_none();
        self.claim(only).filter(|_| is_only)
    }

    /// Pods that Muster admits and that name the ResourceClaim of that UID.
    pub fn pods_of_claim(&self, uid: &str) -> impl Iterator<Item = &Arc<ObservedPod>> {
        let claim = self.claim_by_uid(uid);
        let name = claim.map(|claim| NamespacedName::new(&*claim.namespace, &*claim.name));
        let pods = name
            .into_iter()
            .flat_map(|name| self.links.of_claim.of(&name));
        pods.filter_map(|name| self.pod(name))
    }

    /// ResourceClaims that ask for devices of the class.
    pub fn claims_of_class(&self, class: &str) -> impl Iterator<Item = &Arc<ObservedClaim>> {
        let names = self.claims_by_class.of(class);
        names.filter_map(|name| self.claim(name))
    }

    /// UIDs of the claims of a pod as it names them now, in pod order, and its claims by name, whether or not a Flavor counts what
    /// they are for; `None` while one of them does not exist.
    pub fn claim_uids_of_pod(&self, pod: &ObservedPod) -> Option<Vec<engine::ClaimUid>> {
        let claims = self.existing_claims(pod)?;
        let pod_uid = pod::uid(pod);
        let resources = self.our_pod_by_uid(pod_uid);
        let resources = resources.and_then(|pod| pod.resources.as_ref().ok());
        let mut resources = resources.cloned().unwrap_or_default();
        let views = &self.views;
        let of_classes = views
            .class_resources
            .take_from(&mut resources, &views.counted_resources);
        let of_plugins = device_plugin::asked(&resources, &self.config.managed);
        let asked = of_plugins.map(|(resource, _)| resource);
        let by_name = asked.chain(of_classes.keys()).map(|resource| {
            let resource = resource.as_str();
            let name = ClaimByName { pod_uid, resource };
            name.to_string().into()
        });
        let uids = claims.into_iter().map(|claim| (*claim.uid).into());
        Some(uids.chain(by_name).collect())
    }

    /// The claim of that name for so many units, as the engine sees it; `None`: no Flavor counts the resource.
    pub fn claim_by_name(&self, name: ClaimByName<'_>, units: i64) -> Option<engine::Claim> {
        self.views.counted_resources.claim(name, units)
    }

    /// What a claim asks for as the engine sees it; `None` if it does not exist or is not understood.
    pub fn request_of_claim(&self, uid: &engine::ClaimUid) -> Option<engine::Claim> {
        self.known_claim(self.claim_by_uid(uid.as_str())?)
            .ok()
            .flatten()
    }

    /// All Jobs, in the order of their names. A walk over everything: asked once, at the takeover.
    pub fn jobs(&self) -> impl Iterator<Item = (&NamespacedName, &Arc<Job>)> {
        self.objects.jobs.iter()
    }

    /// Pods that Muster admits and that the Job of that UID controls, whatever became of them.
    pub fn pods_of_job(&self, uid: &str) -> impl Iterator<Item = &Arc<ObservedPod>> {
        self.links.of_job.of(uid).filter_map(|name| self.pod(name))
    }

    /// A pod that another ReplicaSet of the same Deployment made and that was let go: while a Deployment is rolled out it may keep
    /// such a pod until the one that is to take its place runs. So many of each ReplicaSet are looked at.
    pub fn elder_of_deployment(&self, pod: &ObservedPod) -> Option<&Arc<ObservedPod>> {
        const LOOKED_AT: usize = 64;
        let own = &pod::controller(pod)?.uid;
        let deployment = NamespacedName::new(pod::namespace(pod), pod::deployment(pod)?);
        let others = self.links.of_deployment.of(&deployment);
        let others = others.filter(|uid| *uid != own);
        let pods = others.flat_map(|uid| self.links.of_replica_set.of(uid).take(LOOKED_AT));
        let mut pods = pods.filter_map(|name| self.pod(name));
        pods.find(|pod| !pod::is_gated(*pod) && pod::is_active(*pod))
    }

    /// A Job.
    pub fn job(&self, key: &NamespacedName) -> Option<&Arc<Job>> {
        self.objects.jobs.get(key)
    }

    /// The Ledger.
    pub fn ledger(&self) -> Option<&Arc<Ledger>> {
        self.objects.ledgers.get(keys::LEDGER_NAME)
    }

    /// A Gang object.
    pub fn gang(&self, key: &GangKey) -> Option<&Arc<Gang>> {
        self.objects.gangs.get(key)
    }

    /// A Gang object, by its UID.
    pub fn gang_by_uid(&self, uid: &str) -> Option<&Arc<Gang>> {
        self.gangs_by_uid.get(uid)
    }

    /// All Gang objects, in the order of their keys.
    pub fn gangs(&self) -> impl Iterator<Item = (&GangKey, &Arc<Gang>)> {
        self.objects.gangs.iter()
    }

    /// The NodeDevices of a node.
    pub fn node_devices(&self, node: &str) -> Option<&Arc<NodeDevices>> {
        self.objects.node_devices.get(node)
    }

    /// All NodeDevices, in the order of their names.
    pub fn all_node_devices(&self) -> impl Iterator<Item = (&String, &Arc<NodeDevices>)> {
        self.objects.node_devices.iter()
    }

    /// A node.
    pub fn node(&self, name: &str) -> Option<&Arc<Node>> {
        self.objects.nodes.get(name)
    }

    /// All nodes, in the order of their names.
    pub fn nodes(&self) -> impl Iterator<Item = (&String, &Arc<Node>)> {
        self.objects.nodes.iter()
    }

    /// Whether the node has devices of our driver now, or had some within the grace time.
    pub fn is_served(&self, node: &str) -> bool {
        self.views.is_served(node)
    }

    /// The devices of the node that have faults, by `driver/pool/device`, as of the last refresh; `None`: none has.
    pub fn faulty_devices(&self, node: &str) -> Option<&BTreeMap<Arc<str>, FaultyDevice>> {
        self.views.faulty(node)
    }

    /// The DeviceTaintRule by which a device is drained, the first by name, and what it says, for people.
    pub fn rule_draining(
        &self,
        driver: &str,
        pool: &str,
        device: &str,
    ) -> Option<(&String, String)> {
        if self.taint_rules.is_empty() {
            return None;
        }
        let on_node = device_name(driver, pool, device);
        if !self.taint_rules.lookup().of(&on_node).repels {
            return None;
        }
        let mut rules = self.objects.device_taint_rules.iter();
        rules.find_map(|(name, rule)| {
            let says = drains::of_device(rule, driver, pool, device)?;
            Some((name, says))
        })
    }

    /// The nodes of which any device has a fault, in the order of their names.
    pub fn faulty_nodes(&self) -> impl Iterator<Item = &String> {
        self.views.faulty_nodes()
    }

    /// The node as the engine was told last, devices included.
    pub fn engine_node(&self, name: &str) -> Option<&engine::Node> {
        self.views.told(name)
    }

    /// A Team.
    pub fn team(&self, name: &str) -> Option<&Arc<Team>> {
        self.objects.teams.get(name)
    }

    /// All Teams, in the order of their names.
    pub fn teams(&self) -> impl Iterator<Item = (&String, &Arc<Team>)> {
        self.objects.teams.iter()
    }

    /// A Flavor.
    pub fn flavor(&self, name: &str) -> Option<&Arc<Flavor>> {
        self.objects.flavors.get(name)
    }

    /// A PriorityTier.
    pub fn tier(&self, name: &str) -> Option<&Arc<PriorityTier>> {
        self.objects.priority_tiers.get(name)
    }

    /// All PriorityTiers, by name.
    pub fn tiers(&self) -> impl Iterator<Item = (&String, &Arc<PriorityTier>)> {
        self.objects.priority_tiers.iter()
    }

    /// The PriorityTier that gangs get that name none, and whose Team names none.
    pub fn default_tier(&self) -> Option<&str> {
        default_tier(self.objects.priority_tiers.items())
    }

    /// A Namespace.
    pub fn namespace(&self, name: &str) -> Option<&Arc<Namespace>> {
        self.objects.namespaces.get(name)
    }

    /// All Namespaces, in the order of their names.
    pub fn namespaces(&self) -> impl Iterator<Item = (&String, &Arc<Namespace>)> {
        self.objects.namespaces.iter()
    }

    /// The Team of a namespace: its label, if that names a Team that exists; without the label the
    /// default Team, if that exists.
    pub fn team_of_namespace(&self, namespace: &str) -> Option<engine::TeamName> {
        match self.namespace_team(namespace) {
            NamespaceTeam::Is(team) => team.metadata.name.as_deref().map(Into::into),
            NamespaceTeam::Unnamed | NamespaceTeam::Unknown(_) => None,
        }
    }

    /// Namespaces that belong to the Team, in the order of their names; none while the Team does not exist.
    pub fn namespaces_of_team(&self, team: &str) -> Vec<&str> {
        if self.objects.teams.get(team).is_none() {
            return Vec::new();
        }
        let names = self.namespaces_by_team.of(team);
        names.map(String::as_str).collect()
    }

    /// Queues that are named after the Team, in the order of their namespaces.
    pub fn queues_of_team(&self, team: &str) -> impl Iterator<Item = &NamespacedName> {
        self.queues_by_team.of(team)
    }

    /// Gangs of a namespace that have pods or a Gang object. A gang may be returned twice.
    pub fn gangs_in_namespace<'a>(
        &'a self,
        namespace: &'a str,
    ) -> impl Iterator<Item = &'a GangKey> {
        let objects = self.gangs_by_namespace.of(namespace);
        self.membership.gangs_in(namespace).chain(objects)
    }

    /// A Queue.
    pub fn queue(&self, key: &NamespacedName) -> Option<&Arc<Queue>> {
        self.objects.queues.get(key)
    }

    /// All Queues, in the order of their keys.
    pub fn queues(&self) -> impl Iterator<Item = (&NamespacedName, &Arc<Queue>)> {
        self.objects.queues.iter()
    }

    /// All Flavors, in the order of their names.
    pub fn flavors(&self) -> impl Iterator<Item = (&String, &Arc<Flavor>)> {
        self.objects.flavors.iter()
    }

    /// How many nodes and devices count as of a Flavor, as of the last refresh.
    pub fn flavor_count(&self, name: &str) -> FlavorCount {
        self.flavor_census.of(&name.into())
    }

    /// A Cohort.
    pub fn cohort(&self, name: &str) -> Option<&Arc<Cohort>> {
        self.objects.cohorts.get(name)
    }

    /// All Cohorts, in the order of their names.
    pub fn cohorts(&self) -> impl Iterator<Item = (&String, &Arc<Cohort>)> {
        self.objects.cohorts.iter()
    }

    /// A Topology.
    pub fn topology(&self, name: &str) -> Option<&Arc<Topology>> {
        self.objects.topologies.get(name)
    }
}
