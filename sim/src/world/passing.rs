//! Faults that last for a while and are undone then: what administrators do to nodes, Teams and Namespaces, and machines
//! that go and come back.

use k8s_openapi::api::core::v1::{Namespace, Node, NodeCondition, Pod, PodCondition, Taint};
use muster_api::{Team, keys, team::Stop};
use muster_cluster::object::{Kind, Object};
use muster_protocol::Mode;

use super::{
    World,
    breaking::{API_SERVER, OURS},
};
use crate::{
    api_server::{Precondition, Stored, has_ended, key, node_of},
    drivers::Drivers,
    faults::Fault,
    fixtures,
    kubelet::Kubelet,
    scenario::{QuotaShape, TeamShape},
};

/// After which time the pods of a node that is gone are deleted by force: the pod garbage collector of
/// kube-controller-manager waits so long.
const POD_GC_MILLISECONDS: u64 = 40_000;
/// How long pods bear that their node is not reachable.
const TOLERATION_MILLISECONDS: u64 = 300_000;

impl World {
    /// Begins a fault that passes, if there is something that it can happen to and does not happen to yet.
    pub(super) fn begin(&mut self, fault: Fault) -> Option<String> {
        let names: Vec<String> = match fault {
            Fault::LeaveTeam => self.api.list::<Namespace>().filter_map(name).collect(),
            Fault::LowerQuota | Fault::HoldTeam | Fault::DrainTeam => {
                self.api.list::<Team>().filter_map(name).collect()
            }
            Fault::SuspendJob => self.owners.suspendable(&self.api, false),
            Fault::RecoveryObserves => vec!["recovery".to_owned()],
            Fault::Outage => [API_SERVER, OURS].map(str::to_owned).into(),
            // Where nothing runs nobody is to be moved.
            Fault::DrainNode | Fault::DrainDevice => {
                let nodes = self.nodes.iter();
                let used = nodes.filter(|(_, node)| !node.containers.is_empty());
                used.map(|(name, _)| name.clone()).collect()
            }
            _ => self.nodes.keys().cloned().collect(),
        };
        let is_free = |name: &String| {
            !self.passing.keys().any(|(other, of)| {
                let excludes = |is: fn(Fault) -> bool| is(*other) && is(fault);
                of == name && (*other == fault || excludes(is_of_machine) || excludes(is_stop))
            })
        };
        let free = names.into_iter().filter(is_free).collect();
        let name = self.random.pick(free)?;
        let (least, most) = match fault {
            Fault::LeaveTeam => (1_000, 30_000),
            Fault::NodeMadeAgain => (1_000, POD_GC_MILLISECONDS - 1_000),
            Fault::MachineLost => (POD_GC_MILLISECONDS + 1_000, 90_000),
            // Longer than a place is kept for a node that is not Ready.
            Fault::NotReady => (1_000, 100_000),
            Fault::MachineDies => (TOLERATION_MILLISECONDS, TOLERATION_MILLISECONDS),
            // Longer than it takes until somebody is evicted for it.
            Fault::LowerQuota => (1_000, 300_000),
            Fault::GpuBreaks => (1_000, 200_000),
            // Longer than any time after which a node counts as lost.
            Fault::Outage => (1_000, 600_000),
            // Longer than until a pod that hangs is deleted by force, or its gang evicted for its node.
            Fault::PodsHang | Fault::MachineOff => (30_000, 200_000),
            Fault::KubeletSilent => (100_000, 400_000),
            // Longer than it takes until somebody is moved for it: who has a place elsewhere is asked twice a minute.
            Fault::DrainNode | Fault::DrainDevice => (20_000, 200_000),
            _ => (1_000, 60_000),
        };
        let until = self.now + self.random.between(least, most);
        self.befall(fault, &name, until)
    }

    /// A fault that passes happens to that until then.
    pub(super) fn befall(&mut self, fault: Fault, name: &str, until: u64) -> Option<String> {
        self.passing.insert((fault, name.to_owned()), until);
        let told = match fault {
            Fault::LeaveTeam => {
                self.label(name, false);
                format!("namespace {name} leaves its Team")
            }
            Fault::LowerQuota => {
                let left = self.lower_quota(name)?;
                let (nominal, product) = (left.nominal_gpus, left.product.name());
                format!("team {name} is guaranteed {nominal} {product} only")
            }
            Fault::Cordon => {
                self.cordon(name, true);
                format!("{name} is cordoned")
            }
            Fault::NotReady => {
                self.set_ready(name, false);
                if let Some(kubelet) = self.kubelets.get_mut(name) {
                    kubelet.paused_until = until;
                }
                format!("{name} is not Ready, and its kubelet does nothing")
            }
            Fault::NodeMadeAgain => {
                self.remove_node(name);
                format!("Node {name} is deleted, and what runs there lives on")
            }
            Fault::MachineLost => {
                self.lose_machine(name);
                self.remove_node(name);
                format!("the machine {name} is lost, and Node {name} deleted")
            }
            Fault::SuspendJob => {
                self.owners.suspend(name, true, &mut self.api);
                format!("{name} is suspended by its user")
            }
            Fault::ImageMissing => {
                if let Some(kubelet) = self.kubelets.get_mut(name) {
                    kubelet.lacks_images = true;
                }
                format!("{name}: images of new pods never arrive")
            }
            Fault::MachineDies => {
                self.lose_machine(name);
                self.set_ready(name, false);
                format!("the machine {name} dies")
            }
            Fault::HoldTeam => {
                self.stop_team(name, Stop::Hold);
                format!("team {name} is held")
            }
            Fault::DrainTeam => {
                self.stop_team(name, Stop::HoldAndDrain);
                format!("team {name} is held and drained")
            }
            Fault::GpuBreaks => self.break_gpu(name)?,
            Fault::RecoveryObserves => {
                self.set_recovery_mode(Mode::Observe);
                "recovery only observes".to_owned()
            }
            Fault::Outage => {
                // It cannot renew its lease, and ends.
                if let Some(leader) = self.controllers.holder() {
                    self.controllers.crash(leader, &self.api);
                }
                format!("{name} cannot be reached")
            }
            Fault::PodsHang => {
                self.set_kills_nothing(name, true);
                format!("{name}: no container that is told to end does")
            }
            Fault::KubeletSilent => {
                self.set_ready(name, false);
                if let Some(kubelet) = self.kubelets.get_mut(name) {
                    kubelet.paused_until = until;
                }
                format!("{name}: the kubelet is silent, and what runs there lives on")
            }
            Fault::MachineOff => {
                self.lose_machine(name);
                self.set_ready(name, false);
                self.set_out_of_service(name, true);
                format!("the machine {name} is switched off, and out of service")
            }
            Fault::DrainNode => {
                self.drain_node(name, true);
                format!("{name} is drained")
            }
            Fault::DrainDevice => self.drain_device(name)?,
            _ => return None,
        };
        Some(format!("{told}, for a while"))
    }

    /// Undoes what has lasted long enough.
    pub(super) fn end_passing(&mut self) {
        while let Some((fault, name)) = self.first_over() {
            self.checked = None;
            self.passing.remove(&(fault, name.clone()));
            match fault {
                Fault::LeaveTeam => self.label(&name, true),
                Fault::LowerQuota => self.restore_quota(&name),
                Fault::Cordon => self.cordon(&name, false),
                Fault::DrainNode => self.drain_node(&name, false),
                Fault::DrainDevice => self.undrain_device(&name),
                Fault::NotReady | Fault::KubeletSilent => self.set_ready(&name, true),
                Fault::PodsHang => self.set_kills_nothing(&name, false),
                Fault::MachineOff => {
                    self.set_out_of_service(&name, false);
                    self.start_machine(&name);
                    self.set_ready(&name, true);
                }
                Fault::MachineLost => {
                    self.collect_pods(&name);
                    self.start_machine(&name);
                    self.add_node(&name);
                }
                Fault::SuspendJob => self.owners.suspend(&name, false, &mut self.api),
                Fault::ImageMissing => {
                    if let Some(kubelet) = self.kubelets.get_mut(&name) {
                        kubelet.lacks_images = false;
                    }
                }
                Fault::MachineDies => {
                    self.evict_by_taint(&name);
                    let until = self.now + self.random.between(1_000, 400_000);
                    let next = (Fault::MachineStaysDead, name.clone());
                    self.passing.insert(next, until);
                }
                Fault::MachineStaysDead => {
                    if self.random.one_in(2) {
                        // The taint out-of-service: the pod garbage collector deletes by force what is deleted already.
                        self.collect_pods(&name);
                    }
                    self.start_machine(&name);
                    self.set_ready(&name, true);
                }
                Fault::HoldTeam | Fault::DrainTeam => self.stop_team(&name, Stop::None),
                Fault::GpuBreaks => {
                    if let Some(node) = self.nodes.get_mut(&name) {
                        node.faults.mend();
                    }
                }
                Fault::RecoveryObserves => self.set_recovery_mode(Mode::Enforce),
                Fault::Outage if name == API_SERVER => self.come_back(),
                // Whoever leads next lists everything.
                Fault::Outage => {}
                _ => self.add_node(&name),
            }
            self.trace
                .note(self.now, format!("{fault:?} of {name} is over"));
        }
    }

    /// Lets all of it end now.
    pub(super) fn end_all_passing(&mut self) {
        let now = self.now;
        // What ends may begin what follows it.
        while !self.passing.is_empty() {
            self.passing.values_mut().for_each(|until| *until = now);
            self.end_passing();
        }
    }

    /// The node controller deletes the pods of a node that it has heard nothing of for as long as they bear it.
    fn evict_by_taint(&mut self, node: &str) {
        let lives = |pod: &&Pod| node_of(pod) == Some(node) && !has_ended(pod);
        let pods: Vec<_> = self.api.list::<Pod>().filter(lives).cloned().collect();
        for pod in pods {
            let key = Object::key(&pod.wrap());
            let any = Precondition::default();
            let _ = self
                .api
                .update::<Pod>(&key.namespace, &key.name, any, |pod| {
                    let status = pod.status.get_or_insert_default();
                    status
                        .conditions
                        .get_or_insert_default()
                        .push(PodCondition {
                            type_: "DisruptionTarget".to_owned(),
                            status: "True".to_owned(),
                            reason: Some("DeletionByTaintManager".to_owned()),
                            ..PodCondition::default()
                        });
                });
            let _ = self.api.delete(&key, any);
        }
    }

    fn stop_team(&mut self, team: &str, stop: Stop) {
        let any = Precondition::default();
        let _ = self
            .api
            .update::<Team>("", team, any, |team| team.spec.stop = stop);
    }

    /// What is over first. Nothing that goes by way of the API server is while that cannot be reached.
    fn first_over(&self) -> Option<(Fault, String)> {
        let is_out = self.is_away(API_SERVER);
        let mut passing = self.passing.iter();
        let (over, _) = passing.find(|((fault, _), until)| {
            **until <= self.now && (!is_out || *fault == Fault::Outage)
        })?;
        Some(over.clone())
    }

    /// A Namespace has, or loses, its label: without it waiting gangs have no Team, its Queue goes, and what runs stays
    /// charged.
    fn label(&mut self, namespace: &str, joins: bool) {
        let has_it = |team: &&TeamShape| team.namespaces.iter().any(|it| it == namespace);
        let Some(team) = self.teams.iter().find(has_it) else {
            return;
        };
        let team = team.name.clone();
        let any = Precondition::default();
        let _ = self.api.update::<Namespace>("", namespace, any, |object| {
            let labels = object.metadata.labels.get_or_insert_default();
            if joins {
                labels.insert(keys::TEAM.to_owned(), team);
            } else {
                labels.remove(keys::TEAM);
            }
        });
    }

    /// The limits of a Team for one kind of GPUs fall; what it uses beyond them it keeps, and gets nothing more.
    fn lower_quota(&mut self, team: &str) -> Option<QuotaShape> {
        let shape = self.teams.iter().find(|shape| shape.name == team);
        let mut lower = shape.cloned()?;
        let chosen = self.random.index(lower.quotas.len());
        let quota = lower.quotas.get_mut(chosen)?;
        quota.nominal_gpus = self.random.index(quota.nominal_gpus + 1);
        // Lower in both: elsewhere it is taken for granted that no limit is ever above that of the scenario.
        let borrowing = self.random.index(2);
        let before = quota.borrowing_gpus;
        quota.borrowing_gpus = Some(before.map_or(borrowing, |most| most.min(borrowing)));
        let left = *quota;
        let quota = fixtures::quota(&lower);
        let any = Precondition::default();
        let _ = self
            .api
            .update::<Team>("", team, any, |team| team.spec.quota = quota);
        Some(left)
    }

    fn restore_quota(&mut self, team: &str) {
        let Some(shape) = self.teams.iter().find(|shape| shape.name == team) else {
            return;
        };
        let quota = fixtures::quota(shape);
        let any = Precondition::default();
        let _ = self
            .api
            .update::<Team>("", team, any, |team| team.spec.quota = quota);
    }

    /// As `kubectl cordon` and the node controller do: the field, and the taint that follows it.
    fn cordon(&mut self, node: &str, cordoned: bool) {
        let any = Precondition::default();
        let _ = self.api.update::<Node>("", node, any, |node| {
            node.spec.get_or_insert_default().unschedulable = cordoned.then_some(true);
            set_taint(node, "node.kubernetes.io/unschedulable", cordoned);
        });
    }

    /// As the node controller does when it hears nothing of a kubelet any more: the condition, and its taint. It evicts
    /// nobody before five minutes.
    pub(super) fn set_ready(&mut self, node: &str, ready: bool) {
        let status = if ready { "True" } else { "Unknown" };
        let any = Precondition::default();
        let _ = self.api.update::<Node>("", node, any, |node| {
            node.status.get_or_insert_default().conditions = Some(vec![NodeCondition {
                type_: "Ready".to_owned(),
                status: status.to_owned(),
                ..NodeCondition::default()
            }]);
            set_taint(node, "node.kubernetes.io/unreachable", !ready);
        });
    }

    fn set_out_of_service(&mut self, node: &str, is_out: bool) {
        let any = Precondition::default();
        let _ = self.api.update::<Node>("", node, any, |node| {
            set_taint(node, "node.kubernetes.io/out-of-service", is_out);
        });
    }

    fn set_kills_nothing(&mut self, node: &str, kills_nothing: bool) {
        if let Some(kubelet) = self.kubelets.get_mut(node) {
            kubelet.kills_nothing = kills_nothing;
        }
    }

    /// A Node is deleted, and what its driver published goes with it.
    fn remove_node(&mut self, node: &str) {
        let any = Precondition::default();
        let slice = fixtures::slice_name(node);
        let _ = self.api.delete(&key(Kind::Node, "", node), any);
        let _ = self.api.delete(&key(Kind::ResourceSlice, "", &slice), any);
    }

    /// A kubelet registers its Node, and the driver publishes its devices.
    fn add_node(&mut self, node: &str) {
        if let Some(shape) = self.nodes.get(node).map(|node| node.shape.clone()) {
            let _ = self.api.create(fixtures::node(&shape));
            let _ = self.api.create(fixtures::resource_slice(&shape));
        }
        if let (Some(drivers), Some(known)) = (self.drivers.get(node), self.nodes.get(node)) {
            drivers.publish_faults(&mut self.api, known);
        }
    }

    /// A machine is gone, with all that ran there, its disk, and the programs of the node. What its driver had sent may
    /// still arrive.
    fn lose_machine(&mut self, name: &str) {
        if let (Some(node), Some(drivers)) = (self.nodes.get_mut(name), self.drivers.get_mut(name))
        {
            while !drivers.instances.is_empty() {
                drivers.crash(0, node);
            }
            node.lose_everything();
        }
        self.kubelets.insert(name.to_owned(), Kubelet::default());
    }

    /// A machine comes up that has nothing but the name of the one that was lost.
    fn start_machine(&mut self, name: &str) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.boot(self.now);
        }
        let mut kubelet = Kubelet::default();
        kubelet.informer.list(&self.api);
        self.kubelets.insert(name.to_owned(), kubelet);
    }

    /// The pods of a node that is gone have failed, and are deleted by force.
    fn collect_pods(&mut self, node: &str) {
        let of_node = |pod: &&Pod| node_of(pod) == Some(node);
        let pods: Vec<_> = self.api.list::<Pod>().filter(of_node).cloned().collect();
        for pod in pods {
            let key = Object::key(&pod.wrap());
            let any = Precondition::default();
            let _ = self
                .api
                .update::<Pod>(&key.namespace, &key.name, any, |pod| {
                    if !has_ended(pod) {
                        pod.status.get_or_insert_default().phase = Some("Failed".to_owned());
                    }
                });
            let _ = self.api.delete_now(&key, Precondition::default());
        }
    }

    /// Whether a node's machine is lost, so that no program of the node runs.
    pub(super) fn is_off(&self, node: &str) -> bool {
        let is_there = |fault| self.passing.contains_key(&(fault, node.to_owned()));
        is_there(Fault::MachineLost)
            || is_there(Fault::MachineDies)
            || is_there(Fault::MachineStaysDead)
            || is_there(Fault::MachineOff)
    }

    /// Whether a kubelet is silent for longer than anybody waits for it.
    pub fn is_kubelet_silent(&self) -> bool {
        self.lasts(&[Fault::KubeletSilent])
    }

    /// Whether somebody is drained by hand.
    pub fn is_anything_drained(&self) -> bool {
        self.lasts(&[Fault::DrainNode, Fault::DrainDevice])
    }

    fn lasts(&self, faults: &[Fault]) -> bool {
        let mut passing = self.passing.keys();
        passing.any(|(fault, _)| faults.contains(fault))
    }

    /// The drivers of nodes whose machines are there.
    pub(super) fn drivers_that_run(&self) -> impl Iterator<Item = (&String, &Drivers)> {
        self.drivers.iter().filter(|(name, _)| !self.is_off(name))
    }
}

/// A machine has one of them at a time.
pub(super) fn is_of_machine(fault: Fault) -> bool {
    matches!(
        fault,
        Fault::GpuBreaks
            | Fault::NodeMadeAgain
            | Fault::MachineLost
            | Fault::MachineDies
            | Fault::MachineStaysDead
            | Fault::NotReady
            | Fault::KubeletSilent
            | Fault::MachineOff
    )
}

fn is_stop(fault: Fault) -> bool {
    matches!(fault, Fault::HoldTeam | Fault::DrainTeam)
}

fn name<T: Stored>(object: &T) -> Option<String> {
    object.metadata().name.clone()
}

pub(super) fn set_taint(node: &mut Node, key: &str, tainted: bool) {
    let taints = node.spec.get_or_insert_default();
    let taints = taints.taints.get_or_insert_default();
    taints.retain(|taint| taint.key != key);
    if tainted {
        taints.push(Taint {
            key: key.to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        });
    }
}
