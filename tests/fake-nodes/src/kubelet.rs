//! The kubelet of one node, as far as claims and pod status go.
//!
//! A pod that is bound here has its claims read and prepared, then it runs: for as long as its annotation
//! [`RUN_SECONDS`] says, or until it is deleted. A pod that ends, or is deleted, has its containers dead at once, its
//! claims unprepared, and is taken away when its deletion was asked for. A refused call is repeated.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::api::{core::v1::Pod, resource::v1::ResourceClaim};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use muster_dra_driver::prepare::{Answer, CallId, ClaimRef};
use serde_json::json;
use tokio::sync::mpsc::UnboundedSender;

use crate::{
    driver::{Answered, FakeDriver},
    node::Message,
    statistics::Statistics,
};

/// Annotation: for how many seconds the pod runs before it succeeds, fractions allowed. Without it, until it is deleted.
pub const RUN_SECONDS: &str = "fake-nodes.muster.dev/run-seconds";
/// When a refused Unprepare, or a claim that could not be read, is tried again.
const RETRY_SOON: Duration = Duration::from_secs(5);
/// Pause before a write that was not answered is tried again.
const WRITE_PAUSE: Duration = Duration::from_secs(1);

/// The kubelet of one node.
pub struct FakeKubelet {
    client: Client,
    inbox: UnboundedSender<Message>,
    prepare_retry: Duration,
    statistics: Arc<Statistics>,
    pods: BTreeMap<String, FakePod>,
    /// Which pod a call to the driver is for.
    calls: BTreeMap<CallId, (String, ClaimRef)>,
}

impl std::fmt::Debug for FakeKubelet {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("FakeKubelet")
            .field("pods", &self.pods)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct FakePod {
    object: Arc<Pod>,
    claims: Vec<ClaimRef>,
    stage: Stage,
    /// Whether it is to be taken away: deleted, or gone already.
    doomed: bool,
}

/// How far a pod is. It only goes forward, but from `Preparing` back to `Waiting`.
#[derive(Debug)]
enum Stage {
    /// Its status does not name all claims yet.
    Unresolved,
    /// Its claims are being read.
    Reading,
    /// Its claims are being prepared.
    Preparing {
        calls: BTreeSet<CallId>,
        refused: bool,
    },
    /// A call failed, or a claim could not be read.
    Waiting { until: Instant },
    /// Its containers live.
    Running { until: Option<Instant> },
    /// Its claims are being given back.
    Releasing {
        calls: BTreeSet<CallId>,
        again: Vec<ClaimRef>,
        at: Option<Instant>,
    },
    /// Nothing of it is left on the node.
    Over,
}

impl FakeKubelet {
    /// The kubelet of a node without pods.
    pub fn new(
        client: Client,
        inbox: UnboundedSender<Message>,
        prepare_retry: Duration,
        statistics: Arc<Statistics>,
    ) -> Self {
        Self {
            client,
            inbox,
            prepare_retry,
            statistics,
            pods: BTreeMap::new(),
            calls: BTreeMap::new(),
        }
    }

    /// When something is due.
    pub fn wake_at(&self) -> Option<Instant> {
        self.pods
            .values()
            .filter_map(|pod| match &pod.stage {
                Stage::Waiting { until } => Some(*until),
                Stage::Running { until } => *until,
                Stage::Releasing { at, .. } => *at,
                _ => None,
            })
            .min()
    }

    /// A pod of this node is as given.
    pub fn observed(&mut self, object: &Arc<Pod>, driver: &mut FakeDriver) {
        let Some(uid) = object.uid() else { return };
        let over = is_terminal(object);
        let pod = self.pods.entry(uid.clone()).or_insert_with(|| FakePod {
            object: Arc::clone(object),
            claims: Vec::new(),
            stage: if over { Stage::Over } else { Stage::Unresolved },
            doomed: false,
        });
        pod.object = Arc::clone(object);
        if object.metadata.deletion_timestamp.is_some() && !pod.doomed {
            pod.doomed = true;
            self.end(&uid, driver);
        } else if matches!(pod.stage, Stage::Unresolved) {
            self.resolve(&uid);
        }
    }

    /// A pod does not exist any more, whether or not its containers ended.
    pub fn gone(&mut self, uid: &str, driver: &mut FakeDriver) {
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        if matches!(pod.stage, Stage::Over) {
            self.pods.remove(uid);
        } else if !pod.doomed {
            pod.doomed = true;
            self.end(uid, driver);
        }
    }

    /// The claims of a pod were read.
    pub fn claims_found(
        &mut self,
        uid: &str,
        claims: Result<Vec<ClaimRef>, String>,
        driver: &mut FakeDriver,
    ) {
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        if !matches!(pod.stage, Stage::Reading) {
            return;
        }
        match claims {
            Ok(claims) => {
                pod.claims = claims;
                self.prepare(uid, driver);
            }
            Err(error) => {
                tracing::warn!(pod = uid, error, "the claims cannot be read");
                pod.stage = Stage::Waiting {
                    until: Instant::now() + RETRY_SOON,
                };
            }
        }
    }

    /// The driver has answered calls.
    pub fn answered(&mut self, answers: Vec<Answered>, driver: &mut FakeDriver) {
        for Answered { call, answer } in answers {
            if let Some((uid, claim)) = self.calls.remove(&call) {
                self.take_answer(&uid, call, claim, &answer, driver);
            }
        }
    }

    /// What is due is done.
    pub fn tick(&mut self, now: Instant, driver: &mut FakeDriver) {
        let uids: Vec<String> = self.pods.keys().cloned().collect();
        for uid in uids {
            let Some(pod) = self.pods.get_mut(&uid) else {
                continue;
            };
            match &mut pod.stage {
                Stage::Waiting { until } if *until <= now => self.resolve(&uid),
                Stage::Running { until: Some(until) } if *until <= now => {
                    self.write_status(&uid, "Succeeded");
                    self.end(&uid, driver);
                }
                Stage::Releasing { again, at, .. } if at.is_some_and(|at| at <= now) => {
                    let again = std::mem::take(again);
                    *at = None;
                    self.unprepare(&uid, again, driver);
                }
                _ => {}
            }
        }
    }

    /// Finds the claims that the pod names and has them read.
    fn resolve(&mut self, uid: &str) {
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        let Some(names) = claim_names(&pod.object) else {
            pod.stage = Stage::Unresolved;
            return;
        };
        pod.stage = Stage::Reading;
        let namespace = pod.object.namespace().unwrap_or_default();
        let claims: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &namespace);
        let (inbox, uid) = (self.inbox.clone(), uid.to_owned());
        tokio::spawn(async move {
            let mut found = Ok(Vec::new());
            for name in names {
                match (claims.get(&name).await, &mut found) {
                    (Ok(claim), Ok(found)) => found.push(ClaimRef {
                        uid: claim.uid().unwrap_or_default(),
                        namespace: namespace.clone(),
                        name,
                    }),
                    (Err(error), _) => found = Err(error.to_string()),
                    (Ok(_), Err(_)) => {}
                }
            }
            let _ = inbox.send(Message::Claims(uid, found));
        });
    }

    fn prepare(&mut self, uid: &str, driver: &mut FakeDriver) {
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        pod.stage = Stage::Preparing {
            calls: BTreeSet::new(),
            refused: false,
        };
        if pod.claims.is_empty() {
            self.start(uid, driver);
            return;
        }
        let mut answers = Vec::new();
        for claim in pod.claims.clone() {
            let (call, answered) = driver.call(claim.clone(), true);
            self.calls.insert(call, (uid.to_owned(), claim));
            if let Some(FakePod {
                stage: Stage::Preparing { calls, .. },
                ..
            }) = self.pods.get_mut(uid)
            {
                calls.insert(call);
            }
            answers.extend(answered);
        }
        self.answered(answers, driver);
    }

    fn take_answer(
        &mut self,
        uid: &str,
        call: CallId,
        claim: ClaimRef,
        answer: &Answer,
        driver: &mut FakeDriver,
    ) {
        match answer {
            Answer::Prepared(_) => Statistics::count(&self.statistics.prepared),
            Answer::Unprepared => Statistics::count(&self.statistics.unprepared),
            Answer::Refused(refusal) => {
                Statistics::count(&self.statistics.refused);
                tracing::debug!(pod = uid, %claim, %refusal, "refused");
            }
        }
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        match &mut pod.stage {
            Stage::Preparing { calls, refused } => {
                calls.remove(&call);
                *refused |= matches!(answer, Answer::Refused(_));
                if !calls.is_empty() {
                    return;
                }
                if *refused {
                    pod.stage = Stage::Waiting {
                        until: Instant::now() + self.prepare_retry,
                    };
                } else {
                    self.start(uid, driver);
                }
            }
            Stage::Releasing { calls, again, at } => {
                calls.remove(&call);
                if matches!(answer, Answer::Refused(_)) {
                    again.push(claim);
                    *at = Some(Instant::now() + RETRY_SOON);
                }
                if calls.is_empty() && again.is_empty() {
                    self.released(uid);
                }
            }
            _ => {}
        }
    }

    fn start(&mut self, uid: &str, driver: &mut FakeDriver) {
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        driver.start_containers(uid, &pod.claims);
        let said = pod.object.annotations().get(RUN_SECONDS);
        let seconds: Option<f64> = said.and_then(|text| text.parse().ok());
        let runs_for = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        pod.stage = Stage::Running {
            until: runs_for.and_then(|runs_for| Instant::now().checked_add(runs_for)),
        };
        self.statistics.running.fetch_add(1, Ordering::Relaxed);
        Statistics::count(&self.statistics.started);
        self.write_status(uid, "Running");
    }

    /// The pod's containers die, and what it was given goes back. A call to prepare that is still under way is overtaken
    /// by the one to unprepare, as the driver's machine promises to bear.
    fn end(&mut self, uid: &str, driver: &mut FakeDriver) {
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        match pod.stage {
            Stage::Releasing { .. } => return,
            Stage::Over => return self.released(uid),
            Stage::Running { .. } => {
                self.statistics.running.fetch_sub(1, Ordering::Relaxed);
            }
            _ => {}
        }
        driver.end_containers(uid);
        let claims = std::mem::take(&mut pod.claims);
        pod.stage = Stage::Releasing {
            calls: BTreeSet::new(),
            again: Vec::new(),
            at: None,
        };
        if claims.is_empty() {
            self.released(uid);
        } else {
            self.unprepare(uid, claims, driver);
        }
    }

    fn unprepare(&mut self, uid: &str, claims: Vec<ClaimRef>, driver: &mut FakeDriver) {
        let mut answers = Vec::new();
        for claim in claims {
            let (call, answered) = driver.call(claim.clone(), false);
            self.calls.insert(call, (uid.to_owned(), claim));
            if let Some(FakePod {
                stage: Stage::Releasing { calls, .. },
                ..
            }) = self.pods.get_mut(uid)
            {
                calls.insert(call);
            }
            answers.extend(answered);
        }
        self.answered(answers, driver);
    }

    /// Nothing of the pod is left on the node.
    fn released(&mut self, uid: &str) {
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        pod.stage = Stage::Over;
        if !pod.doomed {
            return;
        }
        let (namespace, name) = (
            pod.object.namespace().unwrap_or_default(),
            pod.object.name_any(),
        );
        self.pods.remove(uid);
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        let (statistics, uid) = (Arc::clone(&self.statistics), uid.to_owned());
        tokio::spawn(async move {
            let params = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: Some(uid),
                    resource_version: None,
                }),
                ..DeleteParams::default().grace_period(0)
            };
            persist(statistics, || {
                let (pods, name, params) = (pods.clone(), name.clone(), params.clone());
                async move { pods.delete(&name, &params).await.map(drop) }
            })
            .await;
        });
    }

    fn write_status(&self, uid: &str, phase: &'static str) {
        let Some(pod) = self.pods.get(uid) else {
            return;
        };
        let object = &pod.object;
        let pods: Api<Pod> =
            Api::namespaced(self.client.clone(), &object.namespace().unwrap_or_default());
        let name = object.name_any();
        let patch = status(object, phase);
        let statistics = Arc::clone(&self.statistics);
        tokio::spawn(async move {
            persist(statistics, || {
                let (pods, name, patch) = (pods.clone(), name.clone(), patch.clone());
                async move {
                    let patch = Patch::Strategic(&patch);
                    pods.patch_status(&name, &PatchParams::default(), &patch)
                        .await
                        .map(drop)
                }
            })
            .await;
        });
    }
}

/// Tries a write until the API server has decided about it, as a kubelet does: a status that was never told would leave its
/// gang starting for ever. What is gone, or is another object by now, is done with.
async fn persist<F>(statistics: Arc<Statistics>, write: impl Fn() -> F + Send)
where
    F: Future<Output = kube::Result<()>> + Send,
{
    loop {
        match write().await {
            Ok(()) => return,
            Err(error) => {
                let decided = is_decided(&error);
                if decided && is_over(&error) {
                    return;
                }
                Statistics::count(&statistics.failed_calls);
                tracing::warn!(%error, "a write failed");
                if decided {
                    return;
                }
            }
        }
        tokio::time::sleep(WRITE_PAUSE).await;
    }
}

/// Whether the same write would be answered in the same way again.
fn is_decided(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code) && status.code != 429)
}

/// Whether the object is gone, or is another one by now.
fn is_over(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 404 | 409))
}

fn is_terminal(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Names of the claims of a pod, the one included that kube-scheduler made for its resources; `None` while its status does not name all
/// that are made for it.
fn claim_names(pod: &Pod) -> Option<Vec<String>> {
    let statuses = pod.status.iter().flat_map(|status| {
        status
            .resource_claim_statuses
            .iter()
            .flatten()
            .map(|status| (&status.name, &status.resource_claim_name))
    });
    let statuses: BTreeMap<_, _> = statuses.collect();
    let claims = pod.spec.iter().flat_map(|spec| &spec.resource_claims);
    let names = claims.flatten().map(|claim| {
        if let Some(name) = &claim.resource_claim_name {
            return Some(Some(name.clone()));
        }
        // A status without a name says that no claim is needed.
        statuses.get(&claim.name).map(|name| (*name).clone())
    });
    let names: Option<Vec<Option<String>>> = names.collect();
    let mut status = pod.status.iter();
    let by_name = status.find_map(|status| status.extended_resource_claim_status.as_ref());
    let by_name = by_name.map(|claim| claim.resource_claim_name.clone());
    Some(names?.into_iter().flatten().chain(by_name).collect())
}

/// What the kubelet writes of a pod in this phase.
fn status(pod: &Pod, phase: &str) -> serde_json::Value {
    let now = Timestamp::now();
    let running = phase == "Running";
    let condition = |kind: &str, holds: bool| {
        json!({
            "type": kind, "status": if holds { "True" } else { "False" },
            "lastTransitionTime": now,
            "reason": if holds || running { None } else { Some("PodCompleted") },
        })
    };
    let state = if running {
        json!({"running": {"startedAt": now}})
    } else {
        json!({"running": null, "terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}})
    };
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let containers: Vec<serde_json::Value> = containers
        .map(|container| {
            json!({
                "name": container.name, "image": container.image.clone().unwrap_or_default(), "imageID": "none",
                "ready": running, "started": running, "restartCount": 0, "state": state,
            })
        })
        .collect();
    json!({"status": {
        "phase": phase,
        "startTime": now,
        "hostIP": "127.0.0.1",
        "conditions": [
            condition("Initialized", true),
            condition("PodReadyToStartContainers", running),
            condition("Ready", running),
            condition("ContainersReady", running),
        ],
        "containerStatuses": containers,
    }})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(value: serde_json::Value) -> Pod {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn the_claims_of_a_pod_are_those_it_names_and_those_made_for_it() {
        let spec = json!({"containers": [], "resourceClaims": [
            {"name": "a", "resourceClaimName": "mine"},
            {"name": "b", "resourceClaimTemplateName": "t"},
            {"name": "c", "resourceClaimTemplateName": "t"},
        ]});
        let without = pod(json!({"spec": spec, "status": {
            "resourceClaimStatuses": [{"name": "b", "resourceClaimName": "made"}],
        }}));
        assert_eq!(claim_names(&without), None);
        let whole = pod(json!({"spec": spec, "status": {
            "resourceClaimStatuses": [{"name": "b", "resourceClaimName": "made"}, {"name": "c"}],
        }}));
        assert_eq!(
            claim_names(&whole),
            Some(vec!["mine".to_owned(), "made".to_owned()])
        );
        assert_eq!(
            claim_names(&pod(json!({"spec": {"containers": []}}))),
            Some(Vec::new())
        );
        let by_class = pod(json!({"spec": {"containers": []}, "status": {
            "extendedResourceClaimStatus": {"requestMappings": [], "resourceClaimName": "by-class"},
        }}));
        assert_eq!(claim_names(&by_class), Some(vec!["by-class".to_owned()]));
    }

    #[test]
    fn a_pod_that_succeeded_has_dead_containers_and_is_not_ready() {
        let object = pod(json!({"spec": {"containers": [{"name": "c", "image": "i"}]}}));
        let succeeded = status(&object, "Succeeded");
        assert_eq!(
            succeeded.pointer("/status/phase"),
            Some(&json!("Succeeded"))
        );
        assert_eq!(
            succeeded.pointer("/status/containerStatuses/0/state/terminated/exitCode"),
            Some(&json!(0))
        );
        assert_eq!(
            succeeded.pointer("/status/containerStatuses/0/ready"),
            Some(&json!(false))
        );
    }

    #[test]
    fn a_write_is_repeated_until_the_api_server_has_decided_about_it() {
        for (code, decided, over) in [
            (403, true, false),
            (404, true, true),
            (409, true, true),
            (422, true, false),
            (429, false, false),
            (500, false, false),
            (503, false, false),
        ] {
            let status = kube::core::Status::failure("no", "Because").with_code(code);
            let error = kube::Error::Api(Box::new(status));
            assert_eq!(
                (is_decided(&error), is_over(&error)),
                (decided, over),
                "{code}"
            );
        }
    }
}
