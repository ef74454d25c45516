//! How long one poll of the protocol's machine takes at the size that the design is for, by hand:
//!
//! ```text
//! cargo run --release -p muster-protocol --example poll -- 10000 50000
//! ```
//!
//! with the number of nodes (of 8 GPUs each) and of gangs (of one pod with one GPU each). Once the gangs wait, for a
//! quota that is too small for any of them; once they run, as far as there are GPUs. What is measured are polls of a leader
//! that has nothing to do: what every change of anything costs at least.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use jiff::Timestamp;
use muster_api::{Ledger, LedgerSpec, NodeDevices, Queue, QueueSpec, keys};
use muster_cluster::{
    index,
    managed::ManagedPods,
    object::{Change, Kind, Object, ObjectKey},
};
use muster_protocol::{ApiRequest, Config, Effect, Machine, Now, Outcome};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const GPUS_PER_NODE: usize = 8;
const POLLS: u32 = 5;

#[expect(clippy::print_stdout, reason = "what was measured is for people")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut sizes = std::env::args().skip(1).map(|size| size.parse::<usize>());
    let nodes = sizes.next().transpose()?.unwrap_or(10_000);
    let gangs = sizes.next().transpose()?.unwrap_or(50_000);
    for running in [false, true] {
        for line in measure(nodes, gangs, running)? {
            println!("{line}");
        }
    }
    Ok(())
}

fn measure(
    nodes: usize,
    gangs: usize,
    running: bool,
) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let config = Config::new(index::Config {
        managed: ManagedPods::new(["nvidia.com/gpu"])?,
        excluded_namespaces: [].into(),
        excepted_device_classes: [].into(),
        default_team: None,
    });
    let mut bench = Bench {
        objects: objects(nodes, gangs, running)?,
        machine: Machine::new(config, "bench".to_owned()),
        version: 1_000_000,
        seconds: 0,
    };
    let began = Instant::now();
    let polls = bench.settle_down();
    let state = if running { "run" } else { "wait" };
    let mut lines = vec![format!(
        "{nodes} nodes, {gangs} gangs that {state}: at rest after {polls} polls, {:.1} s",
        began.elapsed().as_secs_f64()
    )];
    for what in ["nothing changed", "a pod changed"] {
        let mut longest = 0.0_f64;
        let mut sum = 0.0;
        for number in 0..POLLS {
            if what == "a pod changed" {
                bench.touch_pod(number)?;
            }
            bench.seconds += 1;
            let began = Instant::now();
            bench.poll();
            let took = began.elapsed().as_secs_f64() * 1_000.0;
            longest = longest.max(took);
            sum += took;
        }
        let mean = sum / f64::from(POLLS);
        lines.push(format!(
            "  {what}: {mean:.0} ms a poll, at most {longest:.0} ms"
        ));
    }
    Ok(lines)
}

/// A machine and the objects that it works on.
struct Bench {
    objects: BTreeMap<ObjectKey, Object>,
    machine: Machine,
    version: u64,
    seconds: u64,
}

impl Bench {
    fn poll(&mut self) -> Vec<Effect> {
        self.machine.poll(Now {
            monotonic_seconds: self.seconds,
            wall: Timestamp::UNIX_EPOCH,
        })
    }

    /// Polls, and does what is asked for, until nothing is; returns the number of polls.
    fn settle_down(&mut self) -> usize {
        let mut polls = 0;
        let mut quiet = 0;
        while quiet < 3 {
            self.seconds += 1;
            polls += 1;
            let effects = self.poll();
            quiet = if effects.is_empty() { quiet + 1 } else { 0 };
            for effect in effects {
                let outcome = self.perform(&effect.write);
                self.machine.settle(effect.id, outcome);
            }
        }
        polls
    }

    fn perform(&mut self, write: &ApiRequest) -> Outcome {
        let object = match write {
            ApiRequest::ReadAll { kind } => {
                let all = self.objects.values().filter(|it| it.kind() == *kind);
                self.machine
                    .observe(Change::Listed(*kind, all.cloned().collect()));
                return Outcome::Done(None);
            }
            ApiRequest::ReadObject { key } => {
                return match self.objects.get(key) {
                    Some(object) => Outcome::Done(Some(object.clone())),
                    None => Outcome::NotFound,
                };
            }
            ApiRequest::ReplaceLedger { spec, .. } => {
                let mut ledger = Ledger::new(keys::LEDGER_NAME, spec.clone());
                self.stamp(&mut ledger.metadata, "ledger");
                Object::Ledger(Arc::new(ledger))
            }
            ApiRequest::CreateNodeDevices { node, spec }
            | ApiRequest::ReplaceNodeDevices { node, spec, .. } => {
                let mut devices = NodeDevices::new(node, spec.clone());
                self.stamp(&mut devices.metadata, node);
                Object::NodeDevices(Arc::new(devices))
            }
            ApiRequest::ReplaceGangStatus { key, status, .. } => {
                let Some(Object::Gang(gang)) = self.objects.get(key) else {
                    return Outcome::NotFound;
                };
                let mut gang = muster_api::Gang::clone(gang);
                self.version += 1;
                gang.metadata.resource_version = Some(self.version.to_string());
                gang.status = Some(status.as_ref().clone());
                Object::Gang(Arc::new(gang))
            }
            ApiRequest::PublishQueue {
                namespace,
                team,
                status,
            } => {
                let mut queue = Queue::new(team, QueueSpec { team: team.clone() });
                self.stamp(&mut queue.metadata, "queue");
                queue.metadata.namespace = Some(namespace.clone());
                queue.status = Some(status.as_ref().clone());
                Object::Queue(Arc::new(queue))
            }
            _ => return Outcome::Done(None),
        };
        self.objects.insert(object.key(), object.clone());
        self.machine.observe(Change::Applied(object.clone()));
        Outcome::Done(Some(object))
    }

    fn stamp(
        &mut self,
        metadata: &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
        uid: &str,
    ) {
        self.version += 1;
        metadata.resource_version = Some(self.version.to_string());
        metadata.uid = Some(format!("{uid}-uid"));
        metadata.generation = Some(1);
    }

    fn touch_pod(&mut self, number: u32) -> Result<(), Box<dyn std::error::Error>> {
        let key = ObjectKey {
            kind: Kind::Pod,
            namespace: "ml".to_owned(),
            name: format!("g{number}"),
        };
        let Some(Object::Pod(pod)) = self.objects.get(&key) else {
            return Err("there is no such pod".into());
        };
        let mut pod = k8s_openapi::api::core::v1::Pod::clone(pod);
        self.version += 1;
        pod.metadata.resource_version = Some(self.version.to_string());
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert("example.com/seen".to_owned(), number.to_string());
        self.machine
            .observe(Change::Applied(Object::Pod(Arc::new(pod))));
        Ok(())
    }
}

fn objects(
    nodes: usize,
    gangs: usize,
    running: bool,
) -> Result<BTreeMap<ObjectKey, Object>, serde_json::Error> {
    let quota = if running { nodes * GPUS_PER_NODE } else { 0 };
    let mut objects = vec![
        Object::Ledger(Arc::new(ledger())),
        Object::Namespace(parse(
            json!({"metadata": {"name": "ml", "labels": {keys::TEAM: "ml"}}}),
        )?),
        Object::Team(parse(json!({
            "apiVersion": "muster.dev/v1alpha1", "kind": "Team", "metadata": {"name": "ml", "generation": 1},
            "spec": {"quota": [{"flavor": "gpu", "resources": [{"name": "gpus", "nominal": quota}]}]},
        }))?),
        Object::Flavor(parse(json!({
            "apiVersion": "muster.dev/v1alpha1", "kind": "Flavor", "metadata": {"name": "gpu"}, "spec": {},
        }))?),
        Object::DeviceClass(parse(json!({
            "metadata": {"name": keys::DEVICE_CLASS_GPU},
            "spec": {"selectors": [{"cel": {"expression": format!("device.driver == '{}'", keys::DRIVER)}}]},
        }))?),
    ];
    for number in 0..nodes {
        let permits: Vec<Value> = (0..GPUS_PER_NODE)
            .map(|gpu| number * GPUS_PER_NODE + gpu)
            .filter(|gang| running && *gang < gangs)
            .map(permit)
            .collect();
        objects.extend(node(number, &permits)?);
    }
    for number in 0..gangs {
        let home = (running && number < nodes * GPUS_PER_NODE).then_some(number / GPUS_PER_NODE);
        objects.extend(gang(number, home)?);
    }
    Ok(objects.into_iter().map(|it| (it.key(), it)).collect())
}

fn parse<T: DeserializeOwned>(value: Value) -> Result<Arc<T>, serde_json::Error> {
    serde_json::from_value(value).map(Arc::new)
}

fn ledger() -> Ledger {
    let spec = LedgerSpec {
        leader_epoch: 1,
        sequence: 1,
        ..LedgerSpec::default()
    };
    let mut ledger = Ledger::new(keys::LEDGER_NAME, spec);
    ledger.metadata.resource_version = Some("1".to_owned());
    ledger.metadata.uid = Some("ledger-uid".to_owned());
    ledger
}

fn node(number: usize, permits: &[Value]) -> Result<Vec<Object>, serde_json::Error> {
    let name = format!("n{number}");
    let devices: Vec<Value> = (0..GPUS_PER_NODE)
        .map(|gpu| json!({"name": format!("gpu-{gpu}")}))
        .collect();
    Ok(vec![
        Object::Node(parse(json!({
            "metadata": {"name": name, "uid": format!("{name}-uid"), "resourceVersion": "1"},
            "status": {
                "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }))?),
        Object::ResourceSlice(parse(json!({
            "metadata": {"name": format!("{name}-gpus"), "uid": format!("{name}-slice"), "resourceVersion": "1"},
            "spec": {
                "driver": keys::DRIVER, "nodeName": name,
                "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
                "devices": devices,
            },
        }))?),
        Object::NodeDevices(parse(json!({
            "apiVersion": "muster.dev/v1alpha1", "kind": "NodeDevices",
            "metadata": {
                "name": name, "uid": format!("{name}-devices"), "resourceVersion": "1", "generation": 1,
                "finalizers": if permits.is_empty() { json!([]) } else { json!([keys::PERMITS_FINALIZER]) },
            },
            "spec": {
                "nodeUid": format!("{name}-uid"), "leaderEpoch": 1, "enforce": true, "lost": false, "permits": permits,
            },
            "status": {"uid": format!("{name}-devices"), "observedGeneration": 1, "bootId": "b", "held": []},
        }))?),
    ])
}

fn charge(number: usize) -> Value {
    let claims = json!([{"flavor": "gpu", "gpusMilli": 1000, "vramBytes": 0, "uids": [format!("c{number}-uid")]}]);
    json!({ "claims": claims })
}

fn permit(number: usize) -> Value {
    json!({
        "podUid": format!("g{number}-uid"), "claimUids": [format!("c{number}-uid")], "gang": format!("ml/pod-g{number}"),
        "gangUid": format!("gang{number}-uid"), "attempt": 1, "team": "ml", "charge": charge(number), "withdrawn": false,
    })
}

/// A gang of one; with a home, it runs there.
fn gang(number: usize, home: Option<usize>) -> Result<Vec<Object>, serde_json::Error> {
    let (pod, claim, gang) = (
        format!("g{number}"),
        format!("c{number}"),
        format!("pod-g{number}"),
    );
    let mut annotations = json!({keys::GANG_NAME: gang});
    let mut spec = json!({
        "containers": [{"name": "rank", "resources": {"claims": [{"name": "gpu"}], "requests": {"cpu": "1"}}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
    });
    let mut claim_status = Value::Null;
    let mut status = json!({"phase": "Pending", "attempt": 1, "leaderEpoch": 1});
    match home {
        None => spec["schedulingGates"] = json!([{"name": keys::ADMISSION_GATE}]),
        Some(home) => {
            let node = format!("n{home}");
            annotations[keys::ATTEMPT] = json!("1");
            annotations[keys::PLACEMENT] = json!(keys::PLACEMENT_PINNED);
            spec["nodeName"] = json!(node);
            let device = format!("gpu-{}", number % GPUS_PER_NODE);
            let result =
                json!({"request": "gpu", "driver": keys::DRIVER, "pool": node, "device": device});
            claim_status = json!({
                "allocation": {"devices": {"results": [result]}},
                "reservedFor": [{"resource": "pods", "name": pod, "uid": format!("{pod}-uid")}],
            });
            status["phase"] = json!("Running");
            status["admission"] = json!({
                "team": "ml", "teamGeneration": 1, "ledgerSequence": 1, "charge": charge(number),
                "pods": [{"uid": format!("{pod}-uid"), "claims": [format!("{claim}-uid")]}],
            });
            status["placement"] = json!({
                "nodes": [{"node": node, "nodeUid": format!("{node}-uid"), "ranks": 1}],
            });
        }
    }
    let phase = if home.is_some() { "Running" } else { "Pending" };
    Ok(vec![
        Object::Pod(parse(json!({
            "metadata": {
                "name": pod, "namespace": "ml", "uid": format!("{pod}-uid"), "resourceVersion": "1",
                "creationTimestamp": "2027-01-01T00:00:00Z", "annotations": annotations,
            },
            "spec": spec, "status": {"phase": phase},
        }))?),
        Object::ResourceClaim(parse(json!({
            "metadata": {"name": claim, "namespace": "ml", "uid": format!("{claim}-uid"), "resourceVersion": "1"},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {
                "deviceClassName": keys::DEVICE_CLASS_GPU, "allocationMode": "ExactCount", "count": 1,
            }}]}},
            "status": claim_status,
        }))?),
        Object::Gang(parse(json!({
            "apiVersion": "muster.dev/v1alpha1", "kind": "Gang",
            "metadata": {
                "name": gang, "namespace": "ml", "uid": format!("gang{number}-uid"), "resourceVersion": "1", "generation": 1,
            },
            "spec": {"size": 1, "startTimeoutSeconds": 600}, "status": status,
        }))?),
    ])
}
