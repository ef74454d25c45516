//! The judge: takes what happened, in order, and says what was wrong. Pure; the time is an argument.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use muster_api::{Gang, GangPhase, keys};

use super::{
    COVERAGE_BOUND, Counts, RELEASE_BOUND, Verdict,
    charges::{ChargedClaim, Charges},
    limits,
    order::Order,
    record::{Container, Event, Line},
    world::{self, Change, Object, World},
};

/// Something that must end within a bound, and since when it has been so.
type Since = BTreeMap<String, u64>;

/// Watches the world and remembers what was wrong with it.
#[derive(Debug, Default)]
pub(super) struct Judge {
    order: Order<Change>,
    world: World,
    now_millis: u64,
    suspended: bool,
    counts: Counts,
    violations: BTreeSet<String>,
    /// What each quota node used, to tell a rise from a limit that was lowered (S1).
    used: BTreeMap<String, i128>,
    /// Claims that ever had a permit, by node.
    permitted: BTreeMap<String, BTreeSet<String>>,
    admitted: BTreeSet<String>,
    seen_pods: BTreeSet<String>,
    uncovered: Since,
    unpermitted: Since,
    leaking: Since,
    lost_gangs: BTreeMap<String, LostGang>,
}

/// A gang whose object vanished before it ended.
#[derive(Debug)]
struct LostGang {
    gang: Gang,
    since: u64,
}

impl Judge {
    /// An object changed; it is judged once nothing earlier can come any more.
    pub(super) fn observe(&mut self, revision: u64, now_millis: u64, change: Change) {
        self.order.push(revision, now_millis, change);
    }

    /// A line of a node's record.
    pub(super) fn record(&mut self, node: &str, line: &Line) {
        match line.event {
            Event::Started => {
                if let Some(container) = Container::of(node, line) {
                    self.counts.containers += 1;
                    self.check_exclusive(&container);
                    self.world
                        .containers
                        .insert(line.container_id.clone(), container);
                }
            }
            Event::Exited => {
                self.world.containers.remove(&line.container_id);
            }
        }
    }

    /// A watch was interrupted so that events may be missing: nothing that follows proves anything.
    pub(super) fn gap(&mut self, what: &str) {
        self.violations
            .insert(format!("the observer was blind for a while: {what}"));
    }

    /// Judges what is ripe, and what should have ended by now.
    pub(super) fn tick(&mut self, now_millis: u64) {
        let passed = now_millis.saturating_sub(self.now_millis);
        self.now_millis = now_millis;
        for change in self.order.take_ripe(now_millis) {
            self.judge_change(change);
        }
        if self.suspended {
            self.shift_bounds(passed);
        }
        let charges = Charges::of(&self.world);
        self.check_coverage(&charges);
        self.check_permits();
        self.check_leaks(&charges);
        self.check_lost_gangs();
    }

    pub(super) fn verdict(&self) -> Verdict {
        Verdict {
            violations: self.violations.iter().cloned().collect(),
            seen: self.counts,
        }
    }

    pub(super) fn begin(&mut self) {
        self.violations.clear();
        self.counts = Counts::default();
    }

    pub(super) fn suspend_bounds(&mut self, suspended: bool) {
        self.suspended = suspended;
    }

    /// What is still charged, permitted or in use, and whether events still wait.
    pub(super) fn left_over(&self) -> Vec<String> {
        let charges = Charges::of(&self.world);
        let still_held = charges
            .claims
            .iter()
            .map(|(uid, claim)| format!("claim {uid} ({})", named_by(claim)));
        let running = self
            .world
            .containers
            .values()
            .map(|container| format!("a container of {}", container.pod));
        let waiting = (!self.order.is_empty()).then(|| "events that are not judged yet".to_owned());
        still_held.chain(running).chain(waiting).collect()
    }

    fn violation(&mut self, text: String) {
        self.violations.insert(text);
    }

    fn judge_change(&mut self, change: Change) {
        self.before(&change);
        let quota_moved = matches!(
            change.object,
            Object::Ledger(_) | Object::Gang(_) | Object::NodeDevices(_)
        );
        let quota_changed = matches!(change.object, Object::Team(_) | Object::Cohort(_));
        self.world.apply(change);
        if quota_moved || quota_changed {
            self.check_limits(quota_moved);
        }
    }

    /// What can be told only from the step from the old state to the new one.
    fn before(&mut self, change: &Change) {
        match &change.object {
            Object::Pod(pod) if !change.gone => {
                if pod
                    .spec
                    .as_ref()
                    .is_some_and(|spec| spec.resource_claims.is_some())
                    && self.seen_pods.insert(world::uid(&**pod))
                {
                    self.counts.pods += 1;
                }
                self.check_ungate(pod);
            }
            Object::Gang(gang) => self.check_gang(gang, change.gone),
            Object::NodeDevices(node) if !change.gone => {
                let permitted = self.permitted.entry(node.name_any()).or_default();
                permitted.extend(
                    node.spec
                        .permits
                        .iter()
                        .flat_map(|permit| permit.claim_uids.iter().cloned()),
                );
            }
            _ => {}
        }
    }

    // --- S1

    /// No quota node over its limit. A limit that was lowered below the use is no violation while the use only falls.
    fn check_limits(&mut self, judge_rise: bool) {
        let charges = Charges::of(&self.world);
        for node in limits::uses(&self.world, &charges) {
            self.counts.checks += 1;
            let before = self.used.insert(node.of.clone(), node.used).unwrap_or(0);
            if let Some(most) = node.over.filter(|_| judge_rise && node.used > before) {
                self.violation(format!(
                    "S1: {} rose to {}, more than {most}",
                    node.of, node.used
                ));
            }
        }
        for (uid, charged) in &charges.claims {
            let Some(claim) = self.world.claims.get(uid) else {
                continue;
            };
            self.counts.checks += 1;
            let asked = world::requested_devices(claim).map(|devices| devices * 1000);
            if asked.is_some_and(|asked| asked != charged.gpus_milli) {
                let text = format!(
                    "S1: claim {} asks for {} thousandths of a GPU and is charged {}",
                    claim.name_any(),
                    asked.unwrap_or_default(),
                    charged.gpus_milli
                );
                self.violations.insert(text);
            }
        }
    }

    // --- S2

    /// No GPU pod without a charge: bound with devices of ours, or running with them.
    fn check_coverage(&mut self, charges: &Charges) {
        let mut uncovered = BTreeSet::new();
        for pod in self.world.pods.values() {
            if world::node_of(pod).is_none() || world::is_terminal(pod) {
                continue;
            }
            for claim in world::claims_of(&self.world, pod) {
                self.counts.checks += 1;
                let devices = self
                    .world
                    .claims
                    .get(&claim)
                    .map_or(0, world::allocated_devices);
                if devices > 0 && !charges.claims.contains_key(&claim) {
                    uncovered.insert(format!(
                        "S2: pod {} is bound with claim {claim} and not charged",
                        pod.name_any()
                    ));
                }
            }
        }
        for container in self.world.containers.values() {
            self.counts.checks += 1;
            for claim in container
                .claims
                .iter()
                .filter(|claim| !charges.claims.contains_key(*claim))
            {
                uncovered.insert(format!(
                    "S2: a container of {} runs with claim {claim} and is not charged",
                    container.pod
                ));
            }
        }
        let bound = u64::try_from(COVERAGE_BOUND.as_millis()).unwrap_or(u64::MAX);
        let late = overdue(&mut self.uncovered, uncovered, self.now_millis, bound);
        self.violations.extend(late);
    }

    // --- S3

    /// No device in the hands of two claims, by what the runtime injected.
    fn check_exclusive(&mut self, new: &Container) {
        self.counts.checks += 1;
        let mut found = Vec::new();
        for other in self
            .world
            .containers
            .values()
            .filter(|other| other.node == new.node)
        {
            for (device, claim) in &new.devices {
                if other
                    .devices
                    .get(device)
                    .is_some_and(|holder| holder != claim)
                {
                    found.push(format!(
                        "S3: {device} of {} is used by {} and by {}",
                        new.node, other.pod, new.pod
                    ));
                }
            }
            let is_other_claim = other.claims.is_disjoint(&new.claims);
            if let Some(gpu) = other
                .gpus
                .intersection(&new.gpus)
                .next()
                .filter(|_| is_other_claim)
            {
                found.push(format!(
                    "S3: {gpu} is used by {} and by {}",
                    other.pod, new.pod
                ));
            }
        }
        self.violations.extend(found);
    }

    /// No container with devices for which there never was a permit on its node. The record and the watch are
    /// two clocks, hence a bound.
    fn check_permits(&mut self) {
        let mut unpermitted = BTreeSet::new();
        for container in self.world.containers.values() {
            let enforced = self
                .world
                .node_devices
                .get(&container.node)
                .is_some_and(|node| node.spec.enforce);
            let permitted = self.permitted.get(&container.node);
            for claim in container.claims.iter().filter(|_| enforced) {
                self.counts.checks += 1;
                if permitted.is_none_or(|permitted| !permitted.contains(claim)) {
                    unpermitted.insert(format!(
                        "S3: a container of {} got claim {claim} without a permit",
                        container.pod
                    ));
                }
            }
        }
        let bound = u64::try_from(COVERAGE_BOUND.as_millis()).unwrap_or(u64::MAX);
        let late = overdue(&mut self.unpermitted, unpermitted, self.now_millis, bound);
        self.violations.extend(late);
    }

    // --- S4

    /// The first ungate of an attempt happens after its plan is stored and all its pods exist; no attempt mixes
    /// two plans. A gate that somebody else takes is not an ungate of Muster's: S2 and S3 judge what comes of it.
    fn check_ungate(&mut self, pod: &k8s_openapi::api::core::v1::Pod) {
        let was_gated = self
            .world
            .pods
            .get(&world::uid(pod))
            .is_some_and(world::is_gated);
        let annotation = |key: &str| pod.annotations().get(key).cloned();
        let (Some(name), Some(attempt)) = (annotation(keys::GANG_NAME), annotation(keys::ATTEMPT))
        else {
            return;
        };
        if !was_gated
            || world::is_gated(pod)
            || annotation(keys::PLACEMENT).as_deref() == Some(keys::PLACEMENT_ANY)
        {
            return;
        }
        self.counts.checks += 1;
        let who = format!("pod {} of gang {name}", pod.name_any());
        let gang = self
            .world
            .gangs
            .values()
            .find(|gang| gang.namespace() == pod.namespace() && gang.name_any() == name);
        let Some(status) = gang.and_then(|gang| gang.status.as_ref()) else {
            return self.violation(format!("S4: {who} was ungated and the gang has no status"));
        };
        let Some(admission) = &status.admission else {
            return self.violation(format!(
                "S4: {who} was ungated before the gang's admission was stored"
            ));
        };
        let uid = world::uid(pod);
        let missing = admission
            .pods
            .iter()
            .filter(|member| !self.world.pods.contains_key(&member.uid))
            .count();
        let rank = admission.pods.iter().position(|member| member.uid == uid);
        let planned = rank.and_then(|rank| status.placement.as_ref()?.node_of(rank));
        let pinned = pins(pod);
        let mut wrong = Vec::new();
        if attempt != status.attempt.to_string() {
            wrong.push(format!(
                "S4: {who} was ungated for attempt {attempt} while the gang is at {}",
                status.attempt
            ));
        }
        if missing > 0 {
            wrong.push(format!(
                "S4: {who} was ungated while {missing} of its gang's pods did not exist"
            ));
        }
        match planned {
            Some(node) if !pinned.iter().all(|pin| *pin == node.node) || pinned.is_empty() => {
                wrong.push(format!(
                    "S4: {who} is planned on {} and pinned to {pinned:?}",
                    node.node
                ));
            }
            None => wrong.push(format!(
                "S4: {who} was ungated and is not part of the stored plan"
            )),
            Some(_) => {}
        }
        self.violations.extend(wrong);
    }

    // --- S5

    /// Counts admissions, and notes a gang that vanished before it ended.
    fn check_gang(&mut self, gang: &Gang, gone: bool) {
        let uid = world::uid(gang);
        let status = gang.status.as_ref();
        if status.is_some_and(|status| status.admission.is_some())
            && self.admitted.insert(uid.clone())
        {
            self.counts.gangs += 1;
        }
        let phase = status.map(|status| status.phase).unwrap_or_default();
        if phase == GangPhase::Failed {
            self.counts.checks += 1;
            if status.is_some_and(|status| {
                status
                    .conditions
                    .iter()
                    .all(|condition| condition.message.is_empty())
            }) {
                self.violation(format!(
                    "S5: gang {} is Failed without a stated reason",
                    gang.name_any()
                ));
            }
        }
        let key = format!(
            "{}/{}",
            gang.namespace().unwrap_or_default(),
            gang.name_any()
        );
        if !gone {
            self.lost_gangs.remove(&key);
        } else if !matches!(phase, GangPhase::Finished | GangPhase::Failed) {
            self.lost_gangs.insert(
                key,
                LostGang {
                    gang: gang.clone(),
                    since: self.now_millis,
                },
            );
        }
    }

    /// A gang that was deleted while its pods live is made again.
    fn check_lost_gangs(&mut self) {
        let bound = u64::try_from(RELEASE_BOUND.as_millis()).unwrap_or(u64::MAX);
        let world = &self.world;
        self.lost_gangs.retain(|_, lost| {
            world
                .pods_of(&lost.gang)
                .any(|pod| pod.metadata.deletion_timestamp.is_none() && !world::is_terminal(pod))
        });
        self.counts.checks += self.lost_gangs.len() as u64;
        let late: Vec<String> = self
            .lost_gangs
            .iter()
            .filter(|(_, lost)| self.now_millis > lost.since + bound)
            .map(|(key, _)| format!("S5: gang {key} vanished while its pods live"))
            .collect();
        self.violations.extend(late);
    }

    // --- S6

    /// Nothing stays charged once it is proved released: its pods are gone or ended, and no container of them runs.
    fn check_leaks(&mut self, charges: &Charges) {
        let mut leaking = BTreeSet::new();
        for (uid, claim) in &charges.claims {
            self.counts.checks += 1;
            let is_released = claim.pods.iter().all(|pod| {
                self.world.pods.get(pod).is_none_or(world::is_terminal) && !self.world.runs(pod)
            });
            let is_held = self.world.node_devices.values().any(|node| {
                node.status
                    .as_ref()
                    .is_some_and(|status| status.held.iter().any(|held| held.claim_uid == *uid))
            });
            if is_released && !is_held && !claim.pods.is_empty() {
                leaking.insert(format!(
                    "S6: claim {uid} is still charged ({})",
                    named_by(claim)
                ));
            }
        }
        let bound = u64::try_from(RELEASE_BOUND.as_millis()).unwrap_or(u64::MAX);
        let late = overdue(&mut self.leaking, leaking, self.now_millis, bound);
        self.violations.extend(late);
    }

    fn shift_bounds(&mut self, by_millis: u64) {
        let all = [
            &mut self.uncovered,
            &mut self.unpermitted,
            &mut self.leaking,
        ];
        for since in all.into_iter().flat_map(BTreeMap::values_mut) {
            *since += by_millis;
        }
        for lost in self.lost_gangs.values_mut() {
            lost.since += by_millis;
        }
    }
}

/// Keeps since when each thing has been so, forgets what no longer is, and returns what is overdue.
fn overdue(
    since: &mut Since,
    now: BTreeSet<String>,
    now_millis: u64,
    bound_millis: u64,
) -> Vec<String> {
    since.retain(|what, _| now.contains(what));
    for what in now {
        since.entry(what).or_insert(now_millis);
    }
    since
        .iter()
        .filter(|(_, since)| now_millis > **since + bound_millis)
        .map(|(what, _)| what.clone())
        .collect()
}

fn named_by(claim: &ChargedClaim) -> String {
    claim
        .named_by
        .iter()
        .cloned()
        .collect::<Vec<_>>()
        .join(", ")
}

/// The nodes that the pod's required terms pin it to, one per term; a term without a pin stands as `anywhere`.
fn pins(pod: &k8s_openapi::api::core::v1::Pod) -> Vec<String> {
    let affinity = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.affinity.as_ref()?.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| {
        affinity
            .required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    required
        .iter()
        .flat_map(|required| &required.node_selector_terms)
        .map(|term| {
            let fields = term.match_fields.iter().flatten();
            fields
                .filter(|field| field.key == "metadata.name")
                .find_map(|field| field.values.as_ref()?.first().cloned())
                .unwrap_or_else(|| "anywhere".to_owned())
        })
        .collect()
}
