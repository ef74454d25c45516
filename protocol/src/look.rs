//! What a poll looks at: what observations, answers and the time touched, gang by gang and node by node.

use std::{cell::Cell, collections::BTreeSet, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use muster_api::{ClaimByName, FlavorSpec, IntentKind, NodeDevices, Reason, keys};
use muster_engine as engine;

use crate::{
    ApiRequest, Effect, Machine, Now,
    admission::admit,
    admission::evict as eviction,
    admission::intent_state::IntentState,
    admission::place,
    admission::plan::Plan,
    admission::preempt,
    admission::stage::{self, Stage, View},
    admission::void,
    clocks::Progress,
    faults::held::{self, Reached},
    feed::holds::{self, Said, Source},
    feed::{recovering, restored, running, waiting},
    injected_bug::InjectedBug,
    jobs,
    leadership::ledger_recovery,
    nodes::{health::Seen, loss},
    objects::{
        bound_node, gang_key_of, gang_key_of_uid, gang_object, is_deleting, is_gated, is_terminal,
        key_of, phase, stamp, uid,
    },
    outward::permits::{self, Owed},
    outward::{evict, force, gangs, nudge, preemption, release, restarts, ungate},
    poll_context::PollContext,
    resync::{GANGS_PER_SLICE, NODES_PER_SLICE},
    tables::agenda::Subject,
    tables::permits::Named,
};
use muster_cluster::{
    device_plugin,
    formed::GangKey,
    index::NamespacedName,
    object::{Change, JobFacts, Kind, Object, ObjectKey},
    pod::PodFields,
    rank_state::RankState,
    taints,
};

/// What was observed and is not looked up yet.
#[derive(Debug, Default)]
pub(crate) struct News {
    nodes: BTreeSet<String>,
    /// Nodes that came, went or were made again.
    other_nodes: BTreeSet<String>,
    node_devices: BTreeSet<String>,
    namespaces: BTreeSet<String>,
    teams: BTreeSet<String>,
    /// Teams that were stopped, or are not any more.
    stopped_teams: BTreeSet<String>,
    /// Whether something that Teams or Cohorts name may exist now that did not, or the other way round.
    references_changed: bool,
    queues: BTreeSet<NamespacedName>,
    jobs: BTreeSet<NamespacedName>,
    pub(crate) withheld_changed: bool,
    /// Whether everything was looked at once.
    is_complete: bool,
}

/// What of a pod says that its node, and the nodes of its permits, are to be looked at. What its kubelet reports besides, in half a
/// dozen writes while it starts, is nothing to them.
#[derive(PartialEq)]
struct PodNews<'a> {
    uid: &'a str,
    node: Option<&'a str>,
    phase: &'a str,
    is_gated: bool,
    is_deleting: bool,
    is_over: bool,
    stamp: i64,
}

impl<'a> PodNews<'a> {
    fn of(pod: &'a impl PodFields) -> Self {
        Self {
            uid: uid(pod),
            node: bound_node(pod),
            phase: phase(pod),
            is_gated: is_gated(pod),
            is_deleting: is_deleting(pod),
            is_over: is_terminal(pod),
            stamp: stamp(pod),
        }
    }
}

impl Machine {
    /// Notes what a change touches, while the index still shows what was before it.
    pub(crate) fn note_change(&mut self, change: &Change) {
        match change {
            Change::Listed(kind, objects) => {
                let listed: BTreeSet<ObjectKey> = objects.iter().map(Object::key).collect();
                for object in objects {
                    self.note_applied(object);
                }
                self.note_unlisted(*kind, &listed);
            }
            Change::ListedKeys(kind, listed) => self.note_unlisted(*kind, listed),
            Change::Applied(object) => self.note_applied(object),
            Change::Deleted(key) => self.note_gone(key),
        }
    }

    /// A list reports every object once more: those that are known as they are touch nothing.
    fn note_applied(&mut self, object: &Object) {
        if self.index.is_behind(object) {
            self.store_check.suspect(object.key());
        }
        if !self.index.knows(object) {
            let key = object.key();
            // A list shows that one is gone by the one that is in its place.
            self.flights.saw(&key, self.index.replaces_another(object));
            self.note_object(&key, Some(object));
        }
    }

    fn note_gone(&mut self, key: &ObjectKey) {
        self.flights.saw(key, true);
        self.note_object(key, None);
    }

    /// What vanished while a watch was interrupted is known by its absence from the list.
    fn note_unlisted(&mut self, kind: Kind, listed: &BTreeSet<ObjectKey>) {
        for key in self.index.unlisted(kind, listed) {
            self.note_gone(&key);
        }
    }

    fn note_object(&mut self, key: &ObjectKey, object: Option<&Object>) {
        let name = NamespacedName::new(key.namespace.clone(), key.name.clone());
        match (key.kind, object) {
            (Kind::Pod, Some(Object::Pod(pod))) => self.note_pod(&name, Some(pod)),
            (Kind::Pod, _) => self.note_pod(&name, None),
            (Kind::Node, after) => {
                let after = match after {
                    Some(Object::Node(node)) => Some(node),
                    _ => None,
                };
                self.note_node(&key.name, after.map(AsRef::as_ref));
            }
            (Kind::NodeDevices, after) => {
                let before = self.index.node_devices(&key.name);
                let before = before.and_then(|devices| devices.metadata.uid.clone());
                let after = match after {
                    Some(Object::NodeDevices(devices)) => Some(devices.as_ref()),
                    _ => None,
                };
                match after {
                    Some(after) if after.metadata.uid != before => {
                        self.newest.note_seen(&key.name);
                    }
                    Some(_) => {}
                    None => self.newest.note_gone(&key.name),
                }
                if !self.bugs.has(InjectedBug::NodeDevicesWakeNobody) {
                    self.news.node_devices.insert(key.name.clone());
                    self.note_held(&key.name, after);
                }
            }
            (Kind::Gang, _) => self.agenda.gang(&name.into()),
            (Kind::Queue, _) => {
                self.news.queues.insert(name);
            }
            (Kind::Namespace, _) => {
                self.news.namespaces.insert(key.name.clone());
            }
            (Kind::Team, after) => {
                let before = self.index.team(&key.name).map(|team| team.spec.stop);
                let after = match after {
                    Some(Object::Team(team)) => Some(team.spec.stop),
                    _ => None,
                };
                if before != after {
                    self.news.stopped_teams.insert(key.name.clone());
                }
                self.news.teams.insert(key.name.clone());
            }
            (Kind::ResourceClaim, after) => {
                let before = self.index.claim(&name).map(|claim| claim.uid.clone());
                let after = match after {
                    Some(Object::ResourceClaim(claim)) => {
                        // By what it is charged and permitted as, as the index will know it.
                        let by_name = device_plugin::made_by_scheduler(claim);
                        by_name.or_else(|| claim.metadata.uid.clone())
                    }
                    _ => None,
                };
                for uid in before.as_deref().into_iter().chain(after.as_deref()) {
                    self.note_claim(uid);
                }
            }
            (Kind::Flavor, after) => {
                let before = self.index.flavor(&key.name).map(|flavor| &flavor.spec);
                let after = match after {
                    Some(Object::Flavor(flavor)) => Some(&flavor.spec),
                    _ => None,
                };
                // Which devices it means is the index's to say; whose they are each permit says. What is held by name goes by whether
                // its resource counts.
                let resource =
                    |spec: Option<&FlavorSpec>| spec.and_then(|it| it.extended_resource.clone());
                let (counted, counts) = (resource(before), resource(after));
                self.news.references_changed |= before != after;
                if counted != counts {
                    for resource in counted.iter().chain(&counts) {
                        self.note_held_of_resource(resource);
                    }
                }
                self.capacity.note_flavor(&key.name);
            }
            (Kind::Cohort, after) => {
                let before = self.index.cohort(&key.name).map(|cohort| &cohort.spec);
                let after = match after {
                    Some(Object::Cohort(cohort)) => Some(&cohort.spec),
                    _ => None,
                };
                self.news.references_changed |= before != after;
                self.capacity.note_cohort(&key.name);
            }
            (Kind::PriorityTier, after) => {
                let before = self.index.tier(&key.name).map(|tier| &tier.spec);
                let after = match after {
                    Some(Object::PriorityTier(tier)) => Some(&tier.spec),
                    _ => None,
                };
                self.news.references_changed |= before.is_some() != after.is_some();
                if before != after {
                    // Another one may be the default.
                    self.note_all_tiers();
                    // Whoever was admitted by it may follow another one by now.
                    let plans = self.plans.all_carried();
                    for plan in plans.filter(|plan| plan.tier.as_ref() == Some(&key.name)) {
                        self.agenda.gang(&plan.key);
                    }
                }
                self.capacity.note_tier(&key.name);
            }
            (Kind::Topology, after) => {
                if self.index.topology(&key.name).is_some() != after.is_some() {
                    self.note_all_flavors();
                }
            }
            (Kind::DeviceClass, _) => {
                let claims = self.index.claims_of_class(&key.name);
                let uids: Vec<String> = claims.map(|claim| claim.uid.to_string()).collect();
                for uid in uids {
                    self.note_claim(&uid);
                }
                // Claims that kube-scheduler has not made yet.
                self.note_held_of_resource(&device_plugin::class_resource(&key.name));
            }
            (Kind::Job, after) => {
                let before = self.index.job(&name).map(|job| JobFacts::of(job));
                let after = match after {
                    Some(Object::Job(job)) => Some(JobFacts::of(job)),
                    _ => None,
                };
                if after.is_none() || before != after {
                    self.news.jobs.insert(name);
                }
            }
            // The index says which gangs these concern.
            (Kind::Ledger | Kind::ResourceSlice | Kind::DeviceTaintRule, _) => {}
        }
    }

    fn note_all_tiers(&mut self) {
        for (tier, _) in self.index.tiers() {
            self.capacity.note_tier(tier);
        }
    }

    fn note_all_flavors(&mut self) {
        for (flavor, _) in self.index.flavors() {
            self.capacity.note_flavor(flavor);
        }
    }

    /// A resource of a device plugin counts as of another Flavor, or of none. As rare as the change of a Flavor's driver.
    fn note_held_of_resource(&mut self, resource: &str) {
        for source in self.feed.holds.sources_of_resource(resource) {
            match source {
                Source::Gang(key) | Source::Intent(key) => {
                    self.agenda.gang(&key);
                    self.feed.holds.note_stale(&key);
                }
                Source::Node(node) => self.agenda.node(&node),
            }
        }
    }

    fn note_pod(&mut self, name: &NamespacedName, after: Option<&Arc<Pod>>) {
        self.note_scheduler_claim(name, after);
        let before = self.index.pod(name).map(PodNews::of);
        let after = after.map(PodNews::of);
        let is_news = before != after;
        let goes_on = after.as_ref().filter(|after| {
            let is_same = before
                .as_ref()
                .is_some_and(|before| before.uid == after.uid);
            is_same && !after.is_over
        });
        for pod in before.iter().chain(&after) {
            // Whatever else is read of it the index tells of ([`Machine::gather`]).
            if is_news {
                self.agenda.pod(pod.uid);
            } else if pod.is_deleting {
                // Whoever deletes it by force goes by its version as well.
                self.agenda.gang_of_pod(pod.uid);
            }
            if let (Some(node), true) = (pod.node, is_news)
                && goes_on.is_none_or(|it| !self.is_permit_standing(node, it.uid, it.stamp))
            {
                self.agenda.node(node);
            }
            if pod.is_deleting && self.bugs.has(InjectedBug::FreedAtDeletion) {
                self.feed.holds.tell_anew(pod.uid);
            }
        }
    }

    /// Of several claims that say that kube-scheduler made them for a pod the pod's status tells which it made.
    fn note_scheduler_claim(&mut self, name: &NamespacedName, after: Option<&Arc<Pod>>) {
        let before = self.index.pod(name);
        let status = after.and_then(|pod| pod.status.as_ref());
        let claim = status.and_then(|status| status.extended_resource_claim_status.as_ref());
        let claim = claim.map(|claim| claim.resource_claim_name.as_str());
        if before.and_then(|pod| pod.scheduler_claim()) == claim {
            return;
        }
        let resource = device_plugin::class_resource(keys::DEVICE_CLASS_GPU);
        let pods: BTreeSet<&str> = before.map(uid).into_iter().chain(after.map(uid)).collect();
        let claims = pods.into_iter().map(|pod_uid| ClaimByName {
            pod_uid,
            resource: &resource,
        });
        let claims: Vec<String> = claims.map(|claim| claim.to_string()).collect();
        for claim in claims {
            self.note_claim(&claim);
        }
    }

    /// Whether the pod has the permit of its attempt on the node, and no other. As long as the pod lives, nothing there goes by how far
    /// it has come.
    fn is_permit_standing(&self, node: &str, pod: &str, attempt: i64) -> bool {
        let devices = self.index.node_devices(node);
        devices.is_some_and(|devices| devices.spec.enforce)
            && self.permits.is_standing(node, pod, attempt)
    }

    fn note_node(&mut self, name: &str, after: Option<&k8s_openapi::api::core::v1::Node>) {
        let before = self.index.node(name);
        let other = match (before, after) {
            (Some(before), Some(after)) if before.metadata.uid == after.metadata.uid => {
                // Kubelets write the status every few minutes.
                if !place::differs(before, after) {
                    return;
                }
                false
            }
            _ => true,
        };
        let was_ready = before.is_some_and(|node| place::is_ready(node));
        if after.is_some_and(place::is_ready) && !was_ready {
            // By the next look it may be gone, or silent, again.
            self.health.note_ready(name);
        }
        self.news.nodes.insert(name.to_owned());
        if other {
            self.news.other_nodes.insert(name.to_owned());
        }
    }

    fn note_claim(&mut self, uid: &str) {
        let mut stale = Vec::new();
        for source in self.feed.holds.sources_of_claim(uid) {
            match source {
                Source::Gang(key) | Source::Intent(key) => {
                    self.agenda.gang(key);
                    stale.push(key.clone());
                }
                Source::Node(node) => self.agenda.node(node),
            }
        }
        for key in &stale {
            self.feed.holds.note_stale(key);
        }
    }

    /// What a driver lists as held says which devices a claim has that the API server forgot.
    fn note_held(&mut self, node: &str, after: Option<&NodeDevices>) {
        let before = self.index.node_devices(node).map(AsRef::as_ref);
        let (before, after) = (release::listed(before), release::listed(after));
        let mut changed: Vec<String> = Vec::new();
        for (claim, devices) in before.iter().chain(&after) {
            if before.get(claim) != Some(devices) || after.get(claim) != Some(devices) {
                changed.push((*claim).to_owned());
            }
        }
        for claim in changed {
            self.note_claim(&claim);
        }
    }

    /// A write of an object did not succeed, or is over.
    pub(crate) fn note_key(&mut self, key: &ObjectKey) {
        let name = NamespacedName::new(key.namespace.clone(), key.name.clone());
        match key.kind {
            Kind::Gang => self.agenda.gang(&name.into()),
            Kind::Pod => {
                if let Some(pod) = self.index.pod(&name) {
                    self.agenda.pod(crate::objects::uid(pod));
                }
            }
            Kind::NodeDevices => {
                self.news.node_devices.insert(key.name.clone());
            }
            Kind::Queue => {
                self.news.queues.insert(name);
            }
            Kind::Team => {
                self.news.teams.insert(key.name.clone());
            }
            Kind::Cohort => self.capacity.note_cohort(&key.name),
            Kind::Flavor => self.capacity.note_flavor(&key.name),
            Kind::PriorityTier => self.capacity.note_tier(&key.name),
            Kind::Job => {
                self.news.jobs.insert(name);
            }
            // No lost node is back while a commit is under way.
            Kind::Ledger => {
                for node in self.health.lost() {
                    self.agenda.node(node);
                }
            }
            _ => {}
        }
    }

    pub(crate) fn key_of_gang(&self, gang: &engine::GangUid) -> Option<GangKey> {
        key_of(self.index.gang_by_uid(gang.as_str())?)
    }

    /// Why a gang waits may be another now.
    pub(crate) fn note_gang_by_uid(&mut self, gang: &engine::GangUid) {
        if let Some(key) = self.key_of_gang(gang) {
            self.agenda.gang(&key);
        }
    }

    /// Hands the engine what the index derived.
    pub(crate) fn take_engine_updates(&mut self, now: Now) {
        let seconds = i64::try_from(now.monotonic_seconds).unwrap_or(i64::MAX);
        for mut update in self.index.engine_updates(engine::Timestamp(seconds)) {
            match &mut update {
                engine::Update::Team(team) => {
                    self.queues.note_team(team.name.as_str());
                    if team.generation > 1 && self.bugs.has(InjectedBug::BorrowingLimitDropped) {
                        let limits = team
                            .quota
                            .iter_mut()
                            .flat_map(|(_, limits)| limits.values_mut());
                        limits.for_each(|limit| limit.borrowing_limit = None);
                    }
                    if self.bugs.has(InjectedBug::KeepIgnored) {
                        team.shrink = engine::Shrink::Evict;
                    }
                }
                // The Flavors of its devices may be others.
                engine::Update::Node(node) => self.note_health(node.name.as_str(), now),
                _ => {}
            }
            self.feed.apply(update);
        }
    }

    /// Notes how a node fares. Where an outage of its Flavors ended by that, those that are still not Ready may be lost.
    fn note_health(&mut self, name: &str, now: Now) {
        let node = self.index.node(name);
        let devices = self.index.node_devices(name);
        let (has_devices, is_lost) = (devices.is_some(), devices.is_some_and(|it| it.spec.lost));
        self.health.set_lost(name, is_lost);
        let seen = (node.is_some() || has_devices).then(|| Seen {
            is_ready: node.is_some_and(|node| place::is_ready(node)),
            // Many Nodes that are deleted at once, with pods on them, are somebody's error rather than dead machines.
            counts: match (node, devices) {
                (Some(node), _) => !taints::is_out_of_service(node),
                (None, devices) => devices.is_some_and(|it| !it.spec.permits.is_empty()),
            },
            flavors: self.index.engine_node(name).map_or_else(
                || self.health.flavors(name),
                |node| {
                    let devices = node.devices.iter();
                    let flavors = devices.flat_map(|device| &device.flavors);
                    flavors.map(ToString::to_string).collect()
                },
            ),
            has_devices: self.index.engine_node(name).map_or_else(
                || self.health.has_devices(name),
                |node| !node.devices.is_empty(),
            ),
        });
        // Of a Node that was made again it is still to be proved what became of the one that the object was written for.
        let is_meant = devices.is_none_or(|devices| {
            let uid = node.and_then(|node| node.metadata.uid.as_ref());
            uid == Some(&devices.spec.node_uid)
        });
        if seen.as_ref().is_none_or(|seen| seen.is_ready && is_meant) {
            self.forget_node_check(name);
        }
        let after_outage = self.health.note(name, seen, now.monotonic_seconds);
        self.note_after_outage(&after_outage);
        let wake = Cell::new(None);
        let Some(epoch) = self.takeover.leading_epoch() else {
            return;
        };
        let is_off = loss::is_off_account(self.context(epoch, now, &wake), name);
        if self.health.set_off_account(name, is_off) {
            for key in self.plans.on_node(name) {
                self.agenda.gang(key);
                self.feed.holds.note_stale(key);
            }
            self.note_deleting_on(name);
        }
    }

    /// An outage is over, and these nodes are still not Ready: they may be lost, and what runs there may be evicted again, some time
    /// from now.
    fn note_after_outage(&mut self, nodes: &[String]) {
        for node in nodes {
            self.agenda.node(node);
            for key in self.plans.on_node(node) {
                self.agenda.gang(key);
            }
            self.note_deleting_on(node);
        }
    }

    /// A pod that is being deleted on the node may be out of reach, or no longer.
    fn note_deleting_on(&mut self, node: &str) {
        for pod in self.index.pods_on_node(node) {
            if let Some(key) = gang_key_of_uid(&self.index, uid(pod)).filter(|_| is_deleting(pod)) {
                self.agenda.gang(key);
            }
        }
    }

    /// Collects what is to be looked at. Whether it is everything, for the first time.
    pub(crate) fn gather(&mut self, epoch: i64, now: Now, effects: &mut Vec<Effect>) -> bool {
        let seconds = now.monotonic_seconds;
        let after_outage = self.health.tick(seconds);
        self.note_after_outage(&after_outage);
        self.take_engine_updates(now);
        let stamp = engine::Timestamp(i64::try_from(seconds).unwrap_or(i64::MAX));
        let changes = self.index.refresh(stamp);
        for key in changes.gangs {
            self.agenda.gang(&key);
            self.feed.holds.note_stale(&key);
        }
        for pod in &changes.pods {
            self.agenda.gang_of_pod(pod);
        }
        for flavor in &changes.flavors {
            self.capacity.note_flavor(flavor.as_str());
        }
        for node in &changes.faulted {
            if self.index.faulty_devices(node).is_none() {
                self.fault_checks.forget(node);
            }
            for key in self.plans.on_node(node) {
                self.agenda.gang(key);
            }
        }
        for node in &changes.ruled {
            for key in self.plans.on_node(node) {
                self.agenda.gang(key);
            }
        }
        let everything = self.agenda.take_everything();
        if everything {
            self.note_everything();
        }
        self.agenda.come_due(seconds);
        self.window.come_due(seconds);
        self.slice(seconds);
        self.clocks.stand_still(self.ungating_withheld, seconds);
        if std::mem::take(&mut self.news.withheld_changed) {
            self.window.stir();
            let starting: Vec<GangKey> =
                self.plans.all_carried().map(|it| it.key.clone()).collect();
            for key in starting {
                self.agenda.gang(&key);
            }
        }
        self.read_ledger();
        self.read_breaker(now);
        self.look_up_news(epoch, now);
        let (again, over) = self.flights.advance(&self.index, now);
        effects.extend(again);
        self.check_breaker();
        for key in over {
            self.note_key(&key);
        }
        self.note_groups_to_make();
        self.look_up_news(epoch, now);
        self.resolve_pods(epoch, now);
        self.exit = self.exit.take().or_else(|| self.seen_above(epoch));
        everything && !std::mem::replace(&mut self.news.is_complete, true)
    }

    /// Whose Gang was not to be made beside another one of its group, which is made, or was made in vain. That one may be gone before anybody
    /// saw it, so that nothing else says so.
    fn note_groups_to_make(&mut self) {
        for (namespace, group) in self.flights.take_no_longer_made() {
            let gangs = self.index.gangs_of_label(&namespace, &group);
            for key in gangs {
                if self.index.gang(key).is_none() {
                    self.agenda.gang(key);
                }
            }
        }
    }

    fn read_ledger(&mut self) {
        let ledger = self.index.ledger();
        let version = ledger.and_then(|ledger| ledger.metadata.resource_version.as_deref());
        let changed = self.plans.read_ledger(
            version,
            ledger.map(|ledger| &ledger.spec),
            |key| self.index.gang(key).map(AsRef::as_ref),
            self.bugs,
        );
        for (key, before) in changed {
            self.agenda.gang(&key);
            // An eviction owes the nodes of its pods what says that they are charged, until it leaves the Ledger.
            if before == Some(IntentKind::Evict) {
                for node in self.permits.of_gang(&key.to_string()) {
                    self.agenda.node(node);
                }
            }
        }
    }

    /// Where the circuit breaker was opened or closed, whatever it has a say in is looked at again: as rare as a false alarm.
    fn read_breaker(&mut self, now: Now) {
        let ledger = self.index.ledger().map(AsRef::as_ref);
        let news = self.breaker.read(ledger, now);
        if news.is_stalled_changed {
            // Who waits until fewer are, or waits no longer. Of what is judged alone.
            for gang in self.stalls.gangs() {
                if let Some(key) = self.index.gang_by_uid(gang).and_then(|gang| key_of(gang)) {
                    self.agenda.gang(&key);
                }
            }
        }
        if news.is_opened_or_closed {
            self.note_governed();
        }
    }

    /// Where the API server drops what is recorded of the breaker, nothing is governed by it, and so nothing is to be ended.
    fn check_breaker(&mut self) {
        let is_dropped = self.flights.in_vain.lacks(Kind::Ledger, "spec.breaker");
        if is_dropped && self.breaker.note_dropped() {
            self.note_governed();
        }
    }

    /// Whatever the circuit breaker has a say in is looked at again.
    fn note_governed(&mut self) {
        let nodes = self.index.faulty_nodes().chain(self.health.nodes());
        for node in nodes {
            // What its driver may do about a fault.
            self.agenda.node(node);
            for key in self.plans.on_node(node) {
                self.agenda.gang(key);
            }
        }
        for key in self.drains.gangs() {
            self.agenda.gang(key);
        }
        for gang in self.forcing.gangs() {
            if let Some(key) = self.index.gang_by_uid(gang).and_then(|gang| key_of(gang)) {
                self.agenda.gang(&key);
            }
        }
    }

    fn note_everything(&mut self) {
        let gangs = self.index.gangs().map(|(key, _)| key.clone());
        let formed = self.index.formed_gangs().map(|formed| formed.key.clone());
        let known = self.views.after(None).cloned();
        let committed = self.plans.all_committed().map(|(key, _)| key.clone());
        let keys: BTreeSet<GangKey> = gangs.chain(formed).chain(known).chain(committed).collect();
        for key in &keys {
            self.agenda.gang(key);
            self.feed.holds.note_stale(key);
        }
        // What vanished while a watch was interrupted is known only here.
        let nodes = self.index.nodes().map(|(name, _)| name.clone());
        let devices = self.index.all_node_devices().map(|(name, _)| name.clone());
        let known = self.permits.nodes().chain(self.clocks.nodes());
        let known = known.chain(self.health.nodes()).cloned();
        let names: BTreeSet<String> = nodes.chain(devices).chain(known).collect();
        self.news.nodes.extend(names.iter().cloned());
        self.news.node_devices.extend(names);
        for pod in self.index.pods() {
            self.agenda.pod(crate::objects::uid(pod));
        }
        for pod in self.window.pods() {
            self.agenda.pod(pod);
        }
        let suspended = self.suspensions.jobs().cloned();
        let suspending = self
            .index
            .jobs()
            .filter(|(_, job)| jobs::suspended_for(job).is_some());
        let suspending = suspending.map(|(name, _)| name.clone());
        self.news.jobs.extend(suspending.chain(suspended));
        let namespaces = self.index.namespaces().map(|(name, _)| name.clone());
        let known = self.queues.namespaces().cloned();
        self.news.namespaces.extend(namespaces.chain(known));
        self.news
            .teams
            .extend(self.index.teams().map(|(name, _)| name.clone()));
        for (cohort, _) in self.index.cohorts() {
            self.capacity.note_cohort(cohort);
        }
        self.note_all_flavors();
        self.note_all_tiers();
        self.news
            .queues
            .extend(self.index.queues().map(|(key, _)| key.clone()));
    }

    /// One slice of the slow look at everything.
    fn slice(&mut self, second: u64) {
        if !self.resync.is_due(second) {
            return;
        }
        if self.resync.begin() {
            let nodes = self.index.nodes().map(|(name, _)| name.clone());
            self.resync.nodes = nodes.collect();
        }
        let gangs = self.views.after(self.resync.gang.as_ref());
        let gangs: Vec<GangKey> = gangs.take(GANGS_PER_SLICE).cloned().collect();
        for key in &gangs {
            self.agenda.gang(key);
            self.feed.holds.note_stale(key);
        }
        for _ in 0..NODES_PER_SLICE {
            let Some(node) = self.resync.nodes.pop() else {
                break;
            };
            self.agenda.node(&node);
        }
        let done = gangs.len() < GANGS_PER_SLICE;
        if let Some(last) = gangs.into_iter().next_back() {
            self.resync.gang = Some(last);
        }
        if done && self.resync.nodes.is_empty() {
            self.resync.end(second);
        }
    }

    /// Looks up what observations concern, now that the index shows them.
    fn look_up_news(&mut self, epoch: i64, now: Now) {
        let wake = Cell::new(None);
        for name in std::mem::take(&mut self.news.nodes) {
            self.note_health(&name, now);
            self.note_reset(&name, now);
            self.agenda.node(&name);
            for key in self.plans.on_node(&name) {
                self.agenda.gang(key);
            }
            self.note_deleting_on(&name);
        }
        for name in std::mem::take(&mut self.news.jobs) {
            self.look_up_job(&name);
        }
        for name in std::mem::take(&mut self.news.other_nodes) {
            for pod in self.index.pods_on_node(&name) {
                self.agenda.pod(crate::objects::uid(pod));
            }
        }
        for name in std::mem::take(&mut self.news.node_devices) {
            self.note_health(&name, now);
            self.note_reset(&name, now);
            let devices = self.index.node_devices(&name).map(AsRef::as_ref);
            for named in self.permits.read(&name, devices) {
                self.note_permit(&named);
            }
            self.agenda.node(&name);
            let fenced = self.views.fenced_on(&name);
            for key in fenced.chain(self.plans.lost_on_node(&name)) {
                self.agenda.gang(key);
            }
            // Whose start is late may be kept back by what is prepared here, or is not any more.
            let is_late = |key: &&GangKey| {
                let reason = self.views.of(key).and_then(|view| view.reason.as_ref());
                reason.is_some_and(|reason| reason.reason == Reason::StartTimeout)
            };
            for key in self.plans.on_node(&name).filter(is_late) {
                self.agenda.gang(key);
            }
        }
        let mut queues = std::mem::take(&mut self.queues);
        for team in std::mem::take(&mut self.news.teams) {
            let named = self.index.namespaces_of_team(&team);
            let named = named.into_iter().map(str::to_owned);
            let known = queues.namespaces_of(&team);
            self.news.namespaces.extend(named.chain(known));
            queues.note_team(&team);
        }
        if std::mem::take(&mut self.news.references_changed) {
            queues.note_references();
            self.capacity.note_use();
        }
        // Whoever is charged to a Team, or recovers from an attempt that was, goes by its stop, though the namespace has left it.
        let stopped = std::mem::take(&mut self.news.stopped_teams);
        if !stopped.is_empty() {
            let plans = self.plans.all_carried();
            for plan in plans.filter(|plan| stopped.contains(&plan.team)) {
                self.agenda.gang(&plan.key);
            }
            for key in self.feed.all_recovering() {
                let status = self.index.gang(key).and_then(|gang| gang.status.as_ref());
                let team = status.and_then(|status| status.team.as_ref());
                if team.is_some_and(|team| stopped.contains(team)) {
                    self.agenda.gang(key);
                }
            }
        }
        // Jobs may stay suspended because of the Team of their namespace. They are few.
        if !self.news.namespaces.is_empty() {
            for key in self.suspensions.gangs() {
                self.agenda.gang(key);
            }
        }
        for namespace in std::mem::take(&mut self.news.namespaces) {
            queues.note_namespace(self.context(epoch, now, &wake), &namespace);
        }
        for queue in std::mem::take(&mut self.news.queues) {
            queues.note_queue(&queue);
        }
        self.queues = queues;
    }

    /// A Job changed: the gang that it was suspended for goes by it, and so do those of its pods.
    fn look_up_job(&mut self, name: &NamespacedName) {
        let job = self.index.job(name);
        let suspended_for = job.and_then(|job| jobs::suspended_for(job));
        let suspended_for = suspended_for.map(|(key, _)| key);
        let before = self.suspensions.set(name, suspended_for.clone());
        for key in before.into_iter().chain(suspended_for) {
            self.agenda.gang(&key);
        }
        let uid = job.and_then(|job| job.metadata.uid.as_deref());
        let pods = uid.map(|uid| self.index.pods_of_job(uid));
        for pod in pods.into_iter().flatten() {
            if let Some(key) = gang_key_of_uid(&self.index, crate::objects::uid(pod)) {
                self.agenda.gang(key);
            }
        }
    }

    /// A permit came, went or changed: its gang is concerned, and whichever gang its pod is planned for or belongs to by
    /// now.
    fn note_permit(&mut self, permit: &Named) {
        for key in self.plans.of_pod(&permit.pod) {
            self.agenda.gang(key);
        }
        let own = GangKey::parse(&permit.gang);
        if let Some(key) = own.filter(|key| self.views.of(key).is_some()) {
            self.agenda.gang(&key);
        }
        if let Some(key) = gang_key_of_uid(&self.index, &permit.pod) {
            self.agenda.gang(key);
        }
        // The node is closed to whoever waits and names such a claim, or is not any more.
        for claim in &permit.claims {
            for pod in self.index.pods_of_claim(claim) {
                if let Some(key) = gang_key_of(&self.index, pod) {
                    self.agenda.gang(key);
                }
            }
        }
    }

    /// The gang of a pod is to be looked at if it waits.
    pub(crate) fn note_waiting_gang_of(&mut self, pod: &str) {
        if let Some(key) = gang_key_of_uid(&self.index, pod)
            && self.plans.carried(key).is_none()
            && self
                .views
                .of(key)
                .is_none_or(|view| view.stage != Stage::Committed)
        {
            self.agenda.gang(key);
        }
    }

    /// Finds out which gangs and nodes the pods that changed belong to.
    pub(crate) fn resolve_pods(&mut self, epoch: i64, now: Now) {
        for (uid, is_news) in self.agenda.take_pods() {
            let wake = Cell::new(None);
            let mut planned = self.plans.of_pod(&uid).peekable();
            let mut permitted = self.permits.of_pod(&uid).peekable();
            // Pods say things in their annotations all the time, and hold the same.
            let takes = if planned.peek().is_some() || permitted.peek().is_some() {
                holds::resources(self.context(epoch, now, &wake), &uid)
            } else {
                engine::PodResources::default()
            };
            for key in planned {
                self.agenda.gang(key);
                self.feed.holds.note_pod(key, &uid, &takes);
            }
            let gang = gang_key_of_uid(&self.index, &uid);
            let pod = self.index.pod_by_uid(&uid);
            let lives_in = pod.filter(|pod| !is_terminal(pod)).map(stamp);
            for node in permitted {
                // A permit whose pod is another gang's by now may have to go, whatever changed.
                let is_known = || {
                    self.feed.holds.is_told_by_node(node, &uid, &takes)
                        && gang.is_none_or(|gang| self.permits.is_of(node, &uid, gang))
                };
                let stands = || lives_in.is_some_and(|it| self.is_permit_standing(node, &uid, it));
                if is_news && !stands() || !is_known() {
                    self.agenda.node(node);
                }
                for key in self.plans.lost_on_node(node) {
                    self.agenda.gang(key);
                }
            }
            if let Some(key) = gang {
                self.agenda.gang(key);
            }
            self.count_pod(&uid, epoch, now);
        }
    }

    /// Counts a pod, or not, among those that kube-scheduler is busy with.
    pub(crate) fn count_pod(&mut self, uid: &str, epoch: i64, now: Now) {
        let wake = Cell::new(None);
        let context = self.context(epoch, now, &wake);
        let pod = self.index.pod_by_uid(uid);
        let team = pod
            .filter(|pod| ungate::is_under_way(context, pod))
            .map(|_| {
                let key = self.plans.of_pod(uid).next();
                let plan = key.and_then(|key| self.plans.carried(key));
                plan.map_or_else(String::new, |plan| plan.team.clone())
            });
        let until = now.monotonic_seconds + self.config.window_seconds;
        self.window.note_pod(uid, team.as_deref(), until);
    }

    /// Looks at what is on the agenda, and sends what is owed.
    pub(crate) fn look(&mut self, epoch: i64, now: Now, effects: &mut Vec<Effect>) {
        for key in self.agenda.take_gangs() {
            self.look_at_gang(&key, epoch, now, effects);
        }
        // A look at a gang touches nodes; one at a node touches nothing.
        for node in self.agenda.take_nodes() {
            self.look_at_node(&node, epoch, now, effects);
        }
    }

    fn look_at_gang(&mut self, key: &GangKey, epoch: i64, now: Now, effects: &mut Vec<Effect>) {
        self.visited += 1;
        let gang = self.index.gang(key).cloned();
        let before = self.plans.read_gang(key, gang.as_deref(), self.bugs);
        self.touch_nodes_of(before.as_deref());
        let plan = self.plans.carried(key).cloned();
        let uid = gang.as_ref().and_then(|gang| gang.metadata.uid.clone());
        let uid = uid.unwrap_or_default();
        let wake = Cell::new(None);
        let nudged = self.note_start(&uid, plan.as_deref(), epoch, now, &wake);
        let notice = gang.as_deref().zip(plan.as_deref());
        let notice = notice.and_then(|(gang, plan)| preempt::notice(gang, plan));
        let noticed_at = notice.map(|notice| notice.noticed_at.0.as_second());
        self.clocks
            .note_notice(&uid, noticed_at, now.monotonic_seconds);
        self.note_checkpoints(&uid, plan.as_deref(), notice);
        let runs_since = gang.as_deref().and_then(running::runs_since);
        self.clocks
            .note_running(&uid, runs_since, now.monotonic_seconds);
        let admitted_at = gang.as_deref().and_then(running::admitted_at);
        self.clocks.note_admission(&uid, admitted_at, now);
        let is_unwanted = self.feed.has_decided && preempt::goes(&self.feed.engine, &uid).is_none();
        let unwanted = noticed_at.filter(|_| is_unwanted);
        self.clocks
            .note_unwanted(&uid, unwanted, now.monotonic_seconds);
        if !self.feed.has_decided && gang.as_deref().is_some_and(restored::is_recorded) {
            self.feed.recorded.insert(uid.as_str().into());
        }
        let status = gang.as_ref().and_then(|gang| gang.status.as_ref());
        let pauses_until = status.and_then(|status| status.requeue_at.as_ref());
        let pauses_until = pauses_until.map(|at| at.0.as_second());
        self.clocks
            .note_pause(&uid, pauses_until, now.monotonic_seconds);
        let finished_at = status.and_then(|status| status.finished_at.as_ref());
        let finished_at = finished_at.map(|at| at.0.as_second());
        self.clocks
            .note_gang_end(&uid, finished_at, now.monotonic_seconds);

        self.note_faults(&uid, plan.as_deref(), epoch, now, &wake);
        self.note_progress(&uid, gang.as_deref(), plan.as_deref(), epoch, now, &wake);
        self.note_disruption(&uid, plan.as_deref(), epoch, now, &wake);
        self.note_failures(&uid, plan.as_deref(), epoch, now, &wake);
        self.note_drains(&uid, gang.as_deref(), plan.as_deref(), epoch, now, &wake);
        self.note_hanging(key, gang.as_deref(), epoch, now, &wake);
        let view = stage::view(self.context(epoch, now, &wake), key);
        let view = view.map(|view| self.not_going_back(key, view));
        let reason = view.as_ref().and_then(|view| view.reason.as_ref());
        let second = now.monotonic_seconds;
        self.clocks
            .note_reason(&uid, reason.map(|wait| wait.reason), second);
        if self.views.of(key) != view.as_ref() {
            let before = self.views.set(key, view.clone());
            self.note_view(key, before.as_ref(), view.as_ref());
        }
        self.note_pods_of(key);

        let mut writes = self.owed_to_gang(key, epoch, now, &wake);
        writes.extend(nudge::writes(&self.index, &nudged));
        self.send(writes, epoch, now, effects);
        self.note_undecided(key);

        self.feed_gang(key, plan.as_ref(), epoch, now, &wake);
        self.queues.note_gang(key, gang.as_deref());
        let mut events = std::mem::take(&mut self.events);
        let notes = events.owed(self.context(epoch, now, &wake), key);
        self.events = events;
        self.send(notes, epoch, now, effects);
        let unconfirmed = eviction::to_confirm(self.context(epoch, now, &wake), key);
        effects.extend(unconfirmed.map(|found| self.check_fault(&found, now)));
        let stalled = eviction::stalled_to_confirm(self.context(epoch, now, &wake), key);
        effects.extend(stalled.and_then(|pod| self.check_stall(key, pod, now)));
        let drained = eviction::drained_to_confirm(self.context(epoch, now, &wake), key);
        effects.extend(drained.map(|object| self.check_drain(object, now)));
        let context = self.context(epoch, now, &wake);
        let asks = gang.iter();
        let asks: Vec<_> = asks
            .flat_map(|gang| force::to_read(context, key, gang))
            .collect();
        for ask in asks {
            effects.extend(self.check_forced(key, ask, now));
        }
        let due = wake.get();
        let due = due.filter(|_| !self.bugs.has(InjectedBug::NoTimers));
        self.agenda.set_due(Subject::Gang(key.clone()), due);
    }

    /// Notes which faults reach what the attempt of a Gang holds.
    fn note_faults(
        &mut self,
        gang_uid: &str,
        plan: Option<&Plan>,
        epoch: i64,
        now: Now,
        wake: &Cell<Option<u64>>,
    ) {
        let context = self.context(epoch, now, wake);
        let reached = plan.map_or_else(Vec::new, |plan| held::reached(context, plan));
        let faults: Vec<_> = reached.iter().map(Reached::identity).collect();
        let attempt = plan.map_or(0, |plan| plan.attempt);
        self.clocks
            .note_faults(gang_uid, attempt, faults, now.monotonic_seconds);
    }

    /// Notes how far a start has come. Returns the pods whose kubelets are to be nudged.
    fn note_start(
        &mut self,
        gang_uid: &str,
        plan: Option<&Plan>,
        epoch: i64,
        now: Now,
        wake: &Cell<Option<u64>>,
    ) -> Vec<String> {
        let second = now.monotonic_seconds;
        let progress = plan.map(|plan| progress(self.context(epoch, now, wake), plan));
        let starting = progress
            .zip(plan)
            .filter(|(progress, plan)| progress.running < plan.ranks.len());
        let start = starting.map(|(progress, plan)| (plan.attempt, progress));
        self.clocks.note_start(gang_uid, start, second);
        let context = self.context(epoch, now, wake);
        let waiting = starting.map_or_else(Vec::new, |(_, plan)| {
            nudge::waiting(context, plan).collect()
        });
        let (nudged, next) = self.clocks.note_sandboxes(gang_uid, waiting, second);
        if let Some(next) = next {
            self.context(epoch, now, wake).has_come(next);
        }
        nudged
    }

    /// Notes a gang whose Gang was just written to while its start is being completed: until that write is seen it is undecided what becomes
    /// of its intent, and it is due no permits ([`Machine::look_at_undecided`]). In any other state of its intent a write of the Gang
    /// makes no node be owed more.
    fn note_undecided(&mut self, key: &GangKey) {
        let view = self.views.of(key);
        let completes = view.is_some_and(|view| view.intent == Some(IntentState::Complete));
        if completes && self.flights.busy(&gang_object(key)) {
            self.undecided.insert(key.clone());
        }
    }

    /// Looks once more, at the end of a poll, at the gangs that became undecided by what was sent in it; not before, so that nothing is put
    /// off that was due when they were looked at first.
    ///
    /// Their nodes go by that. A permit that waits for a proof holds back all else that its node is owed ([`permits`]): the epoch, say, for
    /// which another gang's intent waits in the Ledger. Without this look the node would be taken to wait for that proof still, and nothing
    /// would say otherwise: once the write is seen, the gang is as it was before it. Where the Ledger cannot be read, the epoch would be
    /// written when something else happens to touch the node.
    ///
    /// It ends, since each gang has one write under way at most.
    pub(crate) fn look_at_undecided(&mut self, epoch: i64, now: Now, effects: &mut Vec<Effect>) {
        while !self.undecided.is_empty() {
            for key in std::mem::take(&mut self.undecided) {
                self.agenda.gang(&key);
            }
            self.look(epoch, now, effects);
        }
    }

    /// A view whose stage is not before that of the last one.
    fn not_going_back(&mut self, key: &GangKey, view: View) -> View {
        if self.bugs.has_any() {
            return view;
        }
        let seen = view.stage;
        let before = self.views.of(key);
        let (view, is_held) = stage::following(before, view);
        debug_assert!(!is_held, "{key}: {before:?}, then {seen:?}");
        self.held_stages += u64::from(is_held);
        view
    }

    /// Touches what goes by a gang's view, which is another now.
    fn note_view(&mut self, key: &GangKey, before: Option<&View>, after: Option<&View>) {
        if let Some(before) = before
            && after.is_none_or(|after| after.gang_uid != before.gang_uid)
        {
            self.feed.forget(&before.gang_uid);
            self.clocks.forget(&before.gang_uid);
            self.checkpoints.forget(&before.gang_uid);
            self.stalls.forget(&before.gang_uid);
            self.disruptions.forget(&before.gang_uid);
            self.forget_drains(&before.gang_uid);
            self.forcing.forget(&before.gang_uid);
        }
        // Nobody is evicted for a gang before that says so.
        let has_reservation = |view: Option<&View>| view.is_some_and(|view| view.has_reservation);
        if let Some(after) = after
            && has_reservation(before) != after.has_reservation
        {
            let kept = self.feed.engine.kept_for(&after.gang_uid.as_str().into());
            let victims: Vec<engine::GangUid> =
                kept.map_or_else(Vec::new, |kept| kept.victims.keys().cloned().collect());
            for victim in &victims {
                self.note_gang_by_uid(victim);
            }
        }
        let reason_before = before.and_then(|view| view.reason.as_ref());
        if reason_before != after.and_then(|view| view.reason.as_ref())
            && let Some(team) = self.index.team_of_namespace(&key.namespace)
        {
            self.queues.note_team(team.as_str());
        }
        if before.map(for_nodes) != after.map(for_nodes) {
            let plan = self.plans.carried(key).cloned();
            let intent = self.plans.committed(key).map(|it| Arc::clone(&it.plan));
            self.touch_nodes_of(plan.as_deref());
            self.touch_nodes_of(intent.as_deref());
            for view in before.into_iter().chain(after) {
                for node in &view.fenced {
                    self.agenda.node(node);
                }
            }
            for node in self.permits.of_gang(&key.to_string()) {
                self.agenda.node(node);
            }
        }
    }

    /// Touches what goes by the pods of a gang.
    fn note_pods_of(&mut self, key: &GangKey) {
        // Their nodes' drivers may enforce only once they are adopted.
        let formed = self.index.formed_gang(key);
        for pod in formed.iter().flat_map(|formed| &formed.unadmitted) {
            let pod = self.index.pod_by_uid(&pod.uid);
            if let Some(node) = pod.and_then(bound_node) {
                self.agenda.node(node);
            }
        }
        let may_ungate = self.views.of(key).is_some_and(|view| view.may_ungate);
        let early = || self.bugs.has(InjectedBug::UngateBeforePlan);
        let committed = || Some(&self.plans.committed(key)?.plan);
        let carried = self.plans.carried(key).filter(|_| may_ungate);
        let plan = carried.or_else(|| committed().filter(|_| early()));
        let waits = plan.map(|plan| (plan.team.as_str(), plan.sequence));
        self.window.note_gang(key, waits);
    }

    fn touch_nodes_of(&mut self, plan: Option<&Plan>) {
        for node in plan.iter().flat_map(|plan| plan.nodes()) {
            self.agenda.node(node);
        }
    }

    /// What a gang, its intent and its pods are owed.
    fn owed_to_gang(
        &self,
        key: &GangKey,
        epoch: i64,
        now: Now,
        wake: &Cell<Option<u64>>,
    ) -> Vec<ApiRequest> {
        let context = self.context(epoch, now, wake);
        let mut writes = Vec::new();
        if let Some(gang) = self.index.gang(key) {
            writes.extend(ledger_recovery::write(context, key, gang));
        }
        if let (Some(intent), Some(view)) = (self.plans.committed(key), self.views.of(key)) {
            writes.extend(void::writes(context, intent, view));
            if view.intent == Some(IntentState::Carry) {
                writes.extend(admit::carry(context, &intent.plan));
            }
        }
        writes.extend(gangs::write(context, key));
        if let Some(gang) = self.index.gang(key) {
            writes.extend(evict::writes(context, key, gang));
            writes.extend(force::writes(context, key, gang));
            writes.extend(restarts::writes(context, key, gang));
            if let Some(plan) = self.plans.carried(key) {
                writes.extend(preemption::writes(context, gang, plan));
            }
        }
        writes.extend(evict::resumptions(context, self.suspensions.of(key)));
        writes.extend(ungate::unmanaged(context, key));
        writes
    }

    /// Tells the engine's feed what a gang holds, and whether it waits.
    fn feed_gang(
        &mut self,
        key: &GangKey,
        plan: Option<&Arc<Plan>>,
        epoch: i64,
        now: Now,
        wake: &Cell<Option<u64>>,
    ) {
        let is_stale = self.feed.holds.take_stale(key);
        let context = self.context(epoch, now, wake);
        let gang = self.index.gang(key);
        let candidate = gang.and_then(|gang| waiting::candidate(context, key, gang));
        let intent = self.plans.committed(key).map(|intent| &intent.plan);
        let sources = (Source::Gang(key.clone()), Source::Intent(key.clone()));
        let says = |source: &Source, plan: &Arc<Plan>| {
            let known = self.feed.holds.made_of(source, plan);
            let known = known.filter(|_| !is_stale);
            known.unwrap_or_else(|| Said {
                plan: Some(Arc::clone(plan)),
                part: holds::of_plan(context, plan),
            })
        };
        let of_gang = plan.map(|plan| says(&sources.0, plan));
        let of_intent = intent.map(|intent| match &of_gang {
            // What is committed is carried.
            Some(said) if plan.is_some_and(|plan| Arc::ptr_eq(plan, intent)) => said.clone(),
            _ => says(&sources.1, intent),
        });
        let view = self.views.of(key);
        let running = gang.zip(plan).zip(view);
        let running =
            running.and_then(|((gang, plan), view)| running::running(context, gang, plan, view));
        let end = gang.zip(plan).and_then(|(gang, plan)| {
            let at = running::gone_at(context, gang, plan)?;
            Some((plan.gang_uid.as_str().into(), at))
        });
        let recovers = gang.and_then(|gang| recovering::which(context, gang));
        let is_news = self.feed.recovering(key) != recovers.as_ref();
        let recovering = gang.filter(|_| is_news && recovers.is_some());
        let recovering = recovering.and_then(|gang| recovering::recovering(context, key, gang));
        let ends = running.is_none() && running::ends(gang.map(AsRef::as_ref), view);
        // What is released from now on is kept.
        self.feed.set_recovering(key, recovers, recovering);
        self.feed.set_candidate(key, candidate);
        self.feed.set_running(key, running, ends);
        self.feed.set_end(key, end);
        self.feed.holds.set(&sources.0, of_gang);
        self.feed.holds.set(&sources.1, of_intent);
    }

    fn look_at_node(&mut self, name: &str, epoch: i64, now: Now, effects: &mut Vec<Effect>) {
        self.visited += 1;
        let wake = Cell::new(None);
        let ends = permits::owes_end(self.context(epoch, now, &wake), name);
        self.clocks.note_ends(name, ends, now.monotonic_seconds);
        let behind = loss::behind(self.context(epoch, now, &wake), name);
        self.health.note_answer(name, behind, now.monotonic_seconds);
        let context = self.context(epoch, now, &wake);
        let devices = context.index.node_devices(name);
        let is_to_be_asked =
            devices.is_some_and(|devices| loss::is_to_be_asked(context, name, devices));
        let is_silent = loss::is_driver_silent(context, name);
        let owed = permits::write(context, name);
        let said = Said {
            plan: None,
            part: holds::of_node(context, name),
        };
        let source = Source::Node(name.to_owned());
        self.feed.holds.set(&source, Some(said));
        match owed {
            Some(Owed::Write(write)) => self.send(vec![write], epoch, now, effects),
            Some(Owed::Proof) => {
                self.await_newest(name, now);
                effects.extend(self.check_ledger(now));
            }
            None => {}
        }
        self.index.set_driver_silent(name, is_silent);
        if is_to_be_asked {
            effects.extend(self.check_node(name, now));
        }
        self.agenda
            .set_due(Subject::Node(name.to_owned()), wake.get());
    }
}

/// What the permits of nodes go by.
fn for_nodes(view: &View) -> impl PartialEq + '_ {
    let is_over = view.stage == Stage::Over;
    let stands = (&view.gang_uid, view.attempt, is_over);
    let permits = (view.is_permitted, view.is_undecided());
    (stands, &view.voided, &view.fenced, permits)
}

fn progress(context: PollContext<'_>, plan: &Plan) -> Progress {
    let mut progress = Progress::default();
    let mut initializing = 0;
    for (rank, state) in plan.states(context) {
        let Some(pod) = context.index.pod_by_uid(&rank.pod) else {
            progress.running += usize::from(state == RankState::Succeeded);
            continue;
        };
        let start = pod.start();
        let runs = phase(pod) == "Running" || is_terminal(pod);
        progress.running += usize::from(runs);
        let reached = [!is_gated(pod), bound_node(pod).is_some(), runs];
        progress.steps += reached.into_iter().filter(|reached| *reached).count();
        progress.steps += usize::from(start.steps);
        initializing += usize::from(!runs && start.is_initializing);
    }
    progress.is_initializing =
        initializing > 0 && progress.running + initializing == plan.ranks.len();
    progress
}
