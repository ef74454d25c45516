//! The machine against a fake API server, one sentence of the protocol at a time. What happens when effects
//! crash, conflict, are lost or come late, in every order, is the simulator's part (`muster-sim`).

mod admission;
mod bounds;
mod class_resources;
mod deleted_gangs;
mod deleted_jobs;
mod deployments;
mod device_plugins;
mod evictions;
mod faults;
mod golden;
mod hostile;
mod in_vain;
mod interrupted;
mod ledger_recovery;
mod lives;
mod namespaces;
mod newest;
mod nodes;
mod nudge;
mod partial;
mod preemption;
mod proposals;
mod ranks;
mod release;
mod rules;
mod server;
mod shown;
mod still_prepared;
mod takeover;
mod visits;
mod voiding;
mod window;
mod writes;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use muster_api::{NodeDevices, NodeDevicesStatus, keys};
use serde_json::{Value, json};

use crate::{ApiRequest, Config, Effect, Machine, Now, Outcome};
use muster_cluster::{
    index,
    managed::ManagedPods,
    object::{Change, Kind, Object, ObjectKey},
};
use server::Server;

/// A cluster of two nodes with two GPUs each, a Team `vision` with four, and a machine.
struct Bench {
    server: Server,
    machine: Machine,
    seconds: u64,
    /// By how much the clock on the wall was set since.
    wall_set_by_seconds: i64,
    /// Every write that was performed, in order.
    written: Vec<ApiRequest>,
    /// What the driver of node `n0` lists besides, whatever it is asked.
    invented: Vec<muster_api::Held>,
    /// Nodes whose drivers answer nothing.
    silent_drivers: BTreeSet<String>,
    /// What the drivers of nodes list as held, whatever they are asked.
    holding: BTreeMap<String, Vec<String>>,
    /// Whether each poll is followed by a look at everything, which must find nothing.
    checks_polls: bool,
}

fn config() -> Config {
    let index = index::Config {
        managed: ManagedPods::new(["nvidia.com/gpu"]).unwrap(),
        excluded_namespaces: std::collections::BTreeSet::new(),
        excepted_device_classes: std::iter::once("nic.example.com".to_owned()).collect(),
        default_team: None,
        start_timeout_seconds: muster_cluster::index::START_TIMEOUT_SECONDS,
    };
    let recovery = crate::Recovery {
        mode: crate::Mode::Enforce,
        ..crate::Recovery::default()
    };
    Config {
        recovery,
        ..Config::new(index)
    }
}

impl Bench {
    fn new() -> Self {
        Self::with(config())
    }

    fn with(config: Config) -> Self {
        let mut server = Server::default();
        for object in fixtures() {
            server.put(object);
        }
        Self {
            server,
            machine: Machine::new(config),
            seconds: 1_000,
            wall_set_by_seconds: 0,
            written: Vec::new(),
            invented: Vec::new(),
            silent_drivers: BTreeSet::new(),
            holding: BTreeMap::new(),
            checks_polls: true,
        }
    }

    /// A new machine takes over; the old one is dead.
    fn take_over(&mut self) {
        self.machine = Machine::new(config());
    }

    fn now(&self) -> Now {
        let passed = i64::try_from(self.seconds).unwrap() + self.wall_set_by_seconds;
        Now {
            monotonic_seconds: self.seconds,
            wall: Timestamp::from_second(1_800_000_000 + passed).unwrap(),
        }
    }

    fn observe(&mut self) {
        for change in self.server.news() {
            self.machine.observe(change);
        }
    }

    /// Polls, and sees to it that a look at everything finds nothing more.
    fn poll(&mut self) -> Vec<Effect> {
        self.observe();
        let effects = self.machine.poll(self.now());
        if !self.checks_polls {
            return effects;
        }
        let overlooked = self.machine.full_poll(self.now());
        assert!(
            overlooked.is_empty(),
            "a poll overlooked {overlooked:?}, having found {effects:?}"
        );
        effects
    }

    fn perform(&mut self, effect: &Effect) {
        if let ApiRequest::ReadAll { kind } = *effect.write {
            self.machine
                .observe(Change::Listed(kind, self.server.list(kind)));
        }
        let outcome = self.server.perform(&effect.write);
        if matches!(outcome, Outcome::Done(_)) {
            self.written.push((*effect.write).clone());
        }
        self.machine.settle(effect.id, outcome);
    }

    /// Performs everything until nothing is owed for some seconds, drivers answering at once.
    fn run(&mut self) {
        self.run_until(|_| false);
    }

    /// The same without a second passing.
    fn run_at_once(&mut self) {
        self.run_for(0, |_| false);
    }

    /// The same as [`Bench::run`], but stops before an effect for which `stop` holds; whether there was one.
    fn run_until(&mut self, stop: impl Fn(&ApiRequest) -> bool) -> bool {
        self.run_for(3, stop)
    }

    fn run_for(&mut self, quiet_seconds: u64, stop: impl Fn(&ApiRequest) -> bool) -> bool {
        let mut last = Vec::new();
        let mut quiet = 0;
        for _ in 0..400 {
            self.acknowledge(&[]);
            let effects = self.poll();
            last.clone_from(&effects);
            if effects.iter().any(|effect| stop(&effect.write)) {
                return true;
            }
            for effect in &effects {
                self.perform(effect);
            }
            let is_due = |due| due <= self.seconds;
            if !effects.is_empty() || self.machine.next_due().is_some_and(is_due) {
                quiet = 0;
            } else if quiet == quiet_seconds {
                return false;
            } else {
                quiet += 1;
                self.seconds += 1;
            }
        }
        panic!("the machine does not come to rest: {last:?}");
    }

    /// Polls and performs, with no driver answering.
    fn run_in_silence(&mut self) {
        for _ in 0..20 {
            for effect in &self.poll() {
                self.perform(effect);
            }
            self.seconds += 1;
        }
    }

    /// The drivers acknowledge what they are given; `held`: claims that they list on node `n0`.
    fn acknowledge(&mut self, held: &[&str]) {
        for devices in self.server.list(Kind::NodeDevices) {
            if let Object::NodeDevices(devices) = devices {
                let name = devices.metadata.name.clone().unwrap_or_default();
                if self.silent_drivers.contains(&name) {
                    continue;
                }
                let is_first = name == "n0";
                let held = if is_first { held } else { &[] };
                let invented = if is_first {
                    self.invented.clone()
                } else {
                    Vec::new()
                };
                let holding = self.holding.get(&name).cloned().unwrap_or_default();
                let held: Vec<&str> = held
                    .iter()
                    .copied()
                    .chain(holding.iter().map(String::as_str))
                    .collect();
                self.answer_with(NodeDevices::clone(&devices), &held, invented);
            }
        }
    }

    /// Whether a node has any permit.
    fn has_permits(&self, node: &str) -> bool {
        let devices = self.server.node_devices(node).unwrap();
        !devices.spec.permits.is_empty()
    }

    fn answer(&mut self, devices: NodeDevices, held: &[&str]) {
        self.answer_with(devices, held, Vec::new());
    }

    fn answer_with(
        &mut self,
        mut devices: NodeDevices,
        held: &[&str],
        invented: Vec<muster_api::Held>,
    ) {
        let status = NodeDevicesStatus {
            uid: devices.metadata.uid.clone().unwrap(),
            observed_generation: devices.metadata.generation.unwrap(),
            boot_id: "boot".to_owned(),
            held: held
                .iter()
                .map(|claim| muster_api::Held {
                    claim_uid: (*claim).to_owned(),
                    namespace: "ml".to_owned(),
                    name: "claim".to_owned(),
                    pod_uid: None,
                    devices: vec!["gpu-0".to_owned()],
                })
                .chain(invented)
                .collect(),
            faults: devices.status.as_ref().and_then(|it| it.faults.clone()),
        };
        if devices.status.as_ref() != Some(&status) {
            devices.status = Some(status);
            self.server.put(Object::NodeDevices(Arc::new(devices)));
        }
    }

    /// Creates a gang of single-GPU pods by label.
    /// Gangs that name no tier may be preempted, and so may borrow.
    fn tier_that_borrows(&mut self) {
        self.server.put(Object::PriorityTier(parse(json!({
            "apiVersion": "muster.dev/v1alpha1", "kind": "PriorityTier", "metadata": {"name": "standard"},
            "spec": {"value": 0, "preemption": "Immediate", "default": true},
        }))));
    }

    fn gang(&mut self, label: &str, size: usize) {
        for rank in 0..size {
            self.pod(label, rank, size, keys::DEVICE_CLASS_GPU);
        }
    }

    fn pod(&mut self, label: &str, rank: usize, size: usize, class: &str) {
        let name = format!("{label}-{rank}");
        self.server.put(claim(&name, class));
        let object: Pod = serde_json::from_value(json!({
            "metadata": {
                "name": name, "namespace": "ml", "creationTimestamp": "2027-01-01T00:00:00Z",
                "labels": {keys::GANG: label}, "annotations": {keys::GANG_SIZE: size.to_string()},
            },
            "spec": {
                "containers": [{"name": "rank", "resources": {"claims": [{"name": "gpu"}]}}],
                "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
                "schedulingGates": [{"name": keys::ADMISSION_GATE}],
            },
            "status": {"phase": "Pending"},
        }))
        .unwrap();
        self.server.put(Object::Pod(Arc::new(object)));
    }

    /// Changes a pod as kube-scheduler and kubelet do.
    fn change_pod(&mut self, name: &str, change: impl FnOnce(&mut Pod)) {
        let mut pod = self.server.pod(name).unwrap();
        change(&mut pod);
        self.server.put(Object::Pod(Arc::new(pod)));
    }

    /// kube-scheduler has bound a pod to a node, and its containers run.
    fn runs_on(&mut self, name: &str, node: &str) {
        self.change_pod(name, |pod| {
            pod.spec.as_mut().unwrap().node_name = Some(node.to_owned());
            pod.status.as_mut().unwrap().phase = Some("Running".to_owned());
        });
    }

    /// A pod has done its work.
    fn ends(&mut self, name: &str) {
        self.change_pod(name, |pod| {
            pod.status.as_mut().unwrap().phase = Some("Succeeded".to_owned());
        });
    }

    /// The one Queue that there is.
    fn queue(&self) -> Arc<muster_api::Queue> {
        let queues = self.server.list(Kind::Queue);
        match queues.as_slice() {
            [Object::Queue(queue)] => Arc::clone(queue),
            other => panic!("one Queue, not {other:?}"),
        }
    }

    fn gang_status(&self) -> muster_api::GangStatus {
        let gangs = self.server.list(Kind::Gang);
        match gangs.as_slice() {
            [Object::Gang(gang)] => gang.status.clone().unwrap(),
            other => panic!("one Gang, not {other:?}"),
        }
    }
}

fn pod_key(name: &str) -> ObjectKey {
    ObjectKey {
        kind: Kind::Pod,
        namespace: "ml".to_owned(),
        name: name.to_owned(),
    }
}

/// A gated pod that asks for one GPU by limits alone, under the name of a resource.
fn pod_by_limits(resource: &str, label: &str, rank: usize, size: usize) -> Pod {
    serde_json::from_value(json!({
        "metadata": {
            "name": format!("{label}-{rank}"), "namespace": "ml", "creationTimestamp": "2027-01-01T00:00:00Z",
            "labels": {keys::GANG: label}, "annotations": {keys::GANG_SIZE: size.to_string()},
        },
        "spec": {
            "containers": [{"name": "rank", "resources": {"limits": {resource: "1"}}}],
            "schedulingGates": [{"name": keys::ADMISSION_GATE}],
        },
        "status": {"phase": "Pending"},
    }))
    .unwrap()
}

fn claim(name: &str, class: &str) -> Object {
    let claim = json!({
        "metadata": {"name": name, "namespace": "ml", "uid": format!("claim-of-{name}")},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": class, "allocationMode": "ExactCount", "count": 1}}]}},
    });
    Object::ResourceClaim(Arc::new(serde_json::from_value(claim).unwrap()))
}

fn parse<T: serde::de::DeserializeOwned>(json: Value) -> Arc<T> {
    Arc::new(serde_json::from_value(json).unwrap())
}

fn fixtures() -> Vec<Object> {
    let mut objects = vec![
        Object::Namespace(parse(
            json!({"metadata": {"name": "ml", "labels": {keys::TEAM: "vision"}}}),
        )),
        team("vision", 4),
        Object::Flavor(parse(json!({
            "apiVersion": "muster.dev/v1alpha1", "kind": "Flavor", "metadata": {"name": "gpu"}, "spec": {},
        }))),
    ];
    for (class, driver) in [
        (keys::DEVICE_CLASS_GPU, keys::DRIVER),
        ("nic.example.com", "nic"),
    ] {
        objects.push(Object::DeviceClass(parse(json!({
            "metadata": {"name": class},
            "spec": {"selectors": [{"cel": {"expression": format!("device.driver == '{driver}'")}}]},
        }))));
    }
    for node in ["n0", "n1"] {
        objects.extend(node_with_gpus(node, 2));
    }
    objects
}

fn node_with_gpus(node: &str, gpus: usize) -> [Object; 2] {
    let devices: Vec<Value> = (0..gpus)
        .map(|gpu| json!({"name": format!("gpu-{gpu}")}))
        .collect();
    [
        Object::Node(parse(json!({
            "metadata": {"name": node},
            "status": {
                "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }))),
        Object::ResourceSlice(parse(json!({
            "metadata": {"name": format!("{node}-gpus")},
            "spec": {
                "driver": keys::DRIVER, "nodeName": node,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
                "devices": devices,
            },
        }))),
    ]
}

fn team(name: &str, gpus: usize) -> Object {
    Object::Team(parse(json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "Team", "metadata": {"name": name},
        "spec": {"quota": [{"flavor": "gpu", "resources": [{"name": "gpus", "nominal": gpus}]}]},
    })))
}
