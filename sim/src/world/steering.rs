//! What a [`Script`](crate::script::Script) may do: hold steps back, wait for a moment, have a step taken, and
//! whatever users, administrators and faults do.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use muster_api::{Gang, Ledger, NodeDevices, keys};
use muster_cluster::object::{Kind, Object};
use muster_dra_driver::faults::FaultClass;

use super::{Step, Steps, World, turns::ACTORS};
use crate::{
    api_server::{Precondition, Stored, key},
    drivers::Instance,
    faults::Fault,
    invariants::Violation,
    owners,
};

/// Virtual time within which a moment has to come.
const MOMENT_MILLISECONDS: u64 = 120_000;

impl World {
    /// These steps are not taken until they are let go, but for [`World::have`].
    pub fn hold(&mut self, steps: Steps) {
        self.note(&format!("{steps:?} have to wait"));
        self.held.push(steps);
    }

    /// These steps are no longer held back.
    pub fn let_go(&mut self, steps: Steps) {
        self.note(&format!("{steps:?} go on"));
        self.held.retain(|held| *held != steps);
    }

    /// Whether such a step could be taken now, held back or not.
    pub fn offers(&mut self, steps: Steps) -> bool {
        !self.all_of(steps).is_empty()
    }

    /// The pods whose containers live, by UID.
    pub fn living_pods(&self) -> BTreeSet<String> {
        let nodes = self.nodes.values();
        nodes
            .flat_map(|node| node.containers.keys().cloned())
            .collect()
    }

    /// Everybody goes on until the moment comes.
    ///
    /// # Errors
    ///
    /// An invariant that breaks on the way; or `script`, if the moment does not come within two minutes: then the
    /// script does not show what it is meant to show.
    pub fn until(
        &mut self,
        moment: &str,
        has_come: impl Fn(&mut Self) -> bool,
    ) -> Result<(), Violation> {
        let latest = self.now + MOMENT_MILLISECONDS;
        while !has_come(self) {
            if self.now > latest {
                return Err(never(moment));
            }
            self.step()?;
        }
        self.note(moment);
        Ok(())
    }

    /// All such steps that can be taken now are taken, one after the other.
    ///
    /// # Errors
    ///
    /// An invariant that breaks; or `script`, if there is none to take.
    pub fn have(&mut self, steps: Steps) -> Result<(), Violation> {
        let due = self.all_of(steps).len();
        if due == 0 {
            return Err(never(&format!("{steps:?}")));
        }
        for _ in 0..due {
            let offered = self.all_of(steps);
            if let Some(step) = self.random.pick(offered) {
                self.steps += 1;
                self.take(&step)?;
            }
        }
        Ok(())
    }

    /// A gang is submitted.
    pub fn submit(&mut self, gang: &str) {
        self.note(&format!("{gang} is submitted"));
        let step = owners::Step::Submit(gang.to_owned());
        self.owners.perform(self.now, &step, &mut self.api);
    }

    /// A user deletes a pod; by force, its container does not stop it.
    pub fn delete_pod(&mut self, namespace: &str, name: &str, by_force: bool) {
        let how = if by_force { " by force" } else { "" };
        self.note(&format!("{name} is deleted{how}"));
        let pod = key(Pod::KIND, namespace, name);
        let any = Precondition::default();
        let _ = if by_force {
            self.api.delete_now(&pod, any)
        } else {
            self.api.delete(&pod, any)
        };
    }

    /// A user deletes the Gang of a label, and nothing else.
    pub fn delete_gang(&mut self, label: &str) {
        self.note(&format!("the Gang of {label} is deleted"));
        let is_meant = |gang: &&Gang| {
            let labels = gang.metadata.labels.as_ref();
            labels
                .and_then(|labels| labels.get(keys::GANG))
                .is_some_and(|it| it == label)
        };
        let gang = self.api.list::<Gang>().find(is_meant);
        let found = gang.map(|gang| (gang.metadata.namespace.clone(), gang.metadata.name.clone()));
        if let Some((Some(namespace), Some(name))) = found {
            let object = key(Gang::KIND, &namespace, &name);
            let _ = self.api.delete(&object, Precondition::default());
        }
    }

    /// A user deletes all Gangs, and nothing else.
    pub fn delete_gangs(&mut self) {
        self.note("all Gangs are deleted");
        let gangs: Vec<_> = self.api.objects(Kind::Gang).map(Object::key).collect();
        for gang in gangs {
            let _ = self.api.delete(&gang, Precondition::default());
        }
    }

    /// An administrator deletes the `NodeDevices` of a node.
    pub fn delete_node_devices(&mut self, node: &str) {
        self.note(&format!("NodeDevices {node} is deleted"));
        let object = key(NodeDevices::KIND, "", node);
        let _ = self.api.delete(&object, Precondition::default());
    }

    /// An administrator deletes the `Ledger`.
    pub fn delete_ledger(&mut self) {
        self.note("the Ledger is deleted");
        let ledger = key(Ledger::KIND, "", keys::LEDGER_NAME);
        let _ = self.api.delete(&ledger, Precondition::default());
    }

    /// A second instance of a node's driver starts beside the first.
    pub fn start_instance(&mut self, node: &str) {
        self.note(&format!("{node}: a second instance of the driver starts"));
        if let (Some(drivers), Some(node)) = (self.drivers.get_mut(node), self.nodes.get(node)) {
            drivers.start(self.now, &self.api, node);
        }
    }

    /// An instance of a node's driver dies. What it had sent may still arrive.
    pub fn crash_instance(&mut self, node: &str, id: u64) {
        self.note(&format!("{node}: driver {id} crashes"));
        let position = |instances: &[Instance]| instances.iter().position(|it| it.id == id);
        if let (Some(drivers), Some(kubelet), Some(node)) = (
            self.drivers.get_mut(node),
            self.kubelets.get_mut(node),
            self.nodes.get_mut(node),
        ) && let Some(position) = position(&drivers.instances)
        {
            drivers.crash(position, node);
            kubelet.disconnected(self.now, &mut self.random, id);
        }
    }

    /// The leader dies. What it had sent may still arrive.
    pub fn crash_leader(&mut self) {
        self.note("the leader crashes");
        if let Some(leader) = self.controllers.holder() {
            self.controllers.crash(leader, &self.api);
        }
    }

    /// A kubelet restarts: containers live on.
    pub fn restart_kubelet(&mut self, node: &str) {
        self.note(&format!("{node}: kubelet restarts"));
        if let Some(kubelet) = self.kubelets.get_mut(node) {
            kubelet.restart(self.now);
        }
    }

    /// Something is wrong with a GPU of a node; its kernel logs it.
    pub fn gpu_breaks(&mut self, node: &str, gpu: usize, class: FaultClass) {
        self.note(&format!("{node}: GPU {gpu} has a fault of class {class}"));
        if let Some(node) = self.nodes.get_mut(node) {
            node.faults.log(gpu, class);
        }
    }

    /// All ranks that run die: of a fault that one of them has hit, or by themselves.
    pub fn ranks_die(&mut self, of_a_fault: bool) {
        let why = if of_a_fault {
            "of a fault"
        } else {
            "by themselves"
        };
        self.note(&format!("all ranks die {why}"));
        let living: Vec<(String, String)> = self
            .nodes
            .iter()
            .flat_map(|(name, node)| {
                let pods = node.containers.keys();
                pods.map(|pod| (name.clone(), pod.clone()))
            })
            .collect();
        for (node, pod) in living {
            if of_a_fault {
                self.owners.note_excused(&pod);
            }
            self.finish(&node, &pod, false);
        }
    }

    /// A person mends the GPUs of a node, and says so.
    pub fn mend_gpus(&mut self, node: &str) {
        self.note(&format!("{node}: its GPUs are mended"));
        if let Some(node) = self.nodes.get_mut(node) {
            node.faults.mend();
        }
    }

    /// A fault that passes happens to that node, Team, or whatever it is of: until that time, or until everything heals.
    pub fn strike(&mut self, fault: Fault, name: &str, until: u64) {
        let told = self.befall(fault, name, until);
        self.note(&told.unwrap_or_else(|| format!("{fault:?} of {name} comes to nothing")));
    }

    /// The newest instance of a node's driver, if one runs.
    pub fn newest_instance(&self, node: &str) -> Option<u64> {
        let drivers = self.drivers.get(node)?;
        drivers.instances.last().map(|instance| instance.id)
    }

    /// Whether the leader holds the circuit breaker to be open, as the Ledger says.
    pub fn is_breaker_open(&self) -> bool {
        let mut ledgers = self.api.list::<Ledger>();
        ledgers.any(|ledger| ledger.spec.breaker.opened_at.is_some())
    }

    /// The leader loses the lease, lives on, and its watches of these kinds stand still. Returns the number of the
    /// replica that leads now, if one is free.
    pub fn supersede_leader(&mut self, frozen: BTreeSet<Kind>) -> Option<usize> {
        self.note(&format!("the leader is superseded, and lags on {frozen:?}"));
        self.controllers.supersede(frozen, &self.api);
        self.controllers.holder()
    }

    fn all_of(&mut self, wanted: Steps) -> Vec<Step> {
        let mut steps = Vec::new();
        for (actor, _) in ACTORS {
            steps.extend(self.all_steps_of(actor));
        }
        steps.retain(|step| self.is_of(wanted, step));
        steps
    }

    /// Notes what the script does, which may be anything.
    fn note(&mut self, text: &str) {
        self.checked = None;
        self.trace.note(self.now, format!("SCRIPT {text}"));
    }
}

fn never(moment: &str) -> Violation {
    Violation {
        invariant: "script",
        what: format!("the moment never comes: {moment}"),
    }
}
