//! Gangs with their pods and claims: those that run, then those that wait.

use muster_api::keys;
use muster_cluster::object::Kind;
use serde_json::{Value, json};

use super::{
    Cluster, Collection, GIB, RunningPod, WaitingGang,
    objects::{FLAVOR, device_name, metadata, node_name},
    quota::team_name,
};

/// When the first gang began to queue, in seconds since the Unix epoch.
pub(crate) const BEGIN_SECONDS: i64 = 1_800_000_000;
/// A gang with its pods and claims, as its owner and the claim controller have made them: no Gang object yet.
pub(crate) fn arriving(gang: &WaitingGang) -> Vec<(Kind, Value)> {
    let claims = (0..gang.shape.pods).map(|rank| (Kind::ResourceClaim, waiting_claim(gang, rank)));
    let pods = (0..gang.shape.pods).map(|rank| (Kind::Pod, waiting_pod(gang, rank)));
    claims.chain(pods).collect()
}

pub(super) fn within(team: usize, name: &str, number: usize) -> Value {
    let mut metadata = metadata(name);
    let created = BEGIN_SECONDS - 1_000_000 + i64::try_from(number).unwrap_or(0);
    metadata["namespace"] = json!(team_name(team));
    metadata["creationTimestamp"] = json!(
        jiff::Timestamp::from_second(created)
            .unwrap_or_default()
            .to_string()
    );
    metadata
}

fn label(gang: &WaitingGang) -> String {
    format!("train-{:06}", gang.number)
}

/// The name of a pod of a waiting gang, and of its claim.
fn rank_name(gang: &WaitingGang, rank: usize) -> String {
    format!("{}-{rank}", label(gang))
}

fn running_name(pod: &RunningPod) -> String {
    format!("run-{:06}", pod.number)
}

/// The pod and the claim of a running gang have this name and namespace.
pub(crate) fn running_key(pod: &RunningPod) -> (String, String) {
    (team_name(pod.team), running_name(pod))
}

fn gang_name(pod: &RunningPod) -> String {
    format!("pod-{}", running_name(pod))
}

pub(super) fn pod_spec(claim: &str, memory_bytes: i64) -> Value {
    json!({
        "schedulerName": "default-scheduler",
        "containers": [{
            "name": "train", "image": "registry.example.com/train",
            "resources": {"requests": {"cpu": "8", "memory": memory_bytes.to_string()}, "claims": [{"name": "gpus"}]},
        }],
        "resourceClaims": [{"name": "gpus", "resourceClaimName": claim}],
    })
}

pub(super) fn claim_spec(gpus: usize) -> Value {
    json!({"devices": {"requests": [{"name": "gpus", "exactly": {
        "deviceClassName": keys::DEVICE_CLASS_GPU, "allocationMode": "ExactCount", "count": gpus,
    }}]}})
}

/// The status of a claim whose devices a pod uses.
pub(crate) fn allocated(pod: &str, node: &str, gpus: &[usize]) -> Value {
    let results: Vec<Value> = gpus
        .iter()
        .map(|gpu| {
            json!({"request": "gpus", "driver": keys::DRIVER, "pool": node, "device": device_name(*gpu)})
        })
        .collect();
    json!({
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": pod, "uid": format!("uid-{pod}")}],
    })
}

fn waiting_pod(gang: &WaitingGang, rank: usize) -> Value {
    let name = rank_name(gang, rank);
    let mut metadata = within(gang.team, &name, gang.number);
    metadata["labels"] = json!({keys::GANG: label(gang), "app": "train"});
    metadata["annotations"] = json!({keys::GANG_SIZE: gang.shape.pods.to_string()});
    let mut spec = pod_spec(&name, gang.memory_bytes);
    spec["schedulingGates"] = json!([{"name": keys::ADMISSION_GATE}]);
    json!({"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}})
}

fn waiting_claim(gang: &WaitingGang, rank: usize) -> Value {
    let name = rank_name(gang, rank);
    json!({"metadata": within(gang.team, &name, gang.number), "spec": claim_spec(gang.shape.gpus)})
}

fn waiting_gang(gang: &WaitingGang) -> Value {
    let mut metadata = within(gang.team, &format!("group-{}", label(gang)), gang.number);
    metadata["labels"] = json!({keys::GANG: label(gang)});
    json!({"apiVersion": "muster.dev/v1alpha1", "kind": "Gang", "metadata": metadata,
        "spec": {"group": label(gang), "size": gang.shape.pods, "startTimeoutSeconds": 600},
        "status": {"phase": "Pending", "attempt": 1, "leaderEpoch": 1, "observedGeneration": 1,
            "team": team_name(gang.team)}})
}

fn running_pod(pod: &RunningPod) -> Value {
    let name = running_name(pod);
    let mut metadata = within(pod.team, &name, 0);
    metadata["annotations"] = json!({
        keys::GANG_NAME: gang_name(pod), keys::ATTEMPT: "1", keys::RANK: "0",
        keys::PLACEMENT: keys::PLACEMENT_PINNED,
    });
    let mut spec = pod_spec(&name, 16 * GIB);
    spec["nodeName"] = json!(node_name(pod.node));
    json!({"metadata": metadata, "spec": spec, "status": {"phase": "Running"}})
}

fn running_claim(pod: &RunningPod) -> Value {
    let name = running_name(pod);
    let gpus: Vec<usize> = (pod.first_gpu..pod.first_gpu + pod.gpus).collect();
    json!({"metadata": within(pod.team, &name, 0), "spec": claim_spec(pod.gpus),
        "status": allocated(&name, &node_name(pod.node), &gpus)})
}

fn charge(pod: &RunningPod) -> Value {
    json!({"claims": [{"flavor": FLAVOR, "gpusMilli": 1000 * pod.gpus, "vramBytes": 0,
        "uids": [format!("uid-{}", running_name(pod))]}]})
}

pub(super) fn permit(pod: &RunningPod) -> Value {
    let uid = format!("uid-{}", running_name(pod));
    json!({
        "podUid": uid, "claimUids": [uid], "gang": format!("{}/{}", team_name(pod.team), gang_name(pod)),
        "gangUid": format!("uid-{}", gang_name(pod)), "attempt": 1, "team": team_name(pod.team),
        "charge": charge(pod),
    })
}

/// A condition that holds, as the leader before wrote it: a status that says all of them is not written again.
fn condition(type_: &str, reason: &str, message: &str) -> Value {
    json!({"type": type_, "status": "True", "reason": reason, "message": message, "observedGeneration": 1,
        "lastTransitionTime": "2026-11-22T00:00:00Z"})
}

fn running_gang(pod: &RunningPod) -> Value {
    let (uid, node) = (format!("uid-{}", running_name(pod)), node_name(pod.node));
    json!({"apiVersion": "muster.dev/v1alpha1", "kind": "Gang",
    "metadata": within(pod.team, &gang_name(pod), 0),
    "spec": {"size": 1, "startTimeoutSeconds": 600},
    "status": {
        "phase": "Running", "attempt": 1, "leaderEpoch": 1, "observedGeneration": 1, "team": team_name(pod.team),
        "conditions": [
            condition("Admitted", "Admitted", "1 ranks on 1 nodes"),
            condition("Running", "Running", "1 of 1 pods run or succeeded"),
        ],
        "admission": {
            "team": team_name(pod.team), "teamGeneration": 1, "ledgerSequence": 1, "charge": charge(pod),
            "pods": [{"uid": uid, "claims": [uid]}],
        },
        "placement": {"nodes": [{"node": node, "nodeUid": format!("uid-{node}"), "ranks": 1}]},
    }})
}

impl Cluster {
    pub(super) fn objects_of_gangs(&self) -> Vec<Collection> {
        let waiting_pods = self
            .waiting
            .iter()
            .map(|gang| gang.shape.pods)
            .sum::<usize>();
        let pods = self.running.len() + waiting_pods;
        vec![
            Collection {
                kind: Kind::Pod,
                path: "/api/v1/pods",
                count: pods,
                make: Box::new(|cluster, number| cluster.of_pod(number, running_pod, waiting_pod)),
            },
            Collection {
                kind: Kind::ResourceClaim,
                path: "/apis/resource.k8s.io/v1/resourceclaims",
                count: pods,
                make: Box::new(|cluster, number| {
                    cluster.of_pod(number, running_claim, waiting_claim)
                }),
            },
            Collection {
                kind: Kind::Gang,
                path: "/apis/muster.dev/v1alpha1/gangs",
                count: self.running.len() + self.waiting.len(),
                make: Box::new(|cluster, number| match cluster.running.get(number) {
                    Some(pod) => running_gang(pod),
                    None => waiting_gang(&cluster.waiting[number - cluster.running.len()]),
                }),
            },
        ]
    }

    /// What belongs to the pod of that number.
    fn of_pod(
        &self,
        number: usize,
        running: impl Fn(&RunningPod) -> Value,
        waiting: impl Fn(&WaitingGang, usize) -> Value,
    ) -> Value {
        if let Some(pod) = self.running.get(number) {
            return running(pod);
        }
        let place = number - self.running.len();
        let gang = self.pods_before.partition_point(|before| *before <= place) - 1;
        waiting(&self.waiting[gang], place - self.pods_before[gang])
    }
}
