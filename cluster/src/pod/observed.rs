//! A pod as it is kept: what is read of it, and nothing else.
//!
//! A cluster of 10,000 nodes has hundreds of thousands of pods. As Kubernetes' own type each takes 2.4 KiB before it says
//! anything, and most of what it says (images, environments, volumes, probes) says nothing about admission.

use std::{borrow::Cow, collections::BTreeMap};

use k8s_openapi::{
    api::core::v1::{
        Affinity, ContainerState, ContainerStatus, NodeAffinity, NodeSelector,
        NodeSelectorRequirement, Pod, PodCondition, PodResourceClaim, PodResourceClaimStatus,
        PodSpec, Toleration,
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};

use muster_api::keys;

use super::{PodFields, REVISION_HASH, bound_to};
use crate::text;

/// Prefixes of the annotations and labels that are read.
pub(crate) const READ_PREFIXES: [&str; 4] = [
    "muster.dev/",
    "batch.kubernetes.io/",
    "apps.kubernetes.io/",
    REVISION_HASH,
];
/// Phases of a pod, as Kubernetes knows them.
const PHASES: [&str; 5] = ["Pending", "Running", "Succeeded", "Failed", "Unknown"];
/// The scheduler of a pod that names none.
const DEFAULT_SCHEDULER: &str = "default-scheduler";
/// The condition of a pod that is ended by somebody else than its workload; a Job's `podFailurePolicy` may go by it.
pub const DISRUPTION_TARGET: &str = "DisruptionTarget";
/// The reason of that condition where Muster ends the pod.
pub const EVICTED_BY_MUSTER: &str = "EvictedByMuster";
/// How long a pod may take to end that does not say, in seconds: what the API server writes for it.
const ENDS_WITHIN_SECONDS: u32 = 30;
/// Most bytes that are kept of what a pod says about its failure.
const FAILURE_BYTES: usize = 512;

/// What is read of a pod, besides what it asks for of its node, which the index reads when the pod comes.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedPod {
    name: Box<str>,
    namespace: Box<str>,
    uid: Box<str>,
    resource_version: Option<Box<str>>,
    /// `None`: the pod has no annotations at all, read or not.
    annotations: Option<Texts>,
    labels: Texts,
    controller: Option<Box<OwnerReference>>,
    created_at: Option<i64>,
    /// `spec.terminationGracePeriodSeconds`; of one that is being deleted `metadata.deletionGracePeriodSeconds`.
    ends_within_seconds: u32,
    is_deleting: bool,
    is_unschedulable: bool,
    lacks_sandbox: bool,
    conditions: Conditions,
    start: StartOfPod,
    node_name: Box<str>,
    gates: Box<[Box<str>]>,
    phase: Cow<'static, str>,
    /// `None`: the default one.
    scheduler: Option<Box<str>>,
    claims: Box<[PodResourceClaim]>,
    claim_statuses: Box<[PodResourceClaimStatus]>,
    scheduler_claim: Option<Box<str>>,
    node_rules: Option<Box<NodeRulesOfPod>>,
    /// What it says about its failure; of one that has not failed, what a container of it waits for.
    trouble: Option<Box<str>>,
}

/// What is read of its conditions besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Conditions {
    /// It has none.
    None,
    /// It has some.
    Some,
    /// One of them says that it is, or is about to be, ended by somebody else than its workload.
    Disrupted(Disruption),
}

/// Who ends a pod that its workload does not end, as its condition [`DISRUPTION_TARGET`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disruption {
    /// Muster.
    Muster,
    /// kube-scheduler, in favour of a pod of higher priority.
    Scheduler,
    /// Whoever asked the eviction API: `kubectl drain`, say.
    EvictionApi,
    /// kube-controller-manager, for a taint of the node.
    NodeTaint,
    /// kube-controller-manager, for a taint of a device.
    DeviceTaint,
    /// Its kubelet: the node ran out of something, or shuts down.
    Kubelet,
    /// Whoever takes away what is left of nodes that are gone, and everybody else.
    Other,
}

impl Disruption {
    /// Who it is, by the reason of the condition.
    fn named(reason: &str) -> Self {
        match reason {
            EVICTED_BY_MUSTER => Self::Muster,
            "PreemptionByScheduler" => Self::Scheduler,
            "EvictionByEvictionAPI" => Self::EvictionApi,
            "DeletionByTaintManager" => Self::NodeTaint,
            "DeletionByDeviceTaintManager" => Self::DeviceTaint,
            "TerminationByKubelet" => Self::Kubelet,
            _ => Self::Other,
        }
    }

    /// What became of the pod, for people; `None`: Muster did it, or what is known of its node says more.
    pub fn text(self) -> Option<&'static str> {
        match self {
            Self::Muster | Self::Other => None,
            Self::Scheduler => Some("was preempted by kube-scheduler"),
            Self::EvictionApi => Some("was evicted by the eviction API (a drain, say)"),
            Self::NodeTaint => Some("was deleted for a taint of its node"),
            Self::DeviceTaint => Some("was deleted for a taint of a device"),
            Self::Kubelet => Some("was ended by its kubelet"),
        }
    }
}

/// How far a pod that was bound has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StartOfPod {
    /// Steps that were taken, of sandbox, init containers and containers: none is ever taken back, however often a container
    /// is started again.
    pub steps: u8,
    /// Whether an init container runs, which may take long. Not one that stays beside the others.
    pub is_initializing: bool,
}

/// Keys and their values: few, so they are looked through.
type Texts = Box<[(Box<str>, Box<str>)]>;

/// What a pod says about the nodes that it may run on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeRulesOfPod {
    /// `spec.affinity`. Of a bound pod that Muster pinned to its node, what it required of nodes before; `None` of other bound pods: it has done
    /// its work.
    pub affinity: Option<Affinity>,
    /// `spec.nodeSelector`; empty of a bound pod that Muster did not pin: it has done its work.
    pub selector: BTreeMap<String, String>,
    /// `spec.tolerations`.
    pub tolerations: Box<[Toleration]>,
}

impl ObservedPod {
    /// What is read of the pod.
    pub fn of(pod: &Pod) -> Self {
        let metadata = &pod.metadata;
        let spec = pod.spec.as_ref();
        let scheduler = spec.and_then(|spec| spec.scheduler_name.as_deref());
        let scheduler = scheduler.filter(|name| !name.is_empty() && *name != DEFAULT_SCHEDULER);
        let claims = spec.and_then(|spec| spec.resource_claims.clone());
        let status = pod.status.as_ref();
        let claim_statuses = status.and_then(|status| status.resource_claim_statuses.clone());
        Self {
            name: pod.name().into(),
            namespace: pod.namespace().into(),
            uid: pod.uid().into(),
            resource_version: metadata.resource_version.as_deref().map(Into::into),
            annotations: metadata.annotations.as_ref().map(texts),
            labels: metadata.labels.as_ref().map(texts).unwrap_or_default(),
            controller: pod.controller().cloned().map(Box::new),
            created_at: pod.created_at(),
            ends_within_seconds: metadata
                .deletion_grace_period_seconds
                .or_else(|| spec?.termination_grace_period_seconds)
                .map_or(ENDS_WITHIN_SECONDS, |seconds| {
                    u32::try_from(seconds.max(0)).unwrap_or(u32::MAX)
                }),
            is_deleting: pod.is_deleting(),
            is_unschedulable: pod.is_unschedulable(),
            lacks_sandbox: pod.lacks_sandbox(),
            conditions: conditions(pod),
            start: start(pod),
            node_name: pod.node_name().into(),
            gates: pod.gates().map(Into::into).collect(),
            phase: phase(pod.phase()),
            scheduler: scheduler.map(Into::into),
            claims: claims.unwrap_or_default().into(),
            claim_statuses: claim_statuses.unwrap_or_default().into(),
            scheduler_claim: status
                .and_then(|status| status.extended_resource_claim_status.as_ref())
                .map(|claim| claim.resource_claim_name.as_str().into()),
            node_rules: spec.and_then(|spec| node_rules(pod, spec)),
            trouble: failure(pod)
                .or_else(|| waiting(pod))
                .map(String::into_boxed_str),
        }
    }

    /// All that is read of it, but for its version.
    pub(crate) fn facts(&self) -> impl PartialEq + '_ {
        let Self {
            name,
            namespace,
            uid,
            resource_version: _,
            annotations,
            labels,
            controller,
            created_at,
            ends_within_seconds,
            is_deleting,
            is_unschedulable,
            lacks_sandbox,
            conditions,
            start,
            node_name,
            gates,
            phase,
            scheduler,
            claims,
            claim_statuses,
            scheduler_claim,
            node_rules,
            trouble,
        } = self;
        let declared = (name, namespace, uid, annotations, labels, controller);
        let life = (created_at, ends_within_seconds, is_deleting, phase, trouble);
        let start = (is_unschedulable, lacks_sandbox, conditions, start);
        let place = (node_name, gates, scheduler, node_rules);
        let claims = (claims, claim_statuses, scheduler_claim);
        (declared, life, start, place, claims)
    }

    /// How long it may take to end once it is told to, in seconds; of one that is being deleted, what it was told. 0 says of that one that its
    /// kubelet is not waited for: finalizers alone keep it.
    pub fn ends_within_seconds(&self) -> u32 {
        self.ends_within_seconds
    }

    /// `metadata.resourceVersion`.
    pub fn resource_version(&self) -> Option<&str> {
        self.resource_version.as_deref()
    }

    /// Whether a node is chosen for it: by Muster, or by whoever bound it.
    pub fn is_placed(&self) -> bool {
        bound_to(self).is_some() || self.annotation(keys::PLACEMENT).is_some()
    }

    /// All annotations that are read.
    pub(crate) fn annotations(&self) -> impl PartialEq + '_ {
        &self.annotations
    }

    /// All labels that are read.
    pub(crate) fn labels(&self) -> impl PartialEq + '_ {
        &self.labels
    }

    /// Whether `metadata.annotations` exists, be it empty: a patch must know.
    pub fn has_annotations(&self) -> bool {
        self.annotations.is_some()
    }

    /// The scheduler that is to bind the pod.
    pub fn scheduler(&self) -> &str {
        self.scheduler.as_deref().unwrap_or(DEFAULT_SCHEDULER)
    }

    /// `spec.resourceClaims`, in their order.
    pub fn claims(&self) -> &[PodResourceClaim] {
        &self.claims
    }

    /// `status.resourceClaimStatuses`.
    pub fn claim_statuses(&self) -> &[PodResourceClaimStatus] {
        &self.claim_statuses
    }

    /// The ResourceClaim that kube-scheduler made for what the pod asks for by the name of a resource
    /// (`status.extendedResourceClaimStatus`), written before the pod is bound.
    pub fn scheduler_claim(&self) -> Option<&str> {
        self.scheduler_claim.as_deref()
    }

    /// What it says about nodes; `None`: nothing.
    pub fn node_rules(&self) -> Option<&NodeRulesOfPod> {
        self.node_rules.as_deref()
    }

    /// Whether it has any condition: a patch must know.
    pub fn has_conditions(&self) -> bool {
        self.conditions != Conditions::None
    }

    /// Whether its condition `DisruptionTarget` is true.
    pub fn is_disrupted(&self) -> bool {
        self.disruption().is_some()
    }

    /// Who ends it, or is about to, where that is not its workload.
    pub fn disruption(&self) -> Option<Disruption> {
        match self.conditions {
            Conditions::Disrupted(by) => Some(by),
            Conditions::None | Conditions::Some => None,
        }
    }

    /// How far it has come since it was bound.
    pub fn start(&self) -> StartOfPod {
        self.start
    }

    /// What a pod that failed says about it: its reason and message, else the exit code of a container.
    pub fn failure(&self) -> Option<&str> {
        self.trouble.as_deref().filter(|_| self.phase == "Failed")
    }

    /// Whether it failed by what its node did with it (refused or evicted it, was shut down) and not by what runs in it, or by what it asks for: the
    /// next one would fail of that as well.
    pub fn failed_by_its_node(&self) -> bool {
        let by_itself = |failure: &str| {
            failure.starts_with(OF_CONTAINER)
                || OF_ITSELF.iter().any(|reason| failure.starts_with(reason))
                || failure.starts_with(OF_EVICTED) && !self.is_disrupted()
        };
        self.failure().is_some_and(|failure| !by_itself(failure))
    }

    /// What a container of it waits for, other than that it is being made, if the pod has not ended: `container fetch: ImagePullBackOff`.
    pub fn waits_for(&self) -> Option<&str> {
        self.trouble.as_deref().filter(|_| self.phase != "Failed")
    }
}

impl PodFields for ObservedPod {
    fn name(&self) -> &str {
        &self.name
    }

    fn namespace(&self) -> &str {
        &self.namespace
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        value(self.annotations.as_ref()?, key)
    }

    fn label(&self, key: &str) -> Option<&str> {
        value(&self.labels, key)
    }

    fn controller(&self) -> Option<&OwnerReference> {
        self.controller.as_deref()
    }

    fn created_at(&self) -> Option<i64> {
        self.created_at
    }

    fn is_deleting(&self) -> bool {
        self.is_deleting
    }

    fn node_name(&self) -> &str {
        &self.node_name
    }

    fn gates(&self) -> impl Iterator<Item = &str> {
        self.gates.iter().map(AsRef::as_ref)
    }

    fn phase(&self) -> &str {
        &self.phase
    }

    fn is_unschedulable(&self) -> bool {
        self.is_unschedulable
    }

    fn lacks_sandbox(&self) -> bool {
        self.lacks_sandbox
    }
}

fn texts(map: &BTreeMap<String, String>) -> Texts {
    let is_read = |key: &str| READ_PREFIXES.iter().any(|prefix| key.starts_with(prefix));
    let read = map.iter().filter(|(key, _)| is_read(key));
    read.map(|(key, value)| (key.as_str().into(), value.as_str().into()))
        .collect()
}

fn value<'a>(texts: &'a Texts, key: &str) -> Option<&'a str> {
    let found = texts.iter().find(|(known, _)| **known == *key);
    found.map(|(_, value)| value.as_ref())
}

fn phase(phase: &str) -> Cow<'static, str> {
    let known = PHASES.into_iter().find(|known| *known == phase);
    known.map_or_else(|| Cow::Owned(phase.to_owned()), Cow::Borrowed)
}

/// The rules that choose a node have done their work once the pod is bound. Of one that Muster pinned to its node they are kept without the
/// pin, and without what chooses among pods: they say where else it could go, should its node be drained.
fn node_rules(pod: &Pod, spec: &PodSpec) -> Option<Box<NodeRulesOfPod>> {
    let is_pinned = pod.annotation(keys::PLACEMENT) == Some(keys::PLACEMENT_PINNED);
    let (affinity, selector) = match bound_to(pod) {
        None => (spec.affinity.clone(), spec.node_selector.clone()),
        Some(node) if is_pinned => (unpinned(spec, node), spec.node_selector.clone()),
        Some(_) => (None, None),
    };
    let rules = NodeRulesOfPod {
        affinity,
        selector: selector.unwrap_or_default(),
        tolerations: spec.tolerations.clone().unwrap_or_default().into(),
    };
    (rules != NodeRulesOfPod::default()).then(|| Box::new(rules))
}

/// The required node affinity of a pod as it was before the pod was pinned to a node: the pin is the last field in each term that says
/// anything, or stands in a term of its own where the pod required nothing.
fn unpinned(spec: &PodSpec, node: &str) -> Option<Affinity> {
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity
        .required_during_scheduling_ignored_during_execution
        .as_ref()?;
    let is_pin = |it: &NodeSelectorRequirement| {
        it.key == "metadata.name" && it.operator == "In" && it.values.iter().flatten().eq([node])
    };
    let mut terms = required.node_selector_terms.clone();
    for term in &mut terms {
        let Some(fields) = term.match_fields.as_mut() else {
            continue;
        };
        if fields.last().is_some_and(is_pin) {
            fields.pop();
            let says_nothing =
                fields.is_empty() && term.match_expressions.as_ref().is_none_or(Vec::is_empty);
            if says_nothing {
                return None;
            }
        }
    }
    Some(Affinity {
        node_affinity: Some(NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(NodeSelector {
                node_selector_terms: terms,
            }),
            ..NodeAffinity::default()
        }),
        ..Affinity::default()
    })
}

fn conditions(pod: &Pod) -> Conditions {
    let conditions = pod.status.iter().flat_map(|status| &status.conditions);
    let mut conditions = conditions.flatten().peekable();
    if conditions.peek().is_none() {
        return Conditions::None;
    }
    let is_disrupted = |it: &PodCondition| it.type_ == DISRUPTION_TARGET && it.status == "True";
    conditions
        .find(|it| is_disrupted(it))
        .map_or(Conditions::Some, |it| {
            Conditions::Disrupted(Disruption::named(it.reason.as_deref().unwrap_or_default()))
        })
}

fn start(pod: &Pod) -> StartOfPod {
    let Some(status) = pod.status.as_ref() else {
        return StartOfPod::default();
    };
    let has_sandbox = status.conditions.iter().flatten().any(|condition| {
        condition.type_ == "PodReadyToStartContainers" && condition.status == "True"
    });
    let spec = pod.spec.as_ref();
    let init_containers = spec.and_then(|spec| spec.init_containers.as_ref());
    let stays = |name: &str| {
        let mut containers = init_containers.into_iter().flatten();
        containers.any(|it| it.name == name && it.restart_policy.as_deref() == Some("Always"))
    };
    let has_run = |it: &ContainerStatus| {
        let is_there =
            |state: &ContainerState| state.running.is_some() || state.terminated.is_some();
        it.restart_count > 0 || it.state.as_ref().is_some_and(is_there)
    };
    let has_ended_well = |it: &ContainerStatus| {
        let ended = it
            .state
            .as_ref()
            .and_then(|state| state.terminated.as_ref());
        ended.is_some_and(|ended| ended.exit_code == 0)
    };
    let init = || status.init_container_statuses.iter().flatten();
    let initialized = init().filter(|it| has_ended_well(it) || stays(&it.name) && has_run(it));
    let started = status.container_statuses.iter().flatten();
    let started = started.filter(|it| has_run(it));
    let steps = usize::from(has_sandbox) + initialized.count() + started.count();
    let is_initializing = init().any(|it| {
        let runs = it
            .state
            .as_ref()
            .is_some_and(|state| state.running.is_some());
        runs && !stays(&it.name)
    });
    StartOfPod {
        steps: u8::try_from(steps).unwrap_or(u8::MAX),
        is_initializing,
    }
}

/// How the text about a container that failed begins; reasons of pods are one word.
const OF_CONTAINER: &str = "container ";
/// How the text begins about a pod that ran for longer than it says, or that asks for a kernel parameter which kubelets refuse.
const OF_ITSELF: [&str; 2] = ["DeadlineExceeded:", "SysctlForbidden:"];
/// The same about a pod that a kubelet ended to make room, which it tells by the condition `DisruptionTarget`; or, without it, since the pod wrote more to a
/// disk than its own limits allow (`localStorageEviction` of the kubelet's eviction manager).
const OF_EVICTED: &str = "Evicted:";

fn failure(pod: &Pod) -> Option<String> {
    if pod.phase() != "Failed" {
        return None;
    }
    let status = pod.status.as_ref()?;
    if let Some(reason) = status.reason.as_deref().filter(|reason| !reason.is_empty()) {
        let mut message = status.message.clone().unwrap_or_default();
        text::truncate(&mut message, FAILURE_BYTES);
        return Some(format!("{reason}: {message}"));
    }
    let containers = status.container_statuses.iter().flatten();
    let mut exited = containers.filter_map(|container| {
        let terminated = container.state.as_ref()?.terminated.as_ref()?;
        (terminated.exit_code != 0).then_some((container.name.as_str(), terminated.exit_code))
    });
    let (container, code) = exited.next()?;
    Some(format!("{OF_CONTAINER}{container} exited with code {code}"))
}

/// Reasons of containers that only say that it is not their turn, or that they are being made.
const USUAL_WAITS: [&str; 2] = ["PodInitializing", "ContainerCreating"];

fn waiting(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref().filter(|_| pod.phase() == "Pending")?;
    let init = status.init_container_statuses.iter().flatten();
    let mut containers = init.chain(status.container_statuses.iter().flatten());
    containers.find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref()?;
        let is_told = !reason.is_empty() && !USUAL_WAITS.contains(&reason);
        is_told.then(|| {
            let mut text = format!("container {}: {reason}", container.name);
            text::truncate(&mut text, FAILURE_BYTES);
            text
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(value: &Value) -> Pod {
        serde_json::from_value(value.clone()).unwrap()
    }

    /// Whoever reads a field reads the same, of the pod as it came and as it is kept.
    #[test]
    fn a_pod_that_is_kept_says_what_it_said() {
        let whole = json!({
            "metadata": {
                "name": "w-0", "namespace": "ml", "uid": "u", "resourceVersion": "7",
                "creationTimestamp": "2026-11-22T00:00:09Z", "deletionTimestamp": "2026-11-22T00:01:00Z",
                "deletionGracePeriodSeconds": 90,
                "annotations": {"muster.dev/gang-size": "2", "example.com/other": "x"},
                "labels": {"muster.dev/gang": "train", "app": "x"},
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "A", "name": "a", "uid": "1"},
                    {"apiVersion": "batch/v1", "kind": "Job", "name": "b", "uid": "2", "controller": true},
                ],
            },
            "spec": {
                "containers": [], "nodeName": "n0", "schedulerName": "other", "terminationGracePeriodSeconds": 7,
                "schedulingGates": [{"name": "a"}, {"name": "b"}],
                "resourceClaims": [{"name": "gpus", "resourceClaimName": "c"}],
                "tolerations": [{"key": "k"}],
            },
            "status": {
                "phase": "Pending",
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"},
                    {"type": "PodReadyToStartContainers", "status": "False"},
                ],
                "resourceClaimStatuses": [{"name": "gpus", "resourceClaimName": "c-x"}],
            },
        });
        let nothing = json!({"metadata": {}});
        for value in [&whole, &nothing] {
            let (whole, kept) = (&pod(value), &ObservedPod::of(&pod(value)));
            let texts = |of: &dyn Fn(&str) -> Option<String>| {
                ["muster.dev/gang-size", "muster.dev/gang", "muster.dev/none"].map(of)
            };
            assert_eq!(kept.name(), whole.name());
            assert_eq!(kept.namespace(), whole.namespace());
            assert_eq!(kept.uid(), whole.uid());
            assert_eq!(
                texts(&|key| kept.annotation(key).map(str::to_owned)),
                texts(&|key| whole.annotation(key).map(str::to_owned))
            );
            assert_eq!(
                texts(&|key| kept.label(key).map(str::to_owned)),
                texts(&|key| whole.label(key).map(str::to_owned))
            );
            assert_eq!(kept.controller(), whole.controller());
            assert_eq!(kept.created_at(), whole.created_at());
            assert_eq!(kept.is_deleting(), whole.is_deleting());
            assert_eq!(kept.node_name(), whole.node_name());
            assert!(kept.gates().eq(whole.gates()));
            assert_eq!(kept.phase(), whole.phase());
            assert_eq!(kept.is_unschedulable(), whole.is_unschedulable());
            assert_eq!(kept.lacks_sandbox(), whole.lacks_sandbox());
            let version = whole.metadata.resource_version.as_deref();
            assert_eq!(kept.resource_version(), version);
            let has_annotations = whole.metadata.annotations.is_some();
            assert_eq!(kept.has_annotations(), has_annotations);
        }
        let kept = ObservedPod::of(&pod(&whole));
        assert_eq!(kept.scheduler(), "other");
        assert_eq!(kept.claims()[0].resource_claim_name.as_deref(), Some("c"));
        assert_eq!(
            kept.claim_statuses()[0].resource_claim_name.as_deref(),
            Some("c-x")
        );
        let tolerations = |pod: &ObservedPod| pod.node_rules().unwrap().tolerations.len();
        assert_eq!(tolerations(&kept), 1);
        assert_eq!(
            kept.annotation("example.com/other"),
            None,
            "nobody reads it"
        );
        assert_eq!(kept.ends_within_seconds(), 90, "what its deletion says");
        assert_eq!(
            ObservedPod::of(&pod(&nothing)).scheduler(),
            "default-scheduler"
        );
    }

    #[test]
    fn what_chooses_a_node_is_kept_until_the_pod_is_bound() {
        let mut value = json!({
            "metadata": {},
            "spec": {"containers": [], "nodeSelector": {"zone": "a"}, "affinity": {"nodeAffinity": {}}},
        });
        let kept = ObservedPod::of(&pod(&value));
        let rules = kept.node_rules().unwrap();
        assert_eq!(rules.selector["zone"], "a");
        assert!(rules.affinity.is_some());
        value["spec"]["nodeName"] = json!("n0");
        assert_eq!(ObservedPod::of(&pod(&value)).node_rules(), None);
    }

    #[test]
    fn of_a_pod_that_is_pinned_what_its_user_said_about_nodes_is_kept_without_the_pin() {
        let pin = json!({"key": "metadata.name", "operator": "In", "values": ["n0"]});
        let zone = json!({"key": "zone", "operator": "In", "values": ["a"]});
        let other = json!({"key": "metadata.name", "operator": "NotIn", "values": ["n9"]});
        for (pinned, before) in [
            (json!([{"matchFields": [pin]}]), None),
            (
                json!([{"matchExpressions": [zone], "matchFields": [pin]}, {"matchFields": [other, pin]}, {}]),
                Some(
                    json!([{"matchExpressions": [zone], "matchFields": []}, {"matchFields": [other]}, {}]),
                ),
            ),
        ] {
            let value = json!({
                "metadata": {"annotations": {"muster.dev/placement": "pinned"}},
                "spec": {
                    "containers": [], "nodeName": "n0", "nodeSelector": {"pool": "b"},
                    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": pinned}}},
                },
            });
            let kept = ObservedPod::of(&pod(&value));
            let rules = kept.node_rules().unwrap();
            assert_eq!(rules.selector["pool"], "b");
            let affinity = rules
                .affinity
                .as_ref()
                .and_then(|it| it.node_affinity.as_ref());
            let required = affinity.and_then(|it| {
                it.required_during_scheduling_ignored_during_execution
                    .as_ref()
            });
            let terms = required.map(|it| serde_json::to_value(&it.node_selector_terms).unwrap());
            assert_eq!(terms, before);
        }
    }

    #[test]
    fn a_pod_tells_who_ends_it() {
        for (reason, expected) in [
            ("EvictedByMuster", Disruption::Muster),
            ("PreemptionByScheduler", Disruption::Scheduler),
            ("EvictionByEvictionAPI", Disruption::EvictionApi),
            ("DeletionByTaintManager", Disruption::NodeTaint),
            ("DeletionByDeviceTaintManager", Disruption::DeviceTaint),
            ("TerminationByKubelet", Disruption::Kubelet),
            ("DeletionByPodGC", Disruption::Other),
        ] {
            for (status, found) in [("True", Some(expected)), ("False", None)] {
                let value = json!({"metadata": {}, "status": {"conditions": [
                    {"type": "Ready", "status": "False"},
                    {"type": "DisruptionTarget", "status": status, "reason": reason},
                ]}});
                let kept = ObservedPod::of(&pod(&value));
                assert_eq!(kept.disruption(), found, "{reason} {status}");
                assert_eq!(kept.is_disrupted(), found.is_some());
            }
        }
    }

    #[test]
    fn a_pod_that_failed_says_why_and_no_other_does() {
        let exited = json!([
            {"name": "good", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": 0}}},
            {"name": "bad", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": 7}}},
        ]);
        let long = "x".repeat(FAILURE_BYTES + 1);
        for (status, why) in [
            (
                json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}),
                Some("Evicted: low on memory"),
            ),
            (
                json!({"phase": "Failed", "containerStatuses": exited}),
                Some("container bad exited with code 7"),
            ),
            (json!({"phase": "Failed"}), None),
            (
                json!({"phase": "Running", "containerStatuses": exited}),
                None,
            ),
        ] {
            let pod = pod(&json!({"metadata": {}, "status": status}));
            assert_eq!(ObservedPod::of(&pod).failure(), why, "{status}");
        }
        let pod = pod(
            &json!({"metadata": {}, "status": {"phase": "Failed", "reason": "R", "message": long}}),
        );
        let kept = ObservedPod::of(&pod);
        assert!(kept.failure().unwrap().len() <= "R: ".len() + FAILURE_BYTES);
    }

    #[test]
    fn a_pod_failed_by_its_node_unless_the_next_one_would_fail_of_the_same() {
        let made_room = json!([{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}]);
        let nothing = json!([]);
        for (reason, conditions, expected) in [
            ("NodeShutdown", &nothing, true),
            ("UnexpectedAdmissionError", &nothing, true),
            ("Evicted", &made_room, true),
            ("Evicted", &nothing, false),
            ("DeadlineExceeded", &nothing, false),
            ("SysctlForbidden", &nothing, false),
            ("", &nothing, false),
        ] {
            let status = json!({"phase": "Failed", "reason": reason, "conditions": conditions});
            let pod = pod(&json!({"metadata": {}, "status": status}));
            let found = ObservedPod::of(&pod).failed_by_its_node();
            assert_eq!(found, expected, "{status}");
        }
    }

    /// The index keeps one for each pod of the cluster.
    #[test]
    fn a_pod_takes_a_few_hundred_bytes() {
        assert!(size_of::<ObservedPod>() <= 336);
    }
}
