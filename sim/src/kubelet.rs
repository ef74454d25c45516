//! A fake kubelet, as far as devices are concerned.
//!
//! * It knows pods from a watch, which lags; claims it reads from the API server when it needs them, as the real one does.
//! * A pod is prepared claim by claim; a call that fails, or is not answered for 45 s, is repeated only 60 to
//!   90 s later.
//! * A pod that ends, or is deleted, has its containers stopped first, then its claims unprepared (repeated for
//!   ever), then its terminal phase written, then its object removed: in this order.
//! * For a pod that was deleted **by force** it unprepares before the container is dead.
//! * A Prepare call of a pod that is deleted meanwhile is abandoned; the driver may still work on it.
//! * A claim that several of its pods name is prepared once: who names one that is prepared causes no call at all. It is
//!   unprepared when the last of them goes; the others only cease to be counted. From the first Unprepare on, whether it succeeds or
//!   not, until the claim is forgotten, no other pod is let have it: that pod asks again later (`claimInfo.isUnpreparing` in
//!   `pkg/kubelet/cm/dra/manager.go`, since 1.37.0; it is not in the checkpoint). One that comes before that Unprepare is let have it, though
//!   the pods from before were deleted by force and the claim is allocated again already.
//! * A container starts after the pod's init container has run. An image that has not arrived never does, as far as that pod
//!   is concerned.
//! * A kubelet that restarts knows who names what (its checkpoint), but not what is prepared. If it has lost its
//!   checkpoint, too, it unprepares nothing of what it had prepared before.
//! * A pod that it does not know, that ended and is being deleted, it removes: the kubelet before, or its machine, ended in between.
//!   (Kubernetes 1.37, `pkg/kubelet/pod_workers.go`: a terminal pod that is seen for the first time goes to `SyncTerminatedPod`,
//!   and the status manager deletes it.)

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{
        ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
        ContainerStatus, Pod, PodStatus,
    },
    resource::v1::ResourceClaim,
};
use muster_cluster::object::Kind;
use muster_dra_driver::prepare::{Answer, CallId, ClaimRef};

use crate::{
    api_server::{ApiServer, Informer, Precondition, has_ended, key, node_of},
    claim_controller::claims_of,
    drivers::{Answered, Drivers},
    fixtures,
    gpu_node::{Container, GpuNode},
    random::Random,
    scheduler, workload,
};

/// How long the kubelet waits for an answer.
const CALL_MILLISECONDS: u64 = 45_000;
/// Longest time that a container takes to stop.
const GRACE_MILLISECONDS: u64 = 30_000;
/// Before a container that did not start is tried again.
const START_AGAIN_MILLISECONDS: u64 = 10_000;
/// Before an Unprepare is repeated.
const UNPREPARE_AGAIN_MILLISECONDS: u64 = 5_000;

/// The kubelet of one node.
#[derive(Debug)]
pub struct Kubelet {
    pods: BTreeMap<String, Sandbox>,
    /// What pods it knows name, by UID of the claim.
    claims: BTreeMap<String, ClaimInfo>,
    /// What its watch of pods told it.
    pub informer: Informer,
    /// Until when it does nothing.
    pub paused_until: u64,
    /// Whether the images of pods that come to it now never arrive.
    pub lacks_images: bool,
    /// Whether no container dies that is told to: its process waits for a disk, say.
    pub kills_nothing: bool,
}

/// A claim that the kubelet knows.
#[derive(Debug)]
struct ClaimInfo {
    claim: ClaimRef,
    /// UIDs of the pods that name it.
    pods: BTreeSet<String>,
    prepared: bool,
    /// Whether the driver was asked to unprepare it for the last of them.
    unpreparing: bool,
}

/// A pod that the kubelet knows.
#[derive(Debug)]
struct Sandbox {
    namespace: String,
    name: String,
    claims: Vec<ClaimRef>,
    stage: Stage,
    /// Whether its image never arrives, and whether that was told.
    image: Image,
    /// How long its init container runs.
    init_milliseconds: Option<u64>,
    ignores_sigterm: bool,
    /// Claims that it counts as naming, for the driver may have prepared them.
    owed: BTreeSet<String>,
    unpreparing: BTreeMap<(u64, CallId), String>,
    unprepare_at: u64,
    /// When its container, told to stop, is dead.
    dies_at: Option<u64>,
    succeeded: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Image {
    Arrives,
    Misses { told: bool },
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// Wants its claims prepared, not before then.
    Waiting { at: u64 },
    /// Claims by call that is not answered.
    Preparing {
        calls: BTreeMap<(u64, CallId), String>,
        failed: bool,
        since: u64,
    },
    /// Everything is prepared.
    Prepared,
    /// Its init container runs.
    Init { until: u64 },
    /// Its container lives.
    Running { reported: bool },
    /// No container lives, or ever will.
    Stopped,
}

/// A step of a kubelet, about one pod by its UID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Sees a pod that is bound to its node.
    Admit(String),
    /// Calls the driver for all claims.
    Prepare(String),
    /// Gives up waiting for an answer.
    TimeOut(String),
    /// Says that the image cannot be pulled.
    MissImage(String),
    /// Starts the init container.
    Init(String),
    /// Starts the container.
    Start(String),
    /// NVML begins to list the container's process.
    Open(String),
    /// Writes phase Running.
    Report(String),
    /// Tells the container to stop, because the pod is deleted or gone.
    Terminate(String),
    /// The container that was told to stop is dead; or the pod is given up before it had one.
    Stop(String),
    /// Calls the driver to unprepare.
    Unprepare(String),
    /// Writes the terminal phase.
    End(String),
    /// Removes the pod object.
    Remove(String),
    /// Forgets a pod whose object is gone.
    Forget(String),
}

impl Default for Kubelet {
    fn default() -> Self {
        Self {
            pods: BTreeMap::new(),
            claims: BTreeMap::new(),
            informer: Informer::new(&[Kind::Pod]),
            paused_until: 0,
            lacks_images: false,
            kills_nothing: false,
        }
    }
}

impl Kubelet {
    /// All that may happen next.
    pub fn steps(&self, now: u64, node: &GpuNode, drivers: &Drivers) -> Vec<Step> {
        let known = self.informer.cache();
        if self.paused_until > now {
            return Vec::new();
        }
        let name = node.shape.name.as_str();
        let mut steps: Vec<Step> = known
            .list::<Pod>()
            .filter(|pod| node_of(pod) == Some(name) && (!has_ended(pod) || awaits_removal(pod)))
            .filter_map(|pod| pod.metadata.uid.clone())
            .filter(|uid| !self.pods.contains_key(uid))
            .map(Step::Admit)
            .collect();
        let driven = !drivers.instances.is_empty();
        for (uid, sandbox) in &self.pods {
            let object = known.pod_by_uid(uid);
            sandbox.steps(uid, object, now, driven, &mut steps);
            if self.kills_nothing && node.containers.contains_key(uid) {
                steps.retain(|step| *step != Step::Stop(uid.clone()));
            }
            let unlisted = node
                .containers
                .get(uid)
                .is_some_and(|container| !container.listed);
            if unlisted {
                steps.push(Step::Open(uid.clone()));
            }
        }
        steps
    }

    /// When time alone will make a step possible.
    pub fn wakes_at(&self) -> Option<u64> {
        self.pods
            .values()
            .filter_map(|sandbox| match &sandbox.stage {
                Stage::Waiting { at } | Stage::Init { until: at } => Some(*at),
                Stage::Preparing { since, .. } => Some(since + CALL_MILLISECONDS),
                Stage::Stopped if !sandbox.owed.is_empty() => Some(sandbox.unprepare_at),
                Stage::Running { .. } => sandbox.dies_at.filter(|_| !self.kills_nothing),
                Stage::Prepared | Stage::Stopped => None,
            })
            .chain((self.paused_until > 0).then_some(self.paused_until))
            .min()
    }

    /// Whether it knows no pod.
    pub fn is_idle(&self) -> bool {
        self.pods.is_empty()
    }

    /// Takes a step.
    pub fn perform(
        &mut self,
        step: &Step,
        now: u64,
        random: &mut Random,
        api: &mut ApiServer,
        node: &mut GpuNode,
        drivers: &mut Drivers,
    ) {
        match step {
            Step::Admit(uid) => self.admit(uid, now),
            Step::Prepare(uid) => self.prepare(uid, now, random, api, drivers),
            Step::TimeOut(uid) => {
                let at = now + random.between(60_000, 90_000);
                self.with(uid, |sandbox| sandbox.stage = Stage::Waiting { at });
            }
            Step::MissImage(uid) => self.with(uid, |sandbox| sandbox.miss_image(api, uid)),
            Step::Init(uid) => self.with(uid, |sandbox| sandbox.init(api, uid, now)),
            Step::Start(uid) => {
                self.with(uid, |sandbox| sandbox.start(uid, now, node));
            }
            Step::Open(uid) => {
                if let Some(container) = node.containers.get_mut(uid) {
                    container.listed = true;
                }
            }
            Step::Report(uid) => {
                let time_of_day = node.clock.time_of_day(now);
                self.with(uid, |sandbox| {
                    sandbox.stage = Stage::Running { reported: true };
                    sandbox.write_running(api, uid, time_of_day);
                });
            }
            Step::Terminate(uid) => {
                let soon = random.below(GRACE_MILLISECONDS);
                self.with(uid, |sandbox| {
                    let after = if sandbox.ignores_sigterm {
                        GRACE_MILLISECONDS
                    } else {
                        soon
                    };
                    sandbox.dies_at = Some(now + after);
                });
            }
            Step::Stop(uid) => self.stop(uid, node, false),
            Step::Unprepare(uid) => self.unprepare(uid, now, random, drivers),
            Step::End(uid) => {
                self.with(uid, |sandbox| {
                    let phase = if sandbox.succeeded {
                        "Succeeded"
                    } else {
                        "Failed"
                    };
                    sandbox.write_phase(api, uid, phase);
                });
            }
            Step::Remove(uid) => {
                self.with(uid, |sandbox| {
                    let pod = key(Kind::Pod, &sandbox.namespace, &sandbox.name);
                    let _ = api.delete_now(&pod, Precondition::uid(uid));
                });
            }
            Step::Forget(uid) => {
                self.pods.remove(uid);
            }
        }
    }

    /// The container ended by itself.
    pub fn finish(&mut self, uid: &str, node: &mut GpuNode, succeeded: bool) {
        self.stop(uid, node, succeeded);
    }

    /// The driver answered a call. One that was abandoned is not listened to.
    pub fn answered(&mut self, now: u64, random: &mut Random, answered: &Answered) {
        let call = (answered.instance, answered.call);
        let again_at = now + random.between(60_000, 90_000);
        for (uid, sandbox) in &mut self.pods {
            sandbox.answered(
                uid,
                call,
                &answered.answer,
                (now, again_at),
                &mut self.claims,
            );
        }
    }

    /// An instance is gone, and with it every call it had.
    pub fn disconnected(&mut self, now: u64, random: &mut Random, instance: u64) {
        let again_at = now + random.between(60_000, 90_000);
        for sandbox in self.pods.values_mut() {
            sandbox.unpreparing.retain(|(id, _), _| *id != instance);
            if let Stage::Preparing { calls, .. } = &sandbox.stage
                && calls.keys().any(|(id, _)| *id == instance)
            {
                sandbox.stage = Stage::Waiting { at: again_at };
            }
        }
    }

    /// The kubelet restarts: containers live on, calls do not.
    pub fn restart(&mut self, now: u64) {
        for info in self.claims.values_mut() {
            info.prepared = false;
            info.unpreparing = false;
        }
        for sandbox in self.pods.values_mut() {
            sandbox.unpreparing.clear();
            if matches!(
                sandbox.stage,
                Stage::Preparing { .. } | Stage::Waiting { .. }
            ) {
                sandbox.stage = Stage::Waiting { at: now };
            }
        }
    }

    /// The kubelet restarts without its checkpoint: it knows its pods, and nothing of their claims.
    pub fn restart_without_checkpoint(&mut self, now: u64) {
        self.restart(now);
        self.claims.clear();
        for sandbox in self.pods.values_mut() {
            sandbox.owed.clear();
            if matches!(sandbox.stage, Stage::Prepared | Stage::Init { .. }) {
                sandbox.stage = Stage::Waiting { at: now };
            }
        }
    }

    fn with(&mut self, uid: &str, act: impl FnOnce(&mut Sandbox)) {
        if let Some(sandbox) = self.pods.get_mut(uid) {
            act(sandbox);
        }
    }

    fn admit(&mut self, uid: &str, now: u64) {
        let Some(pod) = self.informer.cache().pod_by_uid(uid) else {
            return;
        };
        self.pods.insert(
            uid.to_owned(),
            Sandbox {
                namespace: pod.metadata.namespace.clone().unwrap_or_default(),
                name: pod.metadata.name.clone().unwrap_or_default(),
                claims: Vec::new(),
                stage: if has_ended(pod) {
                    Stage::Stopped
                } else {
                    Stage::Waiting { at: now }
                },
                image: if self.lacks_images {
                    Image::Misses { told: false }
                } else {
                    Image::Arrives
                },
                init_milliseconds: fixtures::init_milliseconds(pod),
                ignores_sigterm: fixtures::ignores_sigterm(pod),
                owed: BTreeSet::new(),
                unpreparing: BTreeMap::new(),
                unprepare_at: now,
                dies_at: None,
                succeeded: false,
            },
        );
    }

    fn prepare(
        &mut self,
        uid: &str,
        now: u64,
        random: &mut Random,
        api: &ApiServer,
        drivers: &mut Drivers,
    ) {
        let again_at = now + random.between(60_000, 90_000);
        let pod = self.informer.cache().pod_by_uid(uid);
        let claims = pod.and_then(|pod| usable_claims(api, pod, uid));
        let Some(sandbox) = self.pods.get_mut(uid) else {
            return;
        };
        let ids: Vec<u64> = drivers
            .instances
            .iter()
            .map(|instance| instance.id)
            .collect();
        let (Some(claims), Some(id)) = (claims, random.pick(ids)) else {
            sandbox.stage = Stage::Waiting { at: again_at };
            return;
        };
        if claims.iter().any(|claim| is_refused(claim, &self.claims)) {
            sandbox.stage = Stage::Waiting { at: again_at };
            return;
        }
        sandbox.claims.clone_from(&claims);
        let mut calls = BTreeMap::new();
        let mut all_prepared = true;
        for claim in claims {
            let claim_uid = claim.uid.clone();
            sandbox.owed.insert(claim_uid.clone());
            let info = self.claims.entry(claim_uid.clone());
            let info = info.or_insert_with(|| ClaimInfo {
                claim: claim.clone(),
                pods: BTreeSet::new(),
                prepared: false,
                unpreparing: false,
            });
            info.pods.insert(uid.to_owned());
            if info.prepared {
                continue;
            }
            all_prepared = false;
            if let Some(call) = drivers.call(id, now, claim, true) {
                calls.insert((id, call), claim_uid);
            }
        }
        if all_prepared {
            sandbox.stage = Stage::Prepared;
        } else if !calls.is_empty() {
            sandbox.stage = Stage::Preparing {
                calls,
                failed: false,
                since: now,
            };
        }
    }

    fn stop(&mut self, uid: &str, node: &mut GpuNode, succeeded: bool) {
        self.with(uid, |sandbox| {
            node.containers.remove(uid);
            sandbox.succeeded = succeeded;
            sandbox.stage = Stage::Stopped;
        });
    }

    fn unprepare(&mut self, uid: &str, now: u64, random: &mut Random, drivers: &mut Drivers) {
        let Some(sandbox) = self.pods.get_mut(uid) else {
            return;
        };
        sandbox.unprepare_at = now + UNPREPARE_AGAIN_MILLISECONDS;
        let ids: Vec<u64> = drivers
            .instances
            .iter()
            .map(|instance| instance.id)
            .collect();
        let Some(id) = random.pick(ids) else { return };
        for claim_uid in sandbox.owed.clone() {
            let Some(info) = self.claims.get_mut(&claim_uid) else {
                // Unprepared for another pod that named it.
                sandbox.owed.remove(&claim_uid);
                continue;
            };
            if info.pods.iter().any(|pod| pod != uid) {
                info.pods.remove(uid);
                sandbox.owed.remove(&claim_uid);
                continue;
            }
            info.unpreparing = true;
            let claim = info.claim.clone();
            if let Some(call) = drivers.call(id, now, claim, false) {
                sandbox.unpreparing.insert((id, call), claim_uid);
            }
        }
    }
}

/// Whether no pod is let have the claim yet: it is being unprepared, or one of the same name that was there before is known still.
fn is_refused(claim: &ClaimRef, known: &BTreeMap<String, ClaimInfo>) -> bool {
    known.values().any(|info| {
        let other = &info.claim;
        if other.uid == claim.uid {
            info.unpreparing
        } else {
            (&other.namespace, &other.name) == (&claim.namespace, &claim.name)
        }
    })
}

/// Whether the pod is being deleted and nobody has finished that. One that a finalizer holds was removed once already.
fn awaits_removal(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
        && pod.metadata.deletion_grace_period_seconds != Some(0)
}

/// The pod's claims if the kubelet would have them prepared: all are reserved for the pod, and allocated.
fn usable_claims(api: &ApiServer, pod: &Pod, uid: &str) -> Option<Vec<ClaimRef>> {
    let claims = claims_of(api, pod)?.into_iter();
    claims.map(|claim| usable_claim(claim, uid)).collect()
}

fn usable_claim(claim: &ResourceClaim, uid: &str) -> Option<ClaimRef> {
    let reserved = claim
        .status
        .as_ref()?
        .reserved_for
        .as_ref()?
        .iter()
        .any(|consumer| consumer.uid == uid);
    scheduler::allocated_node(claim)?;
    reserved.then(|| ClaimRef {
        uid: claim.metadata.uid.clone().unwrap_or_default(),
        namespace: claim.metadata.namespace.clone().unwrap_or_default(),
        name: claim.metadata.name.clone().unwrap_or_default(),
    })
}

impl Sandbox {
    fn steps(
        &self,
        uid: &str,
        object: Option<&Pod>,
        now: u64,
        driven: bool,
        steps: &mut Vec<Step>,
    ) {
        let wanted =
            object.is_some_and(|pod| pod.metadata.deletion_timestamp.is_none() && !has_ended(pod));
        let step = |make: fn(String) -> Step| make(uid.to_owned());
        if !wanted {
            match (&self.stage, self.dies_at) {
                (Stage::Stopped, _) => {}
                (Stage::Running { .. }, None) => steps.push(step(Step::Terminate)),
                (Stage::Running { .. }, Some(at)) if at > now => {}
                _ => steps.push(step(Step::Stop)),
            }
        }
        match &self.stage {
            Stage::Waiting { at } if wanted && *at <= now && driven => {
                steps.push(step(Step::Prepare));
            }
            Stage::Preparing { since, .. } if since + CALL_MILLISECONDS <= now => {
                steps.push(step(Step::TimeOut));
            }
            Stage::Prepared if wanted => match (self.image, self.init_milliseconds) {
                (Image::Misses { told: true }, _) => {}
                (Image::Misses { told: false }, _) => steps.push(step(Step::MissImage)),
                (Image::Arrives, Some(_)) => steps.push(step(Step::Init)),
                (Image::Arrives, None) => steps.push(step(Step::Start)),
            },
            Stage::Init { until } if wanted && *until <= now => steps.push(step(Step::Start)),
            Stage::Running { reported: false } if wanted => steps.push(step(Step::Report)),
            Stage::Stopped if self.owed.is_empty() => match object {
                Some(pod) if !has_ended(pod) => steps.push(step(Step::End)),
                Some(pod) if awaits_removal(pod) => steps.push(step(Step::Remove)),
                Some(_) | None => steps.push(step(Step::Forget)),
            },
            _ => {}
        }
        let forced = object.is_none() && matches!(self.stage, Stage::Running { .. });
        let due = self.unprepare_at <= now && self.unpreparing.is_empty();
        if (forced || self.stage == Stage::Stopped) && !self.owed.is_empty() && due && driven {
            steps.push(step(Step::Unprepare));
        }
    }

    fn answered(
        &mut self,
        uid: &str,
        call: (u64, CallId),
        answer: &Answer,
        (now, again_at): (u64, u64),
        claims: &mut BTreeMap<String, ClaimInfo>,
    ) {
        if let Some(claim) = self.unpreparing.remove(&call) {
            if matches!(answer, Answer::Unprepared) {
                self.owed.remove(&claim);
                claims.remove(&claim);
            } else {
                self.unprepare_at = now + UNPREPARE_AGAIN_MILLISECONDS;
            }
            return;
        }
        let Stage::Preparing { calls, failed, .. } = &mut self.stage else {
            return;
        };
        if calls.remove(&call).is_none() {
            return;
        }
        *failed |= !matches!(answer, Answer::Prepared(_));
        if calls.is_empty() {
            // As the real one does, it takes a Prepare for failed if the claim was unprepared for another pod meanwhile.
            let is_known = |claim: &ClaimRef| {
                let info = claims.get(&claim.uid);
                info.is_some_and(|info| info.pods.contains(uid))
            };
            if *failed || !self.claims.iter().all(is_known) {
                self.stage = Stage::Waiting { at: again_at };
                return;
            }
            self.stage = Stage::Prepared;
            let named = claims.values_mut();
            for info in named.filter(|info| info.pods.contains(uid)) {
                info.prepared = true;
            }
        }
    }

    fn miss_image(&mut self, api: &mut ApiServer, uid: &str) {
        self.image = Image::Misses { told: true };
        self.write_status(api, uid, |status| {
            let waiting = ContainerStateWaiting {
                reason: Some("ImagePullBackOff".to_owned()),
                ..ContainerStateWaiting::default()
            };
            status.container_statuses = Some(vec![ContainerStatus {
                name: "rank".to_owned(),
                state: Some(ContainerState {
                    waiting: Some(waiting),
                    ..ContainerState::default()
                }),
                ..ContainerStatus::default()
            }]);
        });
    }

    fn init(&mut self, api: &mut ApiServer, uid: &str, now: u64) {
        self.stage = Stage::Init {
            until: now + self.init_milliseconds.unwrap_or_default(),
        };
        let state = ContainerState {
            running: Some(ContainerStateRunning::default()),
            ..ContainerState::default()
        };
        self.write_init(api, uid, state);
    }

    fn write_init(&self, api: &mut ApiServer, uid: &str, state: ContainerState) {
        self.write_status(api, uid, |status| {
            status.init_container_statuses = Some(vec![ContainerStatus {
                name: "init".to_owned(),
                state: Some(state),
                ..ContainerStatus::default()
            }]);
        });
    }

    /// Starts the container; without all its CDI files it does not start, and everything is asked for again.
    fn start(&mut self, uid: &str, now: u64, node: &mut GpuNode) {
        let is_there = |claim: &ClaimRef| node.cdi.contains_key(&claim.uid);
        if !self.claims.iter().all(is_there) {
            self.stage = Stage::Waiting {
                at: now + START_AGAIN_MILLISECONDS,
            };
            return;
        }
        let container = self.container(now, node);
        node.containers.insert(uid.to_owned(), container);
        self.stage = Stage::Running { reported: false };
    }

    /// The container gets what the CDI files say.
    fn container(&self, now: u64, node: &GpuNode) -> Container {
        let uids = self.claims.iter().map(|claim| &claim.uid);
        let units = uids.flat_map(|uid| {
            let devices = node.cdi.get(uid).into_iter();
            let devices = devices.flat_map(|record| &record.devices);
            devices.map(|device| (uid.clone(), device.unit.clone()))
        });
        Container {
            units: units.collect(),
            started_at: now,
            listed: false,
        }
    }

    /// Its container runs. What that tells of itself is written with it.
    fn write_running(&self, api: &mut ApiServer, uid: &str, time_of_day: Timestamp) {
        if self.init_milliseconds.is_some() {
            let state = ContainerState {
                terminated: Some(ContainerStateTerminated::default()),
                ..ContainerState::default()
            };
            self.write_init(api, uid, state);
        }
        let precondition = Precondition::uid(uid);
        let _ = api.update::<Pod>(&self.namespace, &self.name, precondition, |pod| {
            pod.status.get_or_insert_default().phase = Some("Running".to_owned());
            workload::begin(pod, time_of_day);
        });
    }

    fn write_phase(&self, api: &mut ApiServer, uid: &str, phase: &str) {
        self.write_status(api, uid, |status| status.phase = Some(phase.to_owned()));
    }

    fn write_status(&self, api: &mut ApiServer, uid: &str, change: impl FnOnce(&mut PodStatus)) {
        let precondition = Precondition::uid(uid);
        let _ = api.update::<Pod>(&self.namespace, &self.name, precondition, |pod| {
            change(pod.status.get_or_insert_default());
        });
    }
}

#[cfg(test)]
mod tests;
