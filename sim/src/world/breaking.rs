//! GPUs that break, machines that are started anew, outages, and recovery that only observes.

use k8s_openapi::api::resource::v1::ResourceSlice;
use muster_api::keys;
use muster_dra_driver::faults::FaultClass;
use muster_protocol::Mode;

use super::{World, passing::is_of_machine};
use crate::{faults::Fault, fixtures};

/// Within which all kubelets are heard of again after an outage: less than it takes until a node is taken for silent.
const BACK_MILLISECONDS: u64 = 20_000;
/// What is away in an outage.
pub(super) const API_SERVER: &str = "the API server";
/// All programs of Muster.
pub(super) const OURS: &str = "Muster";

impl World {
    /// A GPU of the node breaks. The rank on it dies of that, or goes on as if nothing were. Its driver hears of it by the log.
    pub(super) fn break_gpu(&mut self, name: &str) -> Option<String> {
        const CLASSES: [FaultClass; 6] = [
            FaultClass::Contained,
            FaultClass::Link,
            FaultClass::Unknown,
            FaultClass::Reset,
            FaultClass::Reboot,
            FaultClass::Retire,
        ];
        // One after the other: else nobody could tell of which fault a taint is.
        if self.is_behind_with_faults(name) {
            return None;
        }
        let number = self.random.index(self.nodes.get(name)?.shape.gpus);
        let mut classes = vec![CLASSES[self.random.index(CLASSES.len())]];
        // What is milder comes with it, or something else that is as bad.
        if self.random.one_in(2) {
            let beside = FaultClass::ALL;
            classes.push(beside[self.random.index(beside.len())]);
        }
        self.random.shuffle(&mut classes);
        let gpu = fixtures::gpu_uuid(name, number);
        let node = self.nodes.get_mut(name)?;
        for class in &classes {
            node.faults.log(number, *class);
        }
        let mut containers = node.containers.iter();
        let rank = containers.find(|(_, it)| it.units.iter().any(|(_, unit)| unit.gpu == gpu));
        let rank = rank.map(|(pod, _)| pod.clone());
        if let Some(pod) = rank
            && self.random.one_in(3)
        {
            self.owners.note_excused(&pod);
            self.finish(name, &pod, false);
        }
        let device = fixtures::device_name(number);
        Some(format!(
            "{name}: {device} has faults of the classes {classes:?}"
        ))
    }

    /// Whether the driver of the node has yet to hear, or to publish, that what was wrong is mended.
    fn is_behind_with_faults(&self, name: &str) -> bool {
        let Some(node) = self.nodes.get(name) else {
            return true;
        };
        let slice = self
            .api
            .get::<ResourceSlice>("", &fixtures::slice_name(name));
        let devices = slice.into_iter().flat_map(|slice| &slice.spec.devices);
        let mut devices = devices.flatten();
        !node.faults.said().is_empty()
            || node.faults.standing().is_empty()
                && devices.any(|device| {
                    let mut taints = device.taints.iter().flatten();
                    taints.any(|taint| taint.key != keys::TAINT_HELD)
                })
    }

    /// A machine is started anew, with its disk. What ran there has failed.
    pub(super) fn reboot_node(&mut self) -> Option<String> {
        let running = self.nodes.keys().filter(|name| !self.is_off(name));
        let running = running.cloned().collect();
        let name: String = self.random.pick(running)?;
        let pods: Vec<String> = self.nodes.get(&name)?.containers.keys().cloned().collect();
        for pod in pods {
            self.finish(&name, &pod, false);
        }
        let (node, drivers, kubelet) = (
            self.nodes.get_mut(&name)?,
            self.drivers.get_mut(&name)?,
            self.kubelets.get_mut(&name)?,
        );
        while let Some(id) = drivers.instances.first().map(|instance| instance.id) {
            drivers.crash(0, node);
            kubelet.disconnected(self.now, &mut self.random, id);
        }
        node.reboot(self.now);
        kubelet.restart(self.now);
        Some(format!("{name} is started anew"))
    }

    /// A setting of the controller, which is started anew with it.
    pub(super) fn set_recovery_mode(&mut self, mode: Mode) {
        self.controllers.set_recovery_mode(mode);
        if let Some(leader) = self.controllers.holder() {
            self.controllers.crash(leader, &self.api);
        }
    }

    /// The API server is reached again. It has heard of no kubelet for so long that all nodes are silent, until each is heard of.
    pub(super) fn come_back(&mut self) {
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        for name in names {
            let mut passing = self.passing.keys();
            let is_busy = passing.any(|(fault, of)| *of == name && is_of_node(*fault));
            if !is_busy {
                self.set_ready(&name, false);
                let until = self.now + self.random.between(1_000, BACK_MILLISECONDS);
                self.passing.insert((Fault::NotReady, name), until);
            }
        }
    }

    /// Whether an outage keeps this from being reached.
    pub(super) fn is_away(&self, what: &str) -> bool {
        let mut passing = self.passing.keys();
        passing.any(|(fault, name)| *fault == Fault::Outage && name == what)
    }
}

/// What has to do with whether its kubelet is heard of.
fn is_of_node(fault: Fault) -> bool {
    is_of_machine(fault) && fault != Fault::GpuBreaks
}
