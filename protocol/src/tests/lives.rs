//! Whatever happens to a Job, its pods and their nodes, and in whichever order: in the end it runs, and is charged for what it has.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Node, Pod};
use muster_api::GangPhase;
use muster_engine::Amount;

use super::{
    evictions::{change_job, is_suspended, the_job},
    ranks::job,
    *,
};
use crate::objects::{bound_node, is_deleting, is_gated, is_terminal};

/// A Job, and those who work on it besides Muster.
struct Life {
    bench: Bench,
    pods: usize,
    made: usize,
    dead: BTreeSet<String>,
    random: u64,
    told: Vec<String>,
}

impl Life {
    fn new(seed: u64, pods: usize) -> Self {
        let mut bench = Bench::new();
        bench.server.put(job(pods, 0));
        Self {
            bench,
            pods,
            made: 0,
            dead: BTreeSet::new(),
            random: seed.wrapping_add(1),
            told: Vec::new(),
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    fn pods(&self) -> Vec<Arc<Pod>> {
        let pods = self.bench.server.list(Kind::Pod).into_iter();
        let pods = pods.filter_map(|pod| match pod {
            Object::Pod(pod) => Some(pod),
            _ => None,
        });
        pods.collect()
    }

    fn any_pod(&mut self) -> Option<String> {
        let pods = self.pods();
        let pods = pods.iter().filter(|pod| !is_terminal(pod.as_ref()));
        let names: Vec<String> = pods.filter_map(|pod| pod.metadata.name.clone()).collect();
        let at = self.draw(u64::try_from(names.len().max(1)).unwrap());
        names.get(usize::try_from(at).unwrap()).cloned()
    }

    /// Kubernetes lets a pod that is not bound go at once.
    fn delete(&mut self, name: &str) {
        let pod = self.bench.server.pod(name).unwrap();
        if bound_node(&pod).is_none() {
            self.bench.server.remove(&pod_key(name));
            return;
        }
        self.bench.change_pod(name, |pod| {
            pod.metadata.deletion_timestamp =
                serde_json::from_value(json!("2027-01-01T00:00:09Z")).unwrap();
        });
    }

    /// What the controller of the Job does.
    fn make_pods(&mut self) {
        let suspended = is_suspended(&self.bench);
        for pod in self.pods() {
            let name = pod.metadata.name.clone().unwrap();
            if suspended && !is_terminal(pod.as_ref()) && !is_deleting(pod.as_ref()) {
                self.delete(&name);
            }
        }
        if suspended {
            return;
        }
        for index in 0..self.pods {
            let lives = self.pods().iter().any(|pod| {
                let name = pod.metadata.name.as_deref().unwrap_or_default();
                name.starts_with(&format!("fit-{index}-"))
                    && !is_terminal(pod.as_ref())
                    && !is_deleting(pod.as_ref())
            });
            if lives {
                continue;
            }
            let label = format!("fit-{index}");
            let serial = self.made;
            self.made += 1;
            self.bench
                .pod(&label, serial, self.pods, keys::DEVICE_CLASS_GPU);
            let name = format!("{label}-{serial}");
            self.bench.change_pod(&name, |pod| {
                pod.metadata = serde_json::from_value(json!({
                    "name": name, "namespace": "ml", "uid": pod.metadata.uid,
                    "creationTimestamp": pod.metadata.creation_timestamp,
                    "annotations": {"batch.kubernetes.io/job-completion-index": index.to_string()},
                    "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "fit", "uid": "fit-uid", "controller": true}],
                }))
                .unwrap();
            });
        }
    }

    /// What kube-scheduler and the kubelets do.
    fn run_pods(&mut self) {
        let gangs = self.bench.server.list(Kind::Gang);
        for pod in self.pods() {
            let name = pod.metadata.name.clone().unwrap();
            // Kubernetes removes the pods of Nodes that are gone.
            if bound_node(pod.as_ref()).is_some_and(|node| self.node(node).is_none()) {
                self.bench.server.remove(&pod_key(&name));
                continue;
            }
            if is_deleting(pod.as_ref()) {
                if bound_node(pod.as_ref()).is_none_or(|node| !self.dead.contains(node)) {
                    self.bench.server.remove(&pod_key(&name));
                }
                continue;
            }
            if is_gated(pod.as_ref()) || bound_node(pod.as_ref()).is_some() {
                continue;
            }
            let mut nodes = gangs.iter().filter_map(|gang| match gang {
                Object::Gang(gang) => {
                    let status = gang.status.as_ref()?;
                    let pods = &status.admission.as_ref()?.pods;
                    let uid = pod.metadata.uid.as_ref();
                    let place = pods.iter().position(|it| Some(&it.uid) == uid)?;
                    Some(status.placement.as_ref()?.node_of(place)?.node.clone())
                }
                _ => None,
            });
            let Some(node) = nodes.next().filter(|node| !self.dead.contains(node)) else {
                continue;
            };
            self.bench.runs_on(&name, &node);
        }
    }

    fn node(&self, name: &str) -> Option<Arc<Node>> {
        let nodes = self.bench.server.list(Kind::Node).into_iter();
        let mut nodes = nodes.filter_map(|node| match node {
            Object::Node(node) if node.metadata.name.as_deref() == Some(name) => Some(node),
            _ => None,
        });
        nodes.next()
    }

    fn set_ready(&mut self, name: &str, status: &str) {
        let Some(mut node) = self.node(name) else {
            return;
        };
        let status_of = Arc::make_mut(&mut node).status.as_mut().unwrap();
        let conditions = status_of.conditions.as_mut().unwrap();
        status.clone_into(&mut conditions[0].status);
        self.bench.server.put(Object::Node(node));
    }

    fn die(&mut self, name: &str) {
        self.dead.insert(name.to_owned());
        self.bench.silent_drivers.insert(name.to_owned());
        self.set_ready(name, "Unknown");
    }

    /// The cloud takes the machine away.
    fn vanish(&mut self, name: &str) {
        self.die(name);
        self.bench.server.remove(&ObjectKey {
            kind: Kind::Node,
            namespace: String::new(),
            name: name.to_owned(),
        });
    }

    fn come_back(&mut self, name: &str) {
        if self.node(name).is_none() {
            for object in node_with_gpus(name, 2) {
                self.bench.server.put(object);
            }
        }
        self.dead.remove(name);
        self.bench.silent_drivers.remove(name);
        self.set_ready(name, "True");
    }

    fn suspend(&mut self, suspend: bool) {
        change_job(&mut self.bench, |job| {
            job.spec.as_mut().unwrap().suspend = Some(suspend);
        });
    }

    fn change_gang(&mut self, change: impl Fn(&mut muster_api::Gang)) {
        for object in self.bench.server.list(Kind::Gang) {
            if let Object::Gang(mut gang) = object {
                change(Arc::make_mut(&mut gang));
                self.bench.server.put(Object::Gang(gang));
            }
        }
    }

    fn stop(&mut self, stop: &str) {
        let mut object = team("vision", 4);
        if let Object::Team(team) = &mut object {
            Arc::make_mut(team).spec.stop = serde_json::from_value(stop.into()).unwrap();
        }
        self.bench.server.put(object);
    }

    /// Something happens.
    fn step(&mut self) {
        let which = self.draw(18);
        let node = format!("n{}", self.draw(2));
        self.told.push(format!("{which} {node}"));
        match which {
            0 | 1 => self.make_pods(),
            2 | 3 => self.run_pods(),
            4 if !is_suspended(&self.bench) => self.suspend(true),
            5 if is_suspended(&self.bench) => self.suspend(false),
            6 => {
                if let Some(name) = self.any_pod() {
                    self.delete(&name);
                }
            }
            7 => {
                if let Some(name) = self.any_pod()
                    && bound_node(&self.bench.server.pod(&name).unwrap()).is_some()
                {
                    self.bench.change_pod(&name, |pod| {
                        pod.status.as_mut().unwrap().phase = Some("Failed".to_owned());
                    });
                }
            }
            8 => self.die(&node),
            9 => self.come_back(&node),
            10 => self.bench.take_over(),
            11 => self.stop("HoldAndDrain"),
            12 => self.stop("None"),
            13 => self.vanish(&node),
            14 => self.change_gang(|gang| gang.spec.suspend = !gang.spec.suspend),
            15 => {
                for gang in self.bench.server.list(Kind::Gang) {
                    self.bench.server.remove(&gang.key());
                }
            }
            _ => {
                let seconds = [5, 40, 130, 300][usize::try_from(self.draw(4)).unwrap()];
                for _ in 0..seconds / 5 {
                    self.bench.seconds += 5;
                    self.bench.run_at_once();
                }
            }
        }
        if self.draw(3) == 0 {
            self.bench.run_at_once();
        } else {
            self.bench.run();
        }
        let used = self.used();
        assert!(used.0 <= 4_000, "{used:?}: {:?}", self.told);
    }

    fn used(&self) -> Amount {
        let usage = self.bench.machine.engine().usage(&"vision".into());
        usage.first().map_or(Amount::ZERO, |usage| usage.used)
    }

    /// Everybody does what they ought to, for hours.
    fn settle(&mut self) {
        for node in ["n0", "n1"] {
            self.come_back(node);
        }
        self.stop("None");
        self.change_gang(|gang| gang.spec.suspend = false);
        self.bench.run();
        if is_suspended(&self.bench)
            && the_job(&self.bench)
                .metadata
                .annotations
                .is_none_or(|it| !it.contains_key(keys::SUSPENDED_FOR))
        {
            self.suspend(false);
        }
        for _ in 0..60 {
            self.make_pods();
            self.bench.run();
            self.run_pods();
            self.bench.run();
            self.bench.seconds += 120;
        }
    }
}

#[test]
fn a_job_runs_in_the_end_whatever_happens_to_it() {
    for seed in 0..10 {
        let pods = 1 + usize::try_from(seed % 2).unwrap();
        let mut life = Life::new(seed, pods);
        for _ in 0..30 {
            life.step();
        }
        life.settle();
        let told = &life.told;
        let status = life.bench.gang_status();
        assert_eq!(
            status.phase,
            GangPhase::Running,
            "seed {seed}: {:?} {:?} after {told:?}",
            status.queue,
            status.evictions
        );
        let all = Amount(1_000 * i64::try_from(pods).unwrap());
        assert_eq!(life.used(), all, "seed {seed}: after {told:?}");
        assert!(!is_suspended(&life.bench), "seed {seed}");
        let living = life.pods().into_iter();
        let living = living.filter(|pod| !is_terminal(pod.as_ref())).count();
        assert_eq!(living, pods, "seed {seed}");
    }
}
