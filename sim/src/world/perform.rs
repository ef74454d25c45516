//! Taking a step: whoever's it is, with what goes wrong in it.

use super::{World, turns::Step, wall};
use crate::{api_server::Precondition, claim_controller, controllers, drivers, kubelet, scheduler};

impl World {
    pub(super) fn perform(&mut self, step: &Step) {
        match step {
            Step::Controllers(step) => self.perform_controllers(step),
            Step::Scheduler(step) => {
                self.trace.note(self.now, step.to_string());
                scheduler::perform(&mut self.api, step);
            }
            Step::Claims(step) => {
                self.trace
                    .note(self.now, format!("claim controller: {step:?}"));
                let random = self.random.below(1 << 20);
                claim_controller::perform(&mut self.api, step, random);
            }
            Step::Garbage(key) => {
                self.trace
                    .note(self.now, format!("garbage: {:?} {}", key.kind, key.name));
                let _ = self.api.delete(key, Precondition::default());
            }
            Step::Owners(step) => {
                self.trace.note(self.now, format!("owner: {step:?}"));
                self.owners.perform(step, &mut self.api);
            }
            Step::Workload(step) => {
                let end = if step.succeeded { "succeeds" } else { "fails" };
                self.trace.note(
                    self.now,
                    format!("{}: container of {} {end}", step.node, step.pod),
                );
                self.finish(&step.node, &step.pod, step.succeeded);
            }
            Step::Kubelet(name, step) => self.perform_kubelet(name, step),
            Step::Driver(name, step) => self.perform_driver(name, step),
        }
    }

    fn perform_controllers(&mut self, step: &controllers::Step) {
        let mishap = match step {
            controllers::Step::Perform(..) => self.faults.controller_mishap(&mut self.random),
            _ => None,
        };
        let wall = wall(self.now);
        let told = self
            .controllers
            .perform(step, self.now, wall, &mut self.api, mishap);
        if let Some(told) = told {
            self.trace.note(self.now, told);
        }
    }

    fn perform_kubelet(&mut self, name: &str, step: &kubelet::Step) {
        self.trace
            .note(self.now, format!("{name}: kubelet: {step:?}"));
        if let (Some(kubelet), Some(node), Some(drivers)) = (
            self.kubelets.get_mut(name),
            self.nodes.get_mut(name),
            self.drivers.get_mut(name),
        ) {
            kubelet.perform(
                step,
                self.now,
                &mut self.random,
                &mut self.api,
                node,
                drivers,
            );
        }
    }

    fn perform_driver(&mut self, name: &str, step: &drivers::Step) {
        let (Some(kubelet), Some(node), Some(drivers)) = (
            self.kubelets.get_mut(name),
            self.nodes.get_mut(name),
            self.drivers.get_mut(name),
        ) else {
            return;
        };
        let mishap = if drivers.touches_disk(step) {
            self.faults.disk_mishap(&mut self.random)
        } else if drivers.touches_api(step) {
            self.faults.driver_mishap(&mut self.random)
        } else {
            None
        };
        let failed = mishap.map_or_else(String::new, |mishap| format!(" -> {mishap:?}"));
        let text = drivers.describe(step);
        self.trace.note(self.now, format!("{name}: {text}{failed}"));
        if *step == drivers::Step::StopOld
            && let Some(old) = drivers.instances.first()
        {
            kubelet.disconnected(self.now, &mut self.random, old.id);
        }
        let answered = drivers.perform(step, self.now, &mut self.api, node, mishap);
        if let Some(answered) = answered {
            kubelet.answered(self.now, &mut self.random, &answered);
        }
    }

    pub(super) fn finish(&mut self, node: &str, pod: &str, succeeded: bool) {
        if let (Some(kubelet), Some(node)) = (self.kubelets.get_mut(node), self.nodes.get_mut(node))
        {
            kubelet.finish(pod, node, succeeded);
        }
    }
}
